"""Looking up a prompt: its longest saved prefix, and which of its segments are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spliced_connector.client import known as finding
from spliced_connector.client.known import KnownQuery, KnownSegment
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Accept, Reason, Status, Tier
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING
from spliced_connector.wire import (
    AdviseMatch,
    AdviseMatched,
    MatchPrimersQuery,
    MatchReply,
    MatchRequest,
    Op,
)

# One request has at most this number of keys and at most this number of prefixes. Keys, prefixes
# and positions then fill little more than half a frame.
_ROWS = 1024


@dataclass(frozen=True)
class Match:
    """What is cached of a prompt. A hit is a hint: only acquire and load lease something."""

    prefix_tokens: int = 0
    """Tokens of the longest saved prefix, 0 = none."""
    prefix_index: int = -1
    """Index of the longest saved prefix in the query's prefixes; -1 if no prefix is saved."""
    prefix_kind: Accept = Accept.NONE
    prefix_reason: int = Reason.NONE
    """A `Reason`: why no longer prefix was a hit."""
    prefix_tier: int = Tier.NONE
    status: Sequence[int] = ()
    """One `Status` for each key; `tier`, `reason` and `tokens` are parallel to it."""
    tier: Sequence[int] = ()
    reason: Sequence[int] = ()
    tokens: Sequence[int] = ()
    """Number of interior tokens (those that are not recomputed) of each hit. 0 if unknown, which
    happens in tier PEER only."""
    trouble: str = ""
    """Why everything is a miss; empty if the daemon has answered."""
    known: Sequence[KnownSegment] = ()
    """Cached segments that were found by a `KnownQuery`, ascending and without overlaps."""
    known_reason: int = Reason.NONE
    """`Reason.OFF`: `known` is empty because splicing is switched off for the profile."""
    prefix_states: int = 0
    """Number of tokens that the prefix's states cover. Of later tokens, up to `prefix_tokens`, the
    daemon has rows, see `Accept.ROWS`."""
    error: Sequence[float] = ()
    """Parallel to `status`: an upper bound on how much the stored form of a hit differs from the
    published data, relative to the data's norm (for transitions: to 1). 0 = identical."""
    variant: Sequence[int] = ()
    """Parallel to `status`: 1 at index i if the result at i is about the query's `others[i]`, which
    is a hit while `keys[i]` is not. 0 if it is about `keys[i]`."""

    def hit(self, i: int) -> bool:
        """Returns whether the segment of key i can be acquired."""
        return self.status[i] == Status.HIT

    @property
    def hits(self) -> list[bool]:
        """`hit` for each key."""
        return [status == Status.HIT for status in self.status]

    def within(self, most: float | None) -> list[bool]:
        """Returns for each key whether it is a hit with an error of at most `most` (None: any)."""
        if most is None:
            return self.hits
        return [hit and error <= most for hit, error in zip(self.hits, self.error, strict=True)]

    def near_variants(self, most: float | None) -> list[int]:
        """Returns `variant`, with 0 for keys that are not `within(most)`. Empty if all are 0."""
        if not any(self.variant):
            return []
        return [v if near else 0 for v, near in zip(self.variant, self.within(most), strict=True)]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The arguments of `Model.match`, for an advise request that includes the lookup."""

    positions: Sequence[int] = ()
    prefixes: Sequence[bytes] = ()
    keys: Sequence[bytes] = ()
    accept: Accept = Accept.EXACT
    others: Sequence[bytes] = ()
    primed: bytes = b""
    """Parallel to `keys`: bits PRIMED_KEY and PRIMED_DUE of each key. Empty: no bit is set."""

    @property
    def fits(self) -> bool:
        """Whether one advise request has room for this lookup and for its other fields."""
        hashes = len(self.keys) + len(self.others) + len(self.prefixes)
        return max(len(self.keys), len(self.prefixes)) <= _ROWS and hashes <= 2 * _ROWS


PRIMED_KEY, PRIMED_DUE = 1, 2
"""PRIMED_KEY: the key names the variant of a segment that was captured after the primer.
PRIMED_DUE: the variant that the key names is preferred at the segment's place in the prompt."""


def lookup_section(r: Registration, lookup: Lookup) -> AdviseMatch:
    """Returns the section of an advise request that makes the daemon look the prompt up."""
    return AdviseMatch(
        known_kinds(r, lookup.accept),
        lookup.positions,
        lookup.prefixes,
        lookup.keys,
        lookup.others if r.attachment.greeting.primers else (),
        lookup.primed or bytes(len(lookup.keys)),
    )


def looked_up(r: Registration, lookup: Lookup, m: AdviseMatched | None) -> Match:
    """Returns what the daemon has found. Raises `SplicedError` for an invalid answer."""
    if m is None:
        raise r.exchange.garbage("advise: no match, which was asked for")
    return _checked(
        r,
        m,
        lookup.positions,
        len(lookup.keys),
        bytes(m.variants),
        m.error,
        m.prefix_states,
        has_others=bool(lookup.others),
    )


def known_kinds(r: Registration, accept: Accept) -> Accept:
    """Returns `accept` without the kinds of checkpoints that the daemon does not support."""
    return accept if r.attachment.greeting.rows else accept & ~Accept.ROWS


def misses(keys: int, trouble: str) -> Match:
    """Returns a match that found nothing."""
    nothing = bytes(keys)
    none = (0,) * keys
    return Match(
        status=nothing,
        tier=nothing,
        reason=nothing,
        tokens=none,
        trouble=trouble,
        error=none,
        variant=nothing,
    )


