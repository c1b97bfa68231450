"""Bins and plans of shared pages, beside a pool that keeps vLLM's promises and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest

from spliced_connector.vllm.pages.bins import PAGE_TOKENS, Bins, Block
from spliced_connector.vllm.pages.plans import (
    LEAST_TOKENS,
    PagePlan,
    Part,
    Run,
    Wanted,
    parts_of,
)

SIZE = 160


@dataclass(eq=False)
class OneBlock:
    block_id: int
    ref_cnt: int = 0


class FreeList:
    """A pool as vLLM's: blocks without references leave in the order that they came in."""

    def __init__(self, blocks: int) -> None:
        self.free: list[Block] = [OneBlock(i + 1) for i in range(blocks)]
        self._watchers: dict[int, Callable[[Block], None]] = {}

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        assert num_blocks <= len(self.free)
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        for block in taken:
            block.ref_cnt = 1
            watcher = self._watchers.pop(block.block_id, None)
            if watcher is not None:
                watcher(block)
        return taken

    def unpin_blocks(self, blocks: Iterable[Block], on_reuse: Callable[[Block], None]) -> None:
        for block in blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self._watchers[block.block_id] = on_reuse
            if block.ref_cnt == 0:
                self.free.append(block)


def part(name: int, length: int) -> Part:
    return Part(name.to_bytes(2, "big"), 0, length)


def plan_of(*spans: tuple[int, int]) -> PagePlan:
    """Runs over these tokens."""
    return PagePlan(
        tuple(Run(Wanted(part(i, b - a), a, 0, i), 1, 0, 1) for i, (a, b) in enumerate(spans))
    )


def test_private_tokens_follow_each_other() -> None:
    plan = plan_of((8, 40), (56, 100), (100, 140))
    assert (plan.shared, plan.end) == (32 + 44 + 40, 140)
    assert list(plan.private(0, 150)) == [(0, 8, 0), (40, 56, 8), (140, 150, 24)]
    assert list(plan.private(44, 140)) == [(44, 56, 12)]
    assert list(plan.private(60, 99)) == []
    assert list(plan.private(145, 147)) == [(145, 147, 29)]


@pytest.mark.parametrize("seed", range(20))
def test_private_rows_are_those_of_a_count(seed: int) -> None:
    rng = random.Random(seed)
    spans, at = [], 0
    for _ in range(rng.randrange(1, 6)):
        begin = at + rng.randrange(0, 20)
        at = begin + rng.randrange(1, 50)
        spans.append((begin, at))
    plan, total = plan_of(*spans), at + 30
    shared = {t for a, b in spans for t in range(a, b)}
    row_of = {t: row for row, t in enumerate(t for t in range(total) if t not in shared)}
    begin = rng.randrange(total)
    end = rng.randrange(begin, total + 1)
    found = {a + i: row + i for a, b, row in plan.private(begin, end) for i in range(b - a)}
    assert found == {t: row for t, row in row_of.items() if begin <= t < end}


def test_rows_are_found_in_smaller_blocks_of_kernels() -> None:
    wanted = Wanted(part(1, 100), 200, 192, 0), Wanted(part(2, 32), 320, 310, 1)
    plan = PagePlan((Run(wanted[0], 3, 48, 1), Run(wanted[1], 5, 0, 1)))
    assert list(plan.spans(SIZE, SIZE)) == [(0, (3, 48, 148)), (1, (5, 0, 32))]
    assert list(plan.spans(SIZE, 32)) == [
        (0, (16, 16, 32)),
        (0, (17, 0, 32)),
        (0, (18, 0, 32)),
        (0, (19, 0, 20)),
        (1, (25, 0, 32)),
    ]


def test_a_long_interior_is_cut_to_the_size_of_a_bin() -> None:
    cut = list(parts_of(b"k", 1000, 2 * SIZE + LEAST_TOKENS - 1, 992, 3, SIZE))
    assert [(w.start, w.part.first, w.part.length) for w in cut] == [
        (1000, 0, SIZE),
        (1000 + SIZE, SIZE, SIZE),
    ], "what is left is too short to be shared"
    assert {w.turn for w in cut} == {992}


def test_a_part_is_placed_once() -> None:
    pool = FreeList(4)
    bins = Bins(pool, SIZE)
    layout = bins.lay([part(1, 50), part(2, 40), part(1, 50)])
    assert layout.blocks == 1
    bins.pin(layout)
    places, held = bins.place(layout)
    assert [(p.block, p.offset) for p in places] == [(1, 0), (1, 64), (1, 0)]
    again = bins.lay([part(2, 40)])
    assert again.blocks == 0, "it is in use"
    bins.unpin(held)
    assert bins.lay([part(2, 40)]).blocks == 1, "its block counts as free"
    assert len(pool.free) == 4


@pytest.mark.parametrize("seed", range(30))
def test_no_two_parts_overlap_and_what_is_used_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    pool = FreeList(12)
    bins = Bins(pool, SIZE)
    lengths = {i: rng.randrange(1, SIZE + 1) for i in range(40)}
    running: list[tuple[list[Block], dict[Part, tuple[int, int, int]]]] = []
    contents: dict[tuple[int, int], dict[int, Part]] = {}  # rows by block and generation
    refused = 0
    for _ in range(300):
        if running and rng.random() < 0.45:
            held, _ = running.pop(rng.randrange(len(running)))
            bins.unpin(held)
            continue
        parts = [part(i, lengths[i]) for i in rng.choices(range(40), k=rng.randrange(1, 7))]
        layout = bins.lay(parts)
        if layout.blocks > len(pool.free):
            refused += 1
            continue
        taken = layout.blocks
        before = len(pool.free)
        bins.pin(layout)
        places, held = bins.place(layout)
        assert before - len(pool.free) == taken
        mine = {}
        for one, place in zip(parts, places, strict=True):
            rows = contents.setdefault((place.block, place.generation), {})
            for row in range(place.offset, place.offset + one.length):
                assert rows.setdefault(row, one) == one
            assert place.offset % PAGE_TOKENS == 0 and place.offset + one.length <= SIZE
            mine[one] = place.block, place.generation, place.offset
        assert {place.block for place in places} == {block.block_id for block in held}
        assert all(block.ref_cnt > 0 for block in held)
        running.append((held, mine))
        for blocks, there in running:  # nobody's bins were given away
            found = bins.lay(list(there))
            assert not found.fresh and not found.added
            assert {b.block.block_id for b in found.bins} == {b.block_id for b in blocks}
    assert refused
    while running:
        bins.unpin(running.pop()[0])
    assert len(pool.free) == 12
    pool.get_new_blocks(12)
    assert len(bins) == 0
