"""What a client refuses of a daemon that lends memory of a GPU."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from client_samples import PATIENCE, SMALL, Connect, wait_until
from fake_cuda import FakeCuda
from fake_daemon import FakeDaemon, Request
from spliced_connector.client import Client, DeviceOptions, Options
from spliced_connector.errors import Code
from spliced_connector.gpu import load
from spliced_connector.wire import (
    AttachDeviceReply,
    AttachDeviceRequest,
    Feature,
    HelloRequest,
    MatchReply,
    Op,
    ShareWay,
)

_ADD_SEALS = 1033
_ALL_SEALS = 0x2 | 0x4 | 0x8

MISS = MatchReply(status=b"\0", tier=b"\0", reason=b"\0", tokens=[0])

GOOD = AttachDeviceReply(
    way=ShareWay.DESCRIPTOR,
    epoch=9,
    public_bytes=3 << 21,
    private_bytes=1 << 21,
    order_off=0,
    order_slots=2,
    public_chunks=2,
    staging_off=4096,
    staging_bytes=8192,
    chunk_bytes=[1 << 21, 2 << 21, 1 << 21],
)


@pytest.fixture
def ptx() -> Iterator[int]:
    """A memfd of kernels, sealed."""
    descriptor = os.memfd_create("ptx", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b".version 7.8")
    fcntl.fcntl(descriptor, _ADD_SEALS, _ALL_SEALS)
    yield descriptor
    os.close(descriptor)


def lends(fake: FakeDaemon, reply: AttachDeviceReply, descriptors: list[int]) -> None:
    """Have it answer attach-device."""
    fake.hello = replace(fake.hello, features=int(Feature.DEVICE))
    fake.on(Op.ATTACH_DEVICE, lambda request: request.lend(reply, descriptors))
    fake.on(Op.MATCH, lambda request: request.reply(MISS))


def uuid_of(cuda: FakeCuda) -> bytes:
    return load(cuda.path).devices()[0][1]


def refusal(client: Client) -> str:
    """Why nothing was attached. The connection goes on."""
    assert client.wait_device(PATIENCE) is None
    assert not client.model(SMALL).match(keys=[bytes(32)]).trouble
    return client.device_state


def test_the_request_names_the_gpu_and_what_can_be_mapped(
    fake: FakeDaemon, cuda: FakeCuda, connect_gpu: Connect, ptx: int
) -> None:
    lends(fake, replace(GOOD, uuid=uuid_of(cuda)), [ptx])
    chosen = {"private_bytes": 5 << 20, "ways": ShareWay.HANDLE}
    refusal(connect_gpu(fake.socket, device=chosen))
    hello, asked = fake.next(Op.HELLO).message, fake.next(Op.ATTACH_DEVICE).message
    assert isinstance(hello, HelloRequest) and hello.features & Feature.DEVICE
    assert asked == AttachDeviceRequest(int(ShareWay.HANDLE), 5 << 20, uuid_of(cuda))


def test_who_wants_no_gpu_does_not_ask(fake: FakeDaemon, connect: Connect) -> None:
    fake.hello = replace(fake.hello, features=int(Feature.DEVICE))
    client = connect(fake.socket)
    hello = fake.next(Op.HELLO).message
    assert isinstance(hello, HelloRequest) and not hello.features & Feature.DEVICE
    assert client.wait_device(0.1) is None
    assert Op.ATTACH_DEVICE not in fake.all


@pytest.mark.parametrize(
    ("reply", "descriptors", "text"),
    [
        (GOOD, 3, "3 descriptors, want 4"),
        (GOOD, 5, "5 descriptors, want 4"),
        (replace(GOOD, uuid=bytes(16)), 4, "memory of another GPU"),
        (replace(GOOD, epoch=0), 4, "epoch 0"),
        (replace(GOOD, public_chunks=1), 4, f"chunks of {1 << 21} bytes"),
        (replace(GOOD, private_bytes=2 << 21), 4, f"chunks of {1 << 21} bytes"),
        (replace(GOOD, staging_off=1 << 21), 4, f"staging up to {(1 << 21) + 8192}"),
        (replace(GOOD, order_slots=1), 4, "1 slots"),
        (replace(GOOD, order_off=12), 4, "slots at 12"),
        (replace(GOOD, chunk_bytes=[3 << 21, 0, 1 << 21]), 4, "a chunk of no bytes"),
        (replace(GOOD, order_off=1 << 21), 4, "cuMemImportFromShareableHandle"),
    ],
)
def test_a_reply_that_does_not_hold_together_is_refused(
    reply: AttachDeviceReply,
    descriptors: int,
    text: str,
    fake: FakeDaemon,
    cuda: FakeCuda,
    connect_gpu: Connect,
    ptx: int,
) -> None:
    lends(fake, replace(reply, uuid=reply.uuid or uuid_of(cuda)), [ptx] * descriptors)
    before = cuda.live()
    assert text in refusal(connect_gpu(fake.socket))
    cuda.wait_live(before)
    assert cuda.live() == before, cuda.text()


def test_kernels_that_others_could_change_are_refused(
    fake: FakeDaemon, cuda: FakeCuda, connect_gpu: Connect
) -> None:
    lends(fake, replace(GOOD, uuid=uuid_of(cuda)), fake.regions[:1] * 4)
    assert "kernels: 1048576 bytes, seals 0x2" in refusal(connect_gpu(fake.socket))


def test_a_refusal_and_a_late_reply_are_told(
    fake: FakeDaemon, cuda: FakeCuda, connect_gpu: Connect, ptx: int
) -> None:
    lends(fake, GOOD, [])
    fake.on(Op.ATTACH_DEVICE, lambda request: request.refuse(Code.FULL, "no room"))
    assert "full: attach-device: no room" in refusal(connect_gpu(fake.socket))
    late: list[Request] = []
    fake.on(Op.ATTACH_DEVICE, late.append)
    client = connect_gpu(fake.socket, device={"attach_timeout": 0.05})
    assert "late: attach-device" in refusal(client)
    late[0].lend(replace(GOOD, uuid=uuid_of(cuda)), [ptx] * 4)  # nobody wants the descriptors
    wait_until(lambda: client.counters.late_replies == 1)
    assert refusal(client)


def test_settings_that_can_never_be_right_are_refused() -> None:
    for wrong in (
        DeviceOptions(uuid=bytes(15)),
        DeviceOptions(ways=ShareWay(0)),
        DeviceOptions(private_bytes=-1),
        DeviceOptions(attach_timeout=0),
    ):
        with pytest.raises(ValueError, match=r"uuid|ways|private_bytes|attach_timeout"):
            Options(device=wrong)
