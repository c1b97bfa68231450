"""Requests that others help with in vLLM's scheduler, against a daemon that says what a test
wants and without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from client_samples import SMALL, Connect, wait_until
from fake_daemon import FakeDaemon, Request
from spliced_connector.client import Way
from spliced_connector.client.terms import Progress
from spliced_connector.model import Choice, divide
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.parallel.combiner import Combiner
from spliced_connector.vllm.plans import Blocks, News, Outcome
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.settings import Parallel, Settings
from spliced_connector.vllm.splice_plans import SplicePlan
from spliced_connector.vllm.splice_scheduler import SpliceScheduler
from spliced_connector.wire import (
    AdviseReply,
    AdviseRequest,
    MatchReply,
    MatchRequest,
    Op,
    PlanReply,
    PlanRequest,
    WatchReply,
)
from test_vllm_splice_scheduler import BLOCK, BLOCKS, ENGINE, SEGMENT, STEP, asked, told_of

N = 4
WHOLE = N * SEGMENT - 8


class Scripted:
    """A daemon that holds nothing and wants nothing; every segment but the second is another
    engine's until the test says what becomes of it."""

    def __init__(self, fake: FakeDaemon) -> None:
        self.plans: list[Request] = []
        self.hold = False
        """Whether plans are left to the test."""
        self.news: list[WatchReply] = []
        self.held: set[int] = set()  # segments by number
        fake.on(Op.MATCH, self._match)
        fake.on(Op.ADVISE, self._advise)
        fake.on(Op.PLAN, self._plan)
        fake.on(Op.WATCH, self._watch)

    def answer(self, request: Request) -> None:
        assert isinstance(request.message, PlanRequest)
        rows = len(request.message.keys)
        workers = [0 if i == 1 else i + 1 for i in range(rows)]
        request.reply(
            PlanReply(
                plan=3, micros=60_000_000, alone_micros=90_000_000, workers=workers,
                row_micros=[1000] * rows, own_rows=[1], own_begins=[0],
                own_ends=[request.message.tokens[1]],
            )
        )  # fmt: skip

    def tell(self, what: Progress, *rows: int) -> None:
        self.news.append(WatchReply(0, rows, bytes([what] * len(rows))))

    def _match(self, request: Request) -> None:
        assert isinstance(request.message, MatchRequest)
        n = len(request.message.keys)
        status = bytes(int(i in self.held) for i in range(n))
        request.reply(MatchReply(0, 0, 0, 1, 0, status, bytes(n), bytes(n), [0] * n))

    def _advise(self, request: Request) -> None:
        assert isinstance(request.message, AdviseRequest)
        n = len(request.message.segment_begin)
        request.reply(
            AdviseReply(
                0, Way.RECOMPUTE, [0.0, -1.0, -1.0, -1.0], segment_admit=bytes(n),
                segment_reason=bytes(n),
            )
        )  # fmt: skip

    def _plan(self, request: Request) -> None:
        self.plans.append(request)
        if not self.hold:
            self.answer(request)

    def _watch(self, request: Request) -> None:
        request.reply(self.news.pop(0) if self.news else WatchReply(open=3))


@pytest.fixture
def scripted(fake: FakeDaemon) -> Scripted:
    return Scripted(fake)


Half = Callable[..., SpliceScheduler]


@pytest.fixture
def half(fake: FakeDaemon, scripted: Scripted, connect: Connect) -> Iterator[Half]:
    made: list[SpliceScheduler] = []

    def make(parallel: Parallel = Parallel.COMBINE, **settings: Any) -> SpliceScheduler:
        model = connect(fake.socket, timeout=10.0).model(SMALL, block_tokens=BLOCK)
        assert model.wait_attached(10)
        given = Settings("w", parallel=parallel, **{"parallel_tokens": 600, **settings})
        made.append(SpliceScheduler(Session(given, ENGINE, model, EngineTally(), BLOCK)))
        made[-1].bind(cast(Any, type("Manager", (), {"block_pool": None})()))
        return made[-1]

    yield make
    for one in made:
        one.close()
        if isinstance(one._combiner, Combiner):
            for thread in one._combiner._threads:
                thread.join(30)


def planned(half: SpliceScheduler) -> SplicePlan:
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    return plan


def claim(half: SpliceScheduler, request: Any, blocks: Blocks = BLOCKS) -> SplicePlan:
    """Matches until the plan is there, and claims what is offered."""
    wait_until(lambda: half.match(request, 0)[0] is not None)
    tokens, later = half.match(request, 0)
    assert (tokens, later) == (WHOLE, True)
    half.allocated(request, blocks, tokens or 0)
    return planned(half)


def hear(half: SpliceScheduler) -> list[News]:
    """The news of the first step that has some."""
    heard: list[News] = []

    def step() -> bool:
        heard.extend(planned(half).news)
        return bool(heard)

    wait_until(step)
    return heard


def keys_of(half: SpliceScheduler, request: Any) -> list[bytes]:
    model, ids = half._session.model, request.prompt_token_ids
    cuts = list(range(0, len(ids), SEGMENT))
    return [p.key or b"" for p in divide(model.profile, model.salt or b"", ids, cuts, 8).pieces]


HIT, ALONE = Choice.HIT, Choice.ISOLATED


