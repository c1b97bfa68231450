# Code generated from connector/wire/schema by wiregen; DO NOT EDIT.
"""Numbers of the protocol: operations, features and bounds (docs/protocol.md)."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class FrameKind(IntEnum):
    """Says in which direction a frame goes."""

    REQUEST = 0
    """To the daemon."""
    REPLY = 1
    """To the client."""


class Feature(IntFlag):
    """Feature bits of hello: additions that an older peer may ignore. A connection has the features
    that both sides know.
    """

    CRC32_DIGESTS = 1
    """Sends CRC-32 (IEEE) digests in `commit` instead of xxh3-64, for clients whose language has no
    xxh3.
    """
    DEVICE = 2
    """May send operations 21 to 25, and up to 253 descriptors with a frame. The daemon has this
    feature only if it shares memory of a GPU.
    """
    PROMPT = 4
    """May send the section *prompt* of `match`. The daemon reads the token ids only for *known*."""
    ESTIMATES = 8
    """Can read the section *estimates* of a `match` reply, and tier `peer`."""
    KNOWN = 16
    """May send the section *known* of `match` after *prompt*, and gets a section *known* in the
    reply.
    """
    ROWS = 32
    """May accept and save checkpoints of kind *rows*, may `replay` them, and gets the sections
    *rows* in replies. Other connections do not see checkpoints that are stored as rows, and a
    checkpoint that extends one of these is a miss for them.
    """
    PACKED = 64
    """May register profiles with a tolerance, whose segments have packed parts, and gets the
    section *packed* in replies of `acquire` and `acquire-device`.
    """
    BUFFERED = 128
    """May send the section *buffered* of `save`."""
    SPLICES = 256
    """May send the section *measured* of `advise`, and gets the section *splice* in the reply."""
    PRIMERS = 512
    """May name primers in the sections *primers* of `match`, `reserve`, `plan` and `watch`, and
    gets sections *primers* in replies. Other connections never publish and never get a segment
    that was captured after a primer.
    """
    LOSSES = 1024
    """May send the sections *losses* of `report`, *limit* of `advise` and *loss* of `served`, and
    gets the section *loss* in the reply of `advise`.
    """
    LOOKUP = 2048
    """May send the section *match* of `advise`, and gets a section *match* in the reply."""


class WireSpan(IntEnum):
    """Span kinds of a plan."""

    SEGMENT = 1
    """The interior of a leased segment."""
    RECOMPUTE = 2
    """Tokens that the engine computes: a seam, a missing segment, the question."""


class WireFrom(IntEnum):
    """From says where a plan begins."""

    ZERO = 0
    """At a zero state."""
    CHECKPOINT = 1
    """At the checkpoint whose lease is `from lease`."""
    SLOT = 2
    """At states in the slot whose lease is `from lease`; `from off` is their offset in the slots
    region, as in ComposeReply.
    """


class WireDest(IntEnum):
    """Dest says where rotate and assemble write."""

    SLOT = 1
    """Packed into a slot."""
    MEMORY = 2
    """Scattered into registered memory by the engine's block table."""


class ShareWay(IntFlag):
    """Share is a way to share device memory with another process. In a request it is a set of bits:
    the ways in which the client can map memory.
    """

    DESCRIPTOR = 1
    """One descriptor for each chunk, sent with the frame (CUDA VMM)."""
    HANDLE = 2
    """One CUDA IPC handle for each chunk, in the frame."""


class Op(IntEnum):
    """An operation. Numbers are never used again."""

    HELLO = 1
    PROFILE = 2
    MATCH = 3
    ACQUIRE = 4
    RESERVE = 5
    COMMIT = 6
    ABORT = 7
    COMPOSE = 8
    ROTATE = 9
    ASSEMBLE = 10
    SAVE = 11
    LOAD = 12
    CANCEL = 13
    RELEASE = 14
    STATS = 15
    ADVISE = 16
    APPEND = 17
    ACCEPT = 18
    REPLAY = 19
    REPORT = 20
    ATTACH_DEVICE = 21
    REGISTER_DEVICE = 22
    ACQUIRE_DEVICE = 23
    ORDER = 24
    LOAD_DEVICE = 25
    PLAN = 26
    WATCH = 27
    SERVED = 28


VERSION = 1
"""The protocol version that this codec speaks."""
HEADER_BYTES = 40
"""The size of a header; a multiple of 8, so that bodies stay aligned in an aligned buffer."""
MAX_FRAME = 131072
"""Bytes of a frame, including the header. With default socket buffers, Linux accepts seqpacket
messages of up to about 200 KiB (measured), so this size needs no tuning.
"""
MAX_BODY = 131032
"""Bytes of a body."""
MAX_ERROR_TEXT = 1024
"""Bytes of the text of an error reply."""
MAX_KEYS = 2048
"""Segment keys, prefix hashes or checkpoints in one request."""
MAX_IDS = 4096
"""Leases, reservations or request ids in one request."""
MAX_COMMIT_ROWS = 2048
"""Rows of a commit."""
MAX_DIGESTS = 8192
"""Chunk digests in one frame (8 GiB of full chunks)."""
MAX_EXTENTS = 4096
"""Extents in one reply."""
MAX_NODES = 1024
"""Nodes of a checkpoint chain."""
MAX_SPANS = 2048
"""Spans of a plan."""
MAX_BLOCKS = 24576
"""Entries of an engine's block table."""
MAX_PACKED = 1048576
"""Bytes of the layouts of packed parts, over all rows of one reply."""
MAX_POSITIONS = 1024
"""Checkpoints that one advice names."""
MAX_SAMPLES = 1024
"""Measured prefills in one advise; the same bound holds for walks and for captures."""
MAX_WAYS = 8
"""Ways to serve a prompt."""
MAX_MEMORY_LAYERS = 1024
"""Attention layers of registered memory."""
MAX_IDENTITY = 98304
"""Bytes of an identity in canonical form."""
MAX_TENANTS = 64
"""Tenants of one connection."""
MAX_NAME = 256
"""Bytes of a name of a client, engine, tenant or counter."""
MAX_TOKEN = 1024
"""Bytes of a tenant's token."""
MAX_PROMPT = 1048576
"""Token ids of a prompt that is searched for cached segments."""
MAX_SALT = 256
"""Bytes of a tenant's salt."""
MAX_STATS = 1024
"""Counters in one reply."""
MAX_PLAN_ROWS = 256
"""Segments that are planned at once."""
MAX_WORKER_JOBS = 64
"""Jobs of one worker."""
MAX_JOB_TOKENS = 28672
"""Token ids of all jobs in one reply, and so of one segment that another engine computes."""
MAX_PRIMERS = 16
"""Primers of one plan, or of one worker."""
MAX_CHUNKS = 252
"""Chunks of device memory in one frame: Linux passes 253 descriptors with a message, and one of
them has the PTX text.
"""
LOSS_WAYS = 4
"""Ways of splicing for which losses are counted, in this order: without a primer, with a primer,
and the same two with the last segments computed in context.
"""
HELLO_DESCRIPTORS = 3
"""Descriptors of a hello reply, in this order: arena, slots, staging."""
PROFILE_DESCRIPTORS = 1
"""Descriptors that a profile request may carry."""
ATTACH_DESCRIPTORS = 1
"""Descriptors of an attach-device reply before those of its chunks: the kernels' PTX."""
UUID_BYTES = 16
"""The size of a device's UUID."""
HANDLE_BYTES = 64
"""The size of a CUDA IPC handle of memory or of an event."""
ORDER_SLOT_BYTES = 64
"""Bytes from one slot of the order page to the next; 8 of them are used."""
