"""What captures keep of interiors, against a loop over tokens in float64."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from engine.walk_loop import LayerState, begin, compose, place, step, walk
from engine.walk_models import TINY
from spliced_connector.model import Kind, Profile, Span, SpanKind
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    Naming,
    architecture,
    capture,
    splice,
)

pytestmark = pytest.mark.engine

WIDTH = 6


@pytest.fixture(scope="module", params=sorted(TINY))
def arch(request: pytest.FixtureRequest) -> Architecture:
    return architecture(TINY[request.param].build(), Naming(weights=b"\x01" * 32))


def far(got: Tensor, want: Tensor) -> float:
    return float((got - want).detach().abs().max() / want.detach().abs().max())


def tokens(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 96), k=n)


def mid(arch: Architecture, ids: list[int]) -> Captured:
    spec = Profile(arch.identity).mid_spec(len(ids), WIDTH)
    assert spec is not None
    return capture(arch, ids, spec)


def looped(at: LayerState, segment: Captured, state: Tensor) -> Tensor:
    """The state behind the interior's own steps, one at a time."""
    first, n = segment.spec.interior
    for steps in at.steps[first : first + n]:
        _, state = step(steps, state)
    return state


def test_composing_two_interiors_moves_a_state_as_their_steps_do(arch: Architecture) -> None:
    passages = [tokens(27, 1), tokens(33, 2)]
    segments = [mid(arch, ids) for ids in passages]
    alone = []
    for ids in passages:
        states = begin(arch)
        walk(arch, ids, 0, states)
        alone.append(states)
    linear = [i for i, kind in enumerate(arch.layers) if kind == Kind.LINEAR]
    for layer in linear:
        d = arch.identity.layers[layer].linear
        shape = (d.value_heads, d.key_dim, d.value_dim)
        state = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        want = got = state
        for segment, states in zip(segments, alone, strict=True):
            part = segment.layers[layer]
            assert part.transition is not None
            assert part.state is not None
            assert float(part.transition.abs().max()) > 0.1, "a transition that nobody would miss"
            got = compose(part.transition, part.state, got)
            want = looped(states[layer], segment, want)
        assert far(got, want) <= 2e-5


def test_a_splice_equals_the_loop_over_its_spans(arch: Architecture) -> None:
    first, second, third, query = (tokens(n, 10 + n) for n in (21, 26, 31, 9))
    segments = {
        0: capture(arch, first, Profile(arch.identity).first_spec(len(first))),
        1: mid(arch, second),
        2: mid(arch, third),
    }
    ids = first + second + third + query
    spans, at = [Span(SpanKind.SEGMENT, 0, len(first), 0)], len(first)
    for i in (1, 2):
        head, n = segments[i].spec.interior
        head += segments[1].spec.tail if i == 2 else 0
        spans.append(Span(SpanKind.RECOMPUTE, at, head))
        spans.append(Span(SpanKind.SEGMENT, at + head, n, i))
        at += head + n
    spans.append(Span(SpanKind.RECOMPUTE, at, len(ids) - at))

    states = begin(arch)
    for span in spans:
        if span.kind is SpanKind.SEGMENT:
            place(arch, segments[span.segment], span.start, states)
        else:
            want = walk(arch, ids[span.start : span.end], span.start, states)
    got = splice(arch, ids, spans, segments, Context(arch, len(ids), torch.device("cpu")))
    assert got is not None
    assert far(arch.logits(got), arch.logits(want)) <= 1e-4
