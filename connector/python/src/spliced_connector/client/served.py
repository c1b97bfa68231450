"""Reporting to the daemon how a prompt was served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from spliced_connector.client.match import Match
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Reason, Tier, Way
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import MAX_TOKENS, Profile, Prompt
from spliced_connector.wire import Op, ServedLoss, ServedReply, ServedRequest
from spliced_connector.wire.numbers import MAX_KEYS, MAX_NAME, MAX_WAYS

_MOST_MICROS = (1 << 32) - 1
_NO_KEY = bytes(32)


@dataclass(frozen=True, slots=True)
class ServedSegment:
    """Tokens [begin, begin + tokens) of a prompt, which are one segment. Among them, tokens
    [at, at + reused) came from the cached segment `key`; they lie after the reused prefix."""

    begin: int
    tokens: int
    key: bytes = _NO_KEY
    at: int = 0
    reused: int = 0
    tier: int = Tier.NONE
    """The `Tier` where match found the segment."""
    reason: int = Reason.NONE
    """The `Reason` why the segment is a miss."""


@dataclass(frozen=True, slots=True)
class Served:
    """How one prompt was served. Tokens that came neither from the engine's own cache, nor from a
    checkpoint, nor from a segment were computed. Times are in seconds, 0 = not measured."""

    way: int
    """A `Way`."""
    tokens: int
    """Number of tokens of the prompt."""
    engine: int = 0
    """Number of leading tokens that came from the engine's own cache."""
    prefix: int = 0
    """Number of tokens after these that came from a checkpoint."""
    prefix_tier: int = Tier.NONE
    prefix_reason: int = Reason.NONE
    """A `Reason`, from match: why no longer prefix was used."""
    segments: Sequence[ServedSegment] = ()
    """The segments that the prompt was cut into: ascending, without overlaps."""
    read_bytes: int = 0
    """Size of the states and rows that were read or composed."""
    decided: float = 0.0
    """Time taken to decide on the way."""
    waited: float = 0.0
    """Time spent waiting for bytes after that decision."""
    first: float = 0.0
    """From the request's arrival to its first token."""
    predicted: Sequence[float] = ()
    """`Advice.predicted`: the seconds that each way takes, at index `way - 1`."""
    loss: float | None = None
    """The expected loss of what was spliced, from `Advice.loss`; None if not known."""
    request: str = ""
    """The engine's id of the request, shown to people. A long one is cut."""
    trace: str = ""
    """A traceparent of W3C Trace Context; empty = none."""


def served(r: Registration, report: Served) -> tuple[int, float | None]:
    """Reports to the daemon. Returns the number that the request is listed under, and the share of
    spliced requests that a canary should recompute (None: the share in the canary's own settings).
    Raises `SplicedError`."""
    counts = [report.engine, report.prefix, report.read_bytes]
    counts += [n for s in report.segments for n in (s.begin, s.tokens, s.at, s.reused)]
    if not 1 <= report.tokens <= MAX_TOKENS or min(counts) < 0:
        raise SplicedError(Code.INVALID, f"served: tokens {report.tokens}, or a negative count")
    if len(report.segments) > MAX_KEYS or len(report.predicted) > MAX_WAYS:
        raise SplicedError(
            Code.INVALID, f"served: {len(report.segments)} segments, at most {MAX_KEYS}"
        )
    request = ServedRequest(
        profile=r.profile,
        way=report.way,
        tokens=report.tokens,
        engine=report.engine,
        prefix=report.prefix,
        prefix_tier=report.prefix_tier,
        prefix_reason=report.prefix_reason,
        read_bytes=report.read_bytes,
        match_micros=_micros(report.decided),
        wait_micros=_micros(report.waited),
        first_micros=_micros(report.first),
        way_micros=[1e6 * seconds for seconds in report.predicted],
        begins=[s.begin for s in report.segments],
        counts=[s.tokens for s in report.segments],
        at=[s.at for s in report.segments],
        reused=[s.reused for s in report.segments],
        tiers=bytes(s.tier for s in report.segments),
        reasons=bytes(s.reason for s in report.segments),
        keys=[s.key for s in report.segments],
        request=_short(report.request),
        trace=report.trace if len(report.trace) <= MAX_NAME else "",
        loss=None
        if report.loss is None or not r.attachment.greeting.losses
        else ServedLoss(report.loss),
    )
    call = r.call(Op.SERVED, r.options.timeout)
    reply = r.exchange.request(call, request, ServedReply)
    return reply.number, reply.canary_share if 0 <= reply.canary_share <= 1 else None


def served_segments(
    prompt: Prompt, match: Match, reused: Mapping[int, tuple[int, int]]
) -> tuple[ServedSegment, ...]:
    """Returns how the segments of a prompt were served, for each segment that has a key.

    match: the lookup of exactly these keys, in order, or of no keys. reused: the fields `at` and
    `reused` of the segments that came from the daemon, by the index of their piece.
    """
    answers = chain(zip(match.tier, match.reason, strict=True), repeat((Tier.NONE, Reason.NONE)))
    rows = []
    for piece in prompt.pieces:
        if piece.key is not None:
            place, answer = reused.get(piece.index, (0, 0)), next(answers)
            rows.append(ServedSegment(piece.start, piece.tokens, piece.key, *place, *answer))
    return tuple(rows)


def served_bytes(profile: Profile, prefix: int, segments: Sequence[ServedSegment]) -> int:
    """Returns the bytes of states and rows that were read or composed: of a checkpoint with
    `prefix` tokens beyond those in the engine's own cache, and of segments."""
    read = profile.checkpoint_bytes(prefix) if prefix else 0
    return read + sum(profile.segment_bytes(row.reused) for row in segments if row.reused)


def way_of(prefix: int, reused: int) -> Way:
    """Returns the way a prompt was served, given its tokens from a checkpoint and from segments."""
    if reused:
        return Way.SPLICE
    return Way.PREFIX if prefix else Way.RECOMPUTE


def _micros(seconds: float) -> int:
    """Converts seconds to microseconds: at least 1 for any positive time."""
    if not seconds > 0:  # also NaN
        return 0
    return min(max(math.ceil(min(seconds, 1e6) * 1e6), 1), _MOST_MICROS)


def _short(name: str) -> str:
    return name.encode(errors="replace")[:MAX_NAME].decode(errors="ignore")
