"""Intervals against values worked out by hand and against their promise."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from intervals import paired, share


def test_share_of_wilson() -> None:
    # Wilson (1927) for 8 of 10: 0.490 to 0.943.
    e = share([True] * 8 + [False] * 2)
    assert (e.value, round(e.low, 3), round(e.high, 3)) == (0.8, 0.490, 0.943)


def test_interval_never_leaves_the_unit() -> None:
    assert share([True] * 5).high == 1.0
    assert share([False] * 5).low == 0.0


def test_same_answers_differ_by_nothing_but_not_by_certainty() -> None:
    same = [True, False] * 500
    e = paired(same, same)
    assert e.value == 0.0
    assert e.low < 0 < e.high < 0.005


def test_difference_counts_gains_against_losses() -> None:
    reference = [True] * 90 + [False] * 10
    hits = [False] * 6 + [True] * 84 + [True] * 2 + [False] * 8
    e = paired(hits, reference)
    assert e.value == pytest.approx(-0.04)
    assert e.low < -0.04 < e.high


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        pairs = [
            rng.choices(((1, 1), (1, 0), (0, 1), (0, 0)), (80, 4, 6, 10))[0] for _ in range(300)
        ]
        e = paired([bool(a) for a, _ in pairs], [bool(b) for _, b in pairs])
        held += e.low <= -0.02 <= e.high
    assert 370 <= held <= 392


def test_nothing_has_no_share() -> None:
    with pytest.raises(ValueError, match="nothing"):
        share([])
    with pytest.raises(ValueError, match="against"):
        paired([True], [])
