"""Launches of the kernel that copies rows to their positions and rotates keys.

The kernel reads its jobs from a table; the layout of an entry is `rotation::Job` in
gpuipc/cuda/kernels/rotate.cu.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import GRID_Y_MOST, Launch, RowTurns, Tables, Turn, floats, ints
from spliced_connector.model import DType

_THREADS = 256
_ROW = struct.Struct("<9Q20I")
_BATCH = 6  # rows in flight per thread
_BLOCKS = 4096  # approximate number of blocks per launch, for rotated and for plain parts each
_MOST = 1 << 24
_ANGLES_MOST = 1 << 24
_BLOCK_ROWS_MOST = 1 << 30
_ADDRESS_MOST = 2**63 - 1
_COPIED, _HALVES, _PAIRS = 0, 1, 2


@dataclass(frozen=True)
class RotateTarget:
    """The destination of rows. If `block_rows` is 0, rows are dense at `base`, [rows, heads, dim].

    Otherwise row i goes to row t = first_row + i of the block table. Its head h goes to `base +
    blocks[t // block_rows] * block_stride + (t % block_rows) * row_stride + h * head_stride`.
    Strides are in bytes. The caller ensures that rows do not overlap and are writable.
    """

    base: int
    blocks: tuple[int, ...] = ()
    block_rows: int = 0
    first_row: int = 0
    block_stride: int = 0
    row_stride: int = 0
    head_stride: int = 0


@dataclass(frozen=True)
class RotateJob:
    """Rows [rows, heads, dim] at a device address, to be copied and rotated."""

    rows: int
    heads: int
    dim: int
    dtype: DType
    src: int
    dst: RotateTarget
    turn: Turn | RowTurns | None = None

    @property
    def dims(self) -> int:
        return 0 if self.turn is None else self.turn.dims

    @property
    def head_bytes(self) -> int:
        return self.dim * self.dtype.size

    @property
    def strides(self) -> tuple[int, int]:
        """Strides of rows and heads at the target, in bytes."""
        if self.dst.block_rows == 0:
            return self.head_bytes * self.heads, self.head_bytes
        return self.dst.row_stride, self.dst.head_stride

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Returns the entries of the block table that are written."""
        t = self.dst
        if t.block_rows == 0:
            return ()
        first = t.first_row // t.block_rows
        last = (t.first_row + self.rows - 1) // t.block_rows
        return t.blocks[first : last + 1]

    @cached_property
    def share(self) -> _Share:
        return _split(self)


