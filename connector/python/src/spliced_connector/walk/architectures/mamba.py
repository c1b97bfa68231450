"""Mamba, Falcon-Mamba and Mamba2: models without attention."""

from __future__ import annotations

from torch import Tensor, nn

from spliced_connector.walk.base import Architecture
from spliced_connector.walk.blocks import Block, Blocks, LinearMixer
from spliced_connector.walk.mamba1 import Mamba1, halves, selection
from spliced_connector.walk.mamba2 import Mamba2, Mamba2Sizes, gated_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    child,
    float_dtype,
    layers,
    number,
    require_silu,
    tensor,
)


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a causal Mamba, Falcon-Mamba or Mamba2 model."""
    require_silu(config)
    body = child(model, "backbone")
    blocks = [_block(i, at, config) for i, at in enumerate(layers(body))]
    embedding, norm = child(body, "embeddings"), child(body, "norm_f")
    head = child(model, "lm_head")
    dtype = float_dtype(embedding)
    return Blocks(blocks, embedding, lambda h: head(norm(h).to(dtype)), dtype, naming)


def _block(i: int, layer: nn.Module, config: object) -> Block:
    module, norm = child(layer, "mixer"), child(layer, "norm")
    dtype = tensor(norm, "weight").dtype

    # The residual may have a wider type than the weights; the norm needs the type of the weights.
    def before(h: Tensor) -> Tensor:
        x: Tensor = norm(h.to(dtype))
        return x

    def after(h: Tensor, y: Tensor) -> Tensor:
        return (h.float() if getattr(layer, "residual_in_fp32", False) else h) + y

    return Block(i, before, after, linear=_mixer(module, config))


def _mixer(module: nn.Module, config: object) -> LinearMixer:
    state = number(config, "state_size")
    if hasattr(config, "num_heads"):
        sizes = Mamba2Sizes(
            heads=number(config, "num_heads"),
            dim=number(config, "head_dim"),
            groups=number(config, "n_groups"),
            state=state,
        )
        return Mamba2(module, sizes, gated_norm(module))
    return Mamba1(module, selection(module, number(config, "time_step_rank"), state), halves)
