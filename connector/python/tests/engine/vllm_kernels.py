"""torch operators in the place of kernels that vLLM has for GPUs alone.

With them the engine runs layers on a CPU that it cannot run there by itself. Everything else is the
engine's: its scheduler, its blocks, its metadata, the layers around the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def replace() -> None:
    """In this process, before a model is made. Once: a loader must not be wrapped twice."""
    from vllm.model_executor.layers.mamba import mamba_mixer, mamba_mixer2
    from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn as kimi
    from vllm.model_executor.layers.mamba.gdn import olmo_gdn_linear_attn as olmo
    from vllm.model_executor.layers.mamba.linear import bailing_linear_attn as bailing
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.model_executor.models import bailing_moe_v3 as bailing_3
    from vllm.models.kimi_k3.nvidia.ops.third_party import kda
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    put: dict[Any, dict[str, Any]] = {
        mamba_mixer2: {
            "mamba_chunk_scan_combined_varlen": chunk_scan,
            "store_prefill_checkpoint": store_checkpoint,
        },
        mamba_mixer: {
            "selective_scan_fn": selective_scan,
            "selective_state_update": selective_update,
        },
        olmo: {
            "_make_fused_conv1d_weight_loader": _numbered(olmo._make_fused_conv1d_weight_loader),
            "set_triton_allocator": lambda _: None,
            "fused_olmo_hybrid_gdn_gating": olmo_gates,
            "chunk_gated_delta_rule": chunk_delta_rule,
            "fused_recurrent_gated_delta_rule": recurrent_delta_rule,
        },
        bailing: {"linear_attention_decode": lightning_decode, "layernorm_fn": head_norm},
        bailing_3: {
            "fused_kda_gate": kda_gates,
            "chunk_kda": chunk_delta_rule,
            "fused_recurrent_kda": recurrent_delta_rule,
        },
        bailing.MiniMaxText01LinearKernel: {
            "jit_linear_forward_prefix": staticmethod(lightning_prefill)
        },
        bailing.BailingGroupRMSNormGate: {"forward": group_norm},
        kda: {"chunk_kda_with_fused_gate": chunk_kda},
        kimi: {"gather_initial_states": gather_states},
        # The backend for AMX takes no float32: all machines run the one for any CPU.
        torch.cpu: {"_is_amx_tile_supported": lambda: False},
        # That for a CPU turns a token of MLA differently when it comes with more others.
        RotaryEmbedding: {"forward_cpu": RotaryEmbedding.forward_native},
        CPUMLABackend: {"supports_block_size": classmethod(_multiple_of_kernels_blocks)},
        CpuPlatform: {
            "check_and_update_config": _cached_latents(CpuPlatform.check_and_update_config)
        },
    }
    for module, functions in put.items():
        for name, function in functions.items():
            getattr(module, name)  # or it has another name
            setattr(module, name, function)


def _numbered(make: Callable[..., Callable[..., None]]) -> Callable[..., Callable[..., None]]:
    """The loader of OLMo's convolutions is not told which of three it gets; 0.32 cannot load these
    models on any device."""

    def made(*sizes: Any) -> Callable[..., None]:
        load = make(*sizes)
        return lambda param, weight: load(param, weight, weight.shard_id)

    return made


def _cached_latents(check: Callable[..., None]) -> object:
    """vLLM switches prefix caching off for MLA on a CPU without AMX. What it takes is there."""

    def checked(cls: type, config: Any) -> None:
        cached = config.cache_config.enable_prefix_caching
        tokens = config.scheduler_config.max_num_batched_tokens
        check(config)
        config.cache_config.enable_prefix_caching = cached
        config.scheduler_config.enable_chunked_prefill = True
        config.scheduler_config.max_num_batched_tokens = tokens

    return classmethod(checked)


def _multiple_of_kernels_blocks(_: type, size: int | None) -> bool:
    """Blocks of the scheduler hold several of the kernel's 16 tokens, as on a GPU."""
    return size is None or size % 16 == 0