@dataclass(frozen=True)
class _Part:
    """How thread blocks share the rotated part, or the plain part, of a job's rows."""

    units: int = 0  # of a head
    lanes: int = 0  # of a row
    group_lanes: int = 0  # lanes per block
    groups: int = 0  # neighbouring blocks for a whole row
    blocks: int = 0  # number of blocks with work

    def at_most(self, blocks: int) -> _Part:
        """Limits the number of blocks, unless a row needs more."""
        if self.groups == 0:
            return self
        most = max(1, blocks // self.groups) * self.groups
        return replace(self, blocks=min(self.blocks, most))

    @property
    def row(self) -> tuple[int, ...]:
        """Returns the fields that describe this part in the job's entry of the table."""
        return self.units, self.lanes, self.group_lanes, self.groups, self.blocks


@dataclass(frozen=True)
class _Share:
    """How threads share a job."""

    wide: bool
    copy_bytes: int
    turned: _Part
    copied: _Part


def rotate_launches(jobs: Sequence[RotateJob]) -> list[Launch]:
    """Returns launches for jobs, which may differ in all fields. The launches may run in any order.

    No job may write data that another job reads or writes. Raises `SplicedError(INVALID)`.
    """
    some = []
    angles = 0
    for i, job in enumerate(jobs):
        problem = _problem(job)
        if problem:
            raise SplicedError(Code.INVALID, f"rotate, job {i}: {problem}")
        if job.rows == 0:
            continue
        angles += (job.rows if isinstance(job.turn, RowTurns) else 1) * (job.dims // 2)
        if angles > _ANGLES_MOST:
            raise SplicedError(Code.INVALID, f"rotate: more than {_ANGLES_MOST} cosines")
        some.append(job)
    return [_launch(some[i : i + GRID_Y_MOST]) for i in range(0, len(some), GRID_Y_MOST)]


def _problem(job: RotateJob) -> str:
    """Returns why a job can never be valid, empty if it can."""
    rows, heads, dim = job.rows, job.heads, job.dim
    if not (0 <= rows <= _MOST and 0 < heads <= _MOST and 0 < dim <= _MOST):
        return f"{rows} rows of [{heads}, {dim}]"
    if heads > _MOST // dim or job.dtype.size == 0:
        return f"{rows} rows of [{heads}, {dim}], type {int(job.dtype)}"
    turn = job.turn
    if turn is not None:
        given = (turn.cos, turn.sin) if isinstance(turn, Turn) else (turn.inv_freq,)
        if not 0 <= turn.dims <= dim or any(2 * len(n) != turn.dims for n in given):
            return f"rotation of {turn.dims} of {dim} dimensions"
    return _target_problem(job) if rows else ""


def _target_problem(job: RotateJob) -> str:
    t = job.dst
    if t.block_rows == 0:
        if t.blocks or t.first_row or t.block_stride or t.row_stride or t.head_stride:
            return "rows without blocks have a block table or strides"
    elif (
        not 0 < t.block_rows <= _BLOCK_ROWS_MOST
        or min(t.first_row, t.block_stride, t.row_stride, t.head_stride) < 0
    ):
        return f"blocks of {t.block_rows} rows, first {t.first_row}"
    elif (t.first_row + job.rows - 1) // t.block_rows >= len(t.blocks):
        return f"rows extend past a table of {len(t.blocks)} blocks"
    row_stride, head_stride = job.strides
    places = job.src | t.base | t.block_stride | row_stride | head_stride
    if job.src <= 0 or t.base <= 0 or places % job.dtype.size:
        return f"rows at {job.src:#x} to {t.base:#x} of {job.dtype.size}-byte elements"
    last = job.rows - 1 if t.block_rows == 0 else t.block_rows - 1
    end = t.base + last * row_stride + job.heads * max(head_stride, job.head_bytes)
    end += max(job.used, default=0) * t.block_stride
    if max(end, job.src + job.rows * job.head_bytes * job.heads) > _ADDRESS_MOST:
        return "rows reach past the last address"
    return ""


def _split(job: RotateJob) -> _Share:
    """Splits a row into the widest units that all addresses allow, and rows among threads."""
    size, dims, t = job.dtype.size, job.dims, job.dst
    row_stride, head_stride = job.strides
    places = job.src | t.base | row_stride | job.head_bytes
    if job.heads > 1:
        places |= head_stride
    if t.block_rows:
        places |= t.block_stride
    run = dims * size  # contiguous bytes of rotated elements
    if job.turn is None or not job.turn.interleaved:
        run //= 2
    wide = (places | run) % 16 == 0
    turn_units = run // 16 if wide else dims // 2
    still = job.head_bytes - dims * size
    low = places | still | dims * size | 16
    copy_bytes = low & -low
    return _Share(wide, copy_bytes, _part(job, turn_units), _part(job, still // copy_bytes))


def _part(job: RotateJob, units: int) -> _Part:
    if units == 0:
        return _Part()
    lanes = job.heads * units
    groups = (lanes - 1) // _THREADS + 1
    group_lanes = (lanes - 1) // groups + 1
    blocks = groups * ((job.rows - 1) // (_THREADS // group_lanes * _BATCH) + 1)
    return _Part(units, lanes, group_lanes, groups, blocks)


def _launch(jobs: Sequence[RotateJob]) -> Launch:
    tables = Tables(len(jobs) * _ROW.size)
    blocks = 1
    for i, job in enumerate(jobs):
        parts = [
            part.at_most(_BLOCKS // len(jobs)) for part in (job.share.turned, job.share.copied)
        ]
        blocks = max(blocks, sum(part.blocks for part in parts))
        places = _turns(tables, job), _blocks(tables, job)
        tables.put_row(i * _ROW.size, _row(job, places, parts))
    grid = (blocks, len(jobs), 1)
    return Launch("spliced_rotate", grid, (_THREADS, 1, 1), 0, b"", tables.bytes())


def _row(job: RotateJob, places: tuple[int, int], parts: Sequence[_Part]) -> bytes:
    t, share = job.dst, job.share
    form = _COPIED
    if job.turn is not None and job.dims:
        form = _PAIRS if job.turn.interleaved else _HALVES
    first = t.first_row % t.block_rows if t.block_rows else 0
    return _ROW.pack(
        job.src, t.base, *places, job.head_bytes * job.heads, job.head_bytes,
        t.block_stride, *job.strides,
        job.rows, t.block_rows, first, job.dims // 2, job.dtype, form,
        isinstance(job.turn, RowTurns), share.wide, share.copy_bytes,
        *parts[0].row, *parts[1].row, 0,
    )  # fmt: skip


def _blocks(tables: Tables, job: RotateJob) -> int:
    if not job.used:
        return 0
    at = tables.find("blocks", job.used)
    return tables.add("blocks", job.used, ints(job.used)) if at is None else at


def _turns(tables: Tables, job: RotateJob) -> int:
    turn = job.turn
    if turn is None or job.dims == 0:
        return 0
    if isinstance(turn, Turn):
        key: object = (turn.cos, turn.sin)
    else:
        key = (job.rows, turn.position, turn.inv_freq)
    at = tables.find("turns", key)
    if at is not None:
        return at
    if isinstance(turn, Turn):
        return tables.add("turns", key, floats(turn.cos) + floats(turn.sin))
    return tables.add("turns", key, row_angles(turn.position, turn.inv_freq, job.rows))


@lru_cache(maxsize=1024)
def turn_by(distance: int, dims: int, interleaved: bool, inv_freq: tuple[float, ...]) -> Turn:
    """Returns the rotation by a distance in tokens, for all layers that share a rope. Angles are
    computed in float64."""
    angles = [distance * f for f in inv_freq]
    cos, sin = tuple(map(math.cos, angles)), tuple(map(math.sin, angles))
    return Turn(dims, interleaved, cos, sin)


@lru_cache(maxsize=8)
def row_angles(position: int, inv_freq: tuple[float, ...], rows: int) -> bytes:
    """Returns cosines, then sines of all rows, [rows, pairs] each.

    All layers of a model share them; computing one pair takes some 0.1 µs here.
    """
    angles = [at * f for at in range(position, position + rows) for f in inv_freq]
    return floats(list(map(math.cos, angles))) + floats(list(map(math.sin, angles)))
