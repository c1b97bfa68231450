"""Digests without xxhash, and reports of a canary."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from client_samples import (
    SMALL,
    Connect,
    ids,
    new_checkpoint,
    new_segment,
    publish_one,
    wait_until,
)
from fake_daemon import FakeDaemon
from running import Daemon
from spliced_connector.client import (
    ANY_LOSS,
    Accept,
    LossAdvice,
    LossCounts,
    LossLimit,
    Query,
    Reason,
    Served,
    SpliceWay,
    Splicing,
    Status,
    WalkTiming,
    Way,
)
from spliced_connector.client import publish as storing
from spliced_connector.client.connection import hello
from spliced_connector.client.connection.checksum import chunks, crc32, xxh3
from spliced_connector.errors import Code
from spliced_connector.wire import (
    AdviseLimit,
    AdviseLoss,
    AdviseReply,
    AdviseRequest,
    Feature,
    Op,
    ReportReply,
    ReportRequest,
    ServedReply,
    ServedRequest,
)

needs_xxhash = pytest.mark.skipif(xxh3() is None, reason="xxhash is not installed")


@pytest.fixture
def without_xxhash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine that has the standard library only."""
    with monkeypatch.context() as patch:
        for module in (hello, storing):
            patch.setattr(module, "xxh3", lambda: None)
        yield


