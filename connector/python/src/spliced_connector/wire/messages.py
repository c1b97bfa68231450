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
    """Opens a connection. StagingBytes and SlotBytes are the requested sizes of the regions; 0 =
    the daemon's default.
    """

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
    """Comes with three descriptors: first the public arena and this connection's slots, which the
    client can map for reading only, then this connection's staging, which the client can map for
    reading and writing.
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
    """Registers a model's identity and this engine's binding. It may carry one descriptor, of
    engine memory, which the field Memory describes. SegmentBytes and CheckpointBytes are the
    sizes that the engine computes; the daemon refuses the profile if it computes other sizes.
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
    """Answers a ProfileRequest."""

    profile: int = w.u32()
    memory: int = w.u32()
    fingerprint: bytes = w.hash32()


@message("abort request")
@dataclass(frozen=True, slots=True)
class AbortRequest(Message):
    """Gives up reservations."""

    reservations: Sequence[int] = w.u64s(MAX_IDS)


@message("codes reply")
@dataclass(frozen=True, slots=True)
class CodesReply(Message):
    """Answers AbortRequest, ReleaseRequest and OrderRequest. It has one code for each id of the
    request.
    """

    codes: Sequence[int] = w.u16s(MAX_IDS)


@message("cancel request")
@dataclass(frozen=True, slots=True)
class CancelRequest(Message):
    """Stops requests of this connection. The daemon replies once none of these requests can access
    its destination any more.
    """

    requests: Sequence[int] = w.u64s(MAX_IDS)


@message("cancel reply")
@dataclass(frozen=True, slots=True)
class CancelReply(Message):
    """Has one outcome for each request id."""

    outcomes: bytes = w.u8s(MAX_IDS)


@message("release request")
@dataclass(frozen=True, slots=True)
class ReleaseRequest(Message):
    """Ends leases of segments, checkpoints and slots."""

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
    """Counts requests that were both spliced and computed in full, for each of the LossWays ways of
    splicing. Compared has the number of these requests, Changed the number of those in which the
    two first tokens differed.
    """

    offline: int = w.u8()
    compared: Sequence[int] = w.u32s(LOSS_WAYS)
    changed: Sequence[int] = w.u32s(LOSS_WAYS, rows="compared")

    def check(self) -> None:
        self.same("compared", len(self.compared), LOSS_WAYS)


@message("report request")
@dataclass(frozen=True, slots=True)
class ReportRequest(Message):
    """Reports the results of a canary, an engine that recomputes some reused segments and compares
    the results. Counts are since the canary's last report.
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
    """Describes the prompt of a match."""

    tokens: int = w.u32()
    token_off: int = w.u64()


@message("match request: known")
@dataclass(frozen=True, slots=True)
class MatchKnownQuery(Message):
    """Asks which cached segments occur in the prompt, whose token ids must be in staging. The
    search starts at Begin or, if that is later, at the end of the prefix that this match finds.
    """

    begin: int = w.u32()
    seam_tokens: int = w.u32()


@message("match request: primers")
@dataclass(frozen=True, slots=True)
class MatchPrimersQuery(Message):
    """Asks for segments that may exist in two variants: captured after a primer, and without one.
    Others has the key of the second variant of each segment. Primer, PrimedFrom and Either are
    only for the search that the section Known asks for.
    """

    primer: bytes = w.hash32()
    primed_from: int = w.u32()
    either: int = w.u8()
    others: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("match request")
@dataclass(frozen=True, slots=True)
class MatchRequest(Message):
    """Asks for the longest saved prefix of a prompt and for the status of each segment, in one
    round trip. Positions ascend.
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
    """Has a time and an error for the prefix and for each row. The time is in microseconds until
    the bytes can be read; 2^32-1 = not known. The error is a bound on the relative error of the
    stored bytes; 0 = they are as written, +Inf = not known.
    """

    prefix_micros: int = w.u32()
    prefix_error: float = w.f64()
    micros: Sequence[int] = w.u32s(MAX_KEYS, rows="status")
    error: Sequence[float] = w.f64s(MAX_KEYS, rows="status")


