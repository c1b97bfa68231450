"""Keys and values that attention reads in place: rows of segments in the cache's memory, and a
request's own rows.

Any number of requests can read a segment's rows at once, each at another position. Queries are
rotated back by the segment's position (`softmax.attend_runs`), so that no row is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk import families
from spliced_connector.walk.rows import ranges
from spliced_connector.walk.softmax import Run, Turns, attend_runs

GRAIN = 8
"""Memory for a request's own rows is allocated in multiples of this number of rows."""

QUERIES = 256
"""Maximum number of query rows that attend at once. It bounds the memory for scores."""


class GoneError(RuntimeError):
    """Leased rows that a cache reads are no longer valid: recompute the prompt."""


Stretch = tuple[int, int]
"""Consecutive rows: the position of the first row, and the number of rows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request reads a segment's rows: at positions [begin, begin + rows). The segment's
    stored keys would need a rotation by `origin` tokens to be at these positions."""

    begin: int
    rows: int
    origin: int


@dataclass(frozen=True, slots=True)
class RowsAt:
    """Rows of one layer in place: keys [rows, KV, dk] and values [rows, KV, dv]."""

    place: Place
    k: Tensor
    v: Tensor


class Reader(Protocol):
    """Computes attention over rows in place without torch's operations, such as by a kernel."""

    def attend(
        self,
        q: Tensor,
        stretches: Sequence[Stretch],
        rows: Sequence[RowsAt],
        rope: Rope,
        scale: float,
    ) -> Tensor:
        """Returns the result of `PagedRows.attend`, for the given rows.

        rope is the rotation of the stored keys. Raises `GoneError` if rows are no longer valid."""
        ...


class Pages:
    """The places of one request's segments. The `PagedRows` of all its layers share them."""

    def __init__(self, device: torch.device, reader: Reader | None = None) -> None:
        self.device = device
        self.reader = reader
        self.places: list[Place] = []
        self._turns: dict[Rope, Turns | None] = {}
        self._shared = torch.empty(0, dtype=torch.int64, device=device)

    def add(self, places: Sequence[Place]) -> None:
        self.places += places
        self._turns.clear()
        spans = [torch.arange(p.begin, p.begin + p.rows, device=self.device) for p in self.places]
        if spans:
            self._shared = torch.cat(spans)

    @property
    def shared(self) -> Tensor:
        """Returns the positions of all rows of segments, in the order of the places."""
        return self._shared

    def turns(self, rope: Rope) -> Turns | None:
        """Returns the rotations of queries for each place; None if the rope rotates nothing."""
        if rope not in self._turns:
            self._turns[rope] = Turns.back(rope, [p.origin for p in self.places], self.device)
        return self._turns[rope]


