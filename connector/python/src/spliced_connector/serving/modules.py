"""The layer walk over modules that a serving engine has loaded.

A walk calls the projections, norms, rotary embeddings, gates and MLPs of the engine. So weights
exist only once, and quantized or packed weights work as in the engine. The cores of mixers
(attention over the paged cache, the chunked recurrence) are not called, because they read metadata
that exists only in the engine's forward pass. `Decoder.kernels` may have the engine's operators for
them; otherwise torch replaces them.

Engines differ in how a layer's modules are found and called, so adapters make the mixers. Rows are
[n, hidden], without a batch axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Identity, Layer
from spliced_connector.walk import (
    AttentionRows,
    Kernels,
    LinearRows,
    Steps,
    UnsupportedError,
    child,
)

# Added to the squared norm of queries and keys, as in the engines' kernels.
_NORM_EPSILON = 1e-6


Mixer: TypeAlias = "Attention | Latent | Delta | Lightning"
Projected: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Result of `Attention.project`."""


@contextmanager
def eager() -> Iterator[None]:
    """Runs the engine's modules without compilation. The engine compiles them for its own batches;
    a walk would compile them again for every number of rows."""
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        yield


def apply(linear: nn.Module, x: Tensor) -> Tensor:
    """Returns the output of an engine's linear layer. The layer returns (output, bias), or just the
    output."""
    out = linear(x)
    return out[0] if isinstance(out, tuple) else out


@dataclass(frozen=True)
class Attention:
    """Softmax attention with or without norms of queries and keys and an output gate.

    project: maps rows and their positions to q, k and v, with q and k rotated, and the gate or
    None. Each has the shape [n, heads, dim] or [n, heads * dim].
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    project: Callable[[Tensor, Tensor], Projected]
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
class Latent:
    """Multi-head latent attention in its absorbed form, over the rows that engines store.

    down: maps rows to queries [n, heads * (nope + key)] and to latents with shared keys [n, rank +
    key], before `norm` and `turn`. turn: rotates queries and keys by positions. up: a tensor
    [heads, nope, rank] that maps queries to the space of latents. over: a tensor [heads, rank,
    value] that maps the result of attention back.
    """

    heads: int
    scale: float
    down: Callable[[Tensor], tuple[Tensor, Tensor]]
    norm: nn.Module
    turn: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    up: Tensor
    over: Tensor
    o_proj: nn.Module

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q, kept = self.down(x)
        _, nope, rank = self.up.shape
        q = q.reshape(len(x), self.heads, -1)
        latent = self.norm(kept[:, :rank])
        asked, shared = self.turn(positions, q[..., nope:], kept[:, None, rank:])
        absorbed = torch.bmm(q[..., :nope].transpose(0, 1), self.up).transpose(0, 1)
        return AttentionRows(torch.cat((absorbed, asked), dim=-1), shared, latent[:, None])

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        values = torch.bmm(o.transpose(0, 1), self.over).transpose(0, 1)
        return apply(self.o_proj, values.flatten(1))


@dataclass(frozen=True)
class Delta:
    """The gated delta rule of Qwen3-Next and Qwen3.5.

    split: a function that maps n rows to four tensors: the convolution's inputs [q | k | v] of
    shape [n, C], z [n, heads, dv], b and a [n, heads]. Shapes of the weights: conv [C, kernel],
    a_log and dt_bias [heads].
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

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        qkv, z, b, a = self.split(x)
        return LinearRows(qkv, (z.reshape(len(x), self.value_heads, self.value_dim), b, a))

    def steps(self, conv: Tensor | None, rows: LinearRows) -> Steps:
        if conv is None:
            raise ValueError("the output of the convolution is missing")
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


