"""transformers through a running daemon: prefixes, splices, and every way to lose the daemon."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, answer, continued, engine, far, own, tokens
from engine.hybrids import MODELS, qwen35, qwen_next
from running import Daemon, StartDaemon
from spliced_connector.client import (
    UNADVISED,
    Advice,
    CaptureTiming,
    Match,
    Model,
    Query,
    WalkTiming,
    Way,
    release_all,
)
from spliced_connector.client.lease import Held
from spliced_connector.errors import Code
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf import adapter as hf
from spliced_connector.hf import reuse as hf_reuse
from spliced_connector.hf.adapter import Mode
from spliced_connector.model import PlanError, divide
from spliced_connector.serving import composing
from spliced_connector.walk import Naming, UnsupportedError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_prefixes_give_the_tokens_that_no_cache_gives(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    model = MODELS[name]()
    e = engine(model, connect, daemon)
    ids = tokens(230)
    want = answer(model, ids)
    cold = e.prefill(ids, CUTS, "prefix")
    assert cold.reused == 0
    assert cold.computed == 230
    warm = e.prefill(ids, CUTS, "prefix")
    assert warm.reused >= 160, "nothing was saved where the daemon advised it"
    assert warm.reused + warm.computed == 230
    assert not warm.approximate
    said = daemon.request(way="prefix", prefix_tokens=warm.reused)
    assert (said["prefix_tier"], said["computed_tokens"]) == ("dram", warm.computed)
    assert said["ttft_ms"] > 0
    for done in (cold, warm):
        assert far(done.logits, own(model, ids)) <= 1e-4
        assert continued(model, ids, done) == want
    for mode in ("none", "prefix"):
        out = e.generate(ids, CUTS, mode, max_new_tokens=12, do_sample=False)
        assert out[0, 230:].tolist() == want
    other = [*ids[:200], *tokens(40, seed=9)]
    again = e.prefill(other, (), "prefix")
    assert again.reused > 0
    assert far(again.logits, own(model, other)) <= 1e-4


@pytest.mark.parametrize("n", [127, 128, 129, 255, 256, 257])
def test_a_repeated_prompt_reuses_all_whole_blocks_but_its_last_token(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, n: int
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(n)
    for out in (1, 2):
        e.generate(ids, (), "prefix", max_new_tokens=out, do_sample=False)
    said = daemon.request(way="prefix", prompt_tokens=n)
    assert said["prefix_tokens"] >= (n - 1) // 16 * 16
    assert e.prefill(ids, (), "prefix").reused >= (n - 1) // 16 * 16


def test_prefixes_of_a_dense_model_too(connect: Connect, daemon: Daemon) -> None:
    model = qwen35(layer_types=["full_attention"] * 4)
    e = engine(model, connect, daemon)
    ids = tokens(150)
    e.prefill(ids, (), "prefix")
    warm = e.prefill(ids, (), "prefix")
    assert warm.reused > 0
    assert far(warm.logits, own(model, ids)) <= 1e-4
    assert continued(model, ids, warm) == answer(model, ids)


def test_a_checkpoint_of_another_length_than_matched_is_not_used(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    e = engine(model, connect, daemon)
    cuts, ids = [32, 92, 152, 200], tokens(220)
    for end in (32, 92):
        e.prefill(ids[: end + 8], [end], "prefix")
    assert e._reuse is not None
    hashes = e._reuse.model.prefix_hashes(ids, [32])
    assert hashes is not None
    load = Model.load
    monkeypatch.setattr(Model, "load", lambda self, digest, accept: load(self, hashes[0], accept))
    done = e.prefill(ids, cuts, "prefix", keep=False)
    assert (done.reused, done.computed) == (0, 220)
    assert far(done.logits, own(model, ids)) <= 1e-4
    assert "checkpoint of 32 tokens not used" in caplog.text


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_warm_splice_is_the_cold_one(name: str, connect: Connect, daemon: Daemon) -> None:
    model = MODELS[name]()
    e = engine(model, connect, daemon)
    ids = tokens(200)
    cold = e.prefill(ids, CUTS, "splice")
    assert (cold.reused, cold.captured, cold.computed) == (0, 180, 52)
    warm = e.prefill(ids, CUTS, "splice")
    assert (warm.reused, warm.captured, warm.computed) == (148, 0, 52)
    assert warm.approximate
    assert not warm.trouble
    assert far(warm.logits, cold.logits) <= 1e-5
    said = daemon.request(way="splice", reused_tokens=148)
    assert (said["seam_tokens"], said["computed_tokens"]) == (32, 52)
    assert daemon.request(way="recompute")["computed_tokens"] == 200
    # Another order of the same segments behind another first one.
    moved = [*tokens(60, seed=4), *ids[120:180], *ids[60:120], *ids[180:]]
    mixed = e.prefill(moved, CUTS, "splice")
    assert (mixed.reused, mixed.captured) == (88, 60)
    assert far(mixed.logits, own(model, moved)) < own(model, moved).abs().max() / 3


def test_one_leading_segment_gives_what_no_cache_gives(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(130)
    e.prefill(ids, [0, 110], "splice")
    warm = e.prefill(ids, [0, 110], "splice")
    assert warm.reused == 110
    assert not warm.approximate
    assert far(warm.logits, own(model, ids)) <= 1e-4
    assert continued(model, ids, warm) == answer(model, ids)
    out = e.generate(ids, [0, 110], "splice", max_new_tokens=12, do_sample=False)
    assert out[0, 130:].tolist() == answer(model, ids)


def test_generate_goes_on_behind_a_splice(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    done = e.prefill(ids, CUTS, "splice")
    out = e.generate(ids, CUTS, "splice", max_new_tokens=8, do_sample=False)
    assert out[0, 200:].tolist() == continued(model, ids, done, 8)


@pytest.mark.parametrize("several", ["num_beams", "num_return_sequences"])
def test_several_lines_of_generation_are_the_models_own(
    several: str, model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(130)
    e.prefill(ids, [0, 110], "splice")
    options = {several: 2, "do_sample": several != "num_beams", "max_new_tokens": 4}
    line = torch.tensor([ids])
    for given in (options, {"generation_config": GenerationConfig(**options)}):
        torch.manual_seed(5)
        want = model.generate(line, attention_mask=torch.ones_like(line), **given)
        torch.manual_seed(5)
        assert torch.equal(e.generate(ids, [0, 110], "splice", **given), want)


def test_a_model_whose_cache_cannot_be_filled_is_served_as_it_is(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> Cache:
        raise UnsupportedError("layer 2 holds no recurrent state")

    monkeypatch.setattr(hf, "filled", never)
    e = engine(model, connect, daemon)
    assert "no recurrent state" in e.inert
    ids = tokens(50)
    for mode in ("prefix", "splice"):
        assert far(e.prefill(ids, [0, 30], mode).logits, own(model, ids)) <= 1e-6


def test_a_system_prompt_is_a_prefix_behind_which_segments_stand(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(220)
    cuts = [32, 92, 152, 200]
    cold = e.prefill(ids, cuts, "splice")
    e.prefill(ids[:40], [32], "prefix")
    warm = e.prefill(ids, cuts, "splice")
    assert warm.plan is not None
    assert warm.plan.begin == 32
    assert warm.reused == 32 + 44 + 44 + 32
    assert far(warm.logits, cold.logits) <= 1e-4


def test_what_is_published_does_not_depend_on_what_stood_before(
    model: PreTrainedModel, connect: Connect, start_daemon: StartDaemon
) -> None:
    passage = tokens(60, seed=2)
    published = []
    for seed, before in ((3, 70), (4, 35)):
        # Its own daemon, other prompts first, and another place.
        e = engine(model, connect, start_daemon())
        assert e._reuse is not None
        own_model = e._reuse.model
        e.prefill(tokens(200, seed=seed + 10), CUTS, "splice")
        cuts = [0, before, before + 60]
        ids = [*tokens(before, seed=seed), *passage, *tokens(20, seed=seed)]
        assert e.prefill(ids, cuts, "splice").captured == cuts[-1]
        piece = divide(own_model.profile, own_model.salt or b"", ids, cuts, 8).pieces[1]
        assert piece.key is not None
        [held] = own_model.acquire([piece.key])
        assert held is not None
        published.append([bytes(held.part(i)) for i in range(len(held.layout.parts))])
        assert held.release()
    assert published[0] == published[1]


def test_nothing_is_kept_before_it_is_asked_for(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    first = e.prefill(ids, CUTS, "splice", keep=False)
    assert e.prefill(ids, CUTS, "splice", keep=False).captured == 180
    assert e.store(first) == [Code.OK] * 3
    assert e.store(first) == []
    assert e.prefill(ids, CUTS, "splice").captured == 0


def test_an_adapter_that_is_loaded_later_ends_reuse(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    left = e.prefill(tokens(200, seed=2), CUTS, "splice", keep=False)
    at = model.model.layers[3].self_attn
    at.v_proj = torch.nn.Sequential(at.v_proj, torch.nn.Linear(32, 32))
    done = e.prefill(ids, CUTS, "splice")
    assert "v_proj is a Sequential" in done.trouble
    assert "v_proj is a Sequential" in e.inert
    assert done.reused == 0
    assert far(done.logits, own(model, ids)) <= 1e-4
    assert e.store(left) == []


@pytest.mark.parametrize("w", [0, 8, 100])
def test_every_question_is_one_that_is_taken(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, w: int
) -> None:
    """Prompts of 1 token and more, of whole blocks, and cuts closer than seams."""
    rng = random.Random(w)
    e = engine(model, connect, daemon, settings=HFSettings(seam_tokens=w))
    client = e._reuse.model if e._reuse is not None else None
    assert client is not None
    for n in (1, 2, 3, w + 1, 15, 16, 17, 2 * w + 1, 128, 200):
        ids = tokens(n, seed=n % 3)
        cuts = sorted(rng.sample(range(n), min(n, rng.choice((2, 3, 30)))))
        for mode in ("prefix", "splice"):
            assert e.prefill(ids, cuts, mode).trouble == ""
    assert client._keeper.tally.snapshot().invalid == 0


def test_who_asked_is_told_that_there_is_no_advice(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon, settings=HFSettings())
    monkeypatch.setattr(Model, "advise", lambda *_: None)
    for mode in ("prefix", "splice"):
        assert e.prefill(tokens(60), [0, 40], mode).trouble == UNADVISED


@pytest.mark.parametrize(
    ("way", "splice", "wanted", "taken"),
    [
        (Way.SPLICE, 3, False, [True, True, True]),
        (Way.SPLICE, 1, True, [True, False, False]),
        (Way.PREFIX, 3, True, [False, False, False]),
        (Way.PREFIX, None, True, [True, True, True]),
        (Way.PREFIX, None, False, [False, False, False]),
    ],
)
def test_segments_are_taken_as_far_as_the_daemon_advises(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    way: Way,
    splice: int | None,
    wanted: bool,
    taken: list[bool],
) -> None:
    reuse = engine(model, connect, daemon)._serving()
    assert reuse is not None
    prompt = divide(reuse.profile, b"", tokens(200), CUTS, 8)
    assert len(prompt.pieces) == 3
    said = Advice(0, way, (1.0,) * 4, (), (), splice)
    found = hf_reuse.Found([], Match(), said)
    assert found.takes(prompt, wanted, everything=False) == taken
    assert all(found.takes(prompt, wanted, everything=True))


def test_walks_and_captures_are_reported(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, reported = engine(model, connect, daemon), list[object]()
    advise = Model.advise

    def listen(self: Model, query: Query) -> Advice | None:
        reported.extend(query.samples)
        return advise(self, query)

    monkeypatch.setattr(Model, "advise", listen)
    first = e.prefill(tokens(200), CUTS, "splice")
    second = e.prefill([7, *tokens(200)], [1, *(cut + 1 for cut in CUTS[1:])], "splice")
    e.prefill(tokens(60, seed=9), (), "prefix")
    captures = [one for one in reported if isinstance(one, CaptureTiming)]
    walks = [one for one in reported if isinstance(one, WalkTiming)]
    assert sum(one.tokens for one in captures) == first.captured + second.captured
    assert len(walks) == 2
    assert all(one.placed > 0 and one.seconds > 0 for one in walks)


def test_another_revision_of_the_weights_shares_nothing(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    engine(model, connect, daemon).prefill(tokens(200), CUTS, "splice")
    for naming in (Naming(b"\x08" * 32), Naming(NAMING.weights, adapter="lora")):
        other = engine(model, connect, daemon, naming)
        assert other.prefill(tokens(200), CUTS, "splice", keep=False).captured == 180


@pytest.mark.parametrize("mode", ["prefix", "splice"])
def test_no_daemon_costs_nothing_but_its_help(
    mode: Mode, model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    daemon.stop()
    client = connect(daemon.socket)
    e = SplicedTransformers(model, client, NAMING, HFSettings(keep_all=True))
    ids = tokens(200)
    done = e.prefill(ids, CUTS, mode)
    assert done.reused == 0
    assert done.trouble
    assert far(done.logits, own(model, ids)) <= 1e-4
    with pytest.raises(PlanError):
        e.prefill(ids, [0, 500], mode)


@pytest.mark.parametrize("mode", ["prefix", "splice"])
def test_a_daemon_killed_amid_a_request_does_not_change_the_answer(
    mode: Mode,
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, mode)
    warm = e.prefill(ids, CUTS, mode)
    assert warm.reused > 0
    where, name = (hf_reuse, "restore") if mode == "prefix" else (composing, "unpack")
    original = getattr(where, name)

    alive = [True]

    def killing(*arguments: object) -> object:
        out = original(*arguments)
        if alive:
            alive.clear()
            daemon.kill()
        return out

    monkeypatch.setattr(where, name, killing)
    amid = e.prefill(ids, CUTS, mode)
    monkeypatch.setattr(where, name, original)
    # Either the leased bytes were good to the end, or nothing of them was used.
    want = warm.logits if amid.reused else own(model, ids)
    assert far(amid.logits, want) <= 1e-4
    after = e.prefill(ids, CUTS, mode)
    assert after.reused == 0
    assert after.trouble
    assert far(after.logits, own(model, ids)) <= 1e-4


@pytest.mark.parametrize("mode", ["prefix", "splice"])
def test_bytes_of_a_lease_that_ended_early_are_not_used(
    mode: Mode,
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, mode)

    def too_late(held: list[Held]) -> list[bool]:
        release_all(held)
        return [False] * len(held)

    monkeypatch.setattr(hf_reuse, "release_all", too_late)
    monkeypatch.setattr(Held, "release", lambda held: too_late([held])[0])
    done = e.prefill(ids, CUTS, mode, keep=False)
    assert done.reused == 0
    assert far(done.logits, own(model, ids)) <= 1e-4
    assert continued(model, ids, done) == answer(model, ids)


def test_segments_that_are_gone_between_match_and_acquire_are_computed(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    acquire = hf_reuse.Reuse.acquire

    def without_the_second(self: hf_reuse.Reuse, *arguments: object) -> object:
        held, pages = acquire(self, *arguments)  # type: ignore[arg-type]
        held.pop(1).release()
        return held, pages

    monkeypatch.setattr(hf_reuse.Reuse, "acquire", without_the_second)
    done = e.prefill(ids, CUTS, "splice")
    assert (done.captured, done.reused, done.computed) == (0, 104, 96)
    # The third segment alone is spliced, behind what a full prefill gives.
    assert far(done.logits, own(model, ids)) < own(model, ids).abs().max() / 3


def test_what_the_daemon_advises_against_is_computed_in_context(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = engine(model, connect, daemon)
    monkeypatch.setattr(hf_reuse.Found, "wanted", lambda self, prompt, everything: [False] * 3)
    ids = tokens(200)
    done = e.prefill(ids, CUTS, "splice")
    assert (done.captured, done.reused) == (0, 0)
    assert far(done.logits, own(model, ids)) <= 1e-4


@pytest.mark.parametrize(("bound", "off"), [(10.0, False), (1e-9, True)])
def test_a_canary_that_is_beyond_its_bound_ends_splicing(
    bound: float, off: bool, model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    settings = HFSettings(keep_all=True, canary_share=0.5, canary_bound=bound)
    e = engine(model, connect, daemon, settings=settings)
    ids = tokens(200)
    for _ in range(3):
        e.prefill(ids, CUTS, "splice")
        e.generate(ids, CUTS, "splice", max_new_tokens=2)
    last = e.prefill(ids, CUTS, "splice")
    assert ("canary" in last.trouble) == off
    assert (last.reused == 0) == off
    assert last.approximate != off
    # Another engine hears of it from the daemon.
    other = engine(model, connect, daemon).prefill(ids, CUTS, "splice", keep=False)
    assert (other.reused == 0) == off


def test_a_model_without_arithmetic_here_is_served_as_it_is(
    connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    model = qwen_next()
    model.config.model_type = "rwkv"
    e = engine(model, connect, daemon)
    ids = tokens(50)
    done = e.prefill(ids, [0, 30], "splice")
    assert e.inert
    assert e.inert in done.trouble
    assert sum("without reuse" in r.message for r in caplog.records) == 1
    assert far(done.logits, own(model, ids)) <= 1e-6


def test_a_model_without_a_place_at_the_daemon_says_so_once(
    model: PreTrainedModel,
    connect: Connect,
    start_daemon: StartDaemon,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection gets four of eight."""
    client = connect(start_daemon("-max-profiles=8").socket, attach_timeout=20.0)
    assert client.wait_attached(20)
    served = [
        SplicedTransformers(model, client, replace(NAMING, weights=bytes([i + 1] * 32)))
        for i in range(5)
    ]
    ids = tokens(50)
    for _ in range(4):
        done = served[-1].prefill(ids, (), "prefix")
        assert "4 profiles of one connection are registered" in done.trouble
        assert far(done.logits, own(model, ids)) <= 1e-4
    assert sum("without reuse" in r.message for r in caplog.records) == 1
    assert served[0].prefill(ids, (), "prefix").trouble == ""
