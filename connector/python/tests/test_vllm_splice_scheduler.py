"""What mode splice decides in vLLM's scheduler, against a real daemon and without an engine."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from client_samples import SMALL, Connect, at_most, fill, wait_until
from running import Daemon
from spliced_connector.client import (
    Accept,
    Advice,
    CaptureTiming,
    LossCounts,
    Model,
    NewCheckpoint,
    NewSegment,
    Query,
    Sample,
    SegmentAdvice,
    SpliceWay,
    Verdict,
    WalkTiming,
    Way,
)
from spliced_connector.client.match import misses
from spliced_connector.errors import Code
from spliced_connector.model import Choice, Identity, Lead, divide
from spliced_connector.segments import Chunker, Finder, Lengths, Separators
from spliced_connector.serving.cuts import Cuts
from spliced_connector.serving.decider import Decider, Named
from spliced_connector.serving.prices import Walked
from spliced_connector.serving.tally import EngineTally
from spliced_connector.serving.telling import Served
from spliced_connector.vllm.plans import Outcome
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.splice_plans import Base, SplicePlan
from spliced_connector.vllm.splice_scheduler import SpliceScheduler, check_engine
from spliced_connector.vllm.support import Engine, Group, Inert

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

ENGINE = Engine(
    version="0",
    identity=SMALL,
    groups=(Group(0, True, (0,), ("a",), 4096), Group(1, False, (1,), ("b",), 128)),
    cache_mode="none",
    prefix_caching=False,
    pipelined=False,
    eager=True,
    max_tokens=4096,
)
ALIGNED = replace(
    ENGINE,
    groups=(Group(0, True, (0,), ("a",), 128), Group(1, False, (1,), ("b",), 128)),
    cache_mode="align",
    prefix_caching=True,
)
SEGMENT, QUERY, BLOCK = 200, 20, 128
BLOCKS = ((3,), (7, 8, 9))


@dataclass
class Asked:
    """What a decision reads of the engine's request, and changes. Hashes are of all tokens up to
    their block's end, as the engine's are."""

    request_id: str
    prompt_token_ids: list[int]
    kv_transfer_params: dict[str, object] | None
    cache_salt: str | None = None
    shared_prefix_boundary: int = 0
    sampling_params: object = None
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        for end in range((len(self.block_hashes) + 1) * BLOCK, len(self.prompt_token_ids), BLOCK):
            text = repr((self.cache_salt, self.prompt_token_ids[:end]))
            self.block_hashes.append(text.encode())


class Pool:
    """The engine's blocks: a state under each hash in `cached`, by cache group."""

    hash_block_size = 128

    def __init__(self) -> None:
        self.cached: dict[bytes, SimpleNamespace] = {}
        self.held: list[int] = []

    def get_cached_block(self, name: bytes, groups: list[int]) -> list[SimpleNamespace] | None:
        assert groups == [0], "states only are looked for"
        return [self.cached[name]] if name in self.cached else None

    def touch(self, blocks: list[SimpleNamespace]) -> None:
        self.held += [block.block_id for block in blocks]

    def free_blocks(self, blocks: list[SimpleNamespace]) -> None:
        for block in blocks:
            self.held.remove(block.block_id)


