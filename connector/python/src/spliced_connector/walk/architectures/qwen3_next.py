"""Qwen3-Next and the text models of Qwen3.5, as transformers implements them.

They have the gated delta rule with one convolution over q | k | v, gated softmax attention with
partial rope, and dense MLPs or mixtures of experts. Weights are not copied, except the few rows of
the two gate projections, which are joined into one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, sigmoid, silu, softplus

from spliced_connector.model import Attention, Conv, DType, Family, KeyMode, Kind, Linear, Rope
from spliced_connector.walk.base import Architecture, AttentionRows, LinearRows, Steps
from spliced_connector.walk.blocks import Block, Blocks, batched, pre_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    conv_weight,
    float_dtype,
    head_dim,
    layers,
    maybe_child,
    names,
    number,
    plain_weight,
    real,
    require_silu,
    tensor,
)
from spliced_connector.walk.rope import rope_of, turn_of


class _Angles:
    """Computes cos and sin of a walk's positions once for all layers."""

    def __init__(self, inv_freq: Tensor) -> None:
        self._inv_freq = inv_freq.float()
        self.dims = 2 * inv_freq.shape[0]
        self._last: tuple[Tensor, torch.dtype, Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        last = self._last
        if last is None or last[0] is not positions or last[1] != dtype:
            angle = positions[:, None].float() * self._inv_freq
            last = (
                positions,
                dtype,
                angle.cos().to(dtype)[:, None],
                angle.sin().to(dtype)[:, None],
            )
            self._last = last
        return last[2], last[3]


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]), -1)


class _Norm:
    """RMS norm in float32, as in the model. Its weight is stored as an offset from one."""

    def __init__(self, module: nn.Module, eps: float) -> None:
        weight = tensor(module, "weight")
        wide = weight.dtype if weight.dtype == torch.float64 else torch.float32
        self._weight = 1 + weight.to(wide)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.to(self._weight.dtype)
        return rms_norm(wide, self._weight.shape, self._weight, self._eps).to(x.dtype)


@dataclass(frozen=True)
class GatedAttention:
    """Softmax attention whose queries are projected together with an output gate."""

    module: nn.Module
    heads: int
    kv_heads: int
    dim: int
    scale: float
    rope: Rope
    angles: _Angles
    q_norm: _Norm
    k_norm: _Norm
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    biases: tuple[Tensor | None, ...]

    kind = Kind.FULL

    def __post_init__(self) -> None:
        if self.angles.dims != self.rope.dims:
            raise UnsupportedError(
                f"rope turns {self.angles.dims} dimensions, its config says {self.rope.dims}"
            )

    def describe(self, rows: DType) -> Attention:
        return Attention(self.kv_heads, self.dim, self.dim, rows, KeyMode.AT_ZERO, self.rope)

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q, k, v = (linear(x, w, b) for w, b in zip(self.weights[:3], self.biases[:3], strict=True))
        q, gate = q.unflatten(-1, (self.heads, 2 * self.dim)).split(self.dim, -1)
        cos, sin = self.angles(positions, x.dtype)
        return AttentionRows(
            q=_turned(self.q_norm(q), cos, sin),
            k=_turned(self.k_norm(k.unflatten(-1, (self.kv_heads, self.dim))), cos, sin),
            v=v.unflatten(-1, (self.kv_heads, self.dim)),
            rest=(gate,),
        )

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        gated = (o * sigmoid(rows.rest[0])).flatten(-2)
        return linear(gated, self.weights[3], self.biases[3])


@dataclass(frozen=True)
class GatedDelta:
    """The gated delta rule. `project` returns q | k | v [n, C], the output gate z [n, Hv, dv], and
    b | a [n, 2 Hv], from which beta and the decay are computed."""

    module: nn.Module
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    eps: float
    project: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    taps: tuple[Tensor, Tensor | None]
    rate: Tensor  # exp(A_log)
    bias: Tensor
    norm: Tensor
    out_weight: Tensor
    channels: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        keys = self.key_heads * self.key_dim
        object.__setattr__(self, "channels", (keys, keys, self.value_heads * self.value_dim))

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        return Linear(
            family=Family.GDN,
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            state_dtype=state,
            transition_dtype=transition,
            conv=Conv(self.taps[0].shape[1], self.channels, conv),
        )

    def conv_weight(self) -> tuple[Tensor, Tensor | None]:
        return self.taps

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        mixed, z, ba = self.project(x)
        return LinearRows(mixed, (z, ba))

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        if conv_out is None:
            raise UnsupportedError("a gated delta rule without a convolution")
        wide = conv_out.to(self.rate.dtype)
        keys = self.channels[0]
        # Queries and keys are normed together: they have the same heads.
        both = wide[:, : 2 * keys].unflatten(-1, (2 * self.key_heads, self.key_dim))
        both = both * torch.rsqrt(both.square().sum(-1, keepdim=True) + 1e-6)
        b, a = rows.rest[1].split(self.value_heads, -1)
        return Steps(
            q=both[:, : self.key_heads] * self.key_dim**-0.5,
            k=both[:, self.key_heads :],
            v=wide[:, 2 * keys :].unflatten(-1, (self.value_heads, self.value_dim)),
            decay=-self.rate * softplus(a.to(self.rate.dtype) + self.bias),
            beta=sigmoid(b).to(self.rate.dtype),
        )

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        z = rows.rest[0]
        normed = rms_norm(o.to(z.dtype).to(self.rate.dtype), self.norm.shape, None, self.eps)
        gated = self.norm * normed.to(z.dtype) * silu(z.to(self.rate.dtype))
        return linear(gated.to(z.dtype).flatten(-2), self.out_weight)


