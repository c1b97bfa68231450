"""The layer walk over modules that a serving engine loaded.

A walk calls the projections, norms, rotary embeddings, gates and MLPs of the engine, so weights
exist once, and quantised or packed ones work as they do there. The mixers' cores, attention over
the paged cache and the chunked recurrence, are not called: what they read from the engine's
metadata does not exist outside of its forward pass. The operators below them are, where `kernels`
knows them; else torch does their work.

What differs between engines is how a layer's modules are found and called; adapters make the
mixers. Rows are [n, hidden], without a batch axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Identity
from spliced_connector.walk import AttentionRows, Kernels, LinearRows, Steps

# Added to the squared norm of queries and keys, as in the engines' kernels.
_NORM_EPSILON = 1e-6


def apply(linear: nn.Module, x: Tensor) -> Tensor:
    """The output of an engine's linear layer, which answers (output, bias) or the output."""
    out = linear(x)
    return out[0] if isinstance(out, tuple) else out


@dataclass(frozen=True)
class Attention:
    """Softmax attention with or without norms of queries and keys and an output gate.

    project: of rows and their positions: q, k and v, turned, and the gate or None; any of them as
    [n, heads, dim] or [n, heads * dim].
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor | None]]
    o_proj: nn.Module

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q, k, v, gate = self.project(x, positions)
        n = len(x)
        return AttentionRows(
            q.reshape(n, self.heads, self.head_dim),
            k.reshape(n, self.kv_heads, self.head_dim),
            v.reshape(n, self.kv_heads, self.head_dim),
            () if gate is None else (gate,),
        )

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        o = o.reshape(len(o), -1)
        if rows.rest:
            o = o * torch.sigmoid(rows.rest[0].reshape(len(o), -1))
        return apply(self.o_proj, o)


@dataclass(frozen=True)
class Delta:
    """The gated delta rule of Qwen3-Next and Qwen3.5.

    split: of rows: the convolution's inputs [n, C] as [q | k | v], z [n, heads, dv], and b and a
    [n, heads]. conv [C, kernel], a_log and dt_bias [heads].
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    split: Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
    norm: nn.Module
    out_proj: nn.Module

    def rows(self, x: Tensor) -> LinearRows:
        qkv, z, b, a = self.split(x)
        return LinearRows(qkv, (z.reshape(len(x), self.value_heads, self.value_dim), b, a))

    def steps(self, conv: Tensor, rows: LinearRows) -> Steps:
        keys = self.key_heads * self.key_dim
        q, k, v = conv.float().split([keys, keys, conv.shape[-1] - 2 * keys], dim=-1)
        n = len(conv)
        _, b, a = rows.rest
        decay = -self.a_log.float().exp()
        return Steps(
            q=_unit(q.reshape(n, self.key_heads, self.key_dim)) * self.key_dim**-0.5,
            k=_unit(k.reshape(n, self.key_heads, self.key_dim)),
            v=v.reshape(n, self.value_heads, self.value_dim),
            decay=decay * functional.softplus(a.float() + self.dt_bias.float()),
            beta=torch.sigmoid(b.float()),
        )

    def out(self, o: Tensor, rows: LinearRows, dtype: torch.dtype) -> Tensor:
        z = rows.rest[0]
        o = self.norm(o.reshape_as(z).to(dtype), z)
        return apply(self.out_proj, o.reshape(len(o), -1))


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPSILON)


class Decoder:
    """Pre-norm decoder layers: a mixer and an MLP, each added to the rows."""

    def __init__(
        self,
        identity: Identity,
        embed: Callable[[Tensor], Tensor],
        logits: Callable[[Tensor], Tensor],
        norm: nn.Module,
        layers: Sequence[nn.Module],
        mixers: Sequence[Attention | Delta],
    ) -> None:
        """embed: of token ids. norm: behind the last layer. logits: of rows behind it. layers: with
        `input_layernorm`, `post_attention_layernorm` and `mlp`."""
        self.identity = identity
        self.layers = tuple(layer.kind for layer in identity.layers)
        self.slots = tuple(range(len(layers)))
        self.embed = embed
        self.mixers = tuple(mixers)
        self._logits, self._norm, self._layers = logits, norm, list(layers)
        self.dtype: torch.dtype = next(norm.parameters()).dtype
        self.kernels: Kernels | None = None

    def logits(self, h: Tensor) -> Tensor:
        return self._logits(self._norm(h))

    def norm(self, layer: int, h: Tensor) -> Tensor:
        return self._layers[layer].input_layernorm(h)

    def attention(self, layer: int, x: Tensor, positions: Tensor) -> AttentionRows:
        return self._attention(layer).rows(x, positions)

    def scale(self, layer: int) -> float:
        return self._attention(layer).scale

    def attention_out(self, layer: int, o: Tensor, rows: AttentionRows) -> Tensor:
        return self._attention(layer).out(o.to(self.dtype), rows)

    def linear(self, layer: int, x: Tensor, positions: Tensor) -> LinearRows:
        return self._delta(layer).rows(x)

    def conv_weight(self, layer: int) -> tuple[Tensor, Tensor | None]:
        return self._delta(layer).conv, None

    def steps(
        self, layer: int, conv_out: Tensor | None, rows: LinearRows, positions: Tensor
    ) -> Steps:
        if conv_out is None:
            raise ValueError(f"layer {layer} has a convolution, its output is missing")
        return self._delta(layer).steps(conv_out, rows)

    def linear_out(self, layer: int, o: Tensor, rows: LinearRows) -> Tensor:
        return self._delta(layer).out(o, rows, self.dtype)

    def mix(self, layer: int, h: Tensor, y: Tensor) -> Tensor:
        module = self._layers[layer]
        h = h + self._scaled(module, "attn_layer_scale", y)
        y = module.mlp(module.post_attention_layernorm(h))
        return h + self._scaled(module, "ffn_layer_scale", y)

    @staticmethod
    def _scaled(module: nn.Module, name: str, y: Tensor) -> Tensor:
        weight = getattr(module, name, None)
        return y if weight is None else y * (weight.to(y.dtype)[0] + 1)

    def _attention(self, layer: int) -> Attention:
        mixer = self.mixers[layer]
        if not isinstance(mixer, Attention):
            raise TypeError(f"layer {layer} has no attention")
        return mixer

    def _delta(self, layer: int) -> Delta:
        mixer = self.mixers[layer]
        if not isinstance(mixer, Delta):
            raise TypeError(f"layer {layer} is no linear layer")
        return mixer
