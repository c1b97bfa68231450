"""Two tensor-parallel ranks: each stores and loads its own share of the same checkpoints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.vllm_harness import Setup, elsewhere, hybrid_model, prompt
from running import Daemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_ranks_share_a_checkpoint_by_heads(daemon: Daemon, tmp_path: Path) -> None:
    options: dict[str, object] = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    setup = Setup(hybrid_model(tmp_path / "model", heads=2), daemon.socket, options=options)
    asked = prompt(700, seed=3)
    cold, warm = elsewhere(setup, [asked, asked], tmp_path)
    assert cold.cached == 0
    assert warm.cached == 512
    assert warm.tokens == cold.tokens
    assert warm.logprobs == cold.logprobs