def _grouped_projection(
    module: nn.Module, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Returns Qwen3-Next's projection: in_proj_qkvz and in_proj_ba are grouped by key head."""
    qkvz, ba = plain_weight(module, "in_proj_qkvz"), plain_weight(module, "in_proj_ba")
    each = value_heads // key_heads
    # Gates in the order b | a, head by head.
    gates = ba.unflatten(0, (key_heads, 2, each)).transpose(0, 1).flatten(0, 2).contiguous()
    sizes = [key_dim, key_dim, each * value_dim, each * value_dim]

    def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, z = linear(x, qkvz).unflatten(-1, (key_heads, sum(sizes))).split(sizes, -1)
        mixed = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), -1)
        return mixed, z.reshape(-1, value_heads, value_dim), linear(x, gates)

    return project


def _plain_projection(
    module: nn.Module, value_heads: int, value_dim: int
) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Returns Qwen3.5's projection, with one matrix each for q | k | v, z, b and a."""
    qkv, z = plain_weight(module, "in_proj_qkv"), plain_weight(module, "in_proj_z")
    gates = torch.cat((plain_weight(module, "in_proj_b"), plain_weight(module, "in_proj_a")))

    def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            linear(x, qkv),
            linear(x, z).unflatten(-1, (value_heads, value_dim)),
            linear(x, gates),
        )

    return project


def _delta(config: object, module: nn.Module) -> GatedDelta:
    require_silu(config)
    key_heads = number(config, "linear_num_key_heads")
    value_heads = number(config, "linear_num_value_heads")
    key_dim, value_dim = (
        number(config, "linear_key_head_dim"),
        number(config, "linear_value_head_dim"),
    )
    if maybe_child(module, "in_proj_qkvz") is not None:
        project = _grouped_projection(module, key_heads, value_heads, key_dim, value_dim)
    else:
        project = _plain_projection(module, value_heads, value_dim)
    taps, conv_bias = conv_weight(child(module, "conv1d"))
    a_log = tensor(module, "A_log")
    wide = a_log.dtype if a_log.dtype == torch.float64 else torch.float32
    return GatedDelta(
        module=module,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        eps=real(config, "rms_norm_eps"),
        project=project,
        # Stored with the tap as the leading dimension: a tap is read as one row.
        taps=(taps.t().contiguous().t(), conv_bias),
        rate=a_log.to(wide).exp(),
        bias=tensor(module, "dt_bias").to(wide),
        norm=tensor(child(module, "norm"), "weight"),
        out_weight=plain_weight(module, "out_proj"),
    )


def _softmax(config: object, module: nn.Module, angles: _Angles) -> GatedAttention:
    dim, eps = head_dim(config), real(config, "rms_norm_eps")
    projections = [child(module, f"{n}_proj") for n in "qkvo"]
    q, k, v, o = (plain_weight(module, f"{n}_proj") for n in "qkvo")
    biases = [getattr(p, "bias", None) for p in projections]
    return GatedAttention(
        module=module,
        heads=number(config, "num_attention_heads"),
        kv_heads=number(config, "num_key_value_heads"),
        dim=dim,
        scale=dim**-0.5,
        rope=rope_of(config, dim),
        angles=angles,
        q_norm=_Norm(child(module, "q_norm"), eps),
        k_norm=_Norm(child(module, "k_norm"), eps),
        weights=(q, k, v, o),
        biases=tuple(b.detach() if isinstance(b, Tensor) else None for b in biases),
    )


def _mlp(config: object, module: nn.Module) -> Callable[[Tensor], Tensor]:
    if maybe_child(module, "experts") is not None:
        return batched(module)
    require_silu(config)
    gate, up, down = (plain_weight(module, f"{n}_proj") for n in ("gate", "up", "down"))

    def dense(x: Tensor) -> Tensor:
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    return dense


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a causal language model of Qwen3-Next or Qwen3.5.

    Raises `UnsupportedError`, which names the module or setting that is not implemented here.
    """
    body = child(model, "model")
    eps = real(config, "rms_norm_eps")
    angles = _Angles(turn_of(child(body, "rotary_emb")).inv_freq)
    blocks: list[Block] = []
    for i, (kind, layer) in enumerate(zip(names(config, "layer_types"), layers(body), strict=True)):
        if kind == "linear_attention":
            mixer: tuple[GatedAttention | None, GatedDelta | None] = (
                None,
                _delta(config, child(layer, "linear_attn")),
            )
        elif kind == "full_attention":
            mixer = (_softmax(config, child(layer, "self_attn"), angles), None)
        else:
            raise UnsupportedError(f"layer {i} is of type {kind!r}")
        before = _Norm(child(layer, "input_layernorm"), eps)
        behind = _Norm(child(layer, "post_attention_layernorm"), eps)
        blocks.append(pre_norm(i, mixer, before, behind, _mlp(config, child(layer, "mlp"))))
    embedding = child(body, "embed_tokens")
    head, final = plain_weight(model, "lm_head"), _Norm(child(body, "norm"), eps)
    table = tensor(embedding, "weight")
    return Blocks(
        blocks,
        lambda ids: table.index_select(0, ids),
        lambda h: linear(final(h), head),
        float_dtype(embedding),
        naming,
    )
