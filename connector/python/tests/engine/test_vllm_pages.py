"""Shared pages in vLLM itself: one copy of a segment's rows for all requests that have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

if find_spec("vllm"):
    from engine.splice_requests import (
        SEGMENT,
        ask,
        ids_of,
        start,
        warm,
    )
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, hybrid_model
    from running import Daemon
    from spliced_connector.vllm.pages.manager import SharedPagesManager


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=500")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = hybrid_model(tmp_path_factory.mktemp("model"))
    running = start(model, daemon.socket, shared_pages=True, options={"max_num_seqs": 8})
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """No test leaves a request, a plan or a block behind."""
    yield
    engine.llm.llm_engine.step()
    placed = worker_of(engine).placed
    assert placed is not None and not len(placed)
    pages = pages_of(engine)
    assert not pages._held and not pages._offers and not pages._pinned
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def pages_of(engine: Engine) -> SharedPagesManager:
    found = scheduler_of(engine)._pages
    assert found is not None
    return found


@contextmanager
def copies(engine: Engine) -> Iterator[None]:
    """Requests have all of their tokens in blocks of their own."""
    half = scheduler_of(engine)
    pages, half._pages = half._pages, None
    yield
    half._pages = pages


def test_the_answer_is_that_of_copies(engine: Engine) -> None:
    order = [0, 1, 2, 3, 4]
    warm(engine, order)
    ids, cuts = ids_of(order)
    with copies(engine):
        copied = ask(engine, ids, cuts)
    before = engine.counts().get("shared_tokens", 0)
    for _ in range(2):
        shared = ask(engine, ids, cuts)
        print(copied.tokens, shared.tokens, (copied.logprobs - shared.logprobs).abs().max())
        assert shared.told == copied.told
        assert shared.tokens == copied.tokens
        assert (copied.logprobs - shared.logprobs).abs().max() < 0.06
    assert engine.counts()["shared_tokens"] - before == 2 * (5 * SEGMENT - 4 * 16)
