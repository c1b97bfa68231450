"""Launches of the kernels that compose running states with segments.

The layouts of their tables are `ComposeJob` and `ComposeStep` in
gpuipc/cuda/kernels/compose_job.cu; their arguments are `DenseArgs` and `PackedArgs` in the sources
of the dense kernels. The kernel of a job and its block size are chosen as in compose.go there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import GRID_Y_MOST, SHARED_MOST, Launch, Turn, floats
from spliced_connector.model import DType, Transition, packed_header

_MOST = 1 << 20
_NUMBERS_MOST = 1 << 31
_GRID_X_MOST = 2**31 - 1
_TABLES_MOST = 1 << 30

_JOB = struct.Struct("<2Q8I")
_STEP = struct.Struct("<3Q6I")

_STREAM_THREADS, _PLAIN_THREADS = 256, 128
_TILE = 32  # rows of T and S in a slot of the ring
_MULTIPROCESSORS = 132  # of an H200, for which strip widths are chosen
_SHARED_OF_THREE = 75 << 10  # share of a multiprocessor's shared memory for each of three blocks

_PART_MOST = 2**32 - 1  # bytes of a packed part
_SCALES = 384  # for a tile's rows of packed T and S
_BATCH = 1040  # for the positions of the heads of some steps


@dataclass(frozen=True)
class ComposeStep:
    """One step: a segment or a seam. `t` and `s` are addresses of T [heads, ...] and S [heads, dk,
    dv]; without them the step changes nothing. The F32 state before the step is written to the
    address `before`. An address of 0 means absent."""

    t: int = 0
    s: int = 0
    before: int = 0
    t_dtype: DType = DType.NONE
    s_dtype: DType = DType.NONE
    turn: Turn | None = None
    """Rotation of S on its key axis before it is added; scalar transitions only."""
    t_packed: int = 0
    """Bytes of the packed part of T, 0 = plain numbers. Dense transitions only."""
    s_packed: int = 0
    """Bytes of the packed part of S, 0 = plain numbers. Dense transitions only."""

    @property
    def packed(self) -> bool:
        return self.s != 0 and (self.t_packed != 0 or self.s_packed != 0)

    @property
    def turned(self) -> bool:
        return self.s != 0 and self.turn is not None and self.turn.dims > 0


@dataclass(frozen=True)
class ComposeJob:
    """Applies steps, one after the other, to the state of one layer with all its heads.

    `origin` and `out` are addresses of F32 [heads, dk, dv], which may be equal. `origin` 0 is a
    zero state, `out` 0 no output. Except for equal `origin` and `out`, written memory must not
    overlap any other memory of a launch.
    """

    transition: Transition
    heads: int
    dk: int
    dv: int
    steps: Sequence[ComposeStep]
    origin: int = 0
    out: int = 0

    @property
    def numbers(self) -> int:
        return self.heads * self.dk * self.dv

    @property
    def span(self) -> int:
        """Returns how many neighbouring numbers of the state one factor of T multiplies."""
        match self.transition:
            case Transition.SCALAR:
                return self.dk * self.dv
            case Transition.DIAGONAL:
                return self.dv
        return self.dk * self.dv // min(self.dk * self.dk, self.dk * self.dv)

    @property
    def writes(self) -> bool:
        """Returns whether there is any output."""
        moved = self.out != 0 and (self.out != self.origin or len(self.steps) > 0)
        return moved or any(step.before for step in self.steps)

    @cached_property
    def states(self) -> int:
        """All addresses of states, or-ed to check their alignment."""
        together = self.origin | self.out
        for step in self.steps:
            together |= step.before
        return together

    @cached_property
    def pairs(self) -> tuple[int, bool, bool]:
        """Returns the dimensions of the steps' rotations, whether the rotations are interleaved,
        and whether all steps agree in both."""
        dims, interleaved = 0, False
        for step in self.steps:
            turn = step.turn
            if turn is None or not step.turned:
                continue
            if dims and (dims, interleaved) != (turn.dims, turn.interleaved):
                return dims, interleaved, False
            dims, interleaved = turn.dims, turn.interleaved
        return dims, interleaved, True

    @cached_property
    def packed(self) -> bool:
        """Returns whether some step has packed parts."""
        return any(step.packed for step in self.steps)

    @cached_property
    def kernel(self) -> _Kernel:
        return _choose(self)


class _Kernel(IntEnum):
    """The kernels. `compose_launches` returns its launches in this order."""

    ROWS = 0
    NUMBERS = 1
    TURNED = 2
    SINGLE = 3
    DENSE_64 = 4
    DENSE_128 = 5
    DENSE_192 = 6
    PLAIN = 7
    PACKED_64 = 8
    PACKED_128 = 9
    PACKED_192 = 10
    PACKED_PLAIN = 11
    PACKED_SINGLE = 12

    @property
    def entry(self) -> str:
        return f"spliced_compose_{self.name.lower()}"


def compose_launches(jobs: Sequence[ComposeJob]) -> list[Launch]:
    """Returns launches, independent of each other, for jobs such as all layers of a model.

    Raises `SplicedError(INVALID)`.
    """
    groups: list[list[ComposeJob]] = [[] for _ in _Kernel]
    for i, job in enumerate(jobs):
        problem = _problem(job)
        if problem:
            raise SplicedError(Code.INVALID, f"compose, job {i}: {problem}")
        if job.writes:
            groups[job.kernel].append(job)
    return [
        _launch(kernel, group[at : at + GRID_Y_MOST])
        for kernel, group in zip(_Kernel, groups, strict=True)
        for at in range(0, len(group), GRID_Y_MOST)
    ]


def _problem(job: ComposeJob) -> str:
    """Returns why a job can never be valid, empty if it can."""
    sizes = job.heads, job.dk, job.dv
    if not all(0 < n <= _MOST for n in sizes) or job.numbers > _NUMBERS_MOST:
        return f"{job.heads} heads of [{job.dk}, {job.dv}]"
    if job.transition == Transition.NONE or len(job.steps) > _MOST:
        return f"transition {job.transition}, {len(job.steps)} steps"
    if (job.origin | job.out) % 4:
        return f"states at {job.origin:#x} and {job.out:#x}"
    for i, step in enumerate(job.steps):
        problem = _step_problem(job, step)
        if problem:
            return f"step {i}: {problem}"
    plain = job.kernel in (_Kernel.PLAIN, _Kernel.PACKED_PLAIN)
    if plain and _plain_columns(job.dk) == 0:
        return f"dense transitions of {job.dk} key dimensions"
    return ""


def _step_problem(job: ComposeJob, step: ComposeStep) -> str:
    if step.before % 4 or (step.t == 0) != (step.s == 0):
        return f"T at {step.t:#x}, S at {step.s:#x}, state before at {step.before:#x}"
    if step.s == 0:
        return ""
    t_size, s_size = step.t_dtype.size, step.s_dtype.size
    scalar = job.transition == Transition.SCALAR
    if t_size == 0 or s_size == 0 or (scalar and step.t_dtype != DType.F32):
        return f"T of type {int(step.t_dtype)}, S of type {int(step.s_dtype)}"
    if (not step.t_packed and step.t % t_size) or (not step.s_packed and step.s % s_size):
        return f"T at {step.t:#x}, S at {step.s:#x}"
    fits = _fits_part(job, step.t_packed) and _fits_part(job, step.s_packed)
    if not fits or (step.t_packed and job.transition != Transition.DENSE):
        return f"packed parts of {step.t_packed} and {step.s_packed} bytes"
    turn = step.turn
    if turn is None:
        return ""
    if not scalar:
        return "only scalar transitions commute with a rotation"
    fits = 2 * len(turn.cos) == 2 * len(turn.sin) == turn.dims
    return "" if fits and turn.dims <= job.dk else f"rotation of {turn.dims} of {job.dk} dimensions"


def _fits_part(job: ComposeJob, nbytes: int) -> bool:
    """Returns whether a packed part, if there is one, is large enough for its header."""
    return nbytes == 0 or packed_header(job.heads) <= nbytes <= _PART_MOST


def _choose(job: ComposeJob) -> _Kernel:
    """Returns the fastest kernel that can take the job."""
    if job.transition == Transition.DENSE:
        return _choose_dense(job)
    if job.packed:
        return _Kernel.PACKED_SINGLE
    dims, _, one = job.pairs
    aligned = job.states % 16 == 0 and not any(
        step.s % max(1, 4 * step.s_dtype.size) for step in job.steps
    )
    if not aligned:
        return _Kernel.SINGLE
    if dims:
        return _Kernel.TURNED if one and job.dv % 4 == 0 else _Kernel.SINGLE
    if job.span % 4 == 0:
        return _Kernel.ROWS
    by_four = job.numbers % 4 == 0 and not any(
        step.t % max(1, 4 * step.t_dtype.size) for step in job.steps
    )
    return _Kernel.NUMBERS if job.span == 1 and by_four else _Kernel.SINGLE


def _choose_dense(job: ComposeJob) -> _Kernel:
    plain, first = _Kernel.PLAIN, _Kernel.DENSE_64
    if job.packed:
        plain, first = _Kernel.PACKED_PLAIN, _Kernel.PACKED_64
    if job.dk > 192 or not _in_strips(job):
        return plain
    return _Kernel(first + (job.dk - 1) // 64)


def _in_strips(job: ComposeJob) -> bool:
    """Returns whether all rows can be copied 16 bytes at a time, and states two numbers at a time.
    Rows of packed parts need only have a multiple of eight numbers."""

    def whole(address: int, packed: int, numbers: int, size: int) -> bool:
        rest = numbers % 8 if packed else numbers * size % 16
        return address % 16 == 0 and rest == 0

    return (job.states % 8 == 0 and job.dv % 2 == 0) and all(
        whole(step.t, step.t_packed, job.dk, step.t_dtype.size)
        and whole(step.s, step.s_packed, job.dv, step.s_dtype.size)
        for step in job.steps
        if step.s
    )


def _launch(kernel: _Kernel, jobs: Sequence[ComposeJob]) -> Launch:
    threads, shared, arguments = _STREAM_THREADS, 0, b""
    match kernel:
        case _Kernel.ROWS | _Kernel.NUMBERS:
            blocks = max(_per_block(job.numbers // 4) for job in jobs)
        case _Kernel.TURNED:
            rows = [job.heads * ((job.dk + 1) // 2) * (job.dv // 4) for job in jobs]
            blocks = max(map(_per_block, rows))
        case _Kernel.SINGLE:
            blocks = max(_per_block(job.numbers) for job in jobs)
        case _Kernel.PACKED_SINGLE:
            blocks = max(job.heads * _per_block(job.dk * job.dv) for job in jobs)
        case _Kernel.PLAIN | _Kernel.PACKED_PLAIN:
            dk = max(job.dk for job in jobs)
            columns = _plain_columns(dk)
            threads, shared = _PLAIN_THREADS, _plain_shared(dk, columns)
            arguments = struct.pack("<4I", columns, 8 * dk * columns, dk, 0)
            blocks = max(_strips(job, columns) for job in jobs)
        case _:
            ring = _ring(kernel, jobs)
            threads, shared, arguments = 2 * ring.columns, ring.nbytes, ring.arguments
            blocks = max(_strips(job, ring.columns) for job in jobs)
    tables = _tables(jobs)
    if blocks > _GRID_X_MOST or len(tables) > _TABLES_MOST:
        text = f"compose: {blocks} blocks, {len(tables)} bytes of tables"
        raise SplicedError(Code.INVALID, text)
    grid = (blocks, len(jobs), 1)
    return Launch(kernel.entry, grid, (threads, 1, 1), shared, arguments, tables)


def _per_block(units: int) -> int:
    return -(-units // _STREAM_THREADS)


def _strips(job: ComposeJob, columns: int) -> int:
    return job.heads * -(-job.dv // columns)


def _plain_columns(dk: int) -> int:
    """Returns the largest number of columns such that two strips of a state with dk rows fit into
    shared memory; 0: not even one column."""
    for columns in (8, 4, 2, 1):
        if _plain_shared(dk, columns) <= SHARED_MOST:
            return columns
    return 0


def _plain_shared(dk: int, columns: int) -> int:
    return -(-(8 * dk * columns + _PLAIN_THREADS // columns * 33 * 4) // 16) * 16


@dataclass(frozen=True)
class _Ring:
    """The layout of shared memory of dense kernels: slots for tiles of T and S, then new states.
    Kernels for packed parts divide `room` bytes into slots for the forms that they find; `room` is
    enough for two slots of any form. The positions of heads follow after `room`."""

    columns: int
    t_bytes: int
    s_bytes: int
    slots: int
    park: int
    room: int = 0
    """For packed parts: bytes of all slots together."""

    @property
    def _after(self) -> int:
        return self.room or self.slots * (self.t_bytes + self.s_bytes)

    @property
    def nbytes(self) -> int:
        return self._after + (_BATCH if self.room else 0) + self.park

    @property
    def arguments(self) -> bytes:
        after = self._after
        if self.room:
            return struct.pack("<4I", self.columns, after, after, after + _BATCH)
        slot = self.t_bytes + self.s_bytes
        return struct.pack("<6I", self.columns, self.t_bytes, slot, self.slots, after, 0)


def _ring(kernel: _Kernel, jobs: Sequence[ComposeJob]) -> _Ring:
    """Returns the layout for strips of 64 columns, or of 32 columns if 64 do not fit or if 32
    spread the work better over the multiprocessors."""
    wide, narrow = _ring_of(kernel, jobs, 64), _ring_of(kernel, jobs, 32)
    if wide.nbytes > SHARED_MOST or 4 * _load(jobs, 32) <= 3 * _load(jobs, 64):
        return narrow
    return wide


def _load(jobs: Sequence[ComposeJob], columns: int) -> int:
    """Returns how many columns the busiest multiprocessor computes."""
    return -(-sum(_strips(job, columns) for job in jobs) // _MULTIPROCESSORS) * columns


def _ring_of(kernel: _Kernel, jobs: Sequence[ComposeJob], columns: int) -> _Ring:
    packed = kernel >= _Kernel.PACKED_64
    dk = 64 * (1 + kernel - (_Kernel.PACKED_64 if packed else _Kernel.DENSE_64))
    t_tile, s_tile = _TILE * dk, _TILE * columns
    t_bytes, s_bytes = 2 * t_tile, 2 * s_tile
    for job in jobs:
        for step in job.steps:
            t_bytes = max(t_bytes, t_tile * step.t_dtype.size)
            s_bytes = max(s_bytes, s_tile * step.s_dtype.size)
    park = columns // 16 * dk // 32 * 2048
    if packed:
        t_bytes, s_bytes = max(t_bytes, _packed_tile(dk)), max(s_bytes, _packed_tile(columns))
        slot = t_bytes + s_bytes + _SCALES
        free = (_SHARED_OF_THREE - _BATCH - park) // 128 * 128
        return _Ring(columns, t_bytes, s_bytes, 2, park, max(2 * slot, min(4 * slot, free)))
    three = _Ring(columns, t_bytes, s_bytes, 3, park)
    return three if three.nbytes <= _SHARED_OF_THREE else replace(three, slots=2)


def _packed_tile(columns: int) -> int:
    """Returns the maximum bytes of a tile of packed integers."""
    return _TILE * (2 * columns + 16) + 128


def _tables(jobs: Sequence[ComposeJob]) -> bytes:
    """Returns the tables: jobs, then their steps, then cosines and sines. Equal rotations are
    stored once for all layers."""
    at = len(jobs) * _JOB.size
    rows, steps, turns = [], [], bytearray()
    after = at + sum(len(job.steps) for job in jobs) * _STEP.size
    known: dict[bytes, int] = {}
    for job in jobs:
        dims, interleaved, _ = job.pairs
        sizes = job.heads, job.dk, job.dv, job.span
        rows.append(_JOB.pack(job.origin, job.out, at, len(job.steps), *sizes, dims, interleaved))
        at += len(job.steps) * _STEP.size
        for step in job.steps:
            where = dims = form = s_packed = 0
            if step.s:
                where, s_packed = step.t_packed, step.s_packed
            turn = step.turn
            if turn is not None and step.turned:
                raw = floats(turn.cos) + floats(turn.sin)
                if raw not in known:
                    known[raw] = after + len(turns)
                    turns += raw
                where, dims, form = known[raw], turn.dims, int(turn.interleaved)
            types = (step.t_dtype, step.s_dtype) if step.s else (0, 0)
            at_step = step.t, step.s, step.before
            steps.append(_STEP.pack(*at_step, *types, where, dims, form, s_packed))
    return b"".join(rows + steps) + bytes(turns)
