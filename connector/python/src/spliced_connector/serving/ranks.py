"""Keeps the tensor-parallel ranks of one engine in agreement while they splice.

A walk sums over ranks inside its layers, so all ranks must walk the same rows at the same time. All
ranks have the same plans. They can differ in three things only: whether a rank can start, whether
it has the data it needs, and how much time it has left. The class `Ranks` makes them agree on these
three, through their own process group on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Start = tuple[str, str]
"""Two texts: why a rank cannot start ("" if it can), and the digest of its primer ("" for none)."""


def _alone(value: int) -> int:
    return value


def _only(start: Start) -> list[Start]:
    return [start]


@dataclass(frozen=True)
class Ranks:
    """The ranks that walk together. All ranks must call the same methods in the same order."""

    rank: int = 0
    _lowest: Callable[[int], int] = _alone
    _starts: Callable[[Start], list[Start]] = _only

    @classmethod
    def of(cls, group: ProcessGroup, rank: int, size: int) -> Ranks:
        """group: the process group of the engine's ranks, on the host."""
        if size == 1:
            return cls()

        def lowest(value: int) -> int:
            shared = torch.tensor([value], dtype=torch.int64)
            torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MIN, group=group)
            return int(shared.item())

        def starts(start: Start) -> list[Start]:
            shared = [start] * size
            torch.distributed.all_gather_object(shared, start, group=group)
            return shared

        return cls(rank, lowest, starts)

    def all(self, good: bool) -> bool:
        """Returns whether `good` is true on every rank."""
        return bool(self._lowest(int(good)))

    def started(self, why: str, primer: str) -> tuple[int, str]:
        """Returns the first rank that cannot start, and why; (0, "") if all can.

        why and primer: as in `Start`. All ranks need the primer of rank 0.
        """
        starts = self._starts((why, primer))
        for rank, (reason, digest) in enumerate(starts):
            if not reason and digest != starts[0][1]:
                reason = "primer: it has other tokens than that of rank 0"
            if reason:
                return rank, reason
        return 0, ""

    def least(self, number: int) -> int:
        """Returns the lowest number of all ranks, such as the rows that every rank has time for."""
        return self._lowest(number)
