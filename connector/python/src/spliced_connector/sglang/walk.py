"""The layer walk over SGLang's own modules; see `serving.modules`.

A walk runs between two batches on the thread of the scheduler, which also runs the model. It passes
no forward batch to the modules: they need one only for other devices and for parallel layers, which
are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from spliced_connector.model import Family, Identity, Kind, Layer
from spliced_connector.serving.modules import (
    Attention,
    Decoder,
    Delta,
    Latent,
    Mixer,
    Projected,
    apply,
    attention,
    latent,
    lightning,
    mixers_of,
    plain,
)
from spliced_connector.walk import UnsupportedError, child


def walk_over(model: nn.Module, identity: Identity) -> Decoder:
    """Returns the walk over a model that SGLang loaded.

    model: the model runner's model. identity: the profile's identity for one rank. Raises
    UnsupportedError, which names the module that is unknown or has another shape.
    """
    body = child(model, "model")
    layers, mixers = mixers_of(body, identity, _mixer)
    embed = child(body, "word_embeddings" if hasattr(body, "word_embeddings") else "embed_tokens")
    norm = child(body, "norm")
    return Decoder(identity, embed, _head(model), norm, layers, mixers)


def _head(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns a function from normed rows to logits, equal to the engine's logits processor."""
    head, processor = child(model, "lm_head"), child(model, "logits_processor")
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or getattr(processor, "final_logit_softcapping", None):
        raise UnsupportedError(f"a head of class {type(head).__name__}")
    size = int(processor.config.vocab_size)

    def logits(rows: Tensor) -> Tensor:
        return torch.matmul(rows.to(weight.dtype), weight.T)[..., :size]

    return logits


def _mixer(layer: nn.Module, described: Layer) -> Mixer:
    kind = described.kind
    if kind is Kind.LINEAR and described.linear.family is Family.LIGHTNING:
        return lightning(child(layer, "attention"), described.linear.slopes, rounded=True)
    if kind is Kind.LINEAR:
        return _delta(child(layer, "linear_attn"))
    if kind is Kind.FULL:
        return _attention(getattr(layer, "self_attn", layer))
    if kind is Kind.MLA:
        return _latent(child(layer, "attention"))
    raise UnsupportedError(f"no walk for a layer of kind {kind.name}")


def _attention(module: nn.Module) -> Attention:
    child(module, "attn")
    attn = module.attn
    if getattr(attn, "sliding_window_size", -1) not in (-1, None) or attn.logit_cap:
        raise UnsupportedError("attention with a sliding window or capped logits")
    project = _PROJECTIONS.get(type(module).__name__)
    if project is None:
        raise UnsupportedError(f"attention of class {type(module).__name__}")
    return attention(module, project)


def _qwen3_5(module: nn.Module, x: Tensor, positions: Tensor) -> Projected:
    q, k, v, gate = module._prepare_qkv_gate(
        positions=positions, hidden_states=x, forward_batch=None
    )
    return q, k, v, gate


def _qwen3_next(module: nn.Module, x: Tensor, positions: Tensor) -> Projected:
    n, gated = len(x), bool(module.attn_output_gate)
    sizes = [int(module.q_size) * (1 + gated), int(module.kv_size), int(module.kv_size)]
    q, k, v = apply(module.qkv_proj, x).split(sizes, dim=-1)
    gate = None
    if gated:
        q, gate = q.reshape(n, int(module.num_heads), -1).chunk(2, dim=-1)
        q, gate = q.reshape(n, -1), gate.reshape(n, -1)
    q, k = module._apply_qk_norm(q, k)
    q, k = module.rotary_emb(positions, q, k)
    return q, k, v, gate


_PROJECTIONS: dict[str, Callable[[nn.Module, Tensor, Tensor], Projected]] = {
    "LlamaAttention": plain,
    "Qwen2Attention": plain,
    "Qwen3_5AttentionDecoderLayer": _qwen3_5,
    "Qwen3HybridAttentionDecoderLayer": _qwen3_next,
}


def _latent(module: nn.Module) -> Latent:
    if type(module).__name__ != "DsV3MLA" or module.use_dsa:
        raise UnsupportedError(f"latent attention of class {type(module).__name__}")
    return latent(
        module,
        int(module.num_local_heads),
        float(module.scaling),
        down="fused_qkv_a_proj_with_mqa",
        up=module.w_kc,
        over=module.w_vc,
    )


def _delta(module: nn.Module) -> Delta:
    for name in ("in_proj_qkvz", "in_proj_ba", "attn", "norm", "out_proj"):
        child(module, name)
    if module.activation not in ("silu", "swish"):
        raise UnsupportedError(f"convolution activation {module.activation}")
    attn = module.attn
    if attn.bias is not None:
        raise UnsupportedError("a convolution with a bias")
    heads, values = int(attn.num_k_heads), int(attn.num_v_heads)
    dk, dv = int(attn.head_k_dim), int(attn.head_v_dim)
    conv = attn.conv_weights
    if tuple(conv.shape) != (2 * heads * dk + values * dv, int(module.conv_kernel_size)):
        raise UnsupportedError(f"convolution weights of shape {tuple(conv.shape)}")
    return Delta(
        heads,
        values,
        dk,
        dv,
        conv.detach(),
        module.A_log.detach(),
        module.dt_bias.detach(),
        partial(_split, module),
        module.norm,
        module.out_proj,
    )


def _split(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    qkvz, ba = apply(module.in_proj_qkvz, x), apply(module.in_proj_ba, x)
    q, k, v, z, b, a = module.fix_query_key_value_ordering(qkvz, ba)
    n = len(x)
    qkv = torch.cat([q.reshape(n, -1), k.reshape(n, -1), v.reshape(n, -1)], dim=-1)
    return qkv, z, b.contiguous(), a.contiguous()
