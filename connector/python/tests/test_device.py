"""Memory of a daemon's GPU, with a real daemon and a driver without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from client_samples import (
    PATIENCE,
    SMALL,
    Connect,
    at_most,
    ids,
    key_of,
    new_checkpoint,
    new_segment,
    publish_one,
    seen,
    wait_again,
    wait_until,
)
from fake_cuda import FakeCuda
from gpu_samples import attached, memory_of, read, stream_of
from running import Daemon, StartDaemon
from spliced_connector.client import (
    Accept,
    Client,
    DeviceCheckpoint,
    DeviceSegment,
    Model,
    NewSegment,
    release_after,
)
from spliced_connector.errors import SplicedError
from spliced_connector.gpu import DevicePtr
from spliced_connector.wire import ShareWay

WAYS = pytest.mark.parametrize("way", ["descriptor", "handle"])


def held(model: Model, key: bytes) -> DeviceSegment:
    """A copy on the GPU."""
    [segment] = model.acquire_device([key], wait=PATIENCE)
    assert segment is not None, f"no lease of a segment on the GPU: {seen(model)}"
    return segment


def part_bytes(part: object) -> bytes:
    """What was published."""
    assert isinstance(part, bytes)
    return part


def check(segment: DeviceSegment, new: NewSegment) -> None:
    """Its bytes are those that were published."""
    for i, want in enumerate(new.parts):
        assert read(segment.device.gpu.context, segment.runs(i)) == part_bytes(want)


@WAYS
def test_a_segment_on_the_gpu_has_the_published_bytes(
    way: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon(f"-hbm-share={way}")
    client = connect_gpu(daemon.socket)
    device = attached(client)
    assert client.device_state == ""
    model = client.model(SMALL)
    (key, new), (other, newer) = publish_one(model), publish_one(model, 80, seed=1)
    segment = held(model, key)
    check(segment, new)
    with stream_of(device) as stream:
        passing = release_after(stream, [segment])
        assert passing is not None and passing.wait(PATIENCE)
        assert passing.good == (True,)
    with pytest.raises(SplicedError, match="released"):
        segment.runs(0)
    both = model.acquire_device([key, other], all=True, wait=PATIENCE)
    for one, published in zip(both, (new, newer), strict=True):
        assert one is not None
        check(one, published)
        assert one.release()


def test_without_waiting_a_copy_is_made_for_later(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    attached(client)
    model = client.model(SMALL)
    key, new = publish_one(model)
    found: list[DeviceSegment] = []

    def there() -> bool:
        [segment] = model.acquire_device([key], fetch=False)
        found.extend([segment] if segment is not None else [])
        return bool(found)

    wait_until(there)
    check(found[0], new)
    assert found[0].release()
    assert model.acquire_device([bytes(32)], wait=1.0) == [None]


@WAYS
def test_a_checkpoint_on_the_gpu_has_the_saved_bytes(
    way: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    client = connect_gpu(start_gpu_daemon(f"-hbm-share={way}").socket)
    device = attached(client)
    model = client.model(SMALL, block_tokens=16)
    tokens = ids(64)
    saved = [new_checkpoint(model, tokens, 32), new_checkpoint(model, tokens, 64, 32, seed=2)]
    assert model.save(saved) == [0, 0]
    loaded = model.load_device(saved[1].hash, Accept.EXACT, wait=PATIENCE)
    assert isinstance(loaded, DeviceCheckpoint)
    assert loaded.tokens == 64
    rows: dict[str, bytes] = {"K": b"", "V": b""}
    for node, layout in enumerate(loaded.layouts):
        for i, part in enumerate(layout.parts):
            if part.kind in rows:
                rows[part.kind] += read(device.gpu.context, loaded.runs(node, i))
            elif node == len(loaded.nodes) - 1:
                want = part_bytes(saved[1].parts[i])
                assert read(device.gpu.context, loaded.runs(node, i)) == want
    for i, part in enumerate(model.profile.checkpoint_layout(32).parts):
        if part.kind in rows:
            assert rows[part.kind] == b"".join(part_bytes(new.parts[i]) for new in saved)
    with stream_of(device) as stream:
        passing = release_after(stream, [loaded])
        assert passing is not None and passing.wait(PATIENCE) and passing.good == (True,)


def test_a_lease_ends_when_the_stream_has_passed(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket, transfer_timeout=0.3)
    device = attached(client)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    segment = held(model, key)
    with memory_of(device, 8) as slot, stream_of(device) as stream, stream_of(device) as other:
        with device.gpu.context.current() as driver:
            driver.wait_value(stream, slot.address, 1)
        passing = release_after(stream, [segment], signal=True)
        assert passing is not None
        device.wait(other, passing)
        assert leased(daemon) > 0
        late = 'spliced_requests_total{code="late",op="order"}'
        wait_until(lambda: daemon.metrics().get(late, 0) >= 2)  # it is asked again
        assert leased(daemon) > 0
        assert not passing.wait(0)
        with device.gpu.context.current() as driver:
            assert not driver.idle(other)
            write_from_elsewhere(device.gpu.context.current, slot.address)
            driver.synchronize(other)
        assert passing.wait(PATIENCE)
        assert passing.good == (True,)
    assert leased(daemon) == 0


def write_from_elsewhere(current: Callable[[], object], address: DevicePtr) -> None:
    """Write 1, by a stream that nothing waits for."""
    with current() as driver:  # type: ignore[attr-defined]
        stream = driver.stream()
        driver.write_value(stream, address, 1)
        driver.synchronize(stream)
        driver.destroy_stream(stream)


def test_a_gpu_that_cannot_write_numbers_is_waited_for_on_the_host(
    start_gpu_daemon: StartDaemon,
    connect_gpu: Connect,
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_NOWAITVALUE", "1")
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket)
    device = attached(client)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    segment = held(model, key)
    cuda.set("DELAY", "50000")
    with memory_of(device, 8) as slot, stream_of(device) as stream:
        with device.gpu.context.current() as driver:
            driver.write_value(stream, slot.address, 1)
            writes = cuda.counts()["executed"]
        passing = release_after(stream, [segment], signal=True)
        assert passing is not None and passing.signal == 0
        device.wait(stream, passing)  # on the host
        assert cuda.counts()["executed"] > writes
        assert passing.wait(PATIENCE) and passing.good == (True,)
    assert leased(daemon) == 0


def leased(daemon: Daemon) -> float:
    """Bytes of the GPU that are leased."""
    metrics = daemon.metrics()
    return metrics['spliced_tier_used_bytes{pool="public",state="leased",tier="hbm"}']


def test_a_forgotten_lease_is_given_back(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket)
    attached(client)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    assert held(model, key).valid  # and nobody holds it any more
    wait_until(lambda: leased(daemon) == 0)
    assert client.counters.gave_back == 1


@WAYS
def test_a_killed_daemon_lets_waiting_streams_go(
    way: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon(f"-hbm-share={way}")
    client = connect_gpu(daemon.socket, attach_timeout=3.0)
    device = attached(client)
    model = client.model(SMALL)
    key, new = publish_one(model)
    segment, kept = held(model, key), held(model, key)
    with memory_of(device, 8) as slot, stream_of(device) as stream, stream_of(device) as other:
        with device.gpu.context.current() as driver:
            driver.wait_value(stream, slot.address, 1)
        passing = release_after(stream, [segment], signal=True)
        assert passing is not None
        device.wait(other, passing)
        with device.gpu.context.current() as driver:
            assert not driver.idle(other)
        daemon.kill()
        with device.gpu.context.current() as driver:
            driver.synchronize(other)  # it has nobody left to wait for
        assert passing.wait(PATIENCE)
        assert passing.good == (True,)  # a dead daemon has given it to nobody else
        check(kept, new)
        assert kept.valid and kept.release()
        write_from_elsewhere(device.gpu.context.current, slot.address)
    assert client.device is None
    daemon.start()
    wait_again(model)
    again = attached(client)
    assert again is not device and again.epoch != device.epoch
    assert publish_one(model) == (key, new)
    fresh = held(model, key)
    check(fresh, new)
    assert fresh.release()


def test_a_stalled_daemon_lets_waiting_streams_go(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    daemon = start_gpu_daemon()
    client = connect_gpu(daemon.socket, transfer_timeout=0.5)
    device = attached(client)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    segment = held(model, key)
    with stream_of(device) as stream:
        daemon.pause()
        with at_most(4), device.gpu.context.current() as driver:
            passing = release_after(stream, [segment], signal=True)
            assert passing is not None
            device.wait(stream, passing)
            driver.synchronize(stream)
        assert not passing.wait(0)  # the daemon may still hold it for us
        daemon.resume()
        assert passing.wait(PATIENCE)
    assert leased(daemon) == 0


def test_memory_outlives_the_client_with_its_leases(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    device = attached(client)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    segment = held(model, key)
    client.close()
    assert cuda.counts()["mappings"] > 0
    assert not segment.valid
    assert read(device.gpu.context, segment.runs(0))  # readable, of no worth
    assert not segment.release()
    wait_until(lambda: cuda.counts()["mappings"] == 0)


def test_unmapping_waits_for_what_is_queued(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    client = connect_gpu(start_gpu_daemon().socket)
    device = attached(client)
    model = client.model(SMALL)
    key, new = publish_one(model)
    segment = held(model, key)
    misuses = cuda.counts()["misuses"]
    with memory_of(device, 8) as slot, memory_of(device, 4096) as to, stream_of(device) as stream:
        [run] = segment.runs(0)
        with device.gpu.context.current() as driver:
            driver.wait_value(stream, slot.address, 1)
            driver.copy(to.address, run.address, min(run.nbytes, 4096), stream)
        release_after(stream, [segment])
        closing = threading.Thread(target=client.close)
        closing.start()
        wait_until(lambda: not client.attached)
        assert cuda.counts()["mappings"] > 0
        write_from_elsewhere(device.gpu.context.current, slot.address)
        closing.join()
        assert to.read()[: run.nbytes] == part_bytes(new.parts[0])[:4096]
    wait_until(lambda: cuda.counts()["mappings"] == 0)
    assert cuda.counts()["misuses"] == misuses


# What is not to be had.


def why_not(client: Client) -> str:
    """Why there is no memory of a GPU; the client works without."""
    assert client.wait_device(PATIENCE) is None
    model = client.model(SMALL)
    key = key_of(model, new_segment(model))
    if model.acquire([key]) == [None]:
        publish_one(model)
    assert model.acquire_device([key]) == [None]
    [segment] = model.acquire([key])
    assert segment is not None and segment.release()
    return client.device_state


def test_a_daemon_without_a_gpu_has_none_to_lend(
    daemon: Daemon, connect_gpu: Connect, connect: Connect
) -> None:
    assert "shares none" in why_not(connect_gpu(daemon.socket))
    assert "not set" in why_not(connect(daemon.socket))


def test_an_engine_without_a_driver_goes_on(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    socket = start_gpu_daemon().socket
    assert "no CUDA driver" in why_not(connect_gpu(socket, device={"library": "libnone.so.1"}))
    text = why_not(connect_gpu(socket, device={"uuid": bytes(range(16))}))
    assert "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f is not visible" in text


def test_a_way_that_the_daemon_does_not_have_is_named(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect
) -> None:
    socket = start_gpu_daemon("-hbm-share=descriptor").socket
    assert "attach-device" in why_not(connect_gpu(socket, device={"ways": ShareWay.HANDLE}))


def test_equal_pids_are_refused_with_the_remedy(
    start_gpu_daemon: StartDaemon,
    connect_gpu: Connect,
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_PID", "1")
    cuda.set("PID", "1")
    text = why_not(connect_gpu(start_gpu_daemon("-hbm-share=handle").socket))
    assert "cuIpcOpenMemHandle_v2: 201 CUDA_ERROR_INVALID_CONTEXT" in text
    assert "shareProcessNamespace: true" in text


@pytest.mark.parametrize(
    "call",
    [
        "cuDevicePrimaryCtxRetain", "cuMemAddressReserve", "cuMemImportFromShareableHandle",
        "cuMemMap", "cuMemSetAccess", "cuEventCreate",
        "cuStreamCreateWithPriority",
    ],
)  # fmt: skip
def test_an_import_that_fails_leaves_nothing(
    call: str, start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    before = cuda.live()
    cuda.fault("FAIL", f"{call}:2:999" if call.startswith("cuMem") else f"{call}:1:999")
    client = connect_gpu(daemon.socket)
    assert f"{call}: 999 CUDA_ERROR_UNKNOWN" in why_not(client)
    cuda.wait_live(before)
    assert cuda.live() == before, cuda.text()


def test_a_driver_that_hangs_stops_nothing_else(
    start_gpu_daemon: StartDaemon, connect_gpu: Connect, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon()
    cuda.fault("HANG", "cuMemMap:1")
    client = connect_gpu(daemon.socket)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    wait_until(lambda: cuda.counts()["hanging"] == 1)
    [segment] = model.acquire([key])
    assert segment is not None and segment.release()
    assert client.device is None
    cuda.clear()
    check_attached = held(model, key) if attached(client) else None
    assert check_attached is not None and check_attached.release()
