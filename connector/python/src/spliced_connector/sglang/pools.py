"""SGLang's host pools as tensors of our own layout. Only this module knows the pools' layouts.

It was written for SGLang 0.5.23. Host pools have what HiCache has copied from the device:

    KV     layer_first        [2, layers, tokens, heads, dim]
           page_first         [2, tokens, layers, heads, dim]
           page_first_direct  [2, pages, layers, page, heads, dim]
           page_head          [2, pages, heads, page, layers, dim]
    MAMBA  temporal           [slots, layers, 1, value heads, value dim, key dim]
           conv               [slots, layers, 1, channels, kernel - 1]

KV has only attention layers, MAMBA only recurrent layers. Any other layout raises `Unfit`, and the
backend does not use the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import Tensor

from spliced_connector.model import DType, Family, Identity, Kind, Layer, Profile
from spliced_connector.walk import TORCH_TYPES

FAMILIES = (Family.GDN, Family.MAMBA2)
"""Families of linear attention whose states have the layout above."""

_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


class Unfit(Exception):  # noqa: N818 - it is a property of the engine, not a failure
    """Why a pool or model cannot be used."""


class Pool(Protocol):
    """Pages of one kind, as tensors in the order of a checkpoint's parts."""

    profile: Profile
    page_tokens: int

    def page(self, index: int) -> list[Tensor]: ...


def dtype_of(kind: torch.dtype, what: str) -> DType:
    """Returns the stored type for a torch type. Raises `Unfit` for a type that would lose bits."""
    for ours, theirs in TORCH_TYPES.items():
        if theirs == kind:
            return ours
    raise Unfit(f"{what} of {kind}")


def rows_only(identity: Identity) -> Identity:
    """Returns an identity with only the attention layers' rows."""
    return _without(identity, (Kind.LINEAR,))


def states_only(identity: Identity) -> Identity:
    """Returns an identity with only the recurrent states."""
    return _without(identity, (Kind.FULL, Kind.MLA, Kind.WINDOW))


def _without(identity: Identity, kinds: Sequence[Kind]) -> Identity:
    layers = tuple(Layer() if layer.kind in kinds else layer for layer in identity.layers)
    return replace(identity, layers=layers)


