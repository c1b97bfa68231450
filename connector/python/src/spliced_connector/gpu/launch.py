"""What the launches of `launches` are made of: a launch, rotations, and bytes of tables.

`launches` is translated from Go's gpuipc/cuda/kernels, and this module has what it calls there.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

_ADDRESS_MOST = 2**63 - 1

V = TypeVar("V")


class Words(bytearray):
    """An argument block, or tables, to which little-endian numbers are appended."""

    def u64(self, *values: int) -> None:
        self += struct.pack(f"<{len(values)}Q", *values)

    def u32(self, *values: int) -> None:
        self += struct.pack(f"<{len(values)}I", *values)

    def f32(self, *values: float) -> None:
        self += struct.pack(f"<{len(values)}f", *values)

    def put(self, at: int, data: bytes) -> None:
        """Overwrites bytes from an offset on."""
        self[at : at + len(data)] = data

    def align(self, nbytes: int) -> int:
        """Appends zeros up to a multiple of some bytes. Returns the offset of the next byte."""
        self += bytes(-len(self) % nbytes)
        return len(self)

    def row_angles(self, turns: RowTurns, rows: int) -> None:
        """Appends the cosines, then the sines of all rows, [rows, pairs] each."""
        self += _row_angles(turns.position, turns.inv_freq, rows)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    """Bytes of dynamic shared memory."""
    args: Words = field(default_factory=Words)
    """The argument block. Its first 8 bytes are replaced by the address of the tables."""
    tables: Words = field(default_factory=Words)
    """Contents of the tables, which must be in device memory until the kernel has run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One rotation, the same for every row."""

    dims: int = 0
    """Leading dimensions that are rotated."""
    interleaved: bool = False
    """Whether dimensions (2i, 2i+1) form a pair; otherwise (i, i + dims/2) do."""
    cos: tuple[float, ...] = ()
    sin: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RowTurns:
    """Row i is rotated by the angles (position + i) * inv_freq."""

    dims: int
    interleaved: bool
    position: int
    inv_freq: tuple[float, ...]


@dataclass(slots=True)
class Addresses:
    """Adds up an address."""

    at: int

    def add(self, n: int, stride: int) -> None:
        self.at += n * stride

    @property
    def over(self) -> bool:
        """Whether the address does not fit 63 bits."""
        return self.at > _ADDRESS_MOST


def chunks(values: Sequence[V], n: int) -> Iterator[Sequence[V]]:
    """Returns the values in parts of n; the last part may have fewer."""
    return (values[at : at + n] for at in range(0, len(values), n))


def single(value: float) -> float:
    """Rounds to float32."""
    return ctypes.c_float(value).value


@lru_cache(maxsize=1024)
def turn_by(distance: int, dims: int, interleaved: bool, inv_freq: tuple[float, ...]) -> Turn:
    """Returns the rotation by a distance in tokens, for all layers that share a rope. Angles are
    computed in float64."""
    angles = [distance * f for f in inv_freq]
    return Turn(dims, interleaved, tuple(map(math.cos, angles)), tuple(map(math.sin, angles)))


@lru_cache(maxsize=8)
def _row_angles(position: int, inv_freq: tuple[float, ...], rows: int) -> Words:
    """All layers of a model share them; computing one pair takes some 0.1 µs here."""
    angles = [at * f for at in range(position, position + rows) for f in inv_freq]
    data = Words()
    data.f32(*map(math.cos, angles))
    data.f32(*map(math.sin, angles))
    return data