def test_the_step_loop_does_not_wait_for_a_plan(scripted: Scripted, half: Half) -> None:
    scripted.hold = True
    mode, request = half(), asked("r", [1, 2, 3, 4])
    assert mode.match(request, 0) == (None, False)
    assert mode.match(request, 0) == (None, False)
    other = asked("s", [5])
    assert mode.match(other, 0) == (0, False), "others are served"
    wait_until(lambda: bool(scripted.plans))
    scripted.answer(scripted.plans[0])
    load = claim(mode, request).loads[0]
    a, _, c, d = keys_of(mode, request)
    assert load.splice.choices == (HIT, ALONE, HIT, HIT)
    assert load.away == {a, c, d}
    assert len(scripted.plans) == 1, "asked once"


def test_what_comes_and_what_is_lost_is_the_workers_to_know(scripted: Scripted, half: Half) -> None:
    mode, request = half(), asked("r", [1, 2, 3, 4])
    claim(mode, request)
    a, _, c, d = keys_of(mode, request)
    scripted.tell(Progress.COMMITTED, 0, 3)
    assert hear(mode) == [News("r", frozenset({a, d}), frozenset())]
    scripted.tell(Progress.LATE, 2)
    assert hear(mode) == [News("r", frozenset(), frozenset({c}))]
    mode.settled(Outcome(done=frozenset({"r"})))
    told = told_of(mode, request)
    assert (told["elsewhere"], told["late"], told["captured"]) == (2, 1, 2)
    interiors = [SEGMENT, SEGMENT - 16]
    assert told["reused"] == sum(interiors), "the first and the last"
    assert isinstance(mode._combiner, Combiner)
    assert not mode._combiner._requests


def test_what_is_known_before_the_claim_is_part_of_it(scripted: Scripted, half: Half) -> None:
    mode, request = half(), asked("r", [1, 2, 3, 4])
    assert mode.match(request, 0) == (None, False)
    wait_until(lambda: mode.match(request, 0)[0] is not None)
    _a, _, _c, d = keys_of(mode, request)
    scripted.tell(Progress.COMMITTED, 0)
    scripted.tell(Progress.ABORTED, 2)
    combiner = mode._combiner
    assert isinstance(combiner, Combiner)
    wait_until(lambda: combiner.of("r").waiting == {d})
    plan = claim(mode, request)
    assert plan.loads[0].splice.choices == (HIT, ALONE, ALONE, HIT)
    assert plan.loads[0].away == {d}
    assert plan.news == ()


def test_a_segment_that_is_lost_between_match_and_blocks_is_captured(
    scripted: Scripted, half: Half
) -> None:
    mode, request = half(), asked("r", [1, 2, 3, 4])
    wait_until(lambda: mode.match(request, 0)[0] is not None)
    tokens, _ = mode.match(request, 0)
    scripted.tell(Progress.ABORTED, 3)
    combiner = mode._combiner
    assert isinstance(combiner, Combiner)
    wait_until(lambda: bool(combiner.of("r").lost))
    mode.allocated(request, BLOCKS, tokens or 0)
    load = planned(mode).loads[0]
    assert load.splice.choices == (HIT, ALONE, HIT, ALONE)
    assert load.splice.tokens == WHOLE


def test_a_request_that_ends_waits_no_more(scripted: Scripted, half: Half) -> None:
    mode, request = half(), asked("r", [1, 2, 3, 4])
    claim(mode, request)
    mode.finished(request)
    combiner = mode._combiner
    assert isinstance(combiner, Combiner)
    wait_until(lambda: combiner._waiting == 0)
    assert planned(mode).news == ()


@pytest.mark.parametrize(
    ("settings", "segments", "held"),
    [
        ({"parallel": Parallel.OFF}, [1, 2, 3, 4], set()),
        ({"parallel": Parallel.WORK}, [1, 2, 3, 4], set()),
        ({"parallel_tokens": N * SEGMENT + 1}, [1, 2, 3, 4], set()),
        ({"capture_tokens": SEGMENT - 1}, [1, 2, 3, 4], set()),
        ({"parallel_tokens": 1}, [1, 2, 3, 4], {0, 1, 2}),
        ({"parallel_tokens": 1}, [1, 1, 1, 1], {0, 1, 2, 3}),
    ],
    ids=["off", "works", "too little", "too long", "one is missing", "nothing is missing"],
)
def test_others_are_asked_for_much_only(
    scripted: Scripted, half: Half, settings: dict[str, Any], segments: list[int], held: set[int]
) -> None:
    scripted.held = held
    mode, request = half(**settings), asked("r", segments)
    assert mode.match(request, 0)[0] is not None
    assert not scripted.plans


def test_equal_segments_are_asked_for_once(scripted: Scripted, half: Half) -> None:
    scripted.hold = True
    mode = half(parallel_tokens=1)
    assert mode.match(asked("r", [1, 2, 2, 3]), 0) == (None, False)
    wait_until(lambda: bool(scripted.plans))
    message = scripted.plans[0].message
    assert isinstance(message, PlanRequest)
    assert len(message.keys) == 3


def test_a_prompt_that_is_not_worth_a_splice_is_not_asked_for(
    scripted: Scripted, half: Half
) -> None:
    mode = half(parallel_tokens=1)
    # Two segments behind as many tokens that stand before the first: these would be walked.
    request = asked("r", [1, 2, 3, 4])
    cast("dict[str, Any]", request.kv_transfer_params)["spliced"]["cuts"] = [
        2 * SEGMENT,
        3 * SEGMENT,
        4 * SEGMENT,
    ]
    assert mode.match(request, 0)[0] == 0
    assert not scripted.plans
