"""Kernels of the daemon launched in this process, against what the daemon computes itself."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from client_samples import (
    FULL,
    LINEAR,
    PATIENCE,
    SMALL,
    Connect,
    ids,
    key_of,
    new_checkpoint,
    new_segment,
    wait_until,
)
from fake_cuda import FakeCuda
from gpu_samples import Memory, Storage, Tensor, attached, memory_of, read, stream_of
from running import StartDaemon
from spliced_connector.client import (
    Blocks,
    Client,
    DeviceMemory,
    DeviceSegment,
    DeviceSlot,
    DeviceSpan,
    Model,
    NewSegment,
    Origin,
    Plan,
    PlanSpan,
    Segment,
    compose,
    place,
    release_after,
)
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    Context,
    CudaError,
    DeviceEngineMemory,
    DeviceLayer,
    DevicePtr,
    Exported,
    Run,
    export,
    find_device,
    load,
    local,
)
from spliced_connector.model import DType, Family, Identity, KeyMode, Kind, Layer, Layout, Rope

LIGHTNING = replace(
    LINEAR,
    family=Family.LIGHTNING,
    transition_dtype=DType.F32,
    rope=Rope(8, 10000.0),
    slopes=(0.5, 0.25, 0.125, 0.0625),
)
GLA = replace(LINEAR, family=Family.GLA, transition_dtype=DType.BF16, state_dtype=DType.F16)

FAMILIES = replace(
    SMALL,
    model="families",
    layers=(
        Layer(Kind.LINEAR, linear=LINEAR),
        Layer(Kind.FULL, attention=FULL),
        Layer(Kind.LINEAR, linear=LIGHTNING),
        Layer(Kind.LINEAR, linear=GLA),
        Layer(Kind.FULL, attention=replace(FULL, keys=KeyMode.UNROTATED, dtype=DType.F32)),
    ),
)
"""Every form of transition, and keys of both modes."""

HEAD, TAIL = 4, 4  # tokens left out of every segment
BLOCKS, BLOCK_TOKENS = 12, 16


def numbers(dtype: DType, n: int, seed: int) -> bytes:
    """Values from -1 to 1: random bytes would be of any size, and NaNs."""
    rng = Random(seed)
    values = [rng.uniform(-1, 1) for _ in range(n)]
    if dtype == DType.BF16:
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{n}{'e' if dtype == DType.F16 else 'f'}", *values)


def laid_out(layout: Layout, seed: int) -> bytes:
    """Numbers for all parts, where the layout has them."""
    out = bytearray(layout.nbytes)
    for i, part in enumerate(layout.parts):
        n = part.nbytes // part.dtype.size
        out[part.offset : part.offset + part.nbytes] = numbers(part.dtype, n, seed + i)
    return bytes(out)


def fill(new: NewSegment, model: Model, seed: int) -> NewSegment:
    """The segment with numbers that can be computed with."""
    parts = [
        numbers(part.dtype, part.nbytes // part.dtype.size, seed * 100 + i)
        for i, part in enumerate(model.profile.segment_layout(new.spec).parts)
    ]
    return replace(new, parts=parts)


@dataclass
class Prompt:
    """Two segments with seams around them, held on the GPU and on the host."""

    client: Client
    model: Model
    device: DeviceMemory
    copies: list[DeviceSegment]
    host: list[Segment]

    def plan(self, segments: Sequence[Segment | DeviceSegment]) -> Plan:
        """They stand one behind the other, the first as far in as its head."""
        spans, at = [], 0
        for segment in segments:
            spans.append(PlanSpan(at, HEAD + TAIL * bool(at)))
            at += HEAD + TAIL * bool(at)
            spans.append(PlanSpan(at, segment.tokens, segment))
            at += segment.tokens
        return Plan(0, at, spans)

    def spans(self, inputs: Sequence[DevicePtr], before: DevicePtr) -> list[DeviceSpan]:
        """The same for kernels in this process."""
        spans = []
        for i, span in enumerate(self.plan(self.copies).spans):
            held = span.segment if isinstance(span.segment, DeviceSegment) else None
            given = inputs[i // 2] if held is None else DevicePtr(0)
            wanted = before if i == 2 else DevicePtr(0)
            spans.append(DeviceSpan(span.start, span.count, held, given, wanted))
        return spans


def prompt(
    socket: str,
    connect_gpu: Connect,
    memory: DeviceEngineMemory | None = None,
    identity: Identity = FAMILIES,
) -> Prompt:
    """Publish two segments and hold them."""
    client = connect_gpu(socket)
    device = attached(client)
    made = client.model(identity, memory=memory, block_tokens=BLOCK_TOKENS)
    new = [fill(new_segment(made, n, seed=n), made, seed=n) for n in (40, 57)]
    keys = [key_of(made, one) for one in new]
    assert made.publish(new) == [0, 0]
    copies = made.acquire_device(keys, all=True, wait=PATIENCE)
    host = made.acquire(keys, all=True)
    return Prompt(
        client, made, device,
        [segment for segment in copies if segment is not None],
        [segment for segment in host if segment is not None],
    )  # fmt: skip


def unpack(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def off_by(got: bytes, want: bytes) -> float:
    """Root of the mean square of the difference, relative."""
    a, b = unpack(got), unpack(want)
    size = math.fsum(x * x for x in b)
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / size)


WIDE = replace(LINEAR, key_dim=64, value_dim=64)
PACKED = replace(
    FAMILIES,
    model="packed families",
    layers=(Layer(Kind.LINEAR, linear=WIDE), *FAMILIES.layers),
    tolerance=0.02,
)
"""Of every form of transition, and one whose heads the fastest kernels take."""


@pytest.mark.parametrize("identity", [FAMILIES, PACKED], ids=["plain", "packed"])
def test_composing_in_this_process_is_what_the_daemon_composes(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, identity: Identity
) -> None:
    p = prompt(start_gpu_daemon().socket, connect_gpu, identity=identity)
    for copy, segment in zip(p.copies, p.host, strict=True):
        assert copy.layout == segment.layout
        assert any(part.packed for part in copy.layout.parts) == (identity is PACKED)
    layout = p.model.profile.states_layout(-1, 0)
    seam = p.model.profile.seam_layout()
    inputs = [laid_out(seam, 900), laid_out(seam, 950)]
    plan = p.plan(p.host)
    given = [
        replace(span, input=inputs[i // 2]) if span.segment is None else span
        for i, span in enumerate(plan.spans)
    ]
    slot = p.model.compose(replace(plan, spans=given))
    assert slot is not None
    with (
        memory_of(p.device, 2 * seam.nbytes) as seams,
        memory_of(p.device, layout.nbytes) as out,
        memory_of(p.device, layout.nbytes) as before,
        stream_of(p.device) as stream,
    ):
        seams.write(b"".join(inputs))
        places = [seams.address, DevicePtr(seams.address + seam.nbytes)]
        compose(stream, p.model.profile, p.spans(places, before.address), out.address)
        passing = release_after(stream, p.copies)
        assert passing is not None and passing.wait(PATIENCE) and passing.good == (True, True)
        got, got_before = out.read(), before.read()
    states = p.model.profile.states_layout(-1, 2)  # before both seams, and the last
    answer = bytes(slot.view())
    for i, part in enumerate(layout.parts):
        three = states.parts[3 * i : 3 * i + 3]
        for have, want in ((got_before, three[1]), (got, three[2])):
            ours = have[part.offset : part.offset + part.nbytes]
            theirs = answer[want.offset : want.offset + want.nbytes]
            if p.model.profile.identity.layers[part.layer].linear.family == Family.GDN:
                assert off_by(ours, theirs) < 1e-6
            else:
                assert ours == theirs, part
    assert slot.release() and all(segment.release() for segment in p.host)


def test_the_daemon_composes_and_packs_leases_of_the_gpu_there(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon()
    p = prompt(daemon.socket, connect_gpu)
    model, profile = p.model, p.model.profile
    spec = profile.first_spec(40)
    first = NewSegment(spec, ids(40, 7), [])
    first = fill(first, model, 7)
    assert model.publish([first]) == [0]
    [copy] = model.acquire_device([key_of(model, first)], wait=PATIENCE)
    assert copy is not None
    context = p.device.gpu.context
    plan = Plan(0, 40, [PlanSpan(0, 40, copy)])
    layout = profile.states_layout(-1, 0)
    with memory_of(p.device, layout.nbytes) as state, stream_of(p.device) as stream:
        compose(stream, profile, [DeviceSpan(0, 40, copy)], state.address)
        ours = state.read()
    slot = model.compose(plan)
    assert isinstance(slot, DeviceSlot) and slot.nbytes == layout.nbytes
    with pytest.raises(SplicedError, match="no host view"):
        slot.view()
    theirs = read(context, [Run(slot.address(0, slot.nbytes), slot.nbytes)])
    rows = model.rotate(plan)
    assert isinstance(rows, DeviceSlot) and rows.rows == 40
    packed = read(context, [Run(rows.address(0, rows.nbytes), rows.nbytes)])
    for part in layout.parts:
        got = slice(part.offset, part.offset + part.nbytes)
        assert theirs[got] == ours[got], part  # the same kernels
    keys = profile.rows_layout(-1, 40).parts[0]
    index = profile.segment_layout(spec).find(keys.layer, "K")
    assert index is not None and packed[: keys.nbytes] == raw(first.parts[index])
    # What follows begins from that slot, and stays on the GPU.
    again = Plan(40, 40 + HEAD, [PlanSpan(40, HEAD)])
    moved = model.compose(again, origin=Origin(slot=slot))
    assert isinstance(moved, DeviceSlot)
    count = daemon.metrics()['spliced_kernels_total{kind="compose",tier="hbm"}']
    assert count == 2
    seam = PlanSpan(0, HEAD, input=bytes(profile.seam_layout().nbytes))
    with_input = Plan(0, HEAD + 32, [seam, PlanSpan(HEAD, 32, p.copies[0])])
    assert model.compose(with_input) is None  # inputs would have to lie on the GPU
    assert p.client.counters.invalid == 1
    for held in (slot, rows, moved, copy, *p.host, *p.copies):
        assert held.release()


def raw(part: object) -> bytes:
    """What was published."""
    assert isinstance(part, bytes)
    return part


# The engine's own memory.


class Engine:
    """Tensors of an engine: [2, blocks, tokens, heads, dim] of each attention layer."""

    def __init__(self, context: Context, model: Identity) -> None:
        self.context = context
        self.layers, self.memory = [], []
        for i, layer in enumerate(model.layers):
            if layer.kind != Kind.FULL:
                continue
            a = layer.attention
            row = a.key_dim * a.dtype.size
            half = BLOCKS * BLOCK_TOKENS * a.kv_heads * row
            memory = Memory(Context(context.driver, context.device), 2 * half + 256)
            at = memory.address + 256
            token = a.kv_heads * row
            strides = (BLOCK_TOKENS * token, token, row, token, row)
            self.layers.append(DeviceLayer(i, at, at + half, *strides))
            self.memory.append(memory)

    def export(self) -> DeviceEngineMemory:
        """For the daemon."""
        tensors = [Tensor(Storage(m.address + 256, m.nbytes - 256)) for m in self.memory]
        return DeviceEngineMemory(export(self.context, [*tensors, *tensors]), tuple(self.layers))

    def read(self) -> list[bytes]:
        """All of it, which is zero again then."""
        data = [memory.read() for memory in self.memory]
        for memory in self.memory:
            memory.fill(0)
        return data

    def close(self) -> None:
        for memory in self.memory:
            memory.close()


@pytest.fixture
def context(cuda: FakeCuda) -> Iterator[Context]:
    """The primary context, as an engine keeps it."""
    driver = load(cuda.path)
    with contextlib.closing(Context(driver, find_device(driver, b""))) as context:
        yield context


@pytest.fixture
def engine(context: Context) -> Iterator[Engine]:
    """One with the layers of `FAMILIES`. Ask for it before any client, which it outlives."""
    with contextlib.closing(Engine(context, FAMILIES)) as engine:
        yield engine


TABLE = (7, 3, 11, 0, 5, 9, 2, 8)


def test_rows_placed_in_this_process_are_what_the_daemon_places(
    engine: Engine, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    exported = engine.export()
    assert [chunk.offset for chunk in exported.exported.chunks] == [256, 256]
    p = prompt(start_gpu_daemon().socket, connect_gpu, exported)
    registration = p.model._enrolment
    wait_until(lambda: bool(registration.registration and registration.registration.memory))
    plan = p.plan(p.copies)
    placed = p.model.place(plan, TABLE)
    assert placed.wait(PATIENCE) and placed.code == Code.OK
    theirs = engine.read()
    assert any(any(data) for data in theirs)
    with stream_of(p.device) as stream:
        spans = p.spans([DevicePtr(0)] * 2, DevicePtr(0))
        place(stream, p.model.profile, spans, Blocks(exported, TABLE, BLOCK_TOKENS))
        passing = release_after(stream, p.copies)
        assert passing is not None and passing.wait(PATIENCE) and passing.good == (True, True)
    assert engine.read() == theirs
    assert all(segment.release() for segment in p.host)


def test_a_loaded_prefix_is_placed_and_gone_on_from(
    engine: Engine, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    exported = engine.export()
    p = prompt(start_gpu_daemon().socket, connect_gpu, exported)
    profile = p.model.profile
    saved = new_checkpoint(p.model, ids(32), 32)
    parts = profile.checkpoint_layout(32).parts
    filled = [numbers(a.dtype, a.nbytes // a.dtype.size, i) for i, a in enumerate(parts)]
    saved = replace(saved, parts=filled)
    assert p.model.save([saved]) == [0]
    loaded = p.model.load_device(saved.hash, wait=PATIENCE)
    host = p.model.load(saved.hash, wait=PATIENCE)
    assert loaded is not None and host is not None
    start = 32 + HEAD
    n = p.copies[0].tokens
    plan = Plan(32, start + n, [PlanSpan(32, HEAD), PlanSpan(start, n, p.copies[0])])
    registration = p.model._enrolment
    wait_until(lambda: bool(registration.registration and registration.registration.memory))
    placed = p.model.place(plan, TABLE, origin=Origin(loaded))
    assert placed.wait(PATIENCE) and placed.code == Code.OK
    theirs = engine.read()
    layout = profile.states_layout(-1, 0)
    spans = [DeviceSpan(start, n, p.copies[0])]
    with memory_of(p.device, layout.nbytes) as state, stream_of(p.device) as stream:
        with pytest.raises(SplicedError, match="span 0: 32 tokens at 36"):
            compose(stream, profile, spans, state.address, origin=loaded)
        blocks = Blocks(exported, TABLE, BLOCK_TOKENS)
        seam = DeviceSpan(32, HEAD)
        place(stream, profile, [seam, *spans], blocks, origin=loaded)
        assert engine.read() == theirs
        compose(stream, profile, [seam], state.address, origin=loaded)
        got = state.read()
        for i, part in enumerate(parts):
            if part.kind == "S":
                at = next(s for s in layout.parts if s.layer == part.layer).offset
                assert got[at : at + part.nbytes] == filled[i]
        passing = release_after(stream, [loaded, *p.copies])
        assert passing is not None and passing.wait(PATIENCE) and all(passing.good)
    assert host.release() and all(segment.release() for segment in p.host)


def test_rows_beside_the_engines_memory_are_refused(
    engine: Engine, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    exported = engine.export()
    p = prompt(start_gpu_daemon().socket, connect_gpu)
    spans = p.spans([DevicePtr(0)] * 2, DevicePtr(0))
    profile = p.model.profile
    with stream_of(p.device) as stream:
        for table, text in (
            (TABLE[:5], "49 rows from 44 on, 5 blocks"),
            ((*TABLE[:5], BLOCKS), "block 12 ends"),
            ((*TABLE[:5], -1), "49 rows from 44 on, 6 blocks"),
        ):
            with pytest.raises(SplicedError, match=text):
                place(stream, profile, spans, Blocks(exported, table, BLOCK_TOKENS))
        with pytest.raises(SplicedError, match="0 leases"):
            place(stream, profile, spans[:1], Blocks(exported, TABLE, BLOCK_TOKENS))
        with pytest.raises(SplicedError, match="another kind"):
            place(stream, profile, spans, Blocks(exported, TABLE, BLOCK_TOKENS), layer=0)
        with pytest.raises(SplicedError, match="has no input"):
            compose(stream, profile, spans, DevicePtr(4096))
        shifted = [replace(spans[1], start=1)]
        with pytest.raises(SplicedError, match="behind a head of"):
            compose(stream, profile, shifted, DevicePtr(4096))
    assert engine.read() == [bytes(memory.nbytes) for memory in engine.memory]
    assert all(segment.release() for segment in [*p.copies, *p.host])


# What is exported.


def test_each_allocation_is_exported_once(context: Context) -> None:
    driver = context.driver
    with context.current():
        one, other = driver.alloc(1 << 16), driver.alloc(1 << 12)
    first = Storage(one + 4096, 8192)
    second = Storage(one + 32768, 4096)
    tensors = [
        Tensor(second), Tensor(first), Tensor(first, 128), Tensor(Storage(other, 4096)),
        Tensor(Storage(other, 0)),
    ]  # fmt: skip
    exported = export(context, tensors)
    found = {chunk.address: (chunk.nbytes, chunk.offset) for chunk in exported.chunks}
    assert found == {one + 4096: (32768, 4096), other: (4096, 0)}
    assert exported.nbytes == 32768 + 4096
    at = 0
    for chunk in exported.chunks:
        assert exported.offset(chunk.address + 5) == at + 5
        assert exported.room(chunk.address + 5) == chunk.nbytes - 5
        at += chunk.nbytes
    for wrong in (one, one + 4096 + 32768, other + 4096):
        assert exported.room(wrong) == 0
        with pytest.raises(SplicedError, match="not in an exported tensor"):
            exported.offset(wrong)
    assert exported.epoch != export(context, tensors).epoch != 0
    with pytest.raises(SplicedError, match="want 1 to"):
        export(context, [])
    with context.current():
        driver.free(one)
        driver.free(other)


def test_memory_without_a_handle_is_refused_with_the_remedy(
    cuda: FakeCuda, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    client = connect_gpu(start_gpu_daemon("-hbm-share=descriptor").socket)
    device = attached(client)
    [run] = device.private.runs(0, device.private.nbytes)  # mapped, as expandable segments are
    with pytest.raises(CudaError) as caught:
        export(device.gpu.context, [Tensor(Storage(run.address, 4096))])
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False" in caught.value.text
    assert "vLLM's sleep mode" in caught.value.text
    alone = local([Tensor(Storage(run.address, 4096)), Tensor(Storage(run.address, 4096), 8)])
    assert (alone.nbytes, alone.epoch, alone.room(run.address + 96)) == (4096, 0, 4000)
    with pytest.raises(ValueError, match="not exported"):
        client.model(SMALL, memory=DeviceEngineMemory(alone, ()))
    with pytest.raises(SplicedError, match="not in an exported tensor"):
        DeviceEngineMemory(Exported((), 1), (DeviceLayer(0, 1, 1, 1, 1, 1, 1, 1),))
