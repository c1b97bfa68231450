"""Finds where an engine's own functions put rows, by making them write patterns.

The function that the engine calls in its forward pass writes each pattern into scratch memory with
the strides of the real cache. The cache itself is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spliced_connector.model import Kind, Profile
from spliced_connector.vllm.layout.mixers import StandIn

_DIGIT = 128
"""Pattern numbers are below this bound, so that all element types represent them exactly."""
_SHORT_DIGIT = 8
"""The same bound for one-byte types."""
_UNTOUCHED = 200.0
MOST_SCRATCH = 1 << 28
"""Maximum bytes of scratch memory. A block that spans more memory is not supported."""

FP8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""The one-byte types that rows may be rounded to, by the engine's names."""

Writer = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class UnsupportedError(ValueError):
    """A property of the engine's cache that is not supported."""


@dataclass(frozen=True)
class Rounding:
    """How a layer rounds rows to one byte: it stores `row / scale`, with one scale for keys and one
    for values.

    The type `computed` is precise enough that rows that are read and stored again give the same
    bytes.
    """

    kept: torch.dtype
    computed: torch.dtype
    scales: tuple[float, float]

    def decoded(self, kept: Tensor, scale: float) -> Tensor:
        return (kept.view(self.kept).to(torch.float32) * scale).to(self.computed)


@dataclass(frozen=True)
class FoundRows:
    """A layer's cache. block_dim: the dimension that counts blocks. keys, values: the offset of
    every element from the start of its block, [tokens, heads, dim]."""

    cache: Tensor
    block_dim: int
    keys: Tensor
    values: Tensor
    rounding: Rounding | None = None


def find_rows(module: Any, profile: Profile, layer: int) -> FoundRows:
    """Returns the rows of one attention layer of the engine. Raises UnsupportedError."""
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
    rounding = _rounding(module, cache)
    scratch = _scratch(cache, block_dim)
    sizes = tokens, heads, dims
    places = _places(scratch, cache.stride(block_dim), writer(module), sizes, rounding)
    split = tokens * heads * dims[0]
    keys = places[:split].view(tokens, heads, dims[0])
    values = places[split:].view(tokens, heads, dims[1])
    return FoundRows(cache, block_dim, keys, values, rounding)


def _rounding(module: Any, cache: Tensor) -> Rounding | None:
    """Returns how rows are rounded, None if they are not."""
    if cache.dtype != torch.uint8 and cache.dtype not in FP8.values():
        return None
    kept = FP8.get(str(getattr(module, "kv_cache_dtype", None)))
    scales = [getattr(module, f"_{name}_scale", None) for name in "kv"]
    if kept is None or not all(isinstance(x, Tensor) and x.numel() == 1 for x in scales):
        raise UnsupportedError("rows of one byte are rounded in an unknown way")
    key, value = (float(getattr(module, f"_{name}_scale_float")) for name in "kv")
    return Rounding(kept, module.dtype, (key, value))


def _scratch(cache: Tensor, block_dim: int) -> Tensor:
    size = list(cache.shape)
    size[block_dim] = 2
    length = 1 + sum((n - 1) * step for n, step in zip(size, cache.stride(), strict=True))
    if length * cache.element_size() > MOST_SCRATCH:
        raise UnsupportedError(f"a block is spread over strides {cache.stride()}")
    flat = torch.empty(length, dtype=cache.dtype, device=cache.device)
    return flat.as_strided(size, cache.stride())


def writer(module: Any) -> Writer:
    """Returns the function with which the engine stores new rows: (keys, values, cache, slots).

    For latent attention, keys are the shared rotated keys and values are the latents.
    """
    if hasattr(module, "_decode_concat_cache"):
        return _fused_writer(module)
    update = getattr(getattr(module, "impl", None), "do_kv_cache_update", None)
    if update is None:
        raise UnsupportedError(f"{type(module).__name__} does not show how it stores rows")

    def write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        update(module, k, v, cache, slots)

    def write_latent(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        update(v.squeeze(1), k, cache, slots, module.kv_cache_dtype, module._k_scale)

    return write_latent if getattr(module, "kv_lora_rank", 0) else write


def _fused_writer(module: Any) -> Writer:
    """Returns the writer for Kimi's latent attention, which stores rows in the kernel that prepares
    the queries of a decode step."""

    def write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        layer = StandIn(module, cache)
        turned = None, None  # keys are passed in their stored form
        queries = torch.zeros_like(v), torch.zeros_like(k)
        layer._decode_concat_cache(*queries, v.squeeze(1), k.squeeze(1), *turned, slots)

    return write


def _places(
    scratch: Tensor,
    block_stride: int,
    write: Writer,
    sizes: tuple[int, int, tuple[int, int]],
    rounding: Rounding | None,
) -> Tensor:
    """Returns the offset of every element from the start of its block: those of keys, then of
    values."""
    tokens, heads, dims = sizes
    counts = [tokens * heads * dim for dim in dims]
    total = sum(counts)
    slots = torch.arange(tokens, 2 * tokens, dtype=torch.int64, device=scratch.device)
    memory = scratch.as_strided(
        (scratch.untyped_storage().nbytes() // scratch.element_size(),), (1,), 0
    )
    number = torch.zeros(memory.shape[0], dtype=torch.int64)
    base = _SHORT_DIGIT if rounding else _DIGIT
    computed = rounding.computed if rounding else scratch.dtype
    scales = rounding.scales if rounding else (1.0, 1.0)
    for digit in range(max(1, math.ceil(math.log(total, base)))):
        pattern = torch.arange(total) // base**digit % base
        memory.fill_(_UNTOUCHED)
        k, v = (
            (part.view(tokens, heads, dim) * scale).to(scratch.device, computed)
            for part, dim, scale in zip(pattern.split(counts), dims, scales, strict=True)
        )
        write(k, v, scratch, slots)
        seen = memory.to("cpu")
        touched = seen != _UNTOUCHED
        if digit and not torch.equal(touched, number >= 0):
            raise UnsupportedError("rows are stored in different places each time")
        digits = (seen.view(rounding.kept) if rounding else seen).to(torch.float32)[touched]
        if not bool(((digits == digits.floor()) & (digits < base)).all()):
            raise UnsupportedError("rows are not stored unchanged")
        number[~touched] = -1
        number[touched] += digits.to(torch.int64) * base**digit
    return _inverse(number, total, block_stride)


def _inverse(number: Tensor, total: int, block_stride: int) -> Tensor:
    """Inverts `number`, which has for each offset in two blocks the number of the element there
    (-1: none). Returns the offset of each element from the start of the second block."""
    filled = torch.nonzero(number >= 0).squeeze(1)
    if len(filled) != total or int(filled.min()) < block_stride:
        raise UnsupportedError(f"{len(filled)} of {total} elements of a block were written")
    places = torch.full((total,), -1, dtype=torch.int64)
    places[number[filled]] = filled - block_stride
    if int(places.min()) < 0:
        raise UnsupportedError("some elements share a place")
    return places
