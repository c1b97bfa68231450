"""Tiny models with seeded random weights, one for every architecture that has a walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
import transformers
from torch import nn

BODY = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MAMBA2 = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "time_step_limit": (0.01, 1.5),
}


@dataclass(frozen=True)
class Tiny:
    """A class of transformers and the settings that its config gets on top of BODY."""

    name: str
    settings: Mapping[str, object]
    without: tuple[str, ...] = ()
    config: str = ""  # where its name does not follow from the model's
    kind: str = ""  # its model_type, of a class that older releases lack

    @property
    def model_type(self) -> str:
        """The model_type, whether or not the class is there."""
        return self.kind or str(self.build().config.model_type)

    def build(self, seed: int = 1) -> nn.Module:
        """The model in float32, ready to read; every weight is random, no norm is all ones.

        Skips the test where transformers is older than the class.
        """
        if self.kind and not hasattr(transformers, f"{self.name}ForCausalLM"):
            pytest.skip(f"transformers {transformers.__version__} has no {self.kind}")
        given = {k: v for k, v in (BODY | dict(self.settings)).items() if k not in self.without}
        config = getattr(transformers, self.config or f"{self.name}Config")(**given)
        config._attn_implementation = "eager"
        torch.manual_seed(seed)
        model = getattr(transformers, f"{self.name}ForCausalLM")(config).float().eval()
        _roughen(model, seed)
        return model


def _roughen(model: nn.Module, seed: int) -> None:
    """Makes every weight random, and forgetting slow.

    What initialises to a constant would hide what is read wrongly, and under the usual fast decay
    a transition over a segment is nothing that a test could see.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("A_log"):
                weight.copy_((noise * 0.5).exp().log())
            elif name.endswith(("dt_bias", "dt_proj.bias", "dt_proj_bias")):
                weight.copy_(noise * 0.7 - 4)
            elif weight.dim() < 2 or "conv1d" in name:
                weight.add_(noise * 0.3)
            else:
                weight.copy_(noise * (0.5 if "embed" in name else 1.0 / weight.shape[-1] ** 0.5))


LINEAR, FULL = "linear_attention", "full_attention"

TINY: Mapping[str, Tiny] = {
    "llama": Tiny("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e3}}),
    "llama_scaled": Tiny(
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e3,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": Tiny("Mistral", {"sliding_window": None}),
    "qwen2": Tiny("Qwen2", {}),
    "qwen3": Tiny("Qwen3", {"head_dim": 16}),
    "granite": Tiny(
        "GraniteMoeHybrid",
        MAMBA2
        | {
            "layer_types": [LINEAR, FULL, LINEAR, LINEAR],
            "shared_intermediate_size": 56,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "granite_rope": Tiny(
        "GraniteMoeHybrid",
        MAMBA2
        | {
            "layer_types": [FULL, LINEAR, LINEAR, FULL],
            "shared_intermediate_size": 56,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
        },
    ),
    "bamba": Tiny("Bamba", MAMBA2 | {"attn_layer_indices": [1, 3]}),
    "nemotron": Tiny(
        "NemotronH",
        {
            "hybrid_override_pattern": "M-*ME*M-",
            "head_dim": 16,
            "mamba_num_heads": 6,
            "mamba_head_dim": 8,
            "ssm_state_size": 12,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 24,
        },
        without=("num_hidden_layers",),
    ),
    "falcon": Tiny(
        "FalconH1",
        MAMBA2
        | {
            "num_hidden_layers": 3,
            "mamba_d_ssm": 96,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 1.3,
            "mlp_multipliers": [0.8, 1.1],
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.9,
            "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
            "ssm_in_multiplier": 1.4,
            "ssm_out_multiplier": 0.6,
        },
    ),
    "falcon_normed": Tiny(
        "FalconH1",
        MAMBA2
        | {
            "num_hidden_layers": 2,
            "mamba_d_ssm": 96,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        },
    ),
    "zamba2": Tiny(
        "Zamba2",
        {
            "layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid", "hybrid"],
            "num_hidden_layers": 5,
            "mamba_d_state": 12,
            "mamba_ngroups": 2,
            "n_mamba_heads": 6,
            "chunk_size": 16,
            "num_key_value_heads": 4,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "adapter_rank": 8,
            "use_mem_rope": True,
        },
    ),
    "zamba": Tiny(
        "Zamba",
        {
            "layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid"],
            "mamba_d_state": 6,
            "mamba_dt_rank": 5,
            "n_mamba_heads": 2,
            "num_key_value_heads": 4,
        },
    ),
    "mamba": Tiny("Mamba", {"state_size": 6, "time_step_rank": 5, "num_hidden_layers": 2}),
    "falcon_mamba": Tiny(
        "FalconMamba", {"state_size": 6, "time_step_rank": 5, "num_hidden_layers": 2}
    ),
    "mamba2": Tiny(
        "Mamba2",
        {
            "num_heads": 6,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 12,
            "chunk_size": 16,
            "num_hidden_layers": 2,
            "time_step_limit": (0.01, 1.5),
        },
    ),
    "jamba": Tiny(
        "Jamba",
        {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 6,
            "mamba_dt_rank": 5,
        },
    ),
    "minimax": Tiny(
        "MiniMax",
        {
            "layer_types": [FULL, LINEAR, LINEAR, FULL],
            "head_dim": 16,
            "num_local_experts": 4,
            "block_size": 16,
            "full_attn_alpha_factor": 1.3,
            "full_attn_beta_factor": 0.8,
            "linear_attn_alpha_factor": 1.2,
            "linear_attn_beta_factor": 0.7,
            "mlp_alpha_factor": 1.1,
            "mlp_beta_factor": 0.6,
        },
    ),
    "qwen35_moe": Tiny(
        "Qwen3_5Moe",
        {
            "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            },
        },
        without=("intermediate_size",),
        config="Qwen3_5MoeTextConfig",
    ),
    "kimi": Tiny(
        "KimiLinear",
        {
            "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "num_key_value_heads": 4,
            "kv_lora_rank": 20,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "linear_num_heads": 3,
            "linear_head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "bailing": Tiny(
        "BailingHybrid",
        {
            "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "num_key_value_heads": 4,
            "head_dim": 16,
            "kv_lora_rank": 20,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
        },
        kind="bailing_hybrid",
    ),
    "olmo": Tiny(
        "OlmoHybrid",
        {
            "layer_types": [LINEAR, FULL, LINEAR, FULL],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "olmo_nope": Tiny(
        "OlmoHybrid",
        {
            "layer_types": [LINEAR, FULL],
            "num_hidden_layers": 2,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
}
