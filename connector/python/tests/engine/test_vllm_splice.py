"""Mode splice on vLLM itself: answers, and what it does when something goes wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    import torch
    from torch import Tensor

    from engine.launches import Launches
    from engine.splice_requests import (
        QUERY,
        SEGMENT,
        SEGMENTS,
        Reply,
        another_runs,
        ask,
        ask_raw,
        changed,
        ids_of,
        start,
        warm,
    )
    from engine.splice_requests import scheduler as scheduler_of
    from engine.splice_requests import worker as worker_of
    from engine.vllm_harness import Engine, hybrid_model, prompt
    from running import Daemon
    from spliced_connector.client import (
        Client,
        LossCounts,
        NewSegment,
        Options,
        SpliceWay,
        release_all,
    )
    from spliced_connector.errors import Code
    from spliced_connector.model import Lead, SpanKind, choose, divide, make_plan
    from spliced_connector.serving import composing, watch
    from spliced_connector.serving import job as serving_job
    from spliced_connector.serving.primers import lead_of
    from spliced_connector.serving.settings import Compute
    from spliced_connector.vllm.kernels.cpu import cpu_kernels
    from spliced_connector.vllm.walk import sizes_of
    from spliced_connector.walk import (
        Captured,
        Context,
        capture,
        capture_all,
        collect,
        pack,
        prefill,
        rounded,
        splice,
    )


PRIMER = tuple(range(2, 66))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=5")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory: Path = tmp_path_factory.mktemp("model")
    # No segment stands so far on, but in the tests that say so.
    running = start(hybrid_model(directory), daemon.socket, primer=PRIMER, primer_after=1 << 20)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """No test leaves a request, a lease or a block behind."""
    yield
    assert not worker_of(engine)._jobs
    assert not scheduler_of(engine)._requests
    assert not engine.core.scheduler.requests
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert len(pool.cached_block_hash_to_block) == 0, "a block was filed as an exact one"


def walked(engine: Engine, order: list[int], primer: Lead | None = None) -> Tensor:
    """Log-probabilities behind a prompt by the library alone: the oracle of a splice."""
    mode = worker_of(engine)
    profile = mode._session.model.profile
    ids, cuts = ids_of(order)
    cut_up = divide(profile, b"", ids, cuts, 8, primer=primer)
    plan = make_plan(cut_up, 0, choose(cut_up, 0, [True] * len(order), [False] * len(order)))
    arch = mode._arch
    with torch.inference_mode():
        segments = {}
        for piece in cut_up.pieces:
            assert piece.spec is not None
            after = mode._primers.of(piece.spec)
            found = capture(arch, ids[piece.start : piece.end], piece.spec, primer=after)
            parts = pack(profile, found)
            layers = collect(
                len(found.layers), profile.segment_layout(piece.spec), parts.__getitem__
            )
            segments[piece.index] = Captured(piece.spec, layers)
        context = Context(arch, len(ids), torch.device("cpu"))
        h = splice(arch, ids, plan.spans, segments, context)
        assert h is not None
        return arch.logits(h[-1:])[0].float().log_softmax(-1)


def full(engine: Engine, ids: list[int]) -> Tensor:
    """The same by a full walk."""
    arch = worker_of(engine)._arch
    with torch.inference_mode():
        h = prefill(arch, ids, Context(arch, len(ids), torch.device("cpu")))
        return arch.logits(h[-1:])[0].float().log_softmax(-1)


def test_a_full_walk_gives_the_engines_logits(engine: Engine) -> None:
    ids, _ = ids_of([0, 1])
    reply = ask(engine, ids)
    by_walk = full(engine, ids)
    assert reply.near(by_walk)
    assert int(by_walk.argmax()) == int(reply.logprobs.argmax())
    assert not reply.told


def test_one_leading_segment_gives_the_answer_of_no_cache(engine: Engine) -> None:
    ids, _ = ids_of([0, 1, 2], query=QUERY)
    exact = ask(engine, ids)
    cuts = [0, 3 * SEGMENT]
    for _ in range(3):
        reply = ask(engine, ids, cuts)
        assert engine.worker.drain(30)
    assert reply.told == {
        "way": "splice",
        "tokens": 3 * SEGMENT,
        "walked": 0,
        "reused": 3 * SEGMENT,
        "captured": 0,
    }
    assert reply.cached == 3 * SEGMENT
    assert reply.near(exact.logprobs)
    assert reply.tokens == exact.tokens


def test_spliced_segments_give_the_answer_of_the_library(engine: Engine, daemon: Daemon) -> None:
    """In the order they were captured in and in another: blocks and states are in their places."""
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        reply = warm(engine, order)
        assert reply.told["tokens"] == 4 * SEGMENT - 8
        assert reply.told["walked"] == 8 + 2 * 16
        assert reply.near(walked(engine, order))
        said = daemon.request(way="splice", reused_tokens=reply.told["reused"])
        assert said["prompt_tokens"] == len(ids_of(order)[0])
        assert said["ttft_ms"] > said["wait_ms"] > 0
        assert [s["key"] for s in said["spans"] if s["from"] == "segment"]


def test_segments_further_on_are_captured_after_the_primer(
    engine: Engine, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = lead_of(PRIMER, SEGMENT + 1)
    monkeypatch.setattr(scheduler_of(engine)._decider, "_lead", lead)
    before = engine.counts().get("other_variant_segments", 0)
    for order in ([6, 5, 7], [6, 7, 5]):
        assert warm(engine, order).near(walked(engine, order, lead))
    primers = {s.get("primer") for s in daemon.segments()}
    assert lead is not None
    assert primers == {None, lead.digest.hex()}
    assert engine.counts()["other_variant_segments"] > before, "7 was captured after the primer"
    monkeypatch.undo()
    # Without a primer at these places: the leading one alone is another's.
    assert not torch.equal(walked(engine, [6, 5, 7]), walked(engine, [6, 5, 7], lead))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 1]])
def test_the_daemon_composes_what_the_engine_does(
    order: list[int], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """compute: daemon next to compute: engine."""
    warm(engine, order)
    ids, cuts = ids_of(order)
    composer = worker_of(engine)._means.composer
    replies = {}
    for way in (Compute.ENGINE, Compute.DAEMON):
        monkeypatch.setattr(composer, "choice", way)
        before = replace(composer.count)
        replies[way] = ask(engine, ids, cuts)
        done = {
            Compute.ENGINE: composer.count.engine - before.engine,
            Compute.DAEMON: composer.count.daemon - before.daemon,
        }
        assert done == {Compute.ENGINE: 0, Compute.DAEMON: 0} | {way: 1}
        assert replies[way].told["captured"] == 0
    here, there = replies[Compute.ENGINE], replies[Compute.DAEMON]
    assert there.told == here.told
    assert there.near(here.logprobs)
    assert composer.count.refused == 0


def test_who_captures_and_who_reuses_get_the_same(engine: Engine) -> None:
    order = [4, 5, 6]
    ids, cuts = ids_of(order)
    replies = []
    for _ in range(4):
        replies.append(ask(engine, ids, cuts))
        assert engine.worker.drain(30)
    captured = [r for r in replies if r.told.get("captured")]
    reused = [r for r in replies if r.told.get("captured") == 0]
    assert captured
    assert reused
    assert torch.equal(captured[-1].logprobs, reused[0].logprobs)


def test_segments_that_two_requests_miss_are_captured_once(engine: Engine) -> None:
    new = [prompt(SEGMENT, seed=500 + i) for i in range(3)]
    cuts = [i * SEGMENT for i in range(4)]
    orders = [(0, 1, 2), (0, 2, 1)]
    prompts = [[t for i in order for t in new[i]] + QUERY for order in orders]
    before = engine.counts().get("captures", 0)
    for _ in range(4):  # the daemon may want to see a segment before it is captured
        answers = engine.ask(*prompts, cuts=cuts)
        assert engine.worker.drain(30)
    assert [a.told["way"] for a in answers] == ["splice", "splice"]
    assert [a.told["captured"] for a in answers] == [0, 0]
    assert engine.counts()["captures"] - before == 3


def captured(engine: Engine, numbers: list[int]) -> list[Captured]:
    """Segments by their numbers, as one batch."""
    mode = worker_of(engine)
    spec = mode._session.model.profile.mid_spec(SEGMENT, 8)
    assert spec is not None
    with torch.inference_mode():
        return capture_all(mode._arch, [(SEGMENTS[i], spec) for i in numbers])


def far(one: Captured, other: Captured) -> float:
    """The largest relative error of all parts; a transition may have decayed to nothing."""
    errors = []
    for a, b in zip(one.layers, other.layers, strict=True):
        for name in ("transition", "state", "conv", "k", "v"):
            x, y = getattr(a, name), getattr(b, name)
            if y is not None:
                errors.append(float((x.float() - y.float()).norm() / (1e-6 + y.float().norm())))
    return max(errors)


@pytest.fixture
def bf16_instructions() -> None:
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("walks use vLLM's kernels on processors with AVX-512 BF16 only")


@pytest.mark.usefixtures("bf16_instructions")
def test_a_segment_is_the_same_by_the_engines_kernels_and_by_torch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And alone or beside others."""
    by_kernels = captured(engine, [0, 1, 2])
    assert far(captured(engine, [1])[0], by_kernels[1]) < 0.01
    assert far(by_kernels[0], by_kernels[1]) > 0.3
    monkeypatch.setattr(worker_of(engine)._arch, "kernels", None)
    for one, other in zip(by_kernels, captured(engine, [0, 1, 2]), strict=True):
        assert far(one, other) < 0.05


