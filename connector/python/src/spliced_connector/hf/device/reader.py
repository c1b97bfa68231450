"""Attention over rows where they lie on a GPU, by the daemon's kernels on the engine's stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from spliced_connector.client import DeviceMemory
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import (
    AttendJob,
    AttendRows,
    AttendRun,
    Stream,
    Turn,
    attend_launches,
    attend_scratch,
    turn_by,
)
from spliced_connector.hf.paged import GoneError
from spliced_connector.model import Kind, Rope
from spliced_connector.walk import TORCH_TYPES, Architecture, Lying, Place, Stretch
from spliced_connector.walk.families import inverse_frequencies

_TYPES = {dtype: named for named, dtype in TORCH_TYPES.items()}


class Reader:
    """As `walk.Reader`, of rows in device memory. Raises `GoneError` when they cannot be read."""

    def __init__(
        self, memory: DeviceMemory, stream: Callable[[], Stream], settle: Callable[[], None]
    ) -> None:
        """settle: called behind what is queued."""
        self._memory = memory
        self._stream = stream
        self._settle = settle

    def attend(
        self,
        q: Tensor,
        stretches: Sequence[Stretch],
        rows: Sequence[Lying],
        rope: Rope,
        scale: float,
    ) -> Tensor:
        """One launch for all stretches, each of which sees what lies before its own rows."""
        q = q.contiguous()
        out = q.new_empty((*q.shape[:2], rows[0].v.shape[-1]))
        runs = [_run(one, rope) for one in rows if one.place.rows]
        jobs, at = [], 0
        for begin, n in stretches:
            jobs.append(_job(q[at : at + n], out[at : at + n], begin, rows[0], runs, scale))
            at += n
        scratch = torch.empty(attend_scratch(jobs), dtype=torch.uint8, device=q.device)
        try:
            launches = attend_launches(jobs, scratch.data_ptr())
            self._memory.kernels.launch(self._stream(), launches)
            self._settle()
        except SplicedError as err:
            raise GoneError(f"rows on the GPU: {err}") from err
        return out


def unreadable(arch: Architecture) -> str:
    """Why the kernels cannot attend in a model's layers; empty when they can."""
    if arch.dtype not in _TYPES:
        return f"rows are {arch.dtype}"
    for i, described in enumerate(arch.identity.layers):
        a = described.attention
        if described.kind != Kind.FULL or a.window:
            continue
        k, v = (torch.empty((1, a.kv_heads, d), dtype=arch.dtype) for d in (a.key_dim, a.value_dim))
        one = Lying(Place(0, 1, 0), k, v)
        try:
            attend_scratch([_job(k, v, 0, one, [], 1.0)])
        except SplicedError as err:
            return f"layer {i}: {err}"
    return ""


def _job(
    q: Tensor, out: Tensor, begin: int, like: Lying, runs: Sequence[AttendRun], scale: float
) -> AttendJob:
    n, heads, key_dim = q.shape
    key_heads, value_dim = like.v.shape[1:]
    types = _TYPES[like.k.dtype], _TYPES[q.dtype]
    sizes = n, heads, key_heads, key_dim, value_dim
    return AttendJob(*sizes, begin, *types, scale, q.data_ptr(), out.data_ptr(), runs)


def _run(one: Lying, rope: Rope) -> AttendRun:
    turn = _turn(rope, one.place.origin) if rope.dims and one.place.origin else None
    where = _rows(one.k), _rows(one.v)
    return AttendRun(one.place.rows, one.place.begin, *where, turn=turn)


def _rows(x: Tensor) -> AttendRows:
    size = x.element_size()
    return AttendRows(x.data_ptr(), 0, x.stride(0) * size, x.stride(1) * size)


@lru_cache(maxsize=1024)
def _turn(rope: Rope, distance: int) -> Turn:
    return turn_by(distance, rope.dims, rope.interleaved, inverse_frequencies(rope))
