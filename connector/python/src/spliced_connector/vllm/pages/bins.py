"""Bins: blocks of the engine that contain parts of segments, shared by all requests that have them.

A bin in use has one reference for each request that uses it. An unused bin is in the pool's free
list and counts as free, but keeps its contents until the pool reassigns it. So the engine evicts
bins like its own cached blocks, the longest unused first.

    block of 544 rows   [ segment A, 112 | segment C, 96 | segment B, 2nd part, 208 | room ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spliced_connector.vllm.pages.plans import Part

PAGE_TOKENS = 16
"""Alignment of parts in rows, because kernels read whole tiles of at least this many rows."""

MOST_OPEN = 8
"""Maximum number of bins with room that are tried for a part. With more, old bins fill up better.
But then a request uses more bins, and a single part in use keeps a whole bin from eviction."""


class Block(Protocol):
    """The members of vLLM's KVCacheBlock that are used."""

    block_id: int
    ref_cnt: int


B = TypeVar("B", bound=Block)


class Pool(Protocol[B]):
    """The members of vLLM's BlockPool that are used."""

    def touch(self, blocks: Sequence[B]) -> None: ...

    def get_new_blocks(self, num_blocks: int) -> list[B]: ...

    def unpin_blocks(self, blocks: Iterable[B], on_reuse: Callable[[B], None]) -> None: ...


@dataclass(slots=True)
class _Bin:
    block: Block
    generation: int
    room: int
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a part: rows of a block from `offset` on. generation: a number that tells apart
    the bins that use the same block one after the other."""

    block: int
    offset: int
    generation: int


@dataclass(slots=True)
class Layout:
    """Places for parts. Parts that are in bins already stay there; the others go to bins with room,
    or to new bins. Valid until a part is placed or evicted."""

    parts: tuple[Part, ...]
    bins: list[_Bin]  # existing bins, each once
    fresh: list[list[Part]]  # parts of each new bin
    added: list[tuple[_Bin, Part]]  # parts for existing bins

    @property
    def blocks(self) -> int:
        """Returns how many of the pool's free blocks the layout takes: those of new bins, and those
        of existing bins that are unused."""
        return len(self.fresh) + sum(one.block.ref_cnt == 0 for one in self.bins)


class Bins:
    """The bins of one cache group.

    Invariant: the bin of each part in `_found` is referenced or in the pool's free list.
    """

    def __init__(self, pool: Pool[Block], block_tokens: int) -> None:
        self._pool = pool
        self._size = block_tokens - block_tokens % PAGE_TOKENS
        self._found: dict[Part, tuple[_Bin, int]] = {}
        self._bins: dict[int, _Bin] = {}  # by block
        self._open: list[_Bin] = []  # bins with room, the oldest first
        self._generation = 0

    @property
    def part_tokens(self) -> int:
        """Returns the maximum rows of a part."""
        return self._size

    def __len__(self) -> int:
        """Returns the number of bins with contents, in use or not."""
        return len(self._bins)

    def lay(self, parts: Sequence[Part]) -> Layout:
        """Returns where parts would be placed, without placing them. A part that is named twice is
        placed only once."""
        layout = Layout(tuple(parts), [], [], [])
        room = {one.block.block_id: one.room for one in self._open}
        new: list[int] = []  # room of the new bins
        for part in dict.fromkeys(parts):
            found = self._found.get(part)
            if found is not None:
                _once(layout.bins, found[0])
                continue
            size = _pages(part)
            into = next((b for b in self._open if room[b.block.block_id] >= size), None)
            if into is not None:
                room[into.block.block_id] -= size
                layout.added.append((into, part))
                _once(layout.bins, into)
                continue
            at = next((i for i, left in enumerate(new) if left >= size), len(new))
            if at == len(new):
                new.append(self._size)
                layout.fresh.append([])
            new[at] -= size
            layout.fresh[at].append(part)
        return layout

    def pin(self, layout: Layout) -> None:
        """References the existing bins of a layout, so that they are not evicted."""
        self._pool.touch([one.block for one in layout.bins])

    def place(self, layout: Layout) -> tuple[list[Place], list[Block]]:
        """Allocates the new bins of a pinned layout. Returns the places of its parts, and the
        referenced blocks, for `unpin`."""
        for into, part in layout.added:
            self._put(into, part)
        taken = self._pool.get_new_blocks(len(layout.fresh)) if layout.fresh else []
        for block, parts in zip(taken, layout.fresh, strict=True):
            self._generation += 1
            fresh = _Bin(block, self._generation, self._size)
            self._bins[block.block_id] = fresh
            self._open.append(fresh)
            for part in parts:
                self._put(fresh, part)
        self._open = [one for one in self._open if one.room >= PAGE_TOKENS][-MOST_OPEN:]
        places = []
        for part in layout.parts:
            held, offset = self._found[part]
            places.append(Place(held.block.block_id, offset, held.generation))
        return places, [one.block for one in layout.bins] + list(taken)

    def unpin(self, blocks: Sequence[Block]) -> None:
        """Releases references; contents stay until the pool reassigns a block."""
        self._pool.unpin_blocks(blocks, self._reused)

    def _put(self, into: _Bin, part: Part) -> None:
        self._found[part] = into, self._size - into.room
        into.parts.append(part)
        into.room -= _pages(part)

    def _reused(self, block: Block) -> None:
        """Called when the pool has reassigned a bin's block."""
        gone = self._bins.pop(block.block_id, None)
        if gone is None:
            return
        for part in gone.parts:
            del self._found[part]
        self._open = [one for one in self._open if one is not gone]


def _pages(part: Part) -> int:
    """Returns how many rows a part takes, with padding."""
    return -(-part.length // PAGE_TOKENS) * PAGE_TOKENS


def _once(bins: list[_Bin], one: _Bin) -> None:
    if not any(other is one for other in bins):
        bins.append(one)