@pytest.mark.usefixtures("bf16_instructions")
@pytest.mark.parametrize(
    "name",
    ["causal_conv1d_fwd_cpu", "chunk_gated_delta_rule_cpu", "cpu_attention_with_kv_cache"],
)
def test_an_operator_that_means_something_else_is_not_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from vllm import _custom_ops as ops

    arch: Any = worker_of(engine)._arch
    sizes = {i: sizes_of(mixer) for i, mixer in enumerate(arch.mixers)}
    assert cpu_kernels(arch, sizes) is not None
    real = getattr(ops, name)

    def other(**given: Any) -> object:
        out = real(**given)
        for changed in (given.get("output"), given.get("initial_state"), out):
            if isinstance(changed, Tensor):
                changed.mul_(1.1)
        return out

    monkeypatch.setattr(ops, name, other)
    assert cpu_kernels(arch, sizes) is None
    monkeypatch.delattr(ops, name)
    assert cpu_kernels(arch, sizes) is None


def test_a_request_states_the_loss_that_it_accepts(engine: Engine, daemon: Daemon) -> None:
    order = [0, 1, 2]
    whole = warm(engine, order)
    ids, cuts = ids_of(order)
    model = scheduler_of(engine)._session.model

    def said(most: float) -> Reply:
        return ask_raw(engine, ids, {"spliced": {"v": 1, "cuts": cuts, "max_loss": most}})

    unknown = said(0.5)
    assert unknown.told["way"] == "engine"
    assert "within max_loss" in str(unknown.told["trouble"])
    assert unknown.near(full(engine, ids))
    ways = SpliceWay(), SpliceWay(refreshed=True)
    try:
        model.measured_offline(dict(zip(ways, (LossCounts(98, 9), LossCounts(98, 1)), strict=True)))
        within, last, beyond = said(0.1), said(0.05), said(0.01)
    finally:
        model.measured_offline(dict.fromkeys(ways, LossCounts(1, 1)))  # replaces the others
        assert said(0.5).told["way"] == "engine", "too little is known again"
    # The canary may have compared a request of another test, too.
    assert within.told == whole.told | {"expected_loss": pytest.approx(0.1, abs=0.01)}
    assert torch.equal(within.logprobs, whole.logprobs)
    assert (last.told["way"], last.told["expected_loss"]) == ("splice", 0.02)
    assert last.told["tokens"] == 2 * SEGMENT - 8
    assert daemon.request(way="splice", reused_tokens=last.told["reused"])["expected_loss"] == 0.02
    assert beyond.told["way"] == "engine"
    assert torch.equal(beyond.logprobs, unknown.logprobs)


