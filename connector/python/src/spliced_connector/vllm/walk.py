"""The layer walk over vLLM's own modules.

A walk calls the projections, norms, rotary embeddings, gates and MLPs that the engine loaded, so
weights exist once, and quantised or packed ones work as they do in the engine. The mixers' cores,
attention over the paged cache and the chunked recurrence, are not called: what they read from the
engine's metadata does not exist outside of its forward pass. The operators below them are, where
`kernels` knows them; else torch does their work.

A walk runs inside a forward context of the engine (`vllm.forward_context`), in inference mode, on
the thread of the model runner. Rows are [n, hidden], without a batch axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Identity, Kind
from spliced_connector.vllm.kernels.cpu import AttentionSizes, DeltaSizes, cpu_kernels
from spliced_connector.walk import (
    Architecture,
    AttentionRows,
    Kernels,
    LinearRows,
    Steps,
    UnsupportedError,
    child,
)

_Project = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor | None]]

# Added to the squared norm of queries and keys, as in the engine's kernels.
_NORM_EPSILON = 1e-6


def walk_over(model: nn.Module, identity: Identity) -> Architecture:
    """The walk over a model that vLLM loaded.

    model: what the runner's `get_model()` answers. identity: the profile's, of one rank.
    Raises UnsupportedError, naming the module that is unknown or shaped otherwise.
    """
    outer = child(model, "language_model") if hasattr(model, "language_model") else model
    body = child(outer, "model")
    layers = child(body, "layers")
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedError(f"layers are a {type(layers).__name__}")
    if len(layers) != len(identity.layers):
        raise UnsupportedError(f"{len(layers)} layers, the profile has {len(identity.layers)}")
    mixers: list[_Attention | _Delta] = []
    for i, (layer, descriptor) in enumerate(zip(layers, identity.layers, strict=True)):
        try:
            mixers.append(_mixer(layer, descriptor.kind))
        except UnsupportedError as err:
            raise UnsupportedError(f"layer {i}: {err}") from None
    return _Decoder(identity, outer, body, list(layers), mixers)


def _mixer(layer: nn.Module, kind: Kind) -> _Attention | _Delta:
    for name in ("input_layernorm", "post_attention_layernorm", "mlp"):
        child(layer, name)
    if getattr(layer, "use_attn_reduce_scatter_for_moe", False):
        raise UnsupportedError("sequence-parallel experts")
    if kind is Kind.LINEAR:
        return _Delta.of(child(layer, "linear_attn"))
    if kind is Kind.FULL:
        return _Attention.of(child(layer, "self_attn"))
    raise UnsupportedError(f"no walk for a layer of kind {kind.name}")


def _apply(linear: nn.Module, x: Tensor) -> Tensor:
    """The output of one of vLLM's linear layers, which answer (output, bias) or the output."""
    out = linear(x)
    return out[0] if isinstance(out, tuple) else out


