# Code generated from gpuipc/cuda/kernels by pygen; DO NOT EDIT.
# fmt: off
# ruff: noqa
# mypy: ignore-errors
"""Functions that turn jobs into launches: tables.go, rotate.go, compose.go, buffer.go, attend.go of gpuipc/cuda/kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import Addresses, Launch, RowTurns, Turn, Words, chunks, single
from spliced_connector.model import DType, Transition, packed_header

TABLES_BACK = 4
ROTATE_THREADS = 256
ROTATE_ROW_BYTES = 152
ROTATE_BATCH = 6
ROTATE_BLOCKS = 4096
MAX_ANGLES = 16777216
COMPOSE_ROWS = 0
COMPOSE_NUMBERS = 1
COMPOSE_TURNED = 2
COMPOSE_SINGLE = 3
COMPOSE_DENSE64 = 4
COMPOSE_PLAIN = 7
COMPOSE_PACKED64 = 8
COMPOSE_PACKED_PLAIN = 11
COMPOSE_PACKED_SINGLE = 12
COMPOSE_KERNELS = 13
STREAM_THREADS = 256
PLAIN_THREADS = 128
SHARED_OF_THREE = 76800
MULTIPROCESSORS = 132
PACKED_SCALES = 384
PACKED_BATCH = 1040
COMPOSE_JOB_BYTES = 48
COMPOSE_STEP_BYTES = 48
BUFFER_THREADS = 128
BUFFER_COLUMNS = 32
BUFFER_GROUPS = 16
BUFFER_ROW_BYTES = 168
MAX_BUFFER_ROWS = 1048576
ATTEND_THREADS = 128
ATTEND_QUERIES = 8
ATTEND_KEYS = 64
ATTEND_RUN_BYTES = 96
ATTEND_ITEMS = 1024
ATTEND_LEAST = 256
ATTEND_MOST = 524280
MAX_ATTEND_ROWS = 1073741824
TABLE_ALIGN = 16
MAX_SHARED = 101376
MAX_GRID_X = 2147483647
MAX_GRID_Y = 65535


@dataclass(slots=True)
class Tables:
    """Has the rows of jobs, and after them the data of the jobs."""
    words: Words = field(default_factory=lambda: Words())
    turns: Sequence[PlacedTurn] = field(default_factory=lambda: [])
    blocks: Sequence[PlacedBlocks] = field(default_factory=lambda: [])

    def blocks_of(self, used: Sequence[int]) -> int:
        """Returns the offset of a block table, 0 if it is empty."""
        if len(used) == 0:
            return 0
        for p in self.blocks[max(0, len(self.blocks) - TABLES_BACK):]:
            if p.blocks == used:
                return p.at
        at = self.words.align(TABLE_ALIGN)
        self.words.u32(*used)
        self.blocks.append(PlacedBlocks(used, at))
        return at

    def turns_of(self, turn: Turn | None, per_row: RowTurns | None, rows: int) -> int:
        """Returns the offset of the cosines and sines of a rotation, 0 if there are none."""
        if (turn is None or turn.dims == 0) and (per_row is None or per_row.dims == 0):
            return 0
        for p in self.turns[max(0, len(self.turns) - TABLES_BACK):]:
            if p.is_(turn, per_row, rows):
                return p.at
        at = self.words.align(TABLE_ALIGN)
        if turn is not None:
            self.words.f32(*turn.cos)
            self.words.f32(*turn.sin)
        else:
            self.words.row_angles(per_row, rows)
        self.turns.append(PlacedTurn(turn, per_row, rows, at))
        return at


@dataclass(slots=True)
class PlacedTurn:
    """A rotation in the tables, and its offset. One of turn and per_row is set."""
    turn: Turn | None = None
    per_row: RowTurns | None = None
    rows: int = 0
    at: int = 0

    def is_(self, turn: Turn | None, per_row: RowTurns | None, rows: int) -> bool:
        if turn is not None:
            return self.turn is not None and self.turn.cos == turn.cos and self.turn.sin == turn.sin
        return self.per_row is not None and self.rows == rows and self.per_row.position == per_row.position and self.per_row.inv_freq == per_row.inv_freq


@dataclass(slots=True)
class PlacedBlocks:
    """A block table in the tables, and its offset."""
    blocks: Sequence[int] = field(default_factory=lambda: [])
    at: int = 0


def one_if(b: bool) -> int:
    if b:
        return 1
    return 0


def arguments() -> Words:
    """Returns an argument block with space for the address of the tables."""
    return Words(8)


@dataclass(slots=True)
class RotateJob:
    """A gpuipc.RotateJob on device memory. rows [rows, heads, dim] of dtype at src
    are copied to dst and rotated. turn and per_row are as in gpuipc.RotateJob, and at most one
    of them is set. Cosines and sines are computed here in the same way as on the host device,
    so that both devices rotate by the same numbers.
    """
    rows: int = 0
    heads: int = 0
    dim: int = 0
    dtype: DType = DType.NONE
    src: int = 0
    turn: Turn | None = None
    per_row: RowTurns | None = None
    dst: RotateTarget = field(default_factory=lambda: RotateTarget())


@dataclass(slots=True)
class RotateTarget:
    """The destination of rows. If block_rows is 0, they are stored without gaps at
    base, as [rows, heads, dim]. Otherwise, with t = first_row+r, head h of row r is at

        base + blocks[t/block_rows]*block_stride + (t%block_rows)*row_stride + h*head_stride

    as in gpuipc.Scatter, except that base is the address of block 0. The caller must make sure
    that no two rows or heads overlap, and that all these bytes are writable.
    """
    base: int = 0
    blocks: Sequence[int] = ()
    block_rows: int = 0
    first_row: int = 0
    block_stride: int = 0
    row_stride: int = 0
    head_stride: int = 0


def rotate_launches(jobs: Sequence[RotateJob]) -> Sequence[Launch]:
    """Builds the launches of spliced_rotate: one, unless there are more jobs than the
    height of a grid. Jobs may differ in everything. They run in any order, so no job may write
    what another reads or writes. Consecutive jobs with equal block tables or positions share
    one table.

    Results have the bits of gpuipc/kernel.RotateRows, except that a NaN in a rotated dimension
    may become another NaN.
    """
    some = []
    angles = 0
    for i in range(len(jobs)):
        try:
            j = plan_rotate(jobs[i])
        except SplicedError as err:
            raise SplicedError(Code.INVALID, f"rotate, job {i}: {err.text}") from err
        if j.rotate_job.rows == 0:
            continue
        angles += j.angles()
        if angles > MAX_ANGLES:
            raise SplicedError(Code.INVALID, f"rotate: more than {MAX_ANGLES} cosines for one launch")
        some.append(j)
    launches = []
    for part in chunks(some, MAX_GRID_Y):
        launches.append(rotate_launch(part))
    return launches


@dataclass(slots=True)
class PlannedRotate:
    """A checked RotateJob, with the plan of how threads share the work; see
    rotation::Job.
    """
    rotate_job: RotateJob = None
    used: Sequence[int] = field(default_factory=lambda: [])  # entries of the block table that the rows use
    first: int = 0  # offset of row 0 in the first used block, in rows
    dims: int = 0
    interleaved: bool = False
    head_bytes: int = 0
    row_stride: int = 0
    head_stride: int = 0
    wide: bool = False
    copy_bytes: int = 0
    turned: RotatePart = field(default_factory=lambda: RotatePart())
    copied: RotatePart = field(default_factory=lambda: RotatePart())

    def set_turn(self) -> None:
        want = 0
        cosines = 0
        sines = 0
        t, p = self.rotate_job.turn, self.rotate_job.per_row
        if t is not None and p is not None:
            raise SplicedError(Code.INVALID, "one turn for all rows and one for each")
        elif t is not None:
            self.dims, self.interleaved = t.dims, t.interleaved
            want, cosines, sines = t.dims // 2, len(t.cos), len(t.sin)
        elif p is not None:
            self.dims, self.interleaved = p.dims, p.interleaved
            want, cosines, sines = p.dims // 2, len(p.inv_freq), len(p.inv_freq)
        if self.dims < 0 or self.dims % 2 != 0 or self.dims > self.rotate_job.dim or cosines != want or sines != want:
            raise SplicedError(Code.INVALID, f"rotation of {self.dims} of {self.rotate_job.dim} dimensions by {cosines} and {sines} numbers")
        return

    def set_target(self) -> None:
        """Cuts the block table down to the used entries. It checks that all addresses are
        valid and aligned to elements.
        """
        d = self.rotate_job.dst
        self.row_stride, self.head_stride = d.row_stride, d.head_stride
        if d.block_rows == 0:
            if len(d.blocks) != 0 or d.first_row != 0 or d.block_stride | d.row_stride | d.head_stride != 0:
                raise SplicedError(Code.INVALID, "rows without blocks have a block table or strides")
            self.row_stride, self.head_stride = self.head_bytes * self.rotate_job.heads, self.head_bytes
        else:
            self.cut_table()
        size = self.rotate_job.dtype.size
        if self.rotate_job.src == 0 or d.base == 0 or (self.rotate_job.src | d.base | d.block_stride | self.row_stride | self.head_stride) % size != 0:
            raise SplicedError(Code.INVALID, f"rows at {self.rotate_job.src:#x} to {d.base:#x}, strides {d.block_stride}, {self.row_stride}, {self.head_stride}, of {size}-byte elements")
        last = self.rotate_job.rows - 1
        if d.block_rows > 0:
            last = d.block_rows - 1
        end = Addresses(at=d.base)
        end.add(last, self.row_stride)
        end.add(self.rotate_job.heads, max(self.head_stride, self.head_bytes))
        if len(self.used) > 0:
            end.add(max(self.used), d.block_stride)
        begin = Addresses(at=self.rotate_job.src)
        begin.add(self.rotate_job.rows, self.head_bytes * self.rotate_job.heads)
        if end.over or begin.over:
            raise SplicedError(Code.INVALID, "rows reach past the last address")
        return

    def cut_table(self) -> None:
        most = 1 << 30
        d = self.rotate_job.dst
        if d.block_rows < 0 or d.block_rows > most or d.first_row < 0 or d.first_row > 9223372036854775807 - self.rotate_job.rows or d.block_stride < 0 or d.row_stride < 0 or d.head_stride < 0:
            raise SplicedError(Code.INVALID, f"block table of {d.block_rows} rows a block, first {d.first_row}, strides {d.block_stride}, {d.row_stride}, {d.head_stride}")
        first, last = d.first_row // d.block_rows, (d.first_row + self.rotate_job.rows - 1) // d.block_rows
        if last >= len(d.blocks):
            raise SplicedError(Code.INVALID, f"rows end in block {last} of {len(d.blocks)}")
        self.used, self.first = d.blocks[first:last + 1], d.first_row % d.block_rows
        return

    def share(self) -> None:
        """Splits each row into units, as wide as the alignment of all addresses
        allows, and shares the rows among threads.
        """
        size, dims = self.rotate_job.dtype.size, self.dims
        all_ = self.rotate_job.src | self.rotate_job.dst.base | self.row_stride | self.head_bytes
        if self.rotate_job.heads > 1:
            all_ |= self.head_stride
        if self.rotate_job.dst.block_rows > 0:
            all_ |= self.rotate_job.dst.block_stride
        run = dims * size
        if not self.interleaved:
            run //= 2
        self.wide = (all_ | run) % 16 == 0
        turn_units = self.dims // 2
        if self.wide:
            turn_units = run // 16
        still = self.head_bytes - dims * size
        low = all_ | still | dims * size | 16
        self.copy_bytes = low & -low
        self.turned = self.part(turn_units)
        self.copied = self.part(still // self.copy_bytes)

    def part(self, units: int) -> RotatePart:
        if units == 0:
            return RotatePart()
        p = RotatePart(units=units, lanes=self.rotate_job.heads * units)
        p.groups = (p.lanes - 1) // ROTATE_THREADS + 1
        p.group_lanes = (p.lanes - 1) // p.groups + 1
        p.blocks = p.groups * ((self.rotate_job.rows - 1) // (ROTATE_THREADS // p.group_lanes * ROTATE_BATCH) + 1)
        return p

    def angles(self) -> int:
        """Returns the number of cosines that the job needs if it shares none with other jobs."""
        if self.rotate_job.per_row is not None:
            return self.rotate_job.rows * (self.dims // 2)
        return self.dims // 2

    def row(self, turns: int, blocks: int) -> Words:
        """Returns the job in the form of rotation::Job."""
        form = 0
        if self.dims > 0 and self.interleaved:
            form = 2
        elif self.dims > 0:
            form = 1
        w = Words()
        w.u64(self.rotate_job.src, self.rotate_job.dst.base, turns, blocks, self.head_bytes * self.rotate_job.heads, self.head_bytes, self.rotate_job.dst.block_stride, self.row_stride, self.head_stride)
        w.u32(self.rotate_job.rows, self.rotate_job.dst.block_rows, self.first, self.dims // 2, self.rotate_job.dtype, form, one_if(self.rotate_job.per_row is not None), one_if(self.wide), self.copy_bytes)
        for p in [self.turned, self.copied]:
            w.u32(p.units, p.lanes, p.group_lanes, p.groups, p.blocks)
        w.u32(0)
        return w


@dataclass(slots=True)
class RotatePart:
    """Says how blocks of threads share the numbers that are rotated, or those that are
    only copied; see rotation::Part.
    """
    units: int = 0
    lanes: int = 0
    group_lanes: int = 0
    groups: int = 0
    blocks: int = 0  # number of blocks that have work

    def at_most(self, blocks: int) -> None:
        """Bounds the number of blocks. A part always keeps the blocks that one row needs."""
        if self.groups > 0:
            self.blocks = min(self.blocks, max(1, blocks // self.groups) * self.groups)


def plan_rotate(a: RotateJob) -> PlannedRotate:
    """Checks a job, and plans it if it has rows."""
    most = 1 << 24
    if a.rows < 0 or a.rows > most or a.heads <= 0 or a.heads > most or a.dim <= 0 or a.dim > most or a.heads > most // a.dim:
        raise SplicedError(Code.INVALID, f"{a.rows} rows of [{a.heads}, {a.dim}]")
    if a.dtype.size == 0:
        raise SplicedError(Code.INVALID, f"element type {a.dtype}")
    j = PlannedRotate(rotate_job=a, head_bytes=a.dim * a.dtype.size)
    j.set_turn()
    if a.rows == 0:
        return j
    j.set_target()
    j.share()
    return j


def rotate_launch(jobs: Sequence[PlannedRotate]) -> Launch:
    t = Tables(words=Words(len(jobs) * ROTATE_ROW_BYTES))
    blocks = 1
    for i, j in enumerate(jobs):
        j.turned.at_most(ROTATE_BLOCKS // len(jobs))
        j.copied.at_most(ROTATE_BLOCKS // len(jobs))
        blocks = max(blocks, j.turned.blocks + j.copied.blocks)
        t.words.put(i * ROTATE_ROW_BYTES, j.row(t.turns_of(j.rotate_job.turn, j.rotate_job.per_row, j.rotate_job.rows), t.blocks_of(j.used)))
    return Launch(name="spliced_rotate", grid=(blocks, len(jobs), 1), block=(ROTATE_THREADS, 1, 1), args=arguments(), tables=t.words)


@dataclass(slots=True)
class ComposeJob:
    """A gpuipc.ComposeJob on device memory. All tensors are contiguous, and an
    address of 0 means that a tensor is absent. out may equal origin. Apart from that, no bytes
    that a job writes may overlap any other tensor of the launch.

    A dense step whose t is F32 is not exact at the edge of F32's range. If rounding a number
    to 11 bits overflows (from 0x7f7ff000 on, 3.4e38), the result is NaN, even if the exact
    product is finite.
    """
    transition: Transition = Transition.NONE
    heads: int = 0
    dk: int = 0
    dv: int = 0
    origin: int = 0  # F32 [heads, dk, dv]
    steps: Sequence[ComposeStep] = ()
    out: int = 0  # F32 [heads, dk, dv]

    def check(self) -> None:
        most = 1 << 20
        steps = 1 << 20
        if self.heads <= 0 or self.dk <= 0 or self.dv <= 0 or self.heads > most or self.dk > most or self.dv > most or self.numbers() > 1 << 31:
            raise SplicedError(Code.INVALID, f"{self.heads} heads of [{self.dk}, {self.dv}]")
        if self.factors() == 0 or len(self.steps) > steps:
            raise SplicedError(Code.INVALID, f"transition {self.transition}, {len(self.steps)} steps")
        if (self.origin | self.out) % 4 != 0:
            raise SplicedError(Code.INVALID, f"states at {self.origin:#x} and {self.out:#x}")
        for i in range(len(self.steps)):
            try:
                self.check_step(self.steps[i])
            except SplicedError as err:
                raise SplicedError(Code.INVALID, f"step {i}: {err.text}") from err
        k = self.kernel()
        if k == COMPOSE_PLAIN or k == COMPOSE_PACKED_PLAIN:
            if plain_columns(self.dk) == 0:
                raise SplicedError(Code.INVALID, f"dense transitions of {self.dk} key dimensions")
        return

    def check_step(self, s: ComposeStep) -> None:
        if s.before % 4 != 0 or (s.t == 0) != (s.s == 0):
            raise SplicedError(Code.INVALID, f"T at {s.t:#x}, S at {s.s:#x}, state before at {s.before:#x}")
        if s.s == 0:
            return
        t_size, s_size = s.t_dtype.size, s.s_dtype.size
        if t_size == 0 or s_size == 0 or self.transition == Transition.SCALAR and s.t_dtype != DType.F32 or s.t_packed == 0 and s.t % t_size != 0 or s.s_packed == 0 and s.s % s_size != 0:
            raise SplicedError(Code.INVALID, f"T of type {s.t_dtype} at {s.t:#x}, S of type {s.s_dtype} at {s.s:#x}")
        if s.t_packed != 0 and self.transition != Transition.DENSE or not self.fits_part(s.t_packed) or not self.fits_part(s.s_packed):
            raise SplicedError(Code.INVALID, f"transition {self.transition}, packed parts of {s.t_packed} and {s.s_packed} bytes")
        r = s.turn
        if r is not None:
            if self.transition != Transition.SCALAR:
                raise SplicedError(Code.INVALID, f"rotation with transition {self.transition}, only scalar ones commute")
            if r.dims < 0 or r.dims % 2 != 0 or r.dims > self.dk or len(r.cos) != r.dims // 2 or len(r.sin) != r.dims // 2:
                raise SplicedError(Code.INVALID, f"rotation of {r.dims} of {self.dk} dimensions with {len(r.cos)} cosines and {len(r.sin)} sines")
        return

    def fits_part(self, n: int) -> bool:
        """Reports whether a packed part of n bytes has room for its header. 0 means that
        there is no packed part, which fits too.
        """
        return n == 0 or n >= packed_header(self.heads) and n <= 4294967295

    def numbers(self) -> int:
        return self.heads * self.dk * self.dv

    def factors(self) -> int:
        """Returns how many numbers the t of a head has."""
        if self.transition == Transition.SCALAR:
            return 1
        elif self.transition == Transition.DIAGONAL:
            return self.dk
        elif self.transition == Transition.DENSE:
            return self.dk * self.dk
        return 0

    def span(self) -> int:
        """Returns the number of consecutive numbers of the state that one factor multiplies."""
        return self.dk * self.dv // min(self.factors(), self.dk * self.dv)

    def writes(self) -> bool:
        """Reports whether the job has any output."""
        if self.out != 0 and (self.out != self.origin or len(self.steps) > 0):
            return True
        return any(s.before != 0 for s in self.steps)

    def kernel(self) -> int:
        if self.transition == Transition.DENSE:
            return self.dense_kernel()
        if self.packed():
            return COMPOSE_PACKED_SINGLE
        _, one = self.pairs()
        if not self.aligned():
            return COMPOSE_SINGLE
        elif self.turns() and one and self.dv % 4 == 0:
            return COMPOSE_TURNED
        elif self.turns():
            return COMPOSE_SINGLE
        elif self.span() % 4 == 0:
            return COMPOSE_ROWS
        elif self.span() == 1 and self.numbers() % 4 == 0 and self.aligned_factors():
            return COMPOSE_NUMBERS
        return COMPOSE_SINGLE

    def packed(self) -> bool:
        """Reports whether some step has packed parts."""
        return any(s.s != 0 and (s.t_packed != 0 or s.s_packed != 0) for s in self.steps)

    def aligned(self) -> bool:
        """Reports whether four consecutive numbers can be read and written at once."""
        states = self.origin | self.out
        for i in range(len(self.steps)):
            s = self.steps[i]
            states |= s.before
            if s.s % max(1, 4 * s.s_dtype.size) != 0:
                return False
        return states % 16 == 0

    def aligned_factors(self) -> bool:
        """Reports whether four consecutive numbers of t can be read at once."""
        return not any(s.t % max(1, 4 * s.t_dtype.size) != 0 for s in self.steps)

    def turns(self) -> bool:
        return any(s.turned() for s in self.steps)

    def pairs(self) -> tuple[Turn, bool]:
        """Returns a rotation with the Dims and Interleaved of the steps' rotations.
        The result one is false if the steps differ in them.
        """
        r = Turn()
        one = False
        for i in range(len(self.steps)):
            if not self.steps[i].turned():
                continue
            next_ = self.steps[i].turn
            if r.dims != 0 and (r.dims != next_.dims or r.interleaved != next_.interleaved):
                return r, False
            r = next_
        return r, True

    def dense_kernel(self) -> int:
        """Returns the kernel for the job's key dimensions. If the states cannot be
        split into strips, it returns the plain kernel.
        """
        plain, first = COMPOSE_PLAIN, COMPOSE_DENSE64
        if self.packed():
            plain, first = COMPOSE_PACKED_PLAIN, COMPOSE_PACKED64
        if not self.in_strips() or self.dk > 192:
            return plain
        elif self.dk > 128:
            return first + 2
        elif self.dk > 64:
            return first + 1
        return first

    def in_strips(self) -> bool:
        """Reports whether the job can be computed in strips. Then all rows of t and s can
        be copied in units of 16 bytes, and states in units of two numbers. Packed parts may be
        at any address, but their rows must have a multiple of 8 numbers.
        """
        states = self.origin | self.out
        for i in range(len(self.steps)):
            s = self.steps[i]
            states |= s.before
            if s.s != 0 and (not whole(s.t, s.t_packed, self.dk, s.t_dtype.size) or not whole(s.s, s.s_packed, self.dv, s.s_dtype.size)):
                return False
        return states % 8 == 0 and self.dv % 2 == 0


@dataclass(slots=True)
class ComposeStep:
    """One step of a ComposeJob, see gpuipc.ComposeStep. Addresses must be
    aligned to elements, except addresses of packed parts.
    """
    t: int = 0
    s: int = 0
    before: int = 0
    t_dtype: DType = DType.NONE
    s_dtype: DType = DType.NONE
    # t_packed and s_packed are the lengths in bytes of the packed parts (kernel.Packed) at t
    # and s. 0 means plain numbers. For a malformed part, no byte after its end is read,
    # and heads are zeros.
    t_packed: int = 0
    s_packed: int = 0
    turn: Turn | None = None

    def turned(self) -> bool:
        return self.s != 0 and self.turn is not None and self.turn.dims > 0


def compose_launches(jobs: Sequence[ComposeJob]) -> Sequence[Launch]:
    """Builds the launches for jobs, such as all layers of a model. All jobs that use
    the same kernel are in one launch, whatever their shapes. Launches do not depend on each
    other.

    Scalar and diagonal states have the bits of gpuipc/kernel. Dense states are close to
    those in float64. Measured as the root of the mean square, the error is 2.7e-7 in the
    emulation after up to 6 steps (the tests allow 1e-6). It is 1.1e-6 after 40 steps whose
    transitions keep the state's size, where plain F32 has 6e-7. An infinity in a dense state
    may become a NaN.

    Packed parts are read in place. Dense results are about as close to float64 of the stored
    numbers: 3e-7 after 3 steps and 2e-6 after 40, where the state is stored to 2^-24 of the
    largest number of its column. Results of other transitions have the bits of
    gpuipc/kernel.

    The fastest jobs have rows of a multiple of 16 bytes (in packed parts: of 8 numbers) at
    addresses aligned to 16, and dense transitions of at most 192 key dimensions. Other jobs
    use simple and slow kernels. So do packed parts without dense transitions.

    compose_launches refuses inconsistent sizes, types or addresses, packed parts of 4 GiB or more, and
    dense transitions with so many key dimensions that a column of the state does not fit
    shared memory (about 10,000).
    """
    groups = [[] for _ in range(COMPOSE_KERNELS)]
    for i in range(len(jobs)):
        j = jobs[i]
        try:
            j.check()
        except SplicedError as err:
            raise SplicedError(Code.INVALID, f"compose, job {i}: {err.text}") from err
        if j.writes():
            k = j.kernel()
            groups[k].append(j)
    launches = []
    for k, group in enumerate(groups):
        for part in chunks(group, MAX_GRID_Y):
            try:
                l = compose_kernel_launch(k, part)
            except SplicedError as err:
                raise SplicedError(Code.INVALID, f"compose: {err.text}") from err
            launches.append(l)
    return launches


def compose_kernel_string(k: int) -> str:
    return ("spliced_compose_rows", "spliced_compose_numbers", "spliced_compose_turned", "spliced_compose_single", "spliced_compose_dense_64", "spliced_compose_dense_128", "spliced_compose_dense_192", "spliced_compose_plain", "spliced_compose_packed_64", "spliced_compose_packed_128", "spliced_compose_packed_192", "spliced_compose_packed_plain", "spliced_compose_packed_single")[k]


def compose_kernel_launch(k: int, jobs: Sequence[ComposeJob]) -> Launch:
    args = arguments()
    threads, shared, columns = STREAM_THREADS, 0, 0
    if k in (COMPOSE_ROWS, COMPOSE_NUMBERS, COMPOSE_TURNED, COMPOSE_SINGLE, COMPOSE_PACKED_SINGLE):
        pass
    elif k in (COMPOSE_PLAIN, COMPOSE_PACKED_PLAIN):
        dk = most_dk(jobs)
        threads, columns = PLAIN_THREADS, plain_columns(dk)
        shared = plain_shared(dk, columns)
        args.u32(columns, 8 * dk * columns, dk, 0)
    else:
        r = compose_kernel_ring(k, jobs)
        threads, columns = 2 * r.columns, r.columns
        shared = r.bytes_()
        args.u32(*r.arguments())
    most = 0
    for j in jobs:
        most = max(most, compose_kernel_blocks(k, j, columns))
    tables = compose_tables(jobs)
    if most > MAX_GRID_X or len(tables) > 1 << 30:
        raise SplicedError(Code.INVALID, f"{most} blocks, {len(tables)} bytes of tables")
    return Launch(name=compose_kernel_string(k), grid=(most, len(jobs), 1), block=(threads, 1, 1), shared=shared, args=args, tables=tables)


def compose_kernel_blocks(k: int, j: ComposeJob, columns: int) -> int:
    """Returns the number of blocks of threads for a job. The parameter columns is the width
    of the strips of kernels that compute in strips.
    """
    if k in (COMPOSE_ROWS, COMPOSE_NUMBERS):
        return stream_blocks(j.numbers() // 4)
    elif k == COMPOSE_TURNED:
        return stream_blocks(j.heads * ((j.dk + 1) // 2) * (j.dv // 4))
    elif k == COMPOSE_SINGLE:
        return stream_blocks(j.numbers())
    elif k == COMPOSE_PACKED_SINGLE:
        return j.heads * stream_blocks(j.dk * j.dv)
    return strips(j, columns)


def compose_kernel_ring(k: int, jobs: Sequence[ComposeJob]) -> Ring:
    """Chooses how many columns the strip of a block has, and how many tiles are in flight.
    Columns of a state do not mix, so strips are independent over all steps. But each strip
    reads t. HBM delivers t once, because strips of a head run at about the same time;
    L2 delivers it once per strip. So ring chooses strips of 64 columns, unless strips of
    32 reduce the load of the busiest multiprocessor by a quarter.

    Example: 32 heads of 128 columns are 128 blocks of 32 columns, which keep 128 of 132
    MULTIPROCESSORS busy; 64 blocks of 64 columns would leave half of them idle. 30 such
    layers are 1,920 blocks of 64 columns with four warps each, three at once on a
    multiprocessor. More than 64 columns do not fit the shared memory of every device
    (MAX_SHARED).
    """
    wide, narrow = compose_kernel_ring_of(k, jobs, 64), compose_kernel_ring_of(k, jobs, 32)
    if wide.bytes_() > MAX_SHARED or 4 * load(jobs, 32) <= 3 * load(jobs, 64):
        return narrow
    return wide


def compose_kernel_ring_of(k: int, jobs: Sequence[ComposeJob], columns: int) -> Ring:
    packed = k >= COMPOSE_PACKED64
    dk = 64 * (1 + k - COMPOSE_DENSE64)
    if packed:
        dk = 64 * (1 + k - COMPOSE_PACKED64)
    r = Ring(columns=columns, slots=3, park=columns // 16 * dk // 32 * 2048)
    t, s = 32 * dk * 2, 32 * columns * 2
    for j in jobs:
        for i in range(len(j.steps)):
            st = j.steps[i]
            t, s = max(t, 32 * dk * st.t_dtype.size), max(s, 32 * columns * st.s_dtype.size)
    r.t_bytes, r.s_bytes = t, s
    if packed:
        r.t_bytes, r.s_bytes = max(r.t_bytes, packed_tile(dk)), max(r.s_bytes, packed_tile(columns))
        r.scales, r.heads = PACKED_SCALES, PACKED_BATCH
        r.room = 2 * r.slot()
        free = SHARED_OF_THREE - (r.heads + r.park)
        if free > r.room:
            r.room = min(4 * r.slot(), free // 128 * 128)
        return r
    if r.bytes_() > SHARED_OF_THREE:
        r.slots = 2
    return r


def whole(at: int, packed: int, numbers: int, size: int) -> bool:
    """Reports whether rows of so many numbers, or packed ones, can be copied in units of 16
    bytes.
    """
    return at % 16 == 0 and (packed != 0 and numbers % 8 == 0 or packed == 0 and numbers * size % 16 == 0)


def stream_blocks(units: int) -> int:
    return (units + STREAM_THREADS - 1) // STREAM_THREADS


def most_dk(jobs: Sequence[ComposeJob]) -> int:
    n = 0
    for j in jobs:
        n = max(n, j.dk)
    return n


def strips(j: ComposeJob, columns: int) -> int:
    """Returns the number of strips of the given columns in all states of the job."""
    return j.heads * ((j.dv + columns - 1) // columns)


def plain_columns(dk: int) -> int:
    """Returns the columns of the widest strip of a state with dk rows for which
    two strips fit into shared memory; 0 if not even one column fits.
    """
    columns = 8
    while columns > 0:
        if dk <= MAX_SHARED and plain_shared(dk, columns) <= MAX_SHARED:
            return columns
        columns //= 2
    return 0


def plain_shared(dk: int, columns: int) -> int:
    """Returns the bytes of two strips of the state and a piece of t, which has 33
    numbers for each row of threads.
    """
    return (8 * dk * columns + PLAIN_THREADS // columns * 33 * 4 + 15) // 16 * 16


@dataclass(slots=True)
class Ring:
    """The layout of shared memory in dense kernels. It begins with slots; each has room
    for a tile of 32 rows of t and a tile of 32 rows of s. The new states of all warps are at
    the end. Kernels for packed parts divide the room of the slots according to the forms
    that they find. There is room for two tiles of any form. Between the slots and the new
    states, these kernels also keep the places of heads.
    """
    columns: int = 0
    t_bytes: int = 0  # bytes of a tile
    s_bytes: int = 0  # bytes of a tile
    scales: int = 0  # bytes of a tile
    slots: int = 0  # number of slots
    room: int = 0  # for packed parts: bytes of all slots together, and of the places of heads
    heads: int = 0  # for packed parts: bytes of all slots together, and of the places of heads
    park: int = 0  # bytes of the new states of all warps

    def slot(self) -> int:
        return self.t_bytes + self.s_bytes + self.scales

    def bytes_(self) -> int:
        return self.behind() + self.heads + self.park

    def behind(self) -> int:
        """Returns the offset of the end of the slots, in bytes."""
        if self.room != 0:
            return self.room
        return self.slots * self.slot()

    def arguments(self) -> Sequence[int]:
        """Returns the values of DenseArgs, or of PackedArgs for packed parts."""
        if self.room == 0:
            return [self.columns, self.t_bytes, self.slot(), self.slots, self.behind(), 0]
        return [self.columns, self.room, self.room, self.room + self.heads]


def load(jobs: Sequence[ComposeJob], columns: int) -> int:
    """Returns the number of columns that the busiest multiprocessor computes."""
    blocks = 0
    for j in jobs:
        blocks += strips(j, columns)
    return (blocks + MULTIPROCESSORS - 1) // MULTIPROCESSORS * columns


def packed_tile(columns: int) -> int:
    """Returns the largest size in bytes of a tile of integers, a multiple of 128;
    see rowsBytes.
    """
    return 32 * (2 * columns + 16) + 128


def compose_tables(jobs: Sequence[ComposeJob]) -> Words:
    """Returns the tables of a launch: first the jobs, then their steps, then
    cosines and sines. compose_job.cu has the structs.
    """
    at = len(jobs) * COMPOSE_JOB_BYTES
    w = Words()
    for j in jobs:
        r, _ = j.pairs()
        w.u64(j.origin, j.out)
        w.u32(at, len(j.steps), j.heads, j.dk, j.dv, j.span())
        w.u32(r.dims, one_if(r.interleaved))
        at += len(j.steps) * COMPOSE_STEP_BYTES
    turns = Angles(at=at, known={})
    for j in jobs:
        for i in range(len(j.steps)):
            turns.step(w, j.steps[i])
    w += turns.words
    return w


@dataclass(slots=True)
class Angles:
    """Collects the cosines and sines that follow the steps. Equal ones are stored once,
    for example if all layers have the same step.
    """
    words: Words = field(default_factory=lambda: Words())
    at: int = 0
    known: dict[bytes, int] = field(default_factory=lambda: {})

    def step(self, w: Words, s: ComposeStep) -> None:
        w.u64(s.t, s.s, s.before)
        if s.s == 0:
            w.u32(0, 0, 0, 0, 0, 0)
            return
        w.u32(s.t_dtype, s.s_dtype)
        if not s.turned():
            w.u32(s.t_packed, 0, 0, s.s_packed)
            return
        w.u32(self.place(s.turn), s.turn.dims, one_if(s.turn.interleaved), s.s_packed)

    def place(self, r: Turn | None) -> int:
        b = Words()
        b.f32(*r.cos)
        b.f32(*r.sin)
        where, ok = self.known.get(bytes(b)), bytes(b) in self.known
        if not ok:
            where = self.at + len(self.words)
            self.known[bytes(b)] = where
            self.words += b
        return where


@dataclass(slots=True)
class BufferJob:
    """A step of decoding for one layer of one request, on device memory.
    It decodes rows with the states and appends them, or flushes rows into the states, or both.
    Tensors are contiguous.

        k  [capacity, key_heads, dk] of dtype           g  F32 [capacity, heads], or [capacity, heads, dk] with per_key
        u  [capacity, heads, dv] of dtype              origin, out  F32 [heads, dk, dv]

    If origin is 0, the states are zero and only rows are read (KVBuffer §3.4). If out is 0, the rows
    of new are appended and the states stay unchanged. Otherwise all rows are added to origin, and the
    result is written to out, which may be origin. k, u and g stay unchanged then, and the caller must
    treat the buffer as empty. If rows branch, a flush uses the last row and its ancestors, such as
    the path of accepted drafts, and drops all other rows.
    """
    heads: int = 0  # value heads
    key_heads: int = 0  # divides heads: consecutive value heads share a key head
    dk: int = 0
    dv: int = 0
    dtype: DType = DType.NONE
    per_key: bool = False
    delta: bool = False  # delta rule: what the state returns for a key is subtracted from its value
    capacity: int = 0  # rows for which there is memory
    pending: int = 0  # rows in the buffer
    k: int = 0
    u: int = 0
    g: int = 0
    origin: int = 0
    out: int = 0
    new: BufferRows = field(default_factory=lambda: BufferRows())
    # parents has one entry for each pending and new row: the row that this row follows, or
    # -1 if this row follows directly on the states. If parents is None, each row follows
    # the previous one.
    parents: Sequence[int] | None = None

    def cut(self, n: int) -> tuple[BufferJob, bool]:
        """Splits a job with more than n new rows. The result has the first n new rows of a. In a
        itself these n rows become pending, and the remaining rows stay new. If a has at most n new
        rows, the result has all of them, more is false and a stays unchanged.
        """
        first = None
        more = False
        part = replace(self, new=replace(self.new))
        first = part
        if self.new.n <= n:
            return first, False
        first.out, first.new.n = 0, n
        if self.parents is not None:
            first.parents = self.parents[:self.pending + n]
        in_, rows = self.new, n
        size = in_.dtype.size
        key, value = rows * (self.key_heads * self.dk) * size, rows * (self.heads * self.dv) * size
        in_.q, in_.k, in_.v, in_.outputs = in_.q + key, in_.k + key, in_.v + value, in_.outputs + value
        in_.g, in_.beta = in_.g + rows * (4 * self.heads * self.decays()), in_.beta + rows * (4 * self.heads)
        if in_.e != 0:
            in_.e += rows * (self.heads * self.dk) * size
        in_.n -= n
        self.pending += n
        return first, True

    def decays(self) -> int:
        """Returns how many numbers the decay of a head has."""
        if self.per_key:
            return self.dk
        return 1

    def check(self) -> None:
        most = 1 << 16
        if self.heads <= 0 or self.heads > most or self.key_heads <= 0 or self.heads % self.key_heads != 0 or self.dk <= 0 or self.dk > most or self.dv <= 0 or self.dv > most or self.heads * self.dv > 1 << 30 or self.heads * self.tiles() > MAX_GRID_X:
            raise SplicedError(Code.INVALID, f"{self.heads} heads of [{self.dk}, {self.dv}], {self.key_heads} of keys")
        if self.capacity < 0 or self.capacity > MAX_BUFFER_ROWS or self.pending < 0 or self.new.n < 0 or self.pending > self.capacity or self.new.n > self.capacity - self.pending:
            raise SplicedError(Code.INVALID, f"{self.pending} and {self.new.n} rows in a buffer of {self.capacity}")
        size = self.dtype.size
        if size == 0 or self.rows() > 0 and (self.k == 0 or self.u == 0 or self.g == 0) or (self.k | self.u) % size != 0 or (self.g | self.origin | self.out) % 4 != 0:
            raise SplicedError(Code.INVALID, f"rows of type {self.dtype} at {self.k:#x}, {self.u:#x}, {self.g:#x}, states at {self.origin:#x} and {self.out:#x}")
        self.new.check()
        shared = self.shared(BUFFER_KERNELS[self.kernel()])
        if shared > MAX_SHARED:
            raise SplicedError(Code.INVALID, f"{self.dk} key dimensions take {shared} bytes of shared memory, most {MAX_SHARED}")
        self.check_parents()
        return

    def rows(self) -> int:
        return self.pending + self.new.n

    def check_parents(self) -> None:
        if self.parents is None:
            return
        if len(self.parents) != self.rows():
            raise SplicedError(Code.INVALID, f"{len(self.parents)} parents of {self.rows()} rows")
        for i, p in enumerate(self.parents):
            if p < -1 or p >= i:
                raise SplicedError(Code.INVALID, f"row {i} behind row {p}")
        return

    def kernel(self) -> int:
        """Returns the index in BUFFER_KERNELS of the kernel that handles the next part
        of the job: the smallest kernel with room for all new rows, else the largest kernel.
        """
        for i, m in enumerate(BUFFER_KERNELS):
            if self.new.n <= m:
                return i
        return len(BUFFER_KERNELS) - 1

    def tiles(self) -> int:
        """Returns the number of blocks of threads that share a head."""
        return (self.dv - 1) // BUFFER_COLUMNS + 1

    def shared(self, m: int) -> int:
        """Returns the bytes of shared memory that buffering::layout takes. m is
        the largest number of new rows that the kernel handles.
        """
        channels = (self.dk + 3) // 4 * 4
        n = 2 * m * channels + channels + BUFFER_GROUPS * channels + BUFFER_GROUPS * BUFFER_COLUMNS + 2 * m * BUFFER_GROUPS + 4 * 2 * m * BUFFER_COLUMNS + m * BUFFER_COLUMNS + 2 * m * m + m
        if self.origin != 0 or self.out != 0:
            n += self.dk * BUFFER_COLUMNS
        return 4 * n

    def family(self, tables: Words) -> tuple[int, int, int]:
        """Describes branching rows by three things that it appends to tables. The
        first is a list of pending ancestors for the new rows; rows with the same ancestors share
        a list. The second is the list of the rows of a flush, if there is one. The third is a
        mask for each new row, which marks its ancestors among the new rows. For rows that do not
        branch, it appends nothing.
        """
        passes = 0
        count = 0
        ancestors = 0
        if self.chain():
            return 0, 0, 0
        masks = Words()
        members = []
        paths = []
        for i in range(self.new.n):
            path, mask = self.ancestors(self.pending + i)
            masks.u32(mask)
            at = 0
            while at < len(paths) and not paths[at] == path:
                at += 1
            if at == len(paths):
                paths, members = [*paths, path], [*members, 0]
            members[at] |= 1 << i
        count = len(paths)
        if self.out != 0:
            paths, members = [*paths, self.lineage(self.rows() - 1)], [*members, 0]
        rows = Words()
        for i, path in enumerate(paths):
            at = tables.align(TABLE_ALIGN)
            tables.u32(*path)
            rows.u32(members[i], len(path), at, 0)
        ancestors = tables.align(TABLE_ALIGN)
        tables += masks
        passes = tables.align(TABLE_ALIGN)
        tables += rows
        return passes, count, ancestors

    def lineage(self, row: int) -> Sequence[int]:
        """Returns a row and all its ancestors, ascending."""
        path = []
        p = row
        while p >= 0:
            path.append(p & 0xFFFFFFFF)
            p = self.parents[p]
        path.reverse()
        return path

    def chain(self) -> bool:
        """Reports whether each row follows the previous one."""
        if self.parents is None:
            return True
        for i, p in enumerate(self.parents):
            if p != i - 1:
                return False
        return True

    def ancestors(self, row: int) -> tuple[Sequence[int], int]:
        """Returns the pending ancestors of a row, ascending, and a mask of its ancestors among
        the new rows.
        """
        path = []
        mask = 0
        for p in self.lineage(self.parents[row]):
            if p >= self.pending:
                mask |= 1 << p - self.pending
            else:
                path.append(p)
        return path, mask


@dataclass(slots=True)
class BufferRows:
    """Has n new rows of an engine's projections. q and k are [n, key_heads, dk], and v and
    outputs are [n, heads, dv], all of dtype. g is as in BufferJob, and beta [n, heads] has the write
    strengths; both are F32. To read the states, a delta rule uses e [n, heads, dk] of dtype
    instead of k; 0 means k.
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

    def check(self) -> None:
        if self.n == 0:
            return
        size = self.dtype.size
        if size == 0 or self.q == 0 or self.k == 0 or self.v == 0 or self.g == 0 or self.beta == 0 or self.outputs == 0 or (self.q | self.k | self.v | self.e | self.outputs) % size != 0 or (self.g | self.beta) % 4 != 0:
            raise SplicedError(Code.INVALID, f"{self.n} new rows of type {self.dtype} at {self.q:#x}, {self.k:#x}, {self.v:#x}, {self.g:#x}, {self.beta:#x}, {self.e:#x} to {self.outputs:#x}")
        return

