"""Jamba: Mamba1 and attention without positions."""

from __future__ import annotations

from torch import nn

from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, batched, pre_norm
from spliced_connector.walk.mamba1 import Mamba1, halves, selection
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    child,
    float_dtype,
    layers,
    maybe_child,
    number,
    require_silu,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `JambaForCausalLM`."""
    require_silu(config)
    body = child(model, "model")
    rank, state = number(config, "mamba_dt_rank"), number(config, "mamba_d_state")

    def mixer(layer: nn.Module) -> tuple[AttentionMixer | None, LinearMixer | None]:
        mamba = maybe_child(layer, "mamba")
        if mamba is not None:
            return None, Mamba1(mamba, selection(mamba, rank, state), halves)
        return grouped(config, child(layer, "self_attn"), None), None

    blocks = [
        pre_norm(
            i,
            mixer(at),
            child(at, "input_layernorm"),
            child(at, "pre_ff_layernorm"),
            batched(child(at, "feed_forward")),
        )
        for i, at in enumerate(layers(body))
    ]
    embedding, norm = child(body, "embed_tokens"), child(body, "final_layernorm")
    head = child(model, "lm_head")
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)
