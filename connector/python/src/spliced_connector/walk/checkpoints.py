"""Checkpoints: conversion of a context's states and rows to parts of a layout, and back."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from spliced_connector.model import Layout, Part, Profile
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.context import Context
from spliced_connector.walk.copies import Copies
from spliced_connector.walk.segments import part_bytes, tensor_over


class HeldCheckpoint(Protocol):
    """A checkpoint that the client has leased: a chain of nodes. A node has the rows of tokens
    [begin, end) of the prompt."""

    @property
    def tokens(self) -> int: ...
    @property
    def nodes(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    def part(self, node: int, index: int) -> memoryview: ...


def checkpoint_parts(profile: Profile, context: Context, parent_tokens: int) -> list[memoryview]:
    """Returns the parts of a checkpoint at the context's last token, in the order of its layout:
    the states at that token, and the keys and values of the tokens after the parent's."""
    layout = profile.checkpoint_layout(context.tokens - parent_tokens)
    found: list[Tensor | None] = []
    for p in layout.parts:
        at = context.layers[p.layer]
        if p.kind in ("K", "V"):
            rows = context.rows(p.layer)[0 if p.kind == "K" else 1]
            found.append(rows[parent_tokens:])
        else:
            found.append(at.state if p.kind == "S" else at.conv)
    return part_bytes(layout, found)


def restore(
    arch: Architecture, profile: Profile, held: HeldCheckpoint, room: int, device: torch.device
) -> Context:
    """Returns a context that continues after a leased checkpoint. All parts are copied.

    room: number of tokens that the context has room for. Raises ValueError if a node's layout does
    not fit the model, or if the nodes do not end at the checkpoint's tokens.
    """
    context = Context(arch, room, device)
    reader, last = PartReader(context), len(held.nodes) - 1
    for i, ((begin, end), layout) in enumerate(zip(held.nodes, held.layouts, strict=True)):
        if layout != profile.checkpoint_layout(end - begin):
            raise ValueError(f"node of tokens [{begin}, {end}) has another layout")
        for index, part in enumerate(layout.parts):
            if i == last or part.kind in ("K", "V"):
                reader.read(part, held.part(i, index), begin, end)
    if not held.nodes or held.nodes[last][1] != held.tokens:
        raise ValueError(f"checkpoint of {held.tokens} tokens, nodes {held.nodes}")
    context.tokens = held.tokens
    return context


class PartReader:
    """Copies parts of checkpoints into a context."""

    def __init__(self, context: Context) -> None:
        self._context, self._copies = context, Copies(context.device)

    def read(self, part: Part, view: memoryview, begin: int, end: int) -> None:
        """Copies one part into the context: keys or values of tokens [begin, end), a state, or
        convolution inputs. Raises ValueError if the context's layer has no such part."""
        at = self._context.layers[part.layer]
        if part.kind in ("K", "V"):
            into = at.k if part.kind == "K" else at.v
            target = None if into is None else into[begin:end]
        else:
            target = at.state if part.kind == "S" else at.conv
        if target is None:
            raise ValueError(f"layer {part.layer} has no place for part {part.kind}")
        if target.numel():
            (brought,) = self._copies.to_device([tensor_over(view, part.dtype, part.shape)])
            target.copy_(brought)