@dataclass
class Step:
    """A step of the engine that schedules nothing."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    scheduled_new_reqs: tuple[object, ...] = ()
    scheduled_cached_reqs: object = field(
        default_factory=lambda: SimpleNamespace(req_ids=[], num_computed_tokens=[])
    )


STEP = cast("SchedulerOutput", Step())


def asked(name: str, segments: Sequence[int], w: int | None = None) -> Request:
    ids = [token for i in segments for token in [(7 * i + j) % 50 + i for j in range(SEGMENT)]]
    said: dict[str, object] = {"v": 1, "cuts": [i * SEGMENT for i in range(len(segments) + 1)]}
    if w is not None:
        said["w"] = w
    request = Asked(name, ids + list(range(QUERY)), {"spliced": said})
    return cast("Request", request)


def mode(
    connect: Connect,
    daemon: Daemon,
    identity: Identity = SMALL,
    engine: Engine = ENGINE,
    **tenant: str,
) -> SpliceScheduler:
    tenants = ((tenant.get("tenant", ""), tenant.get("token", "")),)
    client = connect(daemon.socket, tenants=tenants, timeout=1.0)
    model = client.model(identity, tenant=tenant.get("tenant", ""), block_tokens=BLOCK)
    assert model.wait_attached(10)
    settings = Settings(weights="0" * 64)
    return SpliceScheduler(Session(settings, engine, model, EngineTally(), 128))


def publish(half: SpliceScheduler, request: Request, w: int = 8) -> None:
    """Puts every segment of a request into the daemon, with bytes that mean nothing."""
    model = half._session.model
    assert model.salt is not None
    ids = request.prompt_token_ids
    assert ids is not None
    cuts = list(range(0, len(ids), SEGMENT))
    for piece in divide(model.profile, model.salt, ids, cuts, w).pieces:
        assert piece.spec is not None
        parts = fill(model.profile.segment_layout(piece.spec), piece.index)
        (code,) = model.publish([NewSegment(piece.spec, ids[piece.start : piece.end], parts)])
        assert code in (Code.OK, Code.EXISTS)


def publish_numbers(half: SpliceScheduler, request: Request) -> None:
    """Puts every segment of a request into the daemon, with states that are numbers."""
    model, rng = half._session.model, random.Random(1)
    assert model.salt is not None
    ids = request.prompt_token_ids
    assert ids is not None
    for piece in divide(model.profile, model.salt, ids, range(0, len(ids), SEGMENT), 8).pieces:
        assert piece.spec is not None
        parts = []
        for part in model.profile.segment_layout(piece.spec).parts:
            n = math.prod(part.shape)
            code = "e" if part.nbytes == 2 * n else "f"
            parts.append(struct.pack(f"<{n}{code}", *(rng.gauss(0, 1 / 16) for _ in range(n))))
        (done,) = model.publish([NewSegment(piece.spec, ids[piece.start : piece.end], parts)])
        assert done == Code.OK


def save(half: SpliceScheduler, request: Request, tokens: int) -> bytes:
    """Puts a prefix of a request into the daemon, with bytes that mean nothing. Its name."""
    assert isinstance(half._prefix, PrefixScheduler)
    prompt = half._prefix.open(request)
    assert prompt is not None
    half._prefix.finished(request)
    profile, name = half._session.model.profile, prompt.names[tokens]
    parts = fill(profile.checkpoint_layout(tokens), 1)
    new = NewCheckpoint(name, tokens, bytes(32), 0, Accept.EXACT, parts)
    (code,) = half._session.model.save([new])
    assert code == Code.OK
    return name


def questions_to(model: Model) -> list[str]:
    """The names of the questions that a model is asked from now on."""
    calls: list[str] = []
    for call in ("match", "advise"):
        real = getattr(model, call)

        def counted(*given: Any, real: Any = real, call: str = call, **options: Any) -> Any:
            calls.append(call)
            return real(*given, **options)

        setattr(model, call, counted)
    return calls


def told_of(half: SpliceScheduler, request: Request) -> dict[str, object]:
    """What the response says, without the time that the decision took."""
    params = half.finished(request)
    assert params is not None
    told = cast(dict[str, object], params["spliced"])
    assert cast(int, told.pop("decided_micros")) > 0
    return told


def counts(half: SpliceScheduler) -> dict[str, int]:
    return half._tally.snapshot()


def other(half: SpliceScheduler, **changes: object) -> None:
    """Another session for one that runs."""
    half._session = session = replace(half._session, **changes)  # type: ignore[arg-type]
    half._decider = Decider(
        session.model, session.settings, session.finder, session.tally, half._clock
    )


def test_held_segments_are_claimed_once(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2, 3])
    publish(half, request)
    want = 3 * SEGMENT - 8
    assert half.match(request, 0) == (want, True)
    assert half.match(request, 0) == (want, True), "asked again before there were blocks"
    half.allocated(request, BLOCKS, want)
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    (load,) = plan.loads
    assert (load.request_id, load.blocks) == ("r", BLOCKS)
    assert load.splice.choices == (Choice.HIT,) * 3
    half.allocated(request, BLOCKS, 0)
    assert half.plan(STEP) == SplicePlan(alone=True)
    half.settled(Outcome(done=frozenset({"r"})))
    assert half.match(request, 0) == (0, False), "blocks that were preempted are the engine's"
    assert told_of(half, request) == {
        "way": "splice",
        "tokens": want,
        "walked": 8 + 16,
        "reused": want - 8 - 16,
        "captured": 0,
    }
    assert half.plan(STEP) == SplicePlan(dropped=frozenset({"r"}), alone=True)
    assert not half._requests


@pytest.mark.parametrize(
    ("most", "held"), [(None, [0, 1, 2]), (0.02, [0, 1, 2]), (0.002, [0]), (0, [0])]
)
def test_what_is_farther_off_than_a_request_accepts_is_a_miss(
    connect: Connect, daemon: Daemon, most: float | None, held: list[int]
) -> None:
    half = mode(connect, daemon, replace(SMALL, tolerance=0.02))
    request = asked("r", [1, 2, 3])
    publish_numbers(half, request)
    match = half._session.model.match
    params = cast("dict[str, dict[str, object]]", request.kv_transfer_params)
    if most is not None:
        params["spliced"]["max_error"] = most
    half.match(request, 0)
    tracked = half._requests["r"]
    assert tracked.known is not None
    assert tracked.known.held == frozenset(held)
    keys = [piece.key for piece in tracked.known.prompt.pieces if piece.key is not None]
    first, *rest = match(keys=keys).error
    assert first == 0, "a leading segment is never packed"
    assert all(0.002 < error <= 0.02 for error in rest)
    assert counts(half)["held_segments"] == len(held)
    assert counts(half).get("too_far_segments", 0) == 3 - len(held)


def test_a_prefix_behind_segments_is_not_taken_by_who_says_how_far_off(
    connect: Connect, daemon: Daemon
) -> None:
    half = mode(connect, daemon)
    model, request = half._session.model, asked("r", [1, 2])
    ids = request.prompt_token_ids
    assert ids is not None
    names = model.prefix_hashes(ids, [384], BLOCK)
    assert names is not None
    parts = fill(model.profile.checkpoint_layout(384), 1)
    model.save([NewCheckpoint(names[0], 384, bytes(32), 0, Accept.SPLICED, parts)])
    named = Named([384], names)
    for most, prefix in ((None, 384), (0.05, 0)):
        cuts = Cuts((0, SEGMENT, 2 * SEGMENT), 8, max_error=most)
        known = half._decider.ask(ids, cuts, named, prefixes=True).known
        assert known is not None
        assert known.prefix == prefix


def test_a_failed_load_is_the_engines(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(half, request)
    tokens, _ = half.match(request, 0)
    assert tokens
    half.allocated(request, BLOCKS, tokens)
    half.plan(STEP)
    half.settled(Outcome(frozenset({"r"}), frozenset({"r"})))
    assert half.match(request, 0) == (0, False)
    assert told_of(half, request)["way"] == "recomputed"


def test_missing_segments_are_captured_only_where_that_is_wanted(
    connect: Connect, daemon: Daemon
) -> None:
    half = mode(connect, daemon)
    other(half, settings=Settings(weights="0" * 64, capture=False))
    request = asked("r", [4, 5])
    assert half.match(request, 0) == (0, False)
    assert counts(half)["missing_segments"] == 2
    assert told_of(half, request) == {"way": "engine"}
    assert counts(half)["not_worth"] == 1


@pytest.mark.parametrize(("most", "captured"), [(SEGMENT, 2), (SEGMENT - 1, 0)])
def test_long_segments_are_not_captured(
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    captured: int,
) -> None:
    half = mode(connect, daemon)
    settings = Settings(weights="0" * 64, capture_tokens=most)
    other(half, settings=settings)
    rows = [SegmentAdvice(True, Verdict.NONE)] * 2
    every = Advice(0, Way.SPLICE, (), (), tuple(rows), 2)
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: every)
    request = asked("r", [4, 5])
    tokens, _ = half.match(request, 0)
    assert bool(tokens) == bool(captured)
    assert counts(half).get("too_long_to_capture", 0) == 2 - captured
    splice = half._requests["r"].offered
    assert len(splice.pieces(Choice.ISOLATED) if splice else ()) == captured


def measure(half: SpliceScheduler, prefill: float, walk: float) -> None:
    """Seconds a row, of the engine and of walks, as if requests had been served so, and as often as
    outweighs what was measured before."""
    model, prompt = half._session.model, list(range(100))
    samples = [Sample(0, rows, prefill * rows) for rows in (64, 128, 256, 512) * 8]
    walks = [WalkTiming(rows, 0, walk * rows) for rows in (64, 128, 256, 512) * 8]
    for _ in range(4):
        assert model.advise(Query(prompt, record=False, samples=[*samples, *walks])) is not None


def until(half: SpliceScheduler, segments: Sequence[int], spliced: bool) -> Request:
    """The first request that the daemon has spliced, or not: it learns soon, not at once."""
    requests = (asked(f"{spliced} {i}", segments) for i in itertools.count())
    got: list[Request] = []

    def served() -> bool:
        got[:] = [next(requests)]
        return bool(half.match(got[0], 0)[0]) == spliced

    wait_until(served)
    return got[0]


def test_the_way_follows_what_walks_took(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    publish(half, asked("r", [1, 2, 3]))
    measure(half, prefill=1e-4, walk=1e-2)
    request = until(half, [1, 2, 3], spliced=False)
    tracked = half._requests[request.request_id]
    advice = tracked.asked.advice
    assert advice is not None
    predicted = advice.predicted
    assert predicted[Way.SPLICE - 1] > predicted[Way.RECOMPUTE - 1]
    told = half.served(Served(request.request_id, len(request.prompt_token_ids or ()), 0))
    assert told.predicted == predicted, "a trace has what was priced"
    assert told_of(half, request) == {
        "way": "engine",
        "trouble": "the daemon advises not to splice it: computing is faster",
    }
    assert counts(half)["not_advised"] >= 1
    measure(half, prefill=1e-2, walk=1e-4)
    until(half, [1, 2, 3], spliced=True)


def test_walks_of_workers_reach_the_daemon(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = mode(connect, daemon)
    asked_for: list[Query] = []
    monkeypatch.setattr(
        type(half._session.model), "advise", lambda _, query: asked_for.append(query)
    )
    walk = Walked(rows=24, placed=576, seconds=0.25, captured=200, capture_seconds=0.5)
    half.settled(Outcome(walks=(walk, walk)))
    half.match(asked("r", [1, 2, 3]), 0)
    assert asked_for[-1].samples == (WalkTiming(24, 576, 0.25), CaptureTiming(200, 0.5))


def test_a_setting_leaves_measurements_out(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    other(half, settings=Settings(weights="0" * 64, measured=False))
    request = asked("r", [1, 2, 3])
    publish(half, request)
    assert half.match(request, 0)[0]
    known = half._requests["r"].known
    assert known is not None
    assert known.end is None
    assert half.match(asked("missing", [4, 5, 6, 7]), 0)[0], "they are captured"


def report(half: SpliceScheduler, **ways: tuple[int, int]) -> None:
    """Comparisons and changes of the canary, of splices as they are asked and refreshed."""
    names = {"plain": SpliceWay(), "refreshed": SpliceWay(refreshed=True)}
    losses = {names[name]: LossCounts(*counts) for name, counts in ways.items()}
    compared = sum(counts.compared for counts in losses.values())
    assert half._session.model.report(compared, 0, 0.0, 1.0, losses=losses) is False


@pytest.mark.parametrize(
    ("most", "setting", "reused", "expected"),
    [
        (None, 1.0, [0, 1, 2], 0.1),
        (1, 0.01, [0, 1, 2], 0.1),
        (0.1, 1.0, [0, 1, 2], 0.1),
        (0.09, 1.0, [0, 1], 0.02),
        (None, 0.02, [0, 1], 0.02),
        (0.019, 1.0, [], None),
        (0, 1.0, [], None),
    ],
)
def test_a_request_is_spliced_within_the_loss_that_it_accepts(
    connect: Connect,
    daemon: Daemon,
    most: float | None,
    setting: float,
    reused: list[int],
    expected: float | None,
) -> None:
    half = mode(connect, daemon)
    other(half, settings=Settings(weights="0" * 64, max_loss=setting))
    request = asked("r", [1, 2, 3])
    publish(half, request)
    report(half, plain=(98, 9), refreshed=(98, 1))
    params = cast("dict[str, dict[str, object]]", request.kv_transfer_params)
    if most is not None:
        params["spliced"]["max_loss"] = most
    tokens, _ = half.match(request, 0)
    splice = half._requests["r"].offered
    assert [p.index for p in (splice.pieces(Choice.HIT) if splice else ())] == reused
    last = counts(half).get("refreshed_tokens", 0)
    assert last == (SEGMENT if reused == [0, 1] else 0)
    if splice is None:
        assert counts(half)["beyond_max_loss"] == 1
        assert "not_advised" not in counts(half)
        assert "within max_loss" in str(told_of(half, request)["trouble"])
        return
    assert (splice.way, splice.loss) == (SpliceWay(refreshed=reused == [0, 1]), expected)
    half.allocated(request, BLOCKS, cast(int, tokens))
    half.plan(STEP)
    half.settled(Outcome(done=frozenset({"r"})))
    n = len(request.prompt_token_ids or ())
    assert half.served(Served("r", n, 0)).told(half._session.model.profile).loss == expected
    assert told_of(half, request)["expected_loss"] == expected


def test_an_unknown_loss_is_within_no_limit(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2, 3])
    publish(half, request)
    params = cast("dict[str, dict[str, object]]", request.kv_transfer_params)
    params["spliced"]["max_loss"] = 0.99
    assert half.match(request, 0) == (0, False)
    report(half, plain=(49, 0))
    few = replace(cast(Any, request), request_id="few")
    assert half.match(few, 0) == (0, False)
    report(half, plain=(1, 0))
    enough = replace(cast(Any, request), request_id="enough")
    assert half.match(enough, 0)[0]


def test_a_daemon_that_is_no_help_is_within_no_limit(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2, 3])
    publish(half, request)
    report(half, plain=(98, 9))
    params = cast("dict[str, dict[str, object]]", request.kv_transfer_params)
    params["spliced"]["max_loss"] = 0.5
    with monkeypatch.context() as patch:
        patch.setattr(type(half._session.model), "advise", lambda *_: None)
        assert half.match(request, 0) == (0, False)
    again = replace(cast(Any, request), request_id="again")
    assert half.match(again, 0)[0]


def test_a_spliced_prefix_is_beyond_a_limit_of_loss(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    model, request = half._session.model, asked("r", [1, 2])
    ids = request.prompt_token_ids
    assert ids is not None
    names = model.prefix_hashes(ids, [384], BLOCK)
    assert names is not None
    parts = fill(model.profile.checkpoint_layout(384), 1)
    model.save([NewCheckpoint(names[0], 384, bytes(32), 0, Accept.SPLICED, parts)])
    for most, prefix in ((1.0, 384), (0.5, 0)):
        cuts = Cuts((0, SEGMENT, 2 * SEGMENT), 8, max_loss=most)
        known = half._decider.ask(ids, cuts, Named([384], names), prefixes=True).known
        assert known is not None
        assert known.prefix == prefix


@pytest.mark.parametrize(("advised", "taken"), [(3, 3), (2, 2), (1, 1), (0, 0), (None, 3)], ids=str)
def test_as_much_is_taken_over_as_the_daemon_has_priced(
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    advised: int | None,
    taken: int,
) -> None:
    """None: the daemon is an older one, and the guess decides."""
    half = mode(connect, daemon)
    request = asked("r", [1, 2, 3])
    publish(half, request)
    rows = [SegmentAdvice(False, Verdict.NONE)] * 3
    said = Advice(0, Way.SPLICE, (), (), tuple(rows), advised)
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: said)
    half.match(request, 0)
    splice = half._requests["r"].offered
    assert (0 if splice is None else len(splice.pieces(Choice.HIT))) == taken


def test_the_guess_decides_behind_what_the_engine_has(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's answer is about a prompt of which nothing is there."""
    half = mode(connect, daemon)
    request = asked("r", [1, 2, 3])
    publish(half, request)
    rows = [SegmentAdvice(False, Verdict.NONE)] * 3
    said = Advice(0, Way.SPLICE, (), (), tuple(rows), 1)
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: said)
    half.match(request, 0)
    known = half._requests["r"].known
    assert known is not None
    for begin, taken in ((0, 1), (SEGMENT, 3)):
        splice = half._decider.best(known, known.choices(begin), begin, warming=False)
        assert splice is not None
        assert splice.tokens == taken * SEGMENT - (8 if taken > 1 else 0)


