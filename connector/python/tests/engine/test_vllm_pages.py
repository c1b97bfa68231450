"""Shared pages in vLLM itself: one copy of a segment's rows for all requests that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

if find_spec("vllm"):
    import torch

    from engine.splice_requests import (
        QUERY,
        SEGMENT,
        Reply,
        ask,
        ids_of,
        reply_of,
        start,
        warm,
    )
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, hybrid_model
    from running import Daemon
    from spliced_connector.client import release_all
    from spliced_connector.model import divide
    from spliced_connector.serving import job as serving_job
    from spliced_connector.vllm.pages.manager import SharedPagesManager, find_manager


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=5")
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
    found = find_manager(engine.core.scheduler.kv_cache_manager)
    assert found is not None
    return found


@contextmanager
def copies(engine: Engine) -> Iterator[None]:
    """Requests have all of their tokens in blocks of their own."""
    half = scheduler_of(engine)
    pages, half._pages = half._pages, None
    try:
        yield
    finally:
        half._pages = pages


_NUMBERS = count()

NEAR = 0.06
"""Between two right answers: keys that were turned and rounded, and queries that were. One request
was 0.016 off, at a spread of 0.9."""

ORDERS = ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [5, 6, 7, 0, 1], [1, 1, 2, 2, 3])


@dataclass(frozen=True)
class Said:
    """What came of requests that ran together."""

    replies: list[Reply]
    peak: int  # blocks of attention in use at once, the most of them
    preemptions: int


def together(engine: Engine, orders: Sequence[Sequence[int]], tokens: int = 8) -> Said:
    """Requests over these segments, each with a question of its own, all at once."""
    from vllm import SamplingParams

    llm, names = engine.llm.llm_engine, {}
    for i, order in enumerate(orders):
        ids, cuts = ids_of(order, QUERY[i % 8 :])
        extra = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}}
        sampling = SamplingParams(
            max_tokens=tokens,
            detokenize=False,
            temperature=0,
            ignore_eos=True,
            logprobs=-1,
            extra_args=extra,
        )
        names[name := f"{next(_NUMBERS)} together"] = i
        llm.add_request(name, {"prompt_token_ids": ids}, sampling)
    replies: dict[int, Reply] = {}
    peak, preempted = 0, 0
    while len(replies) < len(orders):
        for output in llm.step():
            if output.finished:
                replies[names[output.request_id]] = reply_of(output)
        scheduler = engine.core.scheduler
        peak = max(peak, attention_blocks(engine))
        preempted = max(preempted, sum(r.num_preemptions for r in scheduler.requests.values()))
    return Said([replies[i] for i in range(len(orders))], peak, preempted)


def attention_blocks(engine: Engine) -> int:
    """Different blocks that requests' tokens of attention lie in."""
    pages = pages_of(engine)
    own = {block.block_id for blocks in pages.req_to_blocks.values() for block in blocks}
    return len(own | {run.block for held in pages._held.values() for run in held.plan.runs})


def check_same(shared: Said, copied: Said) -> None:
    for one, other in zip(shared.replies, copied.replies, strict=True):
        assert set(one.told) - set(other.told) == {"shared"}
        assert one.told == other.told | {"shared": one.told["shared"]}
        assert (one.logprobs - other.logprobs).abs().max() < NEAR
        assert one.tokens == other.tokens


def test_the_answer_is_that_of_copies(engine: Engine) -> None:
    order = [0, 1, 2, 3, 4]
    warm(engine, order)
    ids, cuts = ids_of(order)
    with copies(engine):
        copied = ask(engine, ids, cuts)
    before = engine.counts().get("shared_tokens", 0)
    for _ in range(2):
        shared = ask(engine, ids, cuts)
        assert shared.told == copied.told | {"shared": sum(scheduler_spans(engine, order))}
        assert shared.tokens == copied.tokens
        assert (copied.logprobs - shared.logprobs).abs().max() < NEAR
    first, others = SEGMENT - 8, SEGMENT - 16
    spans = scheduler_spans(engine, order)
    assert sum(spans) >= first + 4 * others
    assert engine.counts()["shared_tokens"] - before == 2 * sum(spans)


