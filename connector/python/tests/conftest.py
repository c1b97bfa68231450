"""Fixtures that several tests share."""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_samples import PATIENCE, PATIENT, Connect, descriptors, mappings, workers
from fake_cuda import FakeCuda, library
from fake_daemon import FakeDaemon
from running import Daemon, StartCluster, StartDaemon, cluster
from spliced_connector.client import Client, DeviceOptions, Options

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a test that failed nothing is kept but its report: what its frames hold is memory and
    leases, which the fixtures and the next tests would find."""
    report = yield
    if call.excinfo is not None:
        item.stash[_FAILED] = True
        if not item.config.getoption("usepdb"):
            traceback.clear_frames(call.excinfo.tb)
            for frame, _ in traceback.walk_tb(call.excinfo.tb):
                _ = frame.f_locals  # a copy that pytest has made, which this brings up to date
    return report


@pytest.fixture
def start_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartDaemon]:
    """Starts daemons: `start_daemon(*flags, disk=False)`. All are stopped at the end."""
    with contextlib.ExitStack() as running:

        def start(*settings: str, disk: bool = False) -> Daemon:
            directory: Path = tmp_path_factory.mktemp("d")
            daemon = Daemon(directory, *settings, disk=disk)
            running.callback(daemon.stop)
            daemon.start()
            return daemon

        yield start


@pytest.fixture
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """Starts the daemons of a cluster: `start_cluster(*flags, nodes=2)`. All are stopped at the
    end. They may not have found each other yet."""
    with contextlib.ExitStack() as running:

        def start(*settings: str, nodes: int = 2, parallel: bool = True) -> list[Daemon]:
            directory: Path = tmp_path_factory.mktemp("c")
            daemons = cluster(directory, *settings, nodes=nodes, parallel=parallel)
            for daemon in daemons:
                running.callback(daemon.stop)
                daemon.start()
            return daemons

        yield start


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A running daemon with a small arena, three tenants and no disk."""
    return start_daemon()


@pytest.fixture(scope="session")
def fake_library() -> Path:
    """The CUDA driver without a GPU; skips where there is no compiler to build it."""
    try:
        return library()
    except FileNotFoundError as err:
        pytest.skip(str(err))


@pytest.fixture
def cuda(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCuda]:
    """That driver in this process. At the end nothing of the test may be left in it."""
    driver = FakeCuda(fake_library, tmp_path_factory.mktemp("c"))
    driver.warm()
    before = driver.live()
    try:
        yield driver
        driver.clear()
        driver.wait_live(before)  # threads of streams end behind the call that destroys them
        assert driver.live() == before, f"left in the driver:\n{driver.text()}"
    finally:
        driver.end()


@pytest.fixture
def start_gpu_daemon(
    start_daemon: StartDaemon, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> StartDaemon:
    """Starts daemons that lend memory of the fake driver's device."""
    for name, value in cuda.environment().items():
        monkeypatch.setenv(name, value)

    def start(*settings: str, disk: bool = False) -> Daemon:
        gpu = ("-hbm-public=16MiB", "-hbm-private=16MiB", "-hbm-client=4MiB")
        return start_daemon(*gpu, f"-hbm-library={cuda.path}", *settings, disk=disk)

    return start


@pytest.fixture
def connect_gpu(
    cuda: FakeCuda, connect: Connect, request: pytest.FixtureRequest
) -> Iterator[Connect]:
    """`connect` of an engine with that device; fields of `DeviceOptions` may be given."""

    def make(socket: str, *, device: dict[str, Any] | None = None, **options: Any) -> Client:
        chosen = DeviceOptions(**{"library": cuda.path, **(device or {})})
        return connect(socket, device=chosen, **options)

    yield make
    if request.node.stash.get(_FAILED, False):
        cuda.reset()  # clients wait for streams, and nobody will end what those wait for


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    """A daemon that says what the test tells it to."""
    daemon = FakeDaemon(tmp_path_factory.mktemp("f"))
    yield daemon
    daemon.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients: `connect(socket, **options)`. All are closed at the end, and then nothing
    of them may be left: no descriptor, no mapping, no thread.

    They wait for replies as long as a busy machine may take, not the 50 ms of an engine: a test
    of what is late passes timeouts of its own."""
    gc.collect()
    before = descriptors(), mappings(), workers()
    clients: list[Client] = []

    def make(socket: str, **options: Any) -> Client:
        client = Client(Options(socket=socket, name="test", **{**PATIENT, **options}))
        clients.append(client)
        return client

    yield make
    while clients:
        clients.pop().close()
    gc.collect()
    until = time.monotonic() + PATIENCE
    while (descriptors(), mappings(), workers()) != before and time.monotonic() < until:
        time.sleep(0.005)  # the other side may have to close its end yet
    left = descriptors(), mappings(), workers()
    assert left == before, "descriptors, mappings, threads"
