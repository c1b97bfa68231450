"""Every walk against transformers: the logits of a prefill, and what a capture keeps."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from engine.walk_cache import canonical, forward
from engine.walk_loop import begin, walk
from engine.walk_models import TINY
from spliced_connector.model import Kind, Profile, Span, SpanKind
from spliced_connector.walk import (
    Architecture,
    Context,
    Naming,
    architecture,
    capture,
    prefill,
    splice,
)

pytestmark = pytest.mark.engine

TOLERANCE = 1e-4
NAMING = Naming(weights=b"\x01" * 32)
Walk = tuple[nn.Module, Architecture]


@pytest.fixture(scope="module", params=sorted(TINY))
def walked(request: pytest.FixtureRequest) -> Walk:
    model = TINY[request.param].build()
    return model, architecture(model, NAMING)


def tokens(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 96), k=n)


def context(arch: Architecture, room: int) -> Context:
    return Context(arch, room, torch.device("cpu"))


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference, next to the largest value."""
    assert got.shape == want.shape
    return float((got - want).detach().abs().max() / want.detach().abs().max().clamp(min=1))


def test_prefill_gives_the_engines_logits(walked: Walk) -> None:
    model, arch = walked
    ids = tokens(70)
    want, _ = forward(model, ids)
    got = arch.logits(prefill(arch, ids, context(arch, 70)))
    assert far(got, want) <= TOLERANCE


def test_the_loop_gives_the_engines_logits(walked: Walk) -> None:
    model, arch = walked
    ids = tokens(24, seed=1)
    want, _ = forward(model, ids)
    assert far(arch.logits(walk(arch, ids, 0, begin(arch))), want) <= TOLERANCE


def test_prefill_in_chunks_equals_one_prefill(walked: Walk) -> None:
    _, arch = walked
    ids = tokens(75, seed=2)
    want = arch.logits(prefill(arch, ids, context(arch, 75)))
    pieces, at = [], context(arch, 10)
    for end in (1, 3, 36, 37, 75):
        pieces.append(prefill(arch, ids[:end], at))
    assert far(arch.logits(torch.cat(pieces)), want) <= TOLERANCE


def test_capture_keeps_what_the_engines_cache_holds(walked: Walk) -> None:
    model, arch = walked
    ids = tokens(40, seed=3)
    _, cache = forward(model, ids)
    spec = Profile(arch.identity).first_spec(40)
    for layer, got in enumerate(capture(arch, ids, spec).layers):
        want = canonical(arch, cache, layer)
        for name in ("state", "conv", "k", "v"):
            ours, theirs = getattr(got, name), getattr(want, name)
            assert (ours is None) == (theirs is None), f"layer {layer}: {name}"
            if ours is not None:
                assert far(ours, theirs) <= TOLERANCE, f"layer {layer}: {name}"


def test_interior_is_cut_from_the_same_isolated_pass(walked: Walk) -> None:
    model, arch = walked
    ids = tokens(40, seed=4)
    spec = Profile(arch.identity).mid_spec(40, 8)
    assert spec is not None
    end = 40 - spec.tail
    _, whole = forward(model, ids)
    _, to_end = forward(model, ids[:end])
    for layer, got in enumerate(capture(arch, ids, spec).layers):
        rows, inputs = canonical(arch, whole, layer), canonical(arch, to_end, layer)
        if got.k is not None and got.v is not None:
            assert rows.k is not None and rows.v is not None
            assert far(got.k, rows.k[spec.head : end]) <= TOLERANCE
            assert far(got.v, rows.v[spec.head : end]) <= TOLERANCE
        if got.conv is not None:
            assert inputs.conv is not None
            assert far(got.conv, inputs.conv) <= TOLERANCE


def test_one_leading_segment_gives_the_engines_logits(walked: Walk) -> None:
    model, arch = walked
    ids = tokens(64, seed=5)
    want, _ = forward(model, ids)
    segment = capture(arch, ids[:45], Profile(arch.identity).first_spec(45))
    spans = [Span(SpanKind.SEGMENT, 0, 45, 0), Span(SpanKind.RECOMPUTE, 45, 19)]
    h = splice(arch, ids, spans, {0: segment}, context(arch, 64))
    assert h is not None
    assert far(arch.logits(h), want[45:]) <= TOLERANCE


def test_layers_name_their_place_in_the_engines_cache(walked: Walk) -> None:
    _, arch = walked
    assert len(arch.slots) == len(arch.layers) == len(arch.identity.layers)
    assert list(arch.slots) == sorted(arch.slots)
    kinds = set(zip(arch.slots, arch.layers, strict=True))
    assert len(kinds) == len(arch.layers), "two layers of one kind in one slot"
    assert arch.layers == tuple(at.kind for at in arch.identity.layers)
    assert any(kind != Kind.NONE for kind in arch.layers)