class RowPool:
    """Pages of keys and values."""

    def __init__(self, pool: object, identity: Identity) -> None:
        """Raises `Unfit` if the pool does not fit the model."""
        self.profile = Profile(rows_only(identity))
        self._pool = pool
        self._layout = str(getattr(pool, "layout", None))
        self.page_tokens = int(getattr(pool, "page_size", 0))
        self.dtype: torch.dtype = _tensor(pool, "kv_buffer").dtype
        self._shape = self._page_shape(identity)
        self._check()

    def page(self, index: int) -> list[Tensor]:
        """Returns K and V of each layer, [tokens, heads, dim]: views of the page that begins at
        `index`."""
        block = _tensor(self._pool, "kv_buffer")
        size = self.page_tokens
        if self._layout == "layer_first":
            block = block[:, :, index : index + size]
        elif self._layout == "page_first":
            block = block[:, index : index + size]
        else:
            block = block[:, index // size]
        return self._rows(block)

    def flat(self, data: Tensor) -> list[Tensor]:
        """Returns the same tensors as `page`, as views of `data`, which has the form of the pool's
        `get_data_page`. Raises `Unfit` for another type or size."""
        if data.dtype != self.dtype or data.numel() != torch.Size(self._shape).numel():
            raise Unfit(f"page of {data.numel()} {data.dtype}")
        return self._rows(data.view(self._shape))

    def _rows(self, block: Tensor) -> list[Tensor]:
        if self._layout == "page_first":
            block = block.transpose(1, 2)
        elif self._layout == "page_head":
            block = block.permute(0, 3, 2, 1, 4)
        return [block[kv, layer] for layer in range(block.shape[1]) for kv in (0, 1)]

    def _page_shape(self, identity: Identity) -> tuple[int, ...]:
        layers = len(self.profile.attention_layers)
        if not layers:
            raise Unfit("model without attention")
        for i in self.profile.attention_layers:
            kept = identity.layers[i]
            if kept.kind != Kind.FULL or kept.attention.key_dim != kept.attention.value_dim:
                raise Unfit(f"layer {i} is not plain attention with K and V of one size")
        first = self.profile.attention_layers[0]
        heads, dim = self.profile.rank_kv_heads(first), identity.layers[first].attention.key_dim
        n = self.page_tokens
        return {
            "page_first": (2, n, layers, heads, dim),
            "page_head": (2, heads, n, layers, dim),
        }.get(self._layout, (2, layers, n, heads, dim))

    def _check(self) -> None:
        tag = getattr(self._pool, "storage_format_tag", None)
        if tag is not None:
            raise Unfit(f"KV pool in a format of its own, {tag!r}")
        if self._layout not in _LAYOUTS or self.page_tokens < 1:
            raise Unfit(f"KV pool with layout {self._layout!r}, pages of {self.page_tokens}")
        parts = self.profile.checkpoint_layout(self.page_tokens).parts
        buffer = _tensor(self._pool, "kv_buffer")
        try:
            found = [tuple(x.shape) for x in self.page(0)]
        except (IndexError, RuntimeError) as err:
            raise Unfit(f"KV pool of shape {tuple(buffer.shape)}: {err}") from err
        if found != [part.shape for part in parts]:
            raise Unfit(f"KV pool of shape {tuple(buffer.shape)} in {self._layout}")
        if any(TORCH_TYPES[part.dtype] != buffer.dtype for part in parts):
            raise Unfit(f"KV pool of {buffer.dtype}")


class StatePool:
    """Pages of recurrent states: one slot each, regardless of a page's tokens."""

    page_tokens = 0

    def __init__(self, pool: object, identity: Identity) -> None:
        """Raises `Unfit` if the pool does not fit the model."""
        self.profile = Profile(states_only(identity))
        self._temporal = _tensor(pool, "temporal_buffer")
        self._conv = _tensors(pool, "conv_buffer")
        linear = [identity.layers[i].linear for i in self.profile.linear_layers]
        for family in {kept.family for kept in linear} - set(FAMILIES):
            raise Unfit(f"states of family {family.name}")
        if getattr(pool, "slot_state_buffers", ()):
            raise Unfit("slots that keep more than states")
        if getattr(pool, "layout", None) not in ("page_first", "page_first_direct"):
            raise Unfit(f"MAMBA pool with layout {getattr(pool, 'layout', None)!r}")
        self._check()

    def page(self, index: int) -> list[Tensor]:
        """Returns state [value heads, key dim, value dim] and convolution tail [kernel - 1,
        channels] of each layer: views of a slot."""
        views: list[Tensor] = []
        for layer in range(self._temporal.shape[1]):
            views.append(self._temporal[index, layer, 0].transpose(-1, -2))
            views += [conv[index, layer, 0].transpose(-1, -2) for conv in self._conv]
        return views

    def _check(self) -> None:
        parts = self.profile.checkpoint_layout(0).parts
        shapes = [tuple(x.shape) for x in (self._temporal, *self._conv)]
        if any(len(shape) < 5 for shape in shapes):
            raise Unfit(f"MAMBA pool of shapes {shapes}")
        views = self.page(0)
        if [tuple(x.shape) for x in views] != [part.shape for part in parts]:
            raise Unfit(f"MAMBA pool of shapes {shapes}")
        for part, view in zip(parts, views, strict=True):
            # States are stored in F32, which holds every value of a narrower type.
            if part.kind == "conv" and TORCH_TYPES[part.dtype] != view.dtype:
                raise Unfit(f"convolution tails of {view.dtype}")
            dtype_of(view.dtype, "MAMBA pool")


def kv_dtype(pool: object) -> DType:
    """Returns the type of a KV pool. Raises `Unfit`."""
    return dtype_of(_tensor(pool, "kv_buffer").dtype, "KV pool")


def conv_dtype(pool: object) -> DType:
    """Returns the type of the convolution tails of a MAMBA pool. Raises `Unfit`."""
    tails = _tensors(pool, "conv_buffer")
    if not tails:
        raise Unfit("MAMBA pool without convolution tails")
    return dtype_of(tails[0].dtype, "convolution tails")


def _tensor(pool: object, name: str) -> Tensor:
    found = getattr(pool, name, None)
    if not isinstance(found, torch.Tensor):
        raise Unfit(f"{type(pool).__name__} without a tensor {name}")
    return cast("Tensor", found)


def _tensors(pool: object, name: str) -> list[Tensor]:
    found = getattr(pool, name, None)
    if not isinstance(found, list) or not all(isinstance(x, torch.Tensor) for x in found):
        raise Unfit(f"{type(pool).__name__} without tensors {name}")
    return found
