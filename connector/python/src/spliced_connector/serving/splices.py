"""How much of a prompt is worth taking over from an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spliced_connector.client import SpliceWay
from spliced_connector.model import Choice, Piece, Prompt, Span, SpanKind, make_plan
from spliced_connector.serving.prices import CLAIM_ROWS, WALK_COST


@dataclass(frozen=True, slots=True)
class Splice:
    """How much of a prompt is taken over from the engine: tokens [begin, tokens), behind a prefix
    of `begin` tokens that is in place.

    Invariant: spans cover them exactly once and the last one is a segment, so that the engine
    continues after it as after any prefix; or there are none, and the prefix is all.
    """

    begin: int
    tokens: int
    prompt: Prompt
    choices: tuple[Choice, ...]  # parallel to prompt.pieces
    spans: tuple[Span, ...]
    max_error: float | None = None
    """The most that a segment which is taken over may be off; None: anything."""
    way: SpliceWay | None = None
    """What its loss counts for; None: for nothing."""
    loss: float | None = None
    """That the daemon expects of it; None: it is not known."""

    @property
    def walked(self) -> int:
        """Rows that are computed again or in context."""
        return sum(s.length for s in self.spans if s.kind is SpanKind.RECOMPUTE)

    @property
    def hits(self) -> tuple[Span, ...]:
        """The spans that come out of the cache."""
        hits = {piece.index for piece in self.pieces(Choice.HIT)}
        return tuple(s for s in self.spans if s.segment in hits)

    @property
    def reused(self) -> int:
        """Rows that come out of the cache."""
        return sum(s.length for s in self.hits)

    def lost(self, keys: frozenset[bytes]) -> Splice:
        """The same, with these segments captured, which were to be there."""
        if not keys:
            return self
        chosen = tuple(
            Choice.ISOLATED if choice is Choice.HIT and piece.key in keys else choice
            for piece, choice in zip(self.prompt.pieces, self.choices, strict=True)
        )
        return replace(self, choices=chosen)

    def keys(self, choice: Choice) -> frozenset[bytes]:
        """Of `pieces`."""
        return frozenset(piece.key for piece in self.pieces(choice) if piece.key is not None)

    def pieces(self, choice: Choice) -> tuple[Piece, ...]:
        """The segments that something becomes of."""
        chosen = zip(self.prompt.pieces, self.choices, strict=True)
        return tuple(piece for piece, what in chosen if what is choice)


def advised_splice(
    prompt: Prompt, choices: Sequence[Choice], begin: int, end: int
) -> Splice | None:
    """Returns the part of a prompt to take over from the engine where the daemon advises how far:
    from token `begin` to the end of the last segment that ends at or before token `end`. None if
    there is no such segment.

    choices: what becomes of each piece of the prompt.
    """
    spans = make_plan(prompt, begin, choices).spans
    segments = [i for i, s in enumerate(spans) if s.kind is SpanKind.SEGMENT and s.end <= end]
    return _splice(prompt, choices, begin, spans[: segments[-1] + 1]) if segments else None


def best_splice(prompt: Prompt, choices: Sequence[Choice], begin: int = 0) -> Splice | None:
    """The leading part of a prompt whose takeover saves the most by the guess, where the daemon has
    not said; None where none saves anything.

    choices: as of `advised_splice`; a capture is for later requests, and not in the price of this
    one. Rows before the last segment that is taken have to be walked, the engine computes those
    after it: so a run of missing segments ends the takeover, unless enough later segments are held.
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
