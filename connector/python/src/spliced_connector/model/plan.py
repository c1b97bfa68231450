"""Divides a prompt into segments at its cuts, and makes the plan of a request.

    prompt     [0 ........ c0)[c0 .. c1)[c1 .. c2) ... [ck ..... N)
    is         in context     segment   segment        query

Tokens that are computed "in context" are computed after all tokens that precede them, as in a full
prefill. Only the interior of a segment is stored; its ends are recomputed at the joins. So a plan
is a list of spans that covers [begin, N) exactly once. Each span is either one segment's interior
or a run of recomputed tokens. Both halves of an engine adapter, scheduler and worker, make the same
plan from the same inputs. This module needs the standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from spliced_connector.model.identity import Role, SegmentSpec
from spliced_connector.model.keys import NOTHING, segment_key
from spliced_connector.model.profile import Profile

MOST_CUTS = 2048
"""The most cuts of one prompt, because a request to the daemon has no more segments."""

LAST_SEGMENT = 0.01
"""A value of `refresh` that computes only the last segment in context. If that segment has less
than this share of the tokens between the cuts, segments before it are computed too."""


class PlanError(ValueError):
    """A prompt's cuts or a plan's spans are invalid."""


@dataclass(frozen=True, slots=True)
class Lead:
    """A primer, named by its digest. Segments that begin at position `begin` of a prompt or later
    are captured after the primer. A segment that begins earlier is nearly the first passage of its
    prompt, so it is captured without the primer."""

    digest: bytes
    begin: int

    def preferred(self, start: int) -> bool:
        """Returns whether a segment that begins at token `start` should be captured after the
        primer. A segment at token 0 has no variant with a primer."""
        return start >= max(self.begin, 1)


class Choice(Enum):
    """How a request treats a segment."""

    PREFIX = "prefix"  # inside the prefix that the request begins from
    HIT = "hit"  # its interior is reused
    ISOLATED = "isolated"  # computed in isolation and published, then reused like a hit
    CONTEXT = "context"  # recomputed in context, never published


class SpanKind(Enum):
    """Where the tokens of a span come from."""

    SEGMENT = "segment"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of a prompt: tokens [start, start + tokens).

    spec and key are None if the segment is too short to have an interior. other: spec and key of
    the second variant. One of the two variants is captured after the primer, the other without it.
    """

    index: int
    start: int
    tokens: int
    spec: SegmentSpec | None
    key: bytes | None
    other: tuple[SegmentSpec, bytes] | None = None

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def seam_tokens(self) -> int:
        """Number of tokens that are recomputed if the segment is reused."""
        return 0 if self.spec is None else self.tokens - self.spec.interior[1]

    @property
    def exchanged(self) -> Piece:
        """The piece with its two variants exchanged. Raises PlanError if it has only one."""
        if self.other is None or self.spec is None or self.key is None:
            raise PlanError(f"segment {self.index} has one variant")
        spec, key = self.other
        return replace(self, spec=spec, key=key, other=(self.spec, self.key))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its segments. Tokens before the first segment and after the last belong to no
    segment."""

    tokens: int
    pieces: tuple[Piece, ...]

    @property
    def keys(self) -> list[bytes]:
        """The keys of the segments that have one, in order."""
        return [p.key for p in self.pieces if p.key is not None]

    @property
    def others(self) -> list[bytes]:
        """Parallel to `keys`: the keys of the second variants, NOTHING for a piece without a second
        variant. Empty if no piece has a second variant."""
        named = [
            NOTHING if p.other is None else p.other[1] for p in self.pieces if p.key is not None
        ]
        return named if any(p.other for p in self.pieces) else []

    def resolved(self, variants: Sequence[int]) -> Prompt:
        """Returns the prompt with the variants that a match has found. `variants` has a number for
        each key: 1 exchanges the variants of its piece. Empty: the prompt is unchanged."""
        if not any(variants):
            return self
        flags = iter(variants)
        return replace(
            self,
            pieces=tuple(
                p.exchanged if p.key is not None and next(flags) else p for p in self.pieces
            ),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, start + length). segment: the piece's index, -1 for recomputed tokens."""

    kind: SpanKind
    start: int
    length: int
    segment: int = -1

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """The spans of one request.

    Invariant, which `make_plan` establishes and `check` verifies: spans cover [begin, end) exactly
    once, in order. No two recomputed spans touch. The last span is recomputed, because an engine
    must compute at least one row.
    """

    begin: int
    end: int
    spans: tuple[Span, ...]

    @property
    def recomputed(self) -> tuple[Span, ...]:
        return tuple(s for s in self.spans if s.kind is SpanKind.RECOMPUTE)

    @property
    def recomputed_tokens(self) -> int:
        return sum(s.length for s in self.recomputed)

    @property
    def reused_tokens(self) -> int:
        return self.end - self.begin - self.recomputed_tokens

    @property
    def approximate(self) -> bool:
        """Whether the result can differ from a full prefill: a segment follows other tokens."""
        return any(s.kind is SpanKind.SEGMENT and s.start > 0 for s in self.spans)

    def check(self) -> None:
        """Raises PlanError unless the invariant holds."""
        at, before = self.begin, SpanKind.SEGMENT
        for i, s in enumerate(self.spans):
            if s.start != at or s.length <= 0:
                raise PlanError(
                    f"span {i} covers [{s.start}, {s.end}), expected it to begin at {at}"
                )
            if s.kind is SpanKind.RECOMPUTE and before is SpanKind.RECOMPUTE and i > 0:
                raise PlanError(f"spans {i - 1} and {i} meet at {at} and are both recomputed")
            if (s.kind is SpanKind.SEGMENT) != (s.segment >= 0):
                raise PlanError(f"span {i} is of kind {s.kind.value} and names segment {s.segment}")
            at, before = s.end, s.kind
        if at != self.end or not self.spans or before is not SpanKind.RECOMPUTE:
            raise PlanError(f"spans end at {at}, expected a recomputed one that ends at {self.end}")


