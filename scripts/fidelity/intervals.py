"""Shares and paired differences, each with a 95 % confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Z = 1.959964  # normal quantile of 97.5 %


@dataclass(frozen=True)
class Estimate:
    """A value and its interval, all in the same unit."""

    value: float
    low: float
    high: float


def share(hits: Sequence[bool]) -> Estimate:
    """Wilson's score interval of a share."""
    n = len(hits)
    if n == 0:
        raise ValueError("a share of nothing")
    p = sum(hits) / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half))


def paired(hits: Sequence[bool], reference: Sequence[bool]) -> Estimate:
    """Share of hits minus that of the reference over the same questions.

    The interval of Agresti and Min (2005): half a question is added to both kinds of disagreement,
    so that it does not shrink to a point when the two never disagree.
    """
    n = len(hits)
    if n == 0 or n != len(reference):
        raise ValueError(f"{n} answers against {len(reference)}")
    gained = sum(h and not r for h, r in zip(hits, reference, strict=True))
    lost = sum(r and not h for h, r in zip(hits, reference, strict=True))
    b, c, m = gained + 0.5, lost + 0.5, n + 2
    centre = (b - c) / m
    half = Z * math.sqrt((b + c) - (b - c) ** 2 / m) / m
    return Estimate((gained - lost) / n, centre - half, centre + half)


def resampled(
    measure: Callable[[Tensor], Tensor], each: Sequence[Sequence[float]], draws: int = 2000
) -> Estimate:
    """A measure of sums over questions, with its interval by the bootstrap over questions.

    each: of every question the numbers that are added up; `measure` gets [..., numbers] of sums.
    """
    import torch

    numbers = torch.tensor(each, dtype=torch.float64)
    n = len(numbers)
    if n == 0:
        raise ValueError("a measure of nothing")
    drawn = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(n))
    found = measure(numbers[drawn].sum(1)).quantile(torch.tensor([0.025, 0.975]).double())
    return Estimate(float(measure(numbers.sum(0))), float(found[0]), float(found[1]))
