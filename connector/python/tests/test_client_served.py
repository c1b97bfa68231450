"""Telling how prompts were served: what a daemon lists of it, and what is never told."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_samples import SMALL, Connect, wait_until
from fake_daemon import FakeDaemon
from running import Daemon
from spliced_connector import client as client_module
from spliced_connector.client import Match, Model, ServedSegment, Tier, Way, way_of
from spliced_connector.client.terms import Reason
from spliced_connector.errors import Code
from spliced_connector.model import MAX_TOKENS, Choice, choose, divide, make_plan
from spliced_connector.serving.splices import Splice
from spliced_connector.serving.tally import EngineTally
from spliced_connector.serving.telling import Served, Teller, traceparent
from spliced_connector.vllm.first_tokens import FirstTokens
from spliced_connector.wire import Op, ServedReply

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

SPLICE = client_module.Served(
    way=Way.SPLICE,
    tokens=100,
    engine=10,
    prefix=20,
    prefix_tier=Tier.DRAM,
    segments=(
        ServedSegment(30, 40, b"\x01" * 32, 34, 32, tier=Tier.DISK),
        ServedSegment(70, 20, reason=Reason.EVICTED),
    ),
    read_bytes=4096,
    decided=0.0003,
    waited=0.002,
    first=0.05,
    predicted=(0.2, float("inf"), 0.05),
    request="cmpl-7",
    trace=TRACE,
)


def test_the_daemon_lists_it(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    number = model.served(SPLICE)
    told = daemon.request(name="cmpl-7")
    assert number == told["id"]
    assert (told["engine_tokens"], told["prefix_tokens"], told["reused_tokens"]) == (10, 20, 32)
    assert (told["computed_tokens"], told["seam_tokens"], told["bytes"]) == (38, 8, 4096)
    assert (told["match_ms"], told["wait_ms"], told["ttft_ms"]) == (0.3, 2, 50)
    assert told["trace"] == TRACE.split("-")[1]
    assert [(way["way"], way["ms"]) for way in told["ways"]] == [("recompute", 200), ("splice", 50)]
    reasons = [(span["end"], span.get("reason")) for span in told["spans"]]
    assert reasons[-2:] == [(90, "evicted"), (100, "new")]
    # A name that is too long is cut, and a trace that cannot be one is left out.
    assert model.served(replace(SPLICE, request="é" * 300, trace="x" * 300))
    assert daemon.last_request()["name"] == "é" * 128


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SPLICE, tokens=0),
        replace(SPLICE, tokens=MAX_TOKENS + 1),
        replace(SPLICE, engine=-1),
        replace(SPLICE, engine=90),
        replace(SPLICE, segments=SPLICE.segments[::-1]),
        replace(SPLICE, segments=[*SPLICE.segments] * 2000),
        replace(SPLICE, way=9),
        replace(SPLICE, trace="00-no"),
    ],
)
def test_what_cannot_be_is_not_told(
    daemon: Daemon, connect: Connect, wrong: client_module.Served
) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL)
    assert model.served(wrong) is None
    assert client.counters.invalid == 1
    assert model.attached


def test_without_a_daemon_nobody_is_told(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    daemon.kill()
    assert model.served(SPLICE) is None


def test_a_daemon_that_does_not_know_the_request_gets_it_once(
    fake: FakeDaemon, connect: Connect
) -> None:
    fake.on(Op.SERVED, lambda request: request.refuse(Code.UNSUPPORTED, "op 28"))
    client = connect(fake.socket)
    model = client.model(SMALL)
    assert model.wait_attached(10)
    assert [model.served(SPLICE) for _ in range(3)] == [None] * 3
    assert len(fake.all[Op.SERVED]) == 1
    assert client.counters.refused == 1
    # Behind a restart it may be a newer one, which may refuse for other reasons.
    fake.on(Op.SERVED, lambda request: request.refuse(Code.BUSY))
    fake.next(Op.SERVED).hang_up()
    wait_until(lambda: client.counters.attached == 2 and model.attached)
    assert [model.served(SPLICE) for _ in range(3)] == [None] * 3
    assert len(fake.all[Op.SERVED]) == 4
    fake.on(Op.SERVED, lambda request: request.reply(ServedReply(7, -1.0)))
    assert model.served(SPLICE) == 7


def test_an_operator_may_set_the_canarys_share(fake: FakeDaemon, connect: Connect) -> None:
    told = iter([-1.0, 0.25, 0.0, math.nan, 1.5, 1.0, -1.0])
    fake.on(Op.SERVED, lambda request: request.reply(ServedReply(7, next(told))))
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    assert model.canary_share(0.01) == 0.01
    for want in (0.01, 0.25, 0.0, 0.01, 0.01, 1.0, 0.01):
        assert model.served(SPLICE) == 7
        assert model.canary_share(0.01) == want


def test_a_splice_is_told_by_what_came_of_its_segments(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL)
    ids = [i % 200 for i in range(300)]
    prompt = divide(model.profile, model.salt or b"", ids, [0, 90, 180, 270], 8)
    choices = choose(prompt, 0, [True, False, True], [False, True, False])
    plan = make_plan(prompt, 0, choices)
    spans = plan.spans[:-1]  # the query is the engine's
    splice = Splice(0, spans[-1].end, prompt, choices, spans)
    assert len(splice.pieces(Choice.ISOLATED)) == 1
    asked = Match(status=b"\1\0\1", tier=b"\2\0\3", reason=b"\0\1\0", tokens=(90, 0, 74))
    end = splice.tokens - 5  # the engine takes whole pages
    served = Served("r1", 300, 0, placed=end, prompt=prompt, splice=splice, asked=asked)
    told = served.told(model.profile)
    assert told.way == Way.SPLICE
    assert [row.tier for row in told.segments] == [Tier.DRAM, Tier.NONE, Tier.DISK]
    assert [row.reason for row in told.segments] == [0, Reason.UNKNOWN, 0]
    assert [row.reused for row in told.segments] == [90, 0, 69]
    assert sum(row.reused for row in told.segments) == splice.reused - 5
    assert told.read_bytes == sum(model.profile.segment_layout(n).nbytes for n in (90, 69))
    model.served(told)
    found = daemon.request(name="r1")
    assert found["reused_tokens"] == 159
    # A prompt whose segments were left alone was computed, though some are there.
    alone = replace(served, splice=None, placed=0).told(model.profile)
    assert alone.way == Way.RECOMPUTE
    model.served(replace(alone, request="r2"))
    spans_of = daemon.request(name="r2")["spans"]
    assert [span["reason"] for span in spans_of] == ["declined", "unknown", "declined", "new"]


def test_ways() -> None:
    assert [way_of(0, 0), way_of(5, 0), way_of(5, 5), way_of(0, 5)] == [
        Way.RECOMPUTE,
        Way.PREFIX,
        Way.SPLICE,
        Way.SPLICE,
    ]


class SlowModel:
    """Answers when it is let."""

    profile = cast(Any, None)

    def __init__(self) -> None:
        self.go = threading.Event()
        self.heard: list[object] = []

    def served(self, told: object) -> int | None:
        self.go.wait(20)
        self.heard.append(told)
        return None if told == "lost" else len(self.heard)


class Told:
    """Something that is told as it is."""

    def __init__(self, word: str) -> None:
        self.word = word

    def told(self, _: object) -> str:
        return self.word


def test_what_waits_is_bounded_and_nothing_is_waited_for() -> None:
    model, tally = SlowModel(), EngineTally()
    teller = Teller(cast(Model, model), tally)
    for i in range(400):
        teller.tell(cast(Served, Told("lost" if i == 399 else str(i))))
    dropped = tally.snapshot()["untold"]
    assert dropped in (143, 144)  # one may be on its way
    model.go.set()
    teller.close()
    wait_until(lambda: tally.snapshot()["untold"] == dropped + 1)
    assert model.heard[-2:] == ["398", "lost"]
    teller.tell(cast(Served, Told("late")))
    assert model.heard[-1] == "lost"


def test_traces_come_out_of_headers() -> None:
    for nothing in (None, {}, [("a", "b")], [1], "traceparent", object()):
        assert traceparent(nothing) == ""
    assert traceparent({"Traceparent": TRACE}) == TRACE
    assert traceparent([("x", "y"), ("traceparent", TRACE)]) == TRACE


def request(name: str, tokens: int, outputs: int = 1) -> Any:
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=list(range(tokens)),
        arrival_time=0.0,
        num_output_tokens=outputs,
    )


def step(computed: dict[str, int], scheduled: dict[str, int]) -> Any:
    return SimpleNamespace(
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(computed), num_computed_tokens=list(computed.values())
        ),
        scheduled_new_reqs=[],
        num_scheduled_tokens=scheduled,
    )


@pytest.mark.parametrize("pipelined", [False, True])
def test_first_tokens_are_there_behind_the_prompts_last_step(pipelined: bool) -> None:
    first = FirstTokens(pipelined)
    one, other = request("a", 100), request("b", 50)
    first.matched(one, 16)
    first.matched(one, 32)  # asked again
    first.matched(other, 0)
    assert first.plan(step({"a": 32}, {"a": 30})) == []
    assert first.plan(step({"a": 62, "b": 0}, {"a": 38, "b": 20})) == []  # a's prompt ends
    if pipelined:
        assert first.plan(step({"b": 20}, {"b": 10})) == []
    came = first.plan(step({"b": 30}, {"b": 20}))
    assert [(x.request.request_id, x.held, x.first > 0) for x in came] == [("a", 32, True)]
    first.matched(one, 99)  # it gave way to others later: nobody is told again
    assert first.finished(one) is None
    ended = first.finished(other)
    assert ended is not None and ended.first > 0
    assert first.finished(other) is None
    first.matched(one, 0)
    assert first.finished(request("a", 100, outputs=0)) is None  # aborted


@pytest.mark.parametrize("pipelined", [False, True])
def test_of_a_request_that_ends_without_a_token_nobody_is_told(pipelined: bool) -> None:
    first = FirstTokens(pipelined)
    first.matched(request("a", 100), 0)
    assert first.plan(step({"a": 0}, {"a": 100})) == []
    assert first.finished(request("a", 100, outputs=0)) is None  # aborted in its prompt's last step
    assert [first.plan(step({}, {})) for _ in range(3)] == [[]] * 3
