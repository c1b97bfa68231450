"""Reads the rows of a request with shared pages as if it had none: in the order of tokens and with
keys at their positions, which is the form in which checkpoints are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.vllm.caches import BlocksError, RowPages
from spliced_connector.vllm.pages.plans import PagePlan
from spliced_connector.vllm.plans import NO_BLOCK
from spliced_connector.walk import angles, turn


def read_rows(
    pages: RowPages, rope: Rope, plan: PagePlan, table: Sequence[int], begin: int, end: int
) -> tuple[Tensor, Tensor]:
    """Returns copies of the keys and values of tokens [begin, end) of one layer, with keys rotated
    to their positions.

    table: the request's own blocks. Raises BlocksError if they do not contain its private tokens.
    """
    found = [*_private(pages, plan, table, begin, end), *_shared(pages, rope, plan, begin, end)]
    found.sort(key=lambda one: one[0])
    return torch.cat([k for _, k, _ in found]), torch.cat([v for _, _, v in found])


def _private(
    pages: RowPages, plan: PagePlan, table: Sequence[int], begin: int, end: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    size = pages.block_tokens
    for a, b, row in plan.private(begin, end):
        behind = row + b - a
        if behind > len(table) * size or NO_BLOCK in table[row // size : -(-behind // size)]:
            raise BlocksError(f"no blocks for all of tokens {a} to {b}")
        yield a, *pages.read(table, row, behind)


def _shared(
    pages: RowPages, rope: Rope, plan: PagePlan, begin: int, end: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    for run in plan.runs:
        a, b = max(run.wanted.start, begin), min(run.wanted.end, end)
        if a >= b:
            continue
        first = run.offset + a - run.wanted.start
        k, v = pages.read((run.block,), first, first + b - a)
        if rope.dims:
            cos, sin = angles(rope, torch.tensor([run.wanted.turn], device=k.device))
            k = turn(k, cos[:, None], sin[:, None], rope.interleaved)
        yield a, k, v
