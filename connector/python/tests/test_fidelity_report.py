"""Figures of made-up readings, the table and the recommendation."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from typing import cast

import pytest

from spliced_connector.fidelity.progress import Progress
from spliced_connector.fidelity.report import (
    Settings,
    advice,
    document,
    figures,
    recommended,
    skips,
    table,
)
from spliced_connector.fidelity.ways import (
    FULL,
    PREFIX,
    TODAY,
    Kind,
    Measured,
    Reading,
    Skipped,
    Way,
    ways_of,
)

DEFAULT = Way(Kind.SPLICE, "default")
OTHER = Way(Kind.SPLICE, "/texts/other.txt")
WAYS = ways_of(["default", "/texts/other.txt"])
REFRESHED = ways_of(["default"], [0.01, 0.15, 0.3])


def refreshed(share: float, primer: str = "") -> Way:
    return Way(Kind.SPLICE, primer, share)


def measured(
    off: dict[Way, float],
    prompts: int = 40,
    wrong: int = 0,
    seed: int = 3,
    ways: Sequence[Way] = WAYS,
) -> list[Measured]:
    """Prompts with answers of one to three tokens. off: the mean distance of each way; those that
    are spliced give `wrong` of the first tokens, and compute twice of what they refresh."""
    rng = random.Random(seed)
    found = []
    for line in range(1, prompts + 1):
        answer = tuple(range(5, 6 + line % 3))
        full = [-rng.random() for _ in answer]
        at = {FULL: Reading(tuple(full), answer, 1000)}
        for way in ways[1:]:
            mean = off.get(way, 0.0)
            near = [x + mean * rng.choice((-1, 1)) * (0.5 + rng.random()) for x in full]
            first = 1 if way.kind is Kind.SPLICE and line <= wrong else answer[0]
            computed = 990 if way == PREFIX else 50 + round(2000 * way.refresh)
            at[way] = Reading(tuple(near), (first, *answer[1:]), computed)
        found.append(Measured(line, 1000, 3, 2, answer, at))
    return found


def test_the_nearest_way_beyond_its_interval_is_recommended() -> None:
    rows = figures(measured({TODAY: 0.4, DEFAULT: 0.02, OTHER: 0.1}), WAYS)
    by_way = {row.way: row for row in rows}
    assert [row.way for row in rows] == list(WAYS)
    assert by_way[FULL].distance.value == by_way[PREFIX].distance.value == 0
    assert by_way[TODAY].distance.value == pytest.approx(0.4, rel=0.1)
    assert by_way[TODAY].removed is None
    removed = by_way[DEFAULT].removed
    assert removed is not None and 0.9 < removed.low < removed.value < removed.high < 1
    assert (by_way[FULL].computed, by_way[PREFIX].computed) == (1, 0.99)
    best = recommended(rows)
    assert best is not None and best.way == DEFAULT
    assert advice(rows, Settings()) == ['Recommended settings: {"primer": "default"}']
    assert advice(rows, Settings(seam=16, primer_after=64)) == [
        'Recommended settings: {"primer": "default", "primer_after": 64, "seam_tokens": 16}'
    ]


def test_tokens_count_alike_whatever_prompt_they_are_of() -> None:
    some = measured({TODAY: 0.4})
    sums = [
        sum(
            abs(a - b) for a, b in zip(m.readings[TODAY].log_p, m.readings[FULL].log_p, strict=True)
        )
        for m in some
    ]
    rows = figures(some, WAYS)
    value = next(row for row in rows if row.way == TODAY).distance.value
    assert value == pytest.approx(sum(sums) / sum(len(m.answer) for m in some))


def test_a_primer_that_wins_by_chance_is_not_recommended() -> None:
    rows = figures(measured({TODAY: 0.4, DEFAULT: 0.4, OTHER: 0.39}), WAYS)
    assert recommended(rows) is None
    assert advice(rows, Settings()) == [
        "Recommended settings: none, no way measured is nearer than captures alone."
    ]


def test_exact_splices_leave_nothing_to_remove() -> None:
    rows = figures(measured({}), WAYS)
    assert [row.removed for row in rows] == [None] * len(WAYS)
    assert recommended(rows) is None


def test_few_prompts_give_no_recommendation() -> None:
    rows = figures(measured({TODAY: 0.4, DEFAULT: 0.02}, prompts=19), WAYS)
    assert advice(rows, Settings()) == ["No recommendation: 19 prompts, want 20 or more."]
    assert recommended(figures(measured({TODAY: 0.4, DEFAULT: 0.02}, prompts=20), WAYS))


def test_other_first_tokens_are_warned_of() -> None:
    def warned(wrong: int) -> list[str]:
        return advice(figures(measured({TODAY: 0.4}, wrong=wrong), WAYS), Settings())[1:]

    assert warned(4) == []
    (line,) = warned(5)
    assert "87.5 % of the prompts, below 90 %" in line


def test_a_way_is_named_by_its_settings() -> None:
    assert [way.name for way in ways_of(["default"], [0.01, 0.15])] == [
        "full prefill",
        "prefix reuse",
        "spliced, no primer",
        "spliced, no primer, refresh 0.01",
        "spliced, no primer, refresh 0.15",
        "spliced, primer default",
        "spliced, primer default, refresh 0.01",
        "spliced, primer default, refresh 0.15",
    ]


@pytest.mark.parametrize(
    ("off", "want"),
    [
        # The interval of the best way without refresh is what it has to pass, not today's.
        ({TODAY: 0.4, DEFAULT: 0.02, refreshed(0.01): 0.1}, DEFAULT),
        ({TODAY: 0.4, DEFAULT: 0.02, refreshed(0.01, "default"): 0.02}, DEFAULT),
        (
            {TODAY: 0.4, DEFAULT: 0.1, refreshed(0.01): 0.1, refreshed(0.01, "default"): 0.02},
            refreshed(0.01, "default"),
        ),
        # A primer that refresh leaves nothing to do is not part of it.
        ({TODAY: 0.4, DEFAULT: 0.1, refreshed(0.01): 0.02}, refreshed(0.01)),
        # More refresh has to be nearer than less.
        ({TODAY: 0.4, refreshed(0.01): 0.1, refreshed(0.15): 0.1}, refreshed(0.01)),
        ({TODAY: 0.4, refreshed(0.01): 0.1, refreshed(0.15): 0.02}, refreshed(0.15)),
        ({TODAY: 0.4, refreshed(0.01): 0.1, refreshed(0.3): 0.02}, refreshed(0.3)),
        ({TODAY: 0.4, refreshed(0.15): 0.4}, TODAY),
    ],
)
def test_refresh_is_recommended_where_it_is_nearer_than_less_of_it(
    off: dict[Way, float], want: Way
) -> None:
    """Ways that are not named read what the best with as much refresh or less reads."""
    some = measured(off, ways=[FULL, PREFIX, *off])
    by_distance = sorted(off, key=lambda way: off[way])
    for one in some:
        readings = cast("dict[Way, Reading]", one.readings)
        for way in REFRESHED[2:]:
            like = next(other for other in by_distance if other.refresh <= way.refresh)
            readings.setdefault(way, readings[like if way.refresh else TODAY])
    best = recommended(figures(some, REFRESHED))
    assert (TODAY if best is None else best.way) == want


def test_refresh_is_recommended_with_its_cost() -> None:
    off = dict.fromkeys(REFRESHED[2:], 0.1) | {TODAY: 0.4, refreshed(0.15, "default"): 0.02}
    rows = figures(measured(off, ways=REFRESHED), REFRESHED)
    at = {row.way: row.distance.value for row in rows}
    settings, cost = advice(rows, Settings())
    assert settings == 'Recommended settings: {"primer": "default", "refresh": 0.15}'
    assert cost == (
        "Cost of refresh: 35.0 % of the prompt tokens are computed. Without it"
        " (spliced, primer default): 5.0 %, and a mean abs. Δ log p of"
        f" {at[DEFAULT]:.4f} instead of {at[refreshed(0.15, 'default')]:.4f}."
    )


def test_the_table_has_a_row_for_each_way() -> None:
    lines = table(figures(measured({TODAY: 0.4, DEFAULT: 0.02}, wrong=10), WAYS)).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][0] == "way" and cells[0][5] == "distance removed, %"
    assert cells[2] == [
        "full prefill",
        "40",
        "100.0 (91.2 to 100.0)",
        "100.0",
        "0.0000 (0.0000 to 0.0000)",
        "",
        "100.0",
    ]
    assert cells[4][:3] == ["spliced, no primer", "40", "75.0 (59.8 to 85.8)"]
    assert cells[4][3] == "87.5" and cells[4][6] == "5.0"
    assert cells[5][0] == "spliced, primer default" and float(cells[5][5].split()[0]) > 90


def test_everything_is_written_as_json() -> None:
    some = measured({TODAY: 0.4, DEFAULT: 0.02, OTHER: 0.1})
    rows = figures(some, WAYS)
    skipped = [Skipped(7, "no segments"), Skipped(9, "no segments"), Skipped(11, "too long")]
    text = json.dumps(document({"model": "m"}, rows, Settings(), some, skipped))
    found = json.loads(text)
    assert found["model"] == "m" and found["recommended"] == "spliced, primer default"
    assert found["settings"] == {"primer": "default"}
    assert found["advice"] == advice(rows, Settings())
    assert [way["name"] for way in found["ways"]] == [way.name for way in WAYS]
    assert found["ways"][3]["way"] == {
        "kind": "spliced",
        "primer": "default",
        "refresh": False,
        "refresh_share": 0,
    }
    assert "distances" not in found["ways"][3]
    one = found["prompts"][0]["ways"]["spliced, primer default"]
    assert one["log_p"] == list(some[0].readings[DEFAULT].log_p)
    assert found["skipped"][0] == {"line": 7, "reason": "no segments"}
    assert skips(skipped) == "Skipped: 2 prompts: no segments; 1 prompt: too long"
    assert skips([]) == ""


def test_the_time_left_is_known_after_three_prompts() -> None:
    now, out = 0.0, io.StringIO()
    progress = Progress([100, 100, 100, 700, 500, 500], out, lambda: now)
    for seconds in (5, 5, 5, 35, 1):
        now += seconds
        progress.done()
    assert out.getvalue().splitlines() == [
        "3 of 6 prompts in 15 s, 85 s left",
        "4 of 6 prompts in 50 s, 50 s left",
    ]
    now += 1000
    progress.done()
    assert out.getvalue().splitlines()[-1] == "6 of 6 prompts in 18 min, 0 s left"
