"""Kernel launches as values, byte-identical with the launches of Go's gpuipc/cuda/kernels.

A launch's argument block begins with the device address of its tables, 8 bytes that are filled in
at launch. The Go and Python packages are tested against the same golden launches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

TABLE_ALIGN = 16
"""Alignment of the copy of a launch's tables in device memory."""

GRID_Y_MOST = 2**16 - 1

SHARED_MOST = 99 << 10
"""Shared memory of a block that every GPU of compute capability 8.0 and above allows."""

_TABLES_BACK = 4  # number of recent entries of each kind that are searched for an equal one

K = TypeVar("K")


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Bytes of dynamic shared memory."""
    arguments: bytes
    """The argument block after the address of the tables."""
    tables: bytes
    """Contents of the tables, which must be in device memory until the kernel has run."""


@dataclass(frozen=True)
class Turn:
    """One rotation, the same for every row."""

    dims: int
    """Leading dimensions that are rotated."""
    interleaved: bool
    """Whether dimensions (2i, 2i+1) form a pair; otherwise (i, i + dims/2) do."""
    cos: tuple[float, ...]
    sin: tuple[float, ...]


@dataclass(frozen=True)
class RowTurns:
    """Row i is rotated by the angles (position + i) * inv_freq."""

    dims: int
    interleaved: bool
    position: int
    inv_freq: tuple[float, ...]


class Tables:
    """Rows of jobs, followed by the data that they refer to by offset."""

    def __init__(self, rows_bytes: int) -> None:
        self._data = bytearray(rows_bytes)
        self._placed: dict[str, list[tuple[object, int]]] = {}

    def put_row(self, at: int, row: bytes) -> None:
        """Writes the row of a job."""
        self._data[at : at + len(row)] = row

    def find(self, kind: str, key: object) -> int | None:
        """Returns the offset of data with an equal key, among the last few entries of its kind;
        None if there is none."""
        for known, at in self._placed.get(kind, [])[-_TABLES_BACK:]:
            if known == key:
                return at
        return None

    def add(self, kind: str, key: object, data: bytes) -> int:
        """Appends data, aligned, so that `find` returns it. Returns its offset."""
        at = self.append(data)
        self._placed.setdefault(kind, []).append((key, at))
        return at

    def append(self, data: bytes) -> int:
        """Appends data, aligned, that `find` does not return. Returns its offset."""
        self._data += bytes(-len(self._data) % TABLE_ALIGN)
        at = len(self._data)
        self._data += data
        return at

    def bytes(self) -> bytes:
        """Returns the rows and the data."""
        return bytes(self._data)


def floats(values: Sequence[float]) -> bytes:
    """Returns little-endian float32."""
    return struct.pack(f"<{len(values)}f", *values)


def ints(values: Sequence[int]) -> bytes:
    """Returns little-endian u32."""
    return struct.pack(f"<{len(values)}I", *values)
