"""Streams that wait for the daemon go on, whatever else the client waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from client_samples import PATIENCE, SMALL, Connect, publish_one, seen, wait_until
from fake_cuda import FakeCuda
from gpu_samples import attached, capture_on, memory_of, stream_of
from running import StartDaemon
from spliced_connector.client import DeviceMemory, DeviceSegment, Model, release_after
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import MOST_WAITING, Launch, Stream, most_waiting


def held(model: Model, n: int) -> list[DeviceSegment]:
    """Leases of one copy on the GPU."""
    key, _ = publish_one(model)
    found = [model.acquire_device([key], wait=PATIENCE)[0] for _ in range(n)]
    segments = [segment for segment in found if segment is not None]
    assert len(segments) == n, f"{n} leases of a segment on the GPU: {seen(model)}"
    return segments


def goes_on(device: DeviceMemory, stream: Stream) -> None:
    """Wait for a stream, but not for ever."""
    with device.gpu.context.current() as driver:
        wait_until(lambda: driver.idle(stream))


@contextlib.contextmanager
def standing(device: DeviceMemory, priority: int = 0) -> Iterator[Stream]:
    """A stream of the engine that waits, and goes on at the end."""
    with memory_of(device, 8) as slot, stream_of(device, priority) as engine:
        with device.gpu.context.current() as driver:
            driver.wait_value(engine, slot.address, 1)
        yield engine
        with device.gpu.context.current() as driver, stream_of(device) as writer:
            driver.write_value(writer, slot.address, 1)
        goes_on(device, engine)


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
        assert passing.wait(PATIENCE) and passing.good == (True,)
        cuda.clear()  # the wait for the GPU begins with a stream that has waited for the daemon
        goes_on(device, stream)


def test_a_killed_daemon_lets_streams_go_while_the_client_waits_for_the_gpu(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket)
    device = attached(client)
    segments = held(client.model(SMALL), 2)
    with standing(device) as engine, stream_of(device) as other:
        forget(cuda, segments)
        passing = release_after(engine, segments, signal=True)
        assert passing is not None
        device.wait(other, passing)
        daemon.kill()
        goes_on(device, other)
        assert cuda.counts()["hanging"] == 1
    cuda.clear()


def test_no_more_streams_wait_than_the_rescue_gets_past(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket)
    device = attached(client)
    segments = held(client.model(SMALL), MOST_WAITING + 2)
    # The daemon cannot answer before the engine's stream goes on.
    with standing(device, -1) as engine, contextlib.ExitStack() as streams:
        others = [streams.enter_context(stream_of(device)) for _ in range(MOST_WAITING + 1)]
        passings = [release_after(engine, [segment], signal=True) for segment in segments]
        for stream, passing in zip(others, passings, strict=False):
            assert passing is not None
            wait = threading.Thread(target=device.wait, args=(stream, passing))
            wait.start()
            wait.join(0.2 if stream is others[-1] else PATIENCE)
            assert wait.is_alive() == (stream is others[-1])
        assert passings[-1] is not None
        device.wait(others[0], passings[-1])  # one that waits already takes no place
        daemon.kill()
        wait.join(PATIENCE)
        assert not wait.is_alive()
        for stream in others:
            goes_on(device, stream)


def test_with_one_connection_to_the_gpu_no_stream_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for connections, most in (("1", 0), ("2", 1), ("4", 2), ("32", MOST_WAITING), ("many", 4)):
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
        assert most_waiting() == most
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    assert most_waiting() == MOST_WAITING


def test_a_lease_that_is_forgotten_as_the_client_ends_leaves_nothing(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    attached(client)
    segments = held(client.model(SMALL), 1)
    client._keeper.options = replace(client.options, transfer_timeout=0.1)
    forget(cuda, segments)
    client.close()
    assert cuda.counts()["mappings"] > 0  # the GPU may still read
    cuda.clear()
    wait_until(lambda: cuda.counts()["mappings"] == 0)


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
            assert one.wait(PATIENCE) and one.good == (True,)
        goes_on(device, engine)


@pytest.mark.parametrize("levels", ["6", "2"])
def test_a_stream_goes_on_where_all_of_its_priority_share_a_queue(
    levels: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    cuda.set("PRIORITIES", levels)
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket, transfer_timeout=0.5)
    device = attached(client)
    first, second, third = ([one] for one in held(client.model(SMALL), 3))
    cuda.set("ONEQUEUE", "1")
    with stream_of(device) as engine, stream_of(device) as other:
        for stream, leases in ((engine, first), (other, second)):
            passing = release_after(stream, leases, signal=True)
            assert passing is not None
            device.wait(stream, passing)
        goes_on(device, engine)
        goes_on(device, other)
        daemon.pause()
        passing = release_after(engine, third, signal=True)
        assert passing is not None
        device.wait(engine, passing)
        goes_on(device, engine)  # the number is written in the daemon's place
        daemon.resume()
        assert passing.wait(PATIENCE)


# Graphs.


def test_nothing_is_queued_on_a_stream_that_captures(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    device = attached(client)
    [segment, other] = held(client.model(SMALL), 2)
    misuses = cuda.counts()["misuses"]
    with stream_of(device) as stream:
        early = release_after(stream, [other], signal=True)
        assert early is not None and early.wait(PATIENCE)
        launch = Launch("spliced_rotate", (1, 1, 1), (32, 1, 1))
        refused: tuple[Callable[[], object], ...] = (
            lambda: release_after(stream, [segment]),
            lambda: device.wait(stream, early),
            lambda: device.kernels.launch(stream, [launch]),
        )
        with capture_on(cuda, device, stream):
            for queue in refused:
                with pytest.raises(SplicedError, match="captures a CUDA graph") as caught:
                    queue()
                assert caught.value.code == Code.UNSUPPORTED
        passing = release_after(stream, [segment])  # it is as it was before
        assert passing is not None and passing.wait(PATIENCE) and passing.good == (True,)
    assert cuda.counts()["misuses"] == misuses


def test_a_capture_is_not_spoilt_by_what_the_client_does_meanwhile(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    first = connect_gpu(daemon.socket)
    device = attached(first)
    segments = held(first.model(SMALL), 2)
    with (
        stream_of(device) as stream,
        stream_of(device) as busy,
        capture_on(cuda, device, stream),
    ):
        second = connect_gpu(daemon.socket)  # maps, compiles and allocates
        assert attached(second).kernels is not None
        segments.pop()  # waits for the GPU
        wait_until(lambda: first.counters.gave_back == 1)
        passing = release_after(busy, segments)
        assert passing is not None and passing.wait(PATIENCE)
        second.close()  # unmaps
