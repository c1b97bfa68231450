"""States and rows that the daemon composes and places are what arithmetic says."""

from __future__ import annotations

import math
import mmap
import os
import random
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from client_samples import (
    FULL,
    LINEAR,
    SMALL,
    Connect,
    fill,
    ids,
    key_of,
    limited,
    new_checkpoint,
    wait_again,
)
from running import Daemon
from spliced_connector.client import (
    Accept,
    EngineMemory,
    MemoryLayer,
    Model,
    NewCheckpoint,
    NewSegment,
    Origin,
    Plan,
    PlanSpan,
    Segment,
    Slot,
    engine_memfd,
)
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING, DType, Kind, Layer, Layout, SegmentSpec

EXACT = replace(
    SMALL,
    model="exact",
    layers=(
        Layer(Kind.LINEAR, linear=replace(LINEAR, transition_dtype=DType.F32)),
        Layer(Kind.FULL, attention=FULL),
    ),
)
HEADS, DIM = LINEAR.value_heads, LINEAR.key_dim
ROW = FULL.kv_heads * FULL.key_dim * 2  # bytes of a token's keys
BLOCK = 16

Matrix = list[float]


def floats(layout: Layout, seed: int) -> list[bytes]:
    """Parts whose numbers are small and finite."""
    rng = random.Random(seed)
    parts = []
    for part in layout.parts:
        n = part.nbytes // part.dtype.size
        values = [rng.uniform(-0.3, 0.3) for _ in range(n)]
        raw = array("f", values).tobytes()
        # The upper half of an F32 is a BF16.
        halves = b"".join(raw[i + 2 : i + 4] for i in range(0, len(raw), 4))
        parts.append(raw if part.dtype == DType.F32 else halves)
    return parts


