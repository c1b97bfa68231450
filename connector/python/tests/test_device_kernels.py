"""Kernels of the daemon in this process: what is done when they are loaded, and what in a step."""

from __future__ import annotations

import os

import pytest

from client_samples import PATIENCE, SMALL, Connect, publish_one
from fake_cuda import FakeCuda
from gpu_samples import attached, memory_of, read, stream_of
from running import StartDaemon
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import DevicePtr, Launch, Run

# What a driver may do only when the whole device is idle, and what takes long.
SLOW = (
    "cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute",
    "cuMemFree_v2", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuCtxSynchronize",
)  # fmt: skip


def test_a_step_finds_kernels_and_their_memory_ready(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    device = attached(connect_gpu(start_gpu_daemon().socket))
    data = os.urandom(3 << 20)
    half = len(data) // 2
    with memory_of(device, len(data)) as source, stream_of(device) as stream:
        source.write(data)
        places: list[DevicePtr] = []

        def build(addresses: list[DevicePtr]) -> list[Launch]:
            places.extend(addresses)
            return []

        slow, allocations = cuda.calls(*SLOW), cuda.calls("cuMemAlloc_v2")
        for n in (1000, half, half):  # the second is more than was taken ahead
            runs = [Run(source.address, n), Run(DevicePtr(source.address + half), n)]
            device.kernels.gather(stream, [runs], build)
        assert cuda.calls(*SLOW) == slow
        assert cuda.calls("cuMemAlloc_v2") == [allocations[0] + 2]
        with device.gpu.context.current() as driver:
            driver.synchronize(stream)
        context = device.gpu.context
        assert read(context, [Run(places[0], 2000)]) == data[:1000] + data[half : half + 1000]
        for place in places[1:]:
            assert read(context, [Run(place, len(data))]) == data


@pytest.mark.parametrize(
    "fault", ["cuModuleLoadDataEx:1:222", "cuFuncGetAttribute:3:2", "cuMemAlloc_v2:2:2"]
)
def test_memory_is_of_use_without_kernels(
    fault: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    cuda.fault("FAIL", fault)
    client = connect_gpu(daemon.socket)
    device = attached(client)
    with pytest.raises(SplicedError, match=fault.partition(":")[0]):
        device.kernels.close()
    assert cuda.counts()["modules"] == cuda.counts()["registered"] == 0
    model = client.model(SMALL)
    key, _ = publish_one(model)
    [segment] = model.acquire_device([key], wait=PATIENCE)
    assert segment is not None and segment.release()
