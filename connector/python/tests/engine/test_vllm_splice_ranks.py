"""Mode splice in engines of other processes: two tensor-parallel ranks, and compiled graphs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.vllm_harness import Answer, Setup, elsewhere, hybrid_model, prompt
from running import Daemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

SEGMENTS = [prompt(160, seed=100 + i) for i in range(4)]
QUERY = prompt(12, seed=99)

NEAR = 0.15
"""As in splice_requests: two right answers in bf16."""

CONNECTOR: dict[str, object] = {
    "mode": "splice",
    "stall_ms": 10_000.0,
    "load_ms": 5_000.0,
    "measured": False,
}


def ids_of(*order: int) -> tuple[list[int], list[int]]:
    ids = [token for i in order for token in SEGMENTS[i]] + QUERY
    return ids, [160 * i for i in range(len(order) + 1)]


def asked() -> tuple[list[list[int]], list[list[int]]]:
    """The prompts, and their cuts: cold, captured until all is held, in another order, and that
    one without cuts."""
    first, cuts = ids_of(0, 1, 2, 3)
    other, _ = ids_of(3, 1, 0, 2)
    return [first, first, first, other, other, other], [[], cuts, cuts, cuts, cuts, []]


def answers(
    model: str, daemon: Daemon, directory: Path, shared: bool = False, **options: object
) -> list[Answer]:
    directory.mkdir()
    setup = Setup(model, daemon.socket, CONNECTOR | {"shared_pages": shared}, options)
    prompts, cuts = asked()
    return elsewhere(setup, prompts, directory, cuts, TORCH_COMPILE_DISABLE=_disabled(options))


def _disabled(options: dict[str, object]) -> str:
    return "1" if options.get("enforce_eager", True) else "0"


def check(found: list[Answer], alone: list[Answer], shared: bool = False) -> None:
    """Spliced as one rank without graphs splices, and nothing of it is anybody's prefix."""
    assert found[4].told["way"] == "splice"
    assert found[4].told["captured"] == 0
    told = dict(found[4].told)
    assert (told.pop("shared", 0) != 0) == shared
    assert told == alone[4].told
    assert found[4].tokens[0] == alone[4].tokens[0]
    assert abs(found[4].logprobs[0] - alone[4].logprobs[0]) < NEAR
    assert found[5].cached == 0
    assert abs(found[5].logprobs[0] - alone[5].logprobs[0]) < NEAR


@pytest.mark.parametrize("shared", [False, True], ids=["copies", "shared pages"])
def test_ranks_splice_together(daemon: Daemon, tmp_path: Path, shared: bool) -> None:
    model = hybrid_model(tmp_path / "model", heads=2)
    alone = answers(model, daemon, tmp_path / "one")
    both = answers(
        model,
        daemon,
        tmp_path / "two",
        shared,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    check(both, alone, shared)


def test_a_compiled_engine_splices(daemon: Daemon, tmp_path: Path) -> None:
    model = hybrid_model(tmp_path / "model")
    alone = answers(model, daemon, tmp_path / "eager")
    daemon.stop()  # with it go the prefixes that it has of these prompts
    daemon.start()
    check(answers(model, daemon, tmp_path / "graphs", enforce_eager=False), alone)