BUFFER_KERNELS = [1, 4, 8]


def buffer_launches(jobs: Sequence[BufferJob]) -> Sequence[Launch]:
    """Builds launches of spliced_buffer_1, _4 and _8. Usually that is one launch for each kernel
    that some job needs. A job with more than eight new rows needs further launches, which treat the
    rows of earlier launches as pending. More jobs than the height of a grid also need further
    launches. Launches must run in order. Jobs may differ in everything and run in any order, so no
    job may write what another reads or writes.

    Sums are added in another order than on the CPU. Compared with float64, outputs with F32 rows are
    correct to 1e-5 of the largest output. F16 and BF16 rows add their own rounding.
    """
    waves = []
    for i in range(len(jobs)):
        try:
            jobs[i].check()
        except SplicedError as err:
            raise SplicedError(Code.INVALID, f"buffer, job {i}: {err.text}") from err
        a = replace(jobs[i], new=replace(jobs[i].new))
        wave = 0
        while True:
            part, more = a.cut(BUFFER_KERNELS[len(BUFFER_KERNELS) - 1])
            if wave == len(waves):
                waves.append([[] for _ in range(len(BUFFER_KERNELS))])
            k = part.kernel()
            if part.new.n > 0 or part.out != 0:
                waves[wave][k].append(part)
            if not more:
                break
            wave += 1
    launches = []
    for wave in waves:
        for i, group in enumerate(wave):
            for part in chunks(group, MAX_GRID_Y):
                launches.append(buffer_launch(BUFFER_KERNELS[i], part))
    return launches


