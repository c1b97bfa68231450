"""Zamba and Zamba2: Mamba layers. Some of them follow an attention block; all attention blocks
share their weights.

An attention block reads the word embeddings in addition to the hidden rows. So a row has the
columns [hidden | embedding] here, and after an attention block [hidden | embedding | output of the
block]. The following Mamba layer adds the block's output to its input, but not to its residual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Block, Blocks, LinearMixer
from spliced_connector.walk.mamba1 import Mamba1, grouped_selection
from spliced_connector.walk.mamba2 import Mamba2, Mamba2Sizes, gated_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    child,
    flag,
    float_dtype,
    layers,
    maybe_child,
    number,
    require_silu,
    whole_numbers,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `ZambaForCausalLM` or a `Zamba2ForCausalLM`."""
    body = child(model, "model")
    hidden = number(config, "hidden_size")
    mixer = _mamba1(config) if hasattr(config, "mamba_dt_rank") else _mamba2(config)
    rotary = child(body, "rotary_emb") if flag(config, "use_mem_rope") else None
    blocks: list[Block] = []
    for i, at in enumerate(layers(body)):
        shared = maybe_child(at, "shared_transformer") or maybe_child(at, "shared_transf")
        if shared is not None:
            blocks.append(_shared(i, shared, child(at, "linear"), config, rotary))
            at = child(at, "mamba_decoder")
        blocks.append(_mamba(i, at, mixer, hidden, shared is not None))
    embedding, norm = child(body, "embed_tokens"), child(body, "final_layernorm")
    head = child(model, "lm_head")

    def embed(ids: Tensor) -> Tensor:
        rows = embedding(ids)
        return torch.cat((rows, rows), dim=-1)

    return Blocks(
        blocks, embed, lambda h: head(norm(h[..., :hidden])), float_dtype(embedding), naming
    )


def _mamba2(config: object) -> Callable[[nn.Module], LinearMixer]:
    sizes = Mamba2Sizes(
        heads=number(config, "n_mamba_heads"),
        dim=number(config, "mamba_headdim"),
        groups=number(config, "mamba_ngroups"),
        state=number(config, "mamba_d_state"),
    )
    return lambda module: Mamba2(module, sizes, gated_norm(module))


def _mamba1(config: object) -> Callable[[nn.Module], LinearMixer]:
    require_silu(config, "hidden_mamba_act")
    rank, state = number(config, "mamba_dt_rank"), number(config, "mamba_d_state")

    def pairs(projected: Tensor) -> tuple[Tensor, Tensor]:
        conv, gate = projected.unflatten(-1, (-1, 2)).unbind(-1)
        return conv, gate

    return lambda module: Mamba1(module, grouped_selection(module, rank, state), pairs)


def _mamba(
    i: int,
    layer: nn.Module,
    mixer: Callable[[nn.Module], LinearMixer],
    hidden: int,
    behind: bool,
) -> Block:
    norm = child(layer, "input_layernorm")

    def before(h: Tensor) -> Tensor:
        rows = h[..., :hidden]
        x: Tensor = norm(rows + h[..., 2 * hidden :] if behind else rows)
        return x

    def after(h: Tensor, y: Tensor) -> Tensor:
        return torch.cat((h[..., :hidden] + y, h[..., hidden : 2 * hidden]), dim=-1)

    return Block(i, before, after, linear=mixer(child(layer, "mamba")))


def _shared(
    i: int, shared: nn.Module, linear: nn.Module, config: object, rotary: nn.Module | None
) -> Block:
    module = child(shared, "self_attn")
    extra = _adapters(module, config, i) if flag(config, "use_shared_attention_adapter") else {}
    attention = grouped(config, module, rotary, extra=extra)
    norm, mlp_norm = child(shared, "input_layernorm"), child(shared, "pre_ff_layernorm")
    mlp = child(shared, "feed_forward")
    adapted = maybe_child(mlp, "gate_up_proj_adapter_list") is not None

    def after(h: Tensor, y: Tensor) -> Tensor:
        rows = mlp_norm(y)
        return torch.cat((h, linear(mlp(rows, i) if adapted else mlp(rows))), dim=-1)

    return Block(i, norm, after, softmax=attention)


def _adapters(attention: nn.Module, config: object, layer: int) -> Mapping[str, nn.Module]:
    """Returns the modules that a layer adds to the shared projections "q", "k" and "v"."""
    use = whole_numbers(config, "hybrid_layer_ids").index(layer)
    return {name: layers(attention, f"linear_{name}_adapter_list")[use] for name in "qkv"}
