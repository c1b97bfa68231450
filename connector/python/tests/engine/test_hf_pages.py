"""Segments that attention reads in the daemon's memory, by several requests at once."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import time
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, NAMING, WARMING, answer, continued, engine, far, own, tokens
from engine.hybrids import MODELS, qwen35
from engine.walk_models import TINY
from running import Daemon
from spliced_connector.client import Accept
from spliced_connector.hf import Prefilled, paged
from spliced_connector.hf.paged import PagedLayer
from spliced_connector.walk import GoneError

pytestmark = pytest.mark.engine

IN_PLACE = dataclasses.replace(WARMING, in_place=True)
BOUND = 1e-4
"""What logits of order 1 differ by between keys turned to their places and queries turned back, in
float32."""


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def paged_layers(done: Prefilled) -> list[PagedLayer]:
    return [layer for layer in done.cache.layers if isinstance(layer, PagedLayer)]


def bamba() -> PreTrainedModel:
    """Its own forward begins at position 0 behind any cache, unless it is told positions."""
    settings = {**TINY["bamba"].settings, "time_step_limit": (0.0, math.inf)}
    model = replace(TINY["bamba"], settings=settings).build()
    model.set_attn_implementation("sdpa")
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize("name", [*sorted(MODELS), "bamba"])
def test_reading_in_place_is_reading_copies(name: str, connect: Connect, daemon: Daemon) -> None:
    copying, inplace = (
        engine(bamba() if name == "bamba" else MODELS[name](), connect, daemon, settings=settings)
        for settings in (WARMING, IN_PLACE)
    )
    assert inplace._reuse is not None
    assert inplace._reuse.in_place or name != "bamba"
    ids = [t % 96 for t in tokens(200)]
    copying.prefill(ids, CUTS, "splice")
    want = copying.prefill(ids, CUTS, "splice")
    got = inplace.prefill(ids, CUTS, "splice")
    assert got.reused == want.reused == 148
    assert far(got.logits, want.logits) <= BOUND
    layers = paged_layers(got)
    if not layers:
        pytest.skip("no layer of full attention whose rows can be read in place")
    assert all(layer.rows.shared_bytes > layer.rows.own_bytes for layer in layers)
    assert continued(inplace.model, ids, got) == continued(copying.model, ids, want)
    assert got.good
    out = inplace.generate(ids, CUTS, "splice", max_new_tokens=12, do_sample=False)
    assert torch.equal(
        out, copying.generate(ids, CUTS, "splice", max_new_tokens=12, do_sample=False)
    )
    assert got.release()


def test_rows_of_16_bits_are_as_good_as_copies(connect: Connect, daemon: Daemon) -> None:
    made = [qwen35().to(torch.bfloat16) for _ in range(2)]
    naming = dataclasses.replace(NAMING, weights=b"\x08" * 32)
    copying = engine(made[0], connect, daemon, naming)
    inplace = engine(made[1], connect, daemon, naming, IN_PLACE)
    ids = tokens(200)
    copying.prefill(ids, CUTS, "splice")
    want, got = (e.prefill(ids, CUTS, "splice").logits.float() for e in (copying, inplace))
    exact = engine(qwen35(), connect, daemon)
    exact.prefill(ids, CUTS, "splice")
    right = exact.prefill(ids, CUTS, "splice").logits
    assert far(got, right) <= 1.5 * far(want, right) + 1e-3


def test_what_is_stored_late_disturbs_nobody(connect: Connect, daemon: Daemon) -> None:
    settings = dataclasses.replace(IN_PLACE, canary_share=1.0, canary_bound=100.0)
    e, plain = (
        engine(qwen35(), connect, daemon, settings=settings),
        engine(qwen35(), connect, daemon),
    )
    ids = tokens(200, seed=9)
    plain.prefill(ids, CUTS, "splice")
    want = plain.prefill(ids, CUTS, "splice")
    done = e.prefill(ids, CUTS, "splice", keep=False)
    line = continued(plain.model, ids, want, 12)
    out = [int(done.logits.argmax())]
    for at in range(11):
        if at == 4:
            e.store(done)  # the canary goes on from the prompt's end
        with torch.no_grad():
            step = e.model(torch.tensor([out[-1:]]), past_key_values=done.cache, use_cache=True)
        out.append(int(step.logits[0, -1].argmax()))
    assert out == line
    positions = paged_layers(done)[0].rows.positions
    assert positions[-11:].tolist() == list(range(200, 211)), "rows of the answer are lost"


def test_rows_that_are_gone_are_in_no_checkpoint(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200, seed=10)
    e.prefill(ids, CUTS, "splice", accept=Accept.ANY)
    done = e.prefill(ids[:190] + tokens(10, seed=11), CUTS, "splice", accept=Accept.ANY, keep=False)
    assert done.walked is not None and done.walked.kept is not None
    assert done.walked.kept.checkpoints, "nothing was to be stored"
    assert done.release()
    assert e.store(done) == []
    assert "checkpoints were not stored" in caplog.text
    with pytest.raises(GoneError), torch.no_grad():
        model(torch.tensor([[1]]), past_key_values=done.cache, use_cache=True)


def test_a_batch_is_refused(model: PreTrainedModel, connect: Connect, daemon: Daemon) -> None:
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    done = e.prefill(ids, CUTS, "splice")
    with pytest.raises(ValueError, match="one line"):
        paged_layers(done)[0].update(torch.zeros(2, 2, 1, 16), torch.zeros(2, 2, 1, 16))


def test_requests_share_one_copy_at_places_of_their_own(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    plain = engine(qwen35(), connect, daemon)
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200)
    orders = [
        ids,
        [*ids[120:180], *ids[60:120], *ids[:60], *ids[180:]],
        [*ids[60:180], *ids[:60], *ids[180:]],
    ]
    for one in orders:
        plain.prefill(one, CUTS, "splice")  # all of them are there, first and not
    wants = [plain.prefill(one, CUTS, "splice") for one in orders]
    gots = [e.prefill(one, CUTS, "splice") for one in orders]
    views = [x.data_ptr() for done in gots for x in paged_layers(done)[0].rows.segments()]
    assert len(set(views)) < len(views), "no two requests read the same rows"
    lines: list[list[list[int]]] = [
        [[int(d.logits.argmax())] for d in each] for each in (gots, wants)
    ]
    for _ in range(6):
        for engine_lines, each, m in zip(lines, (gots, wants), (model, plain.model), strict=True):
            for line, done in zip(engine_lines, each, strict=True):
                with torch.no_grad():
                    step = m(torch.tensor([line[-1:]]), past_key_values=done.cache, use_cache=True)
                line.append(int(step.logits[0, -1].argmax()))
    assert lines[0] == lines[1]
    assert all(done.good for done in gots)


def test_behind_a_prefix_and_with_the_canary(connect: Connect, daemon: Daemon) -> None:
    settings = dataclasses.replace(IN_PLACE, canary_share=1.0, canary_bound=100.0)
    e = engine(qwen35(), connect, daemon, settings=settings)
    plain = engine(qwen35(), connect, daemon)
    ids, cuts = tokens(230, seed=3), [40, 100, 160, 220]
    for one in (plain, e):
        one.prefill(ids[:48], (), "prefix")
        one.prefill(ids, cuts, "splice")
    want, got = plain.prefill(ids, cuts, "splice"), e.prefill(ids, cuts, "splice")
    assert got.reused == want.reused > 0
    assert far(got.logits, want.logits) <= BOUND


def test_a_daemon_that_dies_leaves_its_memory(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    plain = engine(qwen35(), connect, daemon)
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200, seed=5)
    plain.prefill(ids, CUTS, "splice")
    want = continued(plain.model, ids, plain.prefill(ids, CUTS, "splice"))
    done = e.prefill(ids, CUTS, "splice")
    assert paged_layers(done)
    daemon.kill()
    assert continued(model, ids, done) == want


def test_copies_are_taken_before_leases_end(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engine(qwen35(), connect, daemon)
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200, seed=6)
    plain.prefill(ids, CUTS, "splice")
    want = continued(plain.model, ids, plain.prefill(ids, CUTS, "splice"))
    done = e.prefill(ids, CUTS, "splice")
    before = paged_layers(done)[0].rows.segments()[0].data_ptr()
    now = time.monotonic() + paged.LIFE * 0.6
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert continued(model, ids, done) == want
    assert paged_layers(done)[0].rows.segments()[0].data_ptr() != before
    assert done.good
    # Beyond their life, and nothing was copied: not to be believed.
    late = e.prefill(ids, CUTS, "splice")
    now += paged.LIFE * 1.1
    assert not late.good
    del late
    gc.collect()


def test_a_life_that_the_daemon_refuses_costs_the_sharing(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon, settings=IN_PLACE)
    ids = tokens(200, seed=7)
    e.prefill(ids, CUTS, "splice")
    from spliced_connector.hf import reuse

    monkeypatch.setattr(reuse, "LIFE", 3600.0)  # max-lease-ttl is 10 minutes
    done = e.prefill(ids, CUTS, "splice")
    assert done.reused == 148


def test_a_model_that_cannot_says_so(
    connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    eager = qwen35()
    eager.set_attn_implementation("eager")
    with caplog.at_level(logging.WARNING):
        e = engine(eager, connect, daemon, settings=IN_PLACE)
    assert "are copied: its attention is eager" in caplog.text
    ids = tokens(200, seed=8)
    e.prefill(ids, CUTS, "splice")
    assert not paged_layers(e.prefill(ids, CUTS, "splice"))
    assert far(own(eager, ids), own(qwen35(), ids)) <= BOUND
    assert len(answer(eager, ids)) == 12