@message("match reply: known")
@dataclass(frozen=True, slots=True)
class MatchKnown(Message):
    """Lists cached segments that occur in the prompt, ascending and without overlaps. Segment i is
    the tokens [Starts[i], Starts[i]+Lengths[i]) of the prompt, and its key is Keys[i].
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
    """Says how much of the prefix has states. The states of later tokens are rebuilt from rows."""

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
    """Has the layouts of segments with packed parts. The next Count[i] bytes of Layout are the
    Packed of row i; Count[i] is 0 if no part of it is packed.
    """

    count: Sequence[int] = w.u32s(MAX_KEYS, rows="codes", divides="layout")
    layout: bytes = w.u8s(MAX_PACKED)


@message("acquire reply")
@dataclass(frozen=True, slots=True)
class AcquireReply(Message):
    """Has one row for each key. Extents are in the public arena, and their bytes stay unchanged
    until the lease is released or expires. Digest has one digest for each chunk of each part of
    each hit, in order, if the request asks for digests. ReservedCount and Reserved, which once
    had block tables, are empty.
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
    """Has the primer after which each segment was captured."""

    ids: Sequence[bytes] = w.hashes(MAX_KEYS, rows="keys")


@message("reserve request")
@dataclass(frozen=True, slots=True)
class ReserveRequest(Message):
    """Asks for room for segments. Their token ids (little-endian uint32) are in staging; the daemon
    computes each key from them and compares it with Keys.
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
    """Hands over chunks of parts, which are in staging. Row i has ChunkCount[i] chunks of one part,
    from chunk ChunkFirst[i] on. A chunk has ChunkBytes bytes; the last chunk of a part may be
    shorter. Digest has one digest for each chunk, row after row: XXH3-64, or CRC-32 with
    FeatureCRC32Digests.
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
    """Has one row for each row of the request. Published is 1 on a row whose chunks completed an
    object for all ranks. On such a row, Levels has the Level that the object has reached; on all
    other rows it is 0. The Level is lower than requested if there is no disk, or if the disk
    fails or is too slow.
    """

    codes: Sequence[int] = w.u16s(MAX_COMMIT_ROWS)
    published: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")
    levels: bytes = w.u8s(MAX_COMMIT_ROWS, rows="codes")


@message("save request: buffered")
@dataclass(frozen=True, slots=True)
class SaveBuffered(Message):
    """Names a buffer, for checkpoints of kind AcceptRows. The daemon copies the rows of linear
    layers from the accepted rows of the buffer, and the client commits only the keys and values
    of attention layers. If the profile has no attention layers, the client commits nothing, and
    the daemon publishes the checkpoint at once.
    """

    buffer: int = w.u64()


@message("save request")
@dataclass(frozen=True, slots=True)
class SaveRequest(Message):
    """Asks for room for checkpoints. Parents has the prefix hash of the checkpoint that each of
    them extends; zero = none. Only the rows of tokens after the parent are stored.
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
    """Has the kind of each node."""

    kinds: bytes = w.u8s(MAX_NODES, rows="node_begin")


@message("load reply")
@dataclass(frozen=True, slots=True)
class LoadReply(Message):
    """Lists the nodes of a checkpoint, from the start of the prompt to the last token. The bytes of
    a node are in CheckpointLayout of its number of tokens, or in EdgeLayout if the node is
    stored as rows. The states and convolution tails of the checkpoint are those of the last
    node.
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
    """Advances a running state over the spans of a plan, in one linear layer or in all of them."""

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
    """Says where the states are. For each requested linear layer, in order, these are the state
    before each recomputed span, then the state at the end of the plan. Each is F32 [heads, dk,
    dv], padded to a multiple of PartAlign. If the last span has no input, the last state is the
    state before that span.
    """

    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()


