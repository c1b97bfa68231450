"""torch operators in the place of Triton kernels, so that SGLang runs hybrids on a CPU.

SGLang's GDN layers are Triton kernels, and Triton has no driver for a CPU. Its interpreter
(TRITON_INTERPRET=1) runs the small ones as they are, row by row in Python: those of pools, slots,
norms and gates. It does not run the chunked delta rule, and would take minutes for a prompt; those
kernels and the convolution are replaced by what transformers computes. Everything else is the
engine's: scheduler, pools, tree, metadata, the layers around the kernels.

Loaded by SGLang's own plugin mechanism, in each of its processes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def replace() -> None:
    """In this process, before a model is made."""
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton
    from sglang.srt.layers.rotary_embedding.factory import get_rope
    from sglang.srt.layers.rotary_embedding.rope_variant import DeepseekScalingRotaryEmbedding
    from sglang.srt.models import bailing_moe_linear, qwen3_5, qwen3_next
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    put: dict[Any, dict[str, Any]] = {
        # What guards of Triton's kernels enter; torch has it for devices with an index only.
        torch.cpu: {"device": lambda _: contextlib.nullcontext()},
        gdn_backend: {
            "causal_conv1d_fn": convolve,
            "causal_conv1d_update": convolve_one,
            "fused_gdn_gating": gates,
        },
        gdn_triton: {
            "chunk_gated_delta_rule": chunk_delta_rule,
            "fused_recurrent_gated_delta_rule_packed_decode": decode,
        },
        qwen3_5: {
            "fused_qkvzba_split_reshape_cat_contiguous": split,
            "fused_sigmoid_mul": gate,
        },
        qwen3_next: {"fused_qkvzba_split_reshape_cat": split_interleaved},
        layernorm_gated.RMSNorm: {"forward": norm},
        # A rope for a CPU is YaRN's or none; this is what other devices get.
        bailing_moe_linear: {
            "get_rope_wrapper": lambda *sizes, device, **rest: get_rope(*sizes, **rest),
            "layernorm_fn": head_norm,
        },
        # The layers ask for a GPU's by name.
        DeepseekScalingRotaryEmbedding: {
            "forward_cuda": DeepseekScalingRotaryEmbedding.forward_native
        },
    }
    for owner, names in put.items():
        for name, value in names.items():
            setattr(owner, name, value)
    # It reads all rows from the pool, where latents are.
    AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: list[int],
    cache_indices: Tensor,
    has_initial_state: Tensor,
    activation: str | None = "silu",
    **_: object,
) -> Tensor:
    """x [channels, tokens] of several sequences; their states [slots, channels, k-1] are kept."""
    out = torch.empty_like(x)
    back = weight.shape[1] - 1
    at = 0
    for n, slot, old in zip(
        seq_lens_cpu, cache_indices.tolist(), has_initial_state.tolist(), strict=True
    ):
        rows = x[:, at : at + n]
        left = conv_states[slot, :, -back:] if old else torch.zeros_like(x[:, :1]).expand(-1, back)
        window = torch.cat([left.to(x.dtype), rows], dim=1)
        done = F.conv1d(window[None], weight[:, None], bias, groups=len(weight))[0]
        out[:, at : at + n] = F.silu(done) if activation else done
        conv_states[slot, :, -back:] = window[:, window.shape[1] - back :]
        at += n
    return out


def convolve_one(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    **_: object,
) -> Tensor:
    """One token of each sequence: x [sequences, channels]."""
    if conv_state_indices is None:
        raise NotImplementedError("states by slot only")
    slots = conv_state_indices.long().clamp_min(0)
    window = torch.cat([conv_state[slots], x[..., None].to(conv_state.dtype)], dim=-1)
    window = window[..., -weight.shape[1] :]
    out = (window * weight).sum(-1, dtype=torch.float32)
    out = (out if bias is None else out + bias).to(x.dtype)
    conv_state[slots] = window[..., 1:]
    return F.silu(out) if activation else out


def gates(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of decays, and betas: [1, tokens, heads] in float32."""
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
    return decay[None], b.sigmoid().float()[None]


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    **_: object,
) -> tuple[Tensor, None, None]:
    """States [slots, heads, dv, dk] are moved in place."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    out = torch.empty_like(v)
    bounds = cu_seqlens.tolist()
    repeat = v.shape[2] // q.shape[2]
    for slot, lo, hi in zip(initial_state_indices.tolist(), bounds[:-1], bounds[1:], strict=True):
        part = slice(lo, hi)
        o, state = torch_chunk_gated_delta_rule(
            q[:, part].repeat_interleave(repeat, dim=2),
            k[:, part].repeat_interleave(repeat, dim=2),
            v[:, part],
            g=g[:, part],
            beta=beta[:, part],
            initial_state=initial_state[slot : slot + 1].transpose(-1, -2).float(),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        out[:, part] = o
        initial_state[slot] = state[0].transpose(-1, -2)
    return out, None, None


def decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    **_: object,
) -> None:
    """One token of each sequence, into out [sequences, 1, heads, dv]."""
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        torch_recurrent_gated_delta_rule,
    )

    n, _, heads, dv = out.shape
    dk = initial_state.shape[-1]
    keys = (mixed_qkv.shape[1] - heads * dv) // 2
    q, k, v = mixed_qkv.split([keys, keys, heads * dv], dim=-1)
    repeat = heads // (keys // dk)
    slots = ssm_state_indices.long().clamp_min(0)
    g, beta = gates(A_log, a, b, dt_bias)
    o, state = torch_recurrent_gated_delta_rule(
        q.reshape(n, 1, -1, dk).repeat_interleave(repeat, dim=2),
        k.reshape(n, 1, -1, dk).repeat_interleave(repeat, dim=2),
        v.reshape(n, 1, heads, dv),
        g=g[0][:, None],
        beta=beta[0][:, None],
        initial_state=initial_state[slots].transpose(-1, -2).float(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out.copy_(o)
    initial_state[slots] = state.transpose(-1, -2).to(initial_state.dtype)


def split(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, dk: int, dv: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projections that lie as [q | k | v | z] and [b | a]."""
    wide = value_heads * dv
    qkv, z = qkvz.split([qkvz.shape[1] - wide, wide], dim=1)
    b, a = ba.split(value_heads, dim=1)
    return qkv.contiguous(), z.reshape(-1, value_heads, dv), b.contiguous(), a.contiguous()


