"""Attaching memory of the daemon's GPU: the request, and mapping the memory in its reply."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.channel import close_all
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.client.connection.options import DeviceOptions
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    Context,
    Driver,
    Mapped,
    OrderPage,
    find_device,
    load,
    map_descriptors,
    map_handles,
)
from spliced_connector.wire import AttachDeviceReply, AttachDeviceRequest, Op, ShareWay
from spliced_connector.wire.numbers import ATTACH_DESCRIPTORS, HANDLE_BYTES, ORDER_SLOT_BYTES

_F_GET_SEALS = 1034
_SEALS = 0x2 | 0x4 | 0x8  # against shrinking, growing and writing
_PTX_MOST = 16 << 20  # a guess, far above the kernels' size

_SLOTS = 2
"""Number of slots of the order page, the GPU memory with the sequence numbers that order streams of
both processes: one for the client's numbers, one for the daemon's."""


@dataclass(frozen=True)
class Gpu:
    """The engine's GPU as this process sees it."""

    driver: Driver
    context: Context
    uuid: bytes


def open_gpu(options: DeviceOptions) -> Gpu:
    """Loads the driver and finds the device. Raises `NoDriverError`, `CudaError`."""
    driver = load(options.library)
    device = find_device(driver, options.uuid)
    uuid = dict(driver.devices())[device]
    return Gpu(driver, Context(driver, device, options.context), uuid)


class Mapping:
    """The mappings of a reply to attach-device."""

    def __init__(self, gpu: Gpu, reply: AttachDeviceReply, descriptors: list[int]) -> None:
        """Raises `SplicedError`; nothing stays mapped then."""
        _check(gpu, reply, descriptors)
        self.epoch = reply.epoch
        self.staging = reply.staging_off, reply.staging_bytes
        self.ptx = _read_ptx(descriptors[0])
        with contextlib.ExitStack() as failing:
            chunks = descriptors[ATTACH_DESCRIPTORS:]
            public = slice(0, reply.public_chunks)
            private = slice(reply.public_chunks, len(reply.chunk_bytes))
            self.arena = _map(gpu, reply, public, chunks)
            failing.callback(self.arena.close)
            self.private = _map(gpu, reply, private, chunks)
            failing.callback(self.private.close)
            self.order = self._open_order(gpu, reply)
            failing.pop_all()

    def _open_order(self, gpu: Gpu, reply: AttachDeviceReply) -> OrderPage | None:
        if reply.events:
            return None  # no memory operations on streams: the host waits instead
        slots = [reply.order_off + i * ORDER_SLOT_BYTES for i in range(_SLOTS)]
        client, daemon = (self.private.address(offset, 8) for offset in slots)
        return OrderPage(gpu.context, client, daemon)


def attach_device(attachment: Attachment, gpu: Gpu, options: DeviceOptions) -> Mapping:
    """Requests memory from the daemon and maps it. Raises `SplicedError`."""
    call = Call(Op.ATTACH_DEVICE, time.monotonic() + options.attach_timeout, Late())
    descriptors: list[int] = []
    call.descriptors = descriptors
    request = AttachDeviceRequest(int(options.ways), options.private_bytes, gpu.uuid)
    try:
        reply = attachment.exchange.request(call, request, AttachDeviceReply)
        return Mapping(gpu, reply, descriptors)
    finally:
        close_all(descriptors)  # mappings keep the memory


def _check(gpu: Gpu, reply: AttachDeviceReply, descriptors: list[int]) -> None:
    """Refuses an inconsistent reply."""
    by_descriptor = reply.way == ShareWay.DESCRIPTOR
    want = ATTACH_DESCRIPTORS + (len(reply.chunk_bytes) if by_descriptor else 0)
    public = sum(reply.chunk_bytes[: reply.public_chunks])
    private = sum(reply.chunk_bytes[reply.public_chunks :])
    staged = reply.staging_off + reply.staging_bytes
    wrong = (
        (len(descriptors) != want, f"{len(descriptors)} descriptors, want {want}"),
        (reply.uuid != gpu.uuid, "memory of another GPU"),
        (reply.epoch == 0, "epoch 0"),
        (0 in reply.chunk_bytes, "a chunk of no bytes"),
        (public != reply.public_bytes, f"chunks of {public} bytes, want {reply.public_bytes}"),
        (private != reply.private_bytes, f"chunks of {private} bytes, want {reply.private_bytes}"),
        (staged > private, f"staging up to {staged} of {private}"),
        (not reply.events and reply.order_slots < _SLOTS, f"{reply.order_slots} slots"),
        (not reply.events and reply.order_off % 8 != 0, f"slots at {reply.order_off}"),
    )
    for is_so, text in wrong:
        if is_so:
            raise SplicedError(Code.UNSUPPORTED, f"attach-device: {text}")


def _map(gpu: Gpu, reply: AttachDeviceReply, rows: slice, descriptors: list[int]) -> Mapped:
    sizes = reply.chunk_bytes[rows]
    if reply.way == ShareWay.DESCRIPTOR:
        return map_descriptors(gpu.context, sizes, descriptors[rows])
    handles = reply.handles[HANDLE_BYTES * rows.start : HANDLE_BYTES * rows.stop]
    return map_handles(gpu.context, sizes, handles, reply.offsets[rows])


def _read_ptx(descriptor: int) -> bytes:
    """Returns the text of the kernels, from a file that cannot change while it is read."""
    try:
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
        nbytes = os.fstat(descriptor).st_size
        if seals & _SEALS != _SEALS or not 0 < nbytes <= _PTX_MOST:
            raise SplicedError(Code.UNSUPPORTED, f"kernels: {nbytes} bytes, seals {seals:#x}")
        return os.pread(descriptor, nbytes, 0)
    except OSError as err:
        raise SplicedError(Code.UNSUPPORTED, f"kernels: {err}") from err
