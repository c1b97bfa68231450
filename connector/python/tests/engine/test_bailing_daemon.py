"""Ring and Ling through a running daemon: what it composes and turns is what a walk does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from client_samples import Connect, key_of
from engine.hf_requests import CUTS, NAMING, answer, continued, engine, far, own
from engine.ring_model import LING, RING, build
from engine.walk_models import TINY
from running import Daemon
from spliced_connector.client import NewSegment, Plan, PlanSpan, release_all
from spliced_connector.model import ALL_LAYERS, Layout, Profile, Span, SpanKind
from spliced_connector.walk import (
    Context,
    Naming,
    SegmentLayer,
    architecture,
    by_layer,
    capture,
    run,
    tensor_over,
    unpack,
)
from spliced_connector.walk.segments import pack

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")


def tokens(n: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(3, 96), k=n)


def layers(n: int, layout: Layout, memory: memoryview) -> tuple[SegmentLayer, ...]:
    parts = [
        tensor_over(memory[p.offset : p.offset + p.nbytes], p.dtype, p.shape) for p in layout.parts
    ]
    return by_layer(n, layout, parts)


def close(got: Tensor | None, want: Tensor | None) -> bool:
    assert got is not None
    assert want is not None
    return far(got, want) <= 1e-5 * float(want.abs().max())


@pytest.mark.parametrize("name", ["ring", "ling_2.5"])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_the_daemon_turns_states_and_rows_as_a_walk_does(
    name: str, order: Sequence[int], connect: Connect, daemon: Daemon
) -> None:
    arch = architecture(build({"ring": RING, "ling_2.5": LING}[name]), Naming(b"\x05" * 32))
    profile, n = Profile(arch.identity), len(arch.layers)
    model = connect(daemon.socket).model(arch.identity, block_tokens=16)
    pieces = [tokens(n, seed=n) for n in (30, 41, 52)]
    # Without seams: all of the prompt is segments, and the daemon can place all of it.
    specs = [profile.first_spec(30), profile.mid_spec(41, 0), profile.mid_spec(52, 0)]
    new = []
    for ids, spec in zip(pieces, specs, strict=True):
        assert spec is not None
        new.append(NewSegment(spec, ids, pack(profile, capture(arch, ids, spec))))
    assert not any(model.publish(new))
    held = model.acquire([key_of(model, s) for s in new])
    assert None not in held

    ids = [t for i in order for t in pieces[i]]
    ends = [sum(len(pieces[i]) for i in order[:k]) for k in range(4)]
    at = list(zip(order, pairwise(ends), strict=True))
    spans = [Span(SpanKind.SEGMENT, a, b - a, i) for i, (a, b) in at]
    stored = {i: unpack(profile, new[i].spec, s) for i, s in enumerate(held) if s is not None}
    context = Context(arch, len(ids), CPU)
    assert run.splice(arch, ids, spans, stored, context) is None

    plan = Plan(0, len(ids), [PlanSpan(a, b - a, held[i]) for i, (a, b) in at])
    states, rows = model.compose(plan), model.rotate(plan)
    assert states is not None
    assert rows is not None
    for i, got in enumerate(layers(n, profile.states_layout(ALL_LAYERS, 0), states.view())):
        if got.state is not None:
            assert close(got.state, context.layers[i].state)
    layout = profile.rows_layout(ALL_LAYERS, len(ids))
    for i, got in enumerate(layers(n, layout, rows.view())):
        if got.k is not None:
            assert close(got.k, context.layers[i].k)
            assert close(got.v, context.layers[i].v)
    assert states.release()
    assert rows.release()
    assert all(release_all([s for s in held if s is not None]))


def test_ling_3_goes_on_behind_a_prefix(connect: Connect, daemon: Daemon) -> None:
    model = TINY["bailing"].build()
    e = engine(model, connect, daemon)
    ids = tokens(200)
    assert e.prefill(ids, CUTS, "prefix").reused == 0
    warm = e.prefill(ids, CUTS, "prefix")
    assert (warm.reused >= 160, warm.trouble) == (True, "")
    assert far(warm.logits, own(model, ids)) <= 1e-4
    assert continued(model, ids, warm) == answer(model, ids)


def test_segments_of_ling_3_that_change_places_are_those_of_a_walk(
    connect: Connect, daemon: Daemon
) -> None:
    model = TINY["bailing"].build()
    e = engine(model, connect, daemon)
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    moved = [*tokens(60, seed=7), *ids[120:180], *ids[60:120], *ids[180:]]
    done = e.prefill(moved, CUTS, "splice")
    # Interiors of 44 tokens are held, the leading segment is run first.
    assert (done.reused, done.captured, done.computed) == (88, 60, 52)

    arch, context = architecture(model, NAMING), Context(architecture(model, NAMING), 200, CPU)
    profile = Profile(arch.identity)
    specs = [profile.first_spec(60), profile.mid_spec(60, 8), profile.mid_spec(60, 8)]
    segments = {
        i: capture(arch, moved[a : a + 60], spec)
        for i, (a, spec) in enumerate(zip(CUTS, specs, strict=False))
        if spec is not None
    }
    spans = [Span(SpanKind.SEGMENT, 0, 60, 0)]
    for i, (a, b) in enumerate(((68, 112), (128, 172)), 1):
        spans.append(Span(SpanKind.RECOMPUTE, spans[-1].end, a - spans[-1].end))
        spans.append(Span(SpanKind.SEGMENT, a, b - a, i))
    spans.append(Span(SpanKind.RECOMPUTE, 172, 28))
    h = run.splice(arch, moved, spans, segments, context)
    assert h is not None
    with torch.no_grad():
        assert far(done.logits, arch.logits(h)[-1]) <= 1e-4
    assert far(done.logits, own(model, moved)) > 1e-3, "a splice is an approximation"
