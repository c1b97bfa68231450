"""Memory shared with the daemon: its regions, runs of them, and memory of the engine."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.errors import Code, SplicedError
from spliced_connector.staging import Extent
from spliced_connector.terms import NONE64

_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 0x2

ABSENT = -1
"""The offset of bytes that are not in memory: a node that others extend may lose its states."""


class Region:
    """A mapping of memory that the daemon has made.

    Views keep the memory mapped for as long as they live, so that none of them can fault.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        """Map it; the descriptor stays the caller's. Raises OSError or ValueError."""
        if not fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise ValueError("memory that could shrink under the mapping")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, access)
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_DONTDUMP)
        self.view = memoryview(mapping)  # nothing else keeps the mapping

    def close(self) -> None:
        """Unmap, now or when the last view is gone."""
        self.view.release()


def runs(
    offsets: Sequence[int], lengths: Sequence[int], nbytes: int, region: int, *, holes: bool = False
) -> list[Extent]:
    """Check what the daemon says about an object of `nbytes` and cut what is over.

    With `holes` bytes may be absent. Raises ValueError.
    """
    out = []
    left = nbytes
    for offset, length in zip(offsets, lengths, strict=True):
        if offset == NONE64 and holes and 0 < length <= left:
            out.append(Extent(ABSENT, length))
            left -= length
            continue
        if length == 0 or length > region or offset > region - length:
            raise ValueError(f"extent of {length} bytes at {offset} of a region of {region}")
        if left == 0:
            break
        run = min(length, left)
        out.append(Extent(offset, run))
        left -= run
    if left:
        raise ValueError(f"extents are {left} bytes short of {nbytes}")
    return out


def present(extents: Sequence[Extent], offset: int, nbytes: int) -> bool:
    """Whether bytes [offset, offset + nbytes) of an object are in memory."""
    for run in extents:
        if run.offset == ABSENT and offset < run.nbytes and offset + nbytes > 0:
            return False
        offset -= run.nbytes
    return True


def cut(extents: Sequence[Extent], memory: memoryview, offset: int, nbytes: int) -> memoryview:
    """Bytes [offset, offset + nbytes) of an object: a view if they lie in one run, else a copy."""
    pieces = []
    for run in extents:
        if nbytes == 0:
            break
        if offset >= run.nbytes:
            offset -= run.nbytes
            continue
        n = min(run.nbytes - offset, nbytes)
        at = run.offset + offset
        pieces.append(memory[at : at + n])
        nbytes, offset = nbytes - n, 0
    if len(pieces) == 1:
        return pieces[0]
    return memoryview(b"".join(pieces))


@dataclass(frozen=True)
class MemoryLayer:
    """Where an attention layer's keys and values lie in engine memory; all in bytes.

    The row of a key is at `k_base + block * block_stride + token * k_token_stride +
    head * k_head_stride`, with the token counted in its block; values likewise.
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
    """A memfd with F_SEAL_SHRINK. It is duplicated: the caller keeps it."""
    nbytes: int
    layers: tuple[MemoryLayer, ...]


def engine_memfd(nbytes: int, name: str = "engine-kv") -> int:
    """Make a memfd that the daemon accepts as engine memory. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def duplicate(descriptor: int) -> int:
    """A second descriptor of the same file. Raises `SplicedError(INVALID)`."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as err:
        raise SplicedError(Code.INVALID, f"engine memory: {err}") from err
