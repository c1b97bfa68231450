"""Positions of rows and states in an engine's paged tensors, and canonical copies of them.

vLLM has changed the order of these tensors several times, and packs keys differently for every CPU
that it supports. So no code here depends on a version: the engine's own functions write patterns
into scratch memory with the same strides, and the positions of the elements are read back
(`layout`). If a position cannot be found, `UnsupportedError` is raised and the connector stays
inert.

Canonical rows are token-major, [tokens, KV heads, dim]; a canonical state is [value heads, key
dim, value dim] in float32; a convolution's tail is [kernel - 1, channels], the oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spliced_connector.model import Profile
from spliced_connector.vllm.layout.rows import FoundRows, UnsupportedError, find_rows, writer
from spliced_connector.vllm.layout.states import StateOrder, StatePages, find_states, state_pages
from spliced_connector.vllm.plans import NO_BLOCK, Blocks
from spliced_connector.vllm.support import Engine
from spliced_connector.walk import Copies

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["BlocksError", "Caches", "RowPages", "StatePages", "UnsupportedError", "find_caches"]


class BlocksError(ValueError):
    """A request's blocks do not contain the expected rows or states."""


class _Elements:
    """The keys, or values, in the blocks of a layer: [block tokens, heads, dim] in each block."""

    def __init__(self, cache: Tensor, block_dim: int, offsets: Tensor) -> None:
        self._tokens = offsets.shape[0]
        self.row = offsets.shape[1:]
        """[heads, dim]."""
        blocks, stride = cache.shape[block_dim], cache.stride(block_dim)
        first = int(offsets.reshape(-1)[0])
        strides = [_stride(offsets, dim) for dim in range(offsets.dim())]
        grid = torch.full_like(offsets, first)
        for dim, step in enumerate(strides):
            shape = [-1 if i == dim else 1 for i in range(offsets.dim())]
            grid = grid + (torch.arange(offsets.shape[dim]) * step).view(shape)
        self.is_strided = bool(torch.equal(grid, offsets))
        """Whether every element's offset is a sum of one step per index."""
        if self.is_strided:
            size = (blocks, *offsets.shape)
            base = cache.storage_offset() + first
            self._view = cache.as_strided(size, (stride, *strides), base)
        else:
            span = int(offsets.max()) + 1
            self._view = cache.as_strided((blocks, span), (stride, 1), cache.storage_offset())
            self._flat = offsets.reshape(-1).to(cache.device)

    def rows(self, block: int, begin: int, end: int) -> Tensor:
        """Returns rows [begin, end) of a block, [n, heads, dim]: a view if they are strided."""
        if self.is_strided:
            return self._view[block, begin:end]
        places = self._flat.view(self._tokens, -1)[begin:end]
        return self._view[block, places].view(-1, *self.row)

    def read(self, blocks: Tensor) -> Tensor:
        """Returns the rows of whole blocks, [blocks * tokens, heads, dim], a contiguous copy."""
        rows = self._view.index_select(0, blocks)
        if not self.is_strided:
            rows = rows.index_select(1, self._flat)
        return rows.reshape(-1, *self.row)


def _stride(offsets: Tensor, dim: int) -> int:
    if offsets.shape[dim] < 2:
        return 0
    first = offsets.reshape(-1)[0]
    return int(offsets.select(dim, 1).reshape(-1)[0] - first)


