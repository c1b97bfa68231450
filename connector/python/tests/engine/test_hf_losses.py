"""transformers through a running daemon: requests that state the loss that they accept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, WARMING, answer, engine, far, own, tokens
from engine.hybrids import qwen35
from running import Daemon, StartDaemon
from spliced_connector.client import LossCounts, Losses, SpliceWay
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf import reuse as hf_reuse
from spliced_connector.hf.adapter import Mode
from spliced_connector.model import PlanError

pytestmark = pytest.mark.engine

OF_MODEL = {"weights": NAMING.weights.hex()}
LOSSES = {SpliceWay(): LossCounts(98, 9), SpliceWay(refreshed=True): LossCounts(98, 1)}
"""Of 0.1 as it is asked, of 0.02 with the last segment in context."""


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """One that has compared nothing."""
    return start_daemon()


def report(e: SplicedTransformers, losses: Losses) -> None:
    assert e._reuse is not None
    compared = sum(counts.compared for counts in losses.values())
    assert e._reuse.model.report(compared, 0, 0.0, 1.0, losses=losses) is False


@pytest.mark.parametrize("everything", [True, False])
def test_splices_keep_to_the_loss_that_a_request_accepts(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    everything: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """everything: the adapter's keep_all, which goes beyond what is advised but not beyond this."""
    # What a walk over this tiny model takes is no reason to splice it, or not to.
    monkeypatch.setattr(hf_reuse.Reuse, "measured", lambda *_: None)
    ids = tokens(200)
    engine(model, connect, daemon).prefill(ids, CUTS, "splice")
    e = engine(model, connect, daemon, settings=HFSettings(keep_all=everything))
    segments = [60, 44, 44]
    unknown = e.prefill(ids, CUTS, "splice", max_loss=0.99)
    assert "within max_loss" in unknown.trouble
    assert not unknown.approximate
    assert far(unknown.logits, own(model, ids)) <= 1e-4
    whole = e.prefill(ids, CUTS, "splice")
    assert (whole.reused, whole.expected_loss, whole.trouble) == (sum(segments), None, "")

    report(e, LOSSES)
    for most, parts, expected in ((None, 3, 0.1), (1.0, 3, 0.1), (0.1, 3, 0.1), (0.05, 2, 0.02)):
        done = e.prefill(ids, CUTS, "splice", max_loss=most)
        assert (done.reused, done.expected_loss) == (sum(segments[:parts]), expected), most
        assert done.captured == 0
        assert (done.approximate, done.trouble) == (True, "")
        said = daemon.request(way="splice", reused_tokens=done.reused)
        assert said["expected_loss"] == expected
    beyond = e.prefill(ids, CUTS, "splice", max_loss=0.01)
    assert "within max_loss" in beyond.trouble
    assert (beyond.approximate, beyond.expected_loss) == (False, None)
    assert far(beyond.logits, own(model, ids)) <= 1e-4
    out = e.generate(ids, CUTS, "splice", max_loss=0.01, max_new_tokens=12, do_sample=False)
    assert out[0, 200:].tolist() == answer(model, ids)


def test_a_setting_holds_for_requests_that_do_not_say(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, tmp_path: Path
) -> None:
    """With losses that were measured before."""
    rows = [
        {
            "way": {
                "kind": "spliced",
                "primer": "",
                "refresh": refresh,
                "refresh_share": 0.01 * refresh,
            },
            "prompts": 98,
            "first": {"value": 1 - changed / 98},
        }
        for refresh, changed in ((False, 9), (True, 1))
    ]
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(OF_MODEL | {"seam_tokens": 8, "primers": {}, "ways": rows}))
    ids = tokens(200)
    engine(model, connect, daemon).prefill(ids, CUTS, "splice")
    settings = replace(WARMING, max_loss=0.05, fidelity=str(path))
    for _ in range(2):  # of two starts each counts once
        e = engine(model, connect, daemon, settings=settings)
        done = e.prefill(ids, CUTS, "splice")
        assert (done.reused, done.expected_loss) == (60 + 44, 0.02)
        assert e.prefill(ids, CUTS, "splice", max_loss=0.1).reused == 60 + 44 + 44
    refreshed = engine(model, connect, daemon, settings=replace(settings, refresh=0.2))
    done = refreshed.prefill(ids, CUTS, "splice")
    assert (done.reused, done.expected_loss) == (60 + 44, 0.02)
    assert not refreshed.prefill(ids, CUTS, "splice", max_loss=0.01).approximate


