"""Answers in vLLM whose recurrent states have 16 bits: decoding rounds them at each token, so that
they are no states of a prefill."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from engine.vllm_harness import Engine, Setup, hybrid_model, prompt
from running import Daemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-prefill-speed=500")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, daemon: Daemon
) -> Iterator[Engine]:
    """One that keeps states of answers in its own cache too, which is not vLLM's default."""
    options = {"mamba_ssm_cache_dtype": request.param, "prefix_cache_retention_interval": None}
    model = hybrid_model(tmp_path_factory.mktemp("model"))
    running = Engine(Setup(model, daemon.socket, options=options))
    running.wait_attached()
    yield running
    running.close()


def rounds(engine: Engine) -> bool:
    session = engine.scheduler._session
    assert session is not None
    assert session.engine.rounds == (engine.setup.options["mamba_ssm_cache_dtype"] != "float32")
    return session.engine.rounds


def block_of(engine: Engine) -> int:
    session = engine.scheduler._session
    assert session is not None
    return session.block_tokens


def test_an_answer_is_stored_where_decoding_does_not_round(engine: Engine) -> None:
    block = block_of(engine)
    history = prompt(block + 20, seed=1)
    (answer,) = engine.ask(history, tokens=block)
    engine.settle()
    (after,) = engine.ask([*history, *answer.tokens, 5, 6], tokens=1)
    assert after.cached == (block if rounds(engine) else 2 * block), "the prompt's is a prefill's"
    engine.settle()


def test_nothing_is_stored_behind_an_answer_that_the_engine_has(engine: Engine) -> None:
    """The engine goes on behind its own state of the answer, and so does all that it computes."""
    block = block_of(engine)
    history = prompt(block // 2, seed=2)
    (answer,) = engine.ask(history, tokens=block)
    history += answer.tokens
    turn = prompt(3 * block + 20, seed=3, prefix=history)
    assert engine.ask(turn, tokens=1)[0].cached == block, "by its own cache"
    engine.settle()
    (again,) = engine.ask(turn, tokens=1)
    assert (again.cached == 0) == rounds(engine)
    engine.settle()
    # Computed as a prompt it is what it says.
    assert engine.ask(turn, tokens=1)[0].cached == 3 * block
    engine.settle()
