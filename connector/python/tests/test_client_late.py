"""What a call that was given up leaves behind: staging, blocks, grants."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from client_samples import PATIENCE, SMALL, Connect, new_segment, wait_until
from fake_daemon import FakeDaemon, Request, fingerprint
from spliced_connector.client import (
    Client,
    EngineMemory,
    MemoryLayer,
    Model,
    Placed,
    Plan,
    PlanSpan,
    engine_memfd,
)
from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.staging import Extent, Staging
from spliced_connector.errors import Code, SplicedError
from spliced_connector.wire import (
    AbortRequest,
    AcquireReply,
    CancelReply,
    CancelRequest,
    CodesReply,
    CommitReply,
    ComposeReply,
    LoadReply,
    Message,
    Op,
    ProfileReply,
    ProfileRequest,
    ReleaseRequest,
    ReserveReply,
    RotateReply,
)

PLAN = Plan(0, 8, [PlanSpan(0, 8)])


def lease(*ids: int) -> AcquireReply:
    """An acquire that granted these leases, of no bytes that make sense."""
    n = len(ids)
    return AcquireReply([0] * n, ids, [0] * n, [0] * n, [0] * n, [0] * n, [], [], [0] * n)


def attachment_of(client: Client) -> Attachment:
    """The connection inside of a client."""
    current = client._keeper.current
    if current is None:
        raise RuntimeError("not attached")
    return current


def test_leases_that_come_late_are_released(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket, timeout=0.05)
    model = client.model(SMALL)
    assert model.acquire([bytes(32)] * 2) == [None, None]
    fake.next(Op.ACQUIRE).reply(lease(11, 12))
    released = fake.next(Op.RELEASE).message
    assert isinstance(released, ReleaseRequest)
    assert list(released.leases) == [11, 12]
    assert model.load(bytes(32)) is None
    fake.next(Op.LOAD).reply(LoadReply(lease=13))
    released = fake.next(Op.RELEASE).message
    assert isinstance(released, ReleaseRequest)
    assert list(released.leases) == [13]
    assert client.counters.late_replies == 2
    wait_until(lambda: attachment_of(client).exchange.flight.orphans == 0)


def test_reservations_that_come_late_are_aborted(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket, transfer_timeout=0.05)
    model = client.model(SMALL)
    assert model.publish([new_segment(model)]) == [Code.LATE]
    staging = attachment_of(client).staging
    assert not staging.whole(), "the token ids are the daemon's until its reply"
    late = fake.next(Op.RESERVE)
    late.reply(ReserveReply([0], [77], [model.profile.segment_bytes(8)]))
    aborted = fake.next(Op.ABORT)
    assert isinstance(aborted.message, AbortRequest)
    assert list(aborted.message.reservations) == [77]
    aborted.reply(CodesReply([0]))
    assert staging.whole()


def test_staging_of_a_commit_is_kept_until_its_reply(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket, transfer_timeout=1.0)
    model = client.model(SMALL)
    new = new_segment(model)
    nbytes = model.profile.segment_layout(new.spec).nbytes
    fake.on(Op.RESERVE, lambda request: request.reply(ReserveReply([0], [77], [nbytes])))
    fake.on(Op.ABORT, lambda request: request.reply(CodesReply([0])))
    fake.on(Op.CANCEL, lambda request: request.reply(CancelReply(b"\1")))
    assert model.publish([new]) == [Code.LATE]
    commit = fake.next(Op.COMMIT)
    staging = attachment_of(client).staging
    assert not staging.whole(), "the daemon may be reading it"
    cancel = fake.next(Op.CANCEL)
    assert isinstance(cancel.message, CancelRequest)
    assert list(cancel.message.requests) == [commit.header.request]
    rows = len(model.profile.segment_layout(new.spec).parts)
    commit.reply(CommitReply([12] * rows, bytes(rows), bytes(rows)))
    wait_until(staging.whole)


def test_a_release_that_was_not_taken_is_repeated(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket)
    model = client.model(SMALL)
    nbytes = model.profile.segment_bytes(8)
    row = AcquireReply([0], [11], [nbytes], [0], [8], [1], [0], [nbytes], [0])
    fake.on(Op.ACQUIRE, lambda request: request.reply(row))
    fake.on(Op.RELEASE, lambda request: request.refuse(Code.BUSY))
    (segment,) = model.acquire([bytes(32)])
    assert segment is not None
    assert not segment.release(), "nobody vouches for it"
    fake.next(Op.RELEASE)
    fake.on(Op.RELEASE, lambda request: request.reply(CodesReply([0])))
    again = fake.next(Op.RELEASE).message
    assert isinstance(again, ReleaseRequest)
    assert list(again.leases) == [11]
    assert client.counters.doubtful == 1


@pytest.fixture
def memory() -> Iterator[EngineMemory]:
    """Memory of an engine."""
    descriptor = engine_memfd(1 << 16)
    yield EngineMemory(descriptor, 1 << 16, (MemoryLayer(1, 0, 1 << 15, 1024, 64, 32, 64, 32),))
    os.close(descriptor)


@pytest.fixture
def writing(fake: FakeDaemon, connect: Connect, memory: EngineMemory) -> tuple[Client, Model]:
    """A model with engine memory, at a daemon that does not answer placements."""

    def register(request: Request) -> None:
        if isinstance(request.message, ProfileRequest):
            assert request.message.memory_bytes == memory.nbytes
            request.reply(ProfileReply(7, 3, fingerprint(request.message)))

    fake.on(Op.PROFILE, register)
    client = connect(fake.socket, transfer_timeout=0.05)
    return client, client.model(SMALL, memory=memory)


def given_up(writing: tuple[Client, Model]) -> Placed:
    """A placement that was not answered in time."""
    placed = writing[1].place(PLAN, [0])
    assert placed.code == Code.LATE
    assert not placed.settled
    assert not placed.wait(0)
    return placed


def test_blocks_are_kept_until_the_reply(fake: FakeDaemon, writing: tuple[Client, Model]) -> None:
    placed = given_up(writing)
    fake.next(Op.CANCEL)
    assert not placed.settled
    fake.all[Op.ROTATE][-1].reply(RotateReply(0, 0, 0, 8))
    assert placed.wait(PATIENCE)
    assert placed.code == Code.LATE, "the rows do not count all the same"


def test_blocks_are_kept_until_the_cancel_is_answered(
    fake: FakeDaemon, writing: tuple[Client, Model]
) -> None:
    placed = given_up(writing)
    cancel = fake.next(Op.CANCEL)
    assert isinstance(cancel.message, CancelRequest)
    assert not placed.settled
    cancel.reply(CancelReply(b"\1"))
    assert placed.wait(PATIENCE)


def test_a_cancel_that_is_late_is_repeated(fake: FakeDaemon, writing: tuple[Client, Model]) -> None:
    placed = given_up(writing)
    fake.next(Op.CANCEL).refuse(Code.LATE)
    again = fake.next(Op.CANCEL)
    assert not placed.settled
    again.reply(CancelReply(b"\2"))
    assert placed.wait(PATIENCE)


def test_blocks_are_kept_until_the_end_of_file(
    fake: FakeDaemon, writing: tuple[Client, Model]
) -> None:
    client, _ = writing
    placed = given_up(writing)
    fake.next(Op.CANCEL).hang_up()
    assert placed.wait(PATIENCE), "the daemon ends its side when nothing writes any more"
    wait_until(lambda: client.counters.lost == 1)


def test_a_broken_connection_says_nothing_of_writes(
    fake: FakeDaemon, writing: tuple[Client, Model]
) -> None:
    """The daemon sends garbage and goes on writing: only its end of file counts."""
    client, _ = writing
    placed = given_up(writing)
    cancel = fake.next(Op.CANCEL)
    fake.linger = threading.Event()
    cancel.raw(b"nonsense")
    wait_until(lambda: client.counters.malformed == 1)
    assert not placed.settled
    fake.linger.set()
    assert placed.wait(PATIENCE)


def test_a_client_that_leaves_first_does_not_know(
    fake: FakeDaemon, writing: tuple[Client, Model]
) -> None:
    client, _ = writing
    placed = given_up(writing)
    fake.linger = threading.Event()
    client.close()
    assert not placed.wait(5), "known is that nothing is known"
    assert not placed.settled
    fake.linger.set()


@pytest.mark.parametrize("op", [Op.COMPOSE, Op.ROTATE, Op.ASSEMBLE])
def test_slots_that_come_late_are_released(fake: FakeDaemon, connect: Connect, op: Op) -> None:
    client = connect(fake.socket, transfer_timeout=0.05)
    model = client.model(SMALL)
    calls: dict[Op, Callable[[], object]] = {
        Op.COMPOSE: lambda: model.compose(PLAN),
        Op.ROTATE: lambda: model.rotate(PLAN),
        Op.ASSEMBLE: lambda: model.assemble(PLAN),
    }
    assert calls[op]() is None
    fake.next(Op.CANCEL).reply(CancelReply(b"\2"))
    late: Message = RotateReply(21, 0, 64, 1)
    if op == Op.COMPOSE:
        late = ComposeReply(21, 0, 64)
    fake.all[op][-1].reply(late)
    released = fake.next(Op.RELEASE).message
    assert isinstance(released, ReleaseRequest)
    assert list(released.leases) == [21]


def test_staging_hands_out_what_is_free() -> None:
    staging = Staging(memoryview(bytearray(1024)))
    parts = [staging.allocate(n, 0) for n in (1, 64, 65, 700)]
    assert [part.offset for part in parts] == [0, 64, 128, 256]
    assert staging.try_allocate(65) is None
    staging.free([parts[1], parts[0]])
    assert staging.allocate(128, 0) == Extent(0, 128)
    with pytest.raises(SplicedError) as busy:
        staging.allocate(128, time.monotonic() + 0.01)
    assert busy.value.code == Code.BUSY
    with pytest.raises(SplicedError) as full:
        staging.allocate(1025, 0)
    assert full.value.code == Code.FULL
    waiting = threading.Thread(target=lambda: staging.allocate(700, time.monotonic() + 5))
    waiting.start()
    staging.free([parts[3]])
    waiting.join()
    staging.close()
    with pytest.raises(SplicedError) as ended:
        staging.allocate(1, 0)
    assert ended.value.code == Code.UNAVAILABLE


def test_staging_comes_together_again_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        staging = Staging(memoryview(bytearray(256)))
        parts = [staging.allocate(64, 0) for _ in range(4)]
        for i in order:
            staging.free([parts[i]])
        assert staging.whole()
        assert staging.allocate(256, 0) == Extent(0, 256)
