"""The work of one spliced request: from leased segments to a context where the engine continues."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from spliced_connector.client import Accept, Model, Segment, release_all
from spliced_connector.model import Choice, Piece, SegmentSpec, Span, SpanKind
from spliced_connector.serving.composing import Composer, DamagedError, Placement
from spliced_connector.serving.prices import REUSED_COST, Walked
from spliced_connector.serving.primers import Primers
from spliced_connector.serving.ranks import Ranks
from spliced_connector.serving.splices import Splice
from spliced_connector.walk import (
    PREFILL_ROWS,
    Architecture,
    Captured,
    Context,
    Copies,
    capture_all,
    restore,
)

MIN_PATIENCE = 0.05
"""Minimum timeout for loading a checkpoint, in seconds. The checkpoint is requested only once. (A
guess.)"""

CAPTURED_KEYS = 4 * PREFILL_ROWS
"""Maximum keys that the captures of one pass attend to, including a copy of the primer's keys for
each capture. A pass with a single segment may have more."""

CAPTURE_COST = 1.2
"""Cost of a row of a capture, in walked rows (measured between 0.4 and 1.2, depending on the rows
of a walk). It includes a second pass of the recurrence, which computes the transition."""


T = TypeVar("T")

_Work: TypeAlias = tuple[float, Callable[[], bool]]
"""A piece of work: its cost in walked rows, what to run, and whether its time measures that
cost."""


class LostError(Exception):
    """The request cannot be spliced any more. The engine must compute it."""


class Pace:
    """Seconds per walked row, learned from finished work; converts a time into rows."""

    def __init__(self, seconds: float = 1e-3) -> None:
        self.seconds = seconds

    def learn(self, rows: float, seconds: float) -> None:
        """Learns from finished work. rows: its cost in walked rows."""
        if rows > 0:
            self.seconds += (seconds / rows - self.seconds) / 4

    def rows(self, seconds: float) -> int:
        return max(1, int(seconds / self.seconds))


@dataclass(frozen=True)
class Means:
    """What the jobs of one engine share.

    composer: places leased segments. published: a function that publishes a fresh capture and
    returns it as readers will find it; it is called once for equal segments. patience: how many
    seconds to wait for segments on disk. ranks: the engine's ranks, which all have the same job and
    do each step together. primers: the primers of captures.
    """

    composer: Composer
    published: Callable[[Piece, tuple[int, ...], Captured], Captured]
    patience: float
    primers: Primers
    ranks: Ranks = Ranks()  # noqa: RUF009  (frozen)

    @property
    def arch(self) -> Architecture:
        """The model's architecture."""
        return self.composer.arch

    @property
    def copies(self) -> Copies:
        """Copies between the model's device and host memory."""
        return self.composer.copies

    @property
    def model(self) -> Model:
        """The model as registered at the daemon."""
        return self.composer.model