def lightning_prefill(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, slopes: Tensor, *_: Any, **__: Any
) -> Tensor:
    """q, k and v: [heads, tokens, dim]; state: [heads, key dim, value dim], moved on in place."""
    at, decay, out = state.float(), torch.exp(-slopes.float().view(-1, 1, 1)), []
    for t in range(q.shape[1]):
        at = at * decay + k[:, t, :, None].float() * v[:, t, None].float()
        out.append(torch.einsum("hk,hkv->hv", q[:, t].float(), at).flatten())
    state.copy_(at)
    return torch.stack(out).to(q.dtype)


def lightning_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Tensor,
    slopes: Tensor,
    blocks: Tensor,
    *,
    q_start: int,
    q_end: int,
    slot_start: int,
    slot_end: int,
    block_size: int,
) -> Tensor:
    rows = range(q_start, q_end)
    at = [blocks[slot_start + i] for i in range(slot_end - slot_start)]
    out = [
        lightning_prefill(*(x[i].unsqueeze(1) for x in (q, k, v)), states[block], slopes)
        for i, block in zip(rows, at, strict=True)
    ]
    return torch.cat(out)


def head_norm(x: Tensor, weight: Tensor, bias: None, *, eps: float, is_rms_norm: bool) -> Tensor:
    """Bailing's, of queries and keys."""
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def group_norm(self: Any, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """Bailing's, with one group."""
    if gate is not None:
        raise NotImplementedError("one group has no gate in its norm")
    return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


def chunk_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **rest: Any) -> Tensor:
    """Mamba2 with the state behind every chunk, by the engine's kernel for a CPU, which knows the
    last one alone."""
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

    if not rest["return_intermediate_states"]:
        return mamba_chunk_scan_combined_varlen(x, dt, A, B, C, **rest)
    bounds, rows = rest["cu_chunk_seqlens"].tolist(), rest["seq_idx"].tolist()
    begins, out = rest["initial_states"], rest["out"]
    states: list[Tensor] = []
    for i, (begin, end) in enumerate(pairwise(bounds)):
        goes_on = i > 0 and rows[i - 1] == rows[i]
        before = None if begins is None else begins[rows[i]].unsqueeze(0)
        given = rest | {
            "initial_states": states[-1] if goes_on else before,
            "cu_seqlens": torch.tensor([0, end - begin], dtype=torch.int32),
            "out": out[begin:end],
            "return_intermediate_states": False,
        }
        at = slice(begin, end)
        states.append(mamba_chunk_scan_combined_varlen(x[at], dt[at], A, B[at], C[at], **given))
    return torch.cat(states)


def store_checkpoint(
    checkpoint: Any,
    chunk_idx: Tensor,
    x: Tensor,
    conv_state: Tensor,
    chunk_states: Tensor,
    ssm_state: Tensor,
    query_start_loc: Tensor,
    *,
    state_len: int,
) -> None:
    for row, offset in enumerate(checkpoint.checkpoint_offsets.tolist()):
        if offset > 0:
            block, end = int(checkpoint.state_indices[row]), int(query_start_loc[row]) + offset
            conv_state[block, :, :state_len] = x[:, end - state_len : end]
            ssm_state[block] = chunk_states[int(chunk_idx[row])].to(ssm_state.dtype)


def selective_scan(
    u: Tensor,
    ssm_states: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
    *,
    query_start_loc: Tensor,
    cache_indices: Tensor,
    has_initial_state: Tensor,
    **_: Any,
) -> Tensor:
    """Mamba1, token by token."""
    steps = F.softplus(delta.float() + delta_bias[:, None])
    bounds, out = query_start_loc.tolist(), torch.empty_like(u, dtype=torch.float32)
    for row, (begin, end) in enumerate(pairwise(bounds)):
        block = int(cache_indices[row])
        state = ssm_states[block].float() * bool(has_initial_state[row])
        for t in range(begin, end):
            state = state * torch.exp(steps[:, t, None] * A)
            state = state + (steps[:, t] * u[:, t].float())[:, None] * B[:, t].float()
            out[:, t] = state @ C[:, t].float()
        ssm_states[block] = state.to(ssm_states.dtype)
    return ((out + D[:, None] * u.float()) * F.silu(z.float())).to(u.dtype)