def test_the_daemons_way_is_followed(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(half, request)
    rows = [SegmentAdvice(False, Verdict.NONE)] * 2
    said = Advice(0, Way.RECOMPUTE, (), (), tuple(rows), None)
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: said)
    assert half.match(request, 0) == (0, False)
    assert counts(half)["not_advised"] == 1
    said = replace(said, way=Way.SPLICE)
    assert half.match(asked("again", [1, 2]), 0)[0]


def test_trouble_of_the_client_is_not_told_to_callers(
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    half = mode(connect, daemon)
    gone = misses(2, "connect /run/secret/spliced.sock: refused")
    monkeypatch.setattr(type(half._session.model), "match", lambda *_, **__: gone)
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: None)
    request = asked("r", [1, 2])
    with caplog.at_level("INFO", "spliced"):
        assert half.match(request, 0) == (0, False)
    assert told_of(half, request) == {"way": "engine", "trouble": "the daemon did not answer"}
    assert "/run/secret" in caplog.text


def test_another_revision_of_the_weights_sees_nothing(connect: Connect, daemon: Daemon) -> None:
    first = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(first, request)
    other = mode(connect, daemon, replace(SMALL, weights=bytes(31) + b"\1"))
    other.match(request, 0)
    assert counts(other).get("held_segments", 0) == 0
    assert counts(other)["missing_segments"] == 2


