"""Digests of chunks: each part of an object is divided into chunks of `CHUNK_BYTES`."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import cast

CHUNK_BYTES = 1 << 20
"""Number of bytes of a part that one digest covers; the last digest may cover fewer."""

Digest = Callable[[memoryview], int]


@functools.cache
def xxh3() -> Digest | None:
    """Returns XXH3-64, None if the package xxhash is not installed."""
    try:
        import xxhash
    except ImportError:
        return None
    return cast(Digest, xxhash.xxh3_64_intdigest)


def crc32(data: memoryview) -> int:
    """CRC-32, as in zlib: a commit may carry it instead of XXH3-64."""
    return zlib.crc32(data)


def chunks(nbytes: int) -> int:
    """Returns the number of chunks, and so of digests, of a part with `nbytes` bytes."""
    return -(-nbytes // CHUNK_BYTES)
