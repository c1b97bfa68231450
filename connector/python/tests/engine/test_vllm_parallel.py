"""Two vLLMs, each with a daemon of one cluster, for one prompt: one in this process combines, the
other waits in processes of its own for what is wanted."""

from __future__ import annotations

import importlib.util
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    import torch
    from torch import Tensor

    from client_samples import wait_until
    from engine.splice_requests import QUERY, Reply, another_runs, ask, start
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, Idle, Setup, hybrid_model, prompt
    from running import Daemon, cluster
    from spliced_connector.model import choose, divide, make_plan
    from spliced_connector.walk import Context, capture_all, rounded, splice

SEGMENT, SEGMENTS = 160, 6
CUTS = [i * SEGMENT for i in range(SEGMENTS + 1)]
SEEDS = count(1000, SEGMENTS)

CONNECTOR: dict[str, object] = {
    "mode": "splice",
    "stall_ms": 10_000.0,
    "load_ms": 5_000.0,
    "measured": False,
    "parallel_tokens": 3 * SEGMENT,
}


def fresh() -> list[int]:
    """A prompt of segments that nobody has seen."""
    first = next(SEEDS)
    parts = [prompt(SEGMENT, seed=first + i) for i in range(SEGMENTS)]
    return [token for part in parts for token in part] + QUERY


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    made = cluster(tmp_path_factory.mktemp("c"), "-arena=256MiB", "-prefill-speed=100")
    for daemon in made:
        daemon.start()
    yield made
    for daemon in made:
        daemon.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hybrid_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def helper(
    daemons: list[Daemon], model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Idle]:
    connector = CONNECTOR | {"parallel": "work"}
    idle = Idle(Setup(model, daemons[1].socket, connector), tmp_path_factory.mktemp("idle"))
    yield idle
    idle.kill()


@pytest.fixture(scope="module")
def engine(daemons: list[Daemon], helper: Idle, model: str) -> Iterator[Engine]:
    running = start(
        model, daemons[0].socket, parallel="combine", parallel_tokens=CONNECTOR["parallel_tokens"]
    )
    helper.wait_ready()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """No test leaves a request, a block or a plan behind."""
    yield
    assert not worker_of(engine)._jobs
    assert not scheduler_of(engine)._requests
    assert not engine.core.scheduler.requests
    combiner = scheduler_of(engine)._combiner
    assert combiner is not None
    wait_until(lambda: combiner._waiting == 0)
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def walked(engine: Engine, ids: list[int]) -> Tensor:
    """Log-probabilities behind a prompt by the library alone: the oracle of a splice."""
    mode = worker_of(engine)
    profile, arch = mode._session.model.profile, mode._arch
    cut_up = divide(profile, b"", ids, CUTS, 8)
    plan = make_plan(cut_up, 0, choose(cut_up, 0, [True] * SEGMENTS, [False] * SEGMENTS))
    wanted = [(ids[p.start : p.end], p.spec) for p in cut_up.pieces if p.spec is not None]
    with torch.inference_mode():
        segments = {i: rounded(profile, made) for i, made in enumerate(capture_all(arch, wanted))}
        context = Context(arch, len(ids), torch.device("cpu"))
        h = splice(arch, ids, plan.spans, segments, context)
        assert h is not None
        return arch.logits(h[-1:])[0].float().log_softmax(-1)


def together(engine: Engine) -> tuple[list[int], Reply]:
    """A prompt that both have computed; the daemons may have to find each other first."""
    found: list[tuple[list[int], Reply]] = []

    def shared() -> bool:
        ids = fresh()
        found.append((ids, ask(engine, ids, CUTS)))
        return bool(found[-1][1].told.get("elsewhere"))

    wait_until(shared, seconds=120)
    return found[-1]


def test_an_idle_engine_computes_what_another_one_misses(engine: Engine) -> None:
    ids, reply = together(engine)
    told = reply.told
    assert (told["way"], told["late"]) == ("splice", 0)
    assert told["elsewhere"] == SEGMENTS - int(str(told["captured"]))
    assert told["captured"], "this one has its share"
    assert reply.near(walked(engine, ids))
    again = ask(engine, ids, CUTS)
    assert (again.told["captured"], again.told.get("elsewhere")) == (0, None)
    assert torch.equal(again.logprobs, reply.logprobs), "what is held is what was used"


def test_other_requests_are_served_while_one_waits(engine: Engine) -> None:
    together(engine)
    with another_runs(engine):
        ids = fresh()
        reply = ask(engine, ids, CUTS)
    assert reply.told["elsewhere"]
    assert reply.near(walked(engine, ids))


def test_an_engine_that_dies_costs_its_segments(engine: Engine, helper: Idle) -> None:
    """While it has them: it was stopped before. The last test of this module."""
    together(engine)
    helper.signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, helper.kill)
    timer.start()
    ids = fresh()
    began = time.monotonic()
    reply = ask(engine, ids, CUTS)
    timer.join()
    assert (reply.told["elsewhere"], reply.told["captured"]) == (0, SEGMENTS)
    assert reply.told["late"]
    assert time.monotonic() - began < 30
    assert reply.near(walked(engine, ids))
    alone = ask(engine, fresh(), CUTS)
    assert alone.told.get("elsewhere") is None, "nobody is there to help"
    assert Path(helper._log).exists()
