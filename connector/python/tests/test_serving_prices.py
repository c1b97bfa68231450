"""Prices from measurements that the tests make up: no clock is read."""

from __future__ import annotations

import pytest

from spliced_connector.serving.prices import CLAIM_ROWS, GUESS, Line, Prices, Walked, prices


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


def test_prices_are_in_rows_of_prefill() -> None:
    prefill = line(*((n, 0.5 + 0.002 * n) for n in (100, 900, 300)))
    walks = line(*((n, 0.03 + 0.004 * n) for n in (50, 200, 400)))
    got = prices(prefill, walks)
    assert got.walk == pytest.approx(2)
    assert got.placed == pytest.approx(2 / 16)
    assert got.claim == pytest.approx(CLAIM_ROWS + 15)


def test_half_a_measurement_is_a_guess() -> None:
    known = line((100, 1), (200, 2), (300, 3))
    assert prices(known, Line()) == GUESS == prices(Line(), known)
    still = line((100, 3), (200, 2), (300, 1))  # no seconds a row: nothing to divide by
    assert prices(still, known) == GUESS == Prices()


def test_a_walk_is_counted_in_computed_rows() -> None:
    assert Walked(rows=40, placed=1600, seconds=1).units == 140
