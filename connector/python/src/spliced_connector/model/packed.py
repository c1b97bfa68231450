"""Finds a segment's packed parts and the heads in them. Their lengths depend on the content.

A segment of a profile with a tolerance may have its dense transitions and its end-states packed
into fewer bytes; with a row tolerance, also its keys and values. A description says which parts are
packed. It begins with two F32: the largest error of a transition, and the largest error of the
other packed parts. One varint follows for each part that may be packed, in the order of the layout:
the part's length in units of PART_ALIGN, or 0 if the part is stored unchanged.

A packed part of [heads, rows, cols] numbers is, little-endian,

    heads x u8 form | heads x F32 error | heads x F32 norm, padded to PART_ALIGN
    head after head, each padded to PART_ALIGN

and zeros at the end if another rank's part is longer. Each head has an error and a norm. For a
transition they are bounds on spectral norms: of the original minus the stored matrix, and of the
stored matrix. For an end-state they are Frobenius norms: of that difference, and of the original.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from enum import IntEnum

from spliced_connector.model.identity import DType
from spliced_connector.model.layout import PART_ALIGN, Layout, LayoutBuilder, Part, aligned

_ERRORS = struct.Struct("<2f")
_MOST_VARINT = 5  # enough bytes for any number below 1 << 32; no part is longer


class PackedForm(IntEnum):
    """The form in which the matrix of one head is stored. A head in an integer form is

        F32 g | rows x F32 scale | rows of integers, each beginning at a whole byte

    If the array q holds the integers, the number at [i, j] is scale[i] * q[i, j], rounded to F32,
    plus g where i == j. Two integers of 12 bits take three bytes, lower bits first; an odd last one
    takes two bytes. A low-rank head of rank r has the form RANK + r - 1, and its bytes are

        A: r x cols of 8 bits | B: r x rows of 8 bits | r x F32 scale

    The number at [i, j] is the sum over k of scale[k] * B[k, i] * A[k, j]. A scale has at most ten
    bits, so these products are exact in F32.
    """

    PLAIN = 0  # unchanged, row-major
    ZERO = 1  # nothing is stored; the matrix is zero
    INT8 = 2
    INT12 = 3
    INT16 = 4
    RANK = 16

    def row_bytes(self, cols: int) -> int:
        """Returns the bytes of a row of `cols` integers."""
        bits = {PackedForm.INT8: 8, PackedForm.INT12: 12, PackedForm.INT16: 16}[self]
        return (cols * bits + 7) // 8


def packed_rank(number: int) -> int:
    """Returns the rank of heads whose form has this number, 0 for forms that are not low-rank."""
    return max(number - PackedForm.RANK + 1, 0)


def packed_bytes(number: int, dtype: DType, rows: int, cols: int) -> int:
    """Returns the bytes of a head whose form has this number, without padding. Raises ValueError
    for an unknown form."""
    if rank := packed_rank(number):
        return rank * (cols + rows + 4)
    form = PackedForm(number)
    if form is PackedForm.PLAIN:
        return rows * cols * dtype.size
    return 0 if form is PackedForm.ZERO else 4 + rows * (4 + form.row_bytes(cols))


def packed_header(heads: int) -> int:
    """Returns the bytes of the header of a packed part."""
    return aligned(9 * heads)


def packed_most(part: Part) -> int:
    """Returns the maximum bytes of a packed part, which it takes if every head is stored
    unchanged."""
    heads, rows, cols = part.packed_shape
    return packed_header(heads) + heads * aligned(rows * cols * part.dtype.size)


def packed_heads(part: Part, raw: memoryview) -> tuple[dict[int, dict[int, int]], int]:
    """Returns the heads of a packed part, and the offset after the last one. The heads are grouped
    by the number of their form: form -> head -> offset of its bytes. Raises ValueError if `raw` is
    not a packed part."""
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
    """Returns the layout of a packed segment. `plain` is its layout if nothing is packed. `packs`
    says for each part whether it may be packed. `packed` is the description that this module's
    docstring explains. Raises ValueError for lengths that no such segment can have."""
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
        """Returns the part with the next length in the description; the part unchanged if that
        length is 0."""
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
