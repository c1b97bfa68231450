"""A daemon that is absent, slow, dead, of another kind or mad costs a bounded wait and a miss."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_samples import (
    PATIENCE,
    SMALL,
    Connect,
    at_most,
    ids,
    key_of,
    limited,
    new_checkpoint,
    new_segment,
    publish_one,
    wait_again,
    wait_until,
)
from fake_daemon import SIZE, FakeDaemon, Request
from running import Daemon, StartDaemon
from spliced_connector.client import Model, NewSegment, Plan, PlanSpan, Query, release_all
from spliced_connector.client.registration import Enrolment
from spliced_connector.errors import Code
from spliced_connector.wire import (
    AcquireReply,
    HelloReply,
    MatchReply,
    Op,
    ProfileReply,
    ReserveReply,
)

LOOKUP = 0.05


def everything_misses(model: Model, new: NewSegment) -> None:
    """Every call reads as a miss, and none raises."""
    keys = [bytes(32)] * 2
    found = model.match([16], [bytes(32)], keys)
    assert found.hits == [False, False]
    assert found.prefix_tokens == 0
    assert found.trouble
    assert model.acquire(keys) == [None, None]
    assert model.load(bytes(32)) is None
    assert model.publish([new, new]) in [[code] * 2 for code in (Code.UNAVAILABLE, Code.LATE)]
    assert model.advise(Query([1, 2, 3])) is None
    plan = Plan(0, 8, [PlanSpan(0, 8)])
    assert model.compose(plan) is None
    assert model.assemble(plan) is None
    placed = model.place(plan, [0])
    assert placed.code != Code.OK
    assert placed.wait(0), "nobody writes"
    assert model.report(1, 0, 0.0, 1.0) is None


def test_no_daemon(tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spliced"), at_most(1):
        client = connect(str(tmp_path / "nobody.sock"))
        model = client.model(SMALL)
        assert not client.attached
        assert model.salt is None
        assert model.segment_key(model.profile.first_spec(8), ids(8)) is None
        assert model.prefix_hashes(ids(8), [8]) is None
        new = NewSegment(model.profile.first_spec(8), ids(8), [])
        everything_misses(model, new)
        assert client.stats() == {}
        assert not client.wait_attached(0.2), "several attempts fail meanwhile"
    assert client.counters.unavailable > 8
    assert client.state.startswith("no daemon: unavailable: connect")
    assert len(caplog.records) == 1, "one line for a condition, not one for each call or attempt"


def test_a_daemon_that_comes_later(
    daemon: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.kill()
    with caplog.at_level(logging.INFO, "spliced"):
        client = connect(daemon.socket)
        model = client.model(SMALL)
        daemon.start()
        with at_most(1):
            assert model.wait_attached(PATIENCE)
        publish_one(model)
    # While the daemon binds its socket the reason may change: from refused to no such file.
    assert [record.levelname for record in caplog.records[-2:]] == ["WARNING", "INFO"]
    reasons = [record.getMessage() for record in caplog.records]
    assert len(reasons) <= 4 and all(a != b for a, b in itertools.pairwise(reasons))


def test_a_stalled_daemon_costs_three_time_outs(
    daemon: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(daemon.socket, timeout=LOOKUP)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    new = new_segment(model, seed=5)
    daemon.pause()
    with caplog.at_level(logging.INFO, "spliced"), limited(model, transfer_timeout=0.1):
        for _ in range(3):
            with at_most(LOOKUP):
                assert model.match(keys=[key]).trouble
        with at_most(0.3):
            everything_misses(model, new)
        assert client.counters.late >= 3
        assert client.counters.stalled > 0
        daemon.resume()
        wait_until(lambda: model.match(keys=[key]).hit(0))
    assert client.counters.lost == 0
    assert client.counters.late_replies >= 3
    assert len(caplog.records) == 2, "stopped answering, answers again"
    wait_until(lambda: model.publish([new]) == [Code.OK])  # nothing is left reserved


def test_what_comes_late_is_given_back(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, timeout=LOOKUP)
    model = client.model(SMALL)
    key, _ = publish_one(model)
    daemon.pause()
    assert model.acquire([key], wait=LOOKUP) == [None]
    daemon.resume()
    wait_until(lambda: client.counters.gave_back == 1)
    wait_until(lambda: daemon.metrics()["spliced_leases"] == 0)


def test_a_killed_daemon_leaves_its_memory_as_it_was(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    key, new = publish_one(model)
    held, dropped = (model.acquire([key])[0] for _ in range(2))
    assert held is not None
    assert dropped is not None
    daemon.kill()
    assert [held.part(i) for i in range(len(new.parts))] == list(new.parts)
    assert held.release(), "nobody writes there any more"
    daemon.start()
    with at_most(1):
        wait_again(model)
    assert model.match(keys=[key]).hits == [False], "another daemon holds nothing"
    assert dropped.release(), "asked when the connection ended, not now"
    assert model.publish([new]) == [Code.OK]
    assert client.counters.lost == 1
    assert client.counters.attached == 2


def test_killed_in_mid_request(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, timeout=10.0)
    model = client.model(SMALL)
    daemon.pause()
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(model.match(keys=[bytes(32)]).trouble))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: client.counters.calls >= 8)
    with at_most(1):
        daemon.kill()
        for thread in threads:
            thread.join()
    assert len(answers) == 8
    assert all(answers)
    daemon.start()
    wait_again(model)
    assert not model.match(keys=[bytes(32)]).trouble


def test_restarted_again_and_again_under_load(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    new = new_segment(model)
    key = key_of(model, new)
    failures: list[BaseException] = []
    end = threading.Event()

    def work(seed: int) -> None:
        try:
            prompt = ids(64, seed)
            while not end.is_set():
                model.publish([new])
                hashes = model.prefix_hashes(prompt, [32])
                assert hashes is not None
                model.save([new_checkpoint(model, prompt, 32, seed=seed)])
                checkpoint = model.load(hashes[0])
                (segment,) = model.acquire([key])
                copied = bytes(segment.part(0)) if segment is not None else b""
                if segment is not None and segment.release():
                    assert copied == new.parts[0], "release vouched for other bytes"
                if checkpoint is not None:
                    checkpoint.release()
        except BaseException as err:
            failures.append(err)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for kill in (True, False, True):
        wait_until(lambda: model.match(keys=[key]).hit(0))
        daemon.kill() if kill else daemon.stop()
        daemon.start()
    wait_again(model, 4)
    end.set()
    for thread in threads:
        thread.join()
    assert failures == []
    wait_until(lambda: model.publish([new]) in ([Code.OK], [Code.EXISTS]))
    assert client.counters.malformed == 0


def test_an_orderly_stop_is_not_a_death(fake: FakeDaemon, connect: Connect) -> None:
    """The process lives on: the pages of former leases may be anybody's."""
    fake.on(Op.ACQUIRE, grant)
    client = connect(fake.socket)
    model = client.model(SMALL)
    (segment,) = model.acquire([bytes(32)])
    assert segment is not None
    fake.next(Op.ACQUIRE).hang_up()
    wait_until(lambda: client.counters.lost == 1)
    assert not segment.valid
    assert not segment.release()
    assert client.counters.doubtful == 1


