"""Two vLLMs, each with a daemon of one cluster, for one prompt: one in this process combines, the
other waits in processes of its own for what is wanted."""

from __future__ import annotations

import importlib.util
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

    from client_samples import Connect, wait_until
    from engine.splice_requests import QUERY, Reply, another_runs, ask, start
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, Idle, Setup, hybrid_model, prompt
    from running import Daemon, cluster
    from spliced_connector.client import Following, Job, Missing, Model, WorkPlan
    from spliced_connector.model import choose, divide, make_plan
    from spliced_connector.vllm.parallel.combiner import Combiner
    from spliced_connector.vllm.parallel.jobs import Jobs
    from spliced_connector.vllm.plugin import Cores
    from spliced_connector.walk import Context, capture_all, rounded, splice

SEGMENT, SEGMENTS = 160, 6
CUTS = [i * SEGMENT for i in range(SEGMENTS + 1)]
SEEDS = count(1000, SEGMENTS)

CONNECTOR: dict[str, object] = {
    "tolerance": 0.0,
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
    made = cluster(tmp_path_factory.mktemp("c"), "-arena=256MiB", "-prefill-speed=5")
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
        model, daemons[0].socket, parallel="both", parallel_tokens=CONNECTOR["parallel_tokens"]
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
    assert isinstance(combiner, Combiner)
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
    assert engine.worker.drain(30)
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


@pytest.fixture
def client(engine: Engine, daemons: list[Daemon], connect: Connect) -> Model:
    """Of an engine with the same model, beside the one in this process."""
    identity = scheduler_of(engine)._session.model.profile.identity
    made = connect(daemons[0].socket).model(identity, block_tokens=128)
    assert made.wait_attached(10)
    return made


def wanted(client: Model) -> list[Missing]:
    spec, first = client.profile.mid_spec(SEGMENT, 8), next(SEEDS)
    assert spec is not None
    return [Missing(spec, prompt(SEGMENT, seed=first + i)) for i in range(SEGMENTS)]


def stepped(engine: Engine, client: Model) -> tuple[WorkPlan, frozenset[bytes]]:
    """Has others compute segments for a client, while the engine steps as its requests ask for."""
    plan = client.plan(wanted(client), queued=1000.0, wait=20.0)
    assert plan is not None
    following, came = Following(client, plan), frozenset[bytes]()
    while following.left:
        engine.llm.llm_engine.step()
        news = following.watch(0.02)
        assert not news.lost, engine.counts()
        came |= news.committed
    return plan, came


def test_an_engine_helps_with_and_without_requests(
    engine: Engine, client: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    together(engine)
    assert "jobs_done" not in engine.counts(), "nobody steps it"
    monkeypatch.setattr(Cores, "running", True)  # the test does
    jobs = scheduler_of(engine)._jobs
    assert isinstance(jobs, Jobs)
    came: list[bytes] = []

    def learns() -> bool:
        plan, keys = stepped(engine, client)
        assert keys == plan.away
        came.extend(keys)
        return jobs._line.fit() is not None  # what a segment takes

    wait_until(learns, seconds=120)
    alone = engine.counts()
    assert alone["helped"], "its own daemon's plans have it work too"

    def helps() -> bool:
        stepped(engine, client)
        return engine.counts()["helped"] > alone["helped"]

    with another_runs(engine, tokens=1900):
        wait_until(helps, seconds=90)

    def settles() -> bool:
        engine.llm.llm_engine.step()
        counts = engine.counts()
        return counts["jobs_done"] == counts["helped"]

    wait_until(settles)
    busy = engine.counts()
    assert busy.get("stalls_over_bound", 0) == alone.get("stalls_over_bound", 0)
    (held,) = client.acquire(came[:1])
    assert held is not None
    assert held.release()


def test_what_a_helper_declines_is_captured_here(
    engine: Engine, helper: Idle, client: Model
) -> None:
    """By a client that takes jobs and does none, beside a helper that sleeps."""
    together(engine)
    over = threading.Event()

    def decline() -> None:
        declined: tuple[Job, ...] = ()
        while not over.is_set():
            news = client.jobs(8, 0.1, declined)
            declined = () if news is None else news.jobs
        client.jobs(0, 0.0, end=True)

    thread = threading.Thread(target=decline)
    thread.start()
    try:
        found: list[tuple[list[int], Reply]] = []

        def late() -> bool:
            ids = fresh()
            found.append((ids, ask(engine, ids, CUTS)))
            return bool(found[-1][1].told.get("late"))

        wait_until(late)
    finally:
        over.set()
        thread.join()
    ids, reply = found[-1]
    told = {name: int(str(reply.told[name])) for name in ("captured", "elsewhere", "late")}
    assert told["captured"] + told["elsewhere"] == SEGMENTS
    assert reply.near(walked(engine, ids))


def test_an_engine_that_dies_costs_its_segments(engine: Engine, helper: Idle) -> None:
    """While it has them: it was stopped before. The last test of this module."""
    together(engine)
    helper.pause()
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
