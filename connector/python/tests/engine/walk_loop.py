"""The dumbest driver of a walk: one token at a time, nothing clever.

It keeps states, convolution inputs and rows as plain lists in float64, and is what the fast
driver and transformers are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spliced_connector.model import Kind
from spliced_connector.walk import Architecture, Captured, Steps


@dataclass
class LayerState:
    """What one layer remembers: state [Hv, dk, dv], past convolution inputs, rows K and V.

    steps are those that moved the state, one of one row per token.
    """

    state: Tensor | None = None
    steps: list[Steps] = field(default_factory=list)
    conv: list[Tensor] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)


def begin(arch: Architecture) -> list[LayerState]:
    return [LayerState() for _ in arch.layers]


def walk(arch: Architecture, ids: list[int], at: int, states: list[LayerState]) -> Tensor:
    """Hidden rows of ids, whose first token stands at position `at`, on top of the states."""
    out = []
    with torch.no_grad():
        for i, token in enumerate(ids):
            h = arch.embed(torch.tensor([token]))
            position = torch.tensor([at + i])
            for layer, kind in enumerate(arch.layers):
                x = arch.norm(layer, h)
                y = mixer(arch, layer, kind, x, position, states[layer])
                h = arch.mix(layer, h, y)
            out.append(h)
    return torch.cat(out)


def mixer(
    arch: Architecture, layer: int, kind: Kind, x: Tensor, position: Tensor, state: LayerState
) -> Tensor:
    """What a layer's mixer makes of one row."""
    if kind == Kind.NONE:
        return x
    if kind == Kind.LINEAR:
        return _linear(arch, layer, x, position, state)
    return _softmax(arch, layer, x, position, state)


def _linear(
    arch: Architecture, layer: int, x: Tensor, position: Tensor, state: LayerState
) -> Tensor:
    rows = arch.linear(layer, x, position)
    conv_out = None
    if rows.conv is not None:
        state.conv.append(rows.conv[0])
        conv_out = convolve(arch, layer, state.conv)
    steps = arch.steps(layer, conv_out, rows, position)
    state.steps.append(steps)
    o, state.state = step(steps, state.state)
    return arch.linear_out(layer, o[None].to(steps.v.dtype), rows)


def _softmax(
    arch: Architecture, layer: int, x: Tensor, position: Tensor, state: LayerState
) -> Tensor:
    rows = arch.attention(layer, x, position)
    state.k.append(rows.k[0])
    state.v.append(rows.v[0])
    q, k, v = rows.q[0].double(), torch.stack(state.k).double(), torch.stack(state.v).double()
    if arch.layers[layer] == Kind.MLA:
        k = torch.cat((v, k), dim=-1)
    share = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    weights = torch.einsum("hd,nhd->hn", q, k).mul(arch.scale(layer)).softmax(-1)
    return arch.attention_out(layer, torch.einsum("hn,nhd->hd", weights, v)[None], rows)


def convolve(arch: Architecture, layer: int, inputs: list[Tensor]) -> Tensor:
    """The last row of the causal convolution behind SiLU, [1, C]."""
    given = arch.conv_weight(layer)
    assert given is not None
    taps, bias = given
    total = torch.zeros(taps.shape[0]) if bias is None else bias.clone()
    for i in range(min(taps.shape[1], len(inputs))):
        total = total + taps[:, -1 - i] * inputs[-1 - i]
    return torch.nn.functional.silu(total)[None]


def step(steps: Steps, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The only token of steps in float64: output [Hv, dv] and the state behind it."""
    heads, dv = steps.v.shape[1:]
    share = heads // steps.k.shape[1]
    q, k = (t[0].double().repeat_interleave(share, dim=0) for t in (steps.q, steps.k))
    v, decay = steps.v[0].double(), steps.decay[0].double().exp()
    if state is None:
        state = torch.zeros(heads, k.shape[-1], dv, dtype=torch.float64)
    state = state * (decay[:, :, None] if decay.dim() == 2 else decay[:, None, None])
    if steps.beta is not None:
        held = torch.einsum("hk,hkv->hv", k, state)
        v = (v - held) * steps.beta[0].double()[:, None]
    if steps.erase is not None:
        v = v - torch.einsum("hk,hkv->hv", steps.erase[0].double(), state)
    state = state + k[:, :, None] * v[:, None]
    o = torch.einsum("hk,hkv->hv", q, state)
    return o if steps.skip is None else o + steps.skip[0].double(), state


def place(arch: Architecture, segment: Captured, start: int, states: list[LayerState]) -> None:
    """Puts a segment's interior behind the states: its first token stands at `start`."""
    for layer, (part, at) in enumerate(zip(segment.layers, states, strict=True)):
        if part.transition is not None and part.state is not None:
            at.state = compose(part.transition, part.state, at.state)
        if part.conv is not None:
            at.conv = list(part.conv)
        if part.k is not None and part.v is not None:
            rope = arch.identity.layers[layer].attention.rope
            moved = turned(part.k, start - segment.spec.head, rope.frequencies, rope.interleaved)
            at.k.extend(moved)
            at.v.extend(part.v)


def compose(transition: Tensor, state: Tensor, before: Tensor | None) -> Tensor:
    """T before + S in float64."""
    t, s = transition.double(), state.double()
    if before is None:
        return s
    if t.dim() == 3:
        return torch.einsum("hij,hjv->hiv", t, before) + s
    return t.reshape(*t.shape, *[1] * (3 - t.dim())) * before + s


def turned(
    keys: Tensor, distance: int, frequencies: tuple[float, ...], interleaved: bool
) -> Tensor:
    """Keys [n, heads, dim] moved by a distance, as rotations of complex numbers."""
    half = len(frequencies)
    first = torch.arange(half) * (2 if interleaved else 1)
    second = first + (1 if interleaved else half)
    wide = keys.to(torch.float64, copy=True)
    angle = distance * torch.tensor(frequencies, dtype=torch.float64)
    pairs = torch.complex(wide[..., first], wide[..., second])
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    wide[..., first], wide[..., second] = pairs.real, pairs.imag
    return wide.to(keys.dtype)
