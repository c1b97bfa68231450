"""Converts segments between tensors and bytes in the stored layout, without a copy if types agree.

The daemon may have packed T and S of a segment; they are then read as float32. It may also have
packed keys and values; they are read in their original type.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from spliced_connector.model import (
    DType,
    Layout,
    PackedForm,
    Part,
    Profile,
    SegmentSpec,
    packed_heads,
    packed_rank,
)
from spliced_connector.walk.base import Captured, SegmentLayer
from spliced_connector.walk.copies import Copies

TORCH_TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
}

FIELDS = {"T": "transition", "S": "state", "conv": "conv", "K": "k", "V": "v"}
"""For each kind of part, the field of `SegmentLayer` that contains it."""


class Held(Protocol):
    """A leased segment of the client: the members that are used here."""

    @property
    def layout(self) -> Layout: ...

    def part(self, index: int) -> memoryview: ...


def pack(profile: Profile, captured: Captured) -> list[memoryview]:
    """Returns the parts of a captured segment in the order and types of its layout, as they are
    published.

    A part whose type and order agree already is not copied, so tensors must not change while the
    views are in use. Raises ValueError if a tensor does not have its part's shape.
    """
    return [bytes_of(x.to("cpu")) for x in packed(profile, captured)]


def packed(profile: Profile, captured: Captured) -> list[Tensor]:
    """Returns the same parts as `pack`, as tensors on the segment's device."""
    layout = profile.segment_layout(captured.spec)
    found = [getattr(captured.layers[p.layer], FIELDS[p.kind]) for p in layout.parts]
    return part_tensors(layout, found)


def part_bytes(layout: Layout, tensors: Sequence[Tensor | None]) -> list[memoryview]:
    """Returns tensors, one for each part of a layout, as bytes of the parts' types."""
    return [bytes_of(x.to("cpu")) for x in part_tensors(layout, tensors)]


def part_tensors(layout: Layout, tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Converts tensors, one for each part of a layout, to contiguous tensors of the parts' types on
    the same device. Raises ValueError if a tensor does not have its part's shape."""
    out = []
    for part, x in zip(layout.parts, tensors, strict=True):
        if x is None or tuple(x.shape) != part.shape:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"part {part.kind} of layer {part.layer} is {shape}, not {part.shape}")
        out.append(x.detach().to(TORCH_TYPES[part.dtype]).contiguous())
    return out


