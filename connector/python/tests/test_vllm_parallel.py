"""Segments for other nodes in vLLM's scheduler, against a daemon that says what a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_samples import SMALL, Connect, ids, spec_of, wait_again, wait_until
from fake_daemon import FakeDaemon, Request
from spliced_connector.client import Missing, Model
from spliced_connector.client.terms import Progress
from spliced_connector.model import Role
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.parallel import combiner as combining
from spliced_connector.vllm.parallel import jobs as working
from spliced_connector.vllm.parallel.combiner import Away, Combiner
from spliced_connector.vllm.parallel.jobs import Jobs
from spliced_connector.vllm.plans import News, Worked
from spliced_connector.vllm.settings import Settings
from spliced_connector.wire import (
    Op,
    PlanReply,
    WatchReply,
    WatchRequest,
)

LONG = 1000
"""Tokens of a job."""


@pytest.fixture
def model(fake: FakeDaemon, connect: Connect) -> Model:
    made = connect(fake.socket, timeout=10.0, transfer_timeout=10.0).model(SMALL)
    assert made.wait_attached(10)
    return made


class Wanted:
    """Jobs that the daemon has for whoever watches."""

    def __init__(self, fake: FakeDaemon, model: Model) -> None:
        self.fake, self.model = fake, model
        self.spec = spec_of(model, LONG)
        self.next: list[WatchReply] = []
        self.held: list[Request] = []  # watches that wait
        self.declined: set[int] = set()
        self._lock = threading.Lock()
        fake.on(Op.WATCH, self._watched)

    def jobs(self, *numbers: int, micros: int = 60_000_000, **columns: Any) -> WatchReply:
        n = len(numbers)
        tokens = [ids(LONG, seed=i) for i in numbers]
        keys = [self.model.segment_key(self.spec, one) for one in tokens]
        given = {
            "open": n,
            "jobs": list(numbers),
            "keys": keys,
            "roles": bytes([self.spec.role] * n),
            "heads": [self.spec.head] * n,
            "tails": [self.spec.tail] * n,
            "begins": [0] * n,
            "lefts": [bytes(32)] * n,
            "micros": [micros] * n,
            "tokens": [LONG] * n,
            "ids": [token for one in tokens for token in one],
        }
        return WatchReply(**{**given, **columns})

    def tell(self, reply: WatchReply) -> None:
        """Answer the watch that waits, or the next one."""
        with self._lock:
            if self.held:
                self.held.pop().reply(reply)
            else:
                self.next.append(reply)

    def offer(self) -> tuple[int, float]:
        """Of the last watch: jobs at once, and seconds of other work."""
        request = self.fake.all[Op.WATCH][-1].message
        assert isinstance(request, WatchRequest)
        return request.jobs, request.queued_micros / 1e6

    def _watched(self, request: Request) -> None:
        assert isinstance(request.message, WatchRequest)
        with self._lock:
            self.declined |= set(request.message.declined)
            if self.next:
                request.reply(self.next.pop(0))
            elif request.message.wait_ms <= 1000 * working.BUSY_SECONDS:
                request.reply(WatchReply())
            else:
                self.held.append(request)


@pytest.fixture
def wanted(fake: FakeDaemon, model: Model) -> Wanted:
    return Wanted(fake, model)


class Woken:
    """An engine's loop. running: it steps an engine without requests too."""

    def __init__(self, running: bool = True) -> None:
        self.running = running
        self.times = threading.Semaphore(0)

    def wake(self) -> None:
        self.times.release()


Start = Callable[..., Jobs]


