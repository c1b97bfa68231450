"""Llama, Mistral, Qwen2 and Qwen3: softmax attention in every layer."""

from __future__ import annotations

from torch import nn

from spliced_connector.model import refused_window
from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Blocks, batched, pre_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import UnsupportedError, child, float_dtype, layers


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `LlamaForCausalLM`, or a model of the same shape."""
    body = child(model, "model")
    types = getattr(config, "layer_types", None) or ()
    if any(t != "full_attention" for t in types):
        raise UnsupportedError(f"layer types {sorted(set(types))}: {refused_window()}")
    blocks = [
        pre_norm(
            i,
            (grouped(config, child(at, "self_attn"), child(body, "rotary_emb")), None),
            child(at, "input_layernorm"),
            child(at, "post_attention_layernorm"),
            batched(child(at, "mlp")),
        )
        for i, at in enumerate(layers(body))
    ]
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)
