"""Streams that wait for the daemon go on, whatever else the client waits for."""

from __future__ import annotations

from client_samples import SMALL, Connect, publish_one, wait_until
from fake_cuda import FakeCuda
from gpu_samples import attached, memory_of, stream_of
from running import StartDaemon
from spliced_connector.cuda_driver import Stream
from spliced_connector.device import DeviceMemory
from spliced_connector.device_lease import DeviceSegment, release_after
from spliced_connector.model import Model


def held(model: Model, n: int) -> list[DeviceSegment]:
    """Leases of one copy on the GPU."""
    key, _ = publish_one(model)
    found = [model.acquire_device([key], wait=5.0)[0] for _ in range(n)]
    return [segment for segment in found if segment is not None]


def goes_on(device: DeviceMemory, stream: Stream) -> None:
    """Wait for a stream, but not for ever."""
    with device.gpu.context.current() as driver:
        wait_until(lambda: driver.idle(stream))


def forget(cuda: FakeCuda, segments: list[DeviceSegment]) -> None:
    """Drop a lease, and hold the wait for the GPU that this begins."""
    cuda.fault("HANG", "cuCtxSynchronize:1")
    segments.pop()
    wait_until(lambda: cuda.counts()["hanging"] == 1)


def test_the_daemon_is_told_while_the_client_waits_for_the_gpu(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    device = attached(client)
    segments = held(client.model(SMALL), 2)
    with stream_of(device) as stream:
        forget(cuda, segments)
        passing = release_after(stream, segments, signal=True)
        assert passing is not None
        device.wait(stream, passing)
        assert passing.wait(5) and passing.good == (True,)
        cuda.clear()  # the wait for the GPU begins with a stream that has waited for the daemon
        goes_on(device, stream)


def test_a_killed_daemon_lets_streams_go_while_the_client_waits_for_the_gpu(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket)
    device = attached(client)
    segments = held(client.model(SMALL), 2)
    with memory_of(device, 8) as slot, stream_of(device) as engine, stream_of(device) as other:
        forget(cuda, segments)
        with device.gpu.context.current() as driver:
            driver.wait_value(engine, slot.address, 1)
        passing = release_after(engine, segments, signal=True)
        assert passing is not None
        device.wait(other, passing)
        daemon.kill()
        goes_on(device, other)
        assert cuda.counts()["hanging"] == 1
        with device.gpu.context.current() as driver, stream_of(device) as writer:
            driver.write_value(writer, slot.address, 1)
        goes_on(device, engine)
        cuda.clear()


def test_a_stream_that_waits_is_not_asked_for_what_it_does_behind_the_wait(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket, transfer_timeout=0.5)
    device = attached(client)
    first, second, third = ([one] for one in held(client.model(SMALL), 3))
    with stream_of(device) as engine, stream_of(device) as other:
        daemon.pause()  # so that both are marked before it is asked for the second
        early = release_after(other, first)
        passing = release_after(engine, second, signal=True)
        assert early is not None and passing is not None
        device.wait(engine, passing)
        behind = release_after(engine, third)
        assert behind is not None
        daemon.resume()
        for one in (early, passing, behind):
            assert one.wait(5) and one.good == (True,)
        goes_on(device, engine)
