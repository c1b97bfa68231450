"""Shares, differences and ratios, each with a 95 % confidence interval."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Z = 1.959964  # normal quantile of 97.5 %

DRAWS = 2000
"""Resamples of a bootstrap: the ends of an interval then move by some 2 % of its width."""

Draws = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Estimate:
    """A value and its interval, all in the same unit."""

    value: float
    low: float
    high: float


def share(hits: Sequence[bool]) -> Estimate:
    """Returns the share of hits with Wilson's score interval. Raises ValueError if there are no
    questions."""
    n = len(hits)
    if n == 0:
        raise ValueError("a share of nothing")
    p = sum(hits) / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half))


def paired(hits: Sequence[bool], reference: Sequence[bool]) -> Estimate:
    """Returns the share of hits minus the reference's share over the same questions.

    The interval follows Agresti and Min (2005). It adds half a question to both kinds of
    disagreement, so that it does not shrink to a point if there is no disagreement.
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


@lru_cache(maxsize=1)
def draws(n: int, times: int = DRAWS, seed: int = 1) -> Draws:
    """Returns resamples of n samples with replacement, as indices. Estimates that use the same
    resamples are paired."""
    rng = random.Random(seed)
    return [array("I", rng.choices(range(n), k=n)) for _ in range(times)]


def ratio(over: Sequence[float], under: Sequence[float], resampled: Draws) -> Estimate:
    """Returns sum(over) / sum(under) with the percentile interval of a bootstrap over samples.

    over and under have one entry per sample. So a mean over tokens is resampled by prompts, whose
    tokens are not independent. Raises ValueError if `under` sums to zero.
    """
    if len(over) != len(under) or sum(under) == 0:
        raise ValueError(f"{len(over)} samples over {len(under)} that sum to {sum(under):g}")
    found = []
    for indices in resampled:
        whole = sum(map(under.__getitem__, indices))
        if whole:
            found.append(sum(map(over.__getitem__, indices)) / whole)
    found.sort()
    least, most = (_quantile(found, q) for q in (0.025, 0.975))
    return Estimate(sum(over) / sum(under), least, most)


def removed(distances: Sequence[float], before: Sequence[float], resampled: Draws) -> Estimate:
    """Returns the share by which `distances` are smaller than `before`, paired by samples. Raises
    ValueError if `before` sums to zero."""
    left = ratio(distances, before, resampled)
    return Estimate(1 - left.value, 1 - left.high, 1 - left.low)


def _quantile(ascending: Sequence[float], q: float) -> float:
    at = q * (len(ascending) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (at - below) * (ascending[above] - ascending[below])
