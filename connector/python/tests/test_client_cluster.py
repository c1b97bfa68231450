"""Segments of one prompt, computed by clients of two daemons."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from client_samples import PATIENCE, SMALL, Connect, fill, ids, spec_of, wait_until
from running import Daemon, StartCluster, StartDaemon
from spliced_connector.client import Alone, Following, Job, Missing, Model, NewSegment, WorkPlan
from spliced_connector.errors import Code

SLOW = "-prefill-speed=5"
"""Tokens a second: whatever others do is quicker than to do it here."""

SEGMENTS = 6
TOKENS = 100


def missing(model: Model, seed: int = 0) -> list[Missing]:
    return [Missing(spec_of(model, TOKENS), ids(TOKENS, seed=seed + i)) for i in range(SEGMENTS)]


def segment(model: Model, job: Job | Missing) -> NewSegment:
    """What a segment's computation gives: bytes that its tokens decide."""
    parts = fill(model.profile.segment_layout(job.spec), job.tokens[0])
    return NewSegment(job.spec, job.tokens, parts)


class Helper:
    """A worker on a thread of its own, that computes, declines or just holds what it is given."""

    def __init__(self, model: Model, does: str = "compute", by: Model | None = None) -> None:
        self.taken: list[Job] = []
        self.withdrawn: set[int] = set()
        self._model, self._does, self._by = model, does, by or model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        declined: list[Job] = []
        while not self._over.is_set():
            news = self._model.jobs(2, 0.2, declined)
            declined = []
            if news is None:
                self._over.wait(0.05)
                continue
            self.withdrawn |= news.withdrawn
            for job in news.jobs:
                self.taken.append(job)
                if self._does == "compute":
                    assert self._by.publish([segment(self._by, job)]) == [Code.OK]
                elif self._does == "decline":
                    declined.append(job)
        self._model.jobs(0, 0.0, end=True)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def helpers() -> Iterator[list[Helper]]:
    made: list[Helper] = []
    yield made
    for helper in made:
        helper.end()


def model_at(daemon: Daemon, connect: Connect, tenant: tuple[str, str] = ("", "")) -> Model:
    model = connect(daemon.socket, tenants=(tenant,)).model(SMALL, block_tokens=16)
    assert model.wait_attached(10)
    return model


def shared(model: Model, wanted: Sequence[Missing]) -> WorkPlan:
    """A plan that others have a part in; they may have to find each other first."""
    plans: list[WorkPlan] = []

    def planned() -> bool:
        plan = model.plan(wanted)
        assert plan is not None
        if plan.id:
            plans.append(plan)
        return bool(plan.id)

    wait_until(planned)
    return plans[0]


def follow(model: Model, plan: WorkPlan) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """What came and what was lost."""
    following = Following(model, plan)
    came = lost = frozenset[bytes]()
    while following.left:
        news = following.watch(1.0)
        came, lost = came | news.committed, lost | news.lost
    return came, lost


def check(model: Model, wanted: Sequence[Missing], keys: frozenset[bytes]) -> None:
    """The segments with these keys can be acquired, with the bytes that their tokens decide."""
    for one in wanted:
        key = model.segment_key(one.spec, one.tokens)
        if key not in keys:
            continue
        (held,) = model.acquire([key])
        assert held is not None
        want = segment(model, one).parts
        assert [bytes(held.part(i)) for i in range(len(want))] == want
        assert held.release()


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_others_compute_comes_here(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper], nodes: int
) -> None:
    daemons = start_cluster(SLOW, nodes=nodes)
    here, there = model_at(daemons[0], connect), model_at(daemons[-1], connect)
    helpers.append(Helper(there))
    wanted = missing(here)
    plan = shared(here, wanted)
    assert plan.alone == Alone.NONE
    assert plan.away
    assert plan.own, "this engine has its share"
    assert plan.seconds < plan.alone_seconds
    came, lost = follow(here, plan)
    assert (came, lost) == (plan.away, frozenset())
    check(here, wanted, came)
    assert {job.key for job in helpers[0].taken} == plan.away
    again = here.plan([one for one in wanted if here.segment_key(one.spec, one.tokens) in came])
    assert again is not None
    assert (again.id, again.alone) == (0, Alone.HERE)


