"""transformers when splicing was switched off for its model, before or amid a request."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, engine, far, own, tokens
from engine.hybrids import qwen35
from running import Daemon
from spliced_connector.hf import SplicedTransformers
from spliced_connector.hf import reuse as hf_reuse

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def switch_off(e: SplicedTransformers) -> None:
    assert e._reuse is not None
    assert e._reuse.model.report(3, 3, 9.0, 0.1, True, "a test")


def test_nothing_is_spliced_behind_a_switch(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    cuts, ids = [32, 92, 152, 200], tokens(220)
    assert e.prefill(ids, cuts, "splice", keep=False).approximate
    e.prefill(ids[:40], [32], "prefix")
    switch_off(e)
    # What a prefix gives is exact, so it stays in use.
    for prompt, prefix in ((ids, 32), (tokens(220, seed=5), 0)):
        done = e.prefill(prompt, cuts, "splice")
        assert "switched off" in done.trouble
        assert (done.captured, done.reused, done.approximate) == (0, prefix, False)
        assert far(done.logits, own(model, prompt)) <= 1e-4


def test_a_switch_between_match_and_acquire_is_heeded(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    acquire = hf_reuse.Reuse.acquire

    def too_late(self: hf_reuse.Reuse, *arguments: object) -> object:
        switch_off(e)
        return acquire(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(hf_reuse.Reuse, "acquire", too_late)
    done = e.prefill(ids, CUTS, "splice")
    assert (done.captured, done.reused, done.approximate) == (0, 0, False)
    assert far(done.logits, own(model, ids)) <= 1e-4


def test_what_was_run_alone_before_a_switch_is_not_spliced_behind_it(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill([*tokens(60, seed=7), *ids[60:120], *tokens(20, seed=8)], CUTS[:3], "splice")
    capture = hf_reuse.Reuse.capture

    def long_ago(self: hf_reuse.Reuse, *arguments: object) -> None:
        capture(self, *arguments)  # type: ignore[arg-type]
        switch_off(e)

    monkeypatch.setattr(hf_reuse.Reuse, "capture", long_ago)
    done = e.prefill(ids, CUTS, "splice", keep=False)
    assert (done.captured, done.reused, done.computed) == (120, 0, 200)
    assert not done.approximate
    assert far(done.logits, own(model, ids)) <= 1e-4
