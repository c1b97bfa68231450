"""Packed transitions and end-states of segments: read, walked over, and had from a daemon."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from client_samples import Connect, wait_until
from engine.hf_requests import CUTS, WARMING, answer, continued, engine, far, own, tokens
from engine.hybrids import qwen35
from engine.packed_parts import Head, filled, head, join, numbers, packed, part
from gpu_samples import attached
from running import Daemon, StartDaemon
from spliced_connector.client import Match, Segment
from spliced_connector.hf import SplicedTransformers
from spliced_connector.model import (
    Choice,
    DType,
    Layout,
    Part,
    Profile,
    divide,
    make_plan,
    packed_rank,
)
from spliced_connector.walk import (
    Captured,
    Context,
    Naming,
    architecture,
    capture,
    pack,
    pieces,
    rounded,
    splice,
    unpack,
)
from spliced_connector.walk.segments import collect, unpacked

pytestmark = pytest.mark.engine

SIZES = [(1, 1), (1, 2), (3, 3), (5, 7), (16, 16), (33, 32), (2, 31), (31, 33), (64, 1)]
DTYPES = [DType.F32, DType.F16, DType.BF16]


def read(raw: bytes, like: Part) -> Tensor:
    return unpacked(replace(like, nbytes=len(raw)), memoryview(raw))


def same(got: Tensor, heads: list[Head]) -> bool:
    """Whether these are the numbers of heads, those of a low rank to rounding."""
    summed = torch.tensor([packed_rank(one.form) > 0 for one in heads])
    want = numbers(heads)
    near = bool(torch.allclose(got[summed], want[summed], rtol=1e-4, atol=1e-3))
    return near and torch.equal(got[~summed], want[~summed])


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("form", [*range(5), 16, 18, 47])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_of_each_form_is_read(form: int, dtype: DType, size: tuple[int, int]) -> None:
    heads = [head(Random(form), form, dtype, *size)]
    raw = join(heads)
    got = read(raw, part(raw, dtype, heads))
    assert got.dtype == torch.float32
    assert same(got, heads)


@pytest.mark.parametrize("seed", range(24))
def test_heads_of_many_forms_are_read(seed: int) -> None:
    rng = Random(seed)
    dtype, size = rng.choice(DTYPES), (rng.randint(1, 40), rng.randint(1, 40))
    forms = [*range(5), 16, 17, 21]
    heads = [head(rng, rng.choice(forms), dtype, *size) for _ in range(rng.randint(1, 40))]
    raw = join(heads)
    like = part(raw, dtype, heads)
    assert same(read(raw, like), heads)
    assert same(read(raw + bytes(64 * rng.randint(1, 3)), like), heads)


def test_the_smallest_integers_are_read() -> None:
    """No writer has them, but their bits say what they are."""
    for form, bits in ((2, 8), (3, 12), (4, 16)):
        least = -(1 << bits - 1)
        front = b"\0\0\0\0" + b"\0\0\x80\x3f"  # no g, a scale of 1
        raw = front + (least & ((1 << bits) - 1)).to_bytes(-(-bits // 8), "little")
        heads = [Head(form, raw, torch.tensor([[float(least)]]))]
        assert torch.equal(read(join(heads), part(b"", DType.F16, heads)), numbers(heads))


HEADS = [head(Random(7), form, DType.F16, 5, 7) for form in (3, 0, 1, 2, 4)]
WHOLE = join(HEADS)


def changed(at: int, byte: int) -> bytes:
    return WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (changed(0, 5), "5 is not a valid"),
        (changed(4, 15), "15 is not a valid"),
        (changed(4, 255), "bytes packed, their forms take"),
        (changed(45, 1), "no zeros behind the norms"),
        (changed(63, 1), "no zeros behind the norms"),
        (WHOLE + bytes(63) + b"\1", "after the heads of a packed part are not zero"),
        (changed(2, 0), "bytes packed, their forms take"),
        (changed(3, 1), "after the heads of a packed part are not zero"),
        (WHOLE[:-1], "bytes packed, their forms take"),
        (WHOLE[:-64], "bytes packed, their forms take"),
        (WHOLE[:63], "63 bytes packed, 5 heads take more than 64"),
        (b"", "0 bytes packed"),
    ],
)
def test_bytes_that_are_no_packed_part_are_refused(raw: bytes, text: str) -> None:
    like = part(WHOLE, DType.F16, HEADS)
    with pytest.raises(ValueError, match=r"packed|Form") as caught:
        read(raw, like)
    assert text in str(caught.value)
    with pytest.raises(ValueError, match="part S of layer 0"):
        collect(1, Layout((replace(like, nbytes=len(raw)),), len(raw)), lambda _: memoryview(raw))


class Lease:
    """A leased segment whose T and S are packed in one form."""

    def __init__(self, profile: Profile, captured: Captured, form: int) -> None:
        plain = profile.segment_layout(captured.spec)
        self.parts = [bytes(view) for view in pack(profile, captured)]
        said, at = [], 0
        for i, p in enumerate(plain.parts):
            if profile.packs(p):
                found = captured.layers[p.layer]
                x = found.transition if p.kind == "T" else found.state
                assert x is not None
                self.parts[i] = packed(x, p.dtype, form)
                p = replace(p, nbytes=len(self.parts[i]), packed=True)
            said.append(replace(p, offset=at))
            at += len(filled(self.parts[i]))
        self.layout = Layout(tuple(said), at, (0.01, 0.01))

    def part(self, index: int) -> memoryview:
        return memoryview(self.parts[index])


WIDE = {"linear_key_head_dim": 32, "linear_value_head_dim": 40}
PACKING = Naming(b"\x09" * 32, tolerance=0.02)


@pytest.mark.parametrize(("form", "most"), [(2, 5e-2), (3, 4e-3), (4, 4e-4)])
@pytest.mark.parametrize("double", [False, True])
def test_a_walk_takes_packed_segments_beside_others(form: int, most: float, double: bool) -> None:
    model = qwen35(**WIDE)
    arch = architecture(model.double() if double else model, PACKING)
    profile = Profile(arch.identity)
    ids = tokens(200)
    prompt = divide(profile, b"", ids, CUTS, 8)
    plan = make_plan(prompt, 0, [Choice.HIT] * len(prompt.pieces))
    fresh: dict[int, Captured] = {}
    for piece in prompt.pieces:
        if piece.spec is not None:
            made = capture(arch, ids[piece.start : piece.end], piece.spec)
            fresh[piece.index] = rounded(profile, made)
    found = dict(fresh)
    for i in list(fresh)[1:]:  # the first one was captured just now
        lease = Lease(profile, fresh[i], form)
        found[i] = unpack(profile, fresh[i].spec, lease)
        for got, want in zip(found[i].layers, fresh[i].layers, strict=True):
            for name in ("transition", "state"):
                a, b = getattr(got, name), getattr(want, name)
                assert (a is None) == (b is None)
                if a is not None:
                    assert a.dtype == torch.float32 and a.shape == b.shape
                    assert float((a - b.float()).norm() / b.float().norm()) <= most
            assert got.k is None or torch.equal(got.k, want.k)
    logits = []
    for segments in (fresh, found):
        context = Context(arch, len(ids), torch.device("cpu"))
        hidden = None
        for walk in pieces(plan.spans):
            hidden = splice(arch, ids, walk, segments, context)
        assert hidden is not None
        logits.append(arch.logits(hidden[-1:])[0])
    assert 0 < far(*logits) <= 20 * most * float(logits[0].std())


def test_a_packed_segment_of_another_spec_is_refused() -> None:
    arch = architecture(qwen35(**WIDE), PACKING)
    profile = Profile(arch.identity)
    spec = profile.mid_spec(60, 8)
    assert spec is not None
    lease = Lease(profile, capture(arch, tokens(60), spec), 2)
    assert unpack(profile, spec, lease).spec == spec
    with pytest.raises(ValueError, match="its spec has"):
        unpack(profile, replace(spec, tokens=61), lease)
    said = lease.layout
    lease.layout = replace(said, parts=(replace(said.parts[0], shape=(4, 32, 31)), *said.parts[1:]))
    with pytest.raises(ValueError, match="its spec has"):
        unpack(profile, spec, lease)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35(linear_key_head_dim=64, linear_value_head_dim=64)


EXACT = replace(PACKING, tolerance=0.0)


def leases(e: SplicedTransformers, ids: list[int]) -> list[Segment]:
    """Of the segments of a prompt. They are given back when they are collected."""
    assert e._reuse is not None
    model = e._reuse.model
    prompt = divide(model.profile, model.salt or b"", ids, CUTS, e.settings.seam_tokens)
    found = [segment for segment in model.acquire(prompt.keys) if segment is not None]
    assert len(found) == len(CUTS) - 1
    return found


def test_what_the_daemon_packed_is_spliced(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    exact, packing = (engine(model, connect, daemon, n) for n in (EXACT, PACKING))
    ids = tokens(200)
    for e in (exact, packing):
        assert e.prefill(ids, CUTS, "splice").captured == 180
    moved = [*tokens(60, seed=4), *ids[120:180], *ids[60:120], *ids[180:]]
    for prompt in (ids, moved):
        for e in (exact, packing):
            e.prefill(prompt, CUTS, "splice")
        want, got = (e.prefill(prompt, CUTS, "splice") for e in (exact, packing))
        assert (got.reused, got.computed, got.trouble) == (148, 52, "")
        assert (want.reused, want.computed) == (148, 52)
        assert 0 < far(got.logits, want.logits) <= 0.05 * float(want.logits.std())
    whole, less = leases(exact, ids), leases(packing, ids)
    assert less[0].layout == whole[0].layout, "one that leads a prompt stays as it was written"
    for plain, small in zip(whole[1:], less[1:], strict=True):
        assert plain.errors == (0.0, 0.0)
        transition, state = small.errors
        assert 0 < transition <= 0.02 * (1 + 1e-6)
        assert 0 < state <= 0.02 * (1 + 1e-6)
        there, here = (
            {(p.layer, p.kind): p.nbytes for p in lease.layout.parts} for lease in (plain, small)
        )
        assert here.keys() == there.keys()
        for (layer, kind), nbytes in here.items():
            was = there[layer, kind]
            assert nbytes < 0.7 * was if kind in "TS" else nbytes == was
        assert small.layout.nbytes < 0.7 * plain.layout.nbytes


def test_a_request_may_refuse_what_is_off(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    exact, packing = (engine(model, connect, daemon, n) for n in (EXACT, PACKING))
    ids = tokens(200)
    for e in (exact, packing):
        e.prefill(ids, CUTS, "splice")
    want = exact.prefill(ids, CUTS, "splice")
    for most in (None, 0.02):
        got = packing.prefill(ids, CUTS, "splice", max_error=most)
        assert (got.reused, got.captured, got.trouble) == (148, 0, "")
        assert far(got.logits, want.logits) > 0
    got = packing.prefill(ids, CUTS, "splice", max_error=0)
    assert (got.captured, got.trouble) == (120, ""), "all but the leading one, which is as it was"
    assert torch.equal(got.logits, want.logits)
    again = packing.prefill(ids, CUTS, "splice")
    assert (again.reused, again.captured) == (148, 0)


def test_what_a_lease_says_counts_more_than_a_match(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two a segment may have become another one."""
    e = engine(model, connect, daemon, PACKING)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    monkeypatch.setattr(Match, "within", lambda match, _: match.hits)
    got = e.prefill(ids, CUTS, "splice", max_error=0)
    assert (got.reused, got.captured, got.trouble) == (60, 0, "")
    assert e.prefill(ids, CUTS, "splice", max_error=0.02).reused == 148


