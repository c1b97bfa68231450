"""Conversations in mode splice: a turn continues behind the prompt of the one before it, also where
that was spliced and where no block ends."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    from engine.splice_requests import SEGMENT, ask, changed, ids_of, start, warm
    from engine.splice_requests import scheduler as scheduler_of
    from engine.vllm_harness import Engine, hybrid_model, prompt
    from running import Daemon

END = 7
ASKING = [END, 3, 4]
SEAM = 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=500")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory: Path = tmp_path_factory.mktemp("model")
    running = start(hybrid_model(directory), daemon.socket, caching=True)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """Every test begins with an engine that has cached nothing, and leaves nothing in use."""
    assert engine.llm.reset_prefix_cache()
    yield
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def said(n: int, seed: int) -> list[int]:
    """Words without the end of a turn."""
    return [token if token > 9 else 10 for token in prompt(n, seed=seed)]


def turns(order: list[int], seed: int) -> tuple[list[int], list[int], list[int]]:
    """The prompts of two turns, and the cuts of both."""
    ids, cuts = ids_of(order, ())
    first = [*ids, *said(30, seed), *ASKING]
    second = [*first, *said(5, seed + 1), END, *said(90, seed + 2), *ASKING]
    return first, second, cuts


def test_a_turn_continues_behind_a_spliced_prompt(engine: Engine) -> None:
    warm(engine, [0, 1, 2, 3])
    first, second, cuts = turns([2, 0, 3, 1], seed=500)
    whole = ask(engine, second, cuts, stops=[END])
    assert whole.told["way"] == "splice"
    assert "prefix" not in whole.told
    before = ask(engine, first, cuts, stops=[END])
    assert before.told == {**before.told, "way": "splice", "stored": 1}
    assert engine.worker.drain(30)
    after = ask(engine, second, cuts, stops=[END])
    assert after.told == {
        "way": "splice",
        "tokens": len(first),
        "prefix": len(first),
        "walked": 0,
        "reused": 0,
        "captured": 0,
        "stored": 1,
    }
    assert after.cached == len(first)
    assert after.near(whole.logprobs)


def test_segments_are_placed_behind_the_prefix_of_a_turn(engine: Engine) -> None:
    warm(engine, [0, 1, 2, 3])
    first, _, cuts = turns([1, 3], seed=520)
    ids, more = ids_of([0, 2], ())
    second = [*first, *said(5, 521), END, *ids, *said(20, 522), *ASKING]
    begin = len(first) + 6
    both = [*cuts, *(begin + cut for cut in more)]
    whole = ask(engine, second, both, stops=[END])
    ask(engine, first, cuts, stops=[END])
    assert engine.worker.drain(30)
    after = ask(engine, second, both, stops=[END])
    assert after.told["prefix"] == len(first)
    assert after.told["tokens"] == begin + 2 * SEGMENT - SEAM
    assert after.told["reused"] == pytest.approx(2 * SEGMENT, abs=32)
    assert after.near(whole.logprobs)


def test_a_request_without_segments_never_continues_behind_a_splice(engine: Engine) -> None:
    warm(engine, [0, 1, 2, 3])
    first, second, cuts = turns([3, 0, 1, 2], seed=540)
    ask(engine, first, cuts, stops=[END])
    assert engine.worker.drain(30)
    assert engine.llm.reset_prefix_cache()
    alone = ask(engine, second, salt="alone", stops=[END])
    plain = ask(engine, second, stops=[END])
    assert plain.cached == 0
    assert plain.tokens == alone.tokens
    assert plain.logprobs.equal(alone.logprobs)


def test_an_exact_prompt_is_continued_exactly_where_no_block_ends(engine: Engine) -> None:
    """Nothing of these prompts is held: the engine computes the first turn, and no block of the
    second is filed where others would find it."""
    first = [*said(600, 560), *ASKING]
    second = [*first, *said(5, 561), END, *said(300, 562), *ASKING]
    cuts = [0, 300, 600]
    with changed(scheduler_of(engine), capture=False):
        one = ask(engine, first, cuts, stops=[END])
        assert one.told["way"] == "engine"
        assert engine.worker.drain(30)
        assert engine.llm.reset_prefix_cache()
        two = ask(engine, second, cuts, stops=[END])
        assert two.told["prefix"] == two.cached == len(first)
        alone = ask(engine, second, salt="alone too", stops=[END])
        assert two.near(alone.logprobs)
        # What others find is what the engine has computed from the beginning.
        other = ask(engine, second, stops=[END])
        assert other.logprobs.equal(alone.logprobs)
