"""Asking the daemon how to serve a prompt and what to store of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spliced_connector.client.losses import (
    LossAdvice,
    LossLimit,
    advice_of,
    limit_section,
    unanswered,
)
from spliced_connector.client.match import Lookup, Match, looked_up, lookup_section
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Accept, Splicing, Way
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import MAX_TOKENS, Piece, token_bytes
from spliced_connector.wire import AdviseMeasured, AdviseReply, AdviseRequest, Op
from spliced_connector.wire.numbers import MAX_KEYS, MAX_POSITIONS, MAX_SAMPLES

UNADVISED = "the daemon gave no advice, so nothing new is stored"
"""Reported to the caller of a request for which `Model.advise` has returned None."""


@dataclass(frozen=True)
class Sample:
    """How long an engine took to compute tokens [begin, end) of a prompt, given the tokens
    before."""

    begin: int
    end: int
    seconds: float


@dataclass(frozen=True)
class WalkTiming:
    """How long a splice took, from the first lease to the last row, without waits. The field `rows`
    counts rows computed between segments, the field `placed` rows copied from segments."""

    rows: int
    placed: int
    seconds: float


@dataclass(frozen=True)
class CaptureTiming:
    """How long an engine took to compute `tokens` tokens of segments in isolation."""

    tokens: int
    seconds: float


_Timing: TypeAlias = Sample | WalkTiming | CaptureTiming


@dataclass(frozen=True)
class Query:
    """A prompt to ask advice for. Ask when it arrives, with the result of match. Ask again when the
    answer is complete: then `tokens` ends with the answer, and `output` is the answer's length."""

    tokens: Sequence[int]
    output: int = 0
    """How many of the last tokens were generated."""
    record: bool = True
    """Whether the prompt is being served. If so, the daemon remembers it."""
    block_tokens: int = 0
    """Advised checkpoints are at multiples of this number of tokens. 0: the model's number."""
    max_checkpoints: int = 0
    """The most checkpoints to advise; 0 = the daemon's default."""
    match: Match | None = None
    """The result of match for this prompt."""
    lookup: Lookup | None = None
    """A match request that the daemon answers before it advises, given instead of `match`. It has
    one key for each entry of `segments`. Only allowed if `Model.looks_up`."""
    segments: Sequence[tuple[int, int]] = ()
    """The first token and the length of each segment, in the order of the keys of `match`."""
    cuts: Sequence[int] = ()
    """Boundaries that the application knows, ascending."""
    seam_tokens: int = 0
    """How many tokens of the segments are recomputed if all segments that were found are reused
    (the function `seam_tokens` computes it). With `lookup`: if all segments are reused."""
    buffer_tokens: int = 0
    """Number of prompt tokens up to the end of the buffer that holds rows of this prompt. 0: there
    is no buffer."""
    samples: Sequence[_Timing] = ()
    """Times measured since the last advice. The daemon gets the last 1,024 of each type."""
    limit: LossLimit | None = None
    """The loss that a splice of the prompt may have. None: the prompt is not spliced."""


@dataclass(frozen=True)
class CheckpointAdvice:
    """A position where a checkpoint could be saved, and whether to save it."""

    tokens: int
    save: bool
    why: int
    """A `Why`: what makes the position a candidate."""
    reason: int
    """A `Verdict`: why to save it, or why not."""
    value: float
    """Expected milliseconds saved per MiB."""


@dataclass(frozen=True)
class SegmentAdvice:
    """Whether a missing segment is worth publishing."""

    publish: bool
    reason: int
    """A `Verdict`."""