def scheduler_spans(engine: Engine, order: Sequence[int]) -> list[int]:
    """Lengths of the interiors of a prompt's segments."""
    ids, cuts = ids_of(order)
    prompt = divide(worker_of(engine)._session.model.profile, b"", ids, cuts, 8)
    return [piece.spec.interior[1] for piece in prompt.pieces if piece.spec is not None]


def test_requests_together_share_blocks(engine: Engine) -> None:
    for order in ORDERS:
        warm(engine, order)
    with copies(engine):
        copied = together(engine, ORDERS)
    shared = together(engine, ORDERS)
    print("blocks", shared.peak, copied.peak, pages_of(engine).block_size)
    check_same(shared, copied)
    assert shared.peak < copied.peak
    # Without anybody's copy in the engine: the first one fills the bins again.
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.reset_prefix_cache()
    assert len(pages_of(engine).bins) == 0
    check_same(together(engine, ORDERS), copied)


def test_a_bin_whose_block_another_had_is_filled_again(engine: Engine) -> None:
    order = ORDERS[2]
    warm(engine, order)
    ids, cuts = ids_of(order)
    before = ask(engine, ids, cuts)
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks())
    assert len(pages_of(engine).bins) == 0
    for layer in worker_of(engine)._caches.rows.values():  # whoever had them wrote there
        layer._cache.fill_(7.0)
    pool.free_blocks(taken)
    after = ask(engine, ids, cuts)
    assert after.tokens == before.tokens
    assert torch.equal(after.logprobs, before.logprobs)


def test_an_aborted_request_leaves_others_their_segments(engine: Engine) -> None:
    from vllm import SamplingParams

    order = ORDERS[0]
    expected = warm(engine, order)
    ids, cuts = ids_of(order)
    llm = engine.llm.llm_engine
    extra = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}}
    for steps in (0, 1, 3):
        sampling = SamplingParams(max_tokens=50, detokenize=False, extra_args=extra)
        name = f"{next(_NUMBERS)} aborted"
        llm.add_request(name, {"prompt_token_ids": ids}, sampling)
        for _ in range(steps):
            llm.step()
        llm.abort_request([name])
        reply = ask(engine, ids, cuts)
        assert reply.tokens == expected.tokens
        assert (reply.logprobs - expected.logprobs).abs().max() < NEAR


def test_what_the_daemon_does_not_vouch_for_fills_no_bin(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ORDERS[0]
    expected = warm(engine, order)
    ids, cuts = ids_of(order)
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.reset_prefix_cache()
    doubt = lambda leases: [not good for good in release_all(leases)]  # noqa: E731
    monkeypatch.setattr(serving_job, "release_all", doubt)
    lost = ask(engine, ids, cuts)
    assert lost.told["way"] == "recomputed"
    monkeypatch.undo()
    again = ask(engine, ids, cuts)
    assert again.told["way"] == "splice"
    assert again.tokens == expected.tokens
    assert (again.logprobs - expected.logprobs).abs().max() < NEAR


def test_a_preempted_request_is_computed(engine: Engine) -> None:
    from vllm import SamplingParams

    order = ORDERS[3]
    warm(engine, order)
    ids, cuts = ids_of(order)
    llm, name = engine.llm.llm_engine, f"{next(_NUMBERS)} preempted"
    extra = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}}
    sampling = SamplingParams(
        max_tokens=10,
        detokenize=False,
        temperature=0,
        ignore_eos=True,
        logprobs=-1,
        extra_args=extra,
    )
    llm.add_request(name, {"prompt_token_ids": ids}, sampling)
    placed = worker_of(engine).placed
    assert placed is not None
    before: list[int] = []
    while len(before) < 3:
        for output in llm.step():
            before = list(output.outputs[0].token_ids)
    assert len(placed) == 1
    assert engine.core.scheduler.reset_prefix_cache(reset_running_requests=True)
    after, most = before, 0
    while len(after) < 10:
        for output in llm.step():
            after = list(output.outputs[0].token_ids)
        if len(after) < 10:
            most = max(most, len(placed))
    assert most == 0
    exact = ask(engine, ids + after[:-4])
    assert after[-4:] == exact.tokens
