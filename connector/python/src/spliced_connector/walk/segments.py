"""Segments as tensors and as bytes of the canonical layout, without a copy where types agree."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from spliced_connector.model import DType, Layout, Profile, SegmentSpec
from spliced_connector.walk.base import Captured, SegmentLayer

TORCH_TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
}

FIELDS = {"T": "transition", "S": "state", "conv": "conv", "K": "k", "V": "v"}
"""The field of a SegmentLayer by the kind of its part."""


class Held(Protocol):
    """A leased segment of the client: what is read of it here."""

    @property
    def layout(self) -> Layout: ...

    def part(self, index: int) -> memoryview: ...


def pack(profile: Profile, captured: Captured) -> list[memoryview]:
    """The parts of a captured segment in the order and types of its layout: what is published.

    A part whose type and order agree already is not copied, so tensors must not change while the
    views are in use. Raises ValueError when a tensor has not its part's shape.
    """
    layout = profile.segment_layout(captured.spec)
    found = [getattr(captured.layers[p.layer], FIELDS[p.kind]) for p in layout.parts]
    return part_bytes(layout, found)


def part_bytes(layout: Layout, tensors: Sequence[Tensor | None]) -> list[memoryview]:
    """Tensors, parallel to a layout's parts, as bytes of the parts' types."""
    out = []
    for part, x in zip(layout.parts, tensors, strict=True):
        if x is None or tuple(x.shape) != part.shape:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"part {part.kind} of layer {part.layer} is {shape}, not {part.shape}")
        stored = x.detach().to("cpu", TORCH_TYPES[part.dtype]).contiguous()
        if stored.numel() == 0:
            out.append(memoryview(b""))
        else:
            out.append(memoryview(stored.view(torch.uint8).flatten().numpy()))
    return out


def unpack(profile: Profile, spec: SegmentSpec, segment: Held) -> Captured:
    """A leased segment as tensors over the leased memory: valid while the lease is.

    The tensors are of the stored types and must not be written. Raises ValueError when the
    segment's layout is not the one that the spec has.
    """
    layout = profile.segment_layout(spec)
    if segment.layout != layout:
        raise ValueError(f"segment of {segment.layout.nbytes} bytes, its spec has {layout.nbytes}")
    return Captured(spec, collect(len(profile.identity.layers), layout, segment.part))


def collect(
    layers: int, layout: Layout, part: Callable[[int], memoryview]
) -> tuple[SegmentLayer, ...]:
    """The parts of a layout as tensors over their bytes, layer by layer."""
    found: list[dict[str, Tensor]] = [{} for _ in range(layers)]
    for i, p in enumerate(layout.parts):
        view = part(i)
        if view.nbytes != p.nbytes:
            raise ValueError(f"part {p.kind} of layer {p.layer}: {view.nbytes} of {p.nbytes} bytes")
        found[p.layer][FIELDS[p.kind]] = tensor_over(view, p.dtype, p.shape)
    return tuple(SegmentLayer(**f) for f in found)


def tensor_over(view: memoryview, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A tensor over bytes that must not be written through it."""
    kind = TORCH_TYPES[dtype]
    if view.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    _expect_read_only()
    return torch.frombuffer(view, dtype=kind).view(shape)


@functools.cache
def _expect_read_only() -> None:
    """Has torch say now, unheard, what it says once of memory that is mapped for reading.

    It cannot mark a tensor so. Nothing here writes to parts, and a write would end the process
    instead of changing what others read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


def rounded(profile: Profile, captured: Captured) -> Captured:
    """A captured segment as a reader would find it: its values in the stored types."""
    layout = profile.segment_layout(captured.spec)
    views = pack(profile, captured)
    return Captured(captured.spec, collect(len(captured.layers), layout, lambda i: views[i]))
