"""Decides how much of a prompt is spliced. Splicing takes over the computation of the prompt's
first tokens from the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spliced_connector.client import SpliceWay
from spliced_connector.model import Choice, Piece, Prompt, Span, SpanKind, make_plan
from spliced_connector.serving.prices import CLAIM_ROWS, WALK_COST


@dataclass(frozen=True, slots=True)
class Splice:
    """The part of a prompt that is taken over from the engine: tokens [begin, tokens), after a
    prefix of `begin` tokens whose state is already there.

    Invariant: spans cover these tokens exactly once, and the last span is a segment. The engine
    continues after it as after any prefix. Without spans only the prefix is used.
    """

    begin: int
    tokens: int
    prompt: Prompt
    choices: tuple[Choice, ...]  # parallel to prompt.pieces
    spans: tuple[Span, ...]
    max_error: float | None = None
    """Largest error of a reused segment; None: any."""
    way: SpliceWay | None = None
    """The way of splicing to whose loss the canary adds this request. None: the request is not
    counted."""
    loss: float | None = None
    """The loss that the daemon expects; None: not known."""

    @property
    def walked(self) -> int:
        """Number of rows that are recomputed."""
        return sum(s.length for s in self.spans if s.kind is SpanKind.RECOMPUTE)

    @property
    def hits(self) -> tuple[Span, ...]:
        """The spans of segments that come from the cache."""
        hits = {piece.index for piece in self.pieces(Choice.HIT)}
        return tuple(s for s in self.spans if s.segment in hits)

    @property
    def reused(self) -> int:
        """Number of rows that come from the cache."""
        return sum(s.length for s in self.hits)

    def lost(self, keys: frozenset[bytes]) -> Splice:
        """Returns the splice with these segments captured, because they are not in the cache."""
        if not keys:
            return self
        chosen = tuple(
            Choice.ISOLATED if choice is Choice.HIT and piece.key in keys else choice
            for piece, choice in zip(self.prompt.pieces, self.choices, strict=True)
        )
        return replace(self, choices=chosen)

    def keys(self, choice: Choice) -> frozenset[bytes]:
        """Returns the keys of `pieces(choice)`."""
        return frozenset(piece.key for piece in self.pieces(choice) if piece.key is not None)

    def pieces(self, choice: Choice) -> tuple[Piece, ...]:
        """Returns the pieces that have this choice."""
        chosen = zip(self.prompt.pieces, self.choices, strict=True)
        return tuple(piece for piece, what in chosen if what is choice)


def advised_splice(
    prompt: Prompt, choices: Sequence[Choice], begin: int, end: int
) -> Splice | None:
    """Returns the splice that ends where the daemon advises: from token `begin` to the end of the
    last segment that ends at or before token `end`. None if there is no such segment.

    choices: how each piece of the prompt is treated.
    """
    spans = make_plan(prompt, begin, choices).spans
    segments = [i for i, s in enumerate(spans) if s.kind is SpanKind.SEGMENT and s.end <= end]
    return _splice(prompt, choices, begin, spans[: segments[-1] + 1]) if segments else None


def best_splice(prompt: Prompt, choices: Sequence[Choice], begin: int = 0) -> Splice | None:
    """Returns the splice that saves the most by the guessed costs, for use without the daemon's
    advice. None if no splice saves anything.

    choices: as in `advised_splice`. A capture is for later requests, so its cost does not count
    here. Recomputed rows before the end of the splice must be walked; the engine computes the rows
    after it. So the splice ends before a run of missing segments, unless enough segments after the
    run are cached.
    """
    spans = make_plan(prompt, begin, choices).spans
    best, least, walked = 0, float(prompt.tokens - begin), 0
    for i, span in enumerate(spans):
        if span.kind is SpanKind.RECOMPUTE:
            walked += span.length
            continue
        cost = CLAIM_ROWS + WALK_COST * walked + prompt.tokens - span.end
        if cost < least:
            best, least = i + 1, cost
    return _splice(prompt, choices, begin, spans[:best]) if best else None


def _splice(prompt: Prompt, choices: Sequence[Choice], begin: int, spans: Sequence[Span]) -> Splice:
    end = spans[-1].end
    kept = tuple(
        choice if piece.start < end else Choice.CONTEXT
        for piece, choice in zip(prompt.pieces, choices, strict=True)
    )
    return Splice(begin, end, prompt, kept, tuple(spans))
