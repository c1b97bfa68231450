"""Memory of the model's GPU that the daemon's kernels write keys and values into.

Each adapter makes one allocation with the driver and registers it once with every daemon that
lends memory of the GPU. PyTorch's allocator is not involved, so that no other tensor is exported.
A prompt reserves a part of the allocation as long as a tensor uses that part. The client keeps the
allocation until the daemon has closed its side of the connection. If the client cannot know that,
it keeps the allocation until the process ends.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spliced_connector.client import MAX_BLOCKS, DeviceOptions, Model, Placed, open_gpu
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import (
    CUDA,
    HOST,
    DeviceArray,
    DeviceEngineMemory,
    DeviceLayer,
    DevicePtr,
    export,
)
from spliced_connector.model import DType, Profile
from spliced_connector.walk import TORCH_TYPES, Context, LayerContext

_ALIGN = 16
"""Alignment of addresses that are passed to kernels."""


class _Owner:
    """Keeps the memory alive. The tensors over one part of the memory reference it."""

    def __init__(self, memory: _Allocated) -> None:
        self.memory = memory


class _Allocated:
    """Memory from the driver. It is freed when this object is dropped, but only by the process that
    allocated it."""

    def __init__(self, options: DeviceOptions, nbytes: int) -> None:
        """Raises `SplicedError`."""
        self._pid = 0
        gpu = open_gpu(options)
        self.context, self.nbytes = gpu.context, nbytes
        try:
            with self.context.aside() as driver:
                self.address = driver.alloc(nbytes)
        except SplicedError:
            self.context.close()
            raise
        self._pid = os.getpid()

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return
        try:
            with self.context.aside() as driver:
                driver.free(self.address)
            self.context.close()
        except SplicedError:
            pass  # the context has ended, and all memory with it


@dataclass
class _Part:
    """Consecutive blocks that one prompt uses."""

    first: int
    blocks: int
    owner: weakref.ref[_Owner]
    writes: list[Placed] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Returns whether no tensor uses the part, and the daemon no longer writes to it."""
        self.writes = [write for write in self.writes if not write.settled]
        return self.owner() is None and not self.writes


