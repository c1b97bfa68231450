"""Plans and watches: what is asked, what is believed of an answer, and every way to get none."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from client_samples import SMALL, Connect, at_most, ids, spec_of, wait_again, wait_until
from fake_daemon import FakeDaemon, Request
from running import Daemon
from spliced_connector.client import (
    Alone,
    Following,
    Missing,
    Model,
    PlanNews,
    WorkPlan,
)
from spliced_connector.client.parallel import LATE_LEAST
from spliced_connector.client.terms import Progress
from spliced_connector.errors import Code
from spliced_connector.wire import (
    Op,
    PlanReply,
    PlanRequest,
    WatchReply,
    WatchRequest,
)

ROWS = 3


def missing(model: Model, n: int = ROWS) -> list[Missing]:
    return [Missing(spec_of(model, 64 + i), ids(64 + i, seed=i)) for i in range(n)]


def keys(model: Model, of: Sequence[Missing]) -> list[bytes]:
    found = [model.segment_key(one.spec, one.tokens) for one in of]
    return [key for key in found if key is not None]


def own(*rows: int) -> dict[str, Any]:
    """Columns of rows that the engine computes itself."""
    return {
        "own_rows": list(rows),
        "own_begins": [0] * len(rows),
        "own_ends": [64 + row for row in rows],
    }


SHARED = PlanReply(9, 0, 80_000, 200_000, [2, 0, 1], [70_000, 0, 80_000], combine="b", **own())
"""Two rows are others', one is here."""


def model_of(fake: FakeDaemon, connect: Connect, **options: float) -> Model:
    model = connect(fake.socket, **options).model(SMALL)
    assert model.wait_attached(10)
    return model


def planned(fake: FakeDaemon, model: Model, reply: PlanReply = SHARED) -> WorkPlan | None:
    fake.on(Op.PLAN, lambda request: request.reply(reply))
    return model.plan(missing(model), wait=10.0)


