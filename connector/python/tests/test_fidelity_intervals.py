"""Intervals against values worked out by hand and against their promise."""

from __future__ import annotations

import random

import pytest

from spliced_connector.fidelity.intervals import draws, paired, ratio, removed, share


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


def test_ratio_is_that_of_the_sums() -> None:
    e = ratio([1.0, 3.0], [2.0, 8.0], draws(2))
    assert e.value == pytest.approx(0.4)
    assert e.low == pytest.approx(0.375)  # one sample twice
    assert e.high == pytest.approx(0.5)


def test_ratio_of_proportional_samples_is_certain() -> None:
    under = [0.5, 0.0, 4.0, 1.0]
    e = ratio([0.25 * x for x in under], under, draws(4))
    assert (e.value, e.low, e.high) == (0.25, 0.25, 0.25)


def test_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(11)
    resampled = draws(60, times=400)
    held = 0
    for _ in range(300):
        under = [rng.expovariate(1.0) for _ in range(60)]
        over = [0.3 * x + rng.gauss(0, 0.2) for x in under]
        e = ratio(over, under, resampled)
        held += e.low <= 0.3 <= e.high
    assert 273 <= held <= 295


def test_removed_is_what_is_left_turned_round() -> None:
    before, now = [1.0, 2.0, 4.0], [0.5, 0.5, 0.4]
    left, gone = ratio(now, before, draws(3)), removed(now, before, draws(3))
    assert gone.value == pytest.approx(0.8)
    assert 1 - gone.low == pytest.approx(left.high)
    assert 1 - gone.high == pytest.approx(left.low)


def test_nothing_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="sum to 0"):
        ratio([1.0], [0.0], draws(1))
    with pytest.raises(ValueError, match="1 samples over 2"):
        ratio([1.0], [1.0, 2.0], draws(1))
