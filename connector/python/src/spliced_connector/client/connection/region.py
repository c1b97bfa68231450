"""A region of memory that the daemon shares with its clients."""

from __future__ import annotations

import contextlib
import fcntl
import mmap

_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 0x2


class Region:
    """A mapping of memory that the daemon has made.

    Each view keeps the memory mapped, so that reading from it cannot fault.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        """Maps the memory. The caller keeps the descriptor. Raises OSError or ValueError."""
        if not fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise ValueError("the memory could shrink while mapped")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, access)
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_DONTDUMP)
        self.view = memoryview(mapping)  # nothing else keeps the mapping

    def close(self) -> None:
        """Unmaps the memory, now or when the last view is gone."""
        self.view.release()