def buffer_launch(m: int, jobs: Sequence[BufferJob]) -> Launch:
    tables = Words(BUFFER_ROW_BYTES * len(jobs))
    blocks, shared = 0, 0
    for i, a in enumerate(jobs):
        blocks, shared = max(blocks, a.heads * a.tiles()), max(shared, a.shared(m))
        passes, count, ancestors = a.family(tables)
        in_, size = a.new, a.dtype.size
        row = Words()
        row.u64(a.origin, a.out, a.k, a.u, a.g, in_.q, in_.k, in_.v, in_.g, in_.beta, in_.e, in_.outputs, passes, ancestors)
        row.u32(a.heads, a.key_heads, a.dk, a.dv, a.dtype, in_.dtype, a.pending, in_.n, count, one_if(a.per_key), one_if(a.delta), one_if(a.dv % 4 == 0 and (a.origin | a.out) % 16 == 0), one_if(a.dv % 4 == 0 and a.u % (4 * size) == 0), 0)
        tables.put(BUFFER_ROW_BYTES * i, row)
    return Launch(name=f"spliced_buffer_{m}", grid=(blocks, len(jobs), 1), block=(BUFFER_THREADS, 1, 1), shared=shared, args=arguments(), tables=tables)


@dataclass(slots=True)
class AttendJob:
    """The attention of one layer for one request, on device memory. q has
    consecutive query rows, [rows, heads, key_dim], already rotated to their positions. They
    attend to the key and value rows of all runs. The result is out [rows, heads, value_dim].
    q and out are contiguous and of q_dtype. Consecutive heads share a key head.
    """
    rows: int = 0
    heads: int = 0
    key_heads: int = 0  # divides heads
    key_dim: int = 0
    value_dim: int = 0
    begin: int = 0  # position of the first query row
    dtype: DType = DType.NONE  # of keys and values
    q_dtype: DType = DType.NONE
    scale: float = 0.0  # factor of the scores, such as 1/sqrt(key_dim)
    q: int = 0
    out: int = 0
    runs: Sequence[AttendRun] = ()

    def seen(self, r: AttendRun) -> int:
        """Returns the number of rows of a run that some query row sees."""
        return max(0, min(r.rows, self.begin + self.rows - r.begin))

    def blocks(self) -> int:
        """Returns the number of blocks of threads that share the queries of a key head."""
        return (self.rows * self.heads // self.key_heads + ATTEND_QUERIES - 1) // ATTEND_QUERIES

    def check(self) -> None:
        most = 1 << 20
        if self.rows < 0 or self.rows > most or self.begin < 0 or self.begin > MAX_ATTEND_ROWS or self.heads <= 0 or self.heads > most or self.key_heads <= 0 or self.key_heads > MAX_GRID_Y or self.heads % self.key_heads != 0 or self.rows * self.heads // self.key_heads > ATTEND_MOST or self.key_dim <= 0 or self.key_dim > most or self.value_dim <= 0 or self.value_dim > ATTEND_THREADS * 8:
            raise SplicedError(Code.INVALID, f"{self.rows} rows of {self.heads} heads [{self.key_dim}, {self.value_dim}], {self.key_heads} of keys")
        size = self.q_dtype.size
        if size == 0 or self.dtype.size == 0 or self.rows > 0 and (self.q == 0 or self.out == 0) or (self.q | self.out) % size != 0 or self.scale - self.scale != 0:
            raise SplicedError(Code.INVALID, f"queries of type {self.q_dtype} at {self.q:#x} to {self.out:#x}, keys of type {self.dtype}, scale {self.scale}")
        n = self.shared()
        if n > MAX_SHARED:
            raise SplicedError(Code.INVALID, f"[{self.key_dim}, {self.value_dim}] takes {n} bytes of shared memory, most {MAX_SHARED}")
        for i in range(len(self.runs)):
            try:
                self.check_run(self.runs[i])
            except SplicedError as err:
                raise SplicedError(Code.INVALID, f"run {i}: {err.text}") from err
        return

    def check_run(self, r: AttendRun) -> None:
        if r.rows < 0 or r.rows > MAX_ATTEND_ROWS or r.begin < 0 or r.begin > MAX_ATTEND_ROWS:
            raise SplicedError(Code.INVALID, f"{r.rows} rows at position {r.begin}")
        t = r.turn
        if t is not None and (t.dims < 0 or t.dims % 2 != 0 or t.dims > self.key_dim or len(t.cos) != t.dims // 2 or len(t.sin) != t.dims // 2):
            raise SplicedError(Code.INVALID, f"rotation of {t.dims} of {self.key_dim} dimensions")
        if r.rows == 0:
            return
        if r.block_rows == 0 and (len(r.blocks) > 0 or r.first_row != 0):
            raise SplicedError(Code.INVALID, "rows without blocks have a block table")
        elif r.block_rows < 0 or r.block_rows > 1 << 30 or r.first_row < 0 or r.first_row > 1 << 30:
            raise SplicedError(Code.INVALID, f"blocks of {r.block_rows} rows, first {r.first_row}")
        elif r.block_rows > 0 and (r.first_row + r.rows - 1) // r.block_rows >= len(r.blocks):
            raise SplicedError(Code.INVALID, f"{r.rows} rows from row {r.first_row} on end behind a table of {len(r.blocks)} blocks of {r.block_rows}")
        for x in [r.keys, r.values]:
            if x.base == 0 or x.block_stride < 0 or x.row_stride < 0 or x.head_stride < 0 or x.places() % self.dtype.size != 0:
                raise SplicedError(Code.INVALID, f"rows at {x.base:#x}, strides {x.block_stride}, {x.row_stride} and {x.head_stride}, of type {self.dtype}")
            end = Addresses(at=x.base)
            end.add(self.key_heads, x.head_stride)
            if r.block_rows > 0:
                end.add(max(r.used()), x.block_stride)
                end.add(r.block_rows, x.row_stride)
            else:
                end.add(r.rows, x.row_stride)
            if end.over:
                raise SplicedError(Code.INVALID, "rows reach past the last address")
        return

    def entry(self) -> str:
        """Returns the name of the kernel for the job. The fast kernels, one for
        each type of keys, need rows that consist of complete pieces of eight numbers and are
        aligned to 16 bytes. All other jobs use spliced_attend_any.
        """
        all_ = 0
        for i in range(len(self.runs)):
            all_ |= self.runs[i].keys.places() | self.runs[i].values.places()
        if self.key_dim % 8 != 0 or self.value_dim % 8 != 0 or all_ % 16 != 0:
            return "spliced_attend_any"
        if self.dtype == DType.F16:
            return "spliced_attend_f16"
        elif self.dtype == DType.BF16:
            return "spliced_attend_bf16"
        return "spliced_attend_f32"

    def shared(self) -> int:
        """Returns the bytes of shared memory that attending::layout takes."""
        return 32 * ATTEND_KEYS + 4 * ATTEND_QUERIES * ((self.key_dim + 63) // 64 * 64 + ATTEND_KEYS + 1 + self.value_dim)


@dataclass(slots=True)
class AttendRun:
    """A run of rows of keys and values, read in place. All strides are in bytes.
    If block_rows is 0, rows follow each other at row_stride. Otherwise the rows are in the
    blocks of a block table, and the run begins at row first_row of that table, as in
    RotateTarget. keys and values share the table.
    """
    rows: int = 0
    begin: int = 0  # position of the first row; a query row sees rows up to its own position
    keys: AttendRows = field(default_factory=lambda: AttendRows())
    values: AttendRows = field(default_factory=lambda: AttendRows())
    blocks: Sequence[int] = ()
    block_rows: int = 0
    first_row: int = 0
    # turn is the rotation that the keys lack. If the keys were stored as if the run began
    # at position 0, but the run begins at position p here, turn is the rotation by p
    # positions (MEPIC §4). The kernel rotates the queries by the inverse. None means that
    # the keys are final.
    turn: Turn | None = None

    def used(self) -> Sequence[int]:
        """Returns the entries of the block table whose blocks have the rows."""
        if self.block_rows == 0 or self.rows == 0:
            return []
        return self.blocks[self.first_row // self.block_rows:(self.first_row + self.rows - 1) // self.block_rows + 1]

    def row(self, t: Tables) -> Words:
        """Returns the run in the form of attending::Run. It appends the run's data to the tables."""
        w = Words()
        k, v = self.keys, self.values
        w.u64(k.base, v.base, k.block_stride, k.row_stride, k.head_stride, v.block_stride, v.row_stride, v.head_stride)
        w.u64(t.blocks_of(self.used()), t.turns_of(self.turn, None, 0))
        first, half, interleaved = self.first_row, 0, False
        if self.block_rows > 0:
            first %= self.block_rows
        if self.turn is not None:
            half, interleaved = self.turn.dims // 2, self.turn.interleaved
        w.u32(self.block_rows, first, half, one_if(interleaved))
        return w


@dataclass(slots=True)
class AttendRows:
    """The place of keys or values. base is the address of block 0. If
    AttendRun.block_rows is 0, base is the address of row 0.
    """
    base: int = 0
    block_stride: int = 0
    row_stride: int = 0
    head_stride: int = 0

    def places(self) -> int:
        """Returns the bitwise or of all values that determine the alignment."""
        return self.base | self.block_stride | self.row_stride | self.head_stride


def attend_launches(jobs: Sequence[AttendJob], scratch: int) -> Sequence[Launch]:
    """Builds launches of spliced_attend_*, and of spliced_attend_join, which must run
    after them. The parameter scratch is the address of attend_scratch(jobs) bytes for
    intermediate results, aligned to 16. Jobs may differ in everything. Several jobs may read
    the same runs.

    Compared with float64, results with F32 keys and values are correct to 1e-5 of the
    largest value. With F16 and BF16 they are correct up to the rounding of the output. A
    query that sees no row gets zeros.
    """
    plan = plan_attend(jobs)
    if plan.scratch > 0 and (scratch == 0 or scratch % 16 != 0):
        raise SplicedError(Code.INVALID, f"attend: scratch at {scratch:#x}")
    launches = []
    for entry in ATTEND_KERNELS:
        launches += plan.launches(entry, scratch)
    for part in chunks(plan.jobs, MAX_GRID_Y):
        launches.append(attend_join(part, scratch))
    return launches


def attend_scratch(jobs: Sequence[AttendJob]) -> int:
    """Returns the bytes of working memory that attend_launches of these jobs needs."""
    plan = plan_attend(jobs)
    return plan.scratch

ATTEND_KERNELS = ["spliced_attend_f32", "spliced_attend_f16", "spliced_attend_bf16", "spliced_attend_any"]


@dataclass(slots=True)
class AttendPlan:
    """Assigns parts of jobs to blocks of threads."""
    jobs: Sequence[PlannedAttend] = field(default_factory=lambda: [])
    scratch: int = 0

    def add(self, a: AttendJob, rows: int) -> None:
        """Cuts the runs of a job into items of the given number of rows."""
        j = PlannedAttend(attend_job=a, entry=a.entry())
        for i in range(len(a.runs)):
            n = a.seen(a.runs[i])
            first = 0
            while first < n:
                j.items.append(AttendItem(i, first, min(rows, n - first)))
                first += rows
        n = len(j.items) * (a.rows * a.heads)
        j.sums = self.scratch
        j.scales = j.sums + (4 * n * a.value_dim + 15) // 16 * 16
        self.scratch = j.scales + (8 * n + 15) // 16 * 16
        self.jobs.append(j)

    def launches(self, entry: str, scratch: int) -> Sequence[Launch]:
        """Returns the launches of one kernel."""
        group = []
        launches = []
        items = 0
        for j in self.jobs:
            if j.entry != entry or len(j.items) == 0:
                continue
            if items > 0 and items + len(j.items) > MAX_GRID_X:
                launches.append(attend_launch(entry, group, scratch))
                group, items = [], 0
            group, items = [*group, j], items + len(j.items)
        if items > 0:
            launches.append(attend_launch(entry, group, scratch))
        return launches


@dataclass(slots=True)
class PlannedAttend:
    attend_job: AttendJob = None
    entry: str = ""
    items: Sequence[AttendItem] = field(default_factory=lambda: [])
    sums: int = 0  # offsets of its results in the scratch memory
    scales: int = 0  # offsets of its results in the scratch memory

    def row(self, first_item: int, scratch: int) -> Words:
        """Returns the job in the form of attending::Job."""
        w = Words()
        w.u64(self.attend_job.q, self.attend_job.out, scratch + self.sums, scratch + self.scales)
        w.u32(self.attend_job.rows, self.attend_job.heads, self.attend_job.key_heads, self.attend_job.key_dim, self.attend_job.value_dim, self.attend_job.dtype, self.attend_job.q_dtype, first_item, len(self.items))
        w.f32(single(single(self.attend_job.scale) * 1.4426950408889634))
        return w


@dataclass(slots=True)
class AttendItem:
    """A part of a run: count rows from row first on."""
    run: int = 0
    first: int = 0
    count: int = 0


def plan_attend(jobs: Sequence[AttendJob]) -> AttendPlan:
    total, work = 0, 0
    for i in range(len(jobs)):
        try:
            jobs[i].check()
        except SplicedError as err:
            raise SplicedError(Code.INVALID, f"attend, job {i}: {err.text}") from err
        for r in range(len(jobs[i].runs)):
            n = jobs[i].seen(jobs[i].runs[r]) * jobs[i].key_heads
            total += n
            if total > MAX_ATTEND_ROWS:
                raise SplicedError(Code.INVALID, f"attend: more than {MAX_ATTEND_ROWS} rows")
            work += n * jobs[i].blocks()
    rows = max(ATTEND_LEAST, (work // ATTEND_ITEMS + ATTEND_KEYS - 1) // ATTEND_KEYS * ATTEND_KEYS)
    plan = AttendPlan()
    for i in range(len(jobs)):
        if jobs[i].rows > 0:
            plan.add(jobs[i], rows)
    return plan


def attend_launch(entry: str, jobs: Sequence[PlannedAttend], scratch: int) -> Launch:
    t = Tables()
    items = Words()
    key_heads, blocks, shared, runs, first = 0, 0, 0, 0, 0
    for i in range(len(jobs)):
        j = jobs[i]
        key_heads, blocks, shared = max(key_heads, j.attend_job.key_heads), max(blocks, j.attend_job.blocks()), max(shared, j.attend_job.shared())
        t.words += j.row(first, scratch)
        for x in j.items:
            items.u32(i, runs + x.run, x.first, x.count, j.attend_job.begin + 1 - j.attend_job.runs[x.run].begin & 0xFFFFFFFF, 0)
        runs, first = runs + len(j.attend_job.runs), first + len(j.items)
    t.words.align(TABLE_ALIGN)
    runs_at = len(t.words)
    items_at = runs_at + runs * ATTEND_RUN_BYTES
    t.words += Words(runs * ATTEND_RUN_BYTES)
    t.words += items
    at = runs_at
    for i in range(len(jobs)):
        for r in range(len(jobs[i].attend_job.runs)):
            t.words.put(at, jobs[i].attend_job.runs[r].row(t))
            at += ATTEND_RUN_BYTES
    args = arguments()
    args.u64(runs_at, items_at)
    return Launch(name=entry, grid=(first, key_heads, blocks), block=(ATTEND_THREADS, 1, 1), shared=shared, args=args, tables=t.words)


def attend_join(jobs: Sequence[PlannedAttend], scratch: int) -> Launch:
    rows = Words()
    blocks = 0
    for i in range(len(jobs)):
        blocks = max(blocks, jobs[i].attend_job.rows * jobs[i].attend_job.heads)
        rows += jobs[i].row(0, scratch)
    args = arguments()
    args.u64(0, 0)
    return Launch(name="spliced_attend_join", grid=(blocks, len(jobs), 1), block=(ATTEND_THREADS, 1, 1), args=args, tables=rows)
