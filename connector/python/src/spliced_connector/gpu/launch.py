"""Kernel launches as values: what Go's package gpuipc/cuda/kernels builds, to the byte.

A launch's argument block begins with 8 bytes for the device address of its tables, which whoever
launches fills in. Both sides are tested against the same golden launches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

TABLE_ALIGN = 16
"""Of the copy of a launch's tables in device memory."""

GRID_Y_MOST = 2**16 - 1

SHARED_MOST = 99 << 10
"""Shared memory that a block can have on every GPU of compute capability 8.0 and above."""

_TABLES_BACK = 4  # of each kind that are looked through for an equal one

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
    """Behind the address of the tables."""
    tables: bytes
    """They have to lie in device memory until the kernel has run."""


@dataclass(frozen=True)
class Turn:
    """One rotary turn, the same for every row."""

    dims: int
    """Leading dimensions that turn."""
    interleaved: bool
    """Pairs (2i, 2i+1); else (i, i + dims/2)."""
    cos: tuple[float, ...]
    sin: tuple[float, ...]


@dataclass(frozen=True)
class RowTurns:
    """Row i is turned by the angles (position + i) * inv_freq."""

    dims: int
    interleaved: bool
    position: int
    inv_freq: tuple[float, ...]


class Tables:
    """Rows of jobs, and behind them what they point to by offset."""

    def __init__(self, rows_bytes: int) -> None:
        self._data = bytearray(rows_bytes)
        self._placed: dict[str, list[tuple[object, int]]] = {}

    def put_row(self, at: int, row: bytes) -> None:
        """Write the row of a job."""
        self._data[at : at + len(row)] = row

    def find(self, kind: str, key: object) -> int | None:
        """Where something equal lies, among the last few of its kind."""
        for known, at in self._placed.get(kind, [])[-_TABLES_BACK:]:
            if known == key:
                return at
        return None

    def add(self, kind: str, key: object, data: bytes) -> int:
        """Append data, aligned; where it lies."""
        at = self.append(data)
        self._placed.setdefault(kind, []).append((key, at))
        return at

    def append(self, data: bytes) -> int:
        """Append data that nothing else shares; where it lies."""
        self._data += bytes(-len(self._data) % TABLE_ALIGN)
        at = len(self._data)
        self._data += data
        return at

    def bytes(self) -> bytes:
        """All of it."""
        return bytes(self._data)


def floats(values: Sequence[float]) -> bytes:
    """Little-endian float32."""
    return struct.pack(f"<{len(values)}f", *values)


def ints(values: Sequence[int]) -> bytes:
    """Little-endian u32."""
    return struct.pack(f"<{len(values)}I", *values)