class Registered:
    """The memory of one adapter. Only the thread that runs the model may use it."""

    def __init__(
        self,
        profile: Profile,
        options: DeviceOptions | None,
        device: torch.device,
        block_tokens: int,
        most: int,
        *,
        is_host_memory: bool = False,
    ) -> None:
        """most: maximum bytes of the memory. `trouble` says why there is no memory."""
        self.trouble = ""
        self.memory: DeviceEngineMemory | None = None
        """The memory to register with the model."""
        self._profile = profile
        self._device = device
        self._block = block_tokens
        self._kind = HOST if is_host_memory else CUDA
        self._parts: list[_Part] = []
        rows = self._row_bytes(profile)
        self._blocks = min(most // max(1, 2 * block_tokens * sum(rows.values())), MAX_BLOCKS)
        if not rows:
            self.trouble = "the model keeps no keys and values"
        elif options is None:
            self.trouble = "Options.device is not set"
        elif not self._blocks:
            self.trouble = f"{most} bytes are less than a block of {block_tokens} tokens"
        else:
            try:
                self._allocate(options, rows)
            except SplicedError as err:
                self.trouble = f"memory for the daemon to write to: {err}"

    @property
    def tokens(self) -> int:
        """Returns how many tokens, of all prompts together, fit at once."""
        return self._blocks * self._block

    @staticmethod
    def _row_bytes(profile: Profile) -> dict[int, int]:
        """Returns by layer the bytes from one token's keys to the next token's keys. Values have
        this stride too, because keys and values must have the same distance between blocks."""
        out = {}
        for i in profile.attention_layers:
            a = profile.identity.layers[i].attention
            row = a.kv_heads * max(a.key_dim, a.value_dim) * a.dtype.size
            out[i] = -(-row // _ALIGN) * _ALIGN
        return out

    def _allocate(self, options: DeviceOptions, rows: dict[int, int]) -> None:
        held = _Allocated(options, 2 * self.tokens * sum(rows.values()))
        if self._kind == CUDA and held.context.device != ordinal(self._device):
            self.trouble = f"the model is on {self._device}, the client's memory on another GPU"
            return
        layers, at = [], held.address
        for i, row in rows.items():
            a = self._profile.identity.layers[i].attention
            heads = a.key_dim * a.dtype.size, a.value_dim * a.dtype.size
            half = self.tokens * row
            layers.append(
                DeviceLayer(i, at, at + half, self._block * row, row, heads[0], row, heads[1])
            )
            at = DevicePtr(at + 2 * half)
        exported = export(held.context, [self._bytes(_Owner(held))])
        self.memory = DeviceEngineMemory(exported, tuple(layers), held)
        self._held = held

    def _bytes(self, owner: _Owner) -> Tensor:
        """Returns the whole memory as bytes, referencing `owner`."""
        held = owner.memory
        whole = held.address, (held.nbytes,), DType.NONE
        return torch.from_dlpack(DeviceArray(*whole, held.context.device, owner, self._kind))

    def why_not(self, model: Model, context: Context, room: int) -> str:
        """Returns why the daemon cannot write rows of a prompt now; empty if it can. room: number
        of the prompt's tokens."""
        if self.trouble:
            return self.trouble
        if why := model.memory_trouble:
            return why
        if self._part_of(context.layers, room) is None and self._room(self._count(room)) is None:
            return "no room in the memory that is registered"
        return ""

    def adopt(self, context: Context, room: int) -> None:
        """Moves the rows of a context into this memory, with room for `room` tokens; existing rows
        are copied. `why_not` must have returned ""."""
        if self._part_of(context.layers, room) is not None:
            return
        blocks = self._count(room)
        first = self._room(blocks)
        if first is None or self.memory is None:
            raise RuntimeError(f"no room for {room} tokens")
        owner = _Owner(self._held)
        whole = self._bytes(owner)
        self._parts.append(_Part(first, blocks, weakref.ref(owner)))
        for layer in self.memory.layers:
            at = context.layers[layer.layer]
            a = self._profile.identity.layers[layer.layer].attention
            before = at.k, at.v
            at.k, at.v = (
                self._rows(whole, begin + first * layer.block_stride, blocks, dtype, shape, stride)
                for begin, dtype, shape, stride in (
                    (layer.k_address, a.dtype, (a.kv_heads, a.key_dim), layer.k_token_stride),
                    (layer.v_address, a.dtype, (a.kv_heads, a.value_dim), layer.v_token_stride),
                )
            )
            for new, old in zip((at.k, at.v), before, strict=True):
                if old is not None:
                    new[: context.tokens] = old[: context.tokens]

    def _rows(
        self,
        whole: Tensor,
        address: int,
        blocks: int,
        dtype: DType,
        shape: tuple[int, int],
        stride: int,
    ) -> Tensor:
        """Returns [tokens, heads, dim] from an address on."""
        typed = whole.view(TORCH_TYPES[dtype])
        size = (blocks * self._block, *shape)
        strides = (stride // dtype.size, shape[1], 1)
        return typed.as_strided(size, strides, (address - self._held.address) // dtype.size)

    def table(self, into: Sequence[tuple[Tensor | None, Tensor | None]]) -> list[int]:
        """Returns the numbers of an adopted context's blocks. into: the context's rows."""
        part = self._part(into)
        return list(range(part.first, part.first + part.blocks))

    def writing(self, into: Sequence[tuple[Tensor | None, Tensor | None]], placed: Placed) -> None:
        """Reserves the blocks of these rows until the daemon has written."""
        self._part(into).writes.append(placed)

    def _part(self, into: Sequence[tuple[Tensor | None, Tensor | None]]) -> _Part:
        part = self._at(next((k for k, _ in into if k is not None), None))
        if part is None:
            raise RuntimeError("rows of a context that was not adopted")
        return part

    def _part_of(self, layers: Sequence[LayerContext], room: int) -> _Part | None:
        """Returns the part that contains the rows of a context, if it has room for `room`
        tokens."""
        if self.memory is None:
            return None
        first = layers[self.memory.layers[0].layer].k
        part = self._at(first)
        return part if part is not None and part.blocks * self._block >= room else None

    def _at(self, k: Tensor | None) -> _Part | None:
        if k is None or self.memory is None:
            return None
        layer = self.memory.layers[0]
        for part in self._parts:
            if k.data_ptr() == layer.k_address + part.first * layer.block_stride:
                return None if part.free else part
        return None

    def _count(self, room: int) -> int:
        return -(-room // self._block)

    def _room(self, blocks: int) -> int | None:
        """Returns the first of consecutive free blocks, None if there are too few."""
        self._parts = sorted(
            (part for part in self._parts if not part.free), key=lambda part: part.first
        )
        at = 0
        for part in self._parts:
            if part.first - at >= blocks:
                return at
            at = part.first + part.blocks
        return at if self._blocks - at >= blocks else None


def ordinal(device: torch.device) -> int:
    """Returns the number of a CUDA device among the visible ones."""
    return int(torch.cuda.current_device()) if device.index is None else device.index