def divide(
    profile: Profile,
    salt: bytes,
    ids: Sequence[int],
    cuts: Sequence[int],
    w: int,
    tail: int | None = None,
    primer: Lead | None = None,
) -> Prompt:
    """Returns the prompt's segments, which lie between ascending cuts, with their keys.

    At a join, w tokens are recomputed on each side; with `tail`, that many on the left side. The
    tokens after the last cut are the query, at least one token. Without cuts there are no segments.
    A segment that begins at 0 is stored whole. A later segment has two variants if there is a
    primer. The first variant of a segment that begins at `primer.begin` or later is the one after
    the primer; for earlier segments it is the one without.
    """
    n = len(ids)
    if len(cuts) > MOST_CUTS:
        raise PlanError(f"{len(cuts)} cuts, at most {MOST_CUTS}: leave out those of short segments")
    if w < 0 or (tail is not None and tail < 0):
        raise PlanError(f"seam of {w} tokens, {tail} on the left")
    _check_ascending(cuts)
    if cuts and not (cuts[0] >= 0 and cuts[-1] < n):
        raise PlanError(f"cuts from {cuts[0]} to {cuts[-1]} in a prompt of {n} tokens")
    pieces = []
    for i, (a, b) in enumerate(itertools.pairwise(cuts)):
        spec = profile.first_spec(b - a) if a == 0 else profile.mid_spec(b - a, w, tail)
        if spec is None:
            pieces.append(Piece(i, a, b - a, None, None))
            continue
        piece = Piece(i, a, b - a, spec, segment_key(profile, salt, spec, ids[a:b]))
        if primer is not None and a > 0:
            primed = replace(spec, primer=primer.digest)
            piece = replace(piece, other=(primed, segment_key(profile, salt, primed, ids[a:b])))
            if primer.preferred(a):
                piece = piece.exchanged
        pieces.append(piece)
    return Prompt(n, tuple(pieces))


def _check_ascending(cuts: Sequence[int]) -> None:
    for a, b in itertools.pairwise(cuts):
        if a >= b:
            raise PlanError(f"cuts must ascend: {a} is followed by {b}")


