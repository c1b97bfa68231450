# Code generated from connector/wire/schema by wiregen; DO NOT EDIT.
"""The messages, in the order of their fields on the wire (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.wire import schema as w
from spliced_connector.wire.numbers import (
    HANDLE_BYTES,
    LOSS_WAYS,
    MAX_BLOCKS,
    MAX_CHUNKS,
    MAX_COMMIT_ROWS,
    MAX_DIGESTS,
    MAX_ERROR_TEXT,
    MAX_EXTENTS,
    MAX_IDENTITY,
    MAX_IDS,
    MAX_JOB_TOKENS,
    MAX_KEYS,
    MAX_MEMORY_LAYERS,
    MAX_NAME,
    MAX_NODES,
    MAX_PACKED,
    MAX_PLAN_ROWS,
    MAX_POSITIONS,
    MAX_PRIMERS,
    MAX_SALT,
    MAX_SAMPLES,
    MAX_SPANS,
    MAX_STATS,
    MAX_TENANTS,
    MAX_TOKEN,
    MAX_WAYS,
    MAX_WORKER_JOBS,
    UUID_BYTES,
    Feature,
    Op,
    ShareWay,
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
    """Carries three descriptors, in this order: the public arena and the private slots (both can
    only be read), and staging (read and write).
    """

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
    """Registers an identity and this engine's binding. It may carry one descriptor: engine memory,
    described by Memory. Segment and checkpoint bytes are the engine's own sizes, which must
    agree with the daemon's.
    """

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
    """Answers ProfileRequest."""

    profile: int = w.u32()
    memory: int = w.u32()
    fingerprint: bytes = w.hash32()


@message("abort request")
@dataclass(frozen=True, slots=True)
class AbortRequest(Message):
    """Gives reservations back."""

    reservations: Sequence[int] = w.u64s(MAX_IDS)


@message("codes reply")
@dataclass(frozen=True, slots=True)
class CodesReply(Message):
    """Answers requests that give ids back, one row for each."""

    codes: Sequence[int] = w.u16s(MAX_IDS)


@message("cancel request")
@dataclass(frozen=True, slots=True)
class CancelRequest(Message):
    """Stops requests of this connection. The reply comes when none of them can touch a destination
    any more.
    """

    requests: Sequence[int] = w.u64s(MAX_IDS)


@message("cancel reply")
@dataclass(frozen=True, slots=True)
class CancelReply(Message):
    """Has one row for each request id."""

    outcomes: bytes = w.u8s(MAX_IDS)


@message("release request")
@dataclass(frozen=True, slots=True)
class ReleaseRequest(Message):
    """Gives leases back: segments, checkpoints and slots alike."""

    leases: Sequence[int] = w.u64s(MAX_IDS)


@message("stats request")
@dataclass(frozen=True, slots=True)
class StatsRequest(Message):
    """Has an empty body."""


@message("stats reply")
@dataclass(frozen=True, slots=True)
class StatsReply(Message):
    """Lists counters and gauges by name, in a stable order."""

    values: Sequence[float] = w.f64s(MAX_STATS)
    names: Sequence[str] = w.texts(MAX_STATS, MAX_NAME, rows="values")


@message("report request: losses")
@dataclass(frozen=True, slots=True)
class ReportLosses(Message):
    """Counts requests that were spliced and computed in full, and of them those whose first token
    changed, in the order of LossWays.
    """

    offline: int = w.u8()
    compared: Sequence[int] = w.u32s(LOSS_WAYS)
    changed: Sequence[int] = w.u32s(LOSS_WAYS, rows="compared")

    def check(self) -> None:
        self.same("compared", len(self.compared), LOSS_WAYS)


@message("report request")
@dataclass(frozen=True, slots=True)
class ReportRequest(Message):
    """Reports a canary's results: reuses of segments that an engine recomputed and compared. The
    counts are those since the last report.
    """

    profile: int = w.u32()
    compared: int = w.u32()
    failed: int = w.u32()
    worst: float = w.f64()
    bound: float = w.f64()
    off: int = w.u8()
    text: str = w.text(MAX_ERROR_TEXT)
    losses: ReportLosses | None = w.section(ReportLosses, Feature.LOSSES)  # noqa: RUF009


@message("report reply")
@dataclass(frozen=True, slots=True)
class ReportReply(Message):
    """Answers a ReportRequest."""

    off: int = w.u8()


@message("match request: prompt")
@dataclass(frozen=True, slots=True)
class MatchPrompt(Message):
    """The prompt that a match is for."""

    tokens: int = w.u32()
    token_off: int = w.u64()


@message("match request: known")
@dataclass(frozen=True, slots=True)
class MatchKnownQuery(Message):
    """Asks which held segments the prompt contains; its token ids must be in staging. The search
    starts at Begin, and after the prefix that this match finds.
    """

    begin: int = w.u32()
    seam_tokens: int = w.u32()


@message("match request: primers")
@dataclass(frozen=True, slots=True)
class MatchPrimersQuery(Message):
    """Asks for segments that exist in two variants, captured after a primer or without one. Others
    has the second variant of each key. The scalars concern Known only.
    """

    primer: bytes = w.hash32()
    primed_from: int = w.u32()
    either: int = w.u8()
    others: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("match request")
@dataclass(frozen=True, slots=True)
class MatchRequest(Message):
    """Asks for the longest private prefix and then for the status of each segment, in one round
    trip. Positions ascend.
    """

    profile: int = w.u32()
    accept: int = w.u8()
    positions: Sequence[int] = w.u32s(MAX_KEYS)
    prefixes: Sequence[bytes] = w.hashes(MAX_KEYS, rows="positions")
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)
    prompt: MatchPrompt | None = w.section(MatchPrompt, Feature.PROMPT)  # noqa: RUF009
    known: MatchKnownQuery | None = w.section(MatchKnownQuery, Feature.KNOWN)  # noqa: RUF009
    primers: MatchPrimersQuery | None = w.section(MatchPrimersQuery, Feature.PRIMERS)  # noqa: RUF009


@message("match reply: estimates")
@dataclass(frozen=True, slots=True)
class MatchEstimates(Message):
    """Gives the expected time of using the prefix and each row, and its error. Micros are until its
    bytes can be read, 2^32-1 where nothing is known. An error is a bound on the relative error
    of the bytes held: 0 for what was written, +Inf where nothing is known.
    """

    prefix_micros: int = w.u32()
    prefix_error: float = w.f64()
    micros: Sequence[int] = w.u32s(MAX_KEYS, rows="status")
    error: Sequence[float] = w.f64s(MAX_KEYS, rows="status")


@message("match reply: known")
@dataclass(frozen=True, slots=True)
class MatchKnown(Message):
    """Lists segments that are held: tokens [Starts[i], Starts[i]+Lengths[i]) of the prompt have
    Keys[i]. They ascend and do not overlap.
    """

    untried: int = w.u32()
    reason: int = w.u8()
    starts: Sequence[int] = w.u32s(MAX_KEYS)
    lengths: Sequence[int] = w.u32s(MAX_KEYS, rows="starts")
    keys: Sequence[bytes] = w.hashes(MAX_KEYS, rows="starts")
    tiers: bytes = w.u8s(MAX_KEYS, rows="starts")
    interiors: Sequence[int] = w.u32s(MAX_KEYS, rows="starts")


@message("match reply: rows")
@dataclass(frozen=True, slots=True)
class MatchRows(Message):
    """Gives the part of the prefix that has states; those of later tokens are rebuilt from rows."""

    prefix_states: int = w.u32()


@message("match reply: primers")
@dataclass(frozen=True, slots=True)
class MatchPrimers(Message):
    """Says which variant each row is about."""

    variants: bytes = w.u8s(MAX_KEYS, rows="status")
    primed: bytes = w.u8s(MAX_KEYS)


@message("match reply")
@dataclass(frozen=True, slots=True)
class MatchReply(Message):
    """Has one row for each key of the request."""

    prefix_tokens: int = w.u32()
    prefix_index: int = w.u32()
    prefix_flags: int = w.u8()
    prefix_reason: int = w.u8()
    prefix_tier: int = w.u8()
    status: bytes = w.u8s(MAX_KEYS)
    tier: bytes = w.u8s(MAX_KEYS, rows="status")
    reason: bytes = w.u8s(MAX_KEYS, rows="status")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="status")
    estimates: MatchEstimates | None = w.section(MatchEstimates, Feature.ESTIMATES)  # noqa: RUF009
    known: MatchKnown | None = w.section(MatchKnown, Feature.KNOWN)  # noqa: RUF009
    rows: MatchRows | None = w.section(MatchRows, Feature.ROWS)  # noqa: RUF009
    primers: MatchPrimers | None = w.section(MatchPrimers, Feature.PRIMERS)  # noqa: RUF009


@message("acquire request")
@dataclass(frozen=True, slots=True)
class AcquireRequest(Message):
    """Leases segments for reading by one rank."""

    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    reserved: int = w.u32()
    digests: int = w.u8()
    all: int = w.u8()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("acquire reply: packed")
@dataclass(frozen=True, slots=True)
class AcquirePacked(Message):
    """Gives the layouts of segments with packed parts: row i has Count[i] bytes of Layout, a
    Packed, none where nothing is packed.
    """

    count: Sequence[int] = w.u32s(MAX_KEYS, rows="codes", divides="layout")
    layout: bytes = w.u8s(MAX_PACKED)


@message("acquire reply")
@dataclass(frozen=True, slots=True)
class AcquireReply(Message):
    """Has one row for each key. Extents are in the public arena and stay valid and unchanged until
    the lease is released; Digest holds, for each hit in order, one digest for each chunk of each
    part, and is empty unless asked for. The reserved columns, once block tables, are empty.
    """

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
    reserved_count: Sequence[int] = w.u32s(
        MAX_KEYS, rows="codes", divides="reserved", optional=True
    )
    reserved: Sequence[int] = w.u64s(MAX_KEYS)
    packed: AcquirePacked | None = w.section(AcquirePacked, Feature.PACKED)  # noqa: RUF009


@message("reserve request: primers")
@dataclass(frozen=True, slots=True)
class ReservePrimers(Message):
    """Names the primer after which each segment was captured."""

    ids: Sequence[bytes] = w.hashes(MAX_KEYS, rows="keys")


@message("reserve request")
@dataclass(frozen=True, slots=True)
class ReserveRequest(Message):
    """Asks for room for segments. Token ids (little-endian uint32) lie in staging; the daemon
    recomputes each key from them.
    """

    profile: int = w.u32()
    rank: int = w.u32()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)
    roles: bytes = w.u8s(MAX_KEYS, rows="keys")
    heads: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    tails: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="keys")
    token_off: Sequence[int] = w.u64s(MAX_KEYS, rows="keys")
    primers: ReservePrimers | None = w.section(ReservePrimers, Feature.PRIMERS)  # noqa: RUF009


@message("reserve reply")
@dataclass(frozen=True, slots=True)
class ReserveReply(Message):
    """Has one row for each key."""

    codes: Sequence[int] = w.u16s(MAX_KEYS)
    reservations: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")
    bytes: Sequence[int] = w.u64s(MAX_KEYS, rows="codes")


@message("commit request")
@dataclass(frozen=True, slots=True)
class CommitRequest(Message):
    """Hands over chunks of parts that lie in staging. A chunk is ChunkBytes of one part, the last
    one of a part shorter. Digest has ChunkCount[i] entries for row i, one after another:
    XXH3-64, or CRC-32 with FeatureCRC32Digests.
    """

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
    """Has one row for each row of the request. Published is 1 on the row whose chunks completed the
    object for all ranks. There Levels has the Level that the object has reached, which is lower
    than the one asked for when a disk is not able to; elsewhere it is 0.
    """

    codes: Sequence[int] = w.u16s(MAX_COMMIT_ROWS)
    published: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")
    levels: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")


@message("save request: buffered")
@dataclass(frozen=True, slots=True)
class SaveBuffered(Message):
    """Names a buffer whose accepted rows are the linear layers' rows, for checkpoints of kind
    AcceptRows: the daemon copies them, and only keys and values of attention layers are left to
    commit. A profile without such layers has nothing to commit: the checkpoint is published.
    """

    buffer: int = w.u64()


@message("save request")
@dataclass(frozen=True, slots=True)
class SaveRequest(Message):
    """Asks for room for checkpoints. A parent is the prefix hash of the checkpoint that this one
    extends, all zero for none; only rows of tokens [parent, Tokens) are stored.
    """

    profile: int = w.u32()
    rank: int = w.u32()
    kind: int = w.u8()
    hashes: Sequence[bytes] = w.hashes(MAX_KEYS)
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="hashes")
    parents: Sequence[bytes] = w.hashes(MAX_KEYS, rows="hashes")
    buffered: SaveBuffered | None = w.section(SaveBuffered, Feature.BUFFERED)  # noqa: RUF009


@message("load request")
@dataclass(frozen=True, slots=True)
class LoadRequest(Message):
    """Leases the checkpoint of a prefix hash."""

    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    accept: int = w.u8()
    digests: int = w.u8()
    hash: bytes = w.hash32()


@message("load reply: rows")
@dataclass(frozen=True, slots=True)
class LoadRows(Message):
    """Says what each node is."""

    kinds: bytes = w.u8s(MAX_NODES, rows="node_begin")


@message("load reply")
@dataclass(frozen=True, slots=True)
class LoadReply(Message):
    """Lists the chain of nodes from the root to the checkpoint. Each node is laid out by
    CheckpointLayout(End-Begin), or EdgeLayout of as many tokens where it is kept as rows; states
    and convolution tails belong to the last node.
    """

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
    rows: LoadRows | None = w.section(LoadRows, Feature.ROWS)  # noqa: RUF009


@message("compose request")
@dataclass(frozen=True, slots=True)
class ComposeRequest(Message):
    """Moves a running state over a plan, for one layer or all linear layers."""

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
    """Says where the states are. For each asked linear layer, in order: one F32 state before each
    recomputed span, then the final state, each [heads, dk, dv] and padded to PartAlign. When the
    last span has no input the final state is the state before it.
    """

    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()


@message("rotate request")
@dataclass(frozen=True, slots=True)
class RotateRequest(Message):
    """Places the keys and values of a plan's segments (and of a checkpoint it begins from, for
    DestMemory) for one attention layer or all.
    """

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


@message("rotate reply")
@dataclass(frozen=True, slots=True)
class RotateReply(Message):
    """Gives the places of rows when Dest is DestSlot: for each asked attention layer, K then V,
    each the segment rows of the plan packed in plan order and padded to PartAlign.
    """

    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()
    rows: int = w.u32()


@message("assemble request")
@dataclass(frozen=True, slots=True)
class AssembleRequest(RotateRequest):
    """Compose and rotate of all layers in one request, for plans whose only recomputed span is the
    last. It also answers the convolution tail of the last segment. With DestSlot the result is
    laid out as CheckpointLayout(rows); with DestMemory as CheckpointLayout(0) and the rows go to
    engine memory.
    """


@message("append request")
@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    """Adds rows to a buffer, or opens one. The rows lie in staging, as BufferLayout(Rows)
    has them.
    """

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
    """Answers append and accept: what the buffer holds now, in prompt positions."""

    buffer: int = w.u64()
    begin: int = w.u32()
    accepted: int = w.u32()
    end: int = w.u32()


@message("accept request")
@dataclass(frozen=True, slots=True)
class AcceptRequest(Message):
    """Keeps the first Tokens rows that are not accepted yet, and drops the others."""

    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    tokens: int = w.u32()


@message("replay request")
@dataclass(frozen=True, slots=True)
class ReplayRequest(Message):
    """Writes the states and convolution tails after the tokens before Token into a slot, laid out
    as CheckpointLayout(0).
    """

    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    token: int = w.u32()
    flush: int = w.u8()
    into: int = w.u64()


@message("advise request: measured")
@dataclass(frozen=True, slots=True)
class AdviseMeasured(Message):
    """Gives the times of splices since the last advise. A walk puts segments in place: it computed
    WalkRows rows between them and placed WalkPlaced rows in WalkMicros, including reads of
    memory but not waits for a disk or another node. A capture computed CaptureTokens tokens of
    segments in isolation.
    """

    walk_rows: Sequence[int] = w.u32s(MAX_SAMPLES)
    walk_placed: Sequence[int] = w.u32s(MAX_SAMPLES, rows="walk_rows")
    walk_micros: Sequence[int] = w.u32s(MAX_SAMPLES, rows="walk_rows")
    capture_tokens: Sequence[int] = w.u32s(MAX_SAMPLES)
    capture_micros: Sequence[int] = w.u32s(MAX_SAMPLES, rows="capture_tokens")


@message("advise request: limit")
@dataclass(frozen=True, slots=True)
class AdviseLimit(Message):
    """The loss that the request accepts, and how it would be spliced."""

    max_loss: float = w.f64()
    primed: int = w.u8()
    refreshed: int = w.u8()


@message("advise request: match")
@dataclass(frozen=True, slots=True)
class AdviseMatch(Message):
    """Has the daemon look the prompt up first, as `match` does, in one round trip. The prefix, the
    status and tier of segments, and primed of *limit* are then not read. Each segment has a key.
    """

    accept: int = w.u8()
    positions: Sequence[int] = w.u32s(MAX_KEYS)
    prefixes: Sequence[bytes] = w.hashes(MAX_KEYS, rows="positions")
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)
    others: Sequence[bytes] = w.hashes(MAX_KEYS)
    primed: bytes = w.u8s(MAX_KEYS, rows="keys")


@message("advise request")
@dataclass(frozen=True, slots=True)
class AdviseRequest(Message):
    """Asks what to use and what to store for a prompt whose token ids (little-endian uint32) lie in
    staging. What match has answered comes along; zero means nothing is held. Cuts and the begins
    of segments ascend. Samples are prefills measured since the last advise: tokens [begin, end)
    and the microseconds they took.
    """

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
    measured: AdviseMeasured | None = w.section(AdviseMeasured, Feature.SPLICES)  # noqa: RUF009
    limit: AdviseLimit | None = w.section(AdviseLimit, Feature.LOSSES)  # noqa: RUF009
    match: AdviseMatch | None = w.section(AdviseMatch, Feature.LOOKUP)  # noqa: RUF009


@message("advise reply: splice")
@dataclass(frozen=True, slots=True)
class AdviseSplice(Message):
    """The splice that WayMicros prices."""

    segments: int = w.u32()


@message("advise reply: loss")
@dataclass(frozen=True, slots=True)
class AdviseLoss(Message):
    """Answers a Limit with the expected losses of the splice, from 0 to 1; negative = not known."""

    asked: float = w.f64()
    refreshed: float = w.f64()
    splicing: int = w.u8()


@message("advise reply: match")
@dataclass(frozen=True, slots=True)
class AdviseMatched(Message):
    """What was found, as in the reply of `match` and its sections."""

    prefix_tokens: int = w.u32()
    prefix_index: int = w.u32()
    prefix_flags: int = w.u8()
    prefix_reason: int = w.u8()
    prefix_tier: int = w.u8()
    prefix_states: int = w.u32()
    status: bytes = w.u8s(MAX_KEYS)
    tier: bytes = w.u8s(MAX_KEYS, rows="status")
    reason: bytes = w.u8s(MAX_KEYS, rows="status")
    tokens: Sequence[int] = w.u32s(MAX_KEYS, rows="status")
    error: Sequence[float] = w.f64s(MAX_KEYS, rows="status")
    variants: bytes = w.u8s(MAX_KEYS, rows="status")


@message("advise reply")
@dataclass(frozen=True, slots=True)
class AdviseReply(Message):
    """Has one row for each advised checkpoint and one for each segment."""

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
    splice: AdviseSplice | None = w.section(AdviseSplice, Feature.SPLICES)  # noqa: RUF009
    loss: AdviseLoss | None = w.section(AdviseLoss, Feature.LOSSES)  # noqa: RUF009
    match: AdviseMatched | None = w.section(AdviseMatched, Feature.LOOKUP)  # noqa: RUF009


@message("served request: loss")
@dataclass(frozen=True, slots=True)
class ServedLoss(Message):
    """The loss of a spliced request as advise has answered it."""

    expected: float = w.f64()


@message("served request")
@dataclass(frozen=True, slots=True)
class ServedRequest(Message):
    """Reports how the prompt of one request was served, after its first token. Its tokens came from
    the engine's own cache: the first Engine; from a checkpoint: Prefix more; from segments; the
    rest was computed. Segments are those that the prompt was cut into, ascend and do not
    overlap; Reused of the tokens from At on came from the daemon, and lie after the prefix.
    Times are in microseconds, 0 where nothing was measured.
    """

    profile: int = w.u32()
    way: int = w.u8()
    tokens: int = w.u32()
    engine: int = w.u32()
    prefix: int = w.u32()
    prefix_tier: int = w.u8()
    prefix_reason: int = w.u8()
    read_bytes: int = w.u64()
    match_micros: int = w.u32()
    wait_micros: int = w.u32()
    first_micros: int = w.u32()
    way_micros: Sequence[float] = w.f64s(MAX_WAYS)
    begins: Sequence[int] = w.u32s(MAX_KEYS)
    counts: Sequence[int] = w.u32s(MAX_KEYS, rows="begins")
    at: Sequence[int] = w.u32s(MAX_KEYS, rows="begins")
    reused: Sequence[int] = w.u32s(MAX_KEYS, rows="begins")
    tiers: bytes = w.u8s(MAX_KEYS, rows="begins")
    reasons: bytes = w.u8s(MAX_KEYS, rows="begins")
    keys: Sequence[bytes] = w.hashes(MAX_KEYS, rows="begins")
    request: str = w.text(MAX_NAME)
    trace: str = w.text(MAX_NAME)
    loss: ServedLoss | None = w.section(ServedLoss, Feature.LOSSES)  # noqa: RUF009


@message("served reply")
@dataclass(frozen=True, slots=True)
class ServedReply(Message):
    """Answers a ServedRequest."""

    number: int = w.u64()
    canary_share: float = w.f64()


@message("attach-device request")
@dataclass(frozen=True, slots=True)
class AttachDeviceRequest(Message):
    """Asks for device memory: the public arena and chunks of this connection's own. It is answered
    once on a connection.
    """

    ways: int = w.u8()
    private_bytes: int = w.u64()
    uuid: bytes = w.u8s(UUID_BYTES)

    def check(self) -> None:
        if self.uuid:
            self.same("uuid", len(self.uuid), UUID_BYTES)


@message("attach-device reply")
@dataclass(frozen=True, slots=True)
class AttachDeviceReply(Message):
    """Says what to map, in the order of the chunks: those of the public arena laid end to end, then
    those of the private one. Descriptors: first a sealed memfd with the kernels' PTX text, then
    one for each chunk where Way is WayDescriptor.
    """

    way: int = w.u8()
    epoch: int = w.u64()
    public_bytes: int = w.u64()
    private_bytes: int = w.u64()
    order_off: int = w.u64()
    order_slots: int = w.u32()
    public_chunks: int = w.u32()
    staging_off: int = w.u64()
    staging_bytes: int = w.u64()
    uuid: bytes = w.u8s(UUID_BYTES)
    chunk_bytes: Sequence[int] = w.u64s(MAX_CHUNKS)
    handles: bytes = w.u8s(MAX_CHUNKS * HANDLE_BYTES)
    offsets: Sequence[int] = w.u64s(MAX_CHUNKS)
    events: bytes = w.u8s(2 * HANDLE_BYTES)

    def check(self) -> None:
        self.same("uuid", len(self.uuid), UUID_BYTES)
        if self.way not in (ShareWay.DESCRIPTOR, ShareWay.HANDLE):
            self.fail("way", f"{self.way}")
        want = len(self.chunk_bytes) * HANDLE_BYTES if self.way == ShareWay.HANDLE else 0
        self.same("handles", len(self.handles), want)
        want = len(self.chunk_bytes) if self.way == ShareWay.HANDLE else 0
        self.same("offsets", len(self.offsets), want)
        if self.public_chunks > len(self.chunk_bytes):
            self.fail("public chunks", f"{self.public_chunks} of {len(self.chunk_bytes)}")
        if self.events:
            self.same("events", len(self.events), 2 * HANDLE_BYTES)


@message("register-device request")
@dataclass(frozen=True, slots=True)
class RegisterDeviceRequest(Message):
    """Registers device memory that the engine owns, as ProfileRequest does for memory of the host.
    Chunks are taken as one run, which the layers' offsets count from. Descriptors: one for each
    chunk where Way is WayDescriptor.
    """

    profile: int = w.u32()
    way: int = w.u8()
    epoch: int = w.u64()
    chunk_bytes: Sequence[int] = w.u64s(MAX_CHUNKS)
    handles: bytes = w.u8s(MAX_CHUNKS * HANDLE_BYTES)
    offsets: Sequence[int] = w.u64s(MAX_CHUNKS)
    memory_layer: Sequence[int] = w.u32s(MAX_MEMORY_LAYERS)
    memory_k_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_block_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")

    def check(self) -> None:
        if self.way not in (ShareWay.DESCRIPTOR, ShareWay.HANDLE):
            self.fail("way", f"{self.way}")
        want = len(self.chunk_bytes) * HANDLE_BYTES if self.way == ShareWay.HANDLE else 0
        self.same("handles", len(self.handles), want)
        want = len(self.chunk_bytes) if self.way == ShareWay.HANDLE else 0
        self.same("offsets", len(self.offsets), want)


@message("register-device reply")
@dataclass(frozen=True, slots=True)
class RegisterDeviceReply(Message):
    """Names the memory for rotate and assemble."""

    memory: int = w.u32()


@message("acquire-device request")
@dataclass(frozen=True, slots=True)
class AcquireDeviceRequest(Message):
    """Leases segments in device memory. Others are copied there first: with Wait 1 the reply waits
    for the copy, otherwise they are a miss.
    """

    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    digests: int = w.u8()
    all: int = w.u8()
    wait: int = w.u8()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("order request")
@dataclass(frozen=True, slots=True)
class OrderRequest(Message):
    """Ties leases to the client's stream: when the client's slot of the order page has reached
    After, the leases are released, and then Signal, if it is not 0, is written to the daemon's
    slot.
    """

    after: int = w.u64()
    signal: int = w.u64()
    leases: Sequence[int] = w.u64s(MAX_IDS)


@message("load-device request")
@dataclass(frozen=True, slots=True)
class LoadDeviceRequest(LoadRequest):
    """A LoadRequest whose reply has extents in device memory."""


@message("plan request: primers")
@dataclass(frozen=True, slots=True)
class PlanPrimers(Message):
    """Names the primer after which each segment is to be captured. Only engines take part that have
    all of them.
    """

    ids: Sequence[bytes] = w.hashes(MAX_PLAN_ROWS, rows="keys")


@message("plan request")
@dataclass(frozen=True, slots=True)
class PlanRequest(Message):
    """Asks which engines of which nodes compute the missing segments of a prompt, and has them
    begin. Token ids (little-endian uint32) lie in staging, those of all rows one after another;
    the daemon recomputes each key from them.
    """

    profile: int = w.u32()
    pieces: int = w.u8()
    queued_micros: int = w.u32()
    within_ms: int = w.u32()
    token_off: int = w.u64()
    keys: Sequence[bytes] = w.hashes(MAX_PLAN_ROWS)
    roles: bytes = w.u8s(MAX_PLAN_ROWS, rows="keys")
    heads: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="keys")
    tails: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="keys")
    tokens: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="keys")
    primers: PlanPrimers | None = w.section(PlanPrimers, Feature.PRIMERS)  # noqa: RUF009


@message("plan reply")
@dataclass(frozen=True, slots=True)
class PlanReply(Message):
    """Has one row for each key, and lists what the asking engine computes itself, in the order to
    do it: tokens [OwnBegins[i], OwnEnds[i]) of row OwnRows[i]. Times are from now until a
    segment can be acquired here.
    """

    plan: int = w.u64()
    alone: int = w.u8()
    micros: int = w.u32()
    alone_micros: int = w.u32()
    workers: Sequence[int] = w.u32s(MAX_PLAN_ROWS)
    row_micros: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="workers")
    own_rows: Sequence[int] = w.u32s(MAX_PLAN_ROWS)
    own_begins: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="own_rows")
    own_ends: Sequence[int] = w.u32s(MAX_PLAN_ROWS, rows="own_rows")
    combine: str = w.text(MAX_NAME)


@message("watch request: primers")
@dataclass(frozen=True, slots=True)
class WatchPrimersQuery(Message):
    """Lists the primers that a worker has. Without it, it is given no segment that is captured
    after one.
    """

    ids: Sequence[bytes] = w.hashes(MAX_PRIMERS)


@message("watch request")
@dataclass(frozen=True, slots=True)
class WatchRequest(Message):
    """Waits for what happens next: to the rows of a plan, or, where Plan is 0, for jobs. Who asks
    for jobs is a worker of its profile and tenant until it has no job and has not asked for some
    seconds.
    """

    profile: int = w.u32()
    wait_ms: int = w.u32()
    plan: int = w.u64()
    end: int = w.u8()
    pieces: int = w.u8()
    jobs: int = w.u32()
    queued_micros: int = w.u32()
    declined: Sequence[int] = w.u64s(MAX_WORKER_JOBS)
    primers: WatchPrimersQuery | None = w.section(WatchPrimersQuery, Feature.PRIMERS)  # noqa: RUF009


@message("watch reply: primers")
@dataclass(frozen=True, slots=True)
class WatchPrimers(Message):
    """Names the primer after which each job's segment is to be captured."""

    ids: Sequence[bytes] = w.hashes(MAX_WORKER_JOBS, rows="jobs")


