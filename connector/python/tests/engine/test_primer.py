"""Captures after a primer, against a loop over the primer's and the segment's tokens in float64."""

from __future__ import annotations

import hashlib
import random
import struct
from copy import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.ring_model import LING, RING
from engine.ring_model import build as build_ring
from engine.walk_loop import LayerState, begin, step, turned, walk
from engine.walk_models import TINY
from spliced_connector.model import Kind, PlanError, Profile, Rope, SegmentSpec
from spliced_connector.walk import (
    Architecture,
    Captured,
    Naming,
    Primer,
    SegmentLayer,
    architecture,
    capture,
    capture_all,
    families,
    make_primer,
)

pytestmark = pytest.mark.engine

RINGS = {"ring": RING, "ling_2.5": LING}
P = 23
PARTS = ("transition", "state", "conv", "k", "v")


@pytest.fixture(scope="module", params=sorted(TINY) + sorted(RINGS))
def arch(request: pytest.FixtureRequest) -> Architecture:
    name = request.param
    model = build_ring(RINGS[name]) if name in RINGS else TINY[name].build()
    return architecture(model, Naming(weights=b"\x05" * 32))


@pytest.fixture(scope="module")
def hybrid() -> Architecture:
    return architecture(TINY["olmo"].build(), Naming(weights=b"\x05" * 32))


def tokens(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 96), k=n)


def mid(arch: Architecture, n: int) -> SegmentSpec:
    spec = Profile(arch.identity).mid_spec(n, 6)
    assert spec is not None
    return spec


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference, next to the largest value."""
    assert got.shape == want.shape
    return float((got - want).detach().abs().max() / want.detach().abs().max().clamp(min=1e-6))


def apart(one: Captured, other: Captured) -> float:
    """The largest difference of any part of two captures."""
    errors = [0.0]
    for a, b in zip(one.layers, other.layers, strict=True):
        for name in PARTS:
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            if x is not None:
                errors.append(far(x, y))
    return max(errors)


def through(at: LayerState, first: int, n: int, state: Tensor) -> Tensor:
    """The state after n of a layer's steps, in float64."""
    for steps in at.steps[first : first + n]:
        _, state = step(steps, state)
    return state


@pytest.mark.parametrize("length", [41, 2])
def test_a_capture_after_a_primer_is_cut_from_a_pass_over_both(
    arch: Architecture, length: int
) -> None:
    """41 tokens with seams, and 2 that are fewer than a convolution looks back on."""
    before, ids = tokens(P, 1), tokens(length, 2)
    spec = mid(arch, length) if length > 2 else Profile(arch.identity).first_spec(length)
    loop = begin(arch)
    walk(arch, before + ids[: length - spec.tail], 0, loop)
    got = capture(arch, ids, spec, primer=make_primer(arch, before))
    first, n = P + spec.head, spec.interior[1]
    for layer, (part, at) in enumerate(zip(got.layers, loop, strict=True)):
        described = arch.identity.layers[layer]
        if part.k is not None and part.v is not None:
            rope = described.attention.rope
            keys = torch.stack(at.k[first : first + n])
            back = turned(keys, -P, rope.frequencies, rope.interleaved)
            assert far(part.k, back) <= 1e-4, layer
            assert far(part.v, torch.stack(at.v[first : first + n])) <= 1e-4, layer
        if part.conv is not None:
            assert far(part.conv, torch.stack(at.conv[-len(part.conv) :])) <= 1e-4, layer
        if part.transition is not None and part.state is not None:
            rope = described.linear.rope
            zero = torch.zeros(part.state.shape, dtype=torch.float64)
            written = through(at, first, n, zero)
            assert far(part.state.double(), families.rotate_state(written, -P, rope)) <= 1e-4, layer
            any_state = torch.randn(zero.shape, dtype=torch.float64)
            kept = through(at, first, n, any_state) - written
            ours = families.compose(part.transition, torch.zeros_like(zero), any_state)
            assert far(ours, kept) <= 1e-4, layer


def test_a_batch_may_mix_primers_and_neighbours_do_not_show(arch: Architecture) -> None:
    primers = [make_primer(arch, tokens(n, seed)) for n, seed in ((P, 1), (9, 3))]
    wanted = [(tokens(n, 10 + n), mid(arch, n)) for n in (41, 30, 64, 35)]
    chosen = [primers[0], None, primers[1], primers[0]]
    alone = [
        capture(arch, ids, spec, primer=primer)
        for (ids, spec), primer in zip(wanted, chosen, strict=True)
    ]
    for one, other in zip(capture_all(arch, wanted, None, chosen), alone, strict=True):
        assert apart(one, other) <= 1e-4
    turned_round = capture_all(arch, wanted[::-1], None, chosen[::-1])
    for one, other in zip(turned_round[::-1], alone, strict=True):
        assert apart(one, other) <= 1e-4