def test_a_prompt_whose_leading_segment_is_reused_is_exact(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon, PACKING)
    ids = tokens(130)
    e.prefill(ids, [0, 110], "splice")
    warm = e.prefill(ids, [0, 110], "splice")
    assert (warm.reused, warm.approximate) == (110, False)
    assert far(warm.logits, own(model, ids)) <= 2e-3  # T is of 16 bits
    assert continued(model, ids, warm) == answer(model, ids)


def test_packed_parts_are_as_near_as_their_errors_say(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    e = engine(model, connect, daemon, PACKING)
    assert e._reuse is not None
    arch, profile = e._reuse.arch, e._reuse.profile
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    pieces = divide(profile, b"", ids, CUTS, e.settings.seam_tokens).pieces
    for piece, lease in zip(pieces[1:], leases(e, ids)[1:], strict=False):
        assert piece.spec is not None
        made = capture(arch, ids[piece.start : piece.end], piece.spec)
        read, written = unpack(profile, piece.spec, lease), rounded(profile, made)
        transition, state = lease.errors
        worst = [0.0, 0.0]
        for got, want in zip(read.layers, written.layers, strict=True):
            if got.transition is None or got.state is None or want.transition is None:
                continue
            assert want.state is not None
            off = (got.transition - want.transition.float()).double()
            worst[0] = max(worst[0], float(torch.linalg.matrix_norm(off, 2).max()))
            norms = [
                torch.linalg.matrix_norm(x.double()) for x in (got.state - want.state, want.state)
            ]
            worst[1] = max(worst[1], float((norms[0] / norms[1]).max()))
        assert 0 < worst[0] <= transition * (1 + 1e-3)
        assert 0.5 * state <= worst[1] <= state * (1 + 1e-3)


ROWS = replace(PACKING, row_tolerance=0.02)


@pytest.mark.parametrize("in_place", [False, True])
def test_packed_keys_and_values_are_spliced(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, in_place: bool
) -> None:
    settings = replace(WARMING, in_place=in_place)
    states, rows = (engine(model, connect, daemon, n, settings) for n in (PACKING, ROWS))
    ids = tokens(200)
    for e in (states, rows):
        e.prefill(ids, CUTS, "splice")
    want, got = (e.prefill(ids, CUTS, "splice") for e in (states, rows))
    assert (got.reused, got.computed, got.trouble) == (148, 52, "")
    assert 0 < far(got.logits, want.logits) <= 0.05 * float(want.logits.std())
    assert got.good
    exact = rows.prefill(ids, CUTS, "splice", max_error=0)
    assert (exact.captured, exact.trouble) == (120, "")
    assert rows._reuse is not None
    profile = rows._reuse.profile
    pieces = divide(profile, b"", ids, CUTS, rows.settings.seam_tokens).pieces
    for piece, lease in zip(pieces[1:], leases(rows, ids)[1:], strict=False):
        assert piece.spec is not None
        read = unpack(profile, piece.spec, lease)
        made = rounded(profile, capture(rows._reuse.arch, ids[piece.start : piece.end], piece.spec))
        seen = 0
        for layer, want_layer in zip(read.layers, made.layers, strict=True):
            for x, y in ((layer.k, want_layer.k), (layer.v, want_layer.v)):
                if x is None or y is None:
                    continue
                seen += 1
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                off = float((x.double() - y.double()).norm() / y.double().norm())
                assert 0 < off <= lease.errors[1], "as it is read, in the type that was written"
        assert seen
        plain = {(p.layer, p.kind): p.nbytes for p in profile.segment_layout(piece.spec).parts}
        kept = [p for p in lease.layout.parts if p.is_rows]
        assert all(p.packed and p.nbytes < plain[p.layer, p.kind] for p in kept)
    for done in (want, got, exact):
        done.release()


@pytest.mark.parametrize("naming", [PACKING, ROWS], ids=["states", "rows too"])
def test_copies_on_a_gpu_stay_packed(
    model: PreTrainedModel,
    connect_gpu: Connect,
    connect: Connect,
    start_gpu_daemon: StartDaemon,
    naming: Naming,
) -> None:
    """Kernels read states as they are; rows are unpacked on their way."""
    daemon = start_gpu_daemon("-hbm-page-bytes=4KiB")
    settings = replace(WARMING, device_is_host_memory=True)
    host = engine(model, connect, daemon, naming)
    hbm = engine(model, connect_gpu, daemon, naming, settings)
    assert hbm._reuse is not None and hbm._reuse.lent is not None
    attached(hbm._reuse.lent._client)
    assert hbm.device_state == ""
    ids = tokens(200)
    host.prefill(ids, CUTS, "splice")
    want = host.prefill(ids, CUTS, "splice")
    wait_until(lambda: hbm.prefill(ids, CUTS, "splice").on_device == 148)
    got = hbm.prefill(ids, CUTS, "splice")
    assert (got.reused, got.on_device, got.computed, got.trouble) == (148, 148, 52, "")
    assert far(got.logits, want.logits) <= 1e-3 * float(want.logits.std())
    assert continued(model, ids, got) == continued(model, ids, want)
    host.prefill(ids, CUTS, "prefix")
    wait_until(lambda: hbm.prefill(ids, CUTS, "prefix").on_device > 0)