@message("watch reply")
@dataclass(frozen=True, slots=True)
class WatchReply(Message):
    """Of a plan has a row for each row of it that something happened to since the last watch. For a
    worker it has a row for each new job. A job is done when its key is published, by reserve and
    commit on whatever connection of the node. IDs are the token ids of all its jobs, Tokens[i]
    of each, one after another.
    """

    open: int = w.u32()
    rows: Sequence[int] = w.u32s(MAX_PLAN_ROWS)
    progress: bytes = w.u8s(MAX_PLAN_ROWS, rows="rows")
    jobs: Sequence[int] = w.u64s(MAX_WORKER_JOBS)
    keys: Sequence[bytes] = w.hashes(MAX_WORKER_JOBS, rows="jobs")
    roles: bytes = w.u8s(MAX_WORKER_JOBS, rows="jobs")
    heads: Sequence[int] = w.u32s(MAX_WORKER_JOBS, rows="jobs")
    tails: Sequence[int] = w.u32s(MAX_WORKER_JOBS, rows="jobs")
    begins: Sequence[int] = w.u32s(MAX_WORKER_JOBS, rows="jobs")
    lefts: Sequence[bytes] = w.hashes(MAX_WORKER_JOBS, rows="jobs")
    micros: Sequence[int] = w.u32s(MAX_WORKER_JOBS, rows="jobs")
    tokens: Sequence[int] = w.u32s(MAX_WORKER_JOBS, rows="jobs", divides="ids")
    ids: Sequence[int] = w.u32s(MAX_JOB_TOKENS)
    withdrawn: Sequence[int] = w.u64s(MAX_WORKER_JOBS)
    primers: WatchPrimers | None = w.section(WatchPrimers, Feature.PRIMERS)  # noqa: RUF009


