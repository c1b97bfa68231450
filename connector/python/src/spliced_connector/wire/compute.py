"""Messages that have the daemon compute: compose, rotate, assemble, buffers and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.wire import schema as w
from spliced_connector.wire.numbers import (
    MAX_BLOCKS,
    MAX_KEYS,
    MAX_POSITIONS,
    MAX_SAMPLES,
    MAX_SPANS,
    MAX_WAYS,
)
from spliced_connector.wire.schema import Message, message


@message("compose request")
@dataclass(frozen=True, slots=True)
class ComposeRequest(Message):
    """Moves a state over a plan; the columns are the plan's spans."""

    profile: int = w.u32()
    rank: int = w.u32()
    layer: int = w.i32()
    begin: int = w.u32()
    end: int = w.u32()
    from_: int = w.u8()
    from_lease: int = w.u64()
    from_off: int = w.u64()
    into: int = w.u64()
    kinds: bytes = w.u8s(MAX_SPANS)
    leases: Sequence[int] = w.u64s(MAX_SPANS, rows="kinds")
    starts: Sequence[int] = w.u32s(MAX_SPANS, rows="kinds")
    counts: Sequence[int] = w.u32s(MAX_SPANS, rows="kinds")
    inputs: Sequence[int] = w.u64s(MAX_SPANS, rows="kinds")


@message("compose reply")
@dataclass(frozen=True, slots=True)
class ComposeReply(Message):
    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()


@message("rotate request")
@dataclass(frozen=True, slots=True)
class RotateRequest(Message):
    """Places keys and values of a plan's segments, in a slot or in registered memory."""

    profile: int = w.u32()
    rank: int = w.u32()
    layer: int = w.i32()
    memory: int = w.u32()
    begin: int = w.u32()
    end: int = w.u32()
    dest: int = w.u8()
    from_: int = w.u8()
    from_lease: int = w.u64()
    into: int = w.u64()
    kinds: bytes = w.u8s(MAX_SPANS)
    leases: Sequence[int] = w.u64s(MAX_SPANS, rows="kinds")
    starts: Sequence[int] = w.u32s(MAX_SPANS, rows="kinds")
    counts: Sequence[int] = w.u32s(MAX_SPANS, rows="kinds")
    inputs: Sequence[int] = w.u64s(MAX_SPANS, rows="kinds")
    blocks: Sequence[int] = w.u32s(MAX_BLOCKS)


@message("assemble request")
@dataclass(frozen=True, slots=True)
class AssembleRequest(RotateRequest):
    """Compose and rotate of all layers in one."""


@message("rotate reply")
@dataclass(frozen=True, slots=True)
class RotateReply(Message):
    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()
    rows: int = w.u32()


@message("append request")
@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    base: int = w.u64()
    begin: int = w.u32()
    capacity: int = w.u32()
    rows: int = w.u32()
    staging_off: int = w.u64()


@message("append reply")
@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    """Answers append and accept: what the buffer holds, in prompt positions."""

    buffer: int = w.u64()
    begin: int = w.u32()
    accepted: int = w.u32()
    end: int = w.u32()


@message("accept request")
@dataclass(frozen=True, slots=True)
class AcceptRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    tokens: int = w.u32()


@message("replay request")
@dataclass(frozen=True, slots=True)
class ReplayRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    token: int = w.u32()
    flush: int = w.u8()
    into: int = w.u64()


@message("advise request")
@dataclass(frozen=True, slots=True)
class AdviseRequest(Message):
    """Asks what to use and what to store for a prompt whose token ids lie in staging."""

    profile: int = w.u32()
    record: int = w.u8()
    block_tokens: int = w.u32()
    max_checkpoints: int = w.u32()
    tokens: int = w.u32()
    token_off: int = w.u64()
    output: int = w.u32()
    prefix_tokens: int = w.u32()
    prefix_tier: int = w.u8()
    buffer_tokens: int = w.u32()
    seam_tokens: int = w.u32()
    cuts: Sequence[int] = w.u32s(MAX_KEYS)
    segment_begin: Sequence[int] = w.u32s(MAX_KEYS)
    segment_tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="segment_begin")
    segment_status: bytes = w.u8s(MAX_KEYS, rows="segment_begin")
    segment_tier: bytes = w.u8s(MAX_KEYS, rows="segment_begin")
    sample_begin: Sequence[int] = w.u32s(MAX_SAMPLES)
    sample_end: Sequence[int] = w.u32s(MAX_SAMPLES, rows="sample_begin")
    sample_micros: Sequence[int] = w.u32s(MAX_SAMPLES, rows="sample_begin")


@message("advise reply")
@dataclass(frozen=True, slots=True)
class AdviseReply(Message):
    seen_tokens: int = w.u32()
    way: int = w.u8()
    way_micros: Sequence[float] = w.f64s(MAX_WAYS)
    positions: Sequence[int] = w.u32s(MAX_POSITIONS)
    why: bytes = w.u8s(MAX_POSITIONS, rows="positions")
    admit: bytes = w.u8s(MAX_POSITIONS, rows="positions")
    reason: bytes = w.u8s(MAX_POSITIONS, rows="positions")
    value: Sequence[float] = w.f64s(MAX_POSITIONS, rows="positions")
    segment_admit: bytes = w.u8s(MAX_KEYS)
    segment_reason: bytes = w.u8s(MAX_KEYS, rows="segment_admit")
