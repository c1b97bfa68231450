"""A tiny Ling 2.5 with seeded weights: files that engines load, and a model of the same to compare
them with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from engine.ring_model import build
from engine.vllm_models import BAILING, Bailing

# The rope turns as much of a Lightning head as there is of the shared key.
SETTINGS: Mapping[str, object] = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "head_dim": 128,
    "use_linear_silu": True,
    "use_qk_norm": True,
    "q_lora_rank": 64,
}
HEADS, LAYERS = 2, 4


def ling(directory: Path, seed: int = 1) -> nn.Module:
    """Writes config and weights in bfloat16, and answers the model in float32."""
    Bailing(SETTINGS, {}).save(directory)
    model = build({**BAILING, **SETTINGS}, seed)
    turns = model.model.rotary_emb.inv_freq.clone()
    model.to(torch.bfloat16)
    save_file(dict(model.state_dict()), directory / "model.safetensors", {"format": "pt"})
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer.attention, "slope"):
            layer.attention.slope = -slopes(i)
    model.float()
    model.model.rotary_emb.inv_freq = turns  # engines round weights, not these
    return model


def slopes(layer: int) -> torch.Tensor:
    """Of a layer's heads, as both engines have them for a power of two of heads."""
    heads = 2 ** (-8 * torch.arange(1, HEADS + 1, dtype=torch.float32) / HEADS)
    return heads * (1 - layer / (LAYERS - 1) + 1e-5)
