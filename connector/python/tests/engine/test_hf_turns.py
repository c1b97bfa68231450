"""Conversations in transformers: turns continue behind answers, exact and spliced ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, answer, engine, far, own, tokens
from engine.hybrids import MODELS, qwen35
from running import Daemon
from spliced_connector.client import Accept, Advice, Match, Model, Query, Way
from spliced_connector.client.advise import SegmentAdvice
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf.adapter import Mode

pytestmark = pytest.mark.engine

END = 0
"""The token that ends an answer."""


def speaking(model: PreTrainedModel) -> PreTrainedModel:
    """Ends its answers with a token, which these tests do not let it say."""
    model.generation_config.eos_token_id = END
    return model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return speaking(qwen35())


def turn(
    e: SplicedTransformers, ids: list[int], mode: Mode = "prefix", n: int = 12, **more: Any
) -> list[int]:
    """Prompt and answer, in front of its last token an end."""
    out = e.generate(ids, (), mode, max_new_tokens=n, min_new_tokens=n, do_sample=False, **more)
    return [int(t) for t in out[0]]


def said(n: int, seed: int) -> list[int]:
    return [t or 1 for t in tokens(n, seed)]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_turn_continues_behind_the_answer_before_it(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    model = speaking(MODELS[name]())
    e = engine(model, connect, daemon)
    if e._reuse is None or not e._reuse.attends:
        pytest.skip("generate takes no cache of this model")
    first = said(37, 3)
    before = turn(e, first)
    # The template ends the answer where the model would have: its last token is that end.
    ids = [*before[:-1], END, *said(21, 4)]
    done = e.prefill(ids, (), "prefix")
    assert done.reused == len(before) - 1
    assert not done.approximate
    assert far(done.logits, own(model, ids)) <= 1e-4
    again = [*ids, *said(5, 5)]
    assert turn(e, again)[len(again) :] == answer(model, again)


def test_three_turns_compute_what_is_new(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids, new = said(50, 6), 50
    for seed in (7, 8, 9):
        out = turn(e, ids)
        ids = [*out[:-1], END, *said(15, seed)]
        new = 16  # the end and what the user says
        done = e.prefill(ids, (), "prefix", keep=False)
        assert (done.reused, done.computed) == (len(ids) - new, new)
        assert far(done.logits, own(model, ids)) <= 1e-4


def test_an_answer_behind_a_splice_is_for_those_who_accept_it(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = said(200, 10)
    options: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    e.generate(ids, CUTS, "splice", **options)  # stores the segments
    plain = e.generate(ids, CUTS, "splice", **options)[0].tolist()
    later = [*plain[:-1], END, *said(20, 11)]
    # Nobody accepted a spliced state, so none was kept.
    assert e.prefill(later, (), "splice", keep=False, accept=Accept.ANY).reused < 180
    kept = e.generate(ids, CUTS, "splice", accept=Accept.ANY, **options)[0].tolist()
    assert kept == plain
    strict = e.prefill(later, CUTS, "splice", keep=False)
    assert strict.reused < 200
    taken = e.prefill(later, CUTS, "splice", accept=Accept.ANY)
    assert (taken.reused, taken.computed) == (len(kept) - 1, 21)
    assert taken.approximate
    # It is the state of the spliced turn: what splicing the longer prompt gives, to rounding.
    assert far(taken.logits, strict.logits) <= 1e-3
    exact = e.prefill(later, (), "prefix", keep=False)
    assert not exact.approximate
    assert far(exact.logits, own(model, later)) <= 1e-4


def test_a_private_prefix_then_segments_then_the_rest(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = engine(model, connect, daemon)
    passage = said(80, 12)
    other = [*said(30, 13), *passage, *said(9, 14)]
    e.prefill(other, [0, 30, 110], "splice")
    out = turn(e, said(60, 15))
    ids = [*out[:-1], END, *said(10, 16), *passage, *said(12, 17)]
    begin = len(out) - 1
    at = len(ids) - 12 - 80
    looked: list[int] = []
    match = Model.match

    def counted(self: Model, *a: Any, **k: Any) -> Match:
        looked.append(1)
        return match(self, *a, **k)

    monkeypatch.setattr(Model, "match", counted)
    done = e.prefill(ids, [0, at, at + 80], "splice")
    assert len(looked) == 2, "one look for prefixes and segments, one inside of the turn"
    assert done.plan is not None
    assert done.plan.begin == begin
    assert done.reused == begin + 80 - 16
    assert done.computed == len(ids) - done.reused
    assert far(done.logits, own(model, ids)) < own(model, ids).abs().max() / 3


def test_the_same_prompt_again_computes_its_last_token(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = said(150, 18)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "accept": Accept.ANY}
    want = e.generate(ids, [0, 60, 120], "splice", **options)
    assert torch.equal(e.generate(ids, [0, 60, 120], "splice", **options), want)
    assert e.prefill(ids, [0, 60, 120], "splice", accept=Accept.ANY).computed == 1


@pytest.mark.parametrize(
    ("way", "prefix", "segments"),
    [(Way.RECOMPUTE, 0, 0), (Way.PREFIX, 30, 0), (Way.SPLICE, 30, 64)],
)
def test_the_advised_way_is_followed(
    way: Way,
    prefix: int,
    segments: int,
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [*said(30, 20), *said(80, 21), *said(9, 22)]
    cuts = [0, 30, 110]
    engine(model, connect, daemon).prefill([*said(40, 23), *ids[30:110], 5], [0, 40, 120], "splice")
    engine(model, connect, daemon, settings=HFSettings(keep_all=True, block_tokens=30)).prefill(
        ids[:35], (), "prefix"
    )
    follows = engine(model, connect, daemon, NAMING, HFSettings(block_tokens=30))

    def advised(self: Model, query: Query) -> Advice:
        return Advice(0, way, (), (), tuple(SegmentAdvice(False, 0) for _ in query.segments))

    monkeypatch.setattr(Model, "advise", advised)
    done = follows.prefill(ids, cuts, "splice")
    assert (done.reused, done.captured) == (prefix + segments, 0)
    assert done.computed == len(ids) - prefix - segments
    assert follows.prefill(ids, (), "prefix").reused == prefix