@pytest.mark.usefixtures("bf16_instructions")
def test_a_walk_starts_few_operations(engine: Engine) -> None:
    """Ten segments; beside the engine's modules, for each layer."""
    mode = worker_of(engine)
    arch, profile = mode._arch, mode._session.model.profile
    assert arch.kernels is not None, "the engine's kernels are not used"
    ids, cuts = ids_of([0, 1, 2, 3, 4, 5, 6, 7, 0, 1])
    cut_up = divide(profile, b"", ids, cuts, 8)
    plan = make_plan(cut_up, 0, choose(cut_up, 0, [True] * 10, [False] * 10))
    wanted = [(ids[p.start : p.end], p.spec) for p in cut_up.pieces if p.spec is not None]
    with torch.no_grad():
        segments = {i: rounded(profile, made) for i, made in enumerate(capture_all(arch, wanted))}
        context = Context(arch, len(ids), torch.device("cpu"))
        with Launches() as seen:
            splice(seen.apart(arch), ids, plan.spans[:-1], segments, context)
    assert sum(seen.ours.values()) <= 40 * len(arch.layers), seen.ours.most_common()


def test_requests_without_cuts_ask_nobody(engine: Engine) -> None:
    before = engine.counts()
    reply = ask(engine, prompt(400, seed=7))
    assert reply.told == {}
    assert reply.cached == 0
    assert engine.counts() == before


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"v": 3, "cuts": [0, 160]}, "spliced.v: 3"),
        ({"v": 1, "cuts": [160, 0]}, "160 is followed by 0"),
        ({"v": 1, "cuts": [0, 100_000]}, "spliced.cuts[1]: 100000"),
    ],
)
def test_wrong_cuts_are_answered_and_said(engine: Engine, said: Any, text: str) -> None:
    ids, _ = ids_of([0, 1])
    reply = ask_raw(engine, ids, {"spliced": said})
    assert reply.told["way"] == "engine"
    assert text in str(reply.told["trouble"])
    assert reply.tokens == ask(engine, ids).tokens