def selective_update(
    states: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    *,
    z: Tensor,
    state_batch_indices: Tensor,
    out: Tensor,
    **_: Any,
) -> None:
    """Mamba1, one token of each request."""
    blocks = state_batch_indices.flatten().long()
    steps = F.softplus(dt.float() + dt_bias)
    state = states[blocks].float() * torch.exp(steps[..., None] * A)
    state = state + (steps * x.float())[..., None] * B.float()[:, None]
    states[blocks] = state.to(states.dtype)
    read = torch.einsum("rcn,rn->rc", state, C.float()) + D * x.float()
    out.copy_(read * F.silu(z.float()))


def olmo_gates(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, allow_neg_eigval: bool
) -> tuple[Tensor, Tensor]:
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay[None], (torch.sigmoid(b.float()) * (2 if allow_neg_eigval else 1))[None]


def kda_gates(
    g: Tensor, A: Tensor, dim: int, *, g_bias: Tensor, lower_bound: float | None
) -> Tensor:
    rates = A.float().exp().view(-1, 1)
    steps = (g.float() + g_bias).unflatten(-1, (-1, dim))
    if lower_bound is None:
        return -rates * F.softplus(steps)
    return lower_bound * torch.sigmoid(rates * steps)


def chunk_kda(
    *,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    g_bias: Tensor,
    lower_bound: float | None,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    """Kimi's prefill, which makes its gates itself."""
    gates = kda_gates(
        raw_g.flatten(-2), A_log, raw_g.shape[-1], g_bias=g_bias, lower_bound=lower_bound
    )
    return chunk_delta_rule(g=gates, beta=torch.sigmoid(raw_beta.float()), **rest)


def gather_states(states: Tensor, blocks: Tensor, has_state: Tensor) -> Tensor:
    return states[blocks.long()] * has_state[:, None, None, None]


def chunk_delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Of GDN and KDA, whose decays are of a head or of each key. States as the engine's kernels
    have them: [requests, heads, value dim, key dim]."""
    bounds, states, out = cu_seqlens.tolist(), initial_state.float().clone(), []
    for row, (begin, end) in enumerate(pairwise(bounds)):
        for t in range(begin, end):
            at = (part[0, t] for part in (q, k, v, g, beta))
            read, states[row] = _delta_step(states[row], *at)
            out.append(read)
    return torch.stack(out)[None].to(v.dtype), states


def recurrent_delta_rule(
    *, initial_state: Tensor, ssm_state_indices: Tensor, cu_seqlens: Tensor, **rest: Any
) -> tuple[Tensor, Tensor]:
    """In place."""
    blocks = ssm_state_indices[: len(cu_seqlens) - 1].long()
    begins = initial_state[blocks]
    out, states = chunk_delta_rule(initial_state=begins, cu_seqlens=cu_seqlens, **rest)
    initial_state[blocks] = states.to(initial_state.dtype)
    return out, initial_state


def _delta_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    # As the engine's kernels: an epsilon within the root, which short keys show.
    q, k = (x.float() * torch.rsqrt(x.float().square().sum(-1, True) + 1e-6) for x in (q, k))
    state = state * (g.exp()[:, None, None] if g.dim() == 1 else g.exp()[:, None])
    change = (v.float() - torch.einsum("hvk,hk->hv", state, k)) * beta[:, None]
    state = state + change[:, :, None] * k[:, None]
    return torch.einsum("hvk,hk->hv", state, q) * q.shape[-1] ** -0.5, state