def matrices(raw: bytes | memoryview) -> list[Matrix]:
    """F32 [heads, dim, dim]."""
    values = list(memoryview(raw).cast("B").cast("f"))
    size = DIM * DIM
    return [values[i * size : (i + 1) * size] for i in range(len(values) // size)]


def moved(t: Matrix, s: Matrix, state: Matrix) -> Matrix:
    """T x state + S."""
    return [
        s[i * DIM + j] + math.fsum(t[i * DIM + k] * state[k * DIM + j] for k in range(DIM))
        for i in range(DIM)
        for j in range(DIM)
    ]


def close(got: list[Matrix], want: list[Matrix]) -> bool:
    """Equal but for rounding."""
    return all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5)
        for x, y in zip(got, want, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def part(layout: Layout, parts: list[bytes], kind: str) -> bytes:
    """The bytes of one kind; there is one layer of each."""
    return next(raw for at, raw in zip(layout.parts, parts, strict=True) if at.kind == kind)


@dataclass
class Placed:
    """A segment that is held, with the bytes it was published with."""

    model: Model
    segment: Segment
    spec: SegmentSpec
    parts: list[bytes]

    def of(self, kind: str) -> bytes:
        return part(self.segment.layout, self.parts, kind)


@pytest.fixture
def model(daemon: Daemon, connect: Connect) -> Model:
    """A model whose states are F32 throughout."""
    return connect(daemon.socket).model(EXACT, block_tokens=BLOCK)


Hold = Callable[[SegmentSpec, int], Placed]


@pytest.fixture
def hold(model: Model) -> Iterator[Hold]:
    """Publishes and leases segments, and releases them at the end."""
    held: list[Placed] = []

    def make(spec: SegmentSpec, seed: int) -> Placed:
        parts = floats(model.profile.segment_layout(spec), seed)
        new = NewSegment(spec, ids(spec.tokens, seed), parts)
        assert model.publish([new]) == [Code.OK]
        (segment,) = model.acquire([key_of(model, new)])
        assert segment is not None
        held.append(Placed(model, segment, spec, parts))
        return held[-1]

    yield make
    for placed in held:
        assert placed.segment.release()


def mid(model: Model, tokens: int) -> SegmentSpec:
    """A segment with seams of 4 tokens."""
    spec = model.profile.mid_spec(tokens, 4)
    assert spec is not None
    return spec


def test_states_before_each_computed_span(model: Model, hold: Hold) -> None:
    first = hold(model.profile.first_spec(20), 1)
    second = hold(mid(model, 40), 2)
    seam = floats(model.profile.seam_layout(), 3)
    t, s = (matrices(raw) for raw in seam)
    spans = [
        PlanSpan(0, 20, first.segment),
        PlanSpan(20, 4, input=b"".join(seam)),
        PlanSpan(24, 32, second.segment),
        PlanSpan(56, 4),
    ]
    slot = model.compose(Plan(0, 60, spans))
    assert slot is not None
    layout = model.profile.states_layout(0, 2)
    assert slot.view().nbytes == layout.nbytes
    got = [matrices(slot.view()[p.offset : p.offset + p.nbytes]) for p in layout.parts]
    at_seam = matrices(first.of("S"))
    behind = [moved(*m) for m in zip(t, s, at_seam, strict=True)]
    second_t, second_s = matrices(second.of("T")), matrices(second.of("S"))
    last = [moved(*m) for m in zip(second_t, second_s, behind, strict=True)]
    assert got[0] == at_seam, "from zero it is the end-state, to the bit"
    assert close(got[1], last)
    assert got[2] == got[1], "a last span without input ends the walk"
    assert slot.release()


def test_a_plan_goes_on_where_another_ended(model: Model, hold: Hold) -> None:
    first = hold(model.profile.first_spec(20), 1)
    second = hold(mid(model, 40), 2)
    seam = b"".join(floats(model.profile.seam_layout(), 3))
    begin = PlanSpan(0, 20, first.segment)
    rest = [PlanSpan(20, 4, input=seam), PlanSpan(24, 32, second.segment)]
    at_once = model.compose(Plan(0, 56, [begin, *rest]))
    halfway = model.compose(Plan(0, 20, [begin]))
    assert at_once is not None
    assert halfway is not None
    behind = model.compose(Plan(20, 56, rest), origin=Origin(slot=halfway))
    assert behind is not None
    assert behind.view() == at_once.view()
    last = behind.nbytes // 2
    again = model.compose(
        Plan(56, 60, [PlanSpan(56, 4)]), origin=Origin(slot=behind, slot_offset=last), into=halfway
    )
    assert again is halfway, "written over"
    assert halfway.view() == 2 * bytes(behind.view()[last:])
    for slot in (at_once, halfway, behind):
        assert slot.release()


def test_a_plan_begins_at_a_checkpoint(model: Model, hold: Hold) -> None:
    prompt = ids(32)
    saved = new_checkpoint(model, prompt, 16)
    parts = floats(model.profile.checkpoint_layout(16), 5)
    assert model.save([replace(saved, parts=parts)]) == [Code.OK]
    checkpoint = model.load(saved.hash)
    assert checkpoint is not None
    held = hold(mid(model, 40), 2)
    seam = floats(model.profile.seam_layout(), 3)
    spans = [PlanSpan(16, 4, input=b"".join(seam)), PlanSpan(20, 32, held.segment)]
    slot = model.compose(Plan(16, 52, spans), origin=Origin(checkpoint))
    assert slot is not None
    begin = matrices(part(model.profile.checkpoint_layout(16), parts, "S"))
    t, s = (matrices(raw) for raw in seam)
    want = [moved(*m) for m in zip(t, s, begin, strict=True)]
    t, s = matrices(held.of("T")), matrices(held.of("S"))
    want = [moved(*m) for m in zip(t, s, want, strict=True)]
    assert matrices(slot.view()[: slot.nbytes // 2]) == begin
    assert close(matrices(slot.view()[slot.nbytes // 2 :]), want)
    assert slot.release()
    assert checkpoint.release()


def bf16(raw: bytes | memoryview) -> list[float]:
    """BF16 numbers: the upper halves of F32."""
    halves = memoryview(raw).cast("B").cast("H")
    return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]


def turned(row: list[float], position: int) -> list[float]:
    """One token's keys at a position: the first dims of each head turn in pairs of halves."""
    dims, size = FULL.rope.dims, FULL.key_dim
    half = dims // 2
    out = list(row)
    for at in range(0, len(row), size):
        for i in range(half):
            angle = position * FULL.rope.theta ** (-2 * i / dims)
            a, b = row[at + i], row[at + i + half]
            out[at + i] = a * math.cos(angle) - b * math.sin(angle)
            out[at + i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def check_keys(got: bytes | memoryview, stored: bytes, position: int) -> None:
    """Keys as stored, turned to a position, up to BF16."""
    values, raw = bf16(got), bf16(stored)
    per = ROW // 2
    for at in range(0, len(raw), per):
        want = turned(raw[at : at + per], position)
        for a, b in zip(values[at : at + per], want, strict=True):
            assert math.isclose(a, b, rel_tol=2**-7, abs_tol=2e-3)


def test_rows_are_turned_to_their_place(model: Model, hold: Hold) -> None:
    first = hold(model.profile.first_spec(20), 1)
    second = hold(mid(model, 40), 2)
    spans = [
        PlanSpan(0, 20, first.segment),
        PlanSpan(20, 4),
        PlanSpan(24, 32, second.segment),
        PlanSpan(56, 4),
    ]
    slot = model.rotate(Plan(0, 60, spans))
    assert slot is not None
    assert slot.rows == 52, "those of the segments, packed"
    layout = model.profile.rows_layout(1, slot.rows)
    keys, values = (slot.view()[p.offset : p.offset + p.nbytes] for p in layout.parts)
    assert values == first.of("V") + second.of("V")
    assert keys[: 20 * ROW] == first.of("K"), "nothing turns at 0"
    check_keys(keys[20 * ROW :], second.of("K"), 20)
    assert slot.release()


def test_assemble_gives_states_and_rows(model: Model, hold: Hold) -> None:
    held = hold(model.profile.first_spec(20), 1)
    plan = Plan(0, 24, [PlanSpan(0, 20, held.segment), PlanSpan(20, 4)])
    slot = model.assemble(plan)
    assert slot is not None
    assert slot.rows == 20
    layout = model.profile.checkpoint_layout(20)
    got = [slot.view()[p.offset : p.offset + p.nbytes] for p in layout.parts]
    assert got == [held.of(kind) for kind in ("S", "conv", "K", "V")]
    assert slot.release()


@pytest.fixture
def memory() -> Iterator[EngineMemory]:
    """Eight blocks of keys, then as many of values."""
    half = 8 * BLOCK * ROW
    descriptor = engine_memfd(2 * half)
    layer = MemoryLayer(1, 0, half, BLOCK * ROW, ROW, ROW // 2, ROW, ROW // 2)
    yield EngineMemory(descriptor, 2 * half, (layer,))
    os.close(descriptor)


def test_rows_go_to_the_blocks_of_the_engine(
    daemon: Daemon, connect: Connect, memory: EngineMemory
) -> None:
    client = connect(daemon.socket)
    model = client.model(EXACT, block_tokens=BLOCK, memory=memory)
    spec = model.profile.first_spec(40)
    parts = floats(model.profile.segment_layout(spec), 1)
    new = NewSegment(spec, ids(40), parts)
    assert model.publish([new]) == [Code.OK]
    (segment,) = model.acquire([key_of(model, new)])
    assert segment is not None
    blocks = [5, 0, 3]
    plan = Plan(0, 44, [PlanSpan(0, 40, segment), PlanSpan(40, 4)])
    placed = model.place(plan, blocks, states=True)
    assert placed.code == Code.OK
    assert placed.settled
    assert placed.wait(0)
    assert placed.slot is not None
    states = model.profile.checkpoint_layout(0)
    first = states.parts[0]
    assert placed.slot.view()[: first.nbytes] == part(segment.layout, parts, "S")
    with mmap.mmap(memory.descriptor, memory.nbytes) as view:
        for base, kind in ((0, "K"), (memory.nbytes // 2, "V")):
            want = part(segment.layout, parts, kind)
            for token in range(40):
                at = base + (blocks[token // BLOCK] * BLOCK + token % BLOCK) * ROW
                assert view[at : at + ROW] == want[token * ROW : (token + 1) * ROW]
    assert placed.slot.release()
    daemon.kill()
    daemon.start()
    wait_again(model)
    assert model.publish([new]) == [Code.OK]
    (again,) = model.acquire([key_of(model, new)])
    assert again is not None
    plan = Plan(0, 44, [PlanSpan(0, 40, again), PlanSpan(40, 4)])
    assert model.place(plan, blocks).code == Code.OK
    assert again.release()
    assert segment.release(), "of the dead daemon"


def test_memory_that_may_shrink_is_refused(daemon: Daemon, connect: Connect) -> None:
    descriptor = os.memfd_create("plain", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 1 << 16)
    client = connect(daemon.socket)
    model = client.model(SMALL, memory=EngineMemory(descriptor, 1 << 16, ()))
    os.close(descriptor)
    assert not model.attached
    assert model.refused
    client.close()


def test_plans_that_can_never_be_right(model: Model, hold: Hold) -> None:
    held = hold(model.profile.first_spec(20), 1)
    good = PlanSpan(0, 20, held.segment)
    for plan in (
        Plan(0, 10, [good]),
        Plan(0, 40, [good]),
        Plan(0, 24, [good, PlanSpan(20, 4, input=b"short")]),
        Plan(4, 2, []),
    ):
        assert model.compose(plan) is None
    assert model.place(Plan(0, 20, [good]), [0]).code == Code.INVALID, "no memory"
    held.segment.release()
    assert model.compose(Plan(0, 20, [good])) is None


def test_a_slot_of_a_former_daemon_is_gone(daemon: Daemon, model: Model, hold: Hold) -> None:
    held = hold(model.profile.first_spec(20), 1)
    plan = Plan(0, 20, [PlanSpan(0, 20, held.segment)])
    slot = model.compose(plan)
    assert slot is not None
    daemon.kill()
    daemon.start()
    wait_again(model)
    assert model.compose(plan, into=slot) is None
    assert model.compose(Plan(0, 8, [PlanSpan(0, 8)]), origin=Origin(slot=slot)) is None
    assert matrices(slot.view()) == matrices(held.of("S")), "nobody writes there any more"
    assert slot.release()


def test_a_spoilt_slot_holds_nothing(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(EXACT)
    spec = model.profile.first_spec(20)
    new = NewSegment(spec, ids(20), fill(model.profile.segment_layout(spec), 0))
    assert model.publish([new]) == [Code.OK]
    (segment,) = model.acquire([key_of(model, new)])
    assert segment is not None
    plan = Plan(0, 20, [PlanSpan(0, 20, segment)])
    slot = model.compose(plan)
    assert isinstance(slot, Slot)
    daemon.pause()
    with limited(model, transfer_timeout=0.1):
        assert model.compose(plan, into=slot) is None
    with pytest.raises(SplicedError):
        slot.view()
    assert model.compose(plan, into=slot) is None
    daemon.resume()
    assert model.wait_attached(5)
    slot.release()
    segment.release()


def buffer_rows(model: Model, n: int, seed: int) -> tuple[bytes, list[bytes]]:
    """Rows of n tokens, whole and by part: decay, conv inputs, keys, delta values."""
    layout = model.profile.buffer_layout(n)
    parts = floats(layout, seed)
    whole = bytearray(layout.nbytes)
    for at, raw in zip(layout.parts, parts, strict=True):
        whole[at.offset : at.offset + at.nbytes] = raw
    return bytes(whole), parts


def moved_by_rows(parts: list[bytes], n: int) -> list[Matrix]:
    """Zero states moved row by row: S = g S + k u^T."""
    decay, _, keys, values = parts
    g, k, u = (list(memoryview(raw).cast("f")) for raw in (decay, keys, values))
    groups = HEADS // LINEAR.key_heads
    states = [[0.0] * (DIM * DIM) for _ in range(HEADS)]
    for row in range(n):
        for head, state in enumerate(states):
            key = (row * LINEAR.key_heads + head // groups) * DIM
            value = (row * HEADS + head) * DIM
            for i in range(DIM):
                for j in range(DIM):
                    at = i * DIM + j
                    state[at] = g[row * HEADS + head] * state[at] + k[key + i] * u[value + j]
    return states


def test_a_buffer_replays_rows(model: Model) -> None:
    buffer = model.open_buffer(0, 8)
    assert buffer is not None
    rows, parts = buffer_rows(model, 5, 7)
    assert model.append(buffer, 5, rows) == Code.OK
    assert (buffer.begin, buffer.accepted, buffer.end) == (0, 0, 5)
    assert model.append(buffer, 4, buffer_rows(model, 4, 8)[0]) == Code.FULL
    assert model.append(buffer, 1, b"short") == Code.INVALID
    assert not buffer.lost, "it is as it was"
    assert model.replay(buffer, 3) is None, "drafts are not certain"
    assert model.accept(buffer, 3) == Code.OK
    assert (buffer.accepted, buffer.end) == (3, 3)
    slot = model.replay(buffer, 3)
    assert slot is not None
    layout = model.profile.checkpoint_layout(0)
    states = slot.view()[: layout.parts[0].nbytes]
    assert close(matrices(states), moved_by_rows(parts, 3))
    before = bytes(slot.view())
    assert model.replay(buffer, 3, flush=True, into=slot) is slot
    assert slot.view() == before
    assert buffer.begin == 3
    follow = model.open_buffer(3, 4, Origin(slot=slot))
    assert follow is not None
    same = model.replay(follow, 3)
    assert same is not None
    assert same.view() == before
    for held in (slot, same, follow, buffer):
        assert held.release()
    assert model.append(buffer, 5, rows) == Code.GONE


def test_only_the_accepted_path_of_a_tree_is_appended(model: Model) -> None:
    buffer = model.open_buffer(0, 8)
    assert buffer is not None
    #  0 -- 1 -- 3
    #  |    `--- 4
    #  `- 2
    parents, path = [-1, 0, 0, 1, 1], [0, 1, 4]
    rows, parts = buffer_rows(model, 5, 7)
    assert model.append_path(buffer, parents, path, rows) == Code.OK
    assert model.accept(buffer, 3) == Code.OK
    assert (buffer.begin, buffer.accepted, buffer.end) == (0, 3, 3)
    picked = [
        b"".join(raw[i * len(raw) // 5 : (i + 1) * len(raw) // 5] for i in path) for raw in parts
    ]
    slot = model.replay(buffer, 3)
    assert slot is not None
    states = slot.view()[: model.profile.checkpoint_layout(0).parts[0].nbytes]
    assert close(matrices(states), moved_by_rows(picked, 3))
    for bad in ([], [1, 3], [0, 2, 3], [0, 1, 0], [0, 5], [-1]):
        assert model.append_path(buffer, parents, bad, rows) == Code.INVALID, bad
    for tree in ([0, 0, 0, 1, 1], [-1, 0, 3, 1, 1], [-2, 0, 0, 1, 1], [-1, 0]):
        assert model.append_path(buffer, tree, [0], rows) == Code.INVALID, tree
    assert buffer.end == 3
    assert not buffer.lost
    slot.release()
    buffer.release()


def test_rows_are_kept_behind_a_checkpoint(model: Model) -> None:
    """Rows outlive their client; states of any of their tokens are rebuilt, zero ones first."""
    prompt = list(range(100, 112))
    rows, parts = buffer_rows(model, 5, 11)
    layout = model.profile.buffer_layout(5)
    found = {(p.layer, p.kind): rows[p.offset :][: p.nbytes] for p in layout.parts}
    edge = model.profile.edge_layout(5)
    pieces = [found.get((p.layer, p.kind), bytes(range(p.nbytes % 251)) or b"") for p in edge.parts]
    pieces = [piece.ljust(p.nbytes, b"\1") for piece, p in zip(pieces, edge.parts, strict=True)]
    hashes = model.prefix_hashes(prompt, [5, 9])
    assert hashes is not None
    kept = NewCheckpoint(hashes[0], 5, NOTHING, 0, Accept.ROWS, pieces)
    assert model.save([kept]) == [Code.OK]
    both = Accept.EXACT | Accept.ROWS
    match = model.match([5, 9], hashes, accept=both)
    assert (match.prefix_tokens, match.prefix_kind, match.prefix_states) == (5, Accept.ROWS, 0)
    assert model.match([5, 9], hashes).prefix_tokens == 0, "not of an accepted kind"
    checkpoint = model.load(hashes[0], both)
    assert checkpoint is not None
    assert (checkpoint.kind, checkpoint.tokens, checkpoint.states) == (Accept.ROWS, 5, 0)
    assert [bytes(checkpoint.part(0, i)) for i in range(len(pieces))] == pieces
    nbytes = model.profile.checkpoint_layout(0).parts[0].nbytes
    for token in range(6):
        slot = model.replay_rows(checkpoint, token)
        assert slot is not None
        assert close(matrices(slot.view()[:nbytes]), moved_by_rows(parts, token))
        assert slot.release()
    assert model.replay_rows(checkpoint, 6) is None
    assert checkpoint.release()
    wrong = replace(kept, hash=hashes[1], tokens=9)
    assert model.save([wrong]) == [Code.INVALID]


def test_rows_are_kept_out_of_a_buffer(model: Model) -> None:
    """Rows are sent once, and found at every token that was saved."""
    prompt = list(range(100, 112))
    rows, parts = buffer_rows(model, 5, 11)
    buffer = model.open_buffer(0, 8)
    assert buffer is not None
    assert model.append(buffer, 5, rows) == Code.OK
    assert model.accept(buffer, 4) == Code.OK
    hashes = model.prefix_hashes(prompt, [1, 2, 3, 4, 5])
    assert hashes is not None
    linear = model.profile.linear_layers
    edge = [p for p in model.profile.edge_layout(1).parts if p.layer not in linear]
    pieces = [bytes([7] * p.nbytes) for p in edge]
    kept, parent = [], NOTHING
    for i in range(5):
        new = NewCheckpoint(hashes[i], i + 1, parent, i, Accept.ROWS, pieces, buffer)
        kept.append(new)
        parent = hashes[i]
    assert model.save(kept) == [Code.OK] * 4 + [Code.INVALID], "the fifth row was not accepted"
    whole = replace(kept[0], kind=Accept.EXACT)
    assert model.save([whole]) == [Code.UNSUPPORTED]
    both = Accept.EXACT | Accept.ROWS
    assert model.match([1, 2, 3], hashes[:3], accept=both).prefix_tokens == 3
    checkpoint = model.load(hashes[3], both)
    assert checkpoint is not None
    assert len(checkpoint.nodes) == 4
    assert buffer.release()
    nbytes = model.profile.checkpoint_layout(0).parts[0].nbytes
    for token in range(5):
        slot = model.replay_rows(checkpoint, token)
        assert slot is not None
        assert close(matrices(slot.view()[:nbytes]), moved_by_rows(parts, token))
        assert slot.release()
    assert checkpoint.release()
    assert model.save([replace(kept[0], hash=hashes[4], tokens=1)]) == [Code.GONE], "released"


def test_a_buffer_that_may_have_changed_is_lost(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(EXACT)
    buffer = model.open_buffer(0, 8)
    assert buffer is not None
    rows, _ = buffer_rows(model, 2, 7)
    daemon.pause()
    with limited(model, transfer_timeout=0.1):
        assert model.append(buffer, 2, rows) == Code.LATE
    daemon.resume()
    assert buffer.lost
    assert model.append(buffer, 2, rows) == Code.GONE
    buffer.release()