@pytest.fixture
def start(model: Model) -> Iterator[Start]:
    """Begins to ask for jobs; waits for the thread at the end."""
    running: list[Jobs] = []

    def make(
        ranks: int = 1,
        loop: Woken | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> Jobs:
        made = Jobs(model, Settings("w", **settings), ranks, EngineTally(), loop or Woken(), clock)
        made.start()
        running.append(made)
        return made

    yield make
    for jobs in running:
        jobs.close()
        model._keeper.close()
        jobs._thread.join(30)
        assert not jobs._thread.is_alive()


def stored(*numbers: int, rows: int = 0, seconds: float = 0.0) -> list[Worked]:
    return [Worked(i, True, rows, seconds) for i in numbers]


def test_an_engine_that_sleeps_is_woken_for_a_job(wanted: Wanted, start: Start) -> None:
    loop = Woken()
    jobs = start(loop=loop)
    assert not jobs.pending
    wanted.tell(wanted.jobs(5))
    assert loop.times.acquire(timeout=30)
    assert jobs.pending
    (work,) = jobs.next(alone=True)
    assert (work.id, work.spec, list(work.ids)) == (5, wanted.spec, ids(LONG, seed=5))
    assert jobs.pending, "the workers have it"
    jobs.settled(stored(5))
    assert not jobs.pending
    assert jobs._tally.snapshot()["jobs_done"] == 1


def test_a_batch_has_the_rows_of_a_prefill(wanted: Wanted, start: Start) -> None:
    jobs = start()
    wanted.tell(wanted.jobs(1, 2, 3))
    wait_until(lambda: jobs.pending)
    assert [work.id for work in jobs.next(alone=True)] == [1, 2]
    assert jobs.next(alone=True) == (), "one batch at a time"
    jobs.settled(stored(1))
    assert jobs.next(alone=True) == ()
    jobs.settled(stored(2))
    assert [work.id for work in jobs.next(alone=True)] == [3]


def test_a_job_is_done_when_all_ranks_have_stored_their_share(wanted: Wanted, start: Start) -> None:
    jobs = start(ranks=2)
    wanted.tell(wanted.jobs(1, 2))
    wait_until(lambda: jobs.pending)
    assert len(jobs.next(alone=True)) == 2
    jobs.settled(stored(1, 2))
    assert jobs.pending
    jobs.settled([*stored(1), Worked(2, False)])
    assert not jobs.pending
    assert jobs._tally.snapshot()["jobs_done"] == 1
    wait_until(lambda: wanted.declined == {2})
    jobs.settled([Worked(2, False)])
    assert not jobs.pending, "what a rank says of a job that is over is nothing"


def test_a_busy_engine_gives_a_share_of_its_time(wanted: Wanted, start: Start) -> None:
    now = [time.monotonic()]
    jobs = start(clock=lambda: now[0], parallel_share=0.25, stall_ms=400.0)
    wanted.tell(wanted.jobs(1, 2))
    wait_until(lambda: jobs.pending)
    now[0] += 5
    assert jobs.next(alone=False) == (), "it is not known what a job takes"
    for _ in range(5):
        jobs.settled(stored(99, rows=LONG, seconds=0.2))
    jobs._credit = 0.0
    now[0] += 0.4
    assert jobs.next(alone=False) == (), "a quarter of 0.4 s"
    now[0] += 0.5
    assert [work.id for work in jobs.next(alone=False)] == [1]
    jobs.settled(stored(1))
    assert jobs.next(alone=False) == (), "what it gained is spent"
    now[0] += 5
    jobs.next(alone=False)
    assert jobs._credit <= 0.4, "no more than a stall is ever saved up"
    wait_until(lambda: wanted.offer() == (working.MOST, 0.2 / 0.25))
    now[0] += working.BUSY_FOR
    wait_until(lambda: wanted.offer() == (working.MOST, 0.0))


def test_a_busy_engine_without_a_share_takes_no_jobs(wanted: Wanted, start: Start) -> None:
    jobs = start(parallel_share=0.0)
    wait_until(lambda: bool(wanted.held))
    assert wanted.offer() == (working.MOST, 0.0)
    jobs.next(alone=False)
    wanted.tell(WatchReply())
    wait_until(lambda: wanted.offer() == (0, 0.0))


def test_an_engine_that_nobody_steps_takes_no_jobs(wanted: Wanted, start: Start) -> None:
    start(loop=Woken(running=False))
    wait_until(lambda: bool(wanted.held))
    assert wanted.offer() == (0, 0.0)


def test_a_job_that_would_hold_up_requests_waits_until_none_runs(
    wanted: Wanted, start: Start
) -> None:
    now = [time.monotonic()]
    jobs = start(clock=lambda: now[0], parallel_share=1.0, stall_ms=100.0)
    wanted.tell(wanted.jobs(1))
    wait_until(lambda: jobs.pending)
    for _ in range(5):
        jobs.settled(stored(99, rows=LONG, seconds=0.2))
    now[0] += 10
    assert jobs.next(alone=False) == ()
    assert [work.id for work in jobs.next(alone=True)] == [1]


def test_jobs_that_nobody_waits_for_are_not_done(wanted: Wanted, start: Start) -> None:
    jobs = start()
    wanted.tell(wanted.jobs(1, 2))
    wait_until(lambda: jobs.pending)
    wanted.tell(WatchReply(withdrawn=[1]))
    wait_until(lambda: len(jobs._queue) == 1)
    wanted.tell(wanted.jobs(3, micros=1))
    wait_until(lambda: len(jobs._queue) == 2)
    assert [work.id for work in jobs.next(alone=True)] == [2], "the third is too late"
    jobs.settled(stored(2))
    wait_until(lambda: wanted.declined == {3})


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({"capture_tokens": LONG - 1}, {}),
        ({}, {"begins": [8]}),
        ({}, {"heads": [LONG]}),
        ({}, {"roles": bytes([Role.FIRST])}),
    ],
    ids=["too long", "a piece", "no interior", "a leading one with a head"],
)
def test_jobs_that_cannot_be_done_are_declined(
    wanted: Wanted, start: Start, settings: dict[str, Any], columns: dict[str, Any]
) -> None:
    jobs = start(**settings)
    wanted.tell(wanted.jobs(4, **columns))
    wait_until(lambda: wanted.declined == {4})
    assert not jobs.pending


