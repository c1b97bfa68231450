"""Tiny Ring and Ling models, whose code comes with their weights and is in no package.

Modules have the names that the published ones have; the arithmetic is written from what the layers
mean. Lightning attention is a masked product of all pairs of tokens here, not a recurrence: token i
reads token j <= i as exp(slope (i - j)) q_i . k_j, with queries and keys turned to their positions.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers import PreTrainedConfig, PreTrainedModel

SETTINGS: Mapping[str, object] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 5,
    "layer_group_size": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rope_theta": 5e3,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
}
RING: Mapping[str, object] = {
    "num_key_value_heads": 2,
    "group_norm_size": 2,
    "use_qk_norm": True,
}
LING: Mapping[str, object] = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "group_norm_size": 1,
    "use_qk_norm": False,
    "use_linear_silu": True,
    "q_lora_rank": 12,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "gated_attention_proj_granularity_type": "element_wise",
}


class RingConfig(PreTrainedConfig):  # type: ignore[misc]
    model_type = "bailing_moe_linear"

    def __init__(self, **settings: object) -> None:
        super().__init__(tie_word_embeddings=False)
        for name, value in settings.items():
            setattr(self, name, value)


class LingConfig(RingConfig):
    model_type = "bailing_hybrid"


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class Norm(nn.Module):  # type: ignore[misc]
    """RMS norm of each of some groups of columns."""

    def __init__(self, size: int, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.groups = eps, groups

    def forward(self, x: Tensor) -> Tensor:
        each = _wide(x).unflatten(-1, (self.groups, -1))
        each = each / (each.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return self.weight * each.flatten(-2).to(x.dtype)


class Rotary(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        dims = int(config.head_dim * config.partial_rotary_factor)
        exponents = torch.arange(0, dims, 2).double() / dims
        self.register_buffer("inv_freq", (config.rope_theta**-exponents).float(), persistent=False)


def turned(x: Tensor, positions: Tensor, inv_freq: Tensor, pairs: bool = False) -> Tensor:
    """Rows [n, heads, dim] as complex numbers, times a unit for each position."""
    half = inv_freq.shape[0]
    first = torch.arange(half) * (2 if pairs else 1)
    second = first + (1 if pairs else half)
    angle = (positions[:, None].float() * inv_freq.float())[:, None]
    plane = torch.complex(_wide(x)[..., first], _wide(x)[..., second])
    plane = plane * torch.complex(angle.cos(), angle.sin()).to(plane.dtype)
    out = _wide(x).clone()
    out[..., first], out[..., second] = plane.real, plane.imag
    return out.to(x.dtype)


class Projected(nn.Module):  # type: ignore[misc]
    """What grouped and Lightning attention have in common."""

    def __init__(self, config: Any, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = config.num_attention_heads, kv_heads, config.head_dim
        inner = self.heads * self.dim
        width = config.hidden_size
        self.query_key_value = nn.Linear(width, (self.heads + 2 * kv_heads) * self.dim, bias=False)
        self.dense = nn.Linear(inner, width, bias=False)
        if config.use_qk_norm:
            self.query_layernorm = Norm(self.dim, config.rms_norm_eps)
            self.key_layernorm = Norm(self.dim, config.rms_norm_eps)
        self.silu = False

    def split(self, x: Tensor, positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of rows [n, width], each [n, heads, dim]."""
        all_heads = self.query_key_value(x)
        if self.silu:
            all_heads = silu(all_heads)
        all_heads = all_heads.unflatten(-1, (-1, self.dim))
        ends = self.heads, self.heads + self.kv
        q, k, v = all_heads[:, : ends[0]], all_heads[:, ends[0] : ends[1]], all_heads[:, ends[1] :]
        if hasattr(self, "query_layernorm"):
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        return turned(q, positions, inv_freq), turned(k, positions, inv_freq), v


