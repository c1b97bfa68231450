"""Digests of the chunks that parts are stored in."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import cast

CHUNK_BYTES = 1 << 20
"""A digest covers so many bytes of one part, the last one of a part less."""

Digest = Callable[[memoryview], int]


@functools.cache
def xxh3() -> Digest | None:
    """XXH3-64, None where the package xxhash is not installed."""
    try:
        import xxhash
    except ImportError:
        return None
    return cast(Digest, xxhash.xxh3_64_intdigest)


def crc32(data: memoryview) -> int:
    """CRC-32, as in zlib: what a commit may carry in place of XXH3-64."""
    return zlib.crc32(data)


def chunks(nbytes: int) -> int:
    """Digests of a part of so many bytes."""
    return -(-nbytes // CHUNK_BYTES)
