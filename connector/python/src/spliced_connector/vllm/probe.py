"""Finds where an engine's own functions put rows and states, by having them write patterns.

Each pattern goes through the function that the engine calls in its forward pass, into scratch
memory with the strides of the real cache; the cache itself is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from spliced_connector.model import Family, Profile

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


@dataclass(frozen=True)
class StateOrder:
    """How a layer keeps its state and its tail."""

    key_major: bool  # memory is [heads, key dim, value dim], whatever the shape says
    conv_dim_first: bool  # tails are [channels, kernel - 1]


def find_rows(module: Any, profile: Profile, layer: int) -> FoundRows:
    """The rows of one attention layer of the engine. Raises UnsupportedError."""
    attention = profile.identity.layers[layer].attention
    heads = profile.rank_kv_heads(layer)
    cache: object = getattr(module, "kv_cache", None)
    if not isinstance(cache, Tensor) or cache.dim() not in (4, 5):
        raise UnsupportedError(f"cache is {getattr(cache, 'shape', type(cache).__name__)}")
    block_dim = 0 if cache.dim() == 4 else 1
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

    return write


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


def find_states(module: Any, profile: Profile, layer: int) -> tuple[Tensor, Tensor, StateOrder]:
    """Tails, states and their order for one linear layer of the engine. Raises UnsupportedError."""
    linear = profile.identity.layers[layer].linear
    if linear.family is not Family.GDN:
        raise UnsupportedError(f"{linear.family.name} layers are not known")
    cache = getattr(module, "kv_cache", None)
    if not isinstance(cache, tuple | list) or len(cache) != 2:
        raise UnsupportedError(f"cache is {type(cache).__name__}, want a tail and a state")
    conv, state = cache
    _, heads = profile.rank_heads(layer)
    square = (heads, linear.value_dim, linear.key_dim)
    if tuple(state.shape[1:]) != square:
        raise UnsupportedError(f"states of {tuple(state.shape[1:])}, want {square}")
    tail = (linear.conv.rows, profile.rank_conv_channels(layer))
    if tuple(conv.shape[1:]) not in (tail, tail[::-1]) or tail[0] == tail[1]:
        raise UnsupportedError(f"tails of {tuple(conv.shape[1:])}, want {tail}")
    conv_dim_first = tuple(conv.shape[1:]) == tail[::-1]
    probe = _GdnProbe(module, profile, layer, conv, state)
    probe.check_tail(conv_dim_first)
    return conv, state, StateOrder(probe.is_key_major(), conv_dim_first)


class Probes:
    """Looks at each kind of layer once: layers alike in class, shape, strides and setting of the
    same model file alike."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._rows: dict[tuple[object, ...], FoundRows] = {}
        self._orders: dict[tuple[object, ...], StateOrder] = {}

    def rows(self, module: Any, layer: int) -> FoundRows:
        """As `find_rows`."""
        cache = getattr(module, "kv_cache", None)
        alike = (_signature(module, (cache,)), self._profile.identity.layers[layer])
        if alike not in self._rows:
            self._rows[alike] = find_rows(module, self._profile, layer)
        return replace(self._rows[alike], cache=cache)

    def states(self, module: Any, layer: int) -> tuple[Tensor, Tensor, StateOrder]:
        """As `find_states`."""
        cache = getattr(module, "kv_cache", None)
        cache = tuple(cache) if isinstance(cache, tuple | list) else (cache,)
        alike = (_signature(module, cache), self._profile.identity.layers[layer])
        if alike not in self._orders:
            self._orders[alike] = find_states(module, self._profile, layer)[2]
        return cache[0], cache[1], self._orders[alike]


def _signature(module: Any, cache: tuple[object, ...]) -> tuple[object, ...]:
    tensors = [(t.shape, t.stride(), t.dtype, t.device) for t in cache if isinstance(t, Tensor)]
    impl = getattr(module, "impl", None)
    return (type(module), type(impl), getattr(module, "isa", None), len(cache), *tensors)


