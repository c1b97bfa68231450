"""Finds where an engine's own functions put rows, by having them write patterns.

Each pattern goes through the function that the engine calls in its forward pass, into scratch
memory with the strides of the real cache; the cache itself is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spliced_connector.model import Kind, Profile

_DIGIT = 128
"""Patterns are numbers below it, which all element types hold exactly."""
_UNTOUCHED = 200.0
_MOST_SCRATCH = 1 << 28
"""Bytes of scratch memory; a block that is spread wider is not understood."""

Writer = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class UnsupportedError(ValueError):
    """What of the engine's cache is not understood."""


@dataclass(frozen=True)
class FoundRows:
    """A layer's cache, the dimension that counts its blocks, and the place of every element
    behind the begin of a block: [tokens, heads, dim] of keys and of values."""

    cache: Tensor
    block_dim: int
    keys: Tensor
    values: Tensor


def find_rows(module: Any, profile: Profile, layer: int) -> FoundRows:
    """The rows of one attention layer of the engine. Raises UnsupportedError."""
    attention = profile.identity.layers[layer].attention
    heads = profile.rank_kv_heads(layer)
    cache: object = getattr(module, "kv_cache", None)
    dimensions = (3,) if profile.identity.layers[layer].kind == Kind.MLA else (4, 5)
    if not isinstance(cache, Tensor) or cache.dim() not in dimensions:
        raise UnsupportedError(f"cache is {getattr(cache, 'shape', type(cache).__name__)}")
    block_dim = 1 if cache.dim() == 5 else 0
    dims = attention.key_dim, attention.value_dim
    elements = cache.numel() // cache.shape[block_dim]
    tokens, rest = divmod(elements, heads * sum(dims))
    if rest or tokens < 1:
        raise UnsupportedError(f"cache of shape {tuple(cache.shape)} for {heads} heads of {dims}")
    scratch = _scratch(cache, block_dim)
    places = _places(scratch, cache.stride(block_dim), writer(module), tokens, heads, dims)
    split = tokens * heads * dims[0]
    keys = places[:split].view(tokens, heads, dims[0])
    values = places[split:].view(tokens, heads, dims[1])
    return FoundRows(cache, block_dim, keys, values)


def _scratch(cache: Tensor, block_dim: int) -> Tensor:
    size = list(cache.shape)
    size[block_dim] = 2
    length = 1 + sum((n - 1) * step for n, step in zip(size, cache.stride(), strict=True))
    if length * cache.element_size() > _MOST_SCRATCH:
        raise UnsupportedError(f"a block is spread over strides {cache.stride()}")
    flat = torch.empty(length, dtype=cache.dtype, device=cache.device)
    return flat.as_strided(size, cache.stride())


def writer(module: Any) -> Writer:
    """The function with which the engine files new rows: (keys, values, cache, slots)."""
    update = getattr(getattr(module, "impl", None), "do_kv_cache_update", None)
    if update is None:
        raise UnsupportedError(f"{type(module).__name__} does not tell how it files rows")

    def write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        update(module, k, v, cache, slots)

    def write_latent(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        update(v.squeeze(1), k, cache, slots, module.kv_cache_dtype, module._k_scale)

    return write_latent if getattr(module, "kv_lora_rank", 0) else write


def _places(
    scratch: Tensor,
    block_stride: int,
    write: Writer,
    tokens: int,
    heads: int,
    dims: tuple[int, int],
) -> Tensor:
    """The place of every element of a block, keys first, counted from the block's begin."""
    counts = [tokens * heads * dim for dim in dims]
    total = sum(counts)
    slots = torch.arange(tokens, 2 * tokens, dtype=torch.int64, device=scratch.device)
    memory = scratch.as_strided(
        (scratch.untyped_storage().nbytes() // scratch.element_size(),), (1,), 0
    )
    number = torch.zeros(memory.shape[0], dtype=torch.int64)
    digits = max(1, math.ceil(math.log(total, _DIGIT)))
    for digit in range(digits):
        pattern = torch.arange(total) // _DIGIT**digit % _DIGIT
        memory.fill_(_UNTOUCHED)
        k, v = (
            part.view(tokens, heads, dim).to(scratch)
            for part, dim in zip(pattern.split(counts), dims, strict=True)
        )
        write(k, v, scratch, slots)
        seen = memory.to("cpu", torch.float32)
        touched = seen != _UNTOUCHED
        if digit and not torch.equal(touched, number >= 0):
            raise UnsupportedError("rows land in other places each time")
        digits_seen = seen[touched]
        if not bool(((digits_seen == digits_seen.floor()) & (digits_seen < _DIGIT)).all()):
            raise UnsupportedError("rows are not kept as they are")
        number[~touched] = -1
        number[touched] += seen[touched].to(torch.int64) * _DIGIT**digit
    return _inverse(number, total, block_stride)


def _inverse(number: Tensor, total: int, block_stride: int) -> Tensor:
    """From the element at each place of two blocks to the place of each element."""
    filled = torch.nonzero(number >= 0).squeeze(1)
    if len(filled) != total or int(filled.min()) < block_stride:
        raise UnsupportedError(f"{len(filled)} of {total} elements of a block were written")
    places = torch.full((total,), -1, dtype=torch.int64)
    places[number[filled]] = filled - block_stride
    if int(places.min()) < 0:
        raise UnsupportedError("some elements share a place")
    return places
