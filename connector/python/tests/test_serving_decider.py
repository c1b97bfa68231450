"""What the deciding half of an adapter of a server logs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spliced_connector.client import Advice, Way
from spliced_connector.segments import Finder
from spliced_connector.serving.decider import SHORT_TOKENS, Decider
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.settings import Settings


def test_prompts_without_segments_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = cast(Any, SimpleNamespace())
    clock = cast(Any, SimpleNamespace())
    decider = Decider(model, Settings(weights="0" * 64), Finder(), EngineTally(), clock)
    caplog.set_level(logging.INFO, "spliced")
    decider.cuts(None, range(SHORT_TOKENS - 1))
    assert not caplog.messages, "too short to be missed"
    for _ in range(3):
        decider.cuts(None, range(SHORT_TOKENS))
    assert len(caplog.messages) == 1
    assert "no segments were found" in caplog.messages[0]


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("splice", [None, 0, 2])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("priced", [False, True])
def test_advice_says_how_many_segments_to_take(
    way: Way, splice: int | None, wanted: bool, priced: bool
) -> None:
    advice = Advice(0, way, (), (), (), splice)
    want: int | None
    if splice is not None and priced:
        want = splice if way is Way.SPLICE else 0
    else:
        want = None if wanted or way not in (Way.RECOMPUTE, Way.PREFIX) else 0
    assert advice.takes(wanted, priced) == want


@pytest.mark.parametrize(
    ("setting", "said", "end"),
    [(0.0, None, 1200), (0.2, None, 900), (0.2, 0.0, 1200), (0.0, 0.3, 600), (0.5, 1.0, None)],
)
def test_the_last_segments_are_left_to_the_engine(
    setting: float, said: float | None, end: int | None
) -> None:
    """A request's own share comes before that of the settings."""
    settings = Settings(weights="0" * 64, refresh=setting)
    model, tally = cast(Any, SimpleNamespace()), EngineTally()
    decider = Decider(model, settings, Finder(), tally, cast(Any, SimpleNamespace()))
    asked = {"v": 1, "cuts": [0, 300, 600, 900, 1200]} | ({} if said is None else {"refresh": said})
    found = decider.cuts({"spliced": asked}, range(1250))
    assert found is not None
    assert (found.cuts[-1] if found.cuts else None) == end
    assert tally.snapshot()["refreshed_tokens"] == 1200 - (end or 0)
