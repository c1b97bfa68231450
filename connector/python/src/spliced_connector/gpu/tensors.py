"""Device memory that the engine owns and the daemon may write to, such as its key-value tensors.

It is exported once per process, with one CUDA IPC handle for each allocation. Every daemon that
the process finds gets it registered under the same epoch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.context import Context
from spliced_connector.gpu.driver import DevicePtr
from spliced_connector.gpu.errors import CudaError
from spliced_connector.wire.numbers import MAX_CHUNKS


class Storage(Protocol):
    """The part of torch.UntypedStorage that is used."""

    def data_ptr(self) -> int: ...

    def nbytes(self) -> int: ...


class Tensor(Protocol):
    """The part of torch.Tensor that is used."""

    def data_ptr(self) -> int: ...

    def untyped_storage(self) -> Storage: ...


class Rows(Tensor, Protocol):
    """The part of torch.Tensor that `layer_of` uses."""

    def dim(self) -> int: ...

    def stride(self, dim: int) -> int: ...

    def element_size(self) -> int: ...


@dataclass(frozen=True)
class Chunk:
    """Part of one allocation."""

    address: DevicePtr
    nbytes: int
    handle: bytes
    """CUDA IPC handle of the whole allocation; empty if it is not exported."""
    offset: int
    """Offset of the part in the allocation."""


@dataclass(frozen=True)
class Exported:
    """Parts of allocations. Offsets count through all parts in order, as if they were
    contiguous."""

    chunks: tuple[Chunk, ...]
    epoch: int
    """Identifies the exported memory to a daemon that is asked to open it again. 0: the memory is
    not exported (see `local`)."""

    @property
    def nbytes(self) -> int:
        """Size of all parts."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def offset(self, address: int) -> int:
        """Returns the offset of an address. Raises `SplicedError(INVALID)` for an address outside
        all parts."""
        at = 0
        for chunk in self.chunks:
            if chunk.address <= address < chunk.address + chunk.nbytes:
                return at + address - chunk.address
            at += chunk.nbytes
        raise SplicedError(Code.INVALID, f"address {address:#x} is not in an exported tensor")

    def room(self, address: int) -> int:
        """Returns how many bytes of a chunk follow from an address on; 0 for an address outside."""
        for chunk in self.chunks:
            if chunk.address <= address < chunk.address + chunk.nbytes:
                return chunk.address + chunk.nbytes - address
        return 0


def export(context: Context, tensors: Iterable[Tensor]) -> Exported:
    """Exports the storages of tensors so that another process can open them.

    Each allocation is exported once, from its first to its last storage. Raises `CudaError`, whose
    text names a remedy, for memory that has no IPC handle, such as memory of PyTorch's expandable
    segments and of vLLM's sleep mode.
    """
    parts: dict[DevicePtr, tuple[int, int]] = {}
    chunks = []
    with context.current() as driver:
        for begin, nbytes in sorted(_storages(tensors)):
            base, size = driver.address_range(DevicePtr(begin))
            end = begin + nbytes
            if end > base + size:
                text = f"storage of {nbytes} bytes at {begin:#x} of an allocation of {size}"
                raise SplicedError(Code.INVALID, text)
            first, last = parts.get(base, (begin, end))
            parts[base] = min(first, begin), max(last, end)
        for base, (begin, end) in parts.items():
            try:
                handle = driver.ipc_handle(base)
            except CudaError as err:
                raise CudaError(err.call, err.result, f"tensors at {begin:#x}") from err
            chunks.append(Chunk(DevicePtr(begin), end - begin, handle, begin - base))
    if not 0 < len(chunks) <= MAX_CHUNKS:
        raise SplicedError(Code.INVALID, f"{len(chunks)} allocations, want 1 to {MAX_CHUNKS}")
    return Exported(tuple(chunks), secrets.randbits(63) + 1)


def local(tensors: Iterable[Tensor]) -> Exported:
    """Describes tensors, in any memory, that only kernels in this process write. They are not
    registered with a daemon."""
    chunks = [
        Chunk(DevicePtr(address), nbytes, b"", 0) for address, nbytes in sorted(_storages(tensors))
    ]
    return Exported(tuple(chunks), 0)


def _storages(tensors: Iterable[Tensor]) -> set[tuple[int, int]]:
    """Returns address and size of each distinct storage."""
    found = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.add((storage.data_ptr(), storage.nbytes()))
    return found


@dataclass(frozen=True)
class DeviceLayer:
    """Where an attention layer's keys and values are on the GPU: addresses, strides in bytes.

    The row of a key is at `k_address + block * block_stride + token * k_token_stride +
    head * k_head_stride`, where `token` counts within the block; the row of a value likewise.
    """

    layer: int
    k_address: int
    v_address: int
    block_stride: int
    k_token_stride: int
    k_head_stride: int
    v_token_stride: int
    v_head_stride: int


@dataclass(frozen=True)
class DeviceEngineMemory:
    """The engine's tensors of all attention layers."""

    exported: Exported
    layers: tuple[DeviceLayer, ...]
    owner: object = None
    """Referenced as long as a daemon may have the memory open."""

    def __post_init__(self) -> None:
        """Raises `SplicedError(INVALID)` for a layer that was not exported."""
        for layer in self.layers:
            self.exported.offset(layer.k_address)
            self.exported.offset(layer.v_address)


def layer_of(layer: int, k: Rows, v: Rows) -> DeviceLayer:
    """Returns the position of keys and values [blocks, tokens, heads, dim] of a layer.

    k and v may be views, with dimensions in any order, of a larger tensor. Raises
    `SplicedError(INVALID)` if heads are not contiguous, or if keys and values have different
    strides between blocks.
    """
    if k.dim() != 4 or v.dim() != 4 or k.stride(3) != 1 or v.stride(3) != 1:
        raise SplicedError(Code.INVALID, "rows of keys or values are not contiguous")
    size = k.element_size()
    if k.stride(0) != v.stride(0) or v.element_size() != size:
        raise SplicedError(Code.INVALID, "blocks of keys and values differ in size")
    return DeviceLayer(
        layer, k.data_ptr(), v.data_ptr(), k.stride(0) * size,
        k.stride(1) * size, k.stride(2) * size, v.stride(1) * size, v.stride(2) * size,
    )  # fmt: skip
