"""Where states and tails lie, found out from layers that keep them in several orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from spliced_connector.model import Conv, DType, Family, Identity, Kind, Layer, Linear, Profile
from spliced_connector.vllm.layout import states as vllm_states
from spliced_connector.vllm.layout.mixers import Mixer, Span
from spliced_connector.vllm.layout.rows import UnsupportedError
from spliced_connector.vllm.layout.states import StateOrder, StatePages, find_states, state_pages

pytestmark = pytest.mark.engine

HEADS, DK, DV, KERNEL = 2, 6, 5, 4
CHANNELS = (HEADS * DK, HEADS * DK, HEADS * DV)
LINEAR = Linear(
    Family.GDN, HEADS, HEADS, DK, DV, DType.F32, DType.F16, Conv(KERNEL, CHANNELS, DType.BF16)
)
PROFILE = Profile(Identity("m", b"w" * 32, (Layer(Kind.LINEAR, linear=LINEAR),)))
TAIL = Profile(
    Identity(
        "m",
        b"w" * 32,
        (Layer(Kind.CONV, linear=Linear(conv=Conv(KERNEL, CHANNELS, DType.BF16))),),
    )
)


class Recurrent:
    """A layer that sums keys times values, in one of the orders that engines have."""

    model_config = SimpleNamespace(dtype=torch.bfloat16)

    def __init__(self, key_major: bool = False, dim_first: bool = False) -> None:
        self.key_major, self.dim_first = key_major, dim_first
        tail = (sum(CHANNELS), KERNEL - 1) if dim_first else (KERNEL - 1, sum(CHANNELS))
        self.kv_cache: tuple[Tensor, ...] = (
            torch.zeros(3, *tail, dtype=torch.bfloat16),
            torch.zeros(3, HEADS, DV, DK),
        )

    def tail(self, caches: tuple[Tensor, ...]) -> Tensor:
        return caches[0][1].T if self.dim_first else caches[0][1]

    def state(self, caches: tuple[Tensor, ...]) -> Tensor:
        if self.key_major:
            return caches[1][1].view(HEADS, DK, DV)
        return caches[1][1].transpose(1, 2)

    def run(self, caches: tuple[Tensor, ...], span: Span) -> Tensor:
        tail, state = self.tail(caches), self.state(caches)
        if span.begin == 0:
            tail.zero_()
            state.zero_()
        seen = torch.cat((tail, span.inputs))
        tail.copy_(seen[1 - KERNEL :])
        out = []
        for t in range(len(span.inputs)):
            mixed = seen[t : t + KERNEL].float().mean(0) * torch.linspace(1, 2, sum(CHANNELS))
            q, k, v = mixed.split(CHANNELS)
            state.mul_(0.9).add_(k.view(HEADS, DK, 1) * v.view(HEADS, 1, DV))
            out.append(torch.einsum("hk,hkv->hv", q.view(HEADS, DK), state))
        return torch.stack(out)


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(module: Any, config: object, caches: tuple[Tensor, ...], span: Span) -> Tensor:
        out: Tensor = module.run(caches, span)
        return out

    known = Mixer(Family.GDN, lambda *_: torch.empty(0), values_last=True)
    monkeypatch.setattr(vllm_states, "run", run)
    monkeypatch.setattr(vllm_states, "mixer_of", lambda _: known)


def find(module: Any, profile: Profile = PROFILE) -> StateOrder:
    config: Any = None
    return find_states(module, profile, 0, config)


@pytest.mark.parametrize("key_major", [False, True])
@pytest.mark.parametrize("dim_first", [False, True])
def test_orders_are_found(key_major: bool, dim_first: bool) -> None:
    layer = Recurrent(key_major, dim_first)
    assert find(layer) == StateOrder(key_major, dim_first)
    assert not any(cache.any() for cache in layer.kv_cache)


def reversed_tail(layer: Recurrent) -> None:
    layer.tail = lambda caches: Recurrent.tail(layer, caches).flip(0)  # type: ignore[method-assign]
    was = layer.run

    def run(caches: tuple[Tensor, ...], span: Span) -> Tensor:
        caches[0][1].copy_(caches[0][1].flip(0))
        layer.tail = lambda caches: Recurrent.tail(layer, caches)  # type: ignore[method-assign]
        out = was(caches, span)
        caches[0][1].copy_(caches[0][1].flip(0))
        return out

    layer.run = run  # type: ignore[method-assign]


def mixed_heads(layer: Recurrent) -> None:
    """States of [key, head, value]."""
    layer.state = lambda caches: caches[1][1].view(DK, HEADS, DV).transpose(0, 1)  # type: ignore


def hidden_state(layer: Recurrent) -> None:
    """Something that is not in the caches goes on too."""
    was = layer.run
    kept: dict[int, float] = {}

    def run(caches: tuple[Tensor, ...], span: Span) -> Tensor:
        out = was(caches, span)
        if span.begin:
            out = out + kept.setdefault(id(caches), float(len(kept)))
        return out

    layer.run = run  # type: ignore[method-assign]


def failing(layer: Recurrent) -> None:
    def run(caches: tuple[Tensor, ...], span: Span) -> Tensor:
        raise AssertionError("no kernel")

    layer.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (reversed_tail, "oldest first"),
        (mixed_heads, "unknown place"),
        (hidden_state, "continue identically"),
        (failing, "Recurrent: AssertionError: no kernel"),
    ],
)
def test_what_is_kept_otherwise_is_refused(change: Callable[[Recurrent], None], why: str) -> None:
    layer = Recurrent()
    change(layer)
    with pytest.raises(UnsupportedError, match=why):
        find(layer)


def test_shapes_and_classes_that_are_not_the_profiles_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = Recurrent()
    layer.kv_cache = (*layer.kv_cache, torch.zeros(3, 4))
    with pytest.raises(UnsupportedError, match="3 caches, want 2"):
        find(layer)
    layer.kv_cache = (torch.zeros(3, 4, 4), layer.kv_cache[1])
    with pytest.raises(UnsupportedError, match="tails of"):
        find(layer)
    other = replace(LINEAR, family=Family.KDA)
    profile = Profile(replace(PROFILE.identity, layers=(Layer(Kind.LINEAR, linear=other),)))
    with pytest.raises(UnsupportedError, match="keeps GDN, want KDA"):
        find(Recurrent(), profile)
    monkeypatch.setattr(vllm_states, "mixer_of", lambda _: None)
    with pytest.raises(UnsupportedError, match="class Recurrent"):
        find(Recurrent())


def test_spread_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_states, "MOST_SCRATCH", 64)
    with pytest.raises(UnsupportedError, match="spread"):
        find(Recurrent())


@pytest.mark.parametrize("key_major", [False, True])
@pytest.mark.parametrize("dim_first", [False, True])
def test_states_are_key_major_outside(key_major: bool, dim_first: bool) -> None:
    layer = Recurrent(key_major, dim_first)
    conv, states = layer.kv_cache
    pages = state_pages(layer, PROFILE, 0, StateOrder(key_major, dim_first))
    assert pages.parts == ("S", "conv")
    state = torch.randn(HEADS, DK, DV)
    tail = torch.randn(KERNEL - 1, sum(CHANNELS)).bfloat16()
    pages.write(2, state, tail)
    inside = states[2].reshape(HEADS, DK, DV) if key_major else states[2].transpose(1, 2)
    assert torch.equal(inside, state)
    assert torch.equal(conv[2].T if dim_first else conv[2], tail)
    read = pages.read(2)
    assert torch.equal(read[0], state)
    assert torch.equal(read[1], tail)
    assert all(part.is_contiguous() for part in read)
    states.zero_()
    assert read[0].abs().sum() > 0
    assert not conv[[0, 1]].any()


def test_states_of_one_value_are_contiguous_copies() -> None:
    """A Mamba1 channel is a head with one value."""
    pages = StatePages(None, torch.randn(2, 4, 1, 6), StateOrder(False, False))
    assert pages.read(1)[0].stride() == (6, 1, 1)


def test_a_layer_may_keep_one_of_the_two() -> None:
    tail, state = torch.randn(3, 7), torch.randn(2, 3, 5)
    alone = StatePages(torch.zeros(2, 3, 7), None, StateOrder(False, False))
    alone.write(1, tail)
    assert alone.parts == ("conv",)
    assert torch.equal(alone.read(1)[0], tail)
    alone = StatePages(None, torch.zeros(2, 2, 3, 5), StateOrder(True, False))
    alone.write(1, state)
    assert alone.parts == ("S",)
    assert torch.equal(alone.read(1)[0], state)
    with pytest.raises(ValueError, match="zip"):
        alone.write(1, state, tail)


def test_convolutions_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Recurrent()
    layer.kv_cache = layer.kv_cache[:1]
    monkeypatch.setattr(
        vllm_states, "mixer_of", lambda _: Mixer(Family.NONE, lambda *_: torch.empty(0))
    )

    def run(caches: tuple[Tensor, ...], span: Span) -> Tensor:
        return Recurrent.run(layer, (*caches, torch.zeros(3, HEADS, DV, DK)), span)

    layer.run = run  # type: ignore[method-assign]
    assert find(layer, TAIL) == StateOrder(False, False)
