"""Threads, forks, forgotten objects: what a client holds ends with it."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from client_samples import (
    PATIENT,
    SMALL,
    Connect,
    descriptors,
    ids,
    key_of,
    mappings,
    new_checkpoint,
    new_segment,
    publish_one,
    wait_until,
    workers,
)
from running import Daemon, StartDaemon
from spliced_connector.client import Client, Model, Options, Segment, lease
from spliced_connector.errors import Code, SplicedError


def in_child(work: Callable[[], None]) -> None:
    """Do something in a forked child, which must not raise."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    until = time.monotonic() + 20
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    assert done[1] == 0, "the child hangs or fails"


def test_a_forked_child_is_inert(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    key, new = publish_one(model)
    (segment,) = model.acquire([key])
    assert segment is not None

    def child() -> None:
        assert not client.attached
        assert not model.attached
        assert client.state.startswith("inert")
        assert model.match(keys=[key]).trouble
        assert model.acquire([key]) == [None]
        assert model.publish([new]) == [Code.UNAVAILABLE]
        assert not client.wait_attached(0.01)
        assert not segment.valid
        assert not segment.release()
        with pytest.raises(SplicedError):
            segment.part(0)
        assert client.counters.inert == 3
        client.close()
        # A client of its own works.
        own = Client(Options(socket=daemon.socket, **PATIENT))
        assert own.model(SMALL).match(keys=[key]).hit(0)
        own.close()

    in_child(child)
    assert segment.part(0) == new.parts[0]
    assert segment.release(), "the parent's lease is untouched"
    assert model.match(keys=[key]).hit(0)
    assert client.counters.lost == 0


def test_a_child_can_release_what_it_leased_itself(daemon: Daemon, connect: Connect) -> None:
    """Also when it was forked while a thread of its parent was releasing."""
    key, _ = publish_one(connect(daemon.socket).model(SMALL))

    def child() -> None:
        own = Client(Options(socket=daemon.socket, **PATIENT))
        (segment,) = own.model(SMALL).acquire([key])
        assert segment is not None
        assert segment.release()
        own.close()

    with lease._once:
        in_child(child)


def test_a_late_wake_rings_nobody_else(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The descriptor of a closed client may belong to a file by the time it is written to."""
    client = connect(daemon.socket)
    ring = os.eventfd_write
    about_to, go = threading.Event(), threading.Event()

    def slowly(descriptor: int, value: int) -> None:
        if threading.current_thread() is late:
            about_to.set()
            go.wait(20)
        ring(descriptor, value)

    late = threading.Thread(target=client._keeper.wake)
    monkeypatch.setattr(os, "eventfd_write", slowly)
    late.start()
    assert about_to.wait(20)
    before = descriptors()
    client.close()
    assert descriptors() < before
    files = [(tmp_path / str(i)).open("wb", buffering=0) for i in range(before + 1)]
    go.set()
    late.join()
    assert [os.fstat(file.fileno()).st_size for file in files] == [0] * len(files)
    for file in files:
        file.close()


def expect_nothing(model: Model, key: bytes) -> None:
    """Of a model in a forked child."""
    assert model.match(keys=[key]).trouble


def test_a_fork_while_other_threads_call(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    end = threading.Event()

    def call() -> None:
        while not end.is_set():
            model.match(keys=[key])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        in_child(lambda: expect_nothing(model, key))
    end.set()
    for thread in threads:
        thread.join()
    assert model.match(keys=[key]).hit(0)


def test_a_child_does_not_keep_its_parents_connection(daemon: Daemon) -> None:
    """The daemon has to see the end of an engine whose children live on."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            client = Client(Options(socket=daemon.socket, **PATIENT))
            model = client.model(SMALL)
            key, _ = publish_one(model)
            held = model.acquire([key])
            if os.fork() == 0:
                os.close(write)
                os.read(read, 1)  # lives until the test ends
                os._exit(0)
            os._exit(0 if held[0] is not None else 1)
        finally:
            os._exit(2)
    assert os.waitpid(middle, 0)[1] == 0
    wait_until(lambda: daemon.metrics()["spliced_leases"] == 0)
    os.close(write)
    os.close(read)


def test_forgotten_leases_are_given_back(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    key, _ = publish_one(model)
    saved = new_checkpoint(model, ids(32), 32)
    assert model.save([saved]) == [Code.OK]
    held: list[object] = [*model.acquire([key] * 20), model.load(saved.hash)]
    assert daemon.metrics()["spliced_leases"] == 21
    view = next(lease for lease in held if isinstance(lease, Segment)).part(0)
    held.clear()
    gc.collect()
    wait_until(lambda: daemon.metrics()["spliced_leases"] == 0)
    assert len(bytes(view)) == view.nbytes, "a view keeps the memory mapped"
    assert client.counters.gave_back == 21


def test_a_view_outlives_the_client(daemon: Daemon) -> None:
    before = descriptors(), mappings(), workers()
    client = Client(Options(socket=daemon.socket, **PATIENT))
    model = client.model(SMALL)
    key, _ = publish_one(model)
    (segment,) = model.acquire([key])
    assert segment is not None
    view = segment.part(0)
    client.close()
    assert not segment.release(), "its connection was ended from here, the daemon lives"
    assert len(bytes(view)) == segment.layout.parts[0].nbytes, "still mapped"
    del view, segment
    gc.collect()
    assert (descriptors(), mappings(), workers()) == before


def test_a_lease_that_is_forgotten_after_the_client_leaves_nothing(daemon: Daemon) -> None:
    before = descriptors(), mappings(), workers()
    client = Client(Options(socket=daemon.socket, **PATIENT))
    model = client.model(SMALL)
    key, _ = publish_one(model)
    held = model.acquire([key] * 2)
    assert None not in held
    client.close()
    assert mappings() > before[1]
    held.clear()
    gc.collect()
    wait_until(lambda: (descriptors(), mappings(), workers()) == before)


def test_a_forgotten_client_ends(daemon: Daemon) -> None:
    before = descriptors(), mappings(), workers()
    client = Client(Options(socket=daemon.socket, **PATIENT))
    model = client.model(SMALL)
    publish_one(model)
    del client, model
    gc.collect()
    wait_until(lambda: (descriptors(), mappings(), workers()) == before)


def test_close_is_final(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    client.close()
    client.close()
    assert client.state == "no daemon: client closed"
    assert model.match(keys=[key]).trouble
    wait_until(lambda: daemon.metrics()["spliced_leases"] == 0)


def test_a_hundred_threads(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, timeout=10.0, transfer_timeout=20.0)
    model = client.model(SMALL, block_tokens=16)
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            key, new = publish_one(model, 48, seed)
            for _ in range(10):
                assert model.match(keys=[key, rng.randbytes(32)]).hits == [True, False]
                (segment,) = model.acquire([key])
                assert segment is not None
                i = rng.randrange(len(new.parts))
                assert segment.part(i) == new.parts[i]
                assert segment.release()
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    counters = client.counters
    assert (counters.late, counters.malformed, counters.lost, counters.unknown) == (0, 0, 0, 0)
    assert counters.published == 100
    assert daemon.metrics()["spliced_leases"] == 0


def test_more_callers_than_the_daemon_takes(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon("-max-in-flight=4")
    client = connect(daemon.socket, timeout=10.0)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            found = model.match(keys=[key])
            if not found.hit(0):
                wrong.append(found.trouble)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.counters.waits > 0


def test_writers_wait_for_staging(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon("-staging=64KiB")
    client = connect(daemon.socket, timeout=10.0, transfer_timeout=20.0)
    model = client.model(SMALL)
    news = [new_segment(model, 128, seed) for seed in range(12)]
    codes: list[Code | int] = []
    threads = [
        threading.Thread(target=lambda new=new: codes.extend(model.publish([new]))) for new in news
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [Code.OK] * len(news)
    for new in news:
        (segment,) = model.acquire([key_of(model, new)])
        assert segment is not None
        assert [segment.part(i) for i in range(len(new.parts))] == list(new.parts)
        assert segment.release()


def test_a_part_that_no_staging_holds_is_full(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon("-staging=64KiB")
    model = connect(daemon.socket).model(SMALL)
    assert model.publish([new_segment(model, 4096)]) == [Code.FULL]
    assert model.publish([new_segment(model, 64)]) == [Code.OK]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0.0},
        {"attach_timeout": -1.0},
        {"name": "x" * 300},
        {"tenants": ()},
        {"tenants": (("a", ""), ("a", ""))},
        {"staging_bytes": -1},
    ],
)
def test_settings_that_can_never_be_right(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).rstrip("s").split("_")[0]):
        Options(**wrong)  # type: ignore[arg-type]


def test_models_that_can_never_be_right(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    for wrong in ({"tenant": "green"}, {"rank": 1}, {"block_tokens": -1}, {"engine": "x" * 300}):
        with pytest.raises(ValueError, match=r"green|rank|blocks|name"):
            client.model(SMALL, **wrong)
