"""Launches of the kernels that decode rows next to a state, and flush rows into the state.

The layouts of their tables are `buffering::Job` and `buffering::Pass` in
gpuipc/cuda/kernels/buffer.cu.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import GRID_Y_MOST, SHARED_MOST, Launch, Tables, ints
from spliced_connector.model import DType

_THREADS = 128
_ROW = struct.Struct("<14Q14I")
_PASS = struct.Struct("<4I")
_COLUMNS = 32  # columns of a state per block
_GROUPS = 16
_KERNELS = (1, 4, 8)  # the entries, by the maximum number of new rows
_MOST = 1 << 16
_ROWS_MOST = 1 << 20


@dataclass(frozen=True)
class BufferRows:
    """Addresses of n new rows, as an engine projects them, and of their outputs.

    `q` and `k` [n, key_heads, dk], `v` and `outputs` [n, heads, dv] and `e` [n, heads, dk] are of
    `dtype`. `beta` [n, heads] and `g` are F32; `g` has the shape of `BufferJob.g` with n rows. A
    delta rule reads states with `e`, or with `k` if `e` is 0.
    """

    n: int = 0
    dtype: DType = DType.NONE
    q: int = 0
    k: int = 0
    v: int = 0
    g: int = 0
    beta: int = 0
    e: int = 0
    outputs: int = 0


@dataclass(frozen=True)
class BufferJob:
    """One layer of one request: new rows are decoded next to the state and appended to a buffer,
    or all rows are flushed into the state, or both.

    Addresses of the buffer: keys `k` [capacity, key_heads, dk] and writes `u` [capacity, heads,
    dv] of `dtype`, decays `g` in F32 [capacity, heads], or [capacity, heads, dk] with `per_key`.
    `origin` and `out` are addresses of states, F32 [heads, dk, dv]. `origin` 0 is a zero state, so
    only rows are read. If `out` is 0, new rows are appended. Otherwise the state after all rows
    is written to `out`, which may equal `origin`; the buffer is empty then.
    If `parents` makes rows branch, only the last row and its ancestors are flushed.
    """

    heads: int
    key_heads: int
    dk: int
    dv: int
    dtype: DType
    per_key: bool
    delta: bool
    """Whether values are corrected by what the state already contains (delta rule)."""
    capacity: int
    pending: int
    k: int
    u: int
    g: int
    origin: int = 0
    out: int = 0
    new: BufferRows = BufferRows()
    parents: tuple[int, ...] | None = None
    """For each row, pending and new, the number of the row before it; -1 if it follows the state.
    None: each row follows the previous one (a chain)."""

    @property
    def total(self) -> int:
        """Number of rows, pending and new."""
        return self.pending + self.new.n

    @property
    def decays(self) -> int:
        """How many numbers a head's decay has in each row."""
        return self.dk if self.per_key else 1

    @property
    def tiles(self) -> int:
        """Number of thread blocks per head."""
        return (self.dv - 1) // _COLUMNS + 1

    @property
    def chain(self) -> bool:
        return self.parents is None or all(p == i - 1 for i, p in enumerate(self.parents))

    @property
    def entry(self) -> int:
        """Returns the smallest kernel that takes all new rows, or the largest kernel if the rows
        must be cut. A kernel is named by the maximum number of new rows that it takes."""
        return next((m for m in _KERNELS if self.new.n <= m), _KERNELS[-1])

    def shared(self, m: int) -> int:
        """Bytes of shared memory of kernel m, computed as in `buffering::layout`."""
        channels = -(-self.dk // 4) * 4
        n = (2 * m + 1 + _GROUPS) * channels + (_GROUPS + 9 * m) * _COLUMNS
        n += 2 * m * _GROUPS + (2 * m + 1) * m
        if self.origin or self.out:
            n += self.dk * _COLUMNS
        return 4 * n

    def cut(self, n: int) -> tuple[BufferJob, BufferJob | None]:
        """Returns a job for the first n new rows, and a job for the remaining new rows (None if
        there are none). In the second job, the first n rows are pending."""
        new = self.new
        if new.n <= n:
            return self, None
        parents = None if self.parents is None else self.parents[: self.pending + n]
        first = replace(self, out=0, new=replace(new, n=n), parents=parents)
        key = n * self.key_heads * self.dk * new.dtype.size
        value = n * self.heads * self.dv * new.dtype.size
        rest = replace(
            new,
            n=new.n - n,
            q=new.q + key,
            k=new.k + key,
            v=new.v + value,
            outputs=new.outputs + value,
            g=new.g + 4 * n * self.heads * self.decays,
            beta=new.beta + 4 * n * self.heads,
            e=new.e + n * self.heads * self.dk * new.dtype.size if new.e else 0,
        )
        return first, replace(self, pending=self.pending + n, new=rest)

    def lineage(self, row: int) -> tuple[int, ...]:
        """Returns a row and its ancestors, ascending."""
        path = []
        while row >= 0:
            path.append(row)
            row = row - 1 if self.parents is None else self.parents[row]
        return tuple(reversed(path))

    def ancestors(self, row: int) -> tuple[tuple[int, ...], int]:
        """Returns the pending ancestors of a row, ascending, and a mask of its new ancestors."""
        before = self.lineage(row)[:-1]
        path = tuple(at for at in before if at < self.pending)
        return path, sum(1 << (at - self.pending) for at in before if at >= self.pending)


def buffer_launches(jobs: Sequence[BufferJob]) -> list[Launch]:
    """Returns launches, which must run in this order. Jobs may differ in all fields.

    No job may write data that another job reads or writes: jobs run in any order. A job of more
    than eight new rows takes several launches. Raises `SplicedError(INVALID)`.
    """
    waves: list[dict[int, list[BufferJob]]] = []
    for i, job in enumerate(jobs):
        problem = _problem(job)
        if problem:
            raise SplicedError(Code.INVALID, f"buffer, job {i}: {problem}")
        rest: BufferJob | None = job
        wave = 0
        while rest is not None:
            part, rest = rest.cut(_KERNELS[-1])
            if wave == len(waves):
                waves.append({m: [] for m in _KERNELS})
            if part.new.n or part.out:
                waves[wave][part.entry].append(part)
            wave += 1
    return [
        _launch(m, group[at : at + GRID_Y_MOST])
        for groups in waves
        for m, group in groups.items()
        for at in range(0, len(group), GRID_Y_MOST)
    ]


def _problem(job: BufferJob) -> str:
    """Returns why a job can never be valid, empty if it can."""
    shape = f"{job.heads} heads of [{job.dk}, {job.dv}], {job.key_heads} of keys"
    if not all(0 < n <= _MOST for n in (job.heads, job.key_heads, job.dk, job.dv)):
        return shape
    if job.heads % job.key_heads or job.heads * job.dv > 1 << 30:
        return shape
    new = job.new
    if min(job.pending, new.n) < 0 or not job.total <= job.capacity <= _ROWS_MOST:
        return f"{job.pending} and {new.n} rows in a buffer of {job.capacity}"
    size, places = job.dtype.size, (job.k, job.u, job.g)
    if (
        size == 0
        or (job.total and 0 in places)
        or (job.k | job.u) % size
        or (job.g | job.origin | job.out) % 4
    ):
        return f"rows of type {int(job.dtype)} at {places}, states at {job.origin}, {job.out}"
    problem = _rows_problem(new)
    if problem:
        return problem
    shared = job.shared(job.entry)
    if shared > SHARED_MOST:
        return f"{job.dk} key dimensions take {shared} bytes of shared memory"
    return _parents_problem(job)


def _rows_problem(new: BufferRows) -> str:
    if new.n == 0:
        return ""
    size = new.dtype.size
    if (
        size == 0
        or 0 in (new.q, new.k, new.v, new.g, new.beta, new.outputs)
        or (new.q | new.k | new.v | new.e | new.outputs) % size
        or (new.g | new.beta) % 4
    ):
        return f"new rows {new}"
    return ""


def _parents_problem(job: BufferJob) -> str:
    if job.parents is None:
        return ""
    if len(job.parents) != job.total:
        return f"{len(job.parents)} parents of {job.total} rows"
    for i, parent in enumerate(job.parents):
        if not -1 <= parent < i:
            return f"row {i} cannot follow row {parent}"
    return ""


def _launch(m: int, jobs: Sequence[BufferJob]) -> Launch:
    tables = Tables(len(jobs) * _ROW.size)
    for i, job in enumerate(jobs):
        tables.put_row(i * _ROW.size, _row(job, *_family(tables, job)))
    grid = (max(job.heads * job.tiles for job in jobs), len(jobs), 1)
    shared = max(job.shared(m) for job in jobs)
    return Launch(f"spliced_buffer_{m}", grid, (_THREADS, 1, 1), shared, b"", tables.bytes())


def _row(job: BufferJob, passes: int, count: int, ancestors: int) -> bytes:
    new = job.new
    wide_state = job.dv % 4 == 0 and (job.origin | job.out) % 16 == 0
    wide_rows = job.dv % 4 == 0 and job.u % (4 * job.dtype.size) == 0
    return _ROW.pack(
        job.origin, job.out, job.k, job.u, job.g,
        new.q, new.k, new.v, new.g, new.beta, new.e, new.outputs, passes, ancestors,
        job.heads, job.key_heads, job.dk, job.dv, job.dtype, new.dtype,
        job.pending, new.n, count, job.per_key, job.delta, wide_state, wide_rows, 0,
    )  # fmt: skip


def _family(tables: Tables, job: BufferJob) -> tuple[int, int, int]:
    """Writes to the tables the pending ancestors of new rows, the rows to flush, and the masks of
    new ancestors. Returns the offset of the passes, how many of them are for new rows, and the
    offset of the masks; all 0 if rows are a chain."""
    if job.chain:
        return 0, 0, 0
    masks = []
    members: dict[tuple[int, ...], int] = {}
    for i in range(job.new.n):
        path, mask = job.ancestors(job.pending + i)
        masks.append(mask)
        members[path] = members.get(path, 0) | 1 << i
    passes = list(members.items())
    if job.out:
        passes.append((job.lineage(job.total - 1), 0))
    rows = b"".join(
        _PASS.pack(mask, len(path), tables.append(ints(path)), 0) for path, mask in passes
    )
    ancestors = tables.append(ints(masks))
    return tables.append(rows), len(members), ancestors
