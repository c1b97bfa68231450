"""Where the bytes of an object lie in a region: the extents that the daemon names."""

from __future__ import annotations

from collections.abc import Sequence

from spliced_connector.client.connection.staging import Extent
from spliced_connector.client.terms import NONE64

ABSENT = -1
"""The offset of bytes that are not in memory. A checkpoint consists of nodes (consecutive token
ranges), and a node that a later node extends may have lost its states."""


def runs(
    offsets: Sequence[int], lengths: Sequence[int], nbytes: int, region: int, *, holes: bool = False
) -> list[Extent]:
    """Checks the extents of an object of `nbytes` and cuts off excess bytes.

    With `holes`, some bytes may be absent from memory. Raises ValueError for invalid extents.
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
    """Returns whether bytes [offset, offset + nbytes) of an object are in memory."""
    for run in extents:
        if run.offset == ABSENT and offset < run.nbytes and offset + nbytes > 0:
            return False
        offset -= run.nbytes
    return True


def cut(extents: Sequence[Extent], memory: memoryview, offset: int, nbytes: int) -> memoryview:
    """Returns bytes [offset, offset + nbytes) of an object: a view if they lie in one run, else a
    copy."""
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
