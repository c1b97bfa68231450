"""Two engines of two tensor-parallel ranks each, for one prompt: all ranks have their share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.vllm_harness import Idle, Setup, elsewhere, hybrid_model, prompt
from running import StartCluster

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

SEGMENT, SEGMENTS, PROMPTS = 160, 4, 4
CUTS = [SEGMENT * i for i in range(SEGMENTS + 1)]

NEAR = 0.15
"""As in splice_requests: two right answers in bf16."""

CONNECTOR: dict[str, object] = {
    "mode": "splice",
    "stall_ms": 10_000.0,
    "load_ms": 5_000.0,
    "measured": False,
    "parallel_tokens": 2 * SEGMENT,
}
RANKS: dict[str, object] = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def test_ranks_compute_and_take_over_together(start_cluster: StartCluster, tmp_path: Path) -> None:
    here, there = start_cluster("-arena=256MiB", "-prefill-speed=5")
    model = hybrid_model(tmp_path / "model", heads=2)
    prompts = [
        [token for i in range(SEGMENTS) for token in prompt(SEGMENT, seed=100 * n + i)] + [7] * 12
        for n in range(PROMPTS)
    ]
    helper = Idle(Setup(model, there.socket, CONNECTOR | {"parallel": "work"}, RANKS), tmp_path)
    try:
        helper.wait_ready()
        combining = Setup(model, here.socket, CONNECTOR | {"parallel": "combine"}, RANKS)
        both = elsewhere(combining, prompts, tmp_path, [CUTS] * PROMPTS)
    finally:
        helper.kill()
    # On a busy machine what others compute may come too late; it is captured here then.
    shared = [one for one in both if one.told.get("elsewhere") and not one.told["late"]]
    assert shared, [answer.told for answer in both]
    # One rank by itself captures what it has seen before.
    times = 3 * PROMPTS
    alone = elsewhere(Setup(model, here.socket, CONNECTOR), 3 * prompts, tmp_path, [CUTS] * times)
    for one, other in zip(both, alone[-PROMPTS:], strict=True):
        if one.told.get("elsewhere"):
            assert one.told["way"] == other.told["way"] == "splice"
            assert abs(one.logprobs[0] - other.logprobs[0]) < NEAR
