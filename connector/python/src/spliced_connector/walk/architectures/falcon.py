"""Falcon-H1: Mamba2 and attention side by side in every decoder layer, and constant factors on
the inputs and outputs of both.

Each decoder layer is two blocks here. Both mixers read the same norm of the layer's input. So the
first block leaves the input unchanged and appends the output of Mamba2 as further columns. The
second block adds the outputs of both mixers to the input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Block, Blocks, batched
from spliced_connector.walk.mamba2 import Mamba2, Mamba2Sizes, gated_norm, sizes_of
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import child, float_dtype, layers, number, real, tensor


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `FalconH1ForCausalLM`."""
    body = child(model, "model")
    sizes = sizes_of(config)
    blocks = []
    for i, at in enumerate(layers(body)):
        blocks += _pair(i, at, config, sizes, child(body, "rotary_emb"))
    embedding, norm = child(body, "embed_tokens"), child(body, "final_layernorm")
    head = child(model, "lm_head")
    first, last = real(config, "embedding_multiplier"), real(config, "lm_head_multiplier")
    return Blocks(
        blocks,
        lambda ids: embedding(ids) * first,
        lambda h: head(norm(h)) * last,
        float_dtype(embedding),
        naming,
    )


def _pair(
    i: int, layer: nn.Module, config: object, sizes: Mamba2Sizes, rotary: nn.Module
) -> list[Block]:
    hidden = number(config, "hidden_size")
    module, norm = child(layer, "mamba"), child(layer, "input_layernorm")
    mamba = Mamba2(
        module,
        sizes,
        gated_norm(module),
        before=real(config, "ssm_in_multiplier"),
        spread=tensor(module, "mup_vector").flatten(),
    )
    attention = grouped(
        config, child(layer, "self_attn"), rotary, key_scale=real(config, "key_multiplier")
    )
    ssm_out = real(config, "ssm_out_multiplier")
    attention_in = real(config, "attention_in_multiplier")
    return [
        Block(i, norm, lambda h, y: torch.cat((h, y * ssm_out), dim=-1), linear=mamba),
        Block(
            i,
            lambda h: norm(h[..., :hidden]) * attention_in,
            _second(layer, hidden, real(config, "attention_out_multiplier")),
            softmax=attention,
        ),
    ]


def _second(layer: nn.Module, hidden: int, scale: float) -> Callable[[Tensor, Tensor], Tensor]:
    norm, mlp = child(layer, "pre_ff_layernorm"), batched(child(layer, "feed_forward"))

    def after(h: Tensor, y: Tensor) -> Tensor:
        h = h[..., :hidden] + (h[..., hidden:] + y * scale)
        return h + mlp(norm(h))

    return after