@dataclass(frozen=True)
class _Attention:
    """Softmax attention with or without norms of queries and keys and an output gate."""

    module: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    project: _Project

    @classmethod
    def of(cls, module: nn.Module) -> _Attention:
        for name in ("qkv_proj", "o_proj", "rotary_emb", "attn"):
            child(module, name)
        attn = module.attn
        window = getattr(getattr(attn, "impl", None), "sliding_window", None)
        if window not in (None, -1, (-1, -1)):
            raise UnsupportedError(f"a sliding window of {window}")
        return cls(
            module,
            int(module.num_heads),
            int(module.num_kv_heads),
            int(module.head_dim),
            float(module.scaling),
            cls._projection(module),
        )

    @staticmethod
    def _projection(module: nn.Module) -> _Project:
        gated: _Project | None = getattr(module, "_project_qkv_gate", None)
        if gated is not None:
            return gated
        sizes = [int(module.q_size), int(module.kv_size), int(module.kv_size)]
        dim = int(module.head_dim)
        normed = bool(getattr(module, "qk_norm", False))

        def plain(qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
            q, k, v = qkv.split(sizes, dim=-1)
            if normed:
                q = module.q_norm(q.reshape(len(q), -1, dim)).reshape(len(q), -1)
                k = module.k_norm(k.reshape(len(k), -1, dim)).reshape(len(k), -1)
            q, k = module.rotary_emb(positions, q, k)
            return q, k, v, None

        known = {"LlamaAttention", "Qwen2Attention"}
        if type(module).__name__ not in known:
            raise UnsupportedError(f"attention of class {type(module).__name__}")
        return plain

    @property
    def sizes(self) -> AttentionSizes:
        return AttentionSizes(self.heads, self.kv_heads, self.head_dim, self.scale)

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q, k, v, gate = self.project(_apply(self.module.qkv_proj, x), positions)
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
        return _apply(self.module.o_proj, o)


@dataclass(frozen=True)
class _Delta:
    """The gated delta rule of Qwen3-Next and Qwen3.5."""

    module: nn.Module
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: Tensor
    decay: Tensor
    dt_bias: Tensor

    @classmethod
    def of(cls, module: nn.Module) -> _Delta:
        for name in ("in_proj_qkvz", "in_proj_ba", "conv1d", "norm", "out_proj"):
            child(module, name)
        if getattr(module, "activation", "silu") not in ("silu", "swish"):
            raise UnsupportedError(f"convolution activation {module.activation}")
        tp = int(module.tp_size)
        heads, values = int(module.num_k_heads) // tp, int(module.num_v_heads) // tp
        dk, dv = int(module.head_k_dim), int(module.head_v_dim)
        conv = _conv_weight(module, 2 * heads * dk + values * dv, int(module.conv_kernel_size))
        decay = -module.A_log.detach().float().exp()
        return cls(module, heads, values, dk, dv, conv, decay, module.dt_bias.detach().float())

    @property
    def sizes(self) -> DeltaSizes:
        m = self.module
        return DeltaSizes(
            self.key_heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
            self.conv,
            m.A_log.detach(),
            m.dt_bias.detach(),
        )

    def rows(self, x: Tensor) -> LinearRows:
        m = self.module
        qkvz, ba = _apply(m.in_proj_qkvz, x), _apply(m.in_proj_ba, x)
        n = len(x)
        if m.gqa_interleaved_layout:
            q, k, v, z, b, a = m.fix_query_key_value_ordering(qkvz, ba)
            qkv = torch.cat([q.reshape(n, -1), k.reshape(n, -1), v.reshape(n, -1)], dim=-1)
        else:
            wide = self.value_heads * self.value_dim
            qkv, z = qkvz.split([qkvz.shape[-1] - wide, wide], dim=-1)
            b, a = m.split_ba(ba)
        return LinearRows(qkv, (z.reshape(n, self.value_heads, self.value_dim), b, a))

    def steps(self, conv: Tensor, rows: LinearRows) -> Steps:
        keys = self.key_heads * self.key_dim
        q, k, v = conv.float().split([keys, keys, conv.shape[-1] - 2 * keys], dim=-1)
        n = len(conv)
        _, b, a = rows.rest
        return Steps(
            q=_unit(q.reshape(n, self.key_heads, self.key_dim)) * self.key_dim**-0.5,
            k=_unit(k.reshape(n, self.key_heads, self.key_dim)),
            v=v.reshape(n, self.value_heads, self.value_dim),
            decay=self.decay * functional.softplus(a.float() + self.dt_bias),
            beta=torch.sigmoid(b.float()),
        )

    def out(self, o: Tensor, rows: LinearRows, dtype: torch.dtype) -> Tensor:
        z = rows.rest[0]
        o = self.module.norm(o.reshape_as(z).to(dtype), z)
        return _apply(self.module.out_proj, o.reshape(len(o), -1))


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPSILON)


def _conv_weight(module: nn.Module, channels: int, kernel: int) -> Tensor:
    """The convolution's weights [channels, kernel].

    vLLM packs them in place for its CPU kernels where the processor has bf16 instructions, under
    the shape of unpacked ones, and keeps a copy aside. Three dimensions mean never packed.
    """
    conv = module.conv1d
    kept = getattr(conv, "_cpu_unpacked_conv_weight", None)
    if kept is None and conv.weight.dim() == 3:
        kept = conv.weight[:, 0]
    if not isinstance(kept, Tensor) or tuple(kept.shape) != (channels, kernel):
        raise UnsupportedError(f"convolution weights of shape {tuple(conv.weight.shape)}")
    if conv.bias is not None:
        raise UnsupportedError("a convolution with a bias")
    return kept.detach()


class _Decoder:
    """Pre-norm decoder layers: a mixer and an MLP, each added to the rows."""

    def __init__(
        self,
        identity: Identity,
        outer: nn.Module,
        body: nn.Module,
        layers: list[nn.Module],
        mixers: list[_Attention | _Delta],
    ) -> None:
        for name in ("embed_input_ids", "compute_logits"):
            if not callable(getattr(outer, name, None)):
                raise UnsupportedError(f"{type(outer).__name__} has no {name}")
        self.identity = identity
        self.layers = tuple(layer.kind for layer in identity.layers)
        self.slots = tuple(range(len(layers)))
        self._outer, self._norm = outer, child(body, "norm")
        self._layers, self._mixers = layers, mixers
        self.dtype: torch.dtype = next(body.norm.parameters()).dtype
        self.kernels: Kernels | None = None
        if next(body.norm.parameters()).device.type == "cpu":
            self.kernels = cpu_kernels(self, {i: m.sizes for i, m in enumerate(mixers)})

    def embed(self, ids: Tensor) -> Tensor:
        return self._outer.embed_input_ids(ids)

    def logits(self, h: Tensor) -> Tensor:
        return self._outer.compute_logits(self._norm(h))

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

    def _attention(self, layer: int) -> _Attention:
        mixer = self._mixers[layer]
        if not isinstance(mixer, _Attention):
            raise TypeError(f"layer {layer} has no attention")
        return mixer

    def _delta(self, layer: int) -> _Delta:
        mixer = self._mixers[layer]
        if not isinstance(mixer, _Delta):
            raise TypeError(f"layer {layer} is no linear layer")
        return mixer
