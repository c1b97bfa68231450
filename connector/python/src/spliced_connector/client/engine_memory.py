"""Memory of the engine that the daemon may write rows into."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from spliced_connector.errors import Code, SplicedError

_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x2


@dataclass(frozen=True)
class MemoryLayer:
    """Where an attention layer's keys and values lie in engine memory. All numbers are in bytes.

    The key row of one head is at `k_base + block * block_stride + token * k_token_stride + head *
    k_head_stride`, where `token` counts from the start of its block. Values likewise.
    """

    layer: int
    k_base: int
    v_base: int
    block_stride: int
    k_token_stride: int
    k_head_stride: int
    v_token_stride: int
    v_head_stride: int


@dataclass(frozen=True)
class EngineMemory:
    """Memory of the engine that the daemon may write rows into."""

    descriptor: int
    """A memfd with F_SEAL_SHRINK and without holes. The client duplicates it."""
    nbytes: int
    layers: tuple[MemoryLayer, ...]


def engine_memfd(nbytes: int, name: str = "engine-kv") -> int:
    """Makes a memfd that the daemon accepts as engine memory, with all pages allocated. Raises
    OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def duplicate(descriptor: int) -> int:
    """Returns a second descriptor of the same file. Raises `SplicedError(INVALID)`."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as err:
        raise SplicedError(Code.INVALID, f"engine memory: {err}") from err
