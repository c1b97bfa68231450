"""Mode splice with a model of attention only."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    import torch

    from engine.splice_requests import SEGMENT, ask, ids_of, start, warm, worker
    from engine.vllm_harness import Engine, dense_model
    from running import Daemon
    from spliced_connector.walk import Context, prefill


@pytest.fixture(scope="module", params=[False, True], ids=["copies", "shared pages"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    shared = bool(request.param)
    directory: Path = tmp_path_factory.mktemp("dense")
    daemon = Daemon(directory, "-arena=256MiB", "-prefill-speed=5")
    daemon.start()
    running = start(dense_model(directory / "model"), daemon.socket, shared_pages=shared)
    assert (worker(running).placed is not None) == shared
    yield running
    running.close()
    daemon.stop()


def test_a_full_walk_gives_the_engines_logits(engine: Engine) -> None:
    ids, _ = ids_of([0, 1])
    arch = worker(engine)._arch
    with torch.inference_mode():
        h = prefill(arch, ids, Context(arch, len(ids), torch.device("cpu")))
        by_walk = arch.logits(h[-1:])[0].float().log_softmax(-1)
    assert ask(engine, ids, salt="full walk").near(by_walk)


def test_one_leading_segment_gives_the_answer_of_no_cache(engine: Engine) -> None:
    ids, _ = ids_of([0, 1, 2])
    exact = ask(engine, ids, salt="exact")  # else its prefix would be there, and as good
    for _ in range(3):
        reply = ask(engine, ids, [0, 3 * SEGMENT])
        assert engine.worker.drain(30)
    shared = worker(engine).placed is not None
    assert reply.told == {
        "way": "splice",
        "tokens": 3 * SEGMENT,
        "walked": 0,
        "reused": 3 * SEGMENT,
        "captured": 0,
    } | ({"shared": 3 * SEGMENT} if shared else {})
    assert reply.near(exact.logprobs)


def test_segments_are_spliced_in_any_order(engine: Engine) -> None:
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        reply = warm(engine, order)
        assert reply.told["tokens"] == 4 * SEGMENT - 8
        assert reply.told["walked"] == 8 + 2 * 16


def test_weights_that_a_trainer_loads_end_the_reuse(engine: Engine) -> None:
    """The last test: nothing is reused in this engine any more."""
    order = [0, 1, 2, 3]
    before = warm(engine, order)
    assert "inert" not in engine.counts()
    engine.llm.collective_rpc(_load_others)
    ids, cuts = ids_of(order)
    reply = ask(engine, ids, cuts)  # its segments are there, and the scheduler's half claims them
    exact = ask(engine, ids, salt="other weights")
    assert (reply.cached, reply.tokens) == (0, exact.tokens)
    assert reply.near(exact.logprobs)
    assert not exact.near(before.logprobs)
    stored = engine.counts()["published"]
    ask(engine, *ids_of([4, 5, 6]))
    assert engine.counts()["published"] == stored
    assert "layernorm.weight has other values" in engine.worker.inert
    assert engine.worker.tally.snapshot()["inert"] == 1


def _load_others(worker: Any) -> None:
    """As trainers do, in each worker."""
    norm = torch.linspace(-2, 2, worker.get_model().config.hidden_size)
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(2)]
    worker.get_model().load_weights([(name, norm) for name in names])
