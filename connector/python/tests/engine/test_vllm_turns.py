"""Conversations in vLLM: every turn continues behind the answer of the one before it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from engine.vllm_harness import Answer, Engine, Setup, hybrid_model, prompt
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


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Iterator[Engine]:
    running = Engine(Setup(hybrid_model(tmp_path_factory.mktemp("model")), daemon.socket))
    running.wait_attached()
    yield running
    running.close()


def conversation(block: int) -> list[tuple[list[int], int]]:
    """What is said in each turn, and how long its answer is."""
    lengths = ((block // 2, block), (20, 2 * block), (30, 10), (40, 60))
    return [(prompt(said, seed=10 + i), answered) for i, (said, answered) in enumerate(lengths)]


def same_but_for_ties(a: Answer, b: Answer) -> None:
    """A state that decoding has left differs in its last bits from that of a prefill, and weights
    are random: where the best two tokens are as good as each other, answers may part."""
    at = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=True)) if x != y), None)
    end = len(a.tokens) if at is None else at + 1
    assert a.logprobs[:end] == pytest.approx(b.logprobs[:end], abs=0.1)


def test_turns_continue_behind_answers_as_the_engines_own_cache_does(engine: Engine) -> None:
    block = engine.scheduler._session.block_tokens  # type: ignore[union-attr]
    turns = conversation(block)
    own: list[Answer] = []
    history: list[int] = []
    for said, answered in turns:  # the engine's own prefix caching remembers
        history = [*history, *said]
        own += engine.ask(history, tokens=answered, cache_salt="own")
        history += own[-1].tokens
    history, before = [], 0
    for turn, (said, answered) in enumerate(turns):
        engine.settle()
        history = [*history, *said]
        (answer,) = engine.ask(history, tokens=answered)
        assert answer.cached == before == own[turn].cached
        assert (answer.tokens, answer.logprobs) == (own[turn].tokens, own[turn].logprobs)
        engine.settle()
        (alone,) = engine.ask(history, tokens=answered, cache_salt=f"alone {turn}")
        assert alone.cached == 0
        same_but_for_ties(answer, alone)
        history += answer.tokens
        # The last token was sampled and never computed.
        before = (len(history) - 1) // block * block
    assert before > len(turns[0][0]) + block
    assert engine.counts().get("save_failures", 0) == 0


def test_an_answer_of_another_salt_is_not_found(engine: Engine) -> None:
    block = engine.scheduler._session.block_tokens  # type: ignore[union-attr]
    history = prompt(block // 2, seed=2)
    (answer,) = engine.ask(history, tokens=block, cache_salt="one")
    engine.settle()
    history = [*history, *answer.tokens, 5, 6]
    assert engine.ask(history, tokens=1)[0].cached == 0
    engine.settle()
    assert engine.ask(history, tokens=1, cache_salt="one")[0].cached == block
    engine.settle()