class LightningAttention(Projected):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, config.num_attention_heads)
        inner = self.heads * self.dim
        self.g_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.g_norm = Norm(inner, config.rms_norm_eps, config.group_norm_size)
        base = 2.0 ** -torch.arange(1, self.heads + 1, dtype=torch.float32)
        depth = 1 - (layer - 1) / (config.num_hidden_layers - 1) + 1e-5
        self.register_buffer("slope", -base * depth / 4, persistent=False)
        self.silu = getattr(config, "use_linear_silu", False)
        self.inv_freq: Tensor | None = None
        self.state: Tensor | None = None

    def forward(self, x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
        q, k, v = self.split(x, positions, inv_freq)
        ages = positions[:, None] - positions[None, :]
        decay = (self.slope.double()[:, None, None] * ages.clamp(min=0)).exp().tril()
        scores = torch.einsum("ihd,jhd->hij", _wide(q), _wide(k)) * self.dim**-0.5
        o = torch.einsum("hij,jhd->ihd", scores * decay.to(scores.dtype), _wide(v))
        self.state = self.behind(k, v)
        return self.dense(self.g_norm(o.flatten(1).to(x.dtype)) * self.g_proj(x).sigmoid())

    def behind(self, k: Tensor, v: Tensor) -> Tensor:
        """The state that tokens leave, [heads, dim, dim] in float64: each by its distance to the
        last."""
        ages = torch.arange(len(k) - 1, -1, -1)
        decay = (ages[:, None] * self.slope.double()).exp()
        return torch.einsum("jh,jhd,jhe->hde", decay, k.double(), v.double())


class GroupedAttention(Projected):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, config.num_key_value_heads)

    def forward(self, x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
        q, k, v = self.split(x, positions, inv_freq)
        share = self.heads // self.kv
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        return self.dense(_attended(q, k, v, self.dim**-0.5).flatten(1))


class LatentAttention(nn.Module):  # type: ignore[misc]
    """Keys and values of every head are spelt out, as the published code does it."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.sizes = config
        self.heads, width = config.num_attention_heads, config.hidden_size
        query = config.qk_nope_head_dim + config.qk_rope_head_dim
        value = config.qk_nope_head_dim + config.v_head_dim
        if config.q_lora_rank is None:
            self.q_proj = nn.Linear(width, self.heads * query, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, config.q_lora_rank, bias=False)
            self.q_a_layernorm = Norm(config.q_lora_rank, config.rms_norm_eps)
            self.q_b_proj = nn.Linear(config.q_lora_rank, self.heads * query, bias=False)
        kept = config.kv_lora_rank + config.qk_rope_head_dim
        self.kv_a_proj_with_mqa = nn.Linear(width, kept, bias=False)
        self.kv_a_layernorm = Norm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, self.heads * value, bias=False)
        self.gated = getattr(config, "gated_attention_proj_granularity_type", None) is not None
        if self.gated:
            self.g_proj = nn.Linear(width, self.heads * config.v_head_dim, bias=False)
        self.dense = nn.Linear(self.heads * config.v_head_dim, width, bias=False)
        self.scaling = query**-0.5

    def forward(self, x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
        c = self.sizes
        if c.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (self.heads, -1))
        q_plain, q_turned = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        latent, shared = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        both = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, -1))
        k_plain, v = both.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        shared = turned(shared[:, None], positions, inv_freq, pairs=True).expand(-1, self.heads, -1)
        q = torch.cat((q_plain, turned(q_turned, positions, inv_freq, pairs=True)), -1)
        o = _attended(q, torch.cat((k_plain, shared), -1), v, self.scaling)
        o = o.flatten(1)
        return self.dense(o * self.g_proj(x).sigmoid() if self.gated else o)


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    later = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("expert_bias", torch.linspace(-0.1, 0.1, config.num_experts))


class Mixture(nn.Module):  # type: ignore[misc]
    """Experts of the best groups, and one that is shared; gives the router's choice, too."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sizes, width, inner = config, config.hidden_size, config.moe_intermediate_size
        self.experts = nn.ModuleList(Mlp(width, inner) for _ in range(config.num_experts))
        self.gate = Gate(config)
        self.shared_experts = Mlp(width, inner * config.num_shared_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c, rows = self.sizes, x.flatten(0, 1)
        scores = linear(_wide(rows), _wide(self.gate.weight)).sigmoid()
        biased = (scores + self.gate.expert_bias).unflatten(-1, (c.n_group, -1))
        groups = biased.topk(2, -1)[0].sum(-1).topk(c.topk_group, -1)[1]
        allowed = torch.zeros(len(rows), c.n_group, dtype=torch.bool).scatter(1, groups, True)
        biased = biased.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
        chosen = biased.topk(c.num_experts_per_tok, -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * c.routed_scaling_factor
        each = torch.stack([expert(rows) for expert in self.experts], 1)
        picked = each.gather(1, chosen[..., None].expand(-1, -1, each.shape[-1]))
        y = (picked * weights[..., None].to(picked.dtype)).sum(1)
        return (y + self.shared_experts(rows)).view_as(x), chosen


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        group = config.layer_group_size
        full = (layer + 1) % group == 0 or layer >= config.num_hidden_layers // group * group
        softmax = LatentAttention if config.model_type == "bailing_hybrid" else GroupedAttention
        self.attention = (softmax if full else LightningAttention)(config, layer)
        dense = layer < config.first_k_dense_replace
        width = config.hidden_size
        self.mlp = Mlp(width, config.intermediate_size) if dense else Mixture(config)
        self.input_layernorm = Norm(width, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(width, config.rms_norm_eps)


class Body(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = Rotary(config)


class RingForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = RingConfig

    def __init__(self, config: RingConfig) -> None:
        super().__init__(config)
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.word_embeddings

    def forward(self, ids: Tensor) -> SimpleNamespace:
        """Logits of one sequence from position 0, [1, n, vocabulary]."""
        h = self.model.word_embeddings(ids[0])
        positions, inv_freq = torch.arange(len(h)), self.model.rotary_emb.inv_freq
        for layer in self.model.layers:
            h = h + layer.attention(layer.input_layernorm(h), positions, inv_freq)
            given = layer.mlp(layer.post_attention_layernorm(h)[None])
            h = h + (given[0] if isinstance(given, tuple) else given)[0]
        return SimpleNamespace(logits=self.lm_head(self.model.norm(h))[None])


_NAME = "transformers_modules.tiny_ring.modeling"


def _own_code() -> ModuleType:
    """This file as the library imports what comes with weights."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, __file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


def build(settings: Mapping[str, object], seed: int = 1) -> nn.Module:
    """A model in float32 with random weights; no norm is all ones."""
    code = _own_code()
    torch.manual_seed(seed)
    config = code.LingConfig if "kv_lora_rank" in settings else code.RingConfig
    model = code.RingForCausalLM(config(**{**SETTINGS, **settings})).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() < 2:
                weight.copy_(1 + noise * 0.3)
            else:
                weight.copy_(noise * (0.5 if "embed" in name else weight.shape[-1] ** -0.5))
    return model