@dataclass(frozen=True)
class Advice:
    """How to serve a prompt and what to store of it, as the daemon estimates future requests."""

    seen_tokens: int
    """Tokens of the longest prefix of the prompt that was seen before, stored or not."""
    way: int
    """The `Way` to serve the prompt that takes the least time."""
    predicted: tuple[float, ...]
    """Seconds that each way takes, at index `way - 1`; infinite for a way that is not possible."""
    checkpoints: tuple[CheckpointAdvice, ...]
    segments: tuple[SegmentAdvice, ...]
    splice: int | None = None
    """The time of a splice in `predicted` assumes a splice with this number of leading segments of
    the query. It reuses those that are cached and those that will be published. None: the daemon is
    too old to report the number."""
    loss: LossAdvice = LossAdvice()  # noqa: RUF009  (frozen)
    """How the prompt may be spliced within `Query.limit`. The other fields assume such a splice."""
    found: Match | None = None
    """The result of the query's `lookup`; None without one."""

    def takes(self, wanted: bool, priced: bool = True) -> int | None:
        """Returns how many leading segments of the query the prompt should reuse. 0: the daemon
        advises against a splice. None: all of them, because no cost estimate says how many.

        wanted: whether some segments are to be captured. An older daemon does not estimate the
            cost of captures.
        priced: False ignores cost estimates, but not the loss limit.
        """
        if self.loss.splicing is Splicing.NONE:
            return 0
        if self.splice is None or not priced:
            return None if wanted or self.way not in (Way.RECOMPUTE, Way.PREFIX) else 0
        return self.splice if self.way == Way.SPLICE else 0


def seam_tokens(pieces: Sequence[Piece], found: Match) -> int:
    """Returns how many tokens of the segments are recomputed in a splice. The splice reuses all
    segments that were found, or all segments if none was found.

    pieces: the segments whose keys were matched, in the order of the keys.
    """
    hits = found.hits if any(found.hits) else [True] * len(pieces)
    return sum(piece.seam_tokens for piece, hit in zip(pieces, hits, strict=True) if hit)


def advise(r: Registration, query: Query) -> Advice:
    """Ask for advice. Raises `SplicedError`."""
    _check(query)
    call = r.call(Op.ADVISE, r.options.timeout)
    staging = r.attachment.staging
    ids = token_bytes(query.tokens)
    part = staging.allocate(len(ids), call.deadline)
    call.late.staged = [part]
    staging.bytes_of(part)[:] = ids
    try:
        reply = r.exchange.request(call, _request(r, query, part.offset), AdviseReply)
    finally:
        r.free_staging(call)
    return _advice(r, reply, query)


def _check(query: Query) -> None:
    n = len(query.tokens)
    text = ""
    counts = (query.output, query.buffer_tokens, query.seam_tokens)
    if not 1 <= n <= MAX_TOKENS:
        text = f"{n} tokens, want 1 to {MAX_TOKENS}"
    elif not all(0 <= count <= n for count in counts):
        text = f"output, buffer and seams {counts} of {n} tokens"
    elif not 0 <= query.max_checkpoints <= MAX_POSITIONS:
        text = f"{query.max_checkpoints} checkpoints, at most {MAX_POSITIONS}"
    elif len(query.cuts) > MAX_KEYS or len(query.segments) > MAX_KEYS:
        text = f"{len(query.cuts)} cuts and {len(query.segments)} segments, at most {MAX_KEYS}"
    elif not all(0 <= cut <= n for cut in query.cuts):
        text = f"a cut outside of {n} tokens"
    elif not all(0 <= begin <= n - count < n for begin, count in query.segments):
        text = f"a segment outside of {n} tokens"
    elif query.match is not None and len(query.match.status) not in (0, len(query.segments)):
        text = f"{len(query.segments)} segments, {len(query.match.status)} were matched"
    elif query.lookup is not None and len(query.lookup.keys) != len(query.segments):
        text = f"{len(query.segments)} segments, {len(query.lookup.keys)} keys"
    if text:
        raise SplicedError(Code.INVALID, f"advise: {text}")


def _request(r: Registration, query: Query, offset: int) -> AdviseRequest:
    found, losses = query.match or Match(), r.attachment.greeting.losses
    known = bool(found.status)
    kept = found.prefix_kind == Accept.ROWS  # a checkpoint stored as rows
    good = [one for one in query.samples if _sensible(one)]
    samples = [one for one in good if isinstance(one, Sample)][-MAX_SAMPLES:]
    return AdviseRequest(
        profile=r.profile,
        record=int(query.record),
        block_tokens=query.block_tokens or r.enrolment.block_tokens,
        max_checkpoints=query.max_checkpoints,
        tokens=len(query.tokens),
        token_off=offset,
        output=query.output,
        prefix_tokens=found.prefix_states if kept else found.prefix_tokens,
        prefix_tier=found.prefix_tier,
        buffer_tokens=max(query.buffer_tokens, found.prefix_tokens if kept else 0),
        seam_tokens=query.seam_tokens,
        cuts=query.cuts,
        segment_begin=[begin for begin, _ in query.segments],
        segment_tokens=[count for _, count in query.segments],
        segment_status=bytes(found.status) if known else bytes(len(query.segments)),
        segment_tier=bytes(found.tier) if known else bytes(len(query.segments)),
        sample_begin=[sample.begin for sample in samples],
        sample_end=[sample.end for sample in samples],
        sample_micros=[_micros(sample) for sample in samples],
        measured=_measured(good) if r.attachment.greeting.splices else None,
        limit=None if query.limit is None or not losses else limit_section(query.limit),
        match=None if query.lookup is None else lookup_section(r, query.lookup),
    )