@message("rotate request")
@dataclass(frozen=True, slots=True)
class RotateRequest(Message):
    """Places the keys and values of a plan's segments, for one attention layer or all. With
    DestMemory it also places those of the checkpoint from which the plan begins.
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
    """Says where the rows are, if Dest is DestSlot. For each requested attention layer, these are
    K, then V. Each has the rows of the plan's segments, packed in the order of the plan and
    padded to a multiple of PartAlign.
    """

    lease: int = w.u64()
    off: int = w.u64()
    bytes: int = w.u64()
    rows: int = w.u32()


@message("assemble request")
@dataclass(frozen=True, slots=True)
class AssembleRequest(RotateRequest):
    """Does the work of ComposeRequest and RotateRequest for all layers in one request. Only the
    last span of its plan may be recomputed. The result also has the convolution tails of the
    last segment. With DestSlot the result is in CheckpointLayout(rows). With DestMemory it is in
    CheckpointLayout(0), and the rows are written to engine memory.
    """


@message("append request")
@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    """Adds rows to a buffer, or opens a buffer. The rows are in staging, in BufferLayout(Rows)."""

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
    """Answers AppendRequest and AcceptRequest. Begin, Accepted and End are prompt positions in the
    buffer after the request.
    """

    buffer: int = w.u64()
    begin: int = w.u32()
    accepted: int = w.u32()
    end: int = w.u32()


@message("accept request")
@dataclass(frozen=True, slots=True)
class AcceptRequest(Message):
    """Accepts the first drafts of a buffer, as many as Tokens says, and drops the other drafts."""

    profile: int = w.u32()
    rank: int = w.u32()
    buffer: int = w.u64()
    tokens: int = w.u32()


@message("replay request")
@dataclass(frozen=True, slots=True)
class ReplayRequest(Message):
    """Writes states and convolution tails into a slot, in CheckpointLayout(0). They are those after
    all tokens before position Token.
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
    """Has the times of walks and captures since the last advise. A walk puts segments in place: it
    computed WalkRows rows between segments and placed WalkPlaced rows of segments in WalkMicros
    microseconds, including reads of memory but not waits for a disk or another node. A capture
    computed CaptureTokens tokens of segments in isolation in CaptureMicros microseconds.
    """

    walk_rows: Sequence[int] = w.u32s(MAX_SAMPLES)
    walk_placed: Sequence[int] = w.u32s(MAX_SAMPLES, rows="walk_rows")
    walk_micros: Sequence[int] = w.u32s(MAX_SAMPLES, rows="walk_rows")
    capture_tokens: Sequence[int] = w.u32s(MAX_SAMPLES)
    capture_micros: Sequence[int] = w.u32s(MAX_SAMPLES, rows="capture_tokens")


@message("advise request: limit")
@dataclass(frozen=True, slots=True)
class AdviseLimit(Message):
    """The loss of accuracy that the request accepts, and how the request would be spliced."""

    max_loss: float = w.f64()
    primed: int = w.u8()
    refreshed: int = w.u8()


@message("advise request: match")
@dataclass(frozen=True, slots=True)
class AdviseMatch(Message):
    """Makes the daemon look the prompt up first, as `match` does, in one round trip. The daemon
    then ignores the prefix, the status and tier of segments, and `primed` of *limit*. Keys has
    one key for each segment.
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
    """Asks what to use and what to store for a prompt, whose token ids (little-endian uint32) are
    in staging. The fields of prefix and segments repeat the reply of match; zero = nothing is
    cached. Cuts and SegmentBegin ascend. Samples are prefills measured since the last advise:
    sample i computed the tokens [SampleBegin[i], SampleEnd[i]) in SampleMicros[i] microseconds.
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
    """Describes the splice for which WayMicros has the time."""

    segments: int = w.u32()


