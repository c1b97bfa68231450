"""What the tensor-parallel ranks of one engine have to agree on while they splice.

A walk sums over ranks inside of its layers, so all ranks have to walk the same rows at the same
time. What they do follows from plans that are the same everywhere, but for two things: whether a
rank has what it needs, and what the clock says. Both are agreed on here, by the ranks' own group
on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _alone(value: int) -> int:
    return value


@dataclass(frozen=True)
class Ranks:
    """The ranks that walk together. Every method is called by all of them, in the same order."""

    rank: int = 0
    _lowest: Callable[[int], int] = _alone

    @classmethod
    def of(cls, group: ProcessGroup, rank: int, size: int) -> Ranks:
        """group: of the engine's ranks, on the host."""
        if size == 1:
            return cls()

        def lowest(value: int) -> int:
            told = torch.tensor([value], dtype=torch.int64)
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MIN, group=group)
            return int(told.item())

        return cls(rank, lowest)

    def all(self, good: bool) -> bool:
        """Whether it is so on every rank."""
        return bool(self._lowest(int(good)))

    def least(self, number: int) -> int:
        """The lowest of the ranks' numbers: rows, say, that all have time for."""
        return self._lowest(number)
