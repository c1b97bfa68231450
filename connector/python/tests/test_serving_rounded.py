"""Tracking of rounded states in an engine's own cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spliced_connector.serving.rounded import Rounded
from spliced_connector.vllm.rounding import Rounding

BLOCK = 256
IDS = [i % 97 for i in range(2000)]


def test_a_prefix_is_its_tokens_and_salt() -> None:
    rounded = Rounded()
    rounded.add(IDS, [256, 512])
    rounded.add(IDS, [768], salt="a")
    assert [end for end in range(0, 1024, 128) if rounded.has(IDS, end)] == [256, 512]
    assert rounded.has(IDS[:512], 512)
    assert not rounded.has([*IDS[:511], 98], 512)
    assert rounded.has(IDS, 768, salt="a")
    assert not rounded.has(IDS, 768, salt="b")
    assert not rounded.has(IDS, 256, salt="")


def test_what_was_not_seen_for_longest_is_forgotten() -> None:
    rounded = Rounded(most=3)
    rounded.add(IDS, [1, 2, 3])
    assert rounded.has(IDS, 1)
    rounded.add(IDS, [4])
    assert [end for end in range(1, 5) if rounded.has(IDS, end)] == [1, 3, 4]


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
    rounding = Rounding(BLOCK)
    one = request("r", 2 * BLOCK, 4 * BLOCK + 10)
    rounding.matched(one, 0)
    assert not rounding.behind("r")
    if not runs:
        rounding.finished(one)
    found = [end for end in range(BLOCK, 6 * BLOCK, BLOCK) if begins(rounding, "x", end)]
    assert found == [3 * BLOCK, 4 * BLOCK]
    assert not begins(rounding, "salted", 3 * BLOCK, cache_salt="other")


def test_the_last_boundary_of_an_answer_is_known_when_it_ends() -> None:
    rounding = Rounding(BLOCK)
    one = request("r", BLOCK, 2 * BLOCK - 1)
    rounding.matched(one, 0)
    assert not begins(rounding, "x", 2 * BLOCK)
    one.all_token_ids = IDS[: 2 * BLOCK]
    rounding.finished(one)
    assert begins(rounding, "x", 2 * BLOCK)
    assert not rounding._requests


def test_a_prompt_behind_a_rounded_state_leaves_others() -> None:
    rounding = Rounding(BLOCK)
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
    rounding = Rounding(BLOCK)
    rounding.matched(request("r", 0, 0, prompt_token_ids=None), 0)
    assert not rounding.behind("r")
