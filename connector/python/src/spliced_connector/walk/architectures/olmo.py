"""OLMo hybrid: full attention, and a gated delta rule whose T may have negative eigenvalues.

Attention layers apply their norms after the mixer and the MLP, linear layers before them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Family
from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Block, Blocks, pre_norm
from spliced_connector.walk.delta import Delta, DeltaSizes
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    child,
    flag,
    float_dtype,
    layers,
    maybe_child,
    number,
    require_silu,
    tensor,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over an `OlmoHybridForCausalLM`."""
    require_silu(config)
    body = child(model, "model")
    rotary = maybe_child(body, "rotary_emb")
    blocks = []
    for i, at in enumerate(layers(body)):
        module = maybe_child(at, "linear_attn")
        if module is None:
            blocks.append(_attention(i, at, config, rotary))
            continue
        norm, mlp_norm = child(at, "input_layernorm"), child(at, "post_attention_layernorm")
        blocks.append(pre_norm(i, (None, _delta(module, config)), norm, mlp_norm, child(at, "mlp")))
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _attention(i: int, layer: nn.Module, config: object, rotary: nn.Module | None) -> Block:
    norm, mlp_norm = (
        child(layer, "post_attention_layernorm"),
        child(layer, "post_feedforward_layernorm"),
    )
    mlp = child(layer, "mlp")

    def after(h: Tensor, y: Tensor) -> Tensor:
        h = h + norm(y)
        return h + mlp_norm(mlp(h))

    attention = grouped(config, child(layer, "self_attn"), rotary, wide=True, norm_rows=True)
    return Block(i, lambda h: h, after, softmax=attention)


def _delta(module: nn.Module, config: object) -> Delta:
    rate, shift = tensor(module, "A_log").float().exp(), tensor(module, "dt_bias")
    forget, write = child(module, "a_proj"), child(module, "b_proj")
    most = 2.0 if flag(config, "linear_allow_neg_eigval") else 1.0
    return Delta(
        module=module,
        family=Family.GDN,
        sizes=DeltaSizes(
            key_heads=number(config, "linear_num_key_heads"),
            value_heads=number(config, "linear_num_value_heads"),
            key_dim=number(config, "linear_key_head_dim"),
            value_dim=number(config, "linear_value_head_dim"),
        ),
        forget=lambda x: -rate * functional.softplus(forget(x).float() + shift),
        write=lambda x: torch.sigmoid(write(x)) * most,
        gate=child(module, "g_proj"),
    )
