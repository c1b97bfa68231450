"""Staging: the memory that a client writes and the daemon reads."""

from __future__ import annotations

import bisect
import threading
import time
from typing import NamedTuple

from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import PART_ALIGN


class Extent(NamedTuple):
    """A run of bytes of a region."""

    offset: int
    nbytes: int


class Staging:
    """Allocates parts of one connection's staging, first fit, at multiples of `PART_ALIGN`.

    Invariant: `_holes`, the free runs, are sorted, disjoint and never adjacent.
    """

    def __init__(self, region: memoryview) -> None:
        self.region = region
        self._freed = threading.Condition()
        size = len(region) // PART_ALIGN * PART_ALIGN
        self._holes = [Extent(0, size)] if size else []
        self._closed = False

    def allocate(self, nbytes: int, deadline: float) -> Extent:
        """Allocates `nbytes`. Waits for room until the deadline, a time of `time.monotonic`.

        Raises `SplicedError`: FULL for more than the region, BUSY if there is no room by the
        deadline, UNAVAILABLE after `close`.
        """
        if padded(nbytes) > len(self.region):
            have = len(self.region)
            raise SplicedError(Code.FULL, f"{nbytes} bytes of staging, have {have}")
        with self._freed:
            while (part := self._take(nbytes)) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SplicedError(
                        Code.BUSY, f"{nbytes} bytes of staging: timed out waiting for free memory"
                    )
                self._freed.wait(left)
            return part

    def try_allocate(self, nbytes: int) -> Extent | None:
        """Like `allocate`, but does not wait. Returns None if there is no room now."""
        with self._freed:
            return self._take(nbytes)

    def _take(self, nbytes: int) -> Extent | None:
        if self._closed:
            raise SplicedError(Code.UNAVAILABLE, "the connection has ended")
        want = padded(nbytes)
        for i, hole in enumerate(self._holes):
            if hole.nbytes > want:
                self._holes[i] = Extent(hole.offset + want, hole.nbytes - want)
                return Extent(hole.offset, nbytes)
            if hole.nbytes == want:
                del self._holes[i]
                return Extent(hole.offset, nbytes)
        return None

    def bytes_of(self, part: Extent) -> memoryview:
        """Returns the memory of a part."""
        return self.region[part.offset : part.offset + part.nbytes]

    def free(self, parts: list[Extent]) -> None:
        """Frees parts that `allocate` returned."""
        if not parts:
            return
        with self._freed:
            for part in parts:
                self._insert(Extent(part.offset, padded(part.nbytes)))
            self._freed.notify_all()

    def _insert(self, part: Extent) -> None:
        holes = self._holes
        i = bisect.bisect_left(holes, part)
        if i < len(holes) and part.offset + part.nbytes == holes[i].offset:
            part = Extent(part.offset, part.nbytes + holes.pop(i).nbytes)
        if i > 0 and holes[i - 1].offset + holes[i - 1].nbytes == part.offset:
            before = holes.pop(i - 1)
            part = Extent(before.offset, before.nbytes + part.nbytes)
            i -= 1
        holes.insert(i, part)

    def whole(self) -> bool:
        """Returns whether all staging memory is free."""
        with self._freed:
            return sum(hole.nbytes for hole in self._holes) == (
                len(self.region) // PART_ALIGN * PART_ALIGN
            )

    def close(self) -> None:
        """Wakes all waiters."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()


def padded(nbytes: int) -> int:
    """Returns the bytes that an allocation of `nbytes` occupies."""
    return -(-max(nbytes, 1) // PART_ALIGN) * PART_ALIGN