def test_a_short_prompt_goes_to_the_engine(engine: Engine) -> None:
    ids = prompt(200, seed=8)
    ask(engine, ids, [0, 90, 180])
    before = engine.counts()
    for _ in range(5):
        assert ask(engine, ids, [0, 90, 180]).told == {"way": "engine"}
    after = engine.counts()
    assert after["short"] - before["short"] == 5
    assert after.get("matched_tokens", 0) == before.get("matched_tokens", 0)


def test_work_beyond_the_bound_goes_on_in_later_steps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = worker_of(engine)
    want = warm(engine, [0, 1, 2, 3])
    calls: list[int] = []
    real = splice

    def counted(arch: Any, ids: Any, spans: Any, *rest: Any) -> Any:
        calls.append(sum(s.length for s in spans if s.kind is SpanKind.RECOMPUTE))
        return real(arch, ids, spans, *rest)

    monkeypatch.setattr(composing, "splice", counted)
    before = engine.counts().get("stalls", 0)
    with changed(mode, stall_ms=0.001), another_runs(engine):
        reply = ask(engine, *ids_of([0, 1, 2, 3]))
    assert reply.told["way"] == "splice"
    assert len(calls) > 4
    assert max(calls) <= 16
    assert engine.counts()["stalls"] - before >= len(calls)
    assert reply.near(want.logprobs)


