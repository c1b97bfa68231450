"""Held segments that stand somewhere in a prompt, found by its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.client.connection.flight import Call
from spliced_connector.client.registration import Registration
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import token_bytes
from spliced_connector.wire import MatchKnown, MatchKnownQuery, MatchPrompt, numbers

MAX_PROMPT = numbers.MAX_PROMPT
"""Tokens of a prompt that is looked through."""


@dataclass(frozen=True)
class KnownQuery:
    """A prompt in which held segments are looked for, wherever they begin."""

    tokens: Sequence[int]
    """At most `MAX_PROMPT`."""
    begin: int = 0
    """Segments begin there at the earliest, and behind the prefix that is found."""
    seam_tokens: int = 0
    """Seam width of the segments behind token 0."""


@dataclass(frozen=True)
class KnownSegment:
    """Tokens [start, start + tokens) of the prompt are a segment that is held."""

    start: int
    tokens: int
    key: bytes
    tier: int
    """A `Tier`."""
    interior: int
    """Tokens that are not computed again."""

    @property
    def end(self) -> int:
        """The token behind it."""
        return self.start + self.tokens


def stage(r: Registration, call: Call, query: KnownQuery) -> tuple[MatchPrompt, MatchKnownQuery]:
    """The question, with the token ids in staging, which is the call's. Raises `SplicedError`."""
    n = len(query.tokens)
    if not 1 <= n <= MAX_PROMPT:
        raise SplicedError(Code.INVALID, f"known: {n} tokens, want 1 to {MAX_PROMPT}")
    if not (0 <= query.begin <= n and 0 <= query.seam_tokens <= n):
        text = f"known: from token {query.begin} on with seams of {query.seam_tokens}, of {n}"
        raise SplicedError(Code.INVALID, text)
    ids = token_bytes(query.tokens)
    staging = r.attachment.staging
    part = staging.allocate(len(ids), call.deadline)
    call.late.staged = [part]
    staging.bytes_of(part)[:] = ids
    return MatchPrompt(n, part.offset), MatchKnownQuery(query.begin, query.seam_tokens)


def found(r: Registration, query: KnownQuery, reply: MatchKnown | None) -> tuple[KnownSegment, ...]:
    """Check an answer: an engine would place a state at the wrong tokens."""
    if reply is None:
        raise r.exchange.garbage("match: no answer to known")
    columns = zip(
        reply.starts, reply.lengths, reply.keys, reply.tiers, reply.interiors, strict=True
    )
    segments = tuple(
        KnownSegment(start, count, bytes(key), tier, interior)
        for start, count, key, tier, interior in columns
    )
    at = query.begin
    for segment in segments:
        if segment.start < at or segment.tokens < 1 or segment.end > len(query.tokens):
            text = f"match: segment [{segment.start}, {segment.end}) behind token {at}"
            raise r.exchange.garbage(text)
        at = segment.end
    return segments