def bytes_of(x: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor in host memory."""
    if x.numel() == 0:
        return memoryview(b"")
    return memoryview(x.view(torch.uint8).flatten().numpy())


def unpack(profile: Profile, spec: SegmentSpec, segment: Held) -> Captured:
    """Returns a leased segment as tensors over the leased memory: valid while the lease is.

    The tensors are of the stored types, float32 for packed T and S, and must not be written.
    Raises ValueError if the segment's layout does not fit the spec, or a packed part is
    damaged.
    """
    layout = segment.layout
    if not is_of_spec(profile, spec, layout):
        nbytes = profile.segment_layout(spec).nbytes
        raise ValueError(f"segment of {layout.nbytes} bytes, its spec has {nbytes}")
    return Captured(spec, collect(len(profile.identity.layers), layout, segment.part))


def is_of_spec(profile: Profile, spec: SegmentSpec, layout: Layout) -> bool:
    """Returns whether a segment with this layout was written with the parts of the spec. Any of
    its parts may have been packed since."""
    plain = profile.segment_layout(spec)
    return layout == plain or list(map(_written, layout.parts)) == list(map(_written, plain.parts))


def _written(part: Part) -> Part:
    """Returns a part as it was written, regardless of its offset and packing."""
    return replace(part, offset=0, nbytes=0, packed=False)


def collect(
    layers: int, layout: Layout, part: Callable[[int], memoryview]
) -> tuple[SegmentLayer, ...]:
    """Returns the parts of a layout, layer by layer, as tensors over their bytes. Packed parts
    become new tensors. Raises ValueError for a part of another size, or a damaged packed part."""

    def over(i: int) -> Tensor:
        p, view = layout.parts[i], part(i)
        if view.nbytes != p.nbytes:
            raise ValueError(f"part {p.kind} of layer {p.layer}: {view.nbytes} of {p.nbytes} bytes")
        if not p.packed:
            return tensor_over(view, p.dtype, p.shape)
        try:
            return unpacked(p, view)
        except ValueError as err:
            raise ValueError(f"part {p.kind} of layer {p.layer}: {err}") from err

    return by_layer(layers, layout, [over(i) for i in range(len(layout.parts))])


def by_layer(layers: int, layout: Layout, parts: Sequence[Tensor]) -> tuple[SegmentLayer, ...]:
    """Groups tensors by layer; there is one for each part of the layout."""
    found: list[dict[str, Tensor]] = [{} for _ in range(layers)]
    for p, x in zip(layout.parts, parts, strict=True):
        found[p.layer][FIELDS[p.kind]] = x
    return tuple(SegmentLayer(**f) for f in found)


def moved(captured: Captured, copies: Copies) -> Captured:
    """Returns a segment of host memory on the engine's device; on a CPU it is the same memory."""
    layout = [
        (i, field)
        for i, layer in enumerate(captured.layers)
        for field in FIELDS.values()
        if getattr(layer, field) is not None
    ]
    parts = copies.to_device([getattr(captured.layers[i], field) for i, field in layout])
    layers: list[dict[str, Tensor]] = [{} for _ in captured.layers]
    for (i, field), x in zip(layout, parts, strict=True):
        layers[i][field] = x
    return Captured(captured.spec, tuple(SegmentLayer(**f) for f in layers))


def tensor_over(view: memoryview, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor over bytes that must not be written through it."""
    kind = TORCH_TYPES[dtype]
    if view.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    _expect_read_only()
    return torch.frombuffer(view, dtype=kind).view(shape)


def unpacked(part: Part, view: memoryview) -> Tensor:
    """Returns the numbers of a packed part as a new tensor: float32 for T and S, the original type
    for keys and values. Heads stored as low-rank factors are exact up to rounding.

    Raises ValueError for bytes that are no such part. All heads of one form are read at once.
    """
    shape = part.packed_shape
    _, rows, cols = shape
    heads, end = packed_heads(part, view)
    _expect_read_only()
    raw = torch.frombuffer(view, dtype=torch.uint8)
    if raw[end:].any():
        raise ValueError("bytes after the heads of a packed part are not zero")
    out = torch.zeros(shape, dtype=torch.float32)
    for number, begins in heads.items():
        cut = functools.partial(_cut, raw, begins.values())
        if rank := packed_rank(number):
            right = cut(0, rank * cols).view(torch.int8).view(-1, rank, cols).to(torch.float32)
            left = cut(rank * cols, rank * rows).view(torch.int8).view(-1, rank, rows)
            scales = cut(rank * (cols + rows), 4 * rank).view(torch.float32).view(-1, rank, 1)
            out[list(begins)] = (scales * left).mT @ right
        elif (form := PackedForm(number)) is PackedForm.PLAIN:
            plain = cut(0, rows * cols * part.dtype.size).view(TORCH_TYPES[part.dtype])
            out[list(begins)] = plain.view(-1, rows, cols).to(torch.float32)
        elif form is not PackedForm.ZERO:
            front, row = 4 + 4 * rows, form.row_bytes(cols)
            scales = cut(0, front).view(torch.float32).view(-1, 1 + rows)
            q = _INTEGERS[form](cut(front, rows * row).view(-1, rows, row), cols)
            numbers = q.to(torch.float32) * scales[:, 1:, None]
            numbers.diagonal(dim1=1, dim2=2).add_(scales[:, :1])
            out[list(begins)] = numbers
    return out.to(TORCH_TYPES[part.dtype]).view(part.shape) if part.is_rows else out


def _cut(raw: Tensor, begins: Iterable[int], skip: int, n: int) -> Tensor:
    """Returns n bytes of each head, one after another."""
    return torch.cat([raw[at + skip : at + skip + n] for at in begins])


def _int12(raw: Tensor, cols: int) -> Tensor:
    """Reads rows of 12-bit integers from raw [heads, rows, bytes]. Each integer is put into the top
    of 16 bits and then shifted down, which extends its sign."""
    pairs, odd = raw[..., : cols // 2 * 3], raw[..., cols // 2 * 3 :].to(torch.int16)
    low, mid, high = pairs.unflatten(-1, (cols // 2, 3)).to(torch.int16).unbind(-1)
    out = torch.empty((*raw.shape[:-1], cols), dtype=torch.int16)
    out[..., : cols // 2 * 2 : 2] = (low << 4) | (mid << 12)
    out[..., 1::2] = (mid & 0xF0) | (high << 8)
    if cols % 2:
        out[..., -1] = (odd[..., 0] << 4) | (odd[..., 1] << 12)
    return out >> 4


_INTEGERS: dict[PackedForm, Callable[[Tensor, int], Tensor]] = {
    PackedForm.INT8: lambda raw, _: raw.view(torch.int8),
    PackedForm.INT12: _int12,
    PackedForm.INT16: lambda raw, _: raw.view(torch.int16),
}


@functools.cache
def _expect_read_only() -> None:
    """Triggers, and suppresses, torch's one-time warning about memory that is mapped for reading.

    Torch cannot mark a tensor read-only. Nothing here writes to parts. A write would end this
    process, because the memory is mapped read-only, so other processes never read changed bytes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


def rounded(profile: Profile, captured: Captured) -> Captured:
    """Returns a captured segment as a reader would find it: its values in the stored types.

    If the identity has a tolerance, the daemon may pack parts, and readers may find values that
    differ from these by up to the tolerance.
    """
    layout = profile.segment_layout(captured.spec)
    parts = packed(profile, captured)
    return Captured(captured.spec, by_layer(len(captured.layers), layout, parts))