class Job(ABC):
    """Moves a context (the states and rows before the next token) over the request's spans. Each
    `run` does as much as its time limit allows.

    Nothing that the job writes may be used until `run` returns True. The job keeps its leases until
    then: copies of leased data are valid only if the daemon confirms at the end that the leases
    were valid throughout.
    """

    def __init__(
        self,
        splice: Splice,
        ids: tuple[int, ...],
        means: Means,
        away: frozenset[bytes] = frozenset(),
    ) -> None:
        """ids: token ids of the whole prompt. away: keys of segments that other engines compute."""
        self.splice, self.tokens = splice, ids
        self.context: Context | None = None
        self._means = means
        self._give_up = 0.0  # deadline for leases, a time of `time.monotonic`; 0 = not tried
        self._placement = Placement(means.composer)
        self._leases: list[Segment] = []
        self._acquired = False  # by all ranks
        self._captures = list(splice.pieces(Choice.ISOLATED))
        self.captured: dict[bytes, Captured] = {}
        """The captures so far, by key."""
        self._away = set(away)
        self.ids = torch.tensor(ids, dtype=torch.int64, device=means.copies.device)
        self._left = list(splice.spans)  # spans that remain
        self._walked = 0.0  # seconds, without captures, the prefix and waiting
        self._captured = (0, 0.0)  # tokens, seconds

    @abstractmethod
    def _begin(self) -> Context:
        """Returns a context after the prefix. Raises LostError if the prefix is not there."""

    @abstractmethod
    def _walked_over(self, context: Context, begin: int) -> None:
        """Handles the context's new rows, from token `begin` on."""

    @abstractmethod
    def _stage(self) -> None:
        """Called before the leases are released: the last chance to read data of segments."""

    @abstractmethod
    def _finish(self) -> None:
        """Hands the result to the engine, after the leases are confirmed."""

    def run(self, pace: Pace, until: float) -> bool:
        """Does at least one piece of work, and more until the time `until` (of `time.monotonic`).
        Returns True once everything is in place.

        Raises LostError, and any error of a walk over the engine's modules.
        """
        # Captures come first, because they take long and leases expire.
        if not self._done(self._to_capture(pace, until), pace, until) or self._away:
            return False
        began = time.monotonic()
        ended = self._move(pace, until)
        self._walked += time.monotonic() - began
        return ended

    @property
    def waits(self) -> bool:
        """Whether the job can only wait for segments that other engines compute."""
        return bool(self._away) and not self._captures

    def hear(self, came: frozenset[bytes], lost: frozenset[bytes]) -> None:
        """Handles news about segments that other engines compute. came: keys of those that have
        arrived. lost: keys of those that will not arrive; this engine captures them."""
        self._away -= came | lost
        for piece in self.splice.pieces(Choice.HIT):
            if piece.key in lost and piece.index not in self._placement:
                self._captures.append(piece)

    @property
    def walked(self) -> Walked:
        """Returns the times of walk and captures, once `run` has returned True. The fields of the
        walk are 0 if its time is no measurement."""
        splice = self.splice
        if self._placement.odd:
            return Walked(0, 0, 0.0, *self._captured)
        placed = sum(s.length for s in splice.spans if s.kind is SpanKind.SEGMENT)
        return Walked(splice.walked, placed, self._walked, *self._captured)

    def _move(self, pace: Pace, until: float) -> bool:
        """Does the work after the captures: leases, prefix, walk. Returns as `run` does."""
        if not self._acquired:
            there = self._together(self._acquire)
            self._acquired = self._means.ranks.all(there)
            if not self._acquired:
                return False
        if self.context is None:
            began = time.monotonic()
            self.context = self._together(self._begin)
            self._walked -= time.monotonic() - began  # the daemon prices a prefix separately
        if not self._done(self._to_walk(pace, until), pace, until):
            return False
        self._together(self._confirm)
        self._finish()
        self._placement.clear()
        self.captured.clear()
        return True

    def close(self) -> None:
        """Releases everything. Further calls do nothing."""
        leases, self._leases = self._leases, []
        release_all(leases)

    def _together(self, work: Callable[[], T]) -> T:
        """Does work that may fail on a single rank. If it does, this method raises on all ranks."""
        try:
            out = work()
        except Exception:
            self._means.ranks.all(False)
            raise
        if not self._means.ranks.all(True):
            raise LostError("another rank has lost it")
        return out

    def _done(self, pieces: Iterator[_Work], pace: Pace, until: float) -> bool:
        """Does at least one piece of work, and as many as fit into the time. Returns False if
        pieces remain."""
        first = True
        for cost, work in pieces:
            now = time.monotonic()
            if not first and not self._means.ranks.all(now + cost * pace.seconds <= until):
                return False
            if work():
                pace.learn(cost, time.monotonic() - now)
            first = False
        return True

    def _acquire(self) -> bool:
        """Leases all cached segments. Returns False while some are being read from disk."""
        hits = self.splice.pieces(Choice.HIT)
        pieces = [piece for piece in hits if piece.index not in self._placement]
        if self._leases or not pieces:
            return True
        found = self._means.model.acquire([p.key for p in pieces if p.key is not None], all=True)
        held = [segment for segment in found if segment is not None]
        if len(held) < len(pieces):
            release_all(held)
            now = time.monotonic()
            self._give_up = self._give_up or now + self._means.patience
            if now < self._give_up and self._means.model.attached:
                return False
            raise LostError(f"{len(pieces) - len(held)} of {len(pieces)} segments are gone")
        self._leases = held
        # The lookup reported errors, but perhaps those of other copies of these segments.
        if off := [piece.index for piece, one in zip(pieces, held, strict=True) if self._far(one)]:
            raise LostError(f"segments {off} have larger errors than the request accepts")
        for piece, segment in zip(pieces, held, strict=True):
            if piece.spec is None:
                raise LostError(f"segment {piece.index} has no interior")
            try:
                self._placement.lease(piece.index, piece.spec, segment)
            except DamagedError as err:
                raise LostError(str(err)) from err
        return True

    def _far(self, segment: Segment) -> bool:
        most = self.splice.max_error
        return most is not None and not segment.layout.within(most)

    def _to_capture(self, pace: Pace, until: float) -> Iterator[_Work]:
        """Yields the remaining captures, as many at once as there is time for."""
        while self._captures:
            rows = self._means.ranks.least(pace.rows(until - time.monotonic()))
            if not all(p.spec is None or self._means.primers.made(p.spec) for p in self._captures):
                yield 0.0, self._prime
                continue
            pieces = self._batch(rows / CAPTURE_COST)
            cost = CAPTURE_COST * sum(piece.tokens for piece in pieces)
            yield cost, partial(self._capture, pieces)

    def _batch(self, rows: float) -> list[Piece]:
        """Returns the next segments to capture, equal ones only once: at least one, and more up to
        `rows` rows in all."""
        found: dict[bytes | None, Piece] = {}
        room, keys = min(rows, PREFILL_ROWS), CAPTURED_KEYS
        for piece in self._captures:
            if piece.key in found:
                continue
            keys -= piece.tokens if piece.spec is None else self._means.primers.keys(piece.spec)
            if found and (piece.tokens > room or keys < 0):
                break
            found[piece.key] = piece
            room -= piece.tokens
        return list(found.values())

    def _to_walk(self, pace: Pace, until: float) -> Iterator[_Work]:
        """Yields the remaining walks, each as long as the remaining time allows."""
        while self._left:
            spans = self._next(self._means.ranks.least(pace.rows(until - time.monotonic())))
            yield _cost(spans), partial(self._walk, spans)

    def _next(self, rows: int) -> list[Span]:
        """Returns the next spans, with a cost of at most `rows` walked rows. A recomputed span may
        be cut, a segment is not."""
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

    def _prime(self) -> bool:
        """Computes the primer of the captures: a prefill of its tokens, once per process."""
        for spec in self._together(partial(self._specs, self._captures)):
            self._means.primers.of(spec)
        return False

    def _capture(self, pieces: Sequence[Piece]) -> bool:
        began = time.monotonic()
        specs = self._together(partial(self._specs, pieces))
        wanted = [(self.ids[p.start : p.end], spec) for p, spec in zip(pieces, specs, strict=True)]
        primers = [self._means.primers.of(spec) for _, spec in wanted]
        found = capture_all(self._means.arch, wanted, primers=primers)
        for piece, captured in zip(pieces, found, strict=True):
            ids = self.tokens[piece.start : piece.end]
            stored = self._means.published(piece, ids, captured)
            if piece.key is not None:
                self.take(piece.key, stored)
        tokens, seconds = self._captured
        tokens += sum(piece.tokens for piece in pieces)
        self._captured = tokens, seconds + time.monotonic() - began
        return True

    def _specs(self, pieces: Sequence[Piece]) -> list[SegmentSpec]:
        """Returns the specs to capture. Raises LostError for a spec with another primer than this
        process has: each process reads the primer's file itself."""
        specs = []
        for piece in pieces:
            if piece.spec is None:
                raise LostError(f"segment {piece.index} has no interior")
            if not self._means.primers.knows(piece.spec):
                raise LostError(f"segment {piece.index} is after another primer than is read here")
            specs.append(piece.spec)
        return specs

    def take(self, key: bytes, captured: Captured) -> None:
        """Adds a segment that another job has captured, so that this job need not capture it."""
        left = []
        for piece in self._captures:
            if piece.key == key:
                self._placement.own[piece.index] = self.captured[key] = captured
            else:
                left.append(piece)
        self._captures = left

    def _restored(self, name: bytes, tokens: int, spliced: bool) -> Context:
        """Returns a context restored from the daemon's checkpoint `name`. spliced: the checkpoint
        may come from a splice."""
        accept = Accept.ANY if spliced else Accept.EXACT
        held = self._means.model.load(name, accept, wait=max(self._means.patience, MIN_PATIENCE))
        if held is None:
            raise LostError(f"the prefix of {tokens} tokens is gone")
        try:
            context = restore(
                self._means.arch,
                self._means.model.profile,
                held,
                self.splice.tokens,
                self.ids.device,
            )
        except ValueError as err:
            held.release()
            raise LostError(str(err)) from err
        if not held.release() or context.tokens != tokens:
            raise LostError("the daemon cannot confirm the prefix that was read")
        return context

    def _walk(self, spans: Sequence[Span]) -> bool:
        context, placement = self._moving(), self._placement
        begin = context.tokens
        before, placement.odd = placement.odd, False
        try:
            placement.splice(self.ids, spans, context)
        except DamagedError as err:
            raise LostError(str(err)) from err
        clean, placement.odd = not placement.odd, before or placement.odd
        end = spans[-1].end
        self._left = [
            replace(s, start=max(s.start, end), length=s.end - max(s.start, end))
            for s in self._left
            if s.end > end
        ]
        self._walked_over(context, begin)
        return clean

    def _moving(self) -> Context:
        if self.context is None:
            raise LostError("spans before their prefix")
        return self.context

    def _confirm(self) -> None:
        """Raises LostError unless the leases were valid to the end and all spans are in place."""
        self._stage()
        leases, self._leases = self._leases, []
        if not all(release_all(leases)):
            raise LostError("the daemon cannot confirm the segments that were read")
        if self._moving().tokens != self.splice.tokens:
            raise LostError("spans end early")


def _cost(spans: Sequence[Span]) -> float:
    """Returns the cost of spans in walked rows."""
    return sum(s.length if s.kind is SpanKind.RECOMPUTE else s.length * REUSED_COST for s in spans)