def test_what_was_captured_before_does_not_show(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: a primer is used any number of times, and nothing is written to it. A recurrence
    may overwrite the state that it is given; this one does."""
    advance = families.Scan.advance

    def overwriting(self: families.Scan, run: int, state: Tensor) -> Tensor:
        after = advance(self, run, state.clone())
        state.fill_(torch.nan)
        return after

    monkeypatch.setattr(families.Scan, "advance", overwriting)
    ids, spec, primer = tokens(41, 2), mid(arch, 41), make_primer(arch, tokens(P, 1))
    kept = [[x.clone() for x in parts(layer)] for layer in primer.layers]
    first = capture(arch, ids, spec, primer=primer)
    capture_all(arch, [(tokens(50, 5), mid(arch, 50)), (ids, spec)], None, [primer, None])
    again = capture(arch, ids, spec, primer=primer)
    remade = capture(arch, ids, spec, primer=make_primer(arch, tokens(P, 1)))
    for at, then, other in zip(first.layers, again.layers, remade.layers, strict=True):
        for x, y, z in zip(parts(at), parts(then), parts(other), strict=True):
            assert torch.equal(x, y)
            assert torch.equal(x, z)
    for layer, before in zip(primer.layers, kept, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(parts(layer), before, strict=True))


def parts(layer: SegmentLayer) -> list[Tensor]:
    found = [getattr(layer, name) for name in PARTS]
    return [x for x in found if x is not None]


def test_each_token_of_a_primer_shows(hybrid: Architecture) -> None:
    ids, spec, before = tokens(41, 2), mid(hybrid, 41), tokens(P, 1)
    alone = capture(hybrid, ids, spec)
    primed = capture(hybrid, ids, spec, primer=make_primer(hybrid, before))
    assert apart(primed, alone) > 1e-2
    for i in (0, P - 1):
        changed = [*before[:i], before[i] % 90 + 4, *before[i + 1 :]]
        other = capture(hybrid, ids, spec, primer=make_primer(hybrid, changed))
        assert apart(primed, other) > 1e-3


def test_a_primer_is_named_by_its_tokens_alone(hybrid: Architecture) -> None:
    ids = [7, 70, 5, 64]
    primer = make_primer(hybrid, ids)
    assert primer.digest == hashlib.sha256(struct.pack("<4I", *ids)).digest()
    assert (primer.ids, primer.tokens) == (tuple(ids), 4)
    assert make_primer(hybrid, torch.tensor(ids)).digest == primer.digest


def test_a_primer_of_another_model_is_refused(hybrid: Architecture) -> None:
    other = architecture(TINY["olmo"].build(), Naming(weights=b"\x06" * 32))
    ids, spec = tokens(41, 2), mid(hybrid, 41)
    with pytest.raises(PlanError, match="another model"):
        capture(hybrid, ids, spec, primer=make_primer(other, tokens(P, 1)))
    same = architecture(TINY["olmo"].build(), Naming(weights=b"\x05" * 32))
    capture(hybrid, ids, spec, primer=make_primer(same, tokens(P, 1)))


def test_primers_that_do_not_match_the_segments_are_refused(hybrid: Architecture) -> None:
    primer = make_primer(hybrid, tokens(P, 1))
    wanted = [(tokens(41, 2), mid(hybrid, 41))]
    with pytest.raises(PlanError, match="2 primers for 1"):
        capture_all(hybrid, wanted, None, [primer, None])
    with pytest.raises(PlanError, match="without tokens"):
        make_primer(hybrid, [])


def test_a_state_that_cannot_be_moved_has_no_primer(hybrid: Architecture) -> None:
    """A dense transition does not commute with a turn."""
    layers = [
        replace(layer, linear=replace(layer.linear, rope=Rope(dims=4, theta=1e4)))
        if layer.kind == Kind.LINEAR
        else layer
        for layer in hybrid.identity.layers
    ]
    other = copy(hybrid)
    other.identity = replace(hybrid.identity, layers=tuple(layers))  # type: ignore[misc]
    with pytest.raises(PlanError, match="no primer: layer 0"):
        make_primer(other, tokens(P, 1))


def test_a_primer_is_what_a_context_holds_at_the_positions_before_zero(arch: Architecture) -> None:
    """A chain of primers: the second's tokens, captured whole after the first, hold its rows."""
    before, ids = tokens(P, 1), tokens(30, 2)
    both, one = make_primer(arch, before + ids), make_primer(arch, before)
    whole: Primer = both
    got = capture(arch, ids, Profile(arch.identity).first_spec(30), primer=one)
    for layer, (part, at) in enumerate(zip(got.layers, whole.layers, strict=True)):
        described = arch.identity.layers[layer]
        if part.k is not None and at.k is not None and part.v is not None and at.v is not None:
            rope = described.attention.rope
            moved = turned(part.k, -30, rope.frequencies, rope.interleaved)
            assert far(moved, at.k[P:]) <= 1e-4, layer
            assert far(part.v, at.v[P:]) <= 1e-4, layer
        if part.state is not None and part.transition is not None and at.state is not None:
            before_it = one.layers[layer].state
            assert before_it is not None
            behind = families.compose(part.transition, part.state, before_it)
            moved = families.rotate_state(behind, -30, described.linear.rope)
            assert far(moved, at.state) <= 1e-4, layer