@pytest.mark.parametrize("most", [-0.1, 1.5, float("nan"), "low", True])
def test_a_max_loss_that_is_none_is_refused(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, most: float
) -> None:
    e = engine(model, connect, daemon)
    modes: tuple[Mode, ...] = ("none", "prefix", "splice")
    for mode in modes:
        for call in (e.prefill, e.generate):
            with pytest.raises(PlanError, match=r"max_loss: .*, want 0 to 1"):
                call(tokens(200), CUTS, mode, max_loss=most)
    with pytest.raises(ValueError, match=r"max_loss: .*, want 0 to 1"):
        HFSettings(max_loss=most)


def test_figures_of_another_seam_end_the_start(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(OF_MODEL | {"seam_tokens": 16}))
    client = connect(daemon.socket)
    with pytest.raises(ValueError, match="seam_tokens 16"):
        SplicedTransformers(model, client, NAMING, HFSettings(fidelity=str(path)))
    path.write_text(json.dumps({"weights": "ab" * 32, "seam_tokens": 8}))
    with pytest.raises(ValueError, match="measured on another model"):
        SplicedTransformers(model, client, NAMING, HFSettings(fidelity=str(path)))


def test_a_splice_of_another_way_than_was_judged_is_within_no_limit(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment after the primer is missing: what is left was not captured after it."""
    ids = tokens(200)
    engine(model, connect, daemon).prefill([*ids[:120], *tokens(20, seed=8)], CUTS[:3], "splice")
    monkeypatch.setattr(hf_reuse.Found, "wanted", lambda _, cut, __: [False] * len(cut.pieces))
    settings = replace(WARMING, primer=tuple(tokens(40, seed=9)), primer_after=120)
    e = engine(model, connect, daemon, settings=settings)
    report(e, {SpliceWay(primed=True): LossCounts(98, 1)})
    limited = e.prefill(ids, CUTS, "splice", max_loss=0.5, keep=False)
    assert "within max_loss" in limited.trouble
    assert (limited.approximate, limited.reused, limited.expected_loss) == (False, 0, None)
    assert far(limited.logits, own(model, ids)) <= 1e-4
    free = e.prefill(ids, CUTS, "splice", keep=False)
    assert (free.reused, free.expected_loss) == (60 + 44, None)


def test_losses_of_narrower_seams_are_not_known(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    settings = replace(WARMING, tail_tokens=0, canary_share=1.0, canary_bound=100.0)
    e = engine(model, connect, daemon, settings=settings)
    report(e, LOSSES)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    assert "within max_loss" in e.prefill(ids, CUTS, "splice", max_loss=0.5).trouble
    free = e.prefill(ids, CUTS, "splice")
    assert (free.approximate, free.expected_loss) == (True, None)
    e.generate(ids, CUTS, "splice", max_new_tokens=1, do_sample=False)
    [canary] = daemon.canaries()
    assert canary["compared"] > 0
    assert [row["compared"] for row in canary["losses"]] == [98, 98], "as they were reported"


def test_without_advice_the_trouble_is_the_daemon(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    assert e._reuse is not None
    monkeypatch.setattr(type(e._reuse.model), "advise", lambda *_: None)
    done = e.prefill(tokens(200), CUTS, "splice", max_loss=0.5)
    assert done.trouble == "the daemon did not answer"


def test_the_canary_counts_first_tokens_that_change(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    settings = replace(WARMING, canary_share=1.0, canary_bound=100.0, canary_changed=0.0)
    e = engine(model, connect, daemon, settings=settings)
    changed = 0
    for seed in range(8):
        ids = tokens(200, seed=seed)
        e.prefill(ids, CUTS, "splice", keep=True)  # compares a later token
        out = e.generate(ids, CUTS, "splice", max_new_tokens=1, do_sample=False)
        changed += int(out[0, 200] != own(model, ids).argmax())
    refreshed = engine(model, connect, daemon, settings=replace(settings, refresh=0.2))
    refreshed.generate(ids, CUTS, "splice", max_new_tokens=1, do_sample=False)
    [canary] = daemon.canaries()
    assert canary["compared"] == 17
    [plain, last] = canary["losses"]
    assert (plain["primed"], plain["refreshed"]) == (False, False)
    assert (plain["compared"], plain["changed"]) == (8, changed)
    assert (last["refreshed"], last["compared"]) == (True, 1)
    assert "expected" not in plain, "of eight nothing is known"