class RowPages:
    """Keys and values of one attention layer.

    A table has a request's block numbers in the layer's cache group: token t of the request is in
    block table[t // block_tokens]. Keys are as the layer wrote them, rotated to their positions.
    """

    def __init__(self, module: object, found: FoundRows, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._cache = found.cache
        self._writer = writer(module)
        self._keys = _Elements(found.cache, found.block_dim, found.keys)
        self._values = _Elements(found.cache, found.block_dim, found.values)
        self._rounding = found.rounding
        self._step = found.keys.shape[0]  # kernels may use smaller blocks
        if block_tokens % self._step:
            raise UnsupportedError(f"blocks of {self._step} rows for {block_tokens} tokens")

    @property
    def device(self) -> torch.device:
        return self._cache.device

    def read(self, table: Sequence[int], begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Returns copies of keys and values of tokens [begin, end)."""
        first = begin // self._step
        blocks = self._kernel_blocks(table, torch.arange(first, -(-end // self._step)))
        blocks = blocks.to(self._cache.device)
        cut = slice(begin - first * self._step, end - first * self._step)
        kept = self._keys.read(blocks)[cut], self._values.read(blocks)[cut]
        if self._rounding is None:
            return kept
        k, v = map(self._rounding.decoded, kept, self._rounding.scales)
        return k, v

    def rows(self, block: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of rows [begin, end) of a block of the engine's kernels: views
        if the layout allows it. If the engine rounds rows to one byte, the rows are returned as it
        stores them."""
        return self._keys.rows(block, begin, end), self._values.rows(block, begin, end)

    def write(self, table: Sequence[int], begin: int, k: Tensor, v: Tensor) -> None:
        """Replaces the keys [n, KV, dk] and values [n, KV, dv] of the n tokens from `begin` on.

        Raises ValueError for rows of another shape, and for rows beyond the table.
        """
        if k.shape[1:] != self._keys.row or v.shape[1:] != self._values.row:
            raise ValueError(f"rows of {tuple(k.shape)} and {tuple(v.shape)}")
        if len(k) != len(v) or begin + len(k) > len(table) * self.block_tokens:
            raise ValueError(f"{len(k)} and {len(v)} rows from {begin} on, {len(table)} blocks")
        tokens = torch.arange(begin, begin + len(k))
        blocks = self._kernel_blocks(table, tokens // self._step)
        slots = (blocks * self._step + tokens % self._step).to(self._cache.device)
        dtype = self._cache.dtype if self._rounding is None else self._rounding.computed
        k, v = (x.to(self._cache.device, dtype) for x in (k, v))
        self._writer(k, v, self._cache, slots)

    def _kernel_blocks(self, table: Sequence[int], indices: Tensor) -> Tensor:
        n = self.block_tokens // self._step
        return torch.tensor(table, dtype=torch.int64)[indices // n] * n + indices % n


@dataclass(frozen=True)
class Caches:
    """The engine's caches. Layers are numbered as in the model."""

    rows: Mapping[int, RowPages]
    states: Mapping[int, StatePages]
    group: Mapping[int, int]
    """The cache group of each layer: the index of the layer's table in a request's `Blocks`."""
    block_tokens: tuple[int, ...]
    """Tokens of a block, by cache group."""
    copies: Copies = Copies(torch.device("cpu"))  # noqa: RUF009  (frozen)
    """Copies from and to the device of all caches."""

    def state_block(self, blocks: Blocks, layer: int, tokens: int) -> int:
        """Returns the request's block that contains a layer's state after `tokens` tokens.

        Raises BlocksError if none does.
        """
        group = self.group[layer]
        index = -(-tokens // self.block_tokens[group]) - 1
        if not 0 <= index < len(blocks[group]) or blocks[group][index] == NO_BLOCK:
            raise BlocksError(f"layer {layer} has no block for the state after token {tokens}")
        return blocks[group][index]

    def table(self, blocks: Blocks, layer: int, begin: int, end: int) -> tuple[int, ...]:
        """Returns the table of a layer: the request's blocks in its group.

        Raises BlocksError unless they contain all rows of tokens [begin, end).
        """
        group = self.group[layer]
        size = self.block_tokens[group]
        used = blocks[group][begin // size : -(-end // size)]
        if len(blocks[group]) * size < end or NO_BLOCK in used:
            raise BlocksError(f"layer {layer} has no blocks for all of tokens {begin} to {end}")
        return blocks[group]


class Probes:
    """Probes each kind of layer only once: layers of a model with the same class, shape, strides
    and settings store data in the same way."""

    def __init__(self, profile: Profile, config: VllmConfig) -> None:
        self._profile = profile
        self._config = config
        self._rows: dict[tuple[object, ...], FoundRows] = {}
        self._orders: dict[tuple[object, ...], StateOrder] = {}

    def rows(self, module: Any, layer: int) -> FoundRows:
        """See `find_rows`."""
        alike = (_signature(module), self._profile.identity.layers[layer])
        if alike not in self._rows:
            self._rows[alike] = find_rows(module, self._profile, layer)
        return replace(self._rows[alike], cache=module.kv_cache)

    def states(self, module: Any, layer: int) -> StatePages:
        """See `find_states`."""
        alike = (_signature(module), self._profile.identity.layers[layer])
        if alike not in self._orders:
            self._orders[alike] = find_states(module, self._profile, layer, self._config)
        return state_pages(module, self._profile, layer, self._orders[alike])


def _signature(module: object) -> tuple[object, ...]:
    cache = getattr(module, "kv_cache", None)
    caches = cache if isinstance(cache, tuple | list) else (cache,)
    tensors = [(t.shape, t.stride(), t.dtype, t.device) for t in caches if isinstance(t, Tensor)]
    impl = getattr(module, "impl", None)
    return (type(module), type(impl), getattr(module, "isa", None), len(caches), *tensors)


def find_caches(engine: Engine, layers: Mapping[str, object], config: VllmConfig) -> Caches:
    """Finds every layer's memory. layers: the engine's modules by name, with their cache bound.

    Raises UnsupportedError with the name of a layer that is not understood.
    """
    probes = Probes(Profile(engine.identity), config)
    rows: dict[int, RowPages] = {}
    states: dict[int, StatePages] = {}
    group_of: dict[int, int] = {}
    for group in engine.groups:
        for layer, name in zip(group.layers, group.names, strict=True):
            module = layers.get(name)
            if module is None:
                raise UnsupportedError(f"{name}: no module with a cache")
            try:
                if group.states:
                    states[layer] = probes.states(module, layer)
                else:
                    rows[layer] = RowPages(module, probes.rows(module, layer), group.block_tokens)
            except UnsupportedError as err:
                raise UnsupportedError(f"{name}: {err}") from err
            group_of[layer] = group.index
    devices = {p.device for p in rows.values()} | {p.device for p in states.values()}
    if len(devices) != 1:
        raise UnsupportedError(f"layers on {len(devices)} devices")
    sizes = tuple(group.block_tokens for group in engine.groups)
    return Caches(rows, states, group_of, sizes, Copies(devices.pop()))