class PagedRows:
    """The rows of one attention layer: keys [n, KV, dk] and values [n, KV, dv].

    The request's own rows are in the order of their positions. `put` at a position replaces all
    own rows from that position on.
    """

    def __init__(self, pages: Pages, rope: Rope, k: Tensor, v: Tensor) -> None:
        """k and v: the rows of the positions before any segment, which are copied."""
        self.pages = pages
        self.rope = rope
        self._k, self._v = _room(k, len(k)), _room(v, len(v))
        self._own: list[Stretch] = [(0, len(k))] if len(k) else []
        self._segments: list[tuple[Tensor, Tensor]] = []
        self._runs: list[Run] = []

    @property
    def own_bytes(self) -> int:
        """Returns the bytes allocated for the request's own rows."""
        return int(self._k.nbytes + self._v.nbytes)

    @property
    def shared_bytes(self) -> int:
        """Returns the bytes read of the segments' rows."""
        return sum(x.nbytes for x in self.segments())

    @property
    def positions(self) -> Tensor:
        """Returns the positions of the own rows."""
        return _positions(self._own, self._k.device)

    def segments(self) -> list[Tensor]:
        """Returns the keys and values that are read in place."""
        return [x for pair in self._segments for x in pair]

    def add(self, segments: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Adds the keys and values of segments, one pair for each place that was added to the
        pages. They are not copied."""
        self._segments += segments
        self._look()

    def fork(self) -> PagedRows:
        """Returns the same rows for another request, which continues after them. Own rows are
        copied, the segments' rows are shared."""
        out = PagedRows.__new__(PagedRows)
        out.pages, out.rope, out._own = self.pages, self.rope, list(self._own)
        out._k, out._v = self._k.clone(), self._v.clone()
        out._segments = list(self._segments)
        out._look()
        return out

    def copy(self) -> None:
        """Replaces the segments' rows by copies, so that the cache's memory is not read again."""
        self._segments = [(k.clone(), v.clone()) for k, v in self._segments]
        self._look()

    def _look(self) -> None:
        self._runs = [
            (i, k.permute(1, 2, 0), v.transpose(0, 1)) for i, (k, v) in enumerate(self._segments)
        ]

    def put(self, stretches: Sequence[Stretch], k: Tensor, v: Tensor) -> None:
        """Adds own rows at ascending positions."""
        first = stretches[0][0]
        self._own = [(at, min(n, first - at)) for at, n in self._own if at < first]
        kept = _count(self._own)
        n = kept + _count(stretches)
        for at, rows in stretches:
            if self._own and sum(self._own[-1]) == at:
                at, before = self._own.pop()
                rows += before
            self._own.append((at, rows))
        self._k, self._v = _room(self._k, n, kept), _room(self._v, n, kept)
        self._k[kept:n], self._v[kept:n] = k, v

    def attend(self, q: Tensor, stretches: Sequence[Stretch], scale: float) -> Tensor:
        """Returns causal softmax attention of q [n, H, dk] at ascending positions: [n, H, dv]."""
        if self.pages.reader is not None:
            return self.pages.reader.attend(q, stretches, self._rows_at(), self.rope, scale)
        first = stretches[0][0]
        if len(q) == 1 and self._last() <= first:
            return self._attend(q, None, scale)
        positions = _positions(stretches, q.device)
        every = torch.cat((self.positions, self.pages.shared))
        parts = [
            self._attend(q[at : at + QUERIES], every > positions[at : at + QUERIES, None], scale)
            for at in range(0, len(q), QUERIES)
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _attend(self, q: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
        """Does what `attend` does, with torch. hidden [n, rows] is True for rows that a query must
        not see; None: queries see all rows."""
        own = _count(self._own)
        mine = -1, self._k[:own].permute(1, 2, 0), self._v[:own].transpose(0, 1)
        turns = self.pages.turns(self.rope) if self._runs else None
        return attend_runs(q, [mine, *self._runs], turns, scale, hidden).to(q.dtype)

    def _last(self) -> int:
        """Returns the highest position of a row."""
        ends = [p.begin + p.rows for p in self.pages.places]
        return max((*ends, sum(self._own[-1]) if self._own else 0)) - 1

    def _rows_at(self) -> list[RowsAt]:
        out, at = [], 0
        for begin, n in self._own:
            out.append(RowsAt(Place(begin, n, 0), self._k[at : at + n], self._v[at : at + n]))
            at += n
        there = zip(self.pages.places, self._segments, strict=True)
        return out + [RowsAt(place, k, v) for place, (k, v) in there]

    def whole(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Returns copies of the rows of the first tokens, in order, keys rotated to their
        positions."""
        k = self._k.new_empty((tokens, *self._k.shape[1:]))
        v = self._v.new_empty((tokens, *self._v.shape[1:]))
        at = 0
        for begin, n in self._own:
            n = max(0, min(n, tokens - begin))
            k[begin : begin + n], v[begin : begin + n] = self._k[at : at + n], self._v[at : at + n]
            at += n
        for p, (rows, values) in zip(self.pages.places, self._segments, strict=True):
            if p.begin >= tokens:
                continue
            turned = rows.to(k)
            if self.rope.dims:
                cos, sin = families.angles(self.rope, torch.tensor([p.origin], device=k.device))
                turned = families.turn(turned, cos[:, None], sin[:, None], self.rope.interleaved)
            k[p.begin : p.begin + p.rows], v[p.begin : p.begin + p.rows] = turned, values.to(v)
        return k, v


def _count(stretches: Sequence[Stretch]) -> int:
    return sum(n for _, n in stretches)


def _positions(stretches: Sequence[Stretch], device: torch.device) -> Tensor:
    return ranges([(at, at + n) for at, n in stretches], device)


def _room(x: Tensor, rows: int, kept: int | None = None) -> Tensor:
    """Returns x with room for `rows` rows, of which the first `kept` are set. If kept is None, all
    rows of x are kept, and the result is always new memory."""
    if kept is not None and len(x) >= rows:
        return x
    out = x.new_empty((-(-rows // GRAIN) * GRAIN, *x.shape[1:]))
    kept = len(x) if kept is None else kept
    out[:kept] = x[:kept]
    return out
