"""Numbers of the protocol: operations, features and bounds (docs/protocol.md)."""

from __future__ import annotations

from enum import IntEnum, IntFlag

VERSION = 1

MAX_FRAME = 128 << 10
HEADER_BYTES = 40
MAX_BODY = MAX_FRAME - HEADER_BYTES
MAX_ERROR_TEXT = 1 << 10

MAX_KEYS = 2048
MAX_IDS = 4096
MAX_COMMIT_ROWS = 2048
MAX_DIGESTS = 8192
MAX_EXTENTS = 4096
MAX_NODES = 1024
MAX_SPANS = 2048
MAX_BLOCKS = 24 << 10
MAX_TABLE = 12 << 10
MAX_POSITIONS = 1024
MAX_SAMPLES = 1024
MAX_WAYS = 8
MAX_MEMORY_LAYERS = 1024
MAX_IDENTITY = 96 << 10
MAX_TENANTS = 64
MAX_NAME = 256
MAX_TOKEN = 1024
MAX_SALT = 256
MAX_STATS = 1024
MAX_CHUNKS = 252
"""Chunks of device memory in one frame: Linux carries 253 descriptors, one is the PTX."""

HELLO_DESCRIPTORS = 3
"""Of a hello reply, in this order: arena, slots, staging."""
ATTACH_DESCRIPTORS = 1
"""Of an attach-device reply before those of its chunks: the kernels' PTX."""

UUID_BYTES = 16
HANDLE_BYTES = 64
"""Of a CUDA IPC handle."""
ORDER_SLOT_BYTES = 64
"""From one slot of the order page to the next; 8 of them are used."""


class FrameKind(IntEnum):
    """Which way a frame goes."""

    REQUEST = 0
    REPLY = 1


class Op(IntEnum):
    """The operations. Numbers are never used again."""

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


class Feature(IntFlag):
    """Additions that an older peer may ignore; those both sides know hold."""

    CRC32_DIGESTS = 1 << 0
    """Digests of a commit are CRC-32 (IEEE) in place of xxh3-64."""
    DEVICE = 1 << 1
    """The daemon has memory of a GPU to lend."""


class ShareWay(IntFlag):
    """How device memory crosses the process border; a set where a client says what it can map."""

    DESCRIPTOR = 1
    """One POSIX descriptor for each chunk, of the driver's virtual memory management."""
    HANDLE = 2
    """One CUDA IPC handle for each chunk."""
