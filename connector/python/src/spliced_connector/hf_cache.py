"""A transformers cache that holds what a context holds, so that `generate` goes on from it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from spliced_connector.profile import Family, Kind, Linear
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.context import Context, LayerContext
from spliced_connector.walk.reading import UnsupportedError


def filled(model: PreTrainedModel, arch: Architecture, context: Context) -> Cache:
    """A new cache of the model with the states and rows of a context, a batch of one.

    Raises UnsupportedError where the model keeps its states in a cache of another kind.
    """
    cache = DynamicCache(config=model.config)
    for slot, at, described in zip(arch.slots, context.layers, arch.identity.layers, strict=True):
        if described.kind == Kind.NONE:
            continue
        if slot >= len(cache.layers):
            raise UnsupportedError(f"cache of {len(cache.layers)} layers, state of layer {slot}")
        if described.kind == Kind.LINEAR:
            _fill_linear(cache.layers[slot], described.linear, at)
        elif at.k is not None and at.v is not None:
            k, v = (x[: context.tokens].transpose(0, 1)[None] for x in (at.k, at.v))
            # The latent is what transformers calls the keys of such a layer.
            first, second = (v, k) if described.kind == Kind.MLA else (k, v)
            cache.layers[slot].update(first, second)
    return cache


def _fill_linear(layer: object, described: Linear, at: LayerContext) -> None:
    update_conv = getattr(layer, "update_conv_state", None)
    update_state = getattr(layer, "update_recurrent_state", None)
    if update_state is None or update_conv is None or at.state is None:
        raise UnsupportedError(f"{type(layer).__name__} holds no recurrent state")
    if at.conv is not None:
        # As wide as the kernel there; a next token pushes the oldest column out unread.
        columns = torch.nn.functional.pad(at.conv.t(), (1, 0))
        update_conv(columns[None].contiguous())
    update_state(engine_state(described, at.state)[None].contiguous())


def engine_state(described: Linear, state: Tensor) -> Tensor:
    """A state [Hv, dk, dv] in the order in which transformers keeps that family's."""
    if described.family == Family.MAMBA1:
        return state.squeeze(-1)
    return state.transpose(1, 2) if described.family == Family.MAMBA2 else state