def split_interleaved(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, dk: int, dv: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projections that lie by key head, each with its values."""
    n, group = len(qkvz), value_heads // key_heads
    q, k, v, z = qkvz.view(n, key_heads, -1).split([dk, dk, group * dv, group * dv], dim=-1)
    b, a = ba.view(n, key_heads, -1).split(group, dim=-1)
    qkv = torch.cat([x.reshape(n, -1) for x in (q, k, v)], dim=1)
    return qkv, z.reshape(n, value_heads, dv), b.reshape(n, -1), a.reshape(n, -1)


def gate(x: Tensor, gate: Tensor, inplace: bool = True, **_: object) -> Tensor:
    """x * sigmoid(gate)."""
    out = x * torch.sigmoid(gate.reshape(x.shape))
    return x.copy_(out) if inplace else out


def norm(self: Any, x: Tensor, z: Tensor | None = None, **_: object) -> Tensor:
    """Root mean square norm of each group of columns, then the gate."""
    wide = x.float().unflatten(-1, (-1, self.group_size or x.shape[-1]))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
    out = self.weight * wide.flatten(-2).to(x.dtype)
    if z is None:
        return out
    opened = torch.sigmoid(z.float()) if self.activation == "sigmoid" else F.silu(z.float())
    return (out * opened).to(x.dtype)


def head_norm(x: Tensor, weight: Tensor, bias: None, *, eps: float, is_rms_norm: bool) -> Tensor:
    """Root mean square norm of queries and keys, in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)
