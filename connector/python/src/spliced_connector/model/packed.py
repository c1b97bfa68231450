"""Offsets of a segment's packed parts and of the heads in them; lengths depend on the content.

A segment of a profile with a tolerance may have its dense transitions and its end-states in fewer
bytes. They are described by two F32, the largest error of any head's transition and end-state,
and for each part that may be packed, in the order of the layout, its length in units of
PART_ALIGN as a varint; 0 = that part is stored unchanged.

A packed part of [heads, rows, cols] numbers is, little-endian,

    heads x u8 form | heads x F32 error | heads x F32 norm, padded to PART_ALIGN
    head after head, each padded to PART_ALIGN

and zeros if another rank's part is longer. For a transition, error and norm bound spectral norms:
of the original minus the stored matrix, and of the stored one. For an end-state they are
Frobenius norms: of that difference, and of the original.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from enum import IntEnum

from spliced_connector.model.identity import DType
from spliced_connector.model.layout import PART_ALIGN, Layout, LayoutBuilder, Part, aligned

_ERRORS = struct.Struct("<2f")
_MOST_VARINT = 5  # bytes of any number below 1 << 32, and somewhat more: no part is so long


class PackedForm(IntEnum):
    """The form in which the matrix of one head is stored. A head in an integer form is

        F32 g | rows x F32 scale | rows of integers, each beginning at a whole byte

    and its number [i, j] is scale[i] * q[i, j], rounded to F32, plus g where i == j. Integers of
    12 bits are stored in pairs of three bytes, lower bits first; an odd last one takes two bytes.
    A head of rank r, whose form is RANK + r - 1, is

        r x cols of 8 bits | r x rows of 8 bits | r x F32 scale

    and its number [i, j] the sum of scale[k] * left[k, i] * right[k, j]: a scale has ten bits at
    most, so that these products are exact in F32.
    """

    PLAIN = 0  # unchanged, row-major
    ZERO = 1  # nothing is stored: all zeros
    INT8 = 2
    INT12 = 3
    INT16 = 4
    RANK = 16

    def row_bytes(self, cols: int) -> int:
        """Returns the size of a row of integers."""
        bits = {PackedForm.INT8: 8, PackedForm.INT12: 12, PackedForm.INT16: 16}[self]
        return (cols * bits + 7) // 8


def packed_rank(number: int) -> int:
    """Returns the rank of heads in a form, 0 for forms without rank."""
    return max(number - PackedForm.RANK + 1, 0)


def packed_bytes(number: int, dtype: DType, rows: int, cols: int) -> int:
    """Returns the size of a head in a form, without padding. Raises ValueError for an unknown
    form."""
    if rank := packed_rank(number):
        return rank * (cols + rows + 4)
    form = PackedForm(number)
    if form is PackedForm.PLAIN:
        return rows * cols * dtype.size
    return 0 if form is PackedForm.ZERO else 4 + rows * (4 + form.row_bytes(cols))


def packed_header(heads: int) -> int:
    """Returns the size of the header of a packed part."""
    return aligned(9 * heads)


def packed_most(part: Part) -> int:
    """Returns the length of a packed part with every head stored unchanged."""
    heads, rows, cols = part.packed_shape
    return packed_header(heads) + heads * aligned(rows * cols * part.dtype.size)


def packed_heads(part: Part, raw: memoryview) -> tuple[dict[int, dict[int, int]], int]:
    """Returns for each form's number the heads of a packed part that have it and the offsets
    of their bytes, and the end of the last one. Raises ValueError for bytes that are no
    packed part."""
    heads, rows, cols = part.packed_shape
    end = packed_header(heads)
    if raw.nbytes < end:
        raise ValueError(f"{raw.nbytes} bytes packed, {heads} heads take more than {end}")
    found: dict[int, dict[int, int]] = {}
    for head, number in enumerate(bytes(raw[:heads])):
        found.setdefault(number, {})[head] = end
        end += aligned(packed_bytes(number, part.dtype, rows, cols))
    if raw.nbytes < end:
        raise ValueError(f"{raw.nbytes} bytes packed, their forms take {end}")
    if any(bytes(raw[9 * heads : packed_header(heads)])):
        raise ValueError("no zeros behind the norms of a packed part")
    return found, end


def packed_layout(plain: Layout, packs: tuple[bool, ...], packed: bytes) -> Layout:
    """Returns the layout that `packed` describes of a segment with the unpacked layout `plain`;
    `packs` has for each part whether it may be packed. Raises ValueError for lengths that no such
    segment has."""
    if len(packed) < _ERRORS.size:
        raise ValueError(f"packed parts: {len(packed)} bytes, want {_ERRORS.size} at least")
    transition, state = _ERRORS.unpack_from(packed)
    if not (0 <= transition < math.inf and 0 <= state < math.inf):
        raise ValueError(f"packed parts with errors of {transition} and {state}")
    lengths = _Lengths(packed)
    out = LayoutBuilder()
    for part, is_packed in zip(plain.parts, packs, strict=True):
        out.put(lengths.of(part) if is_packed else part)
    lengths.end()
    return out.build((transition, state))


class _Lengths:
    """Reads the lengths of packed parts."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = _ERRORS.size

    def of(self, part: Part) -> Part:
        """Returns a part with the next length."""
        nbytes, most = self._varint() * PART_ALIGN, packed_most(part)
        if not nbytes:
            return part
        if nbytes > most:
            text = f"packed part {part.kind} of layer {part.layer}"
            raise ValueError(f"{text}: {nbytes} bytes, want at most {most}")
        return replace(part, nbytes=nbytes, packed=True)

    def end(self) -> None:
        if left := len(self._raw) - self._at:
            raise ValueError(f"packed parts: {left} bytes behind the last")

    def _varint(self) -> int:
        value = 0
        for i, byte in enumerate(self._raw[self._at : self._at + _MOST_VARINT]):
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if i and not byte:
                    raise ValueError("packed parts: not in canonical form")
                self._at += i + 1
                return value
        raise ValueError("packed parts: a length that does not end, or is too long")