MESSAGES: dict[int, tuple[type[Message], type[Message]]] = {
    Op.HELLO: (HelloRequest, HelloReply),
    Op.PROFILE: (ProfileRequest, ProfileReply),
    Op.MATCH: (MatchRequest, MatchReply),
    Op.ACQUIRE: (AcquireRequest, AcquireReply),
    Op.RESERVE: (ReserveRequest, ReserveReply),
    Op.COMMIT: (CommitRequest, CommitReply),
    Op.ABORT: (AbortRequest, CodesReply),
    Op.COMPOSE: (ComposeRequest, ComposeReply),
    Op.ROTATE: (RotateRequest, RotateReply),
    Op.ASSEMBLE: (AssembleRequest, RotateReply),
    Op.SAVE: (SaveRequest, ReserveReply),
    Op.LOAD: (LoadRequest, LoadReply),
    Op.CANCEL: (CancelRequest, CancelReply),
    Op.RELEASE: (ReleaseRequest, CodesReply),
    Op.STATS: (StatsRequest, StatsReply),
    Op.ADVISE: (AdviseRequest, AdviseReply),
    Op.APPEND: (AppendRequest, AppendReply),
    Op.ACCEPT: (AcceptRequest, AppendReply),
    Op.REPLAY: (ReplayRequest, ComposeReply),
    Op.REPORT: (ReportRequest, ReportReply),
    Op.ATTACH_DEVICE: (AttachDeviceRequest, AttachDeviceReply),
    Op.REGISTER_DEVICE: (RegisterDeviceRequest, RegisterDeviceReply),
    Op.ACQUIRE_DEVICE: (AcquireDeviceRequest, AcquireReply),
    Op.ORDER: (OrderRequest, CodesReply),
    Op.LOAD_DEVICE: (LoadDeviceRequest, LoadReply),
    Op.PLAN: (PlanRequest, PlanReply),
    Op.WATCH: (WatchRequest, WatchReply),
    Op.SERVED: (ServedRequest, ServedReply),
}
"""Request and reply of each operation."""
