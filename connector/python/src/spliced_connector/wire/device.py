"""Messages about memory of a GPU: attaching it, registering the engine's, leasing, order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.errors import WireError
from spliced_connector.wire import schema as w
from spliced_connector.wire.numbers import (
    HANDLE_BYTES,
    MAX_CHUNKS,
    MAX_IDS,
    MAX_KEYS,
    MAX_MEMORY_LAYERS,
    UUID_BYTES,
    ShareWay,
)
from spliced_connector.wire.objects import LoadRequest
from spliced_connector.wire.schema import Message, message


def _check_uuid(name: str, uuid: bytes) -> None:
    if len(uuid) != UUID_BYTES:
        raise WireError(f"{name}: uuid: {len(uuid)} rows, want {UUID_BYTES}")


def _check_chunks(name: str, way: int, chunks: int, handles: bytes, offsets: int) -> None:
    if way not in (ShareWay.DESCRIPTOR, ShareWay.HANDLE):
        raise WireError(f"{name}: way: {way}")
    want = chunks if way == ShareWay.HANDLE else 0
    if len(handles) != want * HANDLE_BYTES:
        raise WireError(f"{name}: handles: {len(handles)} rows, want {want * HANDLE_BYTES}")
    if offsets != want:
        raise WireError(f"{name}: offsets: {offsets} rows, want {want}")


@message("attach-device request")
@dataclass(frozen=True, slots=True)
class AttachDeviceRequest(Message):
    """Asks for the public arena and a private one, in ways that the client can map."""

    ways: int = w.u8()
    private_bytes: int = w.u64()
    uuid: bytes = w.u8s(UUID_BYTES)

    def check(self) -> None:
        if self.uuid:
            _check_uuid(self.schema.name, self.uuid)


@message("attach-device reply")
@dataclass(frozen=True, slots=True)
class AttachDeviceReply(Message):
    """Comes with a memfd of the kernels' PTX, then one descriptor per chunk by that way."""

    way: int = w.u8()
    epoch: int = w.u64()
    public_bytes: int = w.u64()
    private_bytes: int = w.u64()
    order_off: int = w.u64()
    order_slots: int = w.u32()
    public_chunks: int = w.u32()
    staging_off: int = w.u64()
    staging_bytes: int = w.u64()
    uuid: bytes = w.u8s(UUID_BYTES)
    chunk_bytes: Sequence[int] = w.u64s(MAX_CHUNKS)
    handles: bytes = w.u8s(MAX_CHUNKS * HANDLE_BYTES)
    offsets: Sequence[int] = w.u64s(MAX_CHUNKS)
    events: bytes = w.u8s(2 * HANDLE_BYTES)

    def check(self) -> None:
        name, chunks = self.schema.name, len(self.chunk_bytes)
        _check_uuid(name, self.uuid)
        _check_chunks(name, self.way, chunks, self.handles, len(self.offsets))
        if self.public_chunks > chunks:
            raise WireError(f"{name}: public chunks: {self.public_chunks} of {chunks}")
        if len(self.events) not in (0, 2 * HANDLE_BYTES):
            raise WireError(f"{name}: events: {len(self.events)} rows, want {2 * HANDLE_BYTES}")


@message("register-device request")
@dataclass(frozen=True, slots=True)
class RegisterDeviceRequest(Message):
    """Goes with one descriptor per chunk by that way."""

    profile: int = w.u32()
    way: int = w.u8()
    epoch: int = w.u64()
    chunk_bytes: Sequence[int] = w.u64s(MAX_CHUNKS)
    handles: bytes = w.u8s(MAX_CHUNKS * HANDLE_BYTES)
    offsets: Sequence[int] = w.u64s(MAX_CHUNKS)
    memory_layer: Sequence[int] = w.u32s(MAX_MEMORY_LAYERS)
    memory_k_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_base: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_block_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_k_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_token_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")
    memory_v_head_stride: Sequence[int] = w.u64s(MAX_MEMORY_LAYERS, rows="memory_layer")

    def check(self) -> None:
        chunks, offsets = len(self.chunk_bytes), len(self.offsets)
        _check_chunks(self.schema.name, self.way, chunks, self.handles, offsets)


@message("register-device reply")
@dataclass(frozen=True, slots=True)
class RegisterDeviceReply(Message):
    memory: int = w.u32()


@message("acquire-device request")
@dataclass(frozen=True, slots=True)
class AcquireDeviceRequest(Message):
    profile: int = w.u32()
    rank: int = w.u32()
    ttl_ms: int = w.u32()
    digests: int = w.u8()
    all: int = w.u8()
    wait: int = w.u8()
    keys: Sequence[bytes] = w.hashes(MAX_KEYS)


@message("order request")
@dataclass(frozen=True, slots=True)
class OrderRequest(Message):
    """Releases leases once the client's slot is at `after`, then writes `signal` to ours."""

    after: int = w.u64()
    signal: int = w.u64()
    leases: Sequence[int] = w.u64s(MAX_IDS)


@message("load-device request")
@dataclass(frozen=True, slots=True)
class LoadDeviceRequest(LoadRequest):
    """A load request whose reply has extents in device memory."""
