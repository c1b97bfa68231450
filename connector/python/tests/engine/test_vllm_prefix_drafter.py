"""Mode prefix beside a model that drafts: its rows are restored with those of the model itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.test_vllm_prefix_drafts import ANSWER, counted, near
from engine.vllm_harness import Engine, Setup, dense_model, prompt
from running import Daemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_rows_of_a_draft_model_are_restored(tmp_path: Path) -> None:
    """It is the model itself, so that it is right about everything whose rows it has."""
    model = dense_model(tmp_path / "model")
    daemon = Daemon(tmp_path, "-prefill-speed=500")
    daemon.start()
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
        daemon.stop()
