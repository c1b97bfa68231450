"""Tracking of rounded states in an engine's own cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from client_samples import SMALL
from spliced_connector.model import PrefixNames, Profile
from spliced_connector.serving import rounded as names
from spliced_connector.serving.rounded import Leading, Rounded
from spliced_connector.vllm.rounding import Rounding

BLOCK = 256
PROFILE = Profile(SMALL)
IDS = [i % 97 for i in range(2000)]


def named(ids: list[int], *ends: int, salt: str | None = None) -> list[bytes]:
    return Leading(PROFILE, BLOCK, salt).names(lambda: ids, ends)


def test_a_prefix_is_its_tokens_and_salt() -> None:
    rounded = Rounded()
    assert not rounded
    rounded.add(named(IDS, 256, 512))
    rounded.add(named(IDS, 768, salt="a"))
    assert rounded
    found = [end for end in range(128, 1024, 128) if rounded.has(*named(IDS, end))]
    assert found == [256, 512]
    assert rounded.has(*named(IDS[:512], 512))
    assert not rounded.has(*named([*IDS[:511], 98], 512))
    assert rounded.has(*named(IDS, 768, salt="a"))
    assert not rounded.has(*named(IDS, 768, salt="b"))
    assert not rounded.has(*named(IDS, 256, salt=""))


def test_what_was_not_seen_for_longest_is_forgotten() -> None:
    rounded = Rounded(most=3)
    rounded.add(named(IDS, 1, 2, 3))
    assert rounded.has(*named(IDS, 1))
    rounded.add(named(IDS, 4))
    assert [end for end in range(1, 5) if rounded.has(*named(IDS, end))] == [1, 3, 4]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens were hashed by each call of a namer, about."""
    seen: list[int] = []

    class Counted(PrefixNames):
        def name(self, tokens: Any, positions: Any) -> list[bytes]:
            seen.append(positions[-1] - max(self._last, 0))
            return super().name(tokens, positions)

    monkeypatch.setattr(names, "PrefixNames", Counted)
    return seen


def test_a_position_is_named_once_and_in_any_order(hashed: list[int]) -> None:
    leading = Leading(PROFILE, BLOCK)
    asked: list[int] = []

    def ids() -> list[int]:
        asked.append(len(IDS))
        return IDS

    want = {end: named(IDS, end)[0] for end in (300, 512, 700)}
    hashed.clear()
    for ends in ([512], [512], [700], [300], [300, 512, 700]):
        assert leading.names(ids, ends) == [want[end] for end in ends]
    assert hashed == [512, 188, 300] and len(asked) == 3


def test_requests_that_wait_and_answers_that_grow_are_hashed_once(hashed: list[int]) -> None:
    rounding = Rounding(PROFILE, BLOCK)
    first = request("first", BLOCK, 2 * BLOCK)
    rounding.matched(first, 0)
    waiting = request("waiting", 4 * BLOCK, 4 * BLOCK)
    for tokens in range(2 * BLOCK, 5 * BLOCK, BLOCK // 2):
        first.all_token_ids = IDS[:tokens]
        rounding.matched(waiting, 2 * BLOCK)
    assert rounding.behind("waiting")
    assert sum(hashed) == 4 * BLOCK + 2 * BLOCK + 2 * BLOCK, (
        "the answer, the place where the prompt begins, and what is computed behind that"
    )


def request(name: str, prompt: int, tokens: int, **fields: Any) -> Any:
    given = {"request_id": name, "cache_salt": None, "prompt_token_ids": IDS[:prompt]}
    return SimpleNamespace(**(given | {"all_token_ids": IDS[:tokens]} | fields))


def begins(rounding: Rounding, name: str, computed: int, **fields: Any) -> bool:
    """Reports whether a request with `computed` cached tokens begins at a rounded state."""
    one = request(name, 1900, 1900, **fields)
    rounding.matched(one, computed)
    found = rounding.behind(name)
    rounding._requests.pop(name)
    return found


@pytest.mark.parametrize("runs", [True, False])
def test_boundaries_of_answers_are_rounded_and_those_of_prompts_are_not(runs: bool) -> None:
    rounding = Rounding(PROFILE, BLOCK)
    one = request("r", 2 * BLOCK, 4 * BLOCK + 10)
    rounding.matched(one, 0)
    assert not rounding.behind("r")
    if not runs:
        rounding.finished(one)
    found = [end for end in range(BLOCK, 6 * BLOCK, BLOCK) if begins(rounding, "x", end)]
    assert found == [3 * BLOCK, 4 * BLOCK]
    assert not begins(rounding, "salted", 3 * BLOCK, cache_salt="other")


def test_the_last_boundary_of_an_answer_is_known_when_it_ends() -> None:
    rounding = Rounding(PROFILE, BLOCK)
    one = request("r", BLOCK, 2 * BLOCK - 1)
    rounding.matched(one, 0)
    assert not begins(rounding, "x", 2 * BLOCK)
    one.all_token_ids = IDS[: 2 * BLOCK]
    rounding.finished(one)
    assert begins(rounding, "x", 2 * BLOCK)
    assert not rounding._requests


def test_a_prompt_behind_a_rounded_state_leaves_others() -> None:
    rounding = Rounding(PROFILE, BLOCK)
    first = request("first", BLOCK, 2 * BLOCK)
    rounding.matched(first, 0)
    rounding.finished(first)
    second = request("second", 4 * BLOCK, 4 * BLOCK)
    rounding.matched(second, 2 * BLOCK)
    assert rounding.behind("second")
    assert begins(rounding, "x", 3 * BLOCK)
    rounding.finished(second)
    rounding.matched(second, BLOCK)
    assert not rounding.behind("second"), "it gave way, and begins again in front of the answer"


def test_requests_without_token_ids_are_left_alone() -> None:
    rounding = Rounding(PROFILE, BLOCK)
    rounding.matched(request("r", 0, 0, prompt_token_ids=None), 0)
    assert not rounding.behind("r")


def test_an_exact_state_takes_the_place_of_a_rounded_one_until_it_is_lost() -> None:
    rounding = Rounding(PROFILE, BLOCK)
    first = request("first", BLOCK, 2 * BLOCK)
    rounding.matched(first, 0)
    rounding.finished(first)
    second = request("second", 4 * BLOCK, 4 * BLOCK)
    rounding.matched(second, 2 * BLOCK)
    rounding.replaced("second")
    assert not rounding.behind("second")
    assert not begins(rounding, "x", 3 * BLOCK), "the prompt's own states are exact"
    rounding.lost("second")
    assert rounding.behind("second")
    assert begins(rounding, "y", 3 * BLOCK)
    rounding.replaced("first")
    rounding.lost("nobody")