@message("advise reply: loss")
@dataclass(frozen=True, slots=True)
class AdviseLoss(Message):
    """Answers the section Limit with the expected losses of the splice, from 0 to 1; negative = not
    known.
    """

    asked: float = w.f64()
    refreshed: float = w.f64()
    splicing: int = w.u8()


@message("advise reply: match")
@dataclass(frozen=True, slots=True)
class AdviseMatched(Message):
    """The result of the lookup, as in the reply of `match` and its sections."""

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
    """The expected loss of a spliced request, which the reply of advise had."""

    expected: float = w.f64()


@message("served request")
@dataclass(frozen=True, slots=True)
class ServedRequest(Message):
    """Reports how the prompt of one request was served. Engines send it after the first token of
    the answer. The first tokens of the prompt came from the engine's own cache (Engine is their
    number), the next ones from a checkpoint (Prefix is their number). Rows are the segments into
    which the prompt was cut, ascending and without overlaps: row i is the tokens [Begins[i],
    Begins[i]+Counts[i]). Of these, the tokens [At[i], At[i]+Reused[i]) came from the daemon;
    they are after the prefix. All other tokens were computed. Times are in microseconds; 0 = not
    measured.
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
    """Asks for device memory: the public arena, and private chunks of this connection. A connection
    can get device memory only once.
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
    """Says what to map: first the chunks of the public arena, laid end to end, then the private
    chunks of this connection. The first descriptor is a sealed memfd with the kernels' PTX text.
    If Way is WayDescriptor, one descriptor for each chunk follows.
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
    """Registers device memory that the engine owns, as ProfileRequest does for host memory. The
    chunks count as one run of bytes, and the offsets of layers are relative to its start. If Way
    is WayDescriptor, the request carries one descriptor for each chunk.
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
    """Has the id of the memory, for rotate and assemble."""

    memory: int = w.u32()


@message("acquire-device request")
@dataclass(frozen=True, slots=True)
class AcquireDeviceRequest(Message):
    """Leases segments in device memory. A segment that is not there yet is copied there. If Wait is
    1, the reply waits for the copy; otherwise the segment is a miss.
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
    """Releases leases once the client's stream has passed a point. When the client's slot of the
    order page has reached the value After, the daemon releases the leases. It then writes the
    value Signal to its own slot, unless Signal is 0.
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
    """Has the primer after which each segment is to be captured. Only engines that have all these
    primers take part.
    """

    ids: Sequence[bytes] = w.hashes(MAX_PLAN_ROWS, rows="keys")


@message("plan request")
@dataclass(frozen=True, slots=True)
class PlanRequest(Message):
    """Asks which engines compute the missing segments of a prompt, and starts the work of the other
    engines. The token ids (little-endian uint32) of all rows are in staging, one row after
    another; the daemon computes each key from them and compares it with Keys.
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
    """Has one row for each key. It also lists what the asking engine computes itself, in the order
    in which to compute it: the tokens [OwnBegins[i], OwnEnds[i]) of row OwnRows[i]. Times are
    from now until segments can be acquired on this node.
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
    """Lists the primers that a worker has. Without this section, the worker gets no segment that is
    captured after a primer.
    """

    ids: Sequence[bytes] = w.hashes(MAX_PRIMERS)


@message("watch request")
@dataclass(frozen=True, slots=True)
class WatchRequest(Message):
    """Waits for events of the rows of a plan or, if Plan is 0, for jobs. A client that asks for
    jobs is a worker of its profile and tenant. It stays a worker until it has no job and has not
    asked for some seconds.
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
    """Has the primer after which the segment of each job is to be captured."""

    ids: Sequence[bytes] = w.hashes(MAX_WORKER_JOBS, rows="jobs")


@message("watch reply")
@dataclass(frozen=True, slots=True)
class WatchReply(Message):
    """Lists, for a plan, the rows with an event since the last watch. For a worker, it lists the
    new jobs. A job is done when its key is published, by reserve and commit on any connection of
    the node. IDs has the token ids of all new jobs, one job after another: Tokens[i] ids for job
    i.
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
