"""A random model with Qwen3.5's layers for measurements, and the report of the results."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCABULARY = 256


def model(wide: bool = False) -> PreTrainedModel:
    """Returns the model. wide: heads as in models of 2 B parameters and more, for timing."""
    torch.manual_seed(1)
    width, heads, dim, layers = (512, 8, 128, 8) if wide else (128, 4, 32, 4)
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=dim,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=dim,
        linear_value_head_dim=dim,
        eos_token_id=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
            "mrope_section": [dim // 8, dim // 16, dim // 16],
        },
    )
    return Qwen3_5ForCausalLM(config).eval()


def write(path: Path, rows: Sequence[object]) -> None:
    report = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": rows,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
