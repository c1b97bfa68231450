"""Granite 4 hybrids: Mamba2, attention (usually without positions), and constant factors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, batched, pre_norm
from spliced_connector.walk.mamba2 import Mamba2, gated_norm, sizes_of
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import child, float_dtype, layers, maybe_child, real


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `GraniteMoeHybridForCausalLM`."""
    body = child(model, "model")
    sizes = sizes_of(config)
    rotary = maybe_child(body, "rotary_emb")
    residual = real(config, "residual_multiplier")

    def mixer(layer: nn.Module) -> tuple[AttentionMixer | None, LinearMixer | None]:
        mamba = maybe_child(layer, "mamba")
        if mamba is not None:
            return None, Mamba2(mamba, sizes, gated_norm(mamba))
        return grouped(config, child(layer, "self_attn"), rotary), None

    def mlp(layer: nn.Module) -> Callable[[Tensor], Tensor]:
        shared, experts = (
            batched(child(layer, "shared_mlp")),
            maybe_child(layer, "block_sparse_moe"),
        )
        if experts is None:
            return shared
        routed = batched(experts)
        return lambda rows: routed(rows) + shared(rows)

    blocks = [
        pre_norm(
            i,
            mixer(at),
            child(at, "input_layernorm"),
            child(at, "post_attention_layernorm"),
            mlp(at),
            residual,
        )
        for i, at in enumerate(layers(body))
    ]
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    scale, divisor = real(config, "embedding_multiplier"), real(config, "logits_scaling")
    return Blocks(
        blocks,
        lambda ids: embedding(ids) * scale,
        lambda h: head(norm(h)) / divisor,
        float_dtype(embedding),
        naming,
    )
