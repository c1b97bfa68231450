"""Nemotron-H: layers of Mamba2, of attention without positions, and of MLPs alone."""

from __future__ import annotations

from torch import Tensor, nn

from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Block, Blocks, batched
from spliced_connector.walk.mamba2 import Mamba2, Mamba2Sizes, gated_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    float_dtype,
    layers,
    names,
    number,
    require_silu,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `NemotronHForCausalLM`."""
    require_silu(config, "mamba_hidden_act")
    body = child(model, "model")
    sizes = Mamba2Sizes(
        heads=number(config, "mamba_num_heads"),
        dim=number(config, "mamba_head_dim"),
        groups=number(config, "n_groups"),
        state=number(config, "ssm_state_size"),
    )
    types = names(config, "layers_block_type")
    blocks = [
        _block(i, kind, at, config, sizes)
        for i, (kind, at) in enumerate(zip(types, layers(body), strict=True))
    ]
    embedding, norm = child(body, "embeddings"), child(body, "norm_f")
    head = child(model, "lm_head")
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _block(i: int, kind: str, layer: nn.Module, config: object, sizes: Mamba2Sizes) -> Block:
    mixer, norm = child(layer, "mixer"), child(layer, "norm")
    if kind == "linear_attention":
        return Block(i, norm, _add, linear=Mamba2(mixer, sizes, gated_norm(mixer)))
    if kind == "full_attention":
        return Block(i, norm, _add, softmax=grouped(config, mixer, None))
    if kind in ("mlp", "moe"):
        mlp = batched(mixer)
        return Block(i, norm, lambda h, x: h + mlp(x))
    raise UnsupportedError(f"layer {i} is of type {kind!r}, want Mamba2, attention or an MLP")


def _add(h: Tensor, y: Tensor) -> Tensor:
    return h + y