def test_where_no_other_request_runs_no_bound_does(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A splice is one step then, also where a piece of it passes the bound."""
    mode = worker_of(engine)
    want = warm(engine, [0, 1, 2, 3])
    works: list[int] = []
    real = mode._work

    def counted(*args: Any) -> None:
        works.append(1)
        real(*args)

    monkeypatch.setattr(mode, "_work", counted)
    before = engine.counts().get("stalls", 0)
    with changed(mode, stall_ms=0.001):
        reply = ask(engine, *ids_of([0, 1, 2, 3]))
    assert reply.told == want.told
    assert len(works) == 1
    assert engine.counts().get("stalls", 0) == before


def until(engine: Engine, order: list[int], reached: Callable[[], bool], most: int = 200) -> None:
    """Asks until something is so. Comparisons go on in the steps of requests."""
    for _ in range(most):
        if reached():
            return
        ask(engine, *ids_of(order))
    raise AssertionError(f"not reached: {engine.counts()}")


class Trouble:
    """Something that goes wrong inside a worker, and what the engine must make of it."""

    def __init__(self, engine: Engine, order: list[int]) -> None:
        self.engine, self.order = engine, order
        self.exact = ask(engine, ids_of(order)[0])
        warm(engine, order)
        self.failures = engine.counts().get("load_failures", 0)

    def check(self) -> None:
        """The request is computed: the answer of no cache, said and counted."""
        reply = ask(self.engine, *ids_of(self.order))
        assert reply.told["way"] == "recomputed"
        assert reply.tokens == self.exact.tokens
        assert torch.equal(reply.logprobs, self.exact.logprobs)
        assert self.engine.counts()["load_failures"] == self.failures + 1


def test_an_exception_in_the_walk_is_recomputed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(engine, [0, 1, 2])
    arch = worker_of(engine)._arch

    def broken(*_: Any) -> Any:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(arch, "linear_out", broken)
    trouble.check()


def test_segments_that_go_between_match_and_acquire_are_recomputed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evicted, or of a daemon that was restarted: what came is given back, nothing half is used."""
    trouble = Trouble(engine, [0, 1, 2])
    mode = worker_of(engine)
    real = mode._session.model.acquire
    given: list[Any] = []

    def partly(keys: Any, **how: Any) -> list[Any]:
        found = real(keys, **how)
        given.extend(found)
        return [found[0], None, found[2]]

    monkeypatch.setattr(mode._session.model, "acquire", partly)
    with changed(mode, load_ms=0):
        trouble.check()
    assert given[0]._released
    assert given[2]._released


def test_leases_that_were_not_good_to_the_end_are_recomputed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of a daemon that gave the pages to others."""
    trouble = Trouble(engine, [0, 1, 2])
    real = release_all
    monkeypatch.setattr(
        serving_job, "release_all", lambda held: [False for _ in real(held)] or [False]
    )
    trouble.check()


def test_a_layout_of_another_shape_is_recomputed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(engine, [0, 1, 2])
    profile = worker_of(engine)._session.model.profile
    other = profile.segment_layout(SEGMENT + 1)
    monkeypatch.setattr(profile, "segment_layout", lambda _: other)
    trouble.check()


def test_a_daemon_that_is_killed_in_the_middle_of_a_walk_changes_no_answer(
    engine: Engine, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory stays as it was where nobody else can have written to it; else it is computed."""
    order = [0, 1, 2, 3]
    want = warm(engine, order)
    exact = ask(engine, ids_of(order)[0])
    real = splice

    def killing(*given: Any) -> Any:
        monkeypatch.setattr(composing, "splice", real)
        daemon.kill()
        return real(*given)

    monkeypatch.setattr(composing, "splice", killing)
    reply = ask(engine, *ids_of(order))
    if reply.told["way"] == "splice":
        assert torch.equal(reply.logprobs, want.logprobs)
    else:
        assert torch.equal(reply.logprobs, exact.logprobs)
    assert ask(engine, *ids_of(order)).told["way"] == "engine"
    daemon.start()
    assert engine.worker.wait_attached(10)
    assert engine.scheduler.wait_attached(10)


def test_segments_of_another_engine_are_used(engine: Engine, daemon: Daemon) -> None:
    """Captured and published by a client of its own; this engine finds them at once."""
    mode = worker_of(engine)
    ids, cuts = ids_of([0, 7, 6])
    client = Client(Options(socket=daemon.socket, name="another engine", timeout=1.0))
    try:
        model = client.model(mode._session.engine.identity)
        assert model.wait_attached(10)
        assert model.salt is not None
        for piece in divide(model.profile, model.salt, ids, cuts, 8).pieces:
            assert piece.spec is not None
            tokens = ids[piece.start : piece.end]
            with torch.inference_mode():
                parts = pack(model.profile, capture(mode._arch, tokens, piece.spec))
            (code,) = model.publish([NewSegment(piece.spec, tokens, parts)])
            assert code in (Code.OK, Code.EXISTS)
    finally:
        client.close()
    reply = ask(engine, ids, cuts)
    assert reply.told["way"] == "splice"
    assert reply.told["captured"] == 0
    assert reply.near(walked(engine, [0, 7, 6]))


def test_a_restarted_daemon_is_used_again(engine: Engine, daemon: Daemon) -> None:
    """What it held in memory is gone; engines attach by themselves, and capture again."""
    warm(engine, [0, 1, 2])
    daemon.stop()
    daemon.start()
    assert engine.worker.wait_attached(10)
    assert engine.scheduler.wait_attached(10)
    assert warm(engine, [0, 1, 2], times=5).told["way"] == "splice"


def test_an_aborted_request_gives_its_blocks_back(engine: Engine) -> None:
    """Aborted while its load goes over several steps."""
    from vllm import SamplingParams

    mode = worker_of(engine)
    warm(engine, [0, 1, 2, 3])
    ids, cuts = ids_of([0, 1, 2, 3])
    sampling = SamplingParams(
        max_tokens=2,
        detokenize=False,
        extra_args={"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}},
    )
    llm = engine.llm.llm_engine
    with changed(mode, stall_ms=0.001), another_runs(engine):
        llm.add_request("gone", {"prompt_token_ids": ids}, sampling)
        for _ in range(50):
            llm.step()
            if mode._jobs:
                break
        assert mode._jobs
        llm.abort_request(["gone"])
    for _ in range(50):
        if not engine.core.scheduler.has_requests():
            break
        llm.step()


def test_the_canary_compares_and_switches_off(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is switched off stays off."""
    mode = worker_of(engine)
    monkeypatch.setattr(watch, "CANARY_SECONDS", 1.0)
    monkeypatch.setattr(watch, "REPORT_SECONDS", 0.0)
    mode._watch._next_try = 0.0  # another test may have reported a moment ago
    report = mode._session.model.report
    order = [0, 1, 2]
    with changed(scheduler_of(engine), canary_share=1.0):
        warm(engine, order)
        until(engine, order, lambda: engine.counts().get("compared", 0) > 0)
        assert not mode._watch.off
        monkeypatch.setattr(mode._watch._canary, "_bound", 1e-9)
        monkeypatch.setattr(mode._session.model, "report", lambda *_: None)
        until(engine, order, lambda: mode._watch.off)
    assert engine.counts()["compared_beyond_bound"] == 3
    exact = ask(engine, ids_of(order)[0])
    reply = ask(engine, *ids_of(order))
    assert reply.told["way"] == "recomputed", "the daemon could not be told yet"
    assert torch.equal(reply.logprobs, exact.logprobs)
    monkeypatch.setattr(mode._session.model, "report", report)
    ask(engine, ids_of(order)[0])
    assert mode._watch._untold == 0
    reply = ask(engine, *ids_of(order))
    assert reply.told["way"] == "engine"
    assert reply.told["trouble"] == "splicing is switched off"
    assert torch.equal(reply.logprobs, exact.logprobs)


def test_a_killed_daemon_is_a_miss(engine: Engine, daemon: Daemon) -> None:
    daemon.kill()
    ids, cuts = ids_of([0, 1, 2])
    reply = ask(engine, ids, cuts)
    assert reply.told["way"] == "engine"
    assert reply.tokens == ask(engine, ids).tokens
    daemon.start()