def test_another_connection_may_publish(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper]
) -> None:
    """As ranks do for the scheduler that has taken the job."""
    daemons = start_cluster(SLOW)
    here, there = model_at(daemons[0], connect), model_at(daemons[1], connect)
    helpers.append(Helper(there, by=model_at(daemons[1], connect)))
    wanted = missing(here)
    plan = shared(here, wanted)
    came, lost = follow(here, plan)
    assert (came, lost) == (plan.away, frozenset())
    check(here, wanted, came)


def test_what_is_declined_is_lost_at_once(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper]
) -> None:
    daemons = start_cluster(SLOW)
    here, there = model_at(daemons[0], connect), model_at(daemons[1], connect)
    helpers.append(Helper(there, "decline"))
    plan = shared(here, missing(here))
    assert follow(here, plan) == (frozenset(), plan.away)


@pytest.mark.parametrize("what", ["client", "daemon"])
def test_who_dies_loses_what_it_was_given(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper], what: str
) -> None:
    daemons = start_cluster(SLOW)
    here = model_at(daemons[0], connect)
    client = connect(daemons[1].socket)
    there = client.model(SMALL, block_tokens=16)
    assert there.wait_attached(10)
    helpers.append(Helper(there, "hold"))
    plan = shared(here, missing(here))
    wait_until(lambda: bool(helpers[0].taken))
    if what == "client":
        client.close()
    else:
        daemons[1].kill()
    assert follow(here, plan) == (frozenset(), plan.away)


def test_a_plan_that_ends_takes_its_jobs_back(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper]
) -> None:
    daemons = start_cluster(SLOW)
    here, there = model_at(daemons[0], connect), model_at(daemons[1], connect)
    helpers.append(Helper(there, "hold"))
    plan = shared(here, missing(here))
    wait_until(lambda: bool(helpers[0].taken))
    Following(here, plan).close()
    wait_until(lambda: helpers[0].withdrawn >= {job.id for job in helpers[0].taken})
    assert here.watch(plan, 0.0) is None, "nobody knows it any more"


def test_token_ids_stay_where_the_tenant_does_not_allow_it(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper]
) -> None:
    """Beside a tenant that does, at the same daemons."""
    daemons = start_cluster(SLOW)
    blue = ("blue", "blue-token")
    here, there = (model_at(daemon, connect, blue) for daemon in daemons)
    helpers.append(Helper(there))
    open_here, open_there = (model_at(daemon, connect) for daemon in daemons)
    helpers.append(Helper(open_there))
    shared(open_here, missing(open_here))
    plan = here.plan(missing(here))
    assert plan is not None
    assert (plan.id, plan.alone, len(plan.own)) == (0, Alone.NOT_ALLOWED, SEGMENTS)
    assert not helpers[0].taken


def test_engines_of_one_node_help_each_other(
    start_cluster: StartCluster, connect: Connect, helpers: list[Helper]
) -> None:
    [daemon] = start_cluster(SLOW, nodes=1)
    here, there = model_at(daemon, connect), model_at(daemon, connect)
    helpers.append(Helper(there))
    plan = shared(here, missing(here))
    assert follow(here, plan) == (plan.away, frozenset())


def test_jobs_are_for_tenants_that_allow_them(start_daemon: StartDaemon, connect: Connect) -> None:
    daemon = start_daemon(SLOW)
    here, there = model_at(daemon, connect), model_at(daemon, connect)
    assert there.jobs(2, 0.0) is None
    plan = here.plan(missing(here))
    assert plan is None or (plan.id, plan.alone) == (0, Alone.NOT_ALLOWED)


def test_a_worker_that_does_not_ask_again_is_none(
    start_cluster: StartCluster, connect: Connect
) -> None:
    [daemon] = start_cluster(SLOW, nodes=1)
    here, there = model_at(daemon, connect), model_at(daemon, connect)
    assert there.jobs(2, 0.0) is not None
    plan = shared(here, missing(here))
    assert there.jobs(0, 0.0, end=True) is not None
    assert follow(here, plan) == (frozenset(), plan.away)
    again = here.plan(missing(here, seed=50))
    assert again is not None
    assert (again.id, again.alone) == (0, Alone.NO_WORKERS)
    assert PATIENCE > 5