@dataclass(frozen=True)
class Lightning:
    """The linear attention of Ling 2.5, with a decay per head, over queries and keys that are
    rotated to their positions; all in float32.

    module: the engine's module. slopes [heads]: the decay of each head. rounded: whether the engine
    rounds the output of the recurrence before the norm.
    """

    module: nn.Module
    heads: int
    dim: int
    slopes: Tensor
    rounded: bool

    conv = None

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        m = self.module
        flat = apply(m.query_key_value, x).float()
        if m.linear_silu:
            flat = functional.silu(flat)
        q, k, v = flat.reshape(len(x), 3, -1).unbind(1)
        if m.use_qk_norm:
            q, k = self._normed(m.query_layernorm, q), self._normed(m.key_layernorm, k)
        if m.linear_rope:
            q, k = m.rotary_emb(positions, q.contiguous(), k.contiguous())
        q, k, v = (rows.reshape(len(x), self.heads, self.dim) for rows in (q, k, v))
        return LinearRows(None, (q, k, v, apply(m.g_proj, x)))

    def _normed(self, norm: nn.Module, rows: Tensor) -> Tensor:
        by_head = rows.reshape(len(rows), self.heads, self.dim)
        eps = float(self.module.rms_norm_eps)
        return functional.rms_norm(by_head, (self.dim,), norm.weight.float(), eps).flatten(1)

    def steps(self, conv: Tensor | None, rows: LinearRows) -> Steps:
        q, k, v, _ = rows.rest
        return Steps(q * self.dim**-0.5, k, v, -self.slopes.expand(len(q), -1))

    def out(self, o: Tensor, rows: LinearRows, dtype: torch.dtype) -> Tensor:
        gate = rows.rest[3]
        o = o.flatten(1).to(dtype) if self.rounded else o.flatten(1)
        if self.module.group_norm_size > 1:
            o = self.module.g_norm(o, gate)
        else:
            o = self.module.g_norm(o) * torch.sigmoid(gate)
        return apply(self.module.dense, o.to(dtype))


def mixers_of(
    body: nn.Module, identity: Identity, mixer: Callable[[nn.Module, Layer], Mixer]
) -> tuple[list[nn.Module], list[Mixer]]:
    """Returns the layers of a model that `Decoder` can walk, and their mixers.

    Raises UnsupportedError, naming the layer that is unknown or has another shape.
    """
    layers = child(body, "layers")
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedError(f"layers are a {type(layers).__name__}")
    if len(layers) != len(identity.layers):
        raise UnsupportedError(f"{len(layers)} layers, the profile has {len(identity.layers)}")
    mixers: list[Mixer] = []
    for i, (layer, described) in enumerate(zip(layers, identity.layers, strict=True)):
        try:
            for name in ("input_layernorm", "post_attention_layernorm", "mlp"):
                child(layer, name)
            mixers.append(mixer(layer, described))
        except UnsupportedError as err:
            raise UnsupportedError(f"layer {i}: {err}") from None
    return list(layers), mixers


def attention(
    module: nn.Module, project: Callable[[nn.Module, Tensor, Tensor], Projected]
) -> Attention:
    """Returns attention over modules with the names of vLLM and SGLang. project: as in
    `Attention`, with the module as an argument. Raises UnsupportedError for missing modules."""
    for name in ("qkv_proj", "o_proj", "rotary_emb", "attn"):
        child(module, name)
    return Attention(
        int(module.num_heads),
        int(module.num_kv_heads),
        int(module.head_dim),
        float(module.scaling),
        partial(project, module),
        module.o_proj,
    )


def plain(module: nn.Module, x: Tensor, positions: Tensor) -> Projected:
    """Returns q, k and v without a gate; q and k are rotated, and normalized if the module does
    so."""
    sizes = [int(module.q_size), int(module.kv_size), int(module.kv_size)]
    dim, n = int(module.head_dim), len(x)
    q, k, v = apply(module.qkv_proj, x).split(sizes, dim=-1)
    if getattr(module, "qk_norm", False):
        q = module.q_norm(q.reshape(n, -1, dim)).reshape(n, -1)
        k = module.k_norm(k.reshape(n, -1, dim)).reshape(n, -1)
    q, k = module.rotary_emb(positions, q, k)
    return q, k, v, None


def lightning(module: nn.Module, slopes: Sequence[float], *, rounded: bool) -> Lightning:
    """Returns the mixer for the module that vLLM and SGLang use for Lightning attention. Raises
    UnsupportedError for another module."""
    if type(module).__name__ != "BailingMoELinearAttention":
        raise UnsupportedError(f"linear attention of class {type(module).__name__}")
    norms = ("query_layernorm", "key_layernorm") if module.use_qk_norm else ()
    turns = ("rotary_emb",) if module.linear_rope else ()
    for name in ("query_key_value", "g_proj", "g_norm", "dense", *norms, *turns):
        child(module, name)
    heads, dim = int(module.tp_heads), int(module.head_dim)
    if len(slopes) != heads or int(module.tp_kv_heads) != heads:
        raise UnsupportedError(f"{heads} heads, {module.tp_kv_heads} of keys, {len(slopes)} slopes")
    device = module.g_norm.weight.device
    return Lightning(module, heads, dim, torch.tensor(slopes, device=device).float(), rounded)


