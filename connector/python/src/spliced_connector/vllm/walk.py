"""The layer walk over vLLM's own modules; see `serving.modules`.

A walk runs inside a forward context of the engine (`vllm.forward_context`), in inference mode, on
the thread of the model runner.
"""

from __future__ import annotations

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
from spliced_connector.vllm.kernels.cpu import AttentionSizes, DeltaSizes, cpu_kernels
from spliced_connector.walk import Architecture, UnsupportedError, child


def walk_over(model: nn.Module, identity: Identity) -> Architecture:
    """Returns the architecture for walks over a model that vLLM has loaded.

    model: the result of the runner's `get_model()`. identity: that of one rank (`Profile.share`).
    Raises UnsupportedError, naming the module that is unknown or has another shape.
    """
    outer = child(model, "language_model") if hasattr(model, "language_model") else model
    body = child(outer, "model")
    layers, mixers = mixers_of(body, identity, _mixer)
    for name in ("embed_input_ids", "compute_logits"):
        if not callable(getattr(outer, name, None)):
            raise UnsupportedError(f"{type(outer).__name__} has no {name}")
    norm = child(body, "norm")
    arch = Decoder(identity, outer.embed_input_ids, outer.compute_logits, norm, layers, mixers)
    known = {i: sizes_of(m) for i, m in enumerate(mixers) if isinstance(m, Attention | Delta)}
    if len(known) == len(mixers) and next(norm.parameters()).device.type == "cpu":
        arch.kernels = cpu_kernels(arch, known)
    return arch


def sizes_of(mixer: Attention | Delta) -> AttentionSizes | DeltaSizes:
    """Returns the sizes and weights of a mixer that kernels need."""
    m = mixer
    if isinstance(m, Attention):
        return AttentionSizes(m.heads, m.kv_heads, m.head_dim, m.scale)
    return DeltaSizes(
        m.key_heads, m.value_heads, m.key_dim, m.value_dim, m.conv, m.a_log, m.dt_bias
    )


def _mixer(layer: nn.Module, described: Layer) -> Mixer:
    if getattr(layer, "use_attn_reduce_scatter_for_moe", False):
        raise UnsupportedError("sequence-parallel experts")
    kind = described.kind
    if kind is Kind.LINEAR and described.linear.family is Family.LIGHTNING:
        return lightning(child(layer, "self_attn"), described.linear.slopes, rounded=False)
    if kind is Kind.LINEAR:
        return _delta(child(layer, "linear_attn"))
    if kind is Kind.FULL:
        return _attention(child(layer, "self_attn"))
    if kind is Kind.MLA:
        return _latent(child(child(layer, "self_attn"), "mla_attn"))
    raise UnsupportedError(f"no walk for a layer of kind {kind.name}")


def _attention(module: nn.Module) -> Attention:
    child(module, "attn")
    window = getattr(getattr(module.attn, "impl", None), "sliding_window", None)
    if window not in (None, -1, (-1, -1)):
        raise UnsupportedError(f"a sliding window of {window}")
    project = _gated if hasattr(module, "_project_qkv_gate") else plain
    known = {"LlamaAttention", "Qwen2Attention"}
    if project is plain and type(module).__name__ not in known:
        raise UnsupportedError(f"attention of class {type(module).__name__}")
    return attention(module, project)


def _gated(module: nn.Module, x: Tensor, positions: Tensor) -> Projected:
    q, k, v, gate = module._project_qkv_gate(apply(module.qkv_proj, x), positions)
    return q, k, v, gate


def _latent(module: nn.Module) -> Latent:
    if type(module).__name__ != "MultiHeadLatentAttentionWrapper" or module.is_sparse:
        raise UnsupportedError(f"latent attention of class {type(module).__name__}")
    if module.g_proj is not None:
        raise UnsupportedError("latent attention with a gate")
    core = child(module, "mla_attn")
    return latent(
        module,
        int(module.num_heads),
        float(core.scale),
        down="fused_qkv_a_proj",
        up=getattr(core, "W_UK_T", None),
        over=getattr(core, "W_UV", None),
    )


def _delta(module: nn.Module) -> Delta:
    for name in ("in_proj_qkvz", "in_proj_ba", "conv1d", "norm", "out_proj"):
        child(module, name)
    if getattr(module, "activation", "silu") not in ("silu", "swish"):
        raise UnsupportedError(f"convolution activation {module.activation}")
    tp = int(module.tp_size)
    heads, values = int(module.num_k_heads) // tp, int(module.num_v_heads) // tp
    dk, dv = int(module.head_k_dim), int(module.head_v_dim)
    conv = _conv_weight(module, 2 * heads * dk + values * dv, int(module.conv_kernel_size))
    return Delta(
        heads,
        values,
        dk,
        dv,
        conv,
        module.A_log.detach(),
        module.dt_bias.detach(),
        partial(_split, module, values * dv),
        module.norm,
        module.out_proj,
    )


def _split(module: nn.Module, wide: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the inputs of the delta rule, as `Delta.split`. wide: number of columns of z."""
    qkvz, ba = apply(module.in_proj_qkvz, x), apply(module.in_proj_ba, x)
    n = len(x)
    if module.gqa_interleaved_layout:
        q, k, v, z, b, a = module.fix_query_key_value_ordering(qkvz, ba)
        qkv = torch.cat([q.reshape(n, -1), k.reshape(n, -1), v.reshape(n, -1)], dim=-1)
    else:
        qkv, z = qkvz.split([qkvz.shape[-1] - wide, wide], dim=-1)
        b, a = module.split_ba(ba)
    return qkv, z, b, a


def _conv_weight(module: nn.Module, channels: int, kernel: int) -> Tensor:
    """Returns the convolution's weights [channels, kernel].

    If the processor has bf16 instructions, vLLM packs the weights in place for its CPU kernels,
    without changing their shape, and keeps an unpacked copy. Weights with three dimensions were
    never packed.
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