@pytest.mark.usefixtures("without_xxhash")
def test_published_with_the_standard_library_only(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    key, new = publish_one(model)
    assert model.save([new_checkpoint(model, ids(32), 32)]) == [Code.OK]
    (segment,) = model.acquire([key])
    assert segment is not None
    assert [segment.part(i) for i in range(len(new.parts))] == list(new.parts)
    assert segment.release()


@needs_xxhash
def test_what_one_publishes_with_crc_another_verifies(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (hello, storing):
            patch.setattr(module, "xxh3", lambda: None)
        key, _ = publish_one(connect(daemon.socket).model(SMALL))
    other = connect(daemon.socket).model(SMALL)
    (segment,) = other.acquire([key], digests=True)
    assert segment is not None
    assert segment.verify() is True
    assert segment.release()


@pytest.mark.usefixtures("without_xxhash")
def test_wrong_crc_publishes_nothing(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = connect(daemon.socket).model(SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(storing, "crc32", lambda data: crc32(data) ^ 1)
        assert model.publish([new_segment(model)]) == [Code.CORRUPT]
    publish_one(model)


@pytest.mark.usefixtures("without_xxhash")
def test_a_daemon_that_does_not_know_crc(fake: FakeDaemon, connect: Connect) -> None:
    client = connect(fake.socket)
    model = client.model(SMALL)
    assert model.publish([new_segment(model)] * 2) == [Code.UNSUPPORTED] * 2
    assert client.attached, "it may still read"


def test_digests_of_a_part() -> None:
    assert [chunks(n) for n in (0, 1, 1 << 20, (1 << 20) + 1)] == [0, 1, 1, 2]
    assert crc32(memoryview(b"abc")) == zlib.crc32(b"abc") == 0x352441C2


def test_a_canary_counts(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    assert model.report(64, 0, 0.001, 0.1) is False
    assert model.report(64, 3, math.nan, 0.1) is False, "no number is the worst there is"
    assert model.report(1, 2, 0.1, 0.1) is None
    assert client.counters.invalid == 1


def test_a_canary_switches_splicing_off(daemon: Daemon, connect: Connect) -> None:
    client = connect(daemon.socket, tenants=(("", ""), ("blue", "blue-token")))
    model = client.model(SMALL, block_tokens=16)
    blue = client.model(SMALL, tenant="blue", block_tokens=16)
    key, _ = publish_one(model)
    exact = new_checkpoint(model, ids(32), 32)
    spliced = new_checkpoint(model, ids(32, 1), 32, kind=Accept.SPLICED)
    assert model.save([exact, spliced]) == [Code.OK] * 2
    blue_key, _ = publish_one(blue)
    assert model.report(64, 60, 3.5, 0.1, off=True, text="layer 3") is True
    found = model.match([32], [spliced.hash], [key], Accept.ANY)
    assert list(found.status) == [Status.MISS]
    assert list(found.reason) == [Reason.OFF]
    assert found.prefix_tokens == 0
    assert model.acquire([key]) == [None]
    assert model.load(spliced.hash, Accept.ANY) is None
    checkpoint = model.load(exact.hash)
    assert checkpoint is not None
    assert checkpoint.release()
    assert blue.match(keys=[blue_key]).hit(0), "another tenant is not concerned"
    assert model.report(1, 0, 0.0, 0.1) is True, "it stays off"
    wait_until(lambda: daemon.metrics()["spliced_leases"] == 0)


@pytest.mark.parametrize("knows", [False, True])
def test_walks_are_reported_to_daemons_that_know_them(
    connect: Connect, fake: FakeDaemon, knows: bool
) -> None:
    if knows:
        fake.hello = replace(fake.hello, features=int(Feature.SPLICES))
    fake.on(Op.ADVISE, lambda request: request.refuse(Code.BUSY))
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    walks = [WalkTiming(24, 576, 0.25), WalkTiming(0, 0, 1.0), WalkTiming(8, 0, math.inf)]
    assert model.advise(Query(ids(32), samples=walks)) is None
    message = fake.next(Op.ADVISE).message
    assert isinstance(message, AdviseRequest)
    assert not list(message.sample_begin)
    if not knows:
        assert message.measured is None
        return
    assert message.measured is not None
    assert list(message.measured.walk_rows) == [24]
    assert list(message.measured.walk_placed) == [576]
    assert list(message.measured.walk_micros) == [250_000]


LOSSES = {
    SpliceWay(): LossCounts(300, 43),
    SpliceWay(primed=True, refreshed=True): LossCounts(9, 1),
}


def answers(fake: FakeDaemon, loss: AdviseLoss | None = None) -> None:
    """Advises to splice two segments, answers reports and takes what was served."""
    reply = AdviseReply(
        way=Way.SPLICE,
        way_micros=[2.0, 2.0, 1.0, 2.0],
        segment_admit=bytes(2),
        segment_reason=bytes(2),
        loss=loss,
    )
    fake.on(Op.ADVISE, lambda request: request.reply(reply))
    fake.on(Op.REPORT, lambda request: request.reply(ReportReply()))
    fake.on(Op.SERVED, lambda request: request.reply(ServedReply(1, -1.0)))


def two(limit: LossLimit | None = None) -> Query:
    return Query(ids(32), segments=((0, 10), (10, 10)), limit=limit)


def test_losses_are_told_to_daemons_that_keep_them(connect: Connect, fake: FakeDaemon) -> None:
    """What was measured offline before the first advice, and once."""
    fake.hello = replace(fake.hello, features=int(Feature.LOSSES))
    answers(fake, AdviseLoss(0.125, -1.0, Splicing.ASKED))
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    model.measured_offline(LOSSES)
    limit = LossLimit(0.25, SpliceWay(primed=True))
    for _ in range(2):
        advice = model.advise(two(limit))
        assert advice is not None
        assert advice.loss == LossAdvice(Splicing.ASKED, 0.125)
        assert advice.takes(wanted=True) is None
    report, first, second = (fake.next(op).message for op in (Op.REPORT, Op.ADVISE, Op.ADVISE))
    assert isinstance(report, ReportRequest)
    assert (report.compared, report.off) == (0, 0)
    assert report.losses is not None
    assert report.losses.offline == 1
    assert list(report.losses.compared) == [300, 0, 0, 9]
    assert list(report.losses.changed) == [43, 0, 0, 1]
    for message in (first, second):
        assert isinstance(message, AdviseRequest)
        assert message.limit == AdviseLimit(0.25, 1, 0)
    assert model.report(1, 0, 0.0, 1.0, losses=LOSSES) is False
    seen = fake.next(Op.REPORT).message
    assert isinstance(seen, ReportRequest)
    assert seen.losses is not None
    assert seen.losses.offline == 0
    assert model.served(Served(Way.SPLICE, 32, loss=0.125)) == 1
    served = fake.next(Op.SERVED).message
    assert isinstance(served, ServedRequest)
    assert served.loss is not None
    assert served.loss.expected == 0.125


def test_a_daemon_without_losses_is_within_no_limit(connect: Connect, fake: FakeDaemon) -> None:
    answers(fake)
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    model.measured_offline(LOSSES)
    anything = model.advise(two(LossLimit(ANY_LOSS)))
    assert anything is not None
    assert anything.loss == LossAdvice()
    assert anything.takes(wanted=False) is None
    limited = model.advise(two(LossLimit(0.99)))
    assert limited is not None
    assert limited.loss == LossAdvice(Splicing.NONE)
    assert limited.takes(wanted=True, priced=False) == 0
    message = fake.next(Op.ADVISE).message
    assert isinstance(message, AdviseRequest)
    assert message.limit is None
    assert Op.REPORT not in fake.all, "it knows nothing of what was measured offline"
    model.report(1, 0, 0.0, 1.0, losses=LOSSES)
    report = fake.next(Op.REPORT).message
    assert isinstance(report, ReportRequest)
    assert report.losses is None
    assert model.served(Served(Way.SPLICE, 32, loss=0.125)) == 1
    served = fake.next(Op.SERVED).message
    assert isinstance(served, ServedRequest)
    assert served.loss is None


def test_advice_comes_although_a_report_is_refused(
    connect: Connect, fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    fake.hello = replace(fake.hello, features=int(Feature.LOSSES))
    answers(fake)
    fake.on(Op.REPORT, lambda request: request.refuse(Code.INVALID, "counts of another time"))
    client = connect(fake.socket)
    model = client.model(SMALL)
    assert model.wait_attached(10)
    model.measured_offline(LOSSES)
    for _ in range(3):
        assert model.advise(two(LossLimit())) is not None
    assert len(fake.all[Op.REPORT]) == 1
    assert client.counters.refused == 1
    [line] = [text for text in caplog.messages if "measured offline" in text]
    assert "counts of another time" in line


def test_a_report_that_is_not_answered_is_sent_again(connect: Connect, fake: FakeDaemon) -> None:
    fake.hello = replace(fake.hello, features=int(Feature.LOSSES))
    answers(fake)
    fake.on(Op.REPORT, lambda request: request.refuse(Code.UNAVAILABLE))
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    model.measured_offline(LOSSES)
    assert model.advise(two(LossLimit())) is None
    answers(fake)
    assert model.advise(two(LossLimit())) is not None
    assert len(fake.all[Op.REPORT]) == 2


@pytest.mark.parametrize(
    "loss",
    [
        AdviseLoss(1.5, 0.0, Splicing.ASKED),
        AdviseLoss(math.nan, 0.0, Splicing.ASKED),
        AdviseLoss(0.0, 0.0, 3),
    ],
)
def test_losses_that_cannot_be_are_not_believed(
    connect: Connect, fake: FakeDaemon, loss: AdviseLoss
) -> None:
    fake.hello = replace(fake.hello, features=int(Feature.LOSSES))
    answers(fake, loss)
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    assert model.advise(two(LossLimit())) is None


def test_a_limit_that_is_none_is_refused(connect: Connect, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    for most in (-0.1, 1.1, math.nan):
        assert model.advise(two(LossLimit(most))) is None
    assert client.counters.invalid == 3