def latent(
    module: nn.Module, heads: int, scale: float, *, down: str, up: object, over: object
) -> Latent:
    """Returns latent attention over modules with the names of vLLM and SGLang. down: name of the
    module that computes low-rank queries and latents together, if the model has one. up, over: as
    in `Latent`.

    Raises UnsupportedError for missing, quantised or packed modules.
    """
    norm, rank = child(module, "kv_a_layernorm"), int(module.kv_lora_rank)
    shapes = (heads, int(module.qk_nope_head_dim), rank), (heads, rank, int(module.v_head_dim))
    weights: list[Tensor] = []
    for weight, shape in zip((up, over), shapes, strict=True):
        if not isinstance(weight, Tensor) or tuple(weight.shape) != shape:
            raise UnsupportedError("the weights of latent attention are packed")
        if weight.dtype != norm.weight.dtype:
            raise UnsupportedError(f"latent attention with weights of {weight.dtype}")
        weights.append(weight.detach())
    low = module.q_lora_rank is not None
    for name in (down, "q_a_layernorm", "q_b_proj") if low else ("q_proj", "kv_a_proj_with_mqa"):
        child(module, name)
    turn, last = child(module, "rotary_emb"), child(module, "o_proj")
    first = partial(_low_rank, module, getattr(module, down)) if low else partial(_direct, module)
    return Latent(heads, scale, first, norm, turn, weights[0], weights[1], last)


def _direct(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return apply(module.q_proj, x), apply(module.kv_a_proj_with_mqa, x)


def _low_rank(module: nn.Module, both: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    rows, size = apply(both, x), int(module.q_lora_rank)
    return apply(module.q_b_proj, module.q_a_layernorm(rows[:, :size])), rows[:, size:]


class Decoder:
    """Pre-norm decoder layers: a mixer and an MLP, each added to the rows."""

    def __init__(
        self,
        identity: Identity,
        embed: Callable[[Tensor], Tensor],
        logits: Callable[[Tensor], Tensor],
        norm: nn.Module,
        layers: Sequence[nn.Module],
        mixers: Sequence[Mixer],
    ) -> None:
        """embed: maps token ids to rows. norm: the norm after the last layer. logits: maps
        normalized rows to logits. layers: modules with `input_layernorm`,
        `post_attention_layernorm` and `mlp`."""
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
        return self._linear(layer).rows(x, positions)

    def conv_weight(self, layer: int) -> tuple[Tensor, Tensor | None] | None:
        conv = self._linear(layer).conv
        return None if conv is None else (conv, None)

    def steps(
        self, layer: int, conv_out: Tensor | None, rows: LinearRows, positions: Tensor
    ) -> Steps:
        return self._linear(layer).steps(conv_out, rows)

    def linear_out(self, layer: int, o: Tensor, rows: LinearRows) -> Tensor:
        return self._linear(layer).out(o, rows, self.dtype)

    def mix(self, layer: int, h: Tensor, y: Tensor) -> Tensor:
        module = self._layers[layer]
        h = h + self._scaled(module, "attn_layer_scale", y)
        y = module.mlp(module.post_attention_layernorm(h))
        return h + self._scaled(module, "ffn_layer_scale", y)

    @staticmethod
    def _scaled(module: nn.Module, name: str, y: Tensor) -> Tensor:
        weight = getattr(module, name, None)
        return y if weight is None else y * (weight.to(y.dtype)[0] + 1)

    def _attention(self, layer: int) -> Attention | Latent:
        mixer = self.mixers[layer]
        if not isinstance(mixer, Attention | Latent):
            raise TypeError(f"layer {layer} has no attention")
        return mixer

    def _linear(self, layer: int) -> Delta | Lightning:
        mixer = self.mixers[layer]
        if not isinstance(mixer, Delta | Lightning):
            raise TypeError(f"layer {layer} is not a linear layer")
        return mixer
