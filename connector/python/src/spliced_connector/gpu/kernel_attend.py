"""Launches of the kernels for attention over runs of rows in place.

The layouts of their tables are `attending::Job`, `Run` and `Item` in gpuipc/cuda/kernels/attend.cu.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import (
    GRID_Y_MOST,
    SHARED_MOST,
    TABLE_ALIGN,
    Launch,
    Tables,
    Turn,
    floats,
    ints,
)
from spliced_connector.model import DType

ATTEND_LEAST = 256
"""The fewest rows of a run that one thread block reads, unless the run has fewer. The start of a
block would take too large a part of its time with fewer rows."""

_THREADS = 128
_ROW = struct.Struct("<4Q9If")
_RUN = struct.Struct("<10Q4I")
_ITEM = struct.Struct("<4IiI")
_QUERIES = 8  # queries of a key head per block
_KEYS = 64  # keys per tile
_ITEMS = 1024  # approximate number of blocks per launch
_MOST = 1 << 20
_ROWS_MOST = 1 << 30
_GRID_X_MOST = 2**31 - 1
_ADDRESS_MOST = 2**63 - 1
_LOG2_E = 1 / math.log(2)
_ENTRIES = {
    DType.F32: "spliced_attend_f32",
    DType.F16: "spliced_attend_f16",
    DType.BF16: "spliced_attend_bf16",
    DType.NONE: "spliced_attend_any",
}


@dataclass(frozen=True)
class AttendRows:
    """Where keys or values are: the address of block 0 of the engine's cache (of row 0 if there are
    no blocks), and strides in bytes."""

    base: int
    block_stride: int
    row_stride: int
    head_stride: int

    @property
    def places(self) -> int:
        """The address and all strides, or-ed to check their alignment."""
        return self.base | self.block_stride | self.row_stride | self.head_stride


@dataclass(frozen=True)
class AttendRun:
    """Rows of keys and values from position `begin` on. A query sees rows up to its own position.

    If `block_rows` is 0, rows are consecutive, one row stride apart. Otherwise the run begins at
    row `first_row` of the block table, which keys and values share. `turn` is the rotation that
    stored keys lack. If keys were stored as if the run began at 0, but it begins at p here, the
    turn is `turn_by(p, ...)`. Queries are rotated by its inverse. None: keys lack no rotation.
    """

    rows: int
    begin: int
    keys: AttendRows
    values: AttendRows
    blocks: tuple[int, ...] = ()
    block_rows: int = 0
    first_row: int = 0
    turn: Turn | None = None

    @property
    def used(self) -> tuple[int, ...]:
        """Returns the entries of the block table that contain rows."""
        if self.block_rows == 0 or self.rows == 0:
            return ()
        last = (self.first_row + self.rows - 1) // self.block_rows
        return self.blocks[self.first_row // self.block_rows : last + 1]


@dataclass(frozen=True)
class AttendJob:
    """Attention of one request's layer.

    `q` and `out` are addresses of contiguous tensors of `q_dtype`: the queries [rows, heads,
    key_dim], rotated to positions from `begin` on, and the results [rows, heads, value_dim]. Keys
    and values are of `dtype`.
    """

    rows: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    begin: int
    dtype: DType
    q_dtype: DType
    scale: float
    q: int
    out: int
    runs: Sequence[AttendRun] = ()

    def seen(self, run: AttendRun) -> int:
        """Returns how many rows of a run at least one query row sees."""
        return max(0, min(run.rows, self.begin + self.rows - run.begin))

    @property
    def blocks(self) -> int:
        """Returns how many thread blocks share the queries of a key head."""
        return -(-(self.rows * self.heads // self.key_heads) // _QUERIES)

    @property
    def shared(self) -> int:
        """Bytes of shared memory, computed as in `attending::layout`."""
        channels = -(-self.key_dim // 64) * 64
        return 32 * _KEYS + 4 * _QUERIES * (channels + _KEYS + 1 + self.value_dim)

    @cached_property
    def entry(self) -> str:
        """Returns the kernel's name: the kernel for `dtype` if pieces of eight numbers are aligned
        to 16 bytes, else the kernel for any alignment."""
        places = 0
        for run in self.runs:
            places |= run.keys.places | run.values.places
        if self.key_dim % 8 or self.value_dim % 8 or places % 16:
            return _ENTRIES[DType.NONE]
        return _ENTRIES[self.dtype]


@dataclass(frozen=True)
class _Planned:
    job: AttendJob
    items: tuple[tuple[int, int, int], ...]  # run, first row, rows
    sums: int  # offset in the scratch memory
    scales: int


@dataclass
class _Plan:
    jobs: list[_Planned] = field(default_factory=list)
    scratch: int = 0


def attend_launches(jobs: Sequence[AttendJob], scratch: int) -> list[Launch]:
    """Returns launches, which must run in this order. Several jobs may read the same run.

    `scratch` is the address, a multiple of 16, of `attend_scratch(jobs)` bytes of device memory.
    Raises `SplicedError(INVALID)`.
    """
    plan = _plan(jobs)
    if plan.scratch and (scratch <= 0 or scratch % 16):
        raise SplicedError(Code.INVALID, f"attend: scratch at {scratch:#x}")
    launches = []
    for entry in _ENTRIES.values():
        group: list[_Planned] = []
        items = 0
        for planned in plan.jobs:
            if planned.job.entry != entry or not planned.items:
                continue
            if items + len(planned.items) > _GRID_X_MOST:
                launches.append(_launch(entry, group, scratch))
                group, items = [], 0
            group.append(planned)
            items += len(planned.items)
        if group:
            launches.append(_launch(entry, group, scratch))
    for at in range(0, len(plan.jobs), GRID_Y_MOST):
        launches.append(_join(plan.jobs[at : at + GRID_Y_MOST], scratch))
    return launches


def attend_scratch(jobs: Sequence[AttendJob]) -> int:
    """Returns the scratch bytes that launches of these jobs need."""
    return _plan(jobs).scratch


def _plan(jobs: Sequence[AttendJob]) -> _Plan:
    total = work = 0
    for i, job in enumerate(jobs):
        problem = _problem(job)
        if problem:
            raise SplicedError(Code.INVALID, f"attend, job {i}: {problem}")
        n = sum(job.seen(run) for run in job.runs) * job.key_heads
        total += n
        work += n * job.blocks
    if total > _ROWS_MOST:
        raise SplicedError(Code.INVALID, f"attend: more than {_ROWS_MOST} rows")
    rows = max(ATTEND_LEAST, -(-(work // _ITEMS) // _KEYS) * _KEYS)
    plan = _Plan()
    for job in jobs:
        if job.rows == 0:
            continue
        items = tuple(
            (i, first, min(rows, job.seen(run) - first))
            for i, run in enumerate(job.runs)
            for first in range(0, job.seen(run), rows)
        )
        n = len(items) * job.rows * job.heads
        sums, scales = plan.scratch, plan.scratch + _aligned(4 * n * job.value_dim)
        plan.scratch = scales + _aligned(8 * n)
        plan.jobs.append(_Planned(job, items, sums, scales))
    return plan


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def _problem(job: AttendJob) -> str:
    """Returns why a job can never be valid, empty if it can."""
    shape = f"{job.rows} rows of {job.heads} heads [{job.key_dim}, {job.value_dim}]"
    shape += f", {job.key_heads} of keys, from position {job.begin} on"
    if not (
        0 <= job.rows <= _MOST
        and 0 < job.heads <= _MOST
        and 0 < job.key_heads <= GRID_Y_MOST
        and 0 < job.key_dim <= _MOST
        and 0 < job.value_dim <= _THREADS * 8
        and 0 <= job.begin <= _ROWS_MOST
    ):
        return shape
    if job.heads % job.key_heads:
        return shape
    if job.rows * job.heads // job.key_heads > _QUERIES * GRID_Y_MOST:
        return shape
    size = job.q_dtype.size
    if size == 0 or job.dtype.size == 0 or not math.isfinite(job.scale):
        return f"types {int(job.q_dtype)} and {int(job.dtype)}, scale {job.scale}"
    if (job.rows and 0 in (job.q, job.out)) or (job.q | job.out) % size:
        return f"queries at {job.q:#x} to {job.out:#x}"
    if job.shared > SHARED_MOST:
        return f"{shape}: {job.shared} bytes of shared memory"
    for i, run in enumerate(job.runs):
        problem = _run_problem(job, run)
        if problem:
            return f"run {i}: {problem}"
    return ""


def _run_problem(job: AttendJob, run: AttendRun) -> str:
    if not (0 <= run.rows <= _ROWS_MOST and 0 <= run.begin <= _ROWS_MOST):
        return f"{run.rows} rows at position {run.begin}"
    turn = run.turn
    if turn is not None and (
        not 0 <= turn.dims <= job.key_dim or not 2 * len(turn.cos) == 2 * len(turn.sin) == turn.dims
    ):
        return f"rotation of {turn.dims} of {job.key_dim} dimensions"
    if run.rows == 0:
        return ""
    if run.block_rows == 0 and (run.blocks or run.first_row):
        return "rows without blocks have a block table"
    if not (0 <= run.block_rows <= 1 << 30 and 0 <= run.first_row <= 1 << 30):
        return f"blocks of {run.block_rows} rows, first {run.first_row}"
    if run.block_rows:
        last = (run.first_row + run.rows - 1) // run.block_rows
        if last >= len(run.blocks):
            return f"rows extend past a table of {len(run.blocks)} blocks"
    for rows in (run.keys, run.values):
        if rows.base <= 0 or min(rows.block_stride, rows.row_stride, rows.head_stride) < 0:
            return f"rows at {rows}"
        high = run.block_rows or run.rows
        end = rows.base + job.key_heads * rows.head_stride + high * rows.row_stride
        end += max(run.used, default=0) * rows.block_stride
        if rows.places % job.dtype.size or end > _ADDRESS_MOST:
            return f"rows at {rows}"
    return ""


def _launch(entry: str, group: Sequence[_Planned], scratch: int) -> Launch:
    rows: list[bytes] = []
    items: list[bytes] = []
    runs = 0
    for i, planned in enumerate(group):
        job = planned.job
        rows.append(_row(planned, len(items), scratch))
        for run, first, count in planned.items:
            seen = job.begin + 1 - job.runs[run].begin
            items.append(_ITEM.pack(i, runs + run, first, count, seen, 0))
        runs += len(job.runs)
    runs_at = -(-len(rows) * _ROW.size // TABLE_ALIGN) * TABLE_ALIGN
    items_at = runs_at + runs * _RUN.size
    tables = Tables(items_at + len(items) * _ITEM.size)
    tables.put_row(0, b"".join(rows))
    tables.put_row(items_at, b"".join(items))
    at = runs_at
    for planned in group:
        for row in planned.job.runs:
            tables.put_row(at, _run(tables, row))
            at += _RUN.size
    blocks = max(p.job.blocks for p in group)
    grid = (len(items), max(p.job.key_heads for p in group), blocks)
    shared = max(p.job.shared for p in group)
    arguments = struct.pack("<2Q", runs_at, items_at)
    return Launch(entry, grid, (_THREADS, 1, 1), shared, arguments, tables.bytes())


def _join(group: Sequence[_Planned], scratch: int) -> Launch:
    rows = b"".join(_row(planned, 0, scratch) for planned in group)
    grid = (max(p.job.rows * p.job.heads for p in group), len(group), 1)
    return Launch("spliced_attend_join", grid, (_THREADS, 1, 1), 0, bytes(16), rows)


def _row(planned: _Planned, first_item: int, scratch: int) -> bytes:
    job = planned.job
    scale = struct.unpack("<f", struct.pack("<f", job.scale))[0] * _LOG2_E
    return _ROW.pack(
        job.q, job.out, scratch + planned.sums, scratch + planned.scales,
        job.rows, job.heads, job.key_heads, job.key_dim, job.value_dim,
        job.dtype, job.q_dtype, first_item, len(planned.items), scale,
    )  # fmt: skip


def _run(tables: Tables, run: AttendRun) -> bytes:
    blocks = _placed(tables, "blocks", run.used, ints(run.used)) if run.used else 0
    turn, first = run.turn, run.first_row
    at, half, interleaved = 0, 0, False
    if turn is not None:
        half, interleaved = turn.dims // 2, turn.interleaved
    if turn is not None and turn.dims:
        at = _placed(tables, "turns", (turn.cos, turn.sin), floats(turn.cos) + floats(turn.sin))
    if run.block_rows:
        first %= run.block_rows
    k, v = run.keys, run.values
    return _RUN.pack(
        k.base, v.base, k.block_stride, k.row_stride, k.head_stride,
        v.block_stride, v.row_stride, v.head_stride, blocks, at,
        run.block_rows, first, half, interleaved,
    )  # fmt: skip


def _placed(tables: Tables, kind: str, key: object, data: bytes) -> int:
    at = tables.find(kind, key)
    return tables.add(kind, key, data) if at is None else at
