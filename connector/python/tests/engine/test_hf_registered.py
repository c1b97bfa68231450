"""Rows of spliced prompts that the daemon's own kernels write into memory of the engine's.

On the driver without a GPU, as `test_hf_device`: device memory is host memory there.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from client_samples import SMALL, Connect, limited, wait_until
from engine.hf_requests import (
    CUTS,
    NAMING,
    WARMING,
    behind_prefix,
    continued,
    engine,
    exchanged,
    far,
    ids_of,
    tokens,
)
from engine.hybrids import MODELS, qwen35
from engine.walk_models import TINY
from fake_cuda import FakeCuda
from gpu_samples import attached, memory_of
from running import Daemon, StartDaemon
from spliced_connector.client import Client, Model, Placed
from spliced_connector.errors import Code
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf.device import Registered
from spliced_connector.serving.composing import TRIALS, Composed
from spliced_connector.walk import Architecture, Context
from spliced_connector.wire import Op, RegisterDeviceReply, RegisterDeviceRequest, ShareWay

pytestmark = pytest.mark.engine

HBM = replace(WARMING, device_is_host_memory=True)
WRITTEN = replace(HBM, compute="daemon", registered_mib=1)
SHAPES: dict[str, Callable[[], PreTrainedModel]] = {
    **MODELS,
    **{name: TINY[name].build for name in ("bamba", "kimi", "minimax", "zamba2")},
}


@pytest.fixture
def daemon(start_gpu_daemon: StartDaemon) -> Daemon:
    return start_gpu_daemon("-hbm-page-bytes=4KiB")


def client_of(e: SplicedTransformers) -> Client:
    assert e._reuse is not None and e._reuse.lent is not None
    return e._reuse.lent._client


def on_device(
    model: PreTrainedModel, connect_gpu: Connect, daemon: Daemon, settings: HFSettings
) -> SplicedTransformers:
    e = engine(model, connect_gpu, daemon, NAMING, settings)
    attached(client_of(e))
    assert e.device_state == ""
    return e


def writing(
    model: PreTrainedModel, connect_gpu: Connect, daemon: Daemon, settings: HFSettings = WRITTEN
) -> SplicedTransformers:
    """An engine whose memory the daemon has."""
    e = on_device(model, connect_gpu, daemon, settings)
    wait_until(lambda: e.written_state == "")
    return e


def pair(
    model: PreTrainedModel, connect_gpu: Connect, daemon: Daemon, seam: int = 8
) -> tuple[SplicedTransformers, SplicedTransformers]:
    """Two of one model: which launches kernels in this process, and which has the daemon write."""
    here = on_device(model, connect_gpu, daemon, replace(HBM, seam_tokens=seam))
    return here, writing(model, connect_gpu, daemon, replace(WRITTEN, seam_tokens=seam))


def promoted(e: SplicedTransformers, ids: list[int], cuts: list[int] = CUTS) -> None:
    """Asks until all that is held of a prompt has a copy on the GPU."""
    e.prefill(ids, cuts, "splice")

    def there() -> bool:
        done = e.prefill(ids, cuts, "splice")
        return done.on_device == done.reused > 0

    wait_until(there)


def awaited(connect_gpu: Connect, daemon: Daemon) -> tuple[SplicedTransformers, list[int], Tensor]:
    """An engine whose memory the daemon has, a prompt whose segments are on the GPU, and the logits
    of one that launches kernels itself."""
    here, there = pair(qwen35(), connect_gpu, daemon)
    ids = tokens(200)
    promoted(here, ids)
    return there, ids, here.prefill(ids, CUTS, "splice").logits


def rows_of(e: SplicedTransformers, ids: list[int], cuts: list[int]) -> list[Tensor]:
    """Keys and values of a spliced prompt."""
    done = e.prefill(ids, cuts, "splice", keep=False)
    assert done.walked is not None and not done.trouble
    assert done.on_device == done.reused > 0
    context = done.walked.context
    layers = [i for i, at in enumerate(context.layers) if at.k is not None]
    return [x for i in layers for x in context.rows(i)]


@pytest.mark.parametrize("seam", [0, 8])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_daemon_writes_what_the_engine_launches(
    name: str, seam: int, connect_gpu: Connect, daemon: Daemon
) -> None:
    """The kernels are the same ones, and so are the rows of the first layer of attention, to the
    bit where nothing before it was composed in another order."""
    model = SHAPES[name]()
    here, there = pair(model, connect_gpu, daemon, seam)
    ids = ids_of(model, 200)
    for prompt in (ids, exchanged(ids)):
        promoted(here, prompt)
        before = there.composed
        want, got = (e.prefill(prompt, CUTS, "splice") for e in (here, there))
        assert got.reused == got.on_device == want.reused >= 148
        assert not got.trouble
        assert torch.equal(got.logits, want.logits)
        assert continued(model, prompt, got, 4) == continued(model, prompt, want, 4)
        assert there.composed == replace(before, daemon=before.daemon + 1)
    for a, b in zip(rows_of(there, ids, CUTS), rows_of(here, ids, CUTS), strict=True):
        assert torch.equal(a, b)
    assert there.composed.engine == there.composed.refused == here.composed.daemon == 0
    assert not there.composed.reasons


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_one_segment_in_front_is_assembled(
    name: str, connect_gpu: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SHAPES[name]()
    here, there = pair(model, connect_gpu, daemon)
    ids, cuts = ids_of(model, 130), [0, 110]
    promoted(here, ids, cuts)
    place = Model.place
    states: list[bool] = []

    def seen(self: Model, *given: Any, **named: Any) -> Placed:
        states.append(named["states"])
        return place(self, *given, **named)

    monkeypatch.setattr(Model, "place", seen)
    want, got = (e.prefill(ids, cuts, "splice") for e in (here, there))
    assert states == [True] and got.on_device == want.on_device == 110
    assert there.composed == Composed(daemon=1)
    assert far(got.logits, want.logits) <= 2e-5 * float(want.logits.abs().max())
    assert continued(model, ids, got, 4) == continued(model, ids, want, 4)


def test_behind_a_prefix_and_in_an_answer(connect_gpu: Connect, daemon: Daemon) -> None:
    model = qwen35()
    here, there = pair(model, connect_gpu, daemon)
    ids, cuts = behind_prefix(here)
    promoted(here, ids, cuts)
    ids = ids[:-20] + tokens(20, seed=8)
    want = here.prefill(ids, cuts, "splice", keep=False)
    got = there.prefill(ids, cuts, "splice", keep=False)
    assert got.reused == want.reused > 148 and got.on_device == want.on_device
    assert torch.equal(got.logits, want.logits)
    assert there.composed == Composed(daemon=1)
    lines = [
        e.generate(ids, cuts, "splice", max_new_tokens=8, do_sample=False) for e in (here, there)
    ]
    assert torch.equal(*lines)
    assert there.composed == Composed(daemon=2)


def test_the_engine_launches_less(connect_gpu: Connect, daemon: Daemon, cuda: FakeCuda) -> None:
    """Counts calls of the driver in the engine's process for one warm splice. They are the same on
    a GPU, as the adapter makes them; what they take there is a row of the GPU check."""
    here, there = pair(qwen35(), connect_gpu, daemon)
    ids = tokens(200)
    for e in (here, there):
        promoted(e, ids)
    counted = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2")
    made = []
    for e in (here, there):
        before = cuda.calls(*counted)
        done = e.prefill(ids, CUTS, "splice", keep=False)
        assert done.on_device == done.reused >= 148 and not done.trouble
        made.append([after - n for after, n in zip(cuda.calls(*counted), before, strict=True)])
    assert made[1][0] < made[0][0]


def test_auto_measures_both_and_keeps_one(connect_gpu: Connect, daemon: Daemon) -> None:
    model = qwen35()
    here = on_device(model, connect_gpu, daemon, HBM)
    e = writing(model, connect_gpu, daemon, replace(WRITTEN, compute="auto"))
    ids = tokens(200)
    promoted(here, ids)
    want = here.prefill(ids, CUTS, "splice").logits
    for _ in range(TRIALS + 1):
        assert torch.equal(e.prefill(ids, CUTS, "splice").logits, want)
    assert e._reuse is not None and e._reuse.composer.choice is not None
    done = e.composed
    assert done.daemon >= TRIALS <= done.engine and done.daemon + done.engine == 2 * TRIALS + 1


# What cannot be written by the daemon is launched here, and why is counted.


def test_memory_that_cannot_be_exported(
    connect_gpu: Connect, daemon: Daemon, cuda: FakeCuda
) -> None:
    model, ids = qwen35(), tokens(200)
    here = on_device(model, connect_gpu, daemon, HBM)
    promoted(here, ids)
    want = here.prefill(ids, CUTS, "splice").logits
    cuda.fault("FAIL", "cuIpcGetMemHandle:1:1")
    there = on_device(model, connect_gpu, daemon, WRITTEN)
    assert torch.equal(there.prefill(ids, CUTS, "splice").logits, want)
    [(why, n)] = there.composed.reasons.items()
    assert n == 1 and "memory for the daemon to write to" in why and "cuIpcGetMemHandle" in why
    assert there.composed == Composed(engine=1, unasked=1)


def test_a_device_without_room(connect_gpu: Connect, daemon: Daemon, cuda: FakeCuda) -> None:
    client = connect_gpu(daemon.socket, timeout=20.0, attach_timeout=20.0, transfer_timeout=20.0)
    attached(client)  # which also allocates memory
    cuda.fault("FAIL", "cuMemAlloc_v2:1:1")
    e = SplicedTransformers(qwen35(), client, NAMING, WRITTEN)
    ids = tokens(200)
    promoted(e, ids)
    # While segments are being promoted, prompts give that reason.
    reasons = e.composed.reasons
    assert any("cuMemAlloc" in why for why in reasons)
    assert e.composed.engine >= reasons[next(why for why in reasons if "cuMemAlloc" in why)] > 0
    client.close()


def test_a_daemon_that_has_as_many_memories_as_it_takes(
    connect_gpu: Connect, daemon: Daemon
) -> None:
    client = connect_gpu(daemon.socket, timeout=20.0, attach_timeout=20.0, transfer_timeout=20.0)
    device = attached(client)
    other = client.model(SMALL, block_tokens=16)
    wait_until(lambda: other.attached)
    r = other._enrolment.registration
    assert r is not None
    with memory_of(device, 4096) as memory, device.gpu.context.current() as driver:
        handle = driver.ipc_handle(memory.address)
        for epoch in range(1, 65):
            request = RegisterDeviceRequest(
                profile=r.profile, way=ShareWay.HANDLE, epoch=epoch, chunk_bytes=[4096],
                handles=handle, offsets=[0], memory_layer=[1], memory_k_base=[0],
                memory_v_base=[2048], memory_block_stride=[1024], memory_k_token_stride=[64],
                memory_k_head_stride=[32], memory_v_token_stride=[64], memory_v_head_stride=[32],
            )  # fmt: skip
            call = r.call(Op.REGISTER_DEVICE, 20.0)
            assert r.exchange.request(call, request, RegisterDeviceReply).memory
        e = SplicedTransformers(qwen35(), client, NAMING, WRITTEN)
        ids = tokens(200)
        promoted(e, ids)
        before = e.composed
        e.prefill(ids, CUTS, "splice")
        after = replace(before, engine=before.engine + 1, unasked=before.unasked + 1)
        assert e.composed == after
        assert any("64 registered memories" in why for why in e.composed.reasons)
        client.close()


def test_a_daemon_without_a_gpu(
    connect_gpu: Connect, start_daemon: StartDaemon, cuda: FakeCuda
) -> None:
    """Segments are in memory of the host then: on a CPU the daemon composes those."""
    bare = engine(qwen35(), connect_gpu, start_daemon(), NAMING, WRITTEN)
    ids = tokens(200)
    bare.prefill(ids, CUTS, "splice")
    done = bare.prefill(ids, CUTS, "splice")
    assert (done.reused, done.on_device) == (148, 0) and "shares none" in bare.device_state
    assert bare.composed == Composed(daemon=1)
    assert "not registered" in bare.written_state


def test_prompts_that_find_no_room_are_placed_here(connect_gpu: Connect, daemon: Daemon) -> None:
    model, ids = qwen35(), tokens(200)
    here = on_device(model, connect_gpu, daemon, HBM)
    promoted(here, ids)
    want = here.prefill(ids, CUTS, "splice").logits
    there = writing(model, connect_gpu, daemon)
    assert there._reuse is not None and there._reuse._registered is not None
    there._reuse._registered._blocks = 2 * 13  # of 16 tokens: for two of the prompts
    done = [there.prefill(ids, CUTS, "splice", keep=False) for _ in range(3)]
    assert all(torch.equal(one.logits, want) for one in done)
    full = {"no room in the memory that is registered": 1}
    assert there.composed == Composed(daemon=2, engine=1, unasked=1)
    assert there.composed.reasons == full
    done.clear()
    gc.collect()
    assert torch.equal(there.prefill(ids, CUTS, "splice").logits, want)
    assert there.composed.daemon == 3 and there.composed.reasons == full


def test_a_daemon_that_does_not_answer_in_time(
    connect_gpu: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, ids, want = awaited(connect_gpu, daemon)
    place = Model.place
    late: list[Placed] = []

    def stalled(self: Model, *given: Any, **named: Any) -> Placed:
        daemon.pause()
        try:
            with limited(self, transfer_timeout=0.05):
                late.append(place(self, *given, **named))
        finally:
            daemon.resume()
        return late[-1]

    monkeypatch.setattr(Model, "place", stalled)
    for _ in range(2):
        assert torch.equal(there.prefill(ids, CUTS, "splice").logits, want)
    assert [one.code for one in late] == [Code.LATE], "it is left alone for a while"
    assert there.composed == Composed(engine=2, refused=1)
    assert there.composed.reasons == {"rows: late": 1}
    assert late[0].wait(20)


def test_a_daemon_that_dies_within_a_walk(
    connect_gpu: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, ids, want = awaited(connect_gpu, daemon)
    place = Model.place

    def dying(self: Model, *given: Any, **named: Any) -> Placed:
        daemon.kill()
        return place(self, *given, **named)

    monkeypatch.setattr(Model, "place", dying)
    got = there.prefill(ids, CUTS, "splice")
    assert there.composed.refused == 1 and there.composed.daemon == 0
    assert far(got.logits, want) <= 1e-4


# The memory itself.


def registered(connect_gpu: Connect, daemon: Daemon) -> tuple[Registered, Model, Architecture]:
    e = writing(qwen35(), connect_gpu, daemon)
    assert e._reuse is not None and e._reuse._registered is not None
    return e._reuse._registered, e._reuse.model, e._reuse.arch


def test_blocks_are_given_again_once_nobody_reads_or_writes_them(
    connect_gpu: Connect, daemon: Daemon
) -> None:
    memory, model, arch = registered(connect_gpu, daemon)

    def adopted(room: int) -> tuple[Context, list[int], list[Any]]:
        context = Context(arch, room, torch.device("cpu"))
        memory.adopt(context, room)
        rows = [(at.k, at.v) for at in context.layers]
        return context, memory.table(rows), rows

    first, blocks, rows = adopted(100)
    assert blocks == list(range(7))
    memory.adopt(first, 100)
    assert memory.table(rows) == blocks, "it lies there already"
    others = (second := adopted(20))[1]
    assert others == [7, 8]
    view = rows[-1][0][3:4]
    view.fill_(5)
    placed = Placed()
    memory.writing(rows, placed)
    del first, rows
    assert adopted(100)[1][0] == 9, "a view is left, and a write"
    del view
    assert adopted(100)[1][0] == 9, "the write is not over"
    placed.settle()
    assert adopted(100)[1] == blocks
    most = memory.tokens
    assert memory.why_not(model, Context(arch, 1, torch.device("cpu")), most + 1)
    del second
    assert adopted(most)[1][0] == 0


def test_rows_that_are_there_move_along(connect_gpu: Connect, daemon: Daemon) -> None:
    memory, _, arch = registered(connect_gpu, daemon)
    context = Context(arch, 40, torch.device("cpu"))
    at = next(at for at in context.layers if at.k is not None)
    assert at.k is not None and at.v is not None
    at.k.normal_()
    at.v.normal_()
    context.tokens = 30
    want = [x[:30].clone() for x in (at.k, at.v)]
    memory.adopt(context, 50)
    got = context.rows(context.layers.index(at))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    context.reserve(200)
    got = context.rows(context.layers.index(at))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_memory_outlives_the_adapter_and_not_the_connection(
    connect_gpu: Connect, daemon: Daemon
) -> None:
    e = writing(qwen35(), connect_gpu, daemon)
    client = client_of(e)
    assert e._reuse is not None and e._reuse._registered is not None
    memory = weakref.ref(e._reuse._registered._held)
    del e
    gc.collect()
    assert memory() is not None, "the daemon has it open"
    client.close()
    gc.collect()
    assert memory() is None
