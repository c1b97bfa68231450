"""Converts a context to a transformers cache, from which `generate` continues, and such a cache
back to a context."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from spliced_connector.hf.paged import Loan, PagedLayer
from spliced_connector.model import Attention, Family, Kind, Linear
from spliced_connector.walk import Architecture, Context, LayerContext, UnsupportedError


def filled(
    model: PreTrainedModel, arch: Architecture, context: Context, loan: Loan | None = None
) -> Cache:
    """Returns a new cache of the model with the states and rows of a context, a batch of one.
    Rows in pages stay there, and are valid as long as the loan.

    Raises UnsupportedError if the model keeps its states in a cache of another kind.
    """
    cache = _empty(model)
    for slot, at, described in zip(arch.slots, context.layers, arch.identity.layers, strict=True):
        if described.kind == Kind.LINEAR:
            _fill_linear(model, cache, slot, described.linear, at)
        elif at.pages is not None:
            # A fork, because the context may continue separately, as it does for the canary.
            cache.layers[slot] = PagedLayer(at.pages.fork(), context.tokens, loan)
        elif at.k is not None and at.v is not None:
            k, v = (x[: context.tokens].transpose(0, 1)[None] for x in (at.k, at.v))
            # transformers stores the latent as the keys of such a layer.
            mla = described.kind == Kind.MLA
            first, second = (v, _halves(k, described.attention)) if mla else (k, v)
            cache.update(first, second, slot)
    return cache


def read_back(model: PreTrainedModel, arch: Architecture, cache: Cache, context: Context) -> None:
    """Copies states and rows from a cache back to the context. `filled` has made the cache from
    this context, and the library has continued it since.

    The new number of tokens comes from the cache's attention layers; in a model without attention
    layers, the context's number of tokens does not change. Raises UnsupportedError if a layer of
    the cache has another form than `filled` gave it; the context must then not be used.
    """
    lengths = set()
    for slot, at, described in zip(arch.slots, context.layers, arch.identity.layers, strict=True):
        if described.kind == Kind.LINEAR:
            _take_linear(model, cache, slot, described.linear, at)
        elif at.pages is not None:
            layer = cache.layers[slot]
            if not isinstance(layer, PagedLayer):
                raise UnsupportedError(f"layer {slot} of a cache has lost its pages")
            at.pages = layer.rows
            lengths.add(layer.get_seq_length())
        elif at.k is not None and at.v is not None:
            at.k, at.v = _rows(cache, slot)
            if described.kind == Kind.MLA:
                at.k, at.v = _pairs(at.v, described.attention), at.k
            lengths.add(len(at.k))
    if len(lengths) > 1:
        raise UnsupportedError(f"layers of a cache hold {sorted(lengths)} tokens")
    context.tokens = lengths.pop() if lengths else context.tokens


def _rows(cache: Cache, slot: int) -> tuple[Tensor, Tensor]:
    layer = cache.layers[slot]
    if layer.keys is None or layer.values is None:
        raise UnsupportedError(f"layer {slot} of a cache holds no rows")
    k, v = (x[0].transpose(0, 1).contiguous() for x in (layer.keys, layer.values))
    return k, v


def _halves(k: Tensor, described: Attention) -> Tensor:
    """Converts shared keys of a latent layer, rotated in pairs, to the order of transformers: the
    first of each pair, then the second."""
    if not described.rope.interleaved:
        return k
    return torch.cat((k[..., 0::2], k[..., 1::2]), -1)


def _pairs(k: Tensor, described: Attention) -> Tensor:
    """Inverse of `_halves`."""
    if not described.rope.interleaved:
        return k
    return torch.stack(k.chunk(2, -1), -1).flatten(-2)


def _take_linear(
    model: PreTrainedModel, cache: Cache, slot: int, described: Linear, at: LayerContext
) -> None:
    if at.state is None:
        raise UnsupportedError(f"layer {slot} has no state")
    if described.family == Family.LIGHTNING:
        state, tail = cache.get_linear_cache(slot), None
    else:
        layer = cache.layers[slot]
        state, tail = layer.recurrent_states[0], layer.conv_states[0]
    if state is None or (at.conv is not None and tail is None):
        raise UnsupportedError(f"layer {slot} of a cache holds no state")
    wanted = at.state.shape
    at.state = _reordered(described, state[0], wanted).to(at.state)
    if at.conv is not None and tail is not None:
        at.conv = tail[0, :, -len(at.conv) :].t().to(at.conv).contiguous()


def _reordered(described: Linear, state: Tensor, shape: torch.Size) -> Tensor:
    """Inverse of `_ordered`."""
    if described.family == Family.MAMBA2:
        state = state.transpose(1, 2)
    return state.reshape(shape)


def _empty(model: PreTrainedModel) -> Cache:
    if model.config.model_type == "minimax":
        # MiniMax refuses any other cache.
        module = import_module("transformers.models.minimax.modeling_minimax")
        return cast(Cache, module.MiniMaxCache())
    return DynamicCache(config=model.config)


def _fill_linear(
    model: PreTrainedModel, cache: Cache, slot: int, described: Linear, at: LayerContext
) -> None:
    if at.state is None:
        raise UnsupportedError(f"layer {slot} has no state")
    if described.family == Family.LIGHTNING:
        set_linear = getattr(cache, "set_linear_cache", None)
        if set_linear is None:
            raise UnsupportedError(f"{type(cache).__name__} holds no Lightning state")
        set_linear(slot, at.state[None].to(model.dtype))
        return
    if slot >= len(cache.layers):
        raise UnsupportedError(f"cache of {len(cache.layers)} layers, state of layer {slot}")
    layer = cache.layers[slot]
    if not hasattr(layer, "update_recurrent_state"):
        raise UnsupportedError(f"{type(layer).__name__} holds no recurrent state")
    if at.conv is not None:
        # The library's state has one more column; the next token pushes it out unread.
        columns = torch.nn.functional.pad(at.conv.t(), (1, 0))
        layer.update_conv_state(columns[None].contiguous())
    layer.update_recurrent_state(_ordered(model, described, at.state)[None].contiguous())


def _ordered(model: PreTrainedModel, described: Linear, state: Tensor) -> Tensor:
    """Returns a state [Hv, dk, dv] in the order in which transformers stores this family."""
    if described.family == Family.MAMBA2:
        return state.transpose(1, 2)
    if described.family != Family.MAMBA1:
        return state
    channels = state.squeeze(-1)
    heads = getattr(model.config, "n_mamba_heads", None)  # Zamba
    return channels if heads is None else channels.unflatten(0, (heads, -1))
