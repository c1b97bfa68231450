"""Tiny seeded Qwen3-Next and Qwen3.5 models whose gates and decays say something."""

from __future__ import annotations

import torch
from transformers import (
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCABULARY = 128

# More value heads than key heads and dk != dv: a state that is mixed up has another shape or value.
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "eos_token_id": None,
    **LINEAR,
}


def qwen_next(*, experts: int = 0, seed: int = 0) -> PreTrainedModel:
    """Four layers, the last with attention; with experts the second stays dense."""
    config = Qwen3NextConfig(
        **COMMON,
        num_experts=experts,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        mlp_only_layers=[1],
        decoder_sparse_step=1,
    )
    return spread(Qwen3NextForCausalLM(config), seed)


def qwen35(*, seed: int = 0, **changes: object) -> PreTrainedModel:
    """Four layers, the last with attention."""
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    }
    config = Qwen3_5TextConfig(**{**COMMON, "rope_parameters": rope, **changes})
    return spread(Qwen3_5ForCausalLM(config), seed)


def spread(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Weights of a size at which every part of the model shows in the logits."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() > 1:
                p.copy_(noise / p.shape[-1] ** 0.5)
            elif name.endswith("A_log"):
                p.copy_(torch.log(0.02 + 0.5 * torch.rand(p.shape, generator=g)))
            elif name.endswith("dt_bias"):
                p.copy_(noise - 2)
            else:
                p.add_(0.2 * noise)
    return model.eval()


MODELS = {
    "qwen3_next": lambda: qwen_next(),
    "qwen3_next moe": lambda: qwen_next(experts=4),
    "qwen3_5": lambda: qwen35(),
}
