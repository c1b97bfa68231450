"""The model that the demo serves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINED = ROOT / "scripts" / "tinyhybrid" / "model"

sys.path.insert(0, str(ROOT / "scripts" / "tinyhybrid"))


def trained_or_random(directory: Path) -> Path:
    """The trained model where it is there, else random weights of its shape: right times, wrong
    answers."""
    if (TRAINED / "model.safetensors").exists():
        return TRAINED
    return random_model(directory / "random")


def random_model(directory: Path) -> Path:
    """Random weights behind the trained model's words."""
    import torch
    from lexicon import tokenizer_json
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=640,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=8,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
        max_position_embeddings=4096,
        dtype="float32",
    )
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(tokenizer_json() + "\n")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    return directory
