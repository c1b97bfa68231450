"""Gated DeltaNet-2 (arXiv 2605.22791) as a mixer of a small model, against the paper's equation.

No engine has a model of it yet, so the layer is written out here: projections as the paper has
them, and the recurrence one token at a time in float64.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.walk_loop import begin, place, walk
from spliced_connector.model import Family, Profile, Span, SpanKind
from spliced_connector.walk import Context, Naming, capture, prefill, splice
from spliced_connector.walk.blocks import Blocks, pre_norm
from spliced_connector.walk.delta import Delta, DeltaSizes

pytestmark = pytest.mark.engine

HIDDEN, VOCABULARY, KERNEL = 40, 64, 4
SIZES = DeltaSizes(key_heads=2, value_heads=4, key_dim=8, value_dim=6)
KEYS, VALUES = 16, 24


class Norm(nn.Module):  # type: ignore[misc]
    """RMS norm, gated where there is a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        x = functional.rms_norm(x, x.shape[-1:], self.weight)
        return x if gate is None else x * functional.silu(gate)


class Layer(nn.Module):  # type: ignore[misc]
    """The projections and gates of the layer, with more value heads than key heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.b_proj, self.f_proj = (
            nn.Linear(HIDDEN, KEYS, bias=False) for _ in range(4)
        )
        self.v_proj, self.w_proj, self.g_proj = (
            nn.Linear(HIDDEN, VALUES, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(VALUES, HIDDEN, bias=False)
        channels = 2 * KEYS + VALUES
        self.conv1d = nn.Conv1d(channels, channels, KERNEL, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.zeros(SIZES.key_heads))
        self.dt_bias = nn.Parameter(torch.zeros(KEYS))
        self.o_norm = Norm(SIZES.value_dim)

    def forget(self, x: Tensor) -> Tensor:
        """The logarithm of the decay of every key channel."""
        step = functional.softplus(self.f_proj(x) + self.dt_bias)
        decay = -self.A_log.exp()[:, None] * step.unflatten(-1, (SIZES.key_heads, SIZES.key_dim))
        return decay.repeat_interleave(2, -2)

    def erase(self, x: Tensor) -> Tensor:
        """Up to 2, so that the state may turn over."""
        gate = 2 * self.b_proj(x).sigmoid()
        return gate.unflatten(-1, (SIZES.key_heads, SIZES.key_dim))

    def write(self, x: Tensor) -> Tensor:
        return self.w_proj(x).sigmoid().unflatten(-1, (SIZES.value_heads, SIZES.value_dim))


def delta(layer: Layer) -> Delta:
    return Delta(
        module=layer,
        family=Family.GDN2,
        sizes=SIZES,
        forget=layer.forget,
        write=layer.write,
        gate=layer.g_proj,
        erase=layer.erase,
    )


def drawn(module: nn.Module, seed: int) -> nn.Module:
    """With seeded weights, and decays so slow that a transition is something to see."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("dt_bias"):
                weight.copy_(noise - 4)
            elif weight.dim() == 1:
                weight.add_(0.3 * noise)
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5)
    return module


@pytest.fixture(scope="module")
def arch() -> Blocks:
    blocks = []
    for i in range(2):
        layer = drawn(Layer(), i)
        assert isinstance(layer, Layer)
        mlp = drawn(nn.Sequential(nn.Linear(HIDDEN, 56), nn.SiLU(), nn.Linear(56, HIDDEN)), 7 + i)
        blocks.append(pre_norm(i, (None, delta(layer)), Norm(HIDDEN), Norm(HIDDEN), mlp))
    embedding = drawn(nn.Embedding(VOCABULARY, HIDDEN), 20)
    head = drawn(nn.Linear(HIDDEN, VOCABULARY, bias=False), 21)
    naming = Naming(b"\x03" * 32, "gdn2")
    return Blocks(blocks, embedding, head, torch.float32, naming)


def by_the_paper(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The last state and the product of the transitions, token by token from a zero state.

    S = (I - k (b * k)^T) D S + k (w * v)^T, D the decay of every key channel.
    """
    x = x.double()
    qkv = torch.cat((layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)), -1)
    padded = functional.pad(qkv.T, (KERNEL - 1, 0))
    qkv = functional.silu(layer.conv1d(padded[None])[0].T)
    _, k, v = qkv.split([KEYS, KEYS, VALUES], -1)
    k = functional.normalize(k.unflatten(-1, (2, 8)), dim=-1).repeat_interleave(2, 1)
    v, decay = v.unflatten(-1, (4, 6)), layer.forget(x).exp()
    b, w = layer.erase(x).repeat_interleave(2, 1), layer.write(x)
    state, product = torch.zeros(4, 8, 6).double(), torch.eye(8).double().repeat(4, 1, 1)
    for t in range(len(x)):
        keep = torch.eye(8).double() - k[t, :, :, None] * (b[t] * k[t])[:, None, :]
        step = keep * decay[t][:, None, :]
        state = step @ state + k[t, :, :, None] * (w[t] * v[t])[:, None, :]
        product = step @ product
    return state, product


def far(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max().clamp(min=1))


def tokens(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=n)


def test_a_capture_is_what_the_equation_says(arch: Blocks) -> None:
    ids = tokens(70, 1)
    first = Profile(arch.identity).first_spec(70)
    layer = drawn(Layer(), 0)
    assert isinstance(layer, Layer)
    with torch.no_grad():
        x = arch.norm(0, arch.embed(torch.tensor(ids)))
        state, product = by_the_paper(layer.double(), x)
    got = capture(arch, ids, first).layers[0]
    assert got.transition is not None and got.state is not None
    assert far(got.state, state) < 1e-5
    assert far(got.transition, product) < 1e-5
    assert float(product.abs().max()) > 0.01, "nothing is left of the state before"


def test_a_prefill_is_the_loop_over_tokens(arch: Blocks) -> None:
    ids = tokens(150, 2)
    got = prefill(arch, ids, Context(arch, 150, torch.device("cpu")))
    assert far(got, walk(arch, ids, 0, begin(arch))) < 1e-5


def test_a_splice_is_the_loop_with_the_segments_placed(arch: Blocks) -> None:
    """A leading segment and one behind it, whose ends are computed again at the seams."""
    profile, w = Profile(arch.identity), 4
    ids = tokens(130, 3)
    first = capture(arch, ids[:50], profile.first_spec(50))
    spec = profile.mid_spec(60, w)
    assert spec is not None
    second = capture(arch, ids[50:110], spec)
    head, inside = spec.interior
    spans = [
        Span(SpanKind.SEGMENT, 0, 50, 0),
        Span(SpanKind.RECOMPUTE, 50, head),
        Span(SpanKind.SEGMENT, 50 + head, inside, 1),
        Span(SpanKind.RECOMPUTE, 50 + head + inside, 130 - 50 - head - inside),
    ]
    segments = {0: first, 1: second}
    got = splice(arch, ids, spans, segments, Context(arch, 130, torch.device("cpu")))
    assert got is not None
    states = begin(arch)
    place(arch, first, 0, states)
    walk(arch, ids[50 : 50 + head], 50, states)
    place(arch, second, 50 + head, states)
    at = 50 + head + inside
    want = walk(arch, ids[at:], at, states)
    assert far(got[-len(want) :], want) < 1e-5
    whole = walk(arch, ids, 0, begin(arch))
    assert far(got[-len(want) :], whole[at:]) > 1e-4, "a splice that approximates nothing"
