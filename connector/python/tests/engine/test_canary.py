"""The canary's comparisons and when they switch splicing off."""

from __future__ import annotations

import math
import random
import time

import pytest
import torch
from torch import Tensor

from engine.walk_models import TINY
from spliced_connector.walk import (
    Architecture,
    Canary,
    Context,
    Naming,
    Verdict,
    architecture,
    logit_error,
    prefill,
)
from spliced_connector.walk.canary import STRIKES, ChangedTokens

FOREVER = 1e12


@pytest.fixture(scope="module")
def arch() -> Architecture:
    return architecture(TINY["bamba"].build(), Naming(bytes(31) + b"\1"))


def ids(n: int = 60) -> Tensor:
    return torch.tensor([(11 * i * i + 3) % 96 for i in range(n)])


def context(arch: Architecture, prompt: Tensor, tokens: int) -> Context:
    made = Context(arch, len(prompt), torch.device("cpu"))
    prefill(arch, prompt[:tokens], made)
    return made


def broken(arch: Architecture, prompt: Tensor, tokens: int) -> Context:
    """As of a segment whose transition was lost."""
    made = context(arch, prompt, tokens)
    for layer in made.layers:
        if layer.state is not None:
            layer.state = torch.randn_like(layer.state)
    return made


def test_an_error_is_relative_to_the_spread_and_blind_to_a_shift() -> None:
    full = torch.randn(500, generator=torch.Generator().manual_seed(1))
    assert logit_error(full, full) == 0
    assert logit_error(full + 7, full) < 1e-6
    noise = torch.randn(500, generator=torch.Generator().manual_seed(2))
    one = logit_error(full + 0.1 * noise, full)
    assert 0.08 < one < 0.12
    assert math.isclose(logit_error(10 * full + noise, 10 * full), one, rel_tol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_infinitely_wrong(value: float) -> None:
    full = torch.arange(5.0)
    assert logit_error(torch.tensor([0.0, 1.0, value, 3.0, 4.0]), full) == math.inf
    assert logit_error(full, torch.zeros(5)) == math.inf


def test_a_right_context_compares_equal(arch: Architecture) -> None:
    seen: list[Verdict] = []
    canary = Canary(arch, 1e-3, seen.append)
    prompt = ids()
    assert canary.offer(prompt, context(arch, prompt, 40))
    canary.run(FOREVER)
    (verdict,) = seen
    assert verdict.error < 1e-4
    assert verdict.same_token
    assert not verdict.failed
    assert not canary.busy


def test_work_is_cut_into_pieces_and_one_request_is_taken_at_a_time(arch: Architecture) -> None:
    seen: list[Verdict] = []
    canary = Canary(arch, 1e-3, seen.append)
    prompt = ids(200)
    assert canary.offer(prompt, context(arch, prompt, 40))
    assert not canary.offer(prompt, context(arch, prompt, 40))
    steps = 0
    while canary.busy:
        canary.run(time.monotonic())
        steps += 1
        assert steps < 100
    assert steps > 4
    assert seen[0].error < 1e-4


def test_a_prompt_that_has_nothing_behind_the_splice_is_not_taken(arch: Architecture) -> None:
    prompt = ids()
    canary = Canary(arch, 1.0, lambda _: None)
    assert not canary.offer(prompt, context(arch, prompt, len(prompt)))


def test_wrong_contexts_switch_off_and_it_stays_off(arch: Architecture) -> None:
    seen: list[Verdict] = []
    canary = Canary(arch, 0.05, seen.append)
    prompt = ids()
    for _ in range(STRIKES):
        assert not canary.off
        assert canary.offer(prompt, broken(arch, prompt, 40))
        canary.run(FOREVER)
    assert [v.failed for v in seen] == [True] * STRIKES
    assert [v.off for v in seen] == [False] * (STRIKES - 1) + [True]
    assert canary.off
    assert not canary.offer(prompt, context(arch, prompt, 40))


@pytest.mark.parametrize(
    ("changed", "comparisons", "least", "most"),
    [
        (0.1, 765, 0.93, 0.97),
        (0.14, 263, 0.93, 0.97),
        (0.06, 1000, 0.03, 0.09),
        (0.041, 1000, 0, 0.005),
    ],
)
def test_changed_tokens_are_seen_in_time(
    changed: float, comparisons: int, least: float, most: float
) -> None:
    """Share of runs that end within some comparisons, of 2,000 with a fixed seed."""
    draw, ended = random.Random(7), 0
    for _ in range(2000):
        test = ChangedTokens(0.1)
        ended += any(test.add(draw.random() >= changed) for _ in range(comparisons))
    assert least <= ended / 2000 <= most


def test_changed_tokens_end_splicing_though_logits_are_near(arch: Architecture) -> None:
    seen: list[Verdict] = []
    strict, lenient = Canary(arch, 1e9, seen.append), Canary(arch, 1e9, seen.append, changed=0)
    full = torch.tensor([0.0, 1.0, 1.01])
    for canary in (strict, lenient):
        for _ in range(10):
            assert not canary.off
            canary._settle(torch.tensor([0.0, 1.01, 1.0]), full)
    assert (strict.off, lenient.off) == (True, False)
    assert "first tokens" in strict.why
    assert [v.off for v in seen] == [False] * 9 + [True] + [False] * 10
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match="want at least 0"):
            ChangedTokens(share)


def test_few_failures_among_many_are_borne(arch: Architecture) -> None:
    canary = Canary(arch, 0.05, lambda _: None)
    prompt = ids()
    for i in range(3 * STRIKES):
        make = broken if i % 9 == 0 else context
        assert canary.offer(prompt, make(arch, prompt, 40))
        canary.run(FOREVER)
    assert not canary.off


def test_a_logit_that_is_no_number_switches_off_at_once(arch: Architecture) -> None:
    seen: list[Verdict] = []
    canary = Canary(arch, 1e9, seen.append)
    prompt = ids()
    made = context(arch, prompt, 40)
    for layer in made.layers:
        if layer.state is not None:
            layer.state = layer.state * math.nan
    canary.offer(prompt, made)
    canary.run(FOREVER)
    assert canary.off
    assert seen[0].error == math.inf
