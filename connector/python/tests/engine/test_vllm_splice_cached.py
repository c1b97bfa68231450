"""Mode splice beside the engine's own prefix caching, as vLLM is started by default, and the
conversations that it continues behind the prompt of an earlier turn, also where that was spliced
and where no block ends."""

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
    import torch
    from torch import Tensor

    from engine.splice_requests import QUERY, SEGMENT, SEGMENTS, ask, changed, ids_of, start, warm
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, hybrid_model, prompt
    from running import Daemon
    from spliced_connector.model import Choice, Piece, choose, divide
    from spliced_connector.serving.splices import best_splice
    from spliced_connector.walk import Captured, Context, capture, collect, pack, prefill, splice

BLOCK = 256
"""Tokens of whole blocks, whether the engine has blocks of 128 or of 256 on this processor."""

END = 7
ASKING = [END, 3, 4]
SEAM = 8


@pytest.fixture(scope="module", params=[False, True], ids=["copies", "shared pages"])
def shared(request: pytest.FixtureRequest) -> bool:
    """Each with a daemon of its own, that holds what the tests have brought there."""
    return bool(request.param)


@pytest.fixture(scope="module")
def daemon(shared: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=5")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(
    shared: bool, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    directory: Path = tmp_path_factory.mktemp("model")
    model = hybrid_model(directory)
    running = start(model, daemon.socket, caching=True, shared_pages=shared)
    assert (worker_of(running).placed is not None) == shared
    assert (scheduler_of(running)._pages is not None) == shared
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """Every test begins with an engine that has cached nothing, and leaves nothing in use."""
    assert engine.llm.reset_prefix_cache()
    yield
    assert not worker_of(engine)._jobs
    assert not scheduler_of(engine)._requests
    assert not scheduler_of(engine)._pool._held
    assert not engine.core.scheduler.requests
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def behind(engine: Engine, ids: list[int], cuts: list[int], begin: int) -> Tensor:
    """Log-probabilities behind a prompt by the library alone, spliced behind an exact prefix."""
    mode = worker_of(engine)
    profile, arch = mode._session.model.profile, mode._arch
    cut_up = divide(profile, b"", ids, cuts, 8)
    n = len(cut_up.pieces)
    plan = best_splice(cut_up, choose(cut_up, begin, [True] * n, [False] * n), begin)
    assert plan is not None
    assert plan.begin == begin
    with torch.inference_mode():
        context = Context(arch, len(ids), torch.device("cpu"))
        if begin:
            prefill(arch, ids[:begin], context)
        segments = {piece.index: _captured(engine, ids, piece) for piece in plan.pieces(Choice.HIT)}
        splice(arch, ids, plan.spans, segments, context)
        h = prefill(arch, ids, context)
        return arch.logits(h[-1:])[0].float().log_softmax(-1)


def _captured(engine: Engine, ids: list[int], piece: Piece) -> Captured:
    """A segment as readers find it."""
    mode = worker_of(engine)
    profile = mode._session.model.profile
    assert piece.spec is not None
    found = capture(mode._arch, ids[piece.start : piece.end], piece.spec)
    parts = pack(profile, found)
    layout = profile.segment_layout(piece.spec)
    return Captured(piece.spec, collect(len(found.layers), layout, parts.__getitem__))


def whole_blocks(engine: Engine, ids: list[int]) -> int:
    """The tokens of a prompt that lie in full blocks."""
    block = scheduler_of(engine)._session.block_tokens
    return (len(ids) - 1) // block * block


def test_nobody_is_given_spliced_blocks(engine: Engine) -> None:
    """Two requests with the same tokens: spliced blocks are those of one of them."""
    warm(engine, [0, 1, 2, 3])
    assert engine.llm.reset_prefix_cache()
    ids, cuts = ids_of([3, 1, 0, 2])
    spliced = ask(engine, ids, cuts)
    assert spliced.told["way"] == "splice"
    assert spliced.told.get("prefix") is None
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    if scheduler_of(engine)._pages is None:
        assert len(pool.cached_block_hash_to_block), "it is filed, under a name of its own"
    cold = ask(engine, ids, salt="cold 1")
    assert not torch.equal(spliced.logprobs, cold.logprobs)
    again = ask(engine, ids)
    assert again.cached == 0
    assert again.tokens == cold.tokens
    assert torch.equal(again.logprobs, cold.logprobs)
    exact = ask(engine, ids)
    assert exact.cached == whole_blocks(engine, ids), "what the engine has computed, it gives away"
    assert exact.tokens == cold.tokens


def test_spliced_again_gives_the_same(engine: Engine) -> None:
    order = [2, 3, 1]
    want = warm(engine, order)
    ids, cuts = ids_of(order)
    for _ in range(3):
        assert engine.llm.reset_prefix_cache()
        reply = ask(engine, ids, cuts)
        assert reply.told == want.told
        assert torch.equal(reply.logprobs, want.logprobs)


def test_a_splice_goes_on_behind_the_engines_prefix(engine: Engine) -> None:
    """A private beginning that the engine has from an earlier request, then segments."""
    private = prompt(2 * BLOCK, seed=41)
    order = [0, 1, 2, 3]
    warm(engine, [4, *order])
    ids = private + [token for i in order for token in SEGMENTS[i]] + list(QUERY)
    cuts = [2 * BLOCK + i * SEGMENT for i in range(len(order) + 1)]
    cold = ask(engine, private + prompt(40, seed=42))
    assert cold.cached == 0
    reply = ask(engine, ids, cuts)
    assert reply.told["way"] == "splice"
    assert reply.told["prefix"] == 2 * BLOCK
    assert reply.told["tokens"] == cuts[-1] - 8
    assert reply.told["walked"] == 8 + 3 * 16
    assert reply.cached == cuts[-1] - 8
    assert reply.near(behind(engine, ids, cuts, 2 * BLOCK))
    # The engine's own blocks are as they were.
    again = ask(engine, private + prompt(40, seed=42))
    assert again.cached == 2 * BLOCK
    assert again.tokens == cold.tokens
    assert again.near(cold.logprobs)


def test_a_splice_goes_on_behind_the_daemons_prefix(engine: Engine) -> None:
    """The same, where only the daemon has the beginning: one look-up for both."""
    private = prompt(4 * BLOCK, seed=51)
    order = [0, 1, 2, 3]
    warm(engine, [5, *order])
    for i in range(3):
        ask(engine, private + prompt(40, seed=52 + i))
        assert engine.worker.drain(30)
    assert engine.counts()["saves"] > 0
    assert engine.llm.reset_prefix_cache()
    ids = private + [token for i in order for token in SEGMENTS[i]] + list(QUERY)
    cuts = [4 * BLOCK + i * SEGMENT for i in range(len(order) + 1)]
    reply = ask(engine, ids, cuts)
    assert reply.told["way"] == "splice"
    assert reply.told["prefix"] == 4 * BLOCK
    assert reply.near(behind(engine, ids, cuts, 4 * BLOCK))
    assert ask(engine, ids).cached == 4 * BLOCK, "the exact part is the daemon's still, no more"


def test_requests_without_cuts_reuse_prefixes(engine: Engine) -> None:
    """One server for both: mode splice does what mode prefix does."""
    ids = prompt(5 * BLOCK + 30, seed=61)
    cold = ask(engine, ids)
    assert engine.worker.drain(30)
    assert engine.llm.reset_prefix_cache()
    loaded = engine.counts().get("loaded_tokens", 0)
    reply = ask(engine, ids)
    assert reply.cached >= 4 * BLOCK
    assert engine.counts()["loaded_tokens"] - loaded == reply.cached
    assert reply.tokens == cold.tokens
    assert torch.equal(reply.logprobs, cold.logprobs)


def test_spliced_prompts_are_not_stored_as_prefixes(engine: Engine) -> None:
    order = [1, 3, 5]
    warm(engine, order)
    assert engine.worker.drain(30)
    before = engine.counts().get("saves", 0)
    ids, cuts = ids_of(order, query=prompt(3 * BLOCK, seed=71))
    for _ in range(3):
        assert engine.llm.reset_prefix_cache()
        assert ask(engine, ids, cuts).told["way"] == "splice"
        assert engine.worker.drain(30)
    assert engine.counts().get("saves", 0) == before


def test_a_failed_splice_is_exact_and_filed_as_such(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(engine, [2, 0, 4])
    ids, cuts = ids_of([0, 2, 4])
    cold = ask(engine, ids, salt="cold 2")
    mode = worker_of(engine)

    def broken(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    with monkeypatch.context() as patched:
        patched.setattr(mode._arch, "linear_out", broken)
        reply = ask(engine, ids, cuts)
    assert reply.told["way"] == "recomputed"
    assert torch.equal(reply.logprobs, cold.logprobs)
    given = ask(engine, ids).cached
    assert given == whole_blocks(engine, ids), "what it has computed, it gives away"


def test_a_preempted_request_never_leaks_its_blocks(engine: Engine) -> None:
    """It is scheduled again, from its own blocks or from none, and nobody else finds any."""
    from vllm import SamplingParams

    warm(engine, [7, 6, 2])
    ids, cuts = ids_of([6, 7, 2])
    cold = ask(engine, ids, salt="cold 3")
    sampling = SamplingParams(
        max_tokens=4,
        detokenize=False,
        temperature=0,
        ignore_eos=True,
        extra_args={"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}},
    )
    llm, core = engine.llm.llm_engine, engine.core.scheduler
    llm.add_request("stopped", {"prompt_token_ids": ids}, sampling)
    for _ in range(50):
        llm.step()
        if core.running and core.running[0].num_output_tokens:
            break
    (request,) = core.running
    assert request.cache_salt
    core.reset_prefix_cache(reset_running_requests=True)
    for _ in range(100):
        if not core.has_requests():
            break
        llm.step()
    assert not core.has_requests()
    again = ask(engine, ids)
    assert again.cached == 0
    assert torch.equal(again.logprobs, cold.logprobs)


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