def test_an_engine_goes_on_with_the_next_daemon(
    wanted: Wanted, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "PAUSE_SECONDS", 0.01)
    jobs = start()
    wanted.tell(wanted.jobs(1))
    wait_until(lambda: jobs.pending)
    wanted.fake.all[Op.WATCH][-1].hang_up()
    wait_until(lambda: not jobs.pending)
    wait_again(wanted.model)
    wanted.tell(wanted.jobs(1, 2))
    wait_until(lambda: jobs.pending)
    assert [work.id for work in jobs.next(alone=True)] == [1, 2]


def test_an_error_of_ours_ends_the_help_and_not_the_engine(
    wanted: Wanted, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(Jobs, "_takes", broken)
    jobs = start()
    wanted.tell(wanted.jobs(1))
    jobs._thread.join(30)
    assert not jobs._thread.is_alive()
    assert not jobs.pending
    assert "no longer computing for other nodes" in caplog.text


# Combining.

ROWS = 3


def missing(model: Model) -> list[Missing]:
    return [Missing(spec_of(model, 64 + i), ids(64 + i, seed=i)) for i in range(ROWS)]


def plan_reply(*workers: int, own: tuple[int, ...], seconds: float = 20.0) -> PlanReply:
    micros = int(seconds * 1e6)
    return PlanReply(
        plan=4 if any(workers) else 0,
        micros=micros,
        alone_micros=2 * micros,
        workers=workers,
        row_micros=[micros] * ROWS,
        own_rows=own,
        own_begins=[0] * len(own),
        own_ends=[64 + row for row in own],
    )


SHARED = plan_reply(1, 0, 2, own=(1,))


@pytest.fixture
def combiner(model: Model) -> Iterator[Combiner]:
    made = Combiner(model, EngineTally())
    made.start()
    yield made
    made.close()
    for thread in made._threads:
        thread.join(30)
        assert not thread.is_alive()


def keys(model: Model) -> list[bytes]:
    found = [model.segment_key(one.spec, one.tokens) for one in missing(model)]
    return [key for key in found if key is not None]


def nothing_new(request: Request) -> None:
    request.reply(WatchReply(open=2))


def test_a_request_waits_for_the_plan_and_not_for_segments(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    held: list[Request] = []
    fake.on(Op.PLAN, held.append)
    fake.on(Op.WATCH, nothing_new)
    assert not combiner.asking("r")
    combiner.ask("r", missing(model))
    wait_until(lambda: bool(held))
    assert combiner.asking("r")
    held[0].reply(SHARED)
    wait_until(lambda: not combiner.asking("r"))
    a, b, c = keys(model)
    assert combiner.of("r") == Away(True, frozenset({a, c}), frozenset({b}))
    assert combiner.of("another") == Away(True)


def test_what_comes_and_what_is_lost_is_told_once(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    told: list[WatchReply] = []

    def watched(request: Request) -> None:
        request.reply(told.pop() if told else WatchReply(open=2))

    fake.on(Op.PLAN, lambda request: request.reply(SHARED))
    fake.on(Op.WATCH, watched)
    combiner.ask("r", missing(model))
    a, b, c = keys(model)
    told.append(WatchReply(1, [2], bytes([Progress.COMMITTED])))
    wait_until(lambda: combiner.of("r").came == {c})
    assert combiner.news() == (), "nobody was told to wait for it"
    assert combiner.of("r", claim=True).waiting == {a}
    assert combiner.news() == ()
    told.append(WatchReply(0, [0], bytes([Progress.ABORTED])))
    wait_until(lambda: combiner.of("r").lost == {a})
    assert combiner.news() == (News("r", frozenset(), frozenset({a})),)
    assert combiner.news() == ()
    assert combiner.of("r") == Away(
        True, frozenset(), frozenset({a, b}), frozenset({c}), frozenset({a})
    )
    wait_until(lambda: combiner._waiting == 0)


def test_without_others_everything_is_the_engines_own(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    fake.on(Op.PLAN, lambda request: request.reply(plan_reply(0, 0, 0, own=(0, 1, 2))))
    combiner.ask("r", missing(model))
    wait_until(lambda: not combiner.asking("r"))
    assert combiner.of("r") == Away(True)
    assert Op.WATCH not in fake.all
    wait_until(lambda: combiner._waiting == 0)


@pytest.mark.parametrize("at", ["plan", "watch"])
def test_a_daemon_that_is_lost_leaves_everything_to_the_engine(
    fake: FakeDaemon, model: Model, combiner: Combiner, at: str
) -> None:
    fake.on(Op.PLAN, Request.hang_up if at == "plan" else lambda request: request.reply(SHARED))
    fake.on(Op.WATCH, Request.hang_up)
    combiner.ask("r", missing(model))
    wait_until(lambda: not combiner.asking("r"))
    wait_until(lambda: not combiner.of("r").waiting)
    a, b, c = keys(model)
    away = combiner.of("r", claim=True)
    assert away.came == frozenset()
    assert away.own == (frozenset() if at == "plan" else {a, b, c})
    wait_until(lambda: combiner._waiting == 0)


def test_late_segments_are_the_engines_own(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    fake.on(Op.PLAN, lambda request: request.reply(plan_reply(1, 0, 2, own=(1,), seconds=0.01)))
    fake.on(Op.WATCH, nothing_new)
    combiner.ask("r", missing(model))
    wait_until(lambda: not combiner.asking("r"))
    combiner.of("r", claim=True)
    wait_until(lambda: not combiner.of("r").waiting)
    a, _, c = keys(model)
    assert [news.lost for news in combiner.news()] == [{a, c}]


def test_a_request_that_ends_lets_go_of_its_plan(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    fake.on(Op.PLAN, lambda request: request.reply(SHARED))
    fake.on(Op.WATCH, nothing_new)
    combiner.ask("r", missing(model))
    wait_until(lambda: not combiner.asking("r"))
    combiner.drop("r")
    combiner.drop("r")
    wait_until(lambda: combiner._waiting == 0)
    last = fake.all[Op.WATCH][-1].message
    assert isinstance(last, WatchRequest)
    assert (last.plan, last.end) == (4, 1)


def test_so_many_requests_wait_and_no_more(
    fake: FakeDaemon, model: Model, combiner: Combiner
) -> None:
    fake.on(Op.PLAN, lambda request: request.reply(SHARED))
    fake.on(Op.WATCH, nothing_new)
    for i in range(combining.MOST + 1):
        combiner.ask(str(i), missing(model))
    assert combiner._tally.snapshot()["plans_refused"] == 1
    assert not combiner.asking(str(combining.MOST)), "it is computed here"
    wait_until(lambda: not combiner.asking("15"))
    combiner.drop("3")
    wait_until(lambda: combiner._waiting == combining.MOST - 1)
    combiner.ask("next", missing(model))
    wait_until(lambda: bool(combiner.of("next").waiting))


def test_an_error_of_ours_keeps_no_request_waiting(
    fake: FakeDaemon,
    model: Model,
    combiner: Combiner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Model, "plan", broken)
    combiner.ask("r", missing(model))
    wait_until(lambda: not combiner.asking("r"))
    assert "other nodes are no longer asked" in caplog.text
    combiner.ask("s", missing(model))
    assert not combiner.asking("s")
