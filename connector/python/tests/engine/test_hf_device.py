"""transformers with memory of a GPU that the daemon lends, on the driver without a GPU.

There device memory is host memory, so that a model on the CPU can be what a model on the GPU is to
a real one: the leases, the kernels, and the order behind the engine's stream are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect, wait_until
from engine.hf_requests import CUTS, NAMING, WARMING, answer, continued, engine, far, own, tokens
from engine.hybrids import MODELS, qwen35
from gpu_samples import attached
from running import Daemon, StartDaemon
from spliced_connector.client import DeviceSpan, device_splice, release_after
from spliced_connector.client.device_lease import DeviceHeld
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import AttendJob, Stream, attend_scratch
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf import paged as hf_paged
from spliced_connector.hf.adapter import Mode
from spliced_connector.hf.device import lent as hf_lent
from spliced_connector.hf.device import placing as hf_placing
from spliced_connector.hf.device import reader as hf_reader
from spliced_connector.hf.paged import PagedLayer
from spliced_connector.model import Profile
from spliced_connector.walk import GoneError
from spliced_connector.walk.run import COMPOSED

pytestmark = pytest.mark.engine

HBM = replace(WARMING, device_is_host_memory=True)


def copies(daemon: Daemon, kind: str) -> float:
    """Leases of copies on the GPU that were there."""
    return daemon.gpus("spliced_hbm_leases_total", kind=kind, result="hit")


@pytest.fixture
def daemon(start_gpu_daemon: StartDaemon) -> Daemon:
    return start_gpu_daemon("-hbm-page-bytes=4KiB")


def on_device(
    model: PreTrainedModel, connect_gpu: Connect, daemon: Daemon, settings: HFSettings = HBM
) -> SplicedTransformers:
    e = engine(model, connect_gpu, daemon, NAMING, settings)
    assert e._reuse is not None and e._reuse.lent is not None
    attached(e._reuse.lent._client)
    assert e.device_state == ""
    return e


def promoted(e: SplicedTransformers, ids: list[int], tokens: int) -> None:
    """Ask until all that is held of a prompt has a copy on the GPU."""
    wait_until(lambda: e.prefill(ids, CUTS, "splice").on_device == tokens)


def in_place(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, ids: list[int]
) -> tuple[SplicedTransformers, SplicedTransformers]:
    """Engines of one model: over memory of the host, and one that reads rows on the GPU where they
    lie. What is held of the prompt has copies there."""
    host = engine(qwen35(), connect, daemon)
    hbm = on_device(qwen35(), connect_gpu, daemon, replace(HBM, in_place=True))
    host.prefill(ids, CUTS, "splice")
    promoted(hbm, ids, 148)
    return host, hbm


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_splice_from_the_gpu_is_the_one_from_memory(
    name: str, connect_gpu: Connect, connect: Connect, daemon: Daemon
) -> None:
    model = MODELS[name]()
    host, hbm = engine(model, connect, daemon), on_device(model, connect_gpu, daemon)
    ids = tokens(200)
    host.prefill(ids, CUTS, "splice")
    promoted(hbm, ids, 148)
    moved = [*tokens(60, seed=4), *ids[120:180], *ids[60:120], *ids[180:]]
    host.prefill(moved, CUTS, "splice")
    promoted(hbm, moved, 148)
    before = copies(daemon, "segment")
    for prompt in (ids, moved):
        want, got = (e.prefill(prompt, CUTS, "splice") for e in (host, hbm))
        assert (got.reused, got.on_device, got.computed) == (148, 148, 52)
        assert (want.reused, want.on_device) == (148, 0)
        assert got.approximate and not got.trouble
        assert far(got.logits, want.logits) <= 1e-5
        assert continued(model, prompt, got) == continued(model, prompt, want)
    assert copies(daemon, "segment") - before == 6


@pytest.mark.parametrize("query", [1, 40, 150])
def test_many_segments_and_a_long_question_are_moved_over_in_turns(
    query: int,
    connect_gpu: Connect,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More segments than one launch takes, and rows that are no short run."""
    model = qwen35()
    host, hbm = engine(model, connect, daemon), on_device(model, connect_gpu, daemon)
    texts = [tokens(30, seed=seed) for seed in range(11)]
    cuts = list(range(0, 331, 30))

    def prompt(order: Sequence[int]) -> list[int]:
        return [t for i in order for t in texts[i]] + tokens(query, seed=99)

    host.prefill(prompt(range(11)), cuts, "splice")
    moved = prompt([0, *range(10, 0, -1)])
    host.prefill(moved, cuts, "splice")
    wait_until(lambda: hbm.prefill(moved, cuts, "splice").on_device >= 10 * 14)
    want = host.prefill(moved, cuts, "splice")
    moves: list[int] = []
    compose = device_splice.compose

    def counted(stream: Stream, profile: Profile, spans: Sequence[DeviceSpan], *rest: Any) -> None:
        moves.append(sum(span.segment is not None for span in spans))
        compose(stream, profile, spans, *rest)

    monkeypatch.setattr(hf_placing, "compose", counted)
    got = hbm.prefill(moved, cuts, "splice")
    assert got.on_device == got.reused == want.reused and not got.trouble
    layers = len(moves) // 2
    assert moves == [COMPOSED, 11 - COMPOSED] * layers and layers == 3
    assert far(got.logits, want.logits) <= 1e-5
    assert continued(model, moved, got) == continued(model, moved, want)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_on_the_gpu_are_read_where_they_lie(
    name: str, connect_gpu: Connect, connect: Connect, daemon: Daemon
) -> None:
    """By kernels, and by several requests at other positions at once; decoding goes on there."""
    model = MODELS[name]()
    host = engine(model, connect, daemon)
    ids = tokens(200)
    host.prefill(ids, CUTS, "splice")
    moved = [*tokens(60, seed=4), *ids[120:180], *ids[60:120], *ids[180:]]
    host.prefill(moved, CUTS, "splice")
    wants = [(p, host.prefill(p, CUTS, "splice")) for p in (ids, moved)]
    lines = [continued(model, p, want) for p, want in wants]
    hbm = on_device(MODELS[name](), connect_gpu, daemon, replace(HBM, in_place=True))
    for p, _ in wants:
        promoted(hbm, p, 148)
    gots = [hbm.prefill(p, CUTS, "splice") for p, _ in wants]
    for (prompt, want), got, line in zip(wants, gots, lines, strict=True):
        assert (got.reused, got.on_device, got.computed) == (148, 148, 52) and not got.trouble
        assert far(got.logits, want.logits) <= 1e-4
        assert continued(hbm.model, prompt, got) == line
    layers = [x for got in gots for x in got.cache.layers if isinstance(x, PagedLayer)]
    if not layers:
        pytest.skip("no layer of full attention whose rows can be read in place")
    for layer in layers:
        assert layer.rows.pages.reader is not None
        assert layer.rows.shared_bytes > layer.rows.own_bytes
    addresses = [{x.data_ptr() for x in layer.rows.segments()} for layer in layers]
    n = len(layers) // 2
    for first, second in zip(addresses[:n], addresses[n:], strict=True):
        assert len(first & second) == 4, "keys and values of the two segments in common"
    out = hbm.generate(ids, CUTS, "splice", max_new_tokens=12, do_sample=False)
    assert out[0, 200:].tolist() == lines[0]
    assert all(got.good and got.release() for got in gots)