def grant(request: Request) -> None:
    """Lease one segment of 8 tokens at the start of the arena."""
    from spliced_connector.model import Profile

    nbytes = Profile(SMALL).segment_bytes(8)
    request.reply(AcquireReply([0], [11], [nbytes], [0], [8], [1], [0], [nbytes], [0]))


def test_a_daemon_of_another_version(
    fake: FakeDaemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    hello = fake.hello
    fake.hello = replace(hello, version=2)
    with caplog.at_level(logging.INFO, "spliced"):
        client = connect(fake.socket)
        assert not client.attached
        assert "version 2" in client.state
        model = client.model(SMALL)
        everything_misses(model, NewSegment(model.profile.first_spec(8), ids(8), []))
        assert not client.wait_attached(0.2)
        assert len(caplog.records) == 1
        fake.hello = hello
        assert model.wait_attached(5), "it was replaced by one that we know"


def test_a_daemon_that_refuses_our_version(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.HELLO, lambda request: request.refuse(Code.UNSUPPORTED, "versions 3 to 4"))
    client = connect(fake.socket)
    assert "versions 3 to 4" in client.state


def test_one_connection_too_many(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.HELLO, lambda request: request.refuse(Code.BUSY, "128 connections"))
    assert "128 connections" in connect(fake.socket).state


@pytest.mark.parametrize(
    "change",
    [
        {"boot_epoch": 0},
        {"max_in_flight": 0},
        {"arena_bytes": 2 * SIZE},
        {"staging_bytes": 0},
        {"tenant_ids": [], "tenant_salts": []},
    ],
)
def test_a_hello_that_makes_no_sense(
    fake: FakeDaemon, connect: Connect, change: dict[str, object]
) -> None:
    fields = {name: getattr(fake.hello, name) for name in HelloReply.__slots__} | change
    fake.hello = HelloReply(**fields)
    client = connect(fake.socket)
    assert not client.attached
    assert "hello" in client.state


def test_a_hello_without_descriptors(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.HELLO, lambda request: fake.greet(request, descriptors=2))
    assert "2 descriptors" in connect(fake.socket).state


def test_memory_that_may_shrink_is_not_mapped(fake: FakeDaemon, connect: Connect) -> None:
    plain = os.memfd_create("plain", os.MFD_CLOEXEC)
    os.ftruncate(plain, SIZE)
    os.close(fake.regions[0])
    fake.regions[0] = plain
    assert "shrink" in connect(fake.socket).state


def test_a_hello_that_never_comes(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.HELLO, lambda request: None)
    with at_most(0.3):
        client = connect(fake.socket, attach_timeout=0.2)
        assert "no reply in time" in client.state


def test_another_fingerprint_is_a_refusal(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.PROFILE, lambda request: request.reply(ProfileReply(7, 0, bytes(32))))
    model = connect(fake.socket).model(SMALL)
    assert "fingerprint" in model.refused
    assert model.match(keys=[bytes(32)]).trouble


GARBAGE = {
    "not a frame": b"nonsense",
    "a header only, of another magic": b"XXXX" + bytes(36),
    "random bytes": bytes(range(256)),
    "too long": b"SPLC" + bytes(131072),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(fake: FakeDaemon, connect: Connect, name: str) -> None:
    fake.on(Op.MATCH, lambda request: request.raw(GARBAGE[name]))
    check_broken(fake, connect)


def test_replies_that_do_not_fit_their_request(fake: FakeDaemon, connect: Connect) -> None:
    good = MatchReply(status=b"\0", tier=b"\0", reason=b"\0", tokens=[0])
    two = MatchReply(status=b"\1\1", tier=b"\0\0", reason=b"\0\0", tokens=[8, 8])
    prefix = replace(good, prefix_tokens=64, prefix_index=5)
    for handler in (
        lambda request: request.reply(two),
        lambda request: request.reply(prefix),
        lambda request: request.reply(good, epoch=1),
        lambda request: request.reply(good, kind=0),
        lambda request: request.reply(good, request=0),
        lambda request: request.reply(ReserveReply(), op=Op.RESERVE),
    ):
        fake.on(Op.MATCH, handler)
        check_broken(fake, connect)


def check_broken(fake: FakeDaemon, connect: Connect) -> None:
    """One call is a miss, the connection is given up, and a new one is made."""
    client = connect(fake.socket)
    model = client.model(SMALL)
    with at_most(LOOKUP):
        found = model.match(keys=[bytes(32)])
    assert found.hits == [False]
    assert found.trouble
    wait_until(lambda: client.counters.attached == 2)
    assert client.counters.malformed == 1
    assert model.wait_attached(5)
    client.close()


def test_a_reply_to_nothing_is_counted(fake: FakeDaemon, connect: Connect) -> None:
    good = MatchReply(status=b"\0", tier=b"\0", reason=b"\0", tokens=[0])

    def twice(request: Request) -> None:
        request.reply(good, request=9999)
        request.reply(good)

    fake.on(Op.MATCH, twice)
    client = connect(fake.socket)
    assert not client.model(SMALL).match(keys=[bytes(32)]).trouble
    assert client.counters.unknown == 1


@pytest.mark.parametrize(
    ("extents", "nbytes"),
    [
        (([SIZE], [64]), 0),  # outside of the arena
        (([0], [64]), 0),  # too short
        (([0], [SIZE]), 64),  # another size than the layout's
    ],
)
def test_leases_that_point_elsewhere(
    fake: FakeDaemon, connect: Connect, extents: tuple[list[int], list[int]], nbytes: int
) -> None:
    client = connect(fake.socket)
    model = client.model(SMALL)
    size = nbytes or model.profile.segment_bytes(8)
    row = AcquireReply([0], [11], [size], [0], [8], [1], *extents, [0])
    fake.on(Op.ACQUIRE, lambda request: request.reply(row))
    assert model.acquire([bytes(32)]) == [None]
    wait_until(lambda: client.counters.malformed == 1)


def test_a_stale_epoch_makes_a_new_connection(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.MATCH, lambda request: request.refuse(Code.STALE))
    client = connect(fake.socket)
    model = client.model(SMALL)
    assert "stale" in model.match(keys=[bytes(32)]).trouble
    wait_until(lambda: client.counters.attached == 2)


def test_a_code_of_a_newer_daemon(fake: FakeDaemon, connect: Connect) -> None:
    fake.on(Op.RESERVE, lambda request: request.reply(ReserveReply([99], [0], [0])))
    client = connect(fake.socket)
    model = client.model(SMALL)
    assert model.publish([new_segment(model)]) == [99]
    assert client.attached


def test_released_together_over_a_restart(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    key, new = publish_one(model)
    before = model.acquire([key])
    daemon.kill()
    daemon.start()
    wait_again(model)
    model.publish([new])
    after = model.acquire([key])
    assert release_all([*before, *after]) == [True, True]


def test_a_profile_too_many_is_told_once(
    start_daemon: StartDaemon,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection gets four places of eight; who gets none asks again and again."""
    asked: dict[Enrolment, int] = {}
    register = Enrolment.register

    def counted(self: Enrolment, *arguments: Any) -> str | None:
        why = register(self, *arguments)
        asked[self] = asked.get(self, 0) + 1
        return why

    monkeypatch.setattr(Enrolment, "register", counted)
    daemon = start_daemon("-max-profiles=8")
    client = connect(daemon.socket, attach_timeout=PATIENCE)
    assert client.wait_attached(PATIENCE)
    with caplog.at_level(logging.INFO, "spliced"):
        models = [client.model(replace(SMALL, model=f"m{i}")) for i in range(6)]
        assert [model.attached for model in models] == [True] * 4 + [False] * 2
        wait_until(lambda: sorted(asked.values())[-2] >= 3)
    for model in models[4:]:
        assert "4 profiles of one connection are registered" in model.trouble
        assert model.trouble in model.match([16], [bytes(32)]).trouble
        assert not model.refused, "a place may become free"
    assert [model.trouble for model in models[:4]] == [""] * 4
    lines = [m for m in caplog.messages if "profiles of one" in m]
    assert len(lines) == 2, "one for each"
