"""Finding cached segments anywhere in a prompt by its token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.client.connection.flight import Call
from spliced_connector.client.registration import Registration
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING, token_bytes
from spliced_connector.wire import MatchKnown, MatchKnownQuery, MatchPrimers, MatchPrompt, numbers

MAX_PROMPT = numbers.MAX_PROMPT
"""The most tokens of a prompt that can be searched."""


@dataclass(frozen=True)
class KnownQuery:
    """A prompt in which cached segments are searched, at any position."""

    tokens: Sequence[int]
    """The prompt's token ids, at most `MAX_PROMPT`."""
    begin: int = 0
    """Only segments from this token on, and after the cached prefix, are found."""
    seam_tokens: int = 0
    """Seam width, in tokens, of segments that do not begin at token 0."""
    primer: bytes = b""
    """Digest of the primer that segments beginning at `primed_from` or later should have. Empty: no
    primer. A segment at token 0 never has a primer."""
    primed_from: int = 0
    """Segments that begin earlier should have no primer."""
    either: bool = True
    """Whether the other variant of a segment is accepted if the preferred one is not cached."""

    def prefers_primed(self, start: int) -> bool:
        """Returns whether the primed variant is preferred for a segment that begins at a token."""
        return bool(self.primer) and start > 0 and start >= self.primed_from


@dataclass(frozen=True)
class KnownSegment:
    """Tokens [start, start + tokens) of the prompt are a cached segment."""

    start: int
    tokens: int
    key: bytes
    tier: int
    """A `Tier`."""
    interior: int
    """Number of tokens that are not recomputed."""
    primed: bool = False
    """Whether the segment was captured after the primer of the query."""

    @property
    def end(self) -> int:
        """Returns the position after its last token."""
        return self.start + self.tokens


def stage(r: Registration, call: Call, query: KnownQuery) -> tuple[MatchPrompt, MatchKnownQuery]:
    """Builds the query, with the token ids in the call's staging. Raises `SplicedError`."""
    n = len(query.tokens)
    if not 1 <= n <= MAX_PROMPT:
        raise SplicedError(Code.INVALID, f"known: {n} tokens, want 1 to {MAX_PROMPT}")
    if not (0 <= query.begin <= n and 0 <= query.seam_tokens <= n):
        text = f"known: from token {query.begin} on with seams of {query.seam_tokens}, of {n}"
        raise SplicedError(Code.INVALID, text)
    if query.primed_from < 0 or len(query.primer) not in (0, len(NOTHING)):
        text = f"known: primer of {len(query.primer)} bytes from token {query.primed_from} on"
        raise SplicedError(Code.INVALID, text)
    ids = token_bytes(query.tokens)
    staging = r.attachment.staging
    part = staging.allocate(len(ids), call.deadline)
    call.late.staged = [part]
    staging.bytes_of(part)[:] = ids
    return MatchPrompt(n, part.offset), MatchKnownQuery(query.begin, query.seam_tokens)


def found(
    r: Registration, query: KnownQuery, reply: MatchKnown | None, primers: MatchPrimers | None
) -> tuple[KnownSegment, ...]:
    """Checks and converts an answer. A wrong answer could make an engine place a state at the wrong
    tokens.

    An older daemon (`primers` is None) finds segments without a primer. They are dropped where
    the query does not accept them.
    """
    if reply is None:
        raise r.exchange.garbage("match: no answer to known")
    primed = bytes(len(reply.starts)) if primers is None else primers.primed
    if len(primed) != len(reply.starts):
        text = f"match: {len(primed)} variants of {len(reply.starts)} segments"
        raise r.exchange.garbage(text)
    columns = zip(
        reply.starts, reply.lengths, reply.keys, reply.tiers, reply.interiors, primed, strict=True
    )
    segments = tuple(
        KnownSegment(start, count, bytes(key), tier, interior, bool(after))
        for start, count, key, tier, interior, after in columns
    )
    at = query.begin
    for segment in segments:
        if segment.start < at or segment.tokens < 1 or segment.end > len(query.tokens):
            text = f"match: segment [{segment.start}, {segment.end}) behind token {at}"
            raise r.exchange.garbage(text)
        at = segment.end
    if query.either:
        return segments
    return tuple(s for s in segments if s.primed or not query.prefers_primed(s.start))