def test_rows_are_copied_where_some_lie_elsewhere(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(200)
    host, hbm = in_place(connect_gpu, connect, daemon, ids)
    mixed = [*ids[:120], *tokens(60, seed=8), *ids[180:]]
    host.prefill(mixed, CUTS, "splice")
    done = hbm.prefill(mixed, CUTS, "splice")
    assert done.reused == 148 and not done.trouble
    lying = [layer for layer in done.cache.layers if isinstance(layer, PagedLayer)]
    assert (done.loan is None) == (not lying) == (done.on_device < 148)
    assert far(done.logits, host.prefill(mixed, CUTS, "splice").logits) <= 1e-4
    monkeypatch.setattr(hf_lent, "SEGMENTS", 2)
    promoted(hbm, ids, 148)
    assert hbm.prefill(ids, CUTS, "splice").loan is None, "more than are worth it"


def test_rows_on_a_gpu_that_is_gone_have_the_answer_computed(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    hbm = on_device(qwen35(), connect_gpu, daemon, replace(HBM, in_place=True))
    ids = tokens(200)
    hbm.prefill(ids, CUTS, "splice")
    promoted(hbm, ids, 148)
    want = answer(qwen35(), ids)

    def refused(*_: object) -> None:
        raise SplicedError(Code.UNAVAILABLE, "of the driver")

    done = hbm.prefill(ids, CUTS, "splice")
    monkeypatch.setattr(hf_reader, "attend_launches", refused)
    with pytest.raises(GoneError, match="of the driver"), torch.no_grad():
        hbm.model(torch.tensor([[1]]), past_key_values=done.cache, use_cache=True)
    again = hbm.prefill(ids, CUTS, "splice")
    assert "of the driver" in again.trouble and again.computed == 200
    out = hbm.generate(ids, CUTS, "splice", max_new_tokens=12, do_sample=False)
    assert out[0, 200:].tolist() == want


def test_rows_on_the_gpu_outlast_their_leases_as_copies(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(200)
    host, hbm = in_place(connect_gpu, connect, daemon, ids)
    want = continued(host.model, ids, host.prefill(ids, CUTS, "splice"))
    done = hbm.prefill(ids, CUTS, "splice")
    assert done.loan is not None
    done.loan._until -= hf_paged.LIFE / 2 + 1
    assert continued(hbm.model, ids, done) == want
    assert done.loan._copied and done.good
    before = done.cache.get_seq_length()
    daemon.stop()  # the kernels outlast it, as the copies do
    with torch.no_grad():
        step = hbm.model(torch.tensor([[want[-1]]]), past_key_values=done.cache, use_cache=True)
    assert step.logits.isfinite().all() and done.cache.get_seq_length() == before + 1


def test_much_to_attend_over_takes_turns(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(300)
    host, hbm = in_place(connect_gpu, connect, daemon, ids)
    want = host.prefill(ids, CUTS, "splice").logits
    launched = []
    launch = hf_reader.Reader._launch

    def counted(self: hf_reader.Reader, jobs: Sequence[AttendJob], device: torch.device) -> None:
        launched.append(jobs)
        assert attend_scratch(jobs) <= hf_reader.SCRATCH
        launch(self, jobs, device)

    monkeypatch.setattr(hf_reader.Reader, "_launch", counted)
    assert far(hbm.prefill(ids, CUTS, "splice").logits, want) <= 1e-4
    few = len(launched)
    launched.clear()
    monkeypatch.setattr(hf_reader, "SCRATCH", 64 << 10)
    assert far(hbm.prefill(ids, CUTS, "splice").logits, want) <= 1e-4
    assert len(launched) > 2 * few
    assert max(job.rows for jobs in launched for job in jobs) < 100


def test_a_prefix_from_the_gpu_gives_the_tokens_that_no_cache_gives(
    connect_gpu: Connect, connect: Connect, daemon: Daemon
) -> None:
    model = qwen35()
    host, hbm = engine(model, connect, daemon), on_device(model, connect_gpu, daemon)
    ids = tokens(230)
    host.prefill(ids, CUTS, "prefix")
    before = copies(daemon, "checkpoint")
    warm = hbm.prefill(ids, CUTS, "prefix")
    assert warm.reused >= 160 and warm.on_device == warm.reused
    assert copies(daemon, "checkpoint") == before + 1
    assert far(warm.logits, own(model, ids)) <= 1e-4
    assert continued(model, ids, warm) == answer(model, ids)
    out = hbm.generate(ids, CUTS, "prefix", max_new_tokens=12, do_sample=False)
    assert out[0, 230:].tolist() == answer(model, ids)


def test_what_has_no_copy_yet_is_read_from_memory(
    connect_gpu: Connect, connect: Connect, daemon: Daemon
) -> None:
    model = qwen35()
    host, hbm = engine(model, connect, daemon), on_device(model, connect_gpu, daemon)
    ids = tokens(200)
    want = host.prefill(ids, CUTS, "splice")
    promoted(hbm, ids, 148)
    mixed = [*ids[:120], *tokens(60, seed=8), *ids[180:]]
    host.prefill(mixed, CUTS, "splice")
    done = hbm.prefill(mixed, CUTS, "splice")
    # The new one is on its way, or has arrived: some from the GPU, in any case all of them reused.
    assert done.reused == 148 and 96 <= done.on_device <= 148
    assert far(done.logits, host.prefill(mixed, CUTS, "splice").logits) <= 1e-5
    assert far(hbm.prefill(ids, CUTS, "splice").logits, want.logits) <= 1e-5


def test_a_launch_that_is_refused_has_the_prompt_computed(
    connect_gpu: Connect, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen35()
    e = on_device(model, connect_gpu, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    promoted(e, ids, 148)

    def refused(*_: object) -> None:
        raise SplicedError(Code.UNAVAILABLE, "of the driver")

    for name in ("place", "compose"):
        with monkeypatch.context() as patch:
            patch.setattr(hf_placing, name, refused)
            done = e.prefill(ids, CUTS, "splice")
        assert "of the driver" in done.trouble and (done.reused, done.computed) == (0, 200)
        assert far(done.logits, own(model, ids)) <= 1e-4
    assert e.prefill(ids, CUTS, "splice").on_device == 148, "leases were lost"


def test_a_lease_that_ended_early_has_the_prompt_computed(
    connect_gpu: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen35()
    e = on_device(model, connect_gpu, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    promoted(e, ids, 148)

    class Bad:
        """Of leases that the daemon had ended before the stream had passed."""

        good = (False,)

        def wait(self, _: float) -> bool:
            return True

    def ended(stream: Stream, held: list[DeviceHeld]) -> Bad:
        passing = release_after(stream, held)
        assert passing is not None and passing.wait(20)
        return Bad()

    with monkeypatch.context() as patch:
        patch.setattr(hf_lent, "release_after", ended)
        modes: tuple[Mode, ...] = ("splice", "prefix")
        for mode in modes:
            done = e.prefill(ids, CUTS, mode)
            assert done.on_device == 0
            assert far(done.logits, own(model, ids)) <= 1e-4
    assert e.prefill(ids, CUTS, "splice").on_device > 0


def test_a_daemon_that_dies_or_has_no_gpu_costs_the_copies_only(
    connect_gpu: Connect, daemon: Daemon, start_daemon: StartDaemon
) -> None:
    model = qwen35()
    ids = tokens(200)
    bare = engine(model, connect_gpu, start_daemon(), NAMING, HBM)
    bare.prefill(ids, CUTS, "splice")
    done = bare.prefill(ids, CUTS, "splice")
    assert (done.reused, done.on_device) == (148, 0) and "shares none" in bare.device_state
    e = on_device(model, connect_gpu, daemon)
    e.prefill(ids, CUTS, "splice")
    promoted(e, ids, 148)
    daemon.kill()
    lost = e.prefill(ids, CUTS, "splice")
    assert (lost.reused, lost.computed) == (0, 200) and lost.trouble
    assert far(lost.logits, own(model, ids)) <= 1e-4


def test_a_model_that_lies_elsewhere_or_counts_otherwise_reads_memory(
    connect_gpu: Connect, daemon: Daemon
) -> None:
    apart = engine(qwen35(), connect_gpu, daemon)
    assert apart.device_state == "the model is on cpu"
    wide = engine(qwen35().to(torch.float64), connect_gpu, daemon, NAMING, HBM)
    assert "float64" in wide.device_state
    ids = tokens(200)
    for e in (apart, wide):
        e.prefill(ids, CUTS, "splice")
        assert e.prefill(ids, CUTS, "splice").on_device == 0