def match(
    r: Registration,
    positions: Sequence[int],
    prefixes: Sequence[bytes],
    keys: Sequence[bytes],
    accept: Accept,
    known: KnownQuery | None = None,
    others: Sequence[bytes] = (),
) -> Match:
    """Looks up a prompt. Raises `SplicedError`."""
    if len(others) not in (0, len(keys)):
        raise SplicedError(Code.INVALID, f"{len(others)} other variants of {len(keys)} keys")
    if not r.attachment.greeting.primers:
        others = ()  # an older daemon
    if known is not None and not r.attachment.greeting.known:
        known = None  # an older daemon
    if len(positions) != len(prefixes):
        raise SplicedError(Code.INVALID, f"{len(positions)} positions, {len(prefixes)} prefixes")
    if len(keys) <= _ROWS and len(prefixes) <= _ROWS:
        return _match(r, positions, prefixes, keys, accept, 0, known, others)
    parts = []
    for at in range(0, max(len(keys), len(prefixes)), _ROWS):
        rows = slice(at, at + _ROWS)
        ask = known if at == 0 else None
        parts.append(
            _match(r, positions[rows], prefixes[rows], keys[rows], accept, at, ask, others[rows])
        )
    best = max(parts, key=lambda part: part.prefix_tokens)
    return Match(
        best.prefix_tokens,
        best.prefix_index,
        best.prefix_kind,
        best.prefix_reason,
        best.prefix_tier,
        b"".join(bytes(part.status) for part in parts),
        b"".join(bytes(part.tier) for part in parts),
        b"".join(bytes(part.reason) for part in parts),
        [n for part in parts for n in part.tokens],
        known=[k for k in parts[0].known if k.start >= best.prefix_tokens],
        known_reason=parts[0].known_reason,
        prefix_states=best.prefix_states,
        error=[error for part in parts for error in part.error],
        variant=b"".join(bytes(part.variant) for part in parts),
    )


def _match(
    r: Registration,
    positions: Sequence[int],
    prefixes: Sequence[bytes],
    keys: Sequence[bytes],
    accept: Accept,
    begin: int,
    known: KnownQuery | None,
    others: Sequence[bytes],
) -> Match:
    """Looks up one part of a query. `begin` is the index of its first prefix in the whole query."""
    call = r.call(Op.MATCH, r.options.timeout)
    request = MatchRequest(
        r.profile,
        known_kinds(r, accept),
        positions,
        prefixes,
        keys,
        primers=_primers(r, known, others),
    )
    if known is None:
        m = r.exchange.request(call, request, MatchReply)
    else:
        prompt, ask = finding.stage(r, call, known)
        try:
            m = r.exchange.request(call, replace(request, prompt=prompt, known=ask), MatchReply)
        finally:
            r.free_staging(call)
    variant = bytes(len(keys)) if m.primers is None else bytes(m.primers.variants)
    states = m.prefix_tokens if m.rows is None else m.rows.prefix_states
    found = _checked(
        r, m, positions, len(keys), variant, _errors(r, m), states, has_others=bool(others)
    )
    return replace(
        found,
        prefix_index=begin + found.prefix_index if found.prefix_tokens else -1,
        known=() if known is None else finding.found(r, known, m.known, m.primers),
        known_reason=Reason.NONE if m.known is None else m.known.reason,
    )


def _checked(
    r: Registration,
    m: MatchReply | AdviseMatched,
    positions: Sequence[int],
    keys: int,
    variant: bytes,
    error: Sequence[float],
    states: int,
    has_others: bool,
) -> Match:
    """Converts a reply about `keys` keys. Raises `SplicedError` for an invalid one."""
    if len(m.status) != keys:
        raise r.exchange.garbage(f"match: {len(m.status)} rows, want {keys}")
    if any(v and not (has_others and m.status[i] == Status.HIT) for i, v in enumerate(variant)):
        raise r.exchange.garbage("match: another variant, which was not asked for")
    index = m.prefix_index if m.prefix_tokens else -1
    if index >= len(positions) or (index >= 0 and positions[index] != m.prefix_tokens):
        raise r.exchange.garbage(f"match: {m.prefix_tokens} tokens at {m.prefix_index}")
    return Match(
        m.prefix_tokens,
        index,
        Accept(m.prefix_flags & (Accept.ANY | Accept.ROWS)),
        m.prefix_reason,
        m.prefix_tier,
        m.status,
        m.tier,
        m.reason,
        m.tokens,
        prefix_states=min(m.prefix_tokens, states),
        error=error,
        variant=variant,
    )


def _primers(
    r: Registration, known: KnownQuery | None, others: Sequence[bytes]
) -> MatchPrimersQuery | None:
    """Returns the section of a request that asks for segments captured after a primer, and for the
    other variants of keys. None if the query asks for neither, or if the daemon is too old."""
    primed = known is not None and bool(known.primer)
    if not r.attachment.greeting.primers or not (primed or others):
        return None
    if known is None or not primed:
        return MatchPrimersQuery(NOTHING, 0, 0, others)
    begin = min(known.primed_from, len(known.tokens))
    return MatchPrimersQuery(known.primer, begin, int(known.either), others)


def _errors(r: Registration, m: MatchReply) -> Sequence[float]:
    """Returns the error of each hit. An older daemon does not report errors; then each is the
    larger tolerance of the profile."""
    if m.estimates is not None:
        return m.estimates.error
    most = r.enrolment.profile.identity.most_error
    return [most if status == Status.HIT else 0.0 for status in m.status]
