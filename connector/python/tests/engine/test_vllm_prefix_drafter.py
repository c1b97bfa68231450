"""Mode prefix beside a model that drafts: its rows are restored with those of the model itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from engine import align_kernels
from engine.test_vllm_prefix_drafts import ANSWER, counted, near
from engine.vllm_harness import Engine, Setup, dense_model, mtp_model, prompt
from running import StartDaemon
from spliced_connector.serving.storing import Taken
from spliced_connector.vllm.plans import LoadPlan, SavePlan
from spliced_connector.vllm.prefix import PrefixWorker

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_rows_of_a_draft_model_are_restored(tmp_path: Path, start_daemon: StartDaemon) -> None:
    """It is the model itself, so that it is right about everything whose rows it has."""
    model = dense_model(tmp_path / "model")
    daemon = start_daemon("-prefill-speed=500")
    options: dict[str, object] = {
        "speculative_config": {
            "method": "draft_model",
            "model": model,
            "num_speculative_tokens": 2,
        },
        "disable_log_stats": False,
    }
    engine = Engine(Setup(model, daemon.socket, {}, options))
    try:
        asked = prompt(700, seed=3)
        shares, answers = [], []
        for _ in range(2):
            before = counted(engine, "num_accepted_tokens"), counted(engine, "num_draft_tokens")
            answers += engine.ask(asked, tokens=ANSWER)
            engine.settle()
            accepted = counted(engine, "num_accepted_tokens") - before[0]
            shares.append(accepted / (counted(engine, "num_draft_tokens") - before[1]))
        assert answers[0].cached == 0 < answers[1].cached
        assert near(*answers)
        assert shares[1] > shares[0] - 0.1 > 0.5
    finally:
        engine.close()


def test_a_layer_that_drafts_is_restored_with_the_model(
    tmp_path: Path, start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MTP: a prompt's rows and states, and those of the layer behind the model's own."""
    align_kernels.register()
    daemon = start_daemon("-prefill-speed=500")
    options: dict[str, object] = {
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2}
    }
    engine = Engine(Setup(mtp_model(tmp_path / "model"), daemon.socket, {}, options))
    try:
        worker = engine.worker._mode
        assert isinstance(worker, PrefixWorker)
        taken: list[Taken] = []
        loaded: list[LoadPlan] = []
        take, load = worker._take, worker._load

        def keep(plan: SavePlan) -> Taken:
            taken.append(take(plan))
            return taken[-1]

        def note(plan: LoadPlan, seconds: float) -> bool:
            loaded.append(plan)
            return load(plan, seconds)

        monkeypatch.setattr(worker, "_take", keep)
        monkeypatch.setattr(worker, "_load", note)
        asked = prompt(700, seed=3)
        (cold,) = engine.ask(asked, tokens=ANSWER)
        engine.settle()
        (warm,) = engine.ask(asked, tokens=1)
        (plan,) = loaded
        assert (cold.cached, warm.cached) == (0, plan.tokens)
        assert warm.tokens == cold.tokens[:1]
        layer = len(engine.worker._engine.identity.layers) - 1  # type: ignore[union-attr]
        pages = worker._caches.rows[layer]
        assert sorted(worker._caches.rows) == [layer - 1, layer]
        table = worker._caches.table(plan.blocks, layer, 0, plan.tokens)
        nodes = sorted(taken, key=lambda one: one.tokens)
        for at, kind in enumerate(("K", "V")):
            rows = pages.read(table, 0, plan.tokens)[at]
            stored = torch.cat([part_of(worker, one, layer, kind) for one in nodes])
            assert torch.equal(rows, stored[: plan.tokens])
            assert stored.any()
    finally:
        engine.close()


def part_of(worker: PrefixWorker, taken: Taken, layer: int, kind: str) -> torch.Tensor:
    layout = worker._profile.checkpoint_layout(taken.tokens - taken.parent_tokens)
    found = layout.find(layer, kind)
    assert found is not None
    return taken.parts.arrived()[found]
