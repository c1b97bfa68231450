"""One spliced request: from the segments' bytes to blocks that the engine goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from spliced_connector.client import Accept, Model, Segment, release_all
from spliced_connector.model import Choice, Piece, Span, SpanKind
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.clock import REUSED_COST, Walked
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.pages.plans import Run
from spliced_connector.vllm.plans import News
from spliced_connector.vllm.ranks import Ranks
from spliced_connector.vllm.splice_plans import Base, SpliceLoad
from spliced_connector.walk import (
    PREFILL_ROWS,
    Architecture,
    Captured,
    Context,
    capture_all,
    moved,
    ranges,
    restore,
    splice,
    unpack,
)

MIN_PATIENCE = 0.05
"""Seconds that a checkpoint may take at least, which is asked for once (a guess)."""

CAPTURE_COST = 1.2
"""What a row of a capture takes: the transition is a second pass of the recurrence (measured
between 0.4 and 1.2, by how many rows a walk has)."""


T = TypeVar("T")

_Work: TypeAlias = tuple[float, Callable[[], None]]


class LostError(Exception):
    """The request cannot be spliced any more; the engine has to compute it."""


class Pace:
    """Seconds per walked row, learned from what was done; converts a time into rows."""

    def __init__(self, seconds: float = 1e-3) -> None:
        self.seconds = seconds

    def learn(self, rows: float, seconds: float) -> None:
        """rows: in units of walked ones."""
        if rows > 0:
            self.seconds += (seconds / rows - self.seconds) / 4

    def rows(self, seconds: float) -> int:
        return max(1, int(seconds / self.seconds))


class SpliceJob:
    """Moves a context over the request's spans, as many at a time as a bound on time allows.

    Blocks are written as the context moves, states when it has arrived. Until `run` answers True
    nothing of them may be used. Leases are held until then: only if the daemon says at the end
    that they were good are the copies.
    """

    def __init__(
        self,
        load: SpliceLoad,
        arch: Architecture,
        caches: Caches,
        model: Model,
        published: Callable[[Piece, tuple[int, ...], Captured], Captured],
        patience: float,
        ranks: Ranks = Ranks(),  # noqa: B008  (frozen)
        placed: Placed | None = None,
    ) -> None:
        """published: is given a fresh capture, and answers it as readers will find it; once for
        equal segments.
        patience: seconds that segments may take to come from disk.
        ranks: have the same job, and take each step of it together.
        placed: knows which of the load's bins are filled."""
        self.load = load
        self.context: Context | None = None
        self._arch, self._caches, self._model = arch, caches, model
        self._published = published
        self._patience = patience
        self._ranks = ranks
        self._placed = placed
        self._staged: list[tuple[Run, dict[int, tuple[Tensor, Tensor]]]] = []
        self._give_up = 0.0  # monotonic seconds, from the first attempt to lease on
        self._segments: dict[int, Captured] = {}
        self._leases: list[Segment] = []
        self._acquired = False  # by all ranks
        self._captures = list(load.splice.pieces(Choice.ISOLATED))
        self.captured: dict[bytes, Captured] = {}
        """What has become of the captures so far, by key."""
        self._away = set(load.away)
        self.ids = torch.tensor(load.ids, dtype=torch.int64, device=caches.copies.device)
        self._left = list(load.splice.spans)  # what the context has not moved over
        self._walked = 0.0  # seconds, without captures and what is waited for

    def run(self, pace: Pace, until: float) -> bool:
        """Works until the monotonic time `until`, one piece of work at least. True: all in place.

        Raises LostError, and whatever a walk over the engine's modules raises.
        """
        # Captures first: they take long, and a lease does not last for ever.
        if not self._done(self._to_capture(pace, until), pace, until) or self._away:
            return False
        began = time.monotonic()
        ended = self._move(pace, until)
        self._walked += time.monotonic() - began
        return ended

    @property
    def waits(self) -> bool:
        """Whether it has nothing to do before other nodes have computed some of its segments."""
        return bool(self._away) and not self._captures

    def hear(self, news: News) -> None:
        """What other nodes have computed, or will not: that is captured here."""
        self._away -= news.came | news.lost
        for piece in self.load.splice.pieces(Choice.HIT):
            if piece.key in news.lost and piece.index not in self._segments:
                self._captures.append(piece)

    @property
    def walked(self) -> Walked:
        """What it took, once `run` has answered True."""
        splice = self.load.splice
        return Walked(splice.walked, splice.reused, self._walked)

    def _move(self, pace: Pace, until: float) -> bool:
        """Goes on behind the captures, as `run` does."""
        if not self._acquired:
            there = self._together(self._acquire)
            self._acquired = self._ranks.all(there)
            if not self._acquired:
                return False
        if self.context is None:
            self.context = self._together(self._begin)
        if not self._done(self._to_walk(pace, until), pace, until):
            return False
        self._together(self._vouch)
        self._finish()
        return True

    def close(self) -> None:
        """Gives everything back. Twice is once."""
        leases, self._leases = self._leases, []
        release_all(leases)

    def _together(self, work: Callable[[], T]) -> T:
        """Does what may fail on one rank alone. Raises on all of them if it fails on any."""
        try:
            out = work()
        except Exception:
            self._ranks.all(False)
            raise
        if not self._ranks.all(True):
            raise LostError("another rank has lost it")
        return out

    def _done(self, pieces: Iterator[_Work], pace: Pace, until: float) -> bool:
        """Works one piece off at least, and as many as fit into the time. False when some are
        left."""
        first = True
        for cost, work in pieces:
            now = time.monotonic()
            if not first and not self._ranks.all(now + cost * pace.seconds <= until):
                return False
            work()
            pace.learn(cost, time.monotonic() - now)
            first = False
        return True

    def _acquire(self) -> bool:
        """Leases all segments that are to be there. False while some are on their way from disk."""
        hits = self.load.splice.pieces(Choice.HIT)
        pieces = [piece for piece in hits if piece.index not in self._segments]
        if self._leases or not pieces:
            return True
        found = self._model.acquire([p.key for p in pieces if p.key is not None], all=True)
        held = [segment for segment in found if segment is not None]
        if len(held) < len(pieces):
            release_all(held)
            now = time.monotonic()
            self._give_up = self._give_up or now + self._patience
            if now < self._give_up and self._model.attached:
                return False
            raise LostError(f"{len(pieces) - len(held)} of {len(pieces)} segments are gone")
        self._leases = held
        profile = self._model.profile
        for piece, segment in zip(pieces, held, strict=True):
            if piece.spec is None:
                raise LostError(f"segment {piece.index} has no interior")
            try:
                there = unpack(profile, piece.spec, segment)
                self._segments[piece.index] = moved(there, self._caches.copies)
            except ValueError as err:
                raise LostError(str(err)) from err
        return True

    def _to_capture(self, pace: Pace, until: float) -> Iterator[_Work]:
        """The captures that are left, as many at once as there is time for."""
        while self._captures:
            rows = self._ranks.least(pace.rows(until - time.monotonic()))
            pieces = self._batch(rows / CAPTURE_COST)
            cost = CAPTURE_COST * sum(piece.tokens for piece in pieces)
            yield cost, partial(self._capture, pieces)

    def _batch(self, rows: float) -> list[Piece]:
        """The next pieces of at most so many rows, one at least; no two are equal."""
        found: dict[bytes | None, Piece] = {}
        room = min(rows, PREFILL_ROWS)
        for piece in self._captures:
            if piece.key in found:
                continue
            if found and piece.tokens > room:
                break
            found[piece.key] = piece
            room -= piece.tokens
        return list(found.values())

    def _to_walk(self, pace: Pace, until: float) -> Iterator[_Work]:
        """The walks that are left, cut to the time that is."""
        while self._left:
            spans = self._next(self._ranks.least(pace.rows(until - time.monotonic())))
            yield _cost(spans), partial(self._walk, spans)

    def _next(self, rows: int) -> list[Span]:
        """The next spans of at most so many rows; a run of rows may be cut, a segment is not."""
        spans: list[Span] = []
        room = float(rows)
        for span in self._left:
            if room <= 0 or (spans and span.segment >= 0 and _cost([span]) > room):
                break
            if span.segment < 0 and span.length > room:
                span = replace(span, length=max(1, int(room)))
            spans.append(span)
            room -= _cost([span])
        return spans

    def _capture(self, pieces: Sequence[Piece]) -> None:
        wanted = []
        for piece in pieces:
            if piece.spec is None:
                raise LostError(f"segment {piece.index} has no interior")
            wanted.append((self.ids[piece.start : piece.end], piece.spec))
        for piece, captured in zip(pieces, capture_all(self._arch, wanted), strict=True):
            ids = self.load.ids[piece.start : piece.end]
            stored = self._published(piece, ids, captured)
            if piece.key is not None:
                self.take(piece.key, stored)

    def take(self, key: bytes, captured: Captured) -> None:
        """A segment is there that this request may be about to capture."""
        left = []
        for piece in self._captures:
            if piece.key == key:
                self._segments[piece.index] = self.captured[key] = captured
            else:
                left.append(piece)
        self._captures = left

    def _begin(self) -> Context:
        """A context behind the prefix that is in place."""
        base, room = self.load.base, self.load.splice.tokens
        if base.name:
            return self._restored(base, room)
        context = Context(self._arch, room, self.ids.device)
        if base.tokens == 0:
            return context
        if base.states is None:
            raise LostError("the engine has given away the states behind its prefix")
        for layer, rows in self._caches.rows.items():
            table = self.load.blocks[self._caches.group[layer]]
            at = context.layers[layer]
            if at.k is None or at.v is None:
                raise LostError(f"layer {layer} keeps no rows")
            at.k[: base.tokens], at.v[: base.tokens] = rows.read(table, 0, base.tokens)
        for layer, states in self._caches.states.items():
            at = context.layers[layer]
            state, tail = states.read(base.states[self._caches.group[layer]])
            at.state, at.conv = state.to(at.state), tail.to(at.conv)
        context.tokens = base.tokens
        return context

    def _restored(self, base: Base, room: int) -> Context:
        """From a checkpoint of the daemon, of which the engine may have the first rows already."""
        accept = Accept.ANY if base.spliced else Accept.EXACT
        held = self._model.load(base.name, accept, wait=max(self._patience, MIN_PATIENCE))
        if held is None:
            raise LostError(f"the prefix of {base.tokens} tokens is gone")
        try:
            context = restore(self._arch, self._model.profile, held, room, self.ids.device)
        except ValueError as err:
            held.release()
            raise LostError(str(err)) from err
        if not held.release() or context.tokens != base.tokens:
            raise LostError("the daemon does not vouch for the prefix that was read")
        self._write_rows(context, base.held)
        return context

    def _write_rows(self, context: Context, begin: int) -> None:
        """Puts the rows from `begin` on into the request's blocks, but for those in bins."""
        own: slice | Tensor
        if self.load.pages is None:
            row, own = begin, slice(begin, None)
        else:
            spans = list(self.load.pages.private(begin, context.tokens))
            if not spans:
                return
            row = spans[0][2]
            own = ranges([(a, b) for a, b, _ in spans], self.ids.device)
        for layer, pages in self._caches.rows.items():
            k, v = context.rows(layer)
            table = self.load.blocks[self._caches.group[layer]]
            pages.write(table, row, k[own], v[own])

    def _walk(self, spans: Sequence[Span]) -> None:
        context = self._moving()
        begin = context.tokens
        splice(self._arch, self.ids, spans, self._segments, context)
        end = spans[-1].end
        self._left = [
            replace(s, start=max(s.start, end), length=s.end - max(s.start, end))
            for s in self._left
            if s.end > end
        ]
        self._write_rows(context, begin)

    def _moving(self) -> Context:
        if self.context is None:
            raise LostError("spans before their prefix")
        return self.context

    def _vouch(self) -> None:
        """The leases were good to the end, and all spans are in place."""
        self._stage()
        leases, self._leases = self._leases, []
        if not all(release_all(leases)):
            raise LostError("the daemon does not vouch for the segments that were read")
        if self._moving().tokens != self.load.splice.tokens:
            raise LostError("spans end early")

    def _finish(self) -> None:
        """Writes the states: from here on the blocks are the engine's."""
        context = self._moving()
        self._fill()
        for layer, pages in self._caches.states.items():
            at = context.layers[layer]
            if at.state is None or at.conv is None:
                raise LostError(f"layer {layer} has no state")
            block = self._caches.state_block(self.load.blocks, layer, context.tokens)
            pages.write(block, at.state, at.conv)
        self._segments.clear()
        self.captured.clear()

    def _stage(self) -> None:
        """Copies what bins lack, as it is stored. It may be put there once the daemon has vouched
        for it, when it may not be read any more."""
        if self.load.pages is None or self._placed is None:
            return
        for run in self.load.pages.runs:
            if self._placed.is_filled(run):
                continue
            part = run.wanted.part
            layers = self._segments[run.wanted.segment].layers
            cut = slice(part.first, part.first + part.length)
            rows: dict[int, tuple[Tensor, Tensor]] = {}
            for layer in self._caches.rows:
                k, v = layers[layer].k, layers[layer].v
                if k is None or v is None:
                    raise LostError(f"segment {run.wanted.segment} has no rows of layer {layer}")
                rows[layer] = k[cut].clone(), v[cut].clone()
            self._staged.append((run, rows))

    def _fill(self) -> None:
        """Puts what was staged into the bins. Others that point there have not read it yet, or what
        is there is the same."""
        staged, self._staged = self._staged, []
        for run, rows in staged:
            for layer, (k, v) in rows.items():
                self._caches.rows[layer].write((run.block,), run.offset, k, v)
            if self._placed is not None:
                self._placed.fill(run)


def _cost(spans: Sequence[Span]) -> float:
    """In walked rows."""
    return sum(s.length if s.kind is SpanKind.RECOMPUTE else s.length * REUSED_COST for s in spans)
