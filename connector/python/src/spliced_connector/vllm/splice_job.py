"""One spliced request: from the segments' bytes to blocks that the engine goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch

from spliced_connector.client import Model, Segment, release_all
from spliced_connector.model import Choice, Piece, Span, SpanKind
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.splice_plans import SpliceLoad
from spliced_connector.walk import Architecture, Captured, Context, capture, splice, unpack

REUSED_COST = 1 / 16
"""What placing a reused row takes, in walked rows (a guess; the pace learns from both)."""

CAPTURE_COST = 1.5
"""What a row of a capture takes: the transition is a second pass of the recurrence (a guess)."""


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
    ) -> None:
        """published: is given a fresh capture, and answers it as readers will find it.
        patience: seconds that segments may take to come from disk."""
        self.load = load
        self.context: Context | None = None
        self._arch, self._caches, self._model = arch, caches, model
        self._published = published
        self._patience = patience
        self._give_up = 0.0  # monotonic seconds, from the first attempt to lease on
        self._segments: dict[int, Captured] = {}
        self._leases: list[Segment] = []
        self._captures = list(load.splice.pieces(Choice.ISOLATED))
        self.ids = torch.tensor(load.ids, dtype=torch.int64)
        self._left = list(load.splice.spans)  # what the context has not moved over

    def run(self, pace: Pace, until: float) -> bool:
        """Works until the monotonic time `until`, one piece of work at least. True: all in place.

        Raises LostError, and whatever a walk over the engine's modules raises.
        """
        # Captures first: they take long, and a lease does not last for ever.
        if not _done(self._to_capture(), pace, until):
            return False
        if not self._acquire() or not _done(self._to_walk(pace, until), pace, until):
            return False
        self._finish()
        return True

    def close(self) -> None:
        """Gives everything back. Twice is once."""
        leases, self._leases = self._leases, []
        release_all(leases)

    def _acquire(self) -> bool:
        """Leases all segments that are to be there. False while some are on their way from disk."""
        pieces = self.load.splice.pieces(Choice.HIT)
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
                self._segments[piece.index] = unpack(profile, piece.spec, segment)
            except ValueError as err:
                raise LostError(str(err)) from err
        return True

    def _to_capture(self) -> Iterator[_Work]:
        """The captures that are left, each with its cost in walked rows."""
        while self._captures:
            piece = self._captures[0]
            yield CAPTURE_COST * piece.tokens, partial(self._capture, piece)

    def _to_walk(self, pace: Pace, until: float) -> Iterator[_Work]:
        """The walks that are left, cut to the time that is."""
        while self._left:
            spans = self._next(pace.rows(until - time.monotonic()))
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

    def _capture(self, piece: Piece) -> None:
        if piece.spec is None:
            raise LostError(f"segment {piece.index} has no interior")
        ids = self.load.ids[piece.start : piece.end]
        captured = capture(self._arch, self.ids[piece.start : piece.end], piece.spec)
        self._segments[piece.index] = self._published(piece, ids, captured)
        self._captures.pop(0)

    def _walk(self, spans: Sequence[Span]) -> None:
        if self.context is None:
            self.context = Context(self._arch, self.load.splice.tokens, self.ids.device)
        begin = self.context.tokens
        splice(self._arch, self.ids, spans, self._segments, self.context)
        end = spans[-1].end
        self._left = [
            replace(s, start=max(s.start, end), length=s.end - max(s.start, end))
            for s in self._left
            if s.end > end
        ]
        for layer, pages in self._caches.rows.items():
            k, v = self.context.rows(layer)
            table = self.load.blocks[self._caches.group[layer]]
            pages.write(table, begin, k[begin:], v[begin:])

    def _finish(self) -> None:
        """Writes the states, once the leases were good to the end."""
        leases, self._leases = self._leases, []
        if not all(release_all(leases)):
            raise LostError("the daemon does not vouch for the segments that were read")
        if self.context is None or self.context.tokens != self.load.splice.tokens:
            raise LostError("spans end early")
        for layer, pages in self._caches.states.items():
            at = self.context.layers[layer]
            if at.state is None or at.conv is None:
                raise LostError(f"layer {layer} has no state")
            pages.write(self.load.blocks[self._caches.group[layer]][0], at.state, at.conv)
        self._segments.clear()


def _done(pieces: Iterator[_Work], pace: Pace, until: float) -> bool:
    """Works one piece off at least, and as many as fit into the time. False when some are left."""
    first = True
    for cost, work in pieces:
        now = time.monotonic()
        if not first and now + cost * pace.seconds > until:
            return False
        work()
        pace.learn(cost, time.monotonic() - now)
        first = False
    return True


def _cost(spans: Sequence[Span]) -> float:
    """In walked rows."""
    return sum(s.length if s.kind is SpanKind.RECOMPUTE else s.length * REUSED_COST for s in spans)