class _GdnProbe:
    """Runs the engine's gated delta rule over a few tokens with scratch states.

    The function reads everything of its layer but the cache, which is replaced.
    """

    def __init__(
        self, module: Any, profile: Profile, layer: int, conv: Tensor, state: Tensor
    ) -> None:
        if conv.device.type != "cpu":
            raise UnsupportedError(f"no known way to look at states on {conv.device.type!r}")
        try:
            from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
        except ImportError as err:
            raise UnsupportedError(f"the engine's gated delta rule: {err}") from err
        run = getattr(gdn_attention, "_cpu_gdn_attention_nonspec", None)
        if run is None:
            raise UnsupportedError("the engine's gated delta rule has another name")
        self._run: Callable[..., object] = run
        self._module = module
        self._linear = profile.identity.layers[layer].linear
        self._heads = profile.rank_heads(layer)
        self._channels = profile.rank_conv_channels(layer)
        self._conv = torch.empty_strided((2, *conv.shape[1:]), conv.stride(), dtype=conv.dtype)
        self._state = torch.empty_strided((2, *state.shape[1:]), state.stride(), dtype=state.dtype)

    def check_tail(self, conv_dim_first: bool) -> None:
        """The last inputs have to come back as they went in, the oldest first."""
        rows = self._linear.conv.rows
        inputs = torch.arange((rows + 2) * self._channels).view(rows + 2, -1) % _DIGIT
        self._forward(inputs)
        tail = self._conv[1].transpose(0, 1) if conv_dim_first else self._conv[1]
        if not torch.equal(tail.to(torch.int64), inputs[2:]):
            raise UnsupportedError("tails are not the last inputs, oldest first")

    def is_key_major(self) -> bool:
        """One token with one key and one value leaves one number in each head's state."""
        key_heads, value_heads = self._heads
        dk, dv = self._linear.key_dim, self._linear.value_dim
        answers = set()
        for at_key, at_value in ((1, 2), (dk - 1, 0)):
            keys = torch.arange(key_heads) * dk + key_heads * dk + at_key
            values = torch.arange(value_heads) * dv + 2 * key_heads * dk + at_value
            inputs = torch.zeros(1, self._channels, dtype=torch.int64)
            inputs[0, keys] = inputs[0, values] = 4
            for orders in range(2):
                inputs = inputs if orders == 0 else -inputs
                self._forward(inputs)
                places = self._state[1].reshape(value_heads, -1)
                hit = (places != 0) & torch.isfinite(places)
                if bool((hit.sum(1) == 1).all()):
                    answers |= {
                        _order(int(i), at_key, at_value, dk, dv) for i in hit.nonzero()[:, 1]
                    }
        if len(answers) != 1 or None in answers:
            raise UnsupportedError("states hold a key and a value at an unknown place")
        return bool(answers.pop())

    def _forward(self, inputs: Tensor) -> None:
        """Compute rows of the convolution's inputs from a zero state into block 1."""
        n = len(inputs)
        self._conv.zero_()
        self._state.zero_()
        _, heads = self._heads
        metadata = SimpleNamespace(
            spec_sequence_masks=None,
            num_accepted_tokens=None,
            non_spec_state_indices_tensor=torch.tensor([1], dtype=torch.int32),
            non_spec_query_start_loc=torch.tensor([0, n], dtype=torch.int32),
            has_initial_state=torch.tensor([False]),
            num_decodes=0,
            num_decode_tokens=0,
            num_prefills=1,
            num_prefill_tokens=n,
        )
        gates = torch.zeros(n, heads, dtype=self._conv.dtype)
        out = torch.zeros(n, heads, self._linear.value_dim, dtype=self._conv.dtype)
        placeholder = _Placeholder(self._module, (self._conv, self._state))
        try:
            with torch.inference_mode():
                self._run(placeholder, metadata, inputs.to(self._conv.dtype), gates, gates, out)
        except (RuntimeError, AttributeError, TypeError, AssertionError) as err:
            raise UnsupportedError(f"the engine's gated delta rule: {err}") from err


class _Placeholder:
    """A layer with another cache."""

    def __init__(self, module: Any, cache: tuple[Tensor, Tensor]) -> None:
        self.kv_cache = cache
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _order(place: int, at_key: int, at_value: int, dk: int, dv: int) -> bool | None:
    """Whether a place in a head's memory is that of [key, value], or of [value, key]."""
    if place == at_key * dv + at_value:
        return True
    return False if place == at_value * dk + at_key else None
