"""Messages about the connection itself: hello, profile, cancel, release, abort, stats, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.wire import schema as w
from spliced_connector.wire.numbers import (
    MAX_ERROR_TEXT,
    MAX_IDENTITY,
    MAX_IDS,
    MAX_MEMORY_LAYERS,
    MAX_NAME,
    MAX_SALT,
    MAX_STATS,
    MAX_TENANTS,
    MAX_TOKEN,
)
from spliced_connector.wire.schema import Message, message


@message("hello request")
@dataclass(frozen=True, slots=True)
class HelloRequest(Message):
    """Opens a connection. Sizes are wishes in bytes; 0 takes the daemon's default."""

    min_version: int = w.u16()
    max_version: int = w.u16()
    features: int = w.u64()
    staging_bytes: int = w.u64()
    slot_bytes: int = w.u64()
    client: str = w.text(MAX_NAME)
    tenant_names: Sequence[str] = w.texts(MAX_TENANTS, MAX_NAME)
    tenant_tokens: Sequence[str] = w.texts(MAX_TENANTS, MAX_TOKEN, rows="tenant_names")


@message("hello reply")
@dataclass(frozen=True, slots=True)
class HelloReply(Message):
    """Comes with three descriptors: arena, slots and staging."""

    version: int = w.u16()
    features: int = w.u64()
    connection: int = w.u64()
    boot_epoch: int = w.u64()
    arena_bytes: int = w.u64()
    slot_bytes: int = w.u64()
    staging_bytes: int = w.u64()
    max_frame: int = w.u32()
    max_in_flight: int = w.u32()
    server: str = w.text(MAX_NAME)
    tenant_ids: Sequence[int] = w.u32s(MAX_TENANTS)
    tenant_salts: Sequence[bytes] = w.blobs(MAX_TENANTS, MAX_SALT, rows="tenant_ids")


@message("profile request")
@dataclass(frozen=True, slots=True)
class ProfileRequest(Message):
    """Registers an identity; with memory bytes above 0 one descriptor comes along."""

    block_tokens: int = w.u32()
    probe_tokens: int = w.u32()
    segment_bytes: int = w.u64()
    checkpoint_bytes: int = w.u64()
    memory_bytes: int = w.u64()
    identity: bytes = w.u8s(MAX_IDENTITY)
    connector: str = w.text(MAX_NAME)
    engine: str = w.text(MAX_NAME)
    memory_layer: Sequence[int] = w.u32s(MAX_MEMORY_LAYERS)
    memory_k_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_block_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")


@message("profile reply")
@dataclass(frozen=True, slots=True)
class ProfileReply(Message):
    profile: int = w.u32()
    memory: int = w.u32()
    fingerprint: bytes = w.hash32()


@message("cancel request")
@dataclass(frozen=True, slots=True)
class CancelRequest(Message):
    requests: Sequence[int] = w.u64s(MAX_IDS)


@message("cancel reply")
@dataclass(frozen=True, slots=True)
class CancelReply(Message):
    """Outcomes: 0 not in flight, 1 stopped, 2 ended by itself."""

    outcomes: bytes = w.u8s(MAX_IDS)


@message("release request")
@dataclass(frozen=True, slots=True)
class ReleaseRequest(Message):
    leases: Sequence[int] = w.u64s(MAX_IDS)


@message("abort request")
@dataclass(frozen=True, slots=True)
class AbortRequest(Message):
    reservations: Sequence[int] = w.u64s(MAX_IDS)


@message("codes reply")
@dataclass(frozen=True, slots=True)
class CodesReply(Message):
    codes: Sequence[int] = w.u16s(MAX_IDS)


@message("stats request")
@dataclass(frozen=True, slots=True)
class StatsRequest(Message):
    pass


@message("stats reply")
@dataclass(frozen=True, slots=True)
class StatsReply(Message):
    values: Sequence[float] = w.f64s(MAX_STATS)
    names: Sequence[str] = w.texts(MAX_STATS, MAX_NAME, rows="values")


@message("report request")
@dataclass(frozen=True, slots=True)
class ReportRequest(Message):
    """What a canary has seen since its last report; `off` 1 switches splicing off."""

    profile: int = w.u32()
    compared: int = w.u32()
    failed: int = w.u32()
    worst: float = w.f64()
    bound: float = w.f64()
    off: int = w.u8()
    text: str = w.text(MAX_ERROR_TEXT)


@message("report reply")
@dataclass(frozen=True, slots=True)
class ReportReply(Message):
    off: int = w.u8()
