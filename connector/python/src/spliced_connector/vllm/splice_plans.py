"""What mode splice reads from a request, decides, and tells the workers. No torch, no vLLM.

    "kv_transfer_params": {"spliced": {"v": 1, "cuts": [0, 612, 1180], "w": 8}}

Cuts are positions in the prompt's tokens: a segment lies between every two neighbours, and the
query behind the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from spliced_connector.model import Choice, Piece, Prompt, Span, SpanKind, make_plan
from spliced_connector.segments import Found
from spliced_connector.vllm.clock import GUESS, Prices
from spliced_connector.vllm.pages.plans import PagePlan, Wanted, parts_of
from spliced_connector.vllm.plans import Blocks, News, PrefixPlan, Work

MAX_CUTS = 2048
MAX_SEAM = 4096


class CutsError(ValueError):
    """What a request says about its segments cannot be right; the text says what."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ascending positions, and tokens computed again beside a join. found: what found them, where
    the request did not name them itself."""

    cuts: tuple[int, ...]
    w: int
    found: Found = field(default_factory=Found)


def read_cuts(params: Mapping[str, object] | None, tokens: int, w: int) -> Cuts | None:
    """The cuts of a request, None where it names none.

    params: `kv_transfer_params`. tokens: of the prompt. w: for requests that do not say.
    """
    if params is None or "spliced" not in params:
        return None
    said = params["spliced"]
    if not isinstance(said, Mapping):
        raise CutsError(f"spliced: {type(said).__name__}, want an object")
    unknown = sorted(str(name) for name in said if name not in ("v", "cuts", "w"))
    if unknown:
        raise CutsError(f"spliced: unknown {', '.join(unknown)}")
    if said.get("v") != 1:
        raise CutsError(f"spliced.v: {said.get('v')!r}, want 1")
    cuts = said.get("cuts")
    if isinstance(cuts, str | bytes) or not isinstance(cuts, Sequence):
        raise CutsError(f"spliced.cuts: {type(cuts).__name__}, want a list of positions")
    if not 2 <= len(cuts) <= MAX_CUTS:
        raise CutsError(f"spliced.cuts: {len(cuts)} positions, want 2 to {MAX_CUTS}")
    numbers = [_whole(f"spliced.cuts[{i}]", cut, tokens - 1) for i, cut in enumerate(cuts)]
    for a, b in pairwise(numbers):
        if a >= b:
            raise CutsError(f"spliced.cuts: {a} is followed by {b}, they have to ascend")
    return Cuts(tuple(numbers), _whole("spliced.w", said.get("w", w), MAX_SEAM))


def _whole(name: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CutsError(f"{name}: {value!r}, want 0 to {most}")
    return value


@dataclass(frozen=True, slots=True)
class Splice:
    """How much of a prompt is taken over from the engine: tokens [begin, tokens), behind a prefix
    of `begin` tokens that is in place.

    Invariant: spans cover them exactly once and the last one is a segment, so that the engine goes
    on behind it as behind any prefix; or there are none, and the prefix is all.
    """

    begin: int
    tokens: int
    prompt: Prompt
    choices: tuple[Choice, ...]  # parallel to prompt.pieces
    spans: tuple[Span, ...]

    @property
    def walked(self) -> int:
        """Rows that are computed again or in context."""
        return sum(s.length for s in self.spans if s.kind is SpanKind.RECOMPUTE)

    @property
    def reused(self) -> int:
        """Rows that come out of the cache."""
        hits = {piece.index for piece in self.pieces(Choice.HIT)}
        return sum(s.length for s in self.spans if s.segment in hits)

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

    def shareable(self, most: int) -> tuple[Wanted, ...]:
        """The interiors that may lie in bins, in parts of at most so many tokens."""
        wanted: list[Wanted] = []
        for span in self.spans:
            piece = self.prompt.pieces[span.segment] if span.segment >= 0 else None
            if piece is not None and piece.key is not None:
                place = span.start, span.length, piece.start, piece.index
                wanted += parts_of(piece.key, *place, most)
        return tuple(wanted)

    def pieces(self, choice: Choice) -> tuple[Piece, ...]:
        """The segments that something becomes of."""
        chosen = zip(self.prompt.pieces, self.choices, strict=True)
        return tuple(piece for piece, what in chosen if what is choice)


def best_splice(
    prompt: Prompt, choices: Sequence[Choice], begin: int = 0, prices: Prices = GUESS
) -> Splice | None:
    """The leading part of a prompt whose takeover saves the most; None where none saves anything.

    choices: what the cache has or is to have, behind a prefix of `begin` tokens; a capture is for
    later requests, and not in the price of this one. Rows in front of the last segment that is
    taken have to be walked, those behind it are the engine's: so a run of segments that are not
    there ends the takeover, unless enough of those behind it are.
    """
    full = make_plan(prompt, begin, choices)
    best, least, walked, placed = 0, float(prompt.tokens - begin), 0, 0
    for i, span in enumerate(full.spans):
        if span.kind is SpanKind.RECOMPUTE:
            walked += span.length
            continue
        placed += span.length
        work = prices.claim + prices.walk * walked + prices.placed * placed
        cost = work + prompt.tokens - span.end
        if cost < least:
            best, least = i + 1, cost
    if best == 0:
        return None
    spans = full.spans[:best]
    end = spans[-1].end
    kept = tuple(
        choice if piece.start < end else Choice.CONTEXT
        for piece, choice in zip(prompt.pieces, choices, strict=True)
    )
    return Splice(begin, end, prompt, kept, spans)


@dataclass(frozen=True, slots=True)
class Base:
    """The prefix that a splice begins behind: exact rows and states of the first `tokens` tokens.

    The engine has the first `held` of them, in blocks that others read. name: of a checkpoint of
    the daemon; empty where the engine has all of them. states: then its blocks with the states
    behind them, by cache group; None if they were lost since the match. spliced: the checkpoint may
    be of a splice.
    """

    tokens: int = 0
    held: int = 0
    name: bytes = b""
    states: tuple[int, ...] | None = ()
    spliced: bool = False


@dataclass(frozen=True, slots=True)
class SpliceLoad:
    """Fill a request's blocks with what `splice` says behind `base`. ids are those of the whole
    prompt."""

    request_id: str
    ids: tuple[int, ...]
    splice: Splice
    blocks: Blocks
    sampled: bool  # the canary computes it again
    base: Base = Base()
    away: frozenset[bytes] = frozenset()  # keys of segments that other nodes compute meanwhile
    pages: PagePlan | None = None  # what of it lies in bins; None: all in the request's own blocks


@dataclass(frozen=True, slots=True)
class SplicePlan:
    """What mode splice does in one step: new requests, those that ended before their turn, and
    what mode prefix does for the others. alone: the engine computes nothing in this step, so that
    no running request waits for it. news: of segments that requests wait for. work: segments for
    other nodes, when no request has work."""

    loads: tuple[SpliceLoad, ...] = ()
    dropped: frozenset[str] = frozenset()
    prefix: PrefixPlan | None = None
    alone: bool = False
    news: tuple[News, ...] = ()
    work: tuple[Work, ...] = ()
