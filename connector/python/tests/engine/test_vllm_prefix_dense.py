"""Prefixes of a model of attention only, in a cache so small that requests push each other out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from engine.vllm_harness import Answer, Engine, Setup, dense_model, prompt, trained
from running import Daemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

BLOCK = 128
PROMPTS = [prompt(600, seed=20), prompt(620, seed=21)]
HIT = 512


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-prefill-speed=500")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Iterator[Engine]:
    model = dense_model(tmp_path_factory.mktemp("model"))
    # One block is never used; five hold a prompt, two prompts fit and hardly any answers.
    options: dict[str, object] = {
        "block_size": BLOCK,
        "num_gpu_blocks_override": 12,
        "max_model_len": 1024,
        "max_num_batched_tokens": 256,  # prompts come in chunks
    }
    running = Engine(Setup(model, daemon.socket, options=options))
    yield running
    running.close()


@pytest.fixture(scope="module")
def cold(engine: Engine) -> list[Answer]:
    """What the engine says when nothing is stored."""
    answers = []
    for one in PROMPTS:
        answers += engine.ask(one, tokens=100)
        engine.settle()
    assert [a.cached for a in answers] == [0, 0]
    return answers


def test_stored_prompts_are_reused(engine: Engine, cold: list[Answer]) -> None:
    assert engine.counts()["saves"] > 0
    for one, right in zip(PROMPTS, cold, strict=True):
        (answer,) = engine.ask(one, tokens=100)
        assert answer.cached == HIT, engine.counts()
        assert answer.tokens == right.tokens
        engine.settle()


def test_only_rows_that_the_engine_lacks_are_loaded(engine: Engine, cold: list[Answer]) -> None:
    engine.ask(PROMPTS[0][: 2 * BLOCK + 5], tokens=1)
    loaded = engine.counts()["loaded_tokens"]
    (answer,) = engine.ask(PROMPTS[0], tokens=100)
    assert answer.cached == HIT
    assert answer.tokens == cold[0].tokens
    assert engine.counts()["loaded_tokens"] - loaded == HIT - 2 * BLOCK
    engine.settle()


def test_requests_that_push_each_other_out(
    engine: Engine, cold: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = engine.core.scheduler
    preempt, preempted = scheduler._preempt_request, []

    def noted(request: object, *given: object, **named: object) -> object:
        preempted.append(request)
        return preempt(request, *given, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", noted)
    answers = engine.ask(*PROMPTS, tokens=100)
    assert preempted
    assert [a.tokens for a in answers] == [a.tokens for a in cold]
    assert not engine.counts().get("load_failures", 0)
    engine.settle()


def test_weights_that_a_trainer_has_written_end_the_reuse(
    engine: Engine, cold: list[Answer], daemon: Daemon
) -> None:
    """The last test: nothing is reused in this engine any more."""
    (before,) = engine.ask(PROMPTS[0], tokens=100)
    assert (before.cached, before.tokens) == (HIT, cold[0].tokens)
    engine.settle()
    saves, held = engine.counts()["saves"], daemon.checkpoints()
    assert "inert" not in engine.counts()

    engine.llm.apply_model(trained)
    assert engine.llm.reset_prefix_cache()
    # The daemon has its prefix, and the scheduler's half claims it.
    (answer,) = engine.ask(PROMPTS[0], tokens=100)
    assert engine.llm.reset_prefix_cache()
    (right,) = engine.ask(PROMPTS[0], tokens=100, cache_salt="no cache")
    assert answer.cached == right.cached == 0
    assert answer.tokens == right.tokens != cold[0].tokens
    assert answer.logprobs == right.logprobs

    engine.ask(prompt(600, seed=22))
    engine.settle()
    assert engine.counts()["saves"] == saves
    assert daemon.checkpoints() == held
    assert "layernorm.weight has other values" in engine.worker.inert
    assert engine.scheduler.tally.snapshot()["inert"] == 1
    assert engine.worker.tally.snapshot()["inert"] == 1
