"""Attention over rows in place on a GPU, by the daemon's kernels on the engine's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spliced_connector.client import DeviceMemory
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import (
    ATTEND_LEAST,
    AttendJob,
    AttendRows,
    AttendRun,
    Stream,
    attend_launches,
    attend_scratch,
    turn_by,
)
from spliced_connector.model import Kind, Rope
from spliced_connector.walk import (
    TORCH_TYPES,
    Architecture,
    GoneError,
    Place,
    RowsAt,
    Stretch,
)

_TYPES = {dtype: named for named, dtype in TORCH_TYPES.items()}

ROWS = 256
"""Maximum number of query rows of a job."""

SCRATCH = 64 << 20
"""Maximum bytes for the sums of one launch; further jobs go into later launches."""

SEGMENTS = 32
"""Maximum number of segments that are read in place; if there are more, rows are copied. Each
stretch of computed rows is a job over all rows before it. So the host's time for the launches grows
with the square of the number of segments (23 ms per layer for this maximum)."""


class Reader:
    """The `walk.Reader` of rows in device memory. Raises `GoneError` if they cannot be read."""

    def __init__(
        self, memory: DeviceMemory, stream: Callable[[], Stream], settle: Callable[[], None]
    ) -> None:
        """settle: called after work is queued, as `Lent.settle`. Raises `SplicedError` if the
        memory is gone."""
        self._memory = memory
        self._keep = memory.keep()  # keeps the kernels as well, which also read copied rows
        self._stream = stream
        self._settle = settle
        self.last: Stream | None = None
        """The stream on which rows were last read; None: they were not read yet."""

    def attend(
        self,
        q: Tensor,
        stretches: Sequence[Stretch],
        rows: Sequence[RowsAt],
        rope: Rope,
        scale: float,
    ) -> Tensor:
        """See `walk.Reader`. Queries of a stretch see the rows before it, and its own rows."""
        q = q.contiguous()
        out = q.new_empty((*q.shape[:2], rows[0].v.shape[-1]))
        try:
            runs = [_run(one, rope) for one in rows if one.place.rows]
            jobs, at = [], 0
            for begin, n in _pieces(stretches, _most(q, out, runs)):
                seen = [run for run in runs if run.begin < begin + n]
                jobs.append(_job(q[at : at + n], out[at : at + n], begin, rows[0], seen, scale))
                at += n
            for some in _launches(jobs):
                self._launch(some, q.device)
        except (SplicedError, torch.OutOfMemoryError) as err:
            raise GoneError(f"rows on the GPU: {err}") from err
        return out

    def _launch(self, jobs: Sequence[AttendJob], device: torch.device) -> None:
        scratch = torch.empty(attend_scratch(jobs), dtype=torch.uint8, device=device)
        self.last = self._stream()
        self._memory.kernels.launch(self.last, attend_launches(jobs, scratch.data_ptr()))
        self._settle()


def _most(q: Tensor, out: Tensor, runs: Sequence[AttendRun]) -> int:
    """Returns the most query rows of a job that needs at most SCRATCH bytes."""
    return max(1, min(ROWS, SCRATCH // _sums(1, q.shape[1], out.shape[2], runs)))


def _sums(rows: int, heads: int, value_dim: int, runs: Sequence[AttendRun]) -> int:
    """Returns an upper bound of the scratch bytes of a job."""
    items = sum(-(-run.rows // ATTEND_LEAST) for run in runs)
    return max(1, items) * (rows * heads * 4 * (value_dim + 2) + 32)


def _pieces(stretches: Sequence[Stretch], most: int) -> Iterator[Stretch]:
    for begin, n in stretches:
        for lo in range(0, n, most):
            yield begin + lo, min(most, n - lo)


def _launches(jobs: Sequence[AttendJob]) -> Iterator[list[AttendJob]]:
    some: list[AttendJob] = []
    taken = 0
    for job in jobs:
        needs = _sums(job.rows, job.heads, job.value_dim, job.runs)
        if some and taken + needs > SCRATCH:
            yield some
            some, taken = [], 0
        some.append(job)
        taken += needs
    if some:
        yield some


def unreadable(arch: Architecture) -> str:
    """Returns why the kernels cannot attend in a model's layers; empty if they can."""
    if arch.dtype not in _TYPES:
        return f"rows are {arch.dtype}"
    for i, described in enumerate(arch.identity.layers):
        a = described.attention
        if described.kind != Kind.FULL or a.window:
            continue
        k, v = (torch.empty((1, a.kv_heads, d), dtype=arch.dtype) for d in (a.key_dim, a.value_dim))
        one = RowsAt(Place(0, 1, 0), k, v)
        try:
            attend_scratch([_job(k, v, 0, one, [], 1.0)])
        except SplicedError as err:
            return f"layer {i}: {err}"
    return ""


def _job(
    q: Tensor, out: Tensor, begin: int, like: RowsAt, runs: Sequence[AttendRun], scale: float
) -> AttendJob:
    n, heads, key_dim = q.shape
    key_heads, value_dim = like.v.shape[1:]
    types = _TYPES[like.k.dtype], _TYPES[q.dtype]
    sizes = n, heads, key_heads, key_dim, value_dim
    return AttendJob(*sizes, begin, *types, scale, q.data_ptr(), out.data_ptr(), runs)


def _run(one: RowsAt, rope: Rope) -> AttendRun:
    turn, by = None, one.place.origin
    if rope.dims and by:
        turn = turn_by(by, rope.dims, rope.interleaved, rope.frequencies)
    where = _rows(one.k), _rows(one.v)
    return AttendRun(one.place.rows, one.place.begin, *where, turn=turn)


def _rows(x: Tensor) -> AttendRows:
    size = x.element_size()
    return AttendRows(x.data_ptr(), 0, x.stride(0) * size, x.stride(1) * size)
