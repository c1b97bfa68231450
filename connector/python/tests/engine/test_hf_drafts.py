"""Greedy decoding with drafts: the tokens of decoding without, and states of accepted ones only."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from typing import cast

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, WARMING, answer, engine, far, own, tokens
from engine.hybrids import MODELS, qwen35
from engine.walk_models import TINY
from running import Daemon
from spliced_connector.client import Accept
from spliced_connector.hf import PromptLookup
from spliced_connector.hf.decode import decode, not_greedy
from spliced_connector.model import PlanError
from spliced_connector.walk import Context, architecture, prefill, verify

pytestmark = pytest.mark.engine


class Told:
    """Knows what comes, and is wrong at every k-th guess."""

    def __init__(self, line: Sequence[int], wrong: int = 3, most: int = 4) -> None:
        self._line, self._wrong, self._most = list(line), wrong, most
        self._asked = 0

    def __call__(self, so_far: Sequence[int]) -> Sequence[int]:
        self._asked += 1
        out = self._line[len(so_far) : len(so_far) + self._most]
        if self._wrong and out:
            at = self._asked % self._wrong % len(out)
            out[at] = (out[at] + 1) % 128
        return out


def _always(guess: Sequence[int], _: Sequence[int]) -> Sequence[int]:
    return guess


@pytest.mark.parametrize("name", sorted(MODELS))
def test_drafts_give_the_tokens_of_greedy_decoding(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    model = MODELS[name]()
    e = engine(model, connect, daemon)
    ids = tokens(90)
    want = answer(model, ids, 40)
    for drafter in (PromptLookup(), Told([*ids, *want], 0), Told([*ids, *want]), lambda _: ()):
        out = e.generate(ids, mode="none", drafter=drafter, max_new_tokens=40)
        assert out[0, 90:].tolist() == want
        assert e.drafted is not None
    perfect = e.generate(ids, mode="none", drafter=Told([*ids, *want], 0), max_new_tokens=40)
    assert perfect[0, 90:].tolist() == want
    assert e.drafted is not None
    assert e.drafted.right == e.drafted.guessed > 0
    assert e.drafted.walks == 8, "five tokens a walk"


def test_accepted_drafts_are_what_computing_them_leaves() -> None:
    model = qwen35()
    arch = architecture(model, NAMING)
    ids = tokens(60)
    for n in range(6):
        context = Context(arch, 60, model.device)
        prefill(arch, ids[:50], context)
        states = [at.state for at in context.layers]
        drafts = verify(arch, ids[:55], context)
        assert context.tokens == 50
        for at, before in zip(context.layers, states, strict=True):
            assert at.state is before, "a draft has moved a state"
        drafts.accept(n)
        plain = Context(arch, 60, model.device)
        prefill(arch, ids[: 50 + n], plain)
        assert context.tokens == plain.tokens
        for a, b in zip(context.layers, plain.layers, strict=True):
            for x, y in ((a.state, b.state), (a.conv, b.conv)):
                assert (x is None) == (y is None)
                if x is not None and y is not None:
                    assert far(x, y) <= 1e-5
        one, other = (prefill(arch, ids, c) for c in (context, plain))
        assert far(one[-1], other[-1]) <= 1e-4
    with pytest.raises(PlanError):
        drafts.accept(1)
    with pytest.raises(PlanError):
        verify(arch, ids[:50], plain)


@pytest.mark.parametrize("name", sorted(TINY))
def test_every_architecture_decodes_with_drafts(name: str) -> None:
    model = cast(PreTrainedModel, TINY[name].build())
    model.generation_config.eos_token_id = None
    arch = architecture(model, NAMING)
    ids = [3 + t % 93 for t in tokens(40)]
    # Not `generate`: one token at a time transformers 5.19 does not bound Mamba2's steps by
    # time_step_limit, as it does in a forward.
    want: list[int] = []
    while len(want) < 24:
        want.append(int(own(model, [*ids, *want]).argmax()))
    context = Context(arch, 40, model.device)
    with torch.no_grad():
        logits = arch.logits(prefill(arch, ids, context)[-1:])[0]
        out = decode(arch, context, ids, logits, Told([*ids, *want]), 24, frozenset())
    assert out.tokens == want
    assert out.guessed > out.right > 0
    plain = Context(arch, 63, model.device)
    prefill(arch, [*ids, *want[:-1]], plain)
    for a, b in zip(context.layers, plain.layers, strict=True):
        for x, y in ((a.state, b.state), (a.conv, b.conv)):
            if x is not None and y is not None:
                assert far(x, y) <= 1e-4 * max(1.0, float(y.abs().max()))


def test_what_is_no_token_is_not_guessed(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    ids = tokens(40)
    for guess in ([-1], [128], [10**12, 3]):
        out = e.generate(ids, mode="none", drafter=partial(_always, guess), max_new_tokens=6)
        assert out[0, 40:].tolist() == answer(model, ids, 6)
        assert e.drafted is not None and e.drafted.guessed == 0


def test_room_for_rows_is_not_copied_at_every_step() -> None:
    model = qwen35()
    arch = architecture(model, NAMING)
    ids = tokens(120)
    context = Context(arch, 80, model.device)
    prefill(arch, ids[:80], context)
    rooms: set[int] = set()
    while context.tokens < 120:
        verify(arch, ids[: context.tokens + 1], context).accept(1)
        rooms.update(at.k.shape[0] for at in context.layers if at.k is not None)
    assert len(rooms) <= 5, "an eighth is added at a time"


def test_behind_reuse_and_for_the_next_turn(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    plain = engine(qwen35(), connect, daemon)
    ids = tokens(200)
    plain.prefill(ids, CUTS, "splice")
    want = plain.generate(ids, CUTS, "splice", max_new_tokens=24, do_sample=False)
    for settings in (WARMING, dataclasses.replace(WARMING, in_place=True)):
        e = engine(model, connect, daemon, settings=settings)
        out = e.generate(ids, CUTS, "splice", drafter=PromptLookup(), max_new_tokens=24)
        assert torch.equal(out, want)
    e = engine(model, connect, daemon)
    first = e.generate(ids, (), "prefix", drafter=PromptLookup(), max_new_tokens=24)
    turn = [*first[0, :-1].tolist(), *tokens(9, seed=4)]
    warm = e.prefill(turn, [223], "prefix", accept=Accept.EXACT)
    assert warm.reused == 223, "the state behind the answer was not kept"
    assert far(warm.logits, plain.prefill(turn, (), "none").logits) <= 1e-4


def test_an_end_in_a_draft_ends_the_answer(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    ids = tokens(90)
    line = answer(model, ids, 30)
    for at in (0, 7, 12):
        end = line[at]
        want = line[: line.index(end) + 1]
        for drafter in (Told([*ids, *line], 0), Told([*ids, *line])):
            out = e.generate(
                ids, mode="prefix", drafter=drafter, max_new_tokens=30, eos_token_id=end
            )
            assert out[0, 90:].tolist() == want


def test_options_that_choose_otherwise_go_without(
    connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    e = engine(qwen35(), connect, daemon)
    ids = tokens(40)
    for options in ({"repetition_penalty": 1.5}, {"do_sample": True}, {"num_beams": 2}):
        with caplog.at_level(logging.WARNING):
            out = e.generate(ids, mode="none", drafter=PromptLookup(), max_new_tokens=5, **options)
        assert out.shape[1] == 45
        assert e.drafted is None
        assert f"decoded without drafts: {next(iter(options))}" in caplog.text
        caplog.clear()


def test_lookup_guesses_what_came_before() -> None:
    assert PromptLookup(most=3)([1, 2, 3, 4, 5, 9, 2, 3]) == [4, 5, 9]
    assert PromptLookup(most=2)([7, 1, 7, 2, 7]) == [2, 7]
    assert list(PromptLookup()([1, 2, 3])) == []
    assert list(PromptLookup()([1])) == []
    assert PromptLookup(most=3)([5, 5, 5, 5]) == [5]
    # The longest run counts, the latest of several as long.
    assert PromptLookup(most=1)([1, 2, 3, 7, 2, 3, 8, 9, 2, 3]) == [8]
    assert PromptLookup(most=1)([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]) == [7]


def test_options_of_the_models_own_config_go_without_too() -> None:
    for name, value in (("encoder_no_repeat_ngram_size", 2), ("max_time", 1.0)):
        assert not_greedy(GenerationConfig(**{name: value}), {}) == name
    assert not not_greedy(GenerationConfig(), {"max_new_tokens": 5, "do_sample": False})