def _measured(samples: Sequence[_Timing]) -> AdviseMeasured | None:
    walks = [one for one in samples if isinstance(one, WalkTiming)][-MAX_SAMPLES:]
    captures = [one for one in samples if isinstance(one, CaptureTiming)][-MAX_SAMPLES:]
    if not walks and not captures:
        return None
    return AdviseMeasured(
        walk_rows=[walk.rows for walk in walks],
        walk_placed=[walk.placed for walk in walks],
        walk_micros=[_micros(walk) for walk in walks],
        capture_tokens=[capture.tokens for capture in captures],
        capture_micros=[_micros(capture) for capture in captures],
    )


def _micros(sample: _Timing) -> int:
    return int(sample.seconds * 1e6)


def _sensible(sample: _Timing) -> bool:
    """Returns whether the daemon accepts a sample. The daemon refuses a whole request that has a
    sample without time or tokens."""
    if isinstance(sample, Sample):
        fits = 0 <= sample.begin < sample.end <= MAX_TOKENS
    elif isinstance(sample, WalkTiming):
        most = MAX_TOKENS // 2  # so that the sum of both stays below the daemon's limit
        fits = 0 <= sample.rows <= most and 0 <= sample.placed <= most
        fits = fits and sample.rows + sample.placed > 0
    else:
        fits = 0 < sample.tokens <= MAX_TOKENS
    return fits and math.isfinite(sample.seconds) and 1 <= _micros(sample) < 2**32


def _advice(r: Registration, reply: AdviseReply, query: Query) -> Advice:
    """Checks and converts a reply. Positions are checked because an engine would save a wrong state
    at a wrong position."""
    tokens = len(query.tokens)
    if reply.seen_tokens > tokens or not 1 <= reply.way <= len(reply.way_micros):
        text = f"advise: {reply.seen_tokens} of {tokens} tokens seen, way {reply.way}"
        raise r.exchange.garbage(text)
    rows = len(query.segments) if reply.splice is None else reply.splice.segments
    if len(reply.segment_admit) != len(query.segments) or rows > len(query.segments):
        text = f"advise: {len(reply.segment_admit)} rows for {len(query.segments)} segments"
        raise r.exchange.garbage(text)
    positions = list(reply.positions)
    if positions != sorted(set(positions)) or any(not 0 < at <= tokens for at in positions):
        raise r.exchange.garbage(f"advise: positions {positions[:8]} of {tokens} tokens")
    loss: LossAdvice | None = unanswered(query.limit or LossLimit())
    if reply.loss is not None:
        loss = advice_of(reply.loss, len(query.segments))
    if loss is None or (loss.splicing is Splicing.REFRESHED and rows >= len(query.segments)):
        raise r.exchange.garbage(f"advise: {reply.loss} for {len(query.segments)} segments")
    return Advice(
        seen_tokens=reply.seen_tokens,
        way=reply.way,
        predicted=tuple(micros / 1e6 if micros >= 0 else math.inf for micros in reply.way_micros),
        checkpoints=tuple(
            CheckpointAdvice(at, admit == 1, why, reason, value)
            for at, admit, why, reason, value in zip(
                positions, reply.admit, reply.why, reply.reason, reply.value, strict=True
            )
        ),
        segments=tuple(
            SegmentAdvice(admit == 1, reason)
            for admit, reason in zip(reply.segment_admit, reply.segment_reason, strict=True)
        ),
        splice=None if reply.splice is None else reply.splice.segments,
        loss=loss,
        found=None if query.lookup is None else looked_up(r, query.lookup, reply.match),
    )