def test_a_plan_says_who_computes_what(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    mixed = replace(SHARED, workers=[2, 0, 0], row_micros=[70_000, 0, 90_000], **own(2))
    fake.on(Op.PLAN, lambda request: request.reply(mixed))
    plan = model.plan(missing(model), queued=0.5, within=2.0, wait=10.0)
    request = fake.next(Op.PLAN).message
    assert isinstance(request, PlanRequest)
    assert (request.queued_micros, request.within_ms, request.pieces) == (500_000, 2000, 0)
    assert [bytes(key) for key in request.keys] == keys(model, missing(model))
    assert list(request.tokens) == [64, 65, 66]
    assert plan is not None
    assert (plan.id, plan.alone, plan.combine) == (9, Alone.NONE, "b")
    assert (plan.seconds, plan.alone_seconds) == (0.08, 0.2)
    a, _, c = keys(model, missing(model))
    assert plan.away == {a}
    assert plan.own_keys == (c,)
    assert [(row.worker, row.own, row.seconds) for row in plan.rows] == [
        (2, False, 0.07),
        (0, False, 0.0),
        (0, True, 0.09),
    ]


def test_the_token_ids_of_all_rows_are_in_staging(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    seen: list[bytes] = []

    def look(request: Request) -> None:
        assert isinstance(request.message, PlanRequest)
        staging = model._keeper.current
        assert staging is not None
        at, n = request.message.token_off, 4 * sum(request.message.tokens)
        seen.append(bytes(staging.staging.region[at : at + n]))
        request.reply(SHARED)

    fake.on(Op.PLAN, look)
    assert model.plan(missing(model), wait=10.0) is not None
    every = [token for one in missing(model) for token in one.tokens]
    assert seen == [b"".join(token.to_bytes(4, "little") for token in every)]
    attachment = model._keeper.current
    assert attachment is not None
    assert attachment.staging.whole(), "they are free again"


def test_a_plan_that_begins_nothing_is_the_engines_own(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    alone = PlanReply(0, Alone.NO_WORKERS, 200, 200, [0] * 3, [50, 100, 200], **own(1, 0, 2))
    plan = planned(fake, model, alone)
    assert plan is not None
    assert (plan.id, plan.alone, plan.away) == (0, Alone.NO_WORKERS, frozenset())
    assert plan.own == (1, 0, 2)
    following = Following(model, plan)
    assert not following.left
    assert following.watch(10.0) == PlanNews()
    following.close()
    assert Op.WATCH not in fake.all, "there is nothing to watch"


@pytest.mark.parametrize(
    "reply",
    [
        replace(SHARED, workers=[1, 2], row_micros=[1, 1]),
        replace(SHARED, **own(7)),
        replace(SHARED, **own(0)),
        replace(SHARED, workers=[0, 0, 0], **own(1, 1)),
        replace(SHARED, workers=[0, 0, 0], own_rows=[1], own_begins=[8], own_ends=[65]),
        replace(SHARED, workers=[0, 0, 0], own_rows=[1], own_begins=[0], own_ends=[64]),
        replace(SHARED, plan=0),
    ],
    ids=["rows", "no such row", "other's", "twice", "piece", "left piece", "others without a plan"],
)
def test_a_plan_that_makes_no_sense_is_none(
    fake: FakeDaemon, connect: Connect, reply: PlanReply
) -> None:
    model = model_of(fake, connect)
    assert planned(fake, model, reply) is None
    counters = model._keeper.tally.snapshot()
    assert counters.malformed == 1


def test_what_can_never_be_planned_is_not_asked(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    one = missing(model, 1)[0]
    assert model.plan([]) is None
    assert model.plan([one] * 257) is None
    assert model.jobs(65, 0.0) is None
    assert Op.PLAN not in fake.all
    assert Op.WATCH not in fake.all
    assert model._keeper.tally.snapshot().invalid == 3


def test_a_watch_says_what_became_of_rows(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    plan = planned(fake, model)
    assert plan is not None
    a, b, c = keys(model, missing(model))
    told = [Progress.COMMITTED, Progress.LATE, Progress.ABORTED]
    fake.on(Op.WATCH, lambda request: request.reply(WatchReply(0, [0, 1, 2], bytes(told))))
    assert model.watch(plan, 0.25) == PlanNews(frozenset({a}), frozenset({b, c}))
    request = fake.next(Op.WATCH)
    assert isinstance(request.message, WatchRequest)
    assert (request.message.plan, request.message.wait_ms, request.message.end) == (9, 250, 0)
    assert request.header.deadline * 7 / 8 >= 250_000, "the daemon uses seven eighths of it"
    piece = WatchReply(1, [0], bytes([Progress.PIECE]))
    fake.on(Op.WATCH, lambda request: request.reply(piece))
    assert model.watch(plan, 0.0, end=True) == PlanNews(), "a piece is nothing final"


@dataclass
class Others:
    """A daemon's answers about a plan, in turn; the last one again and again."""

    answers: list[PlanNews | None]
    asked: list[tuple[float, bool]] = field(default_factory=list)

    def watch(self, plan: WorkPlan, wait: float, end: bool = False) -> PlanNews | None:
        self.asked.append((wait, end))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_what_is_followed_comes_or_is_lost(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    plan = planned(fake, model)
    assert plan is not None
    a, b, c = keys(model, missing(model))
    others = Others([PlanNews(frozenset({a, b})), PlanNews(), PlanNews(lost=frozenset({a, c}))])
    following = Following(others, plan)
    assert following.left == {a, c}
    assert following.watch(1.0) == PlanNews(frozenset({a})), "b was never away"
    assert following.watch(1.0) == PlanNews()
    assert following.watch(1.0) == PlanNews(lost=frozenset({c})), "what came stays"
    assert following.watch(1.0) == PlanNews()
    assert len(others.asked) == 3
    gone = Following(Others([None]), plan)
    assert gone.watch(1.0) == PlanNews(lost=frozenset({a, c})), "no daemon"
    left = Others([PlanNews()])
    Following(left, plan).close()
    assert left.asked == [(0.0, True)], "others are told to stop"


def test_what_does_not_come_in_time_is_lost(
    fake: FakeDaemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(fake, connect)
    plan = planned(fake, model)
    assert plan is not None
    now = [100.0]
    monkeypatch.setattr("spliced_connector.client.parallel.time.monotonic", lambda: now[0])
    others = Others([PlanNews(), PlanNews(frozenset(list(plan.away)[:1]))])
    following = Following(others, plan)
    assert following.watch(60.0) == PlanNews()
    assert math.isclose(others.asked[0][0], plan.seconds + LATE_LEAST)
    now[0] += plan.seconds + LATE_LEAST
    news = following.watch(60.0)
    assert others.asked[1] == (0.0, True), "one last look, and the plan ends"
    assert len(news.committed) == len(news.lost) == 1
    assert not following.left


def jobs_reply(model: Model, *numbers: int, begins: int = 0) -> WatchReply:
    wanted = [missing(model)[i] for i in numbers]
    return WatchReply(
        open=len(wanted),
        jobs=[70 + i for i in numbers],
        keys=keys(model, wanted),
        roles=bytes(one.spec.role for one in wanted),
        heads=[one.spec.head for one in wanted],
        tails=[one.spec.tail for one in wanted],
        begins=[begins] * len(wanted),
        lefts=[bytes(32)] * len(wanted),
        micros=[3_000_000] * len(wanted),
        tokens=[one.spec.tokens for one in wanted],
        ids=[token for one in wanted for token in one.tokens],
        withdrawn=[66],
    )


def test_jobs_are_segments_to_compute(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    fake.on(Op.WATCH, lambda request: request.reply(jobs_reply(model, 0, 2)))
    before = time.monotonic()
    news = model.jobs(4, 0.5, queued=0.1)
    request = fake.next(Op.WATCH).message
    assert isinstance(request, WatchRequest)
    assert (request.plan, request.jobs, request.queued_micros) == (0, 4, 100_000)
    assert (request.wait_ms, list(request.declined), request.end) == (500, [], 0)
    assert news is not None
    assert news.withdrawn == {66}
    want = missing(model)
    assert [(job.id, job.spec, list(job.tokens), job.begin) for job in news.jobs] == [
        (70 + i, want[i].spec, list(want[i].tokens), 0) for i in (0, 2)
    ]
    assert [job.key for job in news.jobs] == keys(model, [want[0], want[2]])
    assert all(before + 3.0 <= job.deadline <= time.monotonic() + 3.0 for job in news.jobs)
    fake.on(Op.WATCH, lambda request: request.reply(WatchReply()))
    assert model.jobs(0, 0.0, declined=news.jobs, end=True) is not None
    request = fake.next(Op.WATCH).message
    assert isinstance(request, WatchRequest)
    assert (list(request.declined), request.end) == ([70, 72], 1)


def test_a_job_of_no_known_role_is_no_job(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    odd = replace(jobs_reply(model, 0), roles=b"\x07")
    fake.on(Op.WATCH, lambda request: request.reply(odd))
    assert model.jobs(1, 0.0) is None
    assert model._keeper.tally.snapshot().malformed == 1


def test_a_row_of_no_plan_ends_the_connection(fake: FakeDaemon, connect: Connect) -> None:
    model = model_of(fake, connect)
    plan = planned(fake, model)
    assert plan is not None
    fake.on(Op.WATCH, lambda request: request.reply(WatchReply(0, [3], b"\1")))
    assert model.watch(plan, 0.0) is None
    assert model._keeper.tally.snapshot().malformed == 1


def test_what_belongs_to_a_former_connection_is_not_asked(
    fake: FakeDaemon, connect: Connect
) -> None:
    """Numbers of plans and jobs begin anew with each."""
    model = model_of(fake, connect)
    plan = planned(fake, model)
    assert plan is not None
    fake.on(Op.WATCH, lambda request: request.reply(jobs_reply(model, 0)))
    news = model.jobs(1, 0.0)
    assert news is not None
    fake.next(Op.WATCH).hang_up()
    wait_again(model)
    assert model.watch(plan, 0.0) is None
    assert len(fake.all[Op.WATCH]) == 1
    model.jobs(1, 0.0, declined=news.jobs)
    request = fake.next(Op.WATCH).message
    assert isinstance(request, WatchRequest)
    assert list(request.declined) == []


CALLS: dict[str, Callable[[Model, WorkPlan], object]] = {
    "plan": lambda model, _: model.plan(missing(model)),
    "watch": lambda model, plan: model.watch(plan, 0.05),
    "jobs": lambda model, _: model.jobs(1, 0.05),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("trouble", ["stalled", "refuses", "gone"])
def test_a_daemon_in_trouble_costs_a_bounded_wait(
    fake: FakeDaemon, connect: Connect, name: str, trouble: str
) -> None:
    model = model_of(fake, connect, timeout=0.05)
    plan = planned(fake, model)
    assert plan is not None
    for op in (Op.PLAN, Op.WATCH):
        if trouble == "stalled":
            fake.on(op, lambda _: None)
        elif trouble == "refuses":  # as a daemon does that has no such operation
            fake.on(op, lambda request: request.refuse(Code.UNSUPPORTED))
        else:
            fake.on(op, Request.hang_up)
    with at_most(0.2):
        assert CALLS[name](model, plan) is None


def test_a_long_watch_holds_up_nobody_else(fake: FakeDaemon, connect: Connect) -> None:
    """And is answered long before its time."""
    model = model_of(fake, connect, timeout=10.0)
    held: list[Request] = []
    fake.on(Op.WATCH, held.append)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(model.jobs(1, 20.0)))
    thread.start()
    wait_until(lambda: bool(held))
    with at_most(0.0):
        assert planned(fake, model) is not None
    held[0].reply(jobs_reply(model, 0))
    with at_most(0.0):
        thread.join()
    assert answers[0] is not None


def test_a_daemon_without_a_cluster_gives_no_work_away(daemon: Daemon, connect: Connect) -> None:
    """Neither one that knows plans, nor one that answers they are not supported."""
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    assert model.wait_attached(10)
    plan = model.plan(missing(model))
    assert plan is None or plan.id == 0
