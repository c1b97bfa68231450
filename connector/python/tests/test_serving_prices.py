"""Prices from measurements that the tests make up: no clock is read."""

from __future__ import annotations

import pytest

from spliced_connector.client import CaptureTiming, WalkTiming
from spliced_connector.serving.prices import Clock, Line, Walked


def line(*measured: tuple[float, float]) -> Line:
    out = Line()
    out.learn(1, 99)  # the first is not counted
    for units, seconds in measured:
        out.learn(units, seconds)
    return out


def test_a_line_is_found_again() -> None:
    fit = line(*((n, 0.02 + 0.001 * n) for n in (100, 900, 300, 2000))).fit()
    assert fit == pytest.approx((0.02, 0.001))


def test_little_says_nothing() -> None:
    assert Line().fit() is None
    assert line((100, 1), (200, 2)).fit() is None
    assert line((100, 1), (0, 1), (200, 0), (200, 2)).fit() is None, "nothing is no measurement"


def test_one_size_is_by_the_unit() -> None:
    assert line(*[(500, 0.25)] * 5).fit() == pytest.approx((0, 0.0005))


def test_neither_part_is_negative() -> None:
    fixed, each = line((100, 3), (200, 2), (300, 1)).fit() or (-1, -1)
    assert fixed == pytest.approx(2, rel=0.2)
    assert each == 0
    fixed, each = line((100, 0.1), (200, 1), (300, 3)).fit() or (-1, -1)
    assert fixed == 0
    assert each > 0


def test_what_is_newer_weighs_more() -> None:
    slow, fast = [(n, n * 0.01) for n in (100, 400)], [(n, n * 0.001) for n in (100, 400)]
    fixed, each = line(*slow * 10, *fast * 40).fit() or (0, 0)
    assert each == pytest.approx(0.001, rel=0.01)
    assert fixed == pytest.approx(0, abs=0.001)


def test_walks_and_captures_are_kept_for_the_daemon() -> None:
    clock = Clock()
    clock.walked(Walked(rows=0, placed=0, seconds=0.0))  # nothing to learn from, nor to warm up by
    clock.walked(Walked(rows=40, placed=1600, seconds=9.0, captured=400, capture_seconds=9.0))
    assert clock.take() == (), "the first touches memory and chooses kernels"
    clock.walked(Walked(rows=40, placed=1600, seconds=0.5))
    clock.walked(Walked(rows=0, placed=0, seconds=0.1, captured=400, capture_seconds=0.2))
    assert clock.take() == (WalkTiming(40, 1600, 0.5), CaptureTiming(400, 0.2))
    assert clock.take() == ()
    for _ in range(100):
        clock.walked(Walked(rows=40, placed=0, seconds=0.5))
    assert len(clock.take()) == 64, "a daemon that does not ask costs no memory"