def test_an_adapter_sees_nothing(connect: Connect, daemon: Daemon) -> None:
    first = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(first, request)
    other = mode(connect, daemon, replace(SMALL, adapter="lora:abc"))
    other.match(request, 0)
    assert counts(other).get("held_segments", 0) == 0


def test_another_tenant_sees_nothing(connect: Connect, daemon: Daemon) -> None:
    first = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(first, request)
    other = mode(connect, daemon, tenant="blue", token="blue-token")
    other.match(request, 0)
    assert counts(other).get("held_segments", 0) == 0
    assert counts(first).get("held_segments", 0) == 0
    assert first.match(asked("again", [1, 2]), 0)[0]


def test_another_seam_is_another_segment(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    publish(half, asked("r", [1, 2]))
    half.match(asked("wider", [1, 2], w=16), 0)
    assert counts(half)["held_segments"] == 1, "the leading one has no seam"


def test_a_request_with_a_salt_of_its_own_is_left_alone(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(half, request)
    cast(Asked, request).cache_salt = "secret"
    assert half.match(request, 0) == (0, False)
    assert counts(half) == {}


@pytest.mark.parametrize(("w", "segments", "fair"), [(8, [1, 2], True), (0, [1, 2], False)])
def test_the_canary_judges_by_fair_requests_only(
    connect: Connect, daemon: Daemon, w: int, segments: list[int], fair: bool
) -> None:
    half = mode(connect, daemon)
    settings = replace(half._session.settings, canary_share=1.0)
    other(half, settings=settings)
    request = asked("r", segments, w=w)
    publish(half, request, w)
    tokens, _ = half.match(request, 0)
    assert tokens
    half.allocated(request, BLOCKS, tokens)
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    assert [load.sampled for load in plan.loads] == [fair]


def test_an_operator_sets_the_canarys_share(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    other(half, settings=replace(half._session.settings, canary_share=0.0))
    assert not any(half._decider.sampled() for _ in range(100))
    daemon.configure(canary_share=1.0)
    assert not half._decider.sampled()  # nobody has told it yet
    assert half._session.model.served(
        half.served(Served("r", 620, 0)).told(half._session.model.profile)
    )
    assert all(half._decider.sampled() for _ in range(100))
    daemon.configure(canary_share=None)
    half._session.model.served(half.served(Served("r", 620, 0)).told(half._session.model.profile))
    assert not any(half._decider.sampled() for _ in range(100))


def found(half: SpliceScheduler, **finders: Any) -> None:
    """The server finds segments by itself."""
    other(half, finder=Finder(**finders))


def unnamed(name: str, ids: list[int], **said: object) -> Request:
    params: dict[str, object] | None = {"spliced": {"v": 1, **said}} if said else None
    return cast("Request", Asked(name, ids, params))


def separated(*segments: int) -> list[int]:
    """Token 1000 around segments that `publish` knows."""
    ids = [1000]
    for i in segments:
        ids += [*(asked("r", [i]).prompt_token_ids or [])[:SEGMENT], 1000]
    return ids


def test_a_request_that_names_nothing_is_looked_through(connect: Connect, daemon: Daemon) -> None:
    """The segments are those that other requests named: hits, whoever cut them."""
    half = mode(connect, daemon)
    publish(half, asked("named", [9, 1, 2]))
    ids = [*separated(1, 2), *range(QUERY)]
    assert half.match(unnamed("none", ids), 0) == (0, False), "nobody looks"
    assert half.finished(unnamed("none", ids)) is None
    found(half, separators=Separators([[1000]]))
    request = unnamed("found", ids)
    tokens = 1 + SEGMENT + 1 + SEGMENT - 8
    assert half.match(request, 0) == (tokens, True)
    half.allocated(request, BLOCKS, tokens)
    told = told_of(half, request)
    assert told["found"] == {"separators": 5}
    assert told["reused"] == 2 * (SEGMENT - 16)
    assert told["way"] == "splice"


def test_a_request_may_choose_or_refuse_what_is_looked_for(
    connect: Connect, daemon: Daemon
) -> None:
    half = mode(connect, daemon)
    publish(half, asked("named", [9, 1, 2]))
    found(half, separators=Separators([[1000]]), chunks=Chunker(Lengths(16, 32, 64)))
    ids = [*separated(1, 2), *range(QUERY)]
    assert half.match(unnamed("none", ids, find=[]), 0) == (0, False)
    assert half.match(unnamed("some", ids, find=["separators"]), 0)[0]
    half.match(unnamed("other", ids, find=["chunks"]), 0)
    assert set(half._requests["other"].found.by) == {
        ("chunks", len(half._requests["other"].found.cuts) - 1)
    }
    half.match(unnamed("wrong", ids, find=["template"]), 0)
    told = half.finished(unnamed("wrong", ids))
    assert told is not None
    trouble = cast(dict[str, object], told["spliced"])["trouble"]
    assert trouble == "spliced.find: 'template', this server has separators, chunks"


def test_segments_that_are_held_are_found_by_their_tokens(connect: Connect, daemon: Daemon) -> None:
    """Without a mark in the prompt, at places where nobody has had them."""
    half = mode(connect, daemon)
    publish(half, asked("named", [9, 1, 2]))
    one, two = ((asked("r", [i]).prompt_token_ids or [])[:SEGMENT] for i in (1, 2))
    ids = [5, 6, 7, *two, *range(2000, 2050), *one, *range(QUERY)]
    found(half, known=True)
    request = unnamed("r", ids)
    tokens = 3 + SEGMENT + 50 + SEGMENT - 8
    assert half.match(request, 0) == (tokens, True)
    half.allocated(request, BLOCKS, tokens)
    told = told_of(half, request)
    assert told["found"] == {"known": 4}
    assert told["reused"] == 2 * (SEGMENT - 16)
    assert counts(half)["known_segments"] == 2
    assert half.match(unnamed("none", ids, find=[]), 0) == (0, False)
    other = unnamed("strange", [*range(3000, 3600), *range(QUERY)])
    assert half.match(other, 0) == (0, False), "nothing is held of it"


def test_what_is_held_is_not_cut_by_other_finders(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    publish(half, asked("named", [9, 1]))
    one = (asked("r", [1]).prompt_token_ids or [])[:SEGMENT]
    ids = [*range(2000, 2400), *one, *range(4000, 4400)]
    found(half, known=True, chunks=Chunker(Lengths(16, 32, 64)))
    half.match(unnamed("r", ids), 0)
    cuts = half._requests["r"].found.cuts
    assert {400, 400 + SEGMENT} <= set(cuts)
    assert not [cut for cut in cuts if 400 < cut < 400 + SEGMENT]
    assert len([cut for cut in cuts if cut < 400]) > 4


def test_cuts_that_are_named_win(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    found(half, chunks=Chunker(Lengths(16, 32, 64)))
    request = asked("r", [1, 2])
    publish(half, request)
    half.match(request, 0)
    assert counts(half)["held_segments"] == 2
    assert not half._requests["r"].found.cuts


def test_segments_alone_are_captured_whatever_is_advised(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that warms: nobody has asked for them yet, and there is no question."""
    half = mode(connect, daemon)
    found(half, separators=Separators([[1000]]))
    monkeypatch.setattr(type(half._session.model), "advise", lambda *_: None)
    half.match(unnamed("question", [*separated(1, 2), *range(QUERY)]), 0)
    assert half._requests["question"].offered is None
    tokens, _ = half.match(unnamed("warm", separated(1, 2)), 0)
    assert tokens == 1 + SEGMENT + 1 + SEGMENT - 8
    splice = half._requests["warm"].offered
    assert splice is not None
    assert [piece.tokens for piece in splice.pieces(Choice.ISOLATED)] == [SEGMENT, SEGMENT]
    one, _ = half.match(unnamed("one", separated(3)), 0)
    assert one == 1 + SEGMENT - 8, "however short the prompt is"


def test_a_spliced_request_is_filed_under_a_name_of_its_own(
    connect: Connect, daemon: Daemon
) -> None:
    half = mode(connect, daemon)
    one, two = asked("one", [1, 2]), asked("two", [1, 2])
    public = list(one.block_hashes)
    assert public
    publish(half, one)
    for request in (one, two):
        tokens, _ = half.match(request, 0)
        assert tokens
        assert request.block_hashes == public, "nothing is claimed yet"
        half.allocated(request, BLOCKS, tokens)
    assert not set(one.block_hashes) & set(public)
    assert not set(one.block_hashes) & set(two.block_hashes)
    half.settled(Outcome(frozenset({"one", "two"}), frozenset({"two"})))
    assert two.block_hashes == public, "computed by the engine, and exact"
    assert two.cache_salt is None
    assert not set(one.block_hashes) & set(public)
    assert half.match(one, 0) == (0, False)


def test_a_splice_begins_behind_what_the_engine_has(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    pool = Pool()
    half.bind(cast("KVCacheManager", SimpleNamespace(block_pool=pool)))
    request = asked("r", [1, 2, 3, 4])
    publish(half, request)
    assert half.match(request, 256) == (0, False), "rows without a state are no prefix"
    pool.cached[cast(bytes, request.block_hashes[1])] = SimpleNamespace(block_id=5)
    want = 4 * SEGMENT - 8
    assert half.match(request, 256) == (want - 256, True)
    assert not pool.held, "a match may never be followed by blocks"
    half.allocated(request, BLOCKS, want - 256)
    assert pool.held == [5]
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    (load,) = plan.loads
    assert load.base == Base(256, 256, states=(5, 0))
    assert (load.splice.begin, load.splice.tokens) == (256, want)
    assert load.splice.choices == (
        Choice.PREFIX,
        Choice.CONTEXT,
        Choice.HIT,
        Choice.HIT,
    )
    half.settled(Outcome(done=frozenset({"r"})))
    assert not pool.held
    assert told_of(half, request)["prefix"] == 256


def test_a_state_that_went_since_the_match_fails_the_load(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    pool = Pool()
    half.bind(cast("KVCacheManager", SimpleNamespace(block_pool=pool)))
    request = asked("r", [1, 2, 3, 4])
    publish(half, request)
    pool.cached[cast(bytes, request.block_hashes[1])] = SimpleNamespace(block_id=5)
    tokens, _ = half.match(request, 256)
    assert tokens
    pool.cached.clear()
    half.allocated(request, BLOCKS, tokens)
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    assert plan.loads[0].base.states is None
    half.close()
    assert not pool.held


def test_a_splice_begins_behind_what_the_daemon_has(connect: Connect, daemon: Daemon) -> None:
    """One question about both, and the engine's own prefix where that is longer."""
    half = mode(connect, daemon, engine=ALIGNED)
    request = asked("r", [1, 2, 3, 4])
    publish(half, request)
    prefix = half._prefix
    assert isinstance(prefix, PrefixScheduler)
    name = save(half, request, 256)
    calls = questions_to(half._session.model)
    want = 4 * SEGMENT - 8
    assert half.match(request, 128) == (want - 128, True)
    assert calls == ["advise"], "which looks the prompt up"
    half.allocated(request, BLOCKS, want - 128)
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    assert plan.loads[0].base == Base(256, 128, name)
    kept = prefix._prompts["r"]
    assert (kept.held, kept.wanted, kept.spliced) == (256, [], True), "no turn ends here"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_daemon_that_does_not_answer_is_asked_once(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    half = mode(connect, daemon)
    model = half._session.model
    calls = questions_to(model)
    monkeypatch.setattr(type(model), "looks_up", property(lambda _: at_once))
    daemon.pause()
    try:
        assert half.match(asked("r", [1, 2]), 0) == (0, False)
        assert calls == ["advise" if at_once else "match"]
        assert model.silent
    finally:
        daemon.resume()


@pytest.mark.parametrize("primed", [False, True])
def test_one_question_finds_what_two_do(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, primed: bool
) -> None:
    """A daemon that cannot look a prompt up before it advises is asked twice."""
    half = mode(connect, daemon, engine=ALIGNED)
    publish(half, asked("r", [1, 2]))
    name = save(half, asked("r", [1, 2, 3]), 256)
    lead = Lead(b"p" * 32, 128) if primed else None
    session = half._session
    decider = Decider(
        session.model, session.settings, session.finder, session.tally, half._clock, lead
    )
    ids = asked("r", [1, 2, 3]).prompt_token_ids
    assert ids is not None
    # Of the last segment nothing is there; the second is there as it is captured alone.
    cuts = Cuts((0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT), 8)
    # The first question makes the prompt a known one.
    decider.ask(ids, cuts, Named([256], [name]), prefixes=True)
    once = decider.ask(ids, cuts, Named([256], [name]), prefixes=True)
    monkeypatch.setattr(type(session.model), "looks_up", property(lambda _: False))
    twice = decider.ask(ids, cuts, Named([256], [name]), prefixes=True)
    assert once.advice is not None
    assert once.advice.found is not None
    assert twice.advice is not None
    assert twice.found is not None
    for part in ("segments", "splice", "way", "predicted", "loss"):
        assert getattr(once.advice, part) == getattr(twice.advice, part)
    assert once.known == twice.known
    assert once.advice.found.hits == [True, True, False]
    assert once.advice.found.prefix_tokens == 256
    for row in ("status", "tier", "reason", "variant"):
        assert bytes(getattr(once.found, row)) == bytes(getattr(twice.found, row))
    assert list(once.advice.found.tokens) == list(twice.found.tokens)
    assert list(once.advice.found.error) == list(twice.found.error)


def test_without_segments_an_exact_prefix_is_claimed(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon, engine=ALIGNED)
    request = asked("r", [4, 5, 6])
    name = save(half, request, 256)
    public = list(request.block_hashes)
    assert half.match(request, 0) == (256, True)
    half.allocated(request, BLOCKS, 256)
    plan = half.plan(STEP)
    assert isinstance(plan, SplicePlan)
    assert plan.loads == ()
    assert plan.prefix is not None
    assert [(load.hash, load.tokens) for load in plan.prefix.loads] == [(name, 256)]
    assert request.block_hashes == public, "exact: others may have it"
    plain = asked("plain", [4, 5, 6])
    plain.kv_transfer_params = None
    assert half.match(plain, 0) == (256, True)


def test_what_was_predicted_of_an_exact_prefix_is_told(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon, engine=ALIGNED)
    request = asked("r", [4, 5, 6])
    request.kv_transfer_params = {"spliced": {"v": 1, "find": []}}
    save(half, request, 256)
    assert half.match(request, 0) == (256, True)
    half.allocated(request, BLOCKS, 256)
    assert isinstance(half._prefix, PrefixScheduler)
    prompt = half._prefix._prompts["r"]
    assert prompt.predicted and prompt.decided > 0
    told = half.served(Served("r", 620, 0))
    assert (told.prefix, told.predicted) == (256, prompt.predicted)
    assert told.decided == prompt.decided + half._requests["r"].decided_micros / 1e6
    half.match(asked("s", [4, 5, 6]), 0)  # one question for all, with one answer
    told = half.served(Served("s", 620, 0))
    advice = half._requests["s"].asked.advice
    assert advice is not None and told.predicted == advice.predicted
    assert told.decided > 0


def test_a_dead_daemon_costs_a_bounded_wait(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    publish(half, asked("r", [1, 2]))
    daemon.kill()
    with at_most(2):
        for i in range(20):
            assert half.match(asked(f"r{i}", [1, 2]), 0) == (0, False)
    assert counts(half)["no_daemon"] == 20
    assert told_of(half, asked("r0", [1, 2]))["way"] == "engine"


def test_a_profile_that_is_switched_off_says_so(connect: Connect, daemon: Daemon) -> None:
    half = mode(connect, daemon)
    request = asked("r", [1, 2])
    publish(half, request)
    assert half._session.model.report(1, 1, 9.0, 0.1, off=True, text="test")
    assert half.match(request, 0) == (0, False)
    assert told_of(half, request) == {"way": "engine", "trouble": "splicing is switched off"}


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        (replace(ENGINE, cache_mode="all"), "'all'"),
    ],
)
def test_an_engine_that_does_not_fit_is_left_alone(engine: Engine, text: str) -> None:
    with pytest.raises(Inert, match=text):
        check_engine(engine)