def keep_for_reuse(cuts: Sequence[int], refresh: float) -> tuple[int, ...]:
    """Returns the leading cuts between which segments are reused. Everything after the last
    returned cut is computed in context.

    refresh: the share of the tokens between the first and the last cut to compute in context. It is
    taken from the end and rounded up to whole segments, so at least the last segment is computed.
    0: none, all cuts stay. 1: all, no cut is left. Raises PlanError for cuts that do not ascend.
    """
    _check_ascending(cuts)
    if not refresh or len(cuts) < 2:
        return tuple(cuts)
    end = cuts[-1] - refresh * (cuts[-1] - cuts[0])
    kept = tuple(cut for cut in cuts[:-1] if cut <= end + 1e-6)
    return kept if len(kept) > 1 else ()


def all_primed(pieces: Iterable[Piece], lead: Lead | None) -> bool:
    """Returns whether reused segments count as primed: at least one was captured after the primer,
    and so were all those that begin where the primer is preferred."""
    named = [piece for piece in pieces if piece.spec is not None and lead is not None]
    primed = [piece for piece in named if piece.spec is not None and piece.spec.primer]
    due = [piece for piece in named if lead is not None and lead.preferred(piece.start)]
    return bool(primed) and all(piece in primed for piece in due)


def choose(
    prompt: Prompt, begin: int, held: Sequence[bool], admit: Sequence[bool]
) -> tuple[Choice, ...]:
    """Decides how a request treats each segment. The prefix of `begin` tokens is already there.

    held and admit are parallel to `prompt.pieces`. held: the cache has the segment. admit: the
    segment is worth computing in isolation and publishing. If the prefix ends inside a segment, the
    remaining tokens of the segment are computed in context.
    """
    if len(held) != len(prompt.pieces) or len(admit) != len(prompt.pieces):
        raise PlanError(f"{len(held)} and {len(admit)} answers for {len(prompt.pieces)} segments")
    out = []
    for p, hit, wanted in zip(prompt.pieces, held, admit, strict=True):
        if p.end <= begin:
            out.append(Choice.PREFIX)
        elif p.start < begin or p.spec is None:
            out.append(Choice.CONTEXT)
        elif hit:
            out.append(Choice.HIT)
        else:
            out.append(Choice.ISOLATED if wanted else Choice.CONTEXT)
    return tuple(out)


def make_plan(prompt: Prompt, begin: int, choices: Sequence[Choice]) -> Plan:
    """Makes the plan for tokens [begin, N): reused segments, spans between them, the query at the
    end.

    Between two reused segments, the tail of the left one and the head of the right one form one
    recomputed span. A leading segment and the prefix are reused whole: they have no tail to
    recompute.
    """
    if len(choices) != len(prompt.pieces):
        raise PlanError(f"{len(choices)} choices for {len(prompt.pieces)} segments")
    if not 0 <= begin < prompt.tokens:
        raise PlanError(f"{begin} tokens in place of {prompt.tokens}: the query is missing")
    spans: list[Span] = []
    at = begin
    for piece, choice in zip(prompt.pieces, choices, strict=True):
        if choice is Choice.PREFIX and piece.end > begin:
            raise PlanError(f"segment {piece.index} ends at {piece.end}, the prefix at {begin}")
        if choice not in (Choice.HIT, Choice.ISOLATED):
            continue
        spec = piece.spec
        if spec is None or piece.start < begin:
            raise PlanError(f"segment {piece.index} cannot be reused behind {begin} tokens")
        if spec.role is Role.FIRST and piece.start != 0:
            raise PlanError(f"segment {piece.index} leads its prompt but stands at {piece.start}")
        first = piece.start + spec.head
        length = spec.interior[1]
        if length <= 0 or spec.tokens != piece.tokens:
            raise PlanError(f"segment {piece.index} of {piece.tokens} tokens has no interior")
        if first > at:
            spans.append(Span(SpanKind.RECOMPUTE, at, first - at))
        spans.append(Span(SpanKind.SEGMENT, first, length, piece.index))
        at = first + length
    spans.append(Span(SpanKind.RECOMPUTE, at, prompt.tokens - at))
    plan = Plan(begin, prompt.tokens, tuple(spans))
    plan.check()
    return plan
