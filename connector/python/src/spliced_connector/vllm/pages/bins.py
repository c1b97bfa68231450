"""Bins: blocks of the engine that hold parts of segments, for all requests that have them.

A bin in use is referenced once by each request that points into it. One that is not is in the
pool's free list, keeps its contents until the pool hands it out, and counts as free: so the engine
evicts bins as it evicts its own cached blocks, the longest unused first.

    block of 544 rows   [ segment A, 112 | segment C, 96 | segment B, 2nd part, 208 | room ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spliced_connector.vllm.pages.plans import Part

PAGE_TOKENS = 16
"""Parts begin at multiples of it: kernels read whole tiles of at least so many rows."""

MOST_OPEN = 8
"""Bins with room that are looked at for a part. With more, old bins fill up better and requests
point into more of them, each of which stays for the sake of one part."""


class Block(Protocol):
    """vLLM's KVCacheBlock: what is read of it."""

    block_id: int
    ref_cnt: int


B = TypeVar("B", bound=Block)


class Pool(Protocol[B]):
    """vLLM's BlockPool: what is called of it."""

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
    """Rows of a block from `offset` on."""

    block: int
    offset: int
    generation: int


@dataclass(slots=True)
class Layout:
    """Where parts are to go: found ones stay where they are, the rest follows in bins with room or
    in new ones. Good until anything is placed or evicted."""

    parts: tuple[Part, ...]
    bins: list[_Bin]  # that exist, each once
    fresh: list[list[Part]]  # parts of each new bin
    added: list[tuple[_Bin, Part]]  # to bins that exist

    @property
    def blocks(self) -> int:
        """How many of the pool's free blocks it takes: new ones, and bins that are not in use."""
        return len(self.fresh) + sum(one.block.ref_cnt == 0 for one in self.bins)


class Bins:
    """The bins of one cache group.

    Invariant: a part that is found has its bin referenced, or in the pool's free list.
    """

    def __init__(self, pool: Pool[Block], block_tokens: int) -> None:
        self._pool = pool
        self._size = block_tokens - block_tokens % PAGE_TOKENS
        self._found: dict[Part, tuple[_Bin, int]] = {}
        self._bins: dict[int, _Bin] = {}  # by block
        self._open: list[_Bin] = []  # with room, the oldest first
        self._generation = 0

    @property
    def part_tokens(self) -> int:
        """Rows of the longest part."""
        return self._size

    def __len__(self) -> int:
        """Bins that hold something, in use or not."""
        return len(self._bins)

    def lay(self, parts: Sequence[Part]) -> Layout:
        """Where parts would go, without a change. A part that is named twice is placed once."""
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
        """References the bins of a layout that exist, so that nothing evicts them."""
        self._pool.touch([one.block for one in layout.bins])

    def place(self, layout: Layout) -> tuple[list[Place], list[Block]]:
        """Takes the new bins of a pinned layout. Answers the places of its parts, and the blocks
        that are referenced, for `unpin`."""
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
        """Gives references back; contents stay until the pool hands a block out."""
        self._pool.unpin_blocks(blocks, self._reused)

    def _put(self, into: _Bin, part: Part) -> None:
        self._found[part] = into, self._size - into.room
        into.parts.append(part)
        into.room -= _pages(part)

    def _reused(self, block: Block) -> None:
        """The pool has given a bin's block to somebody else."""
        gone = self._bins.pop(block.block_id, None)
        if gone is None:
            return
        for part in gone.parts:
            del self._found[part]
        self._open = [one for one in self._open if one is not gone]


def _pages(part: Part) -> int:
    """Rows that a part takes."""
    return -(-part.length // PAGE_TOKENS) * PAGE_TOKENS


def _once(bins: list[_Bin], one: _Bin) -> None:
    if not any(other is one for other in bins):
        bins.append(one)
