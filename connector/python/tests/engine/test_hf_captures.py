"""What the transformers adapter captures: when, in which types, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, engine, far, own, tokens
from engine.hybrids import qwen35
from running import Daemon
from spliced_connector.client import release_all
from spliced_connector.client.lease import Held
from spliced_connector.errors import Code
from spliced_connector.hf import SplicedTransformers
from spliced_connector.hf import reuse as hf_reuse
from spliced_connector.model import DType

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def half_warm(e: SplicedTransformers) -> list[int]:
    """A prompt of which the second segment is held, and the first and third are not."""
    ids = tokens(200)
    e.prefill([*tokens(60, seed=7), *ids[60:120], *tokens(20, seed=8)], CUTS[:3], "splice")
    return ids


def test_nothing_is_leased_while_segments_are_captured(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    ids = half_warm(e)
    steps = []
    for name in ("acquire", "capture", "release"):
        original = getattr(hf_reuse.Reuse, name)

        def noted(*arguments: object, name: str = name, original: object = original) -> object:
            steps.append(name)
            return original(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(hf_reuse.Reuse, name, noted)
    done = e.prefill(ids, CUTS, "splice", keep=False)
    assert (done.captured, done.reused) == (120, 44)
    assert steps == ["capture", "acquire", "release"]


def test_captures_outlive_a_lease_that_ended_early(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    ids = half_warm(e)

    def too_late(held: list[Held]) -> list[bool]:
        release_all(held)
        return [False] * len(held)

    monkeypatch.setattr(hf_reuse, "release_all", too_late)
    done = e.prefill(ids, CUTS, "splice", keep=False)
    monkeypatch.undo()
    assert (done.reused, done.computed, done.captured) == (0, 200, 120)
    assert "lease" in done.trouble
    assert far(done.logits, own(model, ids)) <= 1e-4
    assert e.store(done) == [Code.OK] * 2
    assert e.prefill(ids, CUTS, "splice").reused == 148


def test_a_cold_request_reads_what_a_warm_one_reads(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    # Transitions are stored in fewer bits than they are computed in.
    e = engine(model, connect, daemon, replace(NAMING, transition=DType.F16))
    ids = tokens(200)
    cold = e.prefill(ids, CUTS, "splice")
    warm = e.prefill(ids, CUTS, "splice")
    assert (cold.captured, warm.captured, warm.reused) == (180, 0, 148)
    assert far(warm.logits, cold.logits) <= 1e-6
