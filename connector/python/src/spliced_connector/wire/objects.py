"""Messages about segments and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.wire import schema as w
from spliced_connector.wire.numbers import (
    MAX_COMMIT_ROWS,
    MAX_DIGESTS,
    MAX_EXTENTS,
    MAX_KEYS,
    MAX_NODES,
    MAX_TABLE,
)
from spliced_connector.wire.schema import Message, message


@message("match request")
@dataclass(frozen=True, slots=True)
class MatchRequest(Message):
    """Asks for the longest saved prefix, and for the status of each segment."""

    profile: int = w.u32()
    accept: int = w.u8()
    positions: Sequence[int] = w.u32s(MAX_KEYS)
    prefixes: Sequence[bytes] = w.hashes(MAX_KEYS, rows="positions")
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("match reply")
@dataclass(frozen=True, slots=True)
class MatchReply(Message):
    prefix_tokens: int = w.u32()
    prefix_index: int = w.u32()
    prefix_flags: int = w.u8()
    prefix_reason: int = w.u8()
    prefix_tier: int = w.u8()
    status: bytes = w.u8s(MAX_KEYS)
    tier: bytes = w.u8s(MAX_KEYS, rows="status")
    reason: bytes = w.u8s(MAX_KEYS, rows="status")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="status")


@message("acquire request")
@dataclass(frozen=True, slots=True)
class AcquireRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    block_tokens: int = w.u32()
    digests: int = w.u8()
    all: int = w.u8()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("acquire reply")
@dataclass(frozen=True, slots=True)
class AcquireReply(Message):
    codes: Sequence[int] = w.u16s(MAX_KEYS)
    leases: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")
    bytes: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")
    begins: Sequence[int] = w.u32s(MAX_KEYS, rows="codes")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="codes")
    extent_count: Sequence[int] = w.u32s(MAX_KEYS, rows="codes", divides="extent_off")
    extent_off: Sequence[int] = w.u64s(MAX_EXTENTS)
    extent_len: Sequence[int] = w.u64s(MAX_EXTENTS, rows="extent_off")
    digest_count: Sequence[int] = w.u32s(MAX_KEYS, rows="codes", divides="digest")
    digest: Sequence[int] = w.u64s(MAX_DIGESTS)
    block_count: Sequence[int] = w.u32s(MAX_KEYS, rows="codes", divides="block", optional=True)
    block: Sequence[int] = w.u64s(MAX_TABLE)


@message("reserve request")
@dataclass(frozen=True, slots=True)
class ReserveRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)
    roles: bytes = w.u8s(MAX_KEYS, rows="keys")
    heads: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    tails: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    token_off: Sequence[int] = w.u64s(MAX_KEYS, rows="keys")


@message("reserve reply")
@dataclass(frozen=True, slots=True)
class ReserveReply(Message):
    codes: Sequence[int] = w.u16s(MAX_KEYS)
    reservations: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")
    bytes: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")


@message("commit request")
@dataclass(frozen=True, slots=True)
class CommitRequest(Message):
    level: int = w.u8()
    reservations: Sequence[int] = w.u64s(MAX_COMMIT_ROWS)
    parts: Sequence[int] = w.u32s(MAX_COMMIT_ROWS, rows="reservations")
    chunk_first: Sequence[int] = w.u32s(MAX_COMMIT_ROWS, rows="reservations")
    chunk_count: Sequence[int] = w.u32s(MAX_COMMIT_ROWS, rows="reservations", divides="digest")
    staging_off: Sequence[int] = w.u64s(MAX_COMMIT_ROWS, rows="reservations")
    digest: Sequence[int] = w.u64s(MAX_DIGESTS)


@message("commit reply")
@dataclass(frozen=True, slots=True)
class CommitReply(Message):
    codes: Sequence[int] = w.u16s(MAX_COMMIT_ROWS)
    published: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")
    levels: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")


@message("save request")
@dataclass(frozen=True, slots=True)
class SaveRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    kind: int = w.u8()
    hashes: Sequence[bytes] = w.hashes(MAX_KEYS)
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="hashes")
    parents: Sequence[bytes] = w.hashes(MAX_KEYS, rows="hashes")


@message("load request")
@dataclass(frozen=True, slots=True)
class LoadRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    accept: int = w.u8()
    digests: int = w.u8()
    hash: bytes = w.hash32()


@message("load reply")
@dataclass(frozen=True, slots=True)
class LoadReply(Message):
    lease: int = w.u64()
    tokens: int = w.u32()
    kind: int = w.u8()
    node_begin: Sequence[int] = w.u32s(MAX_NODES)
    node_end: Sequence[int] = w.u32s(MAX_NODES, rows="node_begin")
    extent_count: Sequence[int] = w.u32s(MAX_NODES, rows="node_begin", divides="extent_off")
    extent_off: Sequence[int] = w.u64s(MAX_EXTENTS)
    extent_len: Sequence[int] = w.u64s(MAX_EXTENTS, rows="extent_off")
    digest_count: Sequence[int] = w.u32s(MAX_NODES, rows="node_begin", divides="digest")
    digest: Sequence[int] = w.u64s(MAX_DIGESTS)
