"""An error of ours inside an engine ends the reuse, and no request waits for what never comes."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.meeting import Meeting
from spliced_connector.vllm import SplicedConnector
from spliced_connector.vllm import scheduler as vllm_scheduler
from spliced_connector.vllm import worker as vllm_worker
from spliced_connector.vllm.connector import SplicedMetadata
from spliced_connector.vllm.plans import LoadPlan, Lost, Outcome, PrefixPlan, SavePlan
from spliced_connector.vllm.plugin import LoadedModels, UsersCalls
from spliced_connector.vllm.scheduler import SchedulerHalf
from spliced_connector.vllm.settings import Mode as ServingMode
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.splice_plans import SplicePlan
from spliced_connector.vllm.support import Inert
from spliced_connector.vllm.worker import WorkerHalf

pytestmark = pytest.mark.engine

SETTINGS = Settings(weights="ab" * 32)
SPLICES = Settings(weights="ab" * 32, mode=ServingMode.SPLICE)
LOAD = LoadPlan("r", b"h" * 32, 256, 0, ((1,), (2,)))
SAVE = SavePlan("r", b"s" * 32, 512, bytes(32), 0, ((1,), (2,)))
REQUEST: Any = SimpleNamespace(
    request_id="r",
    lora_request=None,
    pooling_params=None,
    prompt_embeds=None,
    mm_features=[],
    resumable=False,
    skip_reading_prefix_cache=False,
    prompt_token_ids=[1, 2],
)


STEP = cast(
    Any,
    SimpleNamespace(
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        scheduled_new_reqs=[],
        num_scheduled_tokens={},
    ),
)
"""Of no requests."""


class Mode:
    """Does what it is asked until the call that breaks."""

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.closed = False
        self.done: list[str] = []

    def _do(self, name: str, answer: object = None) -> Any:
        if name == self.breaks:
            raise KeyError(name)
        self.done.append(name)
        return answer

    def match(self, request: object, computed: int) -> tuple[int | None, bool]:
        return cast(tuple[int | None, bool], self._do("match", (256, True)))

    def allocated(self, request: object, blocks: object, external: int) -> None:
        self._do("allocated")

    def plan(self, step: object) -> object:
        return self._do("plan", PrefixPlan(loads=(LOAD,)))

    def settled(self, outcome: Outcome) -> None:
        self._do("settled")

    def finished(self, request: object) -> dict[str, object] | None:
        return cast("dict[str, object] | None", self._do("finished"))

    def pending(self) -> bool:
        return bool(self._do("pending", False))

    def shares(self, plan: object) -> bool:
        return bool(getattr(plan, "loads", ()))

    def load(self, plan: object) -> Outcome:
        return cast(Outcome, self._do("load", Outcome(frozenset("r"), frozenset())))

    def save(self, plan: object) -> None:
        self._do("save")

    def drain(self, timeout: float) -> bool:
        return True

    def stop_storing(self) -> None:
        self._do("stop_storing")

    def close(self) -> None:
        self.closed = True


def scheduler(monkeypatch: pytest.MonkeyPatch, breaks: str = "") -> SchedulerHalf:
    monkeypatch.setattr(vllm_scheduler, "survey", lambda *_: None)
    monkeypatch.setattr(SchedulerHalf, "_start", lambda *_: Mode(breaks))
    return SchedulerHalf(SETTINGS, cast(Any, None), cast(Any, None))


def worker(monkeypatch: pytest.MonkeyPatch, breaks: str = "") -> WorkerHalf:
    monkeypatch.setattr(vllm_worker, "survey", lambda *_: object())
    monkeypatch.setattr(WorkerHalf, "_start", lambda *_: Mode(breaks))
    half = WorkerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    half.register({})
    return half


def run(half: SchedulerHalf) -> object:
    """A request that is matched and given blocks, and the plan of the step."""
    tokens, _ = half.match(REQUEST, 0)
    half.allocated(REQUEST, ((1,), (2,)), tokens or 0)
    return half.plan(STEP)


def test_scheduler_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    half = scheduler(monkeypatch)
    assert run(half) == PrefixPlan(loads=(LOAD,))
    half.settled(Outcome(frozenset("r"), frozenset()))
    assert half.finished(REQUEST) is None
    assert not half.pending()
    assert not half.tally.snapshot()


@pytest.mark.parametrize("breaks", ["allocated", "plan"])
def test_scheduler_that_breaks_gives_up_what_it_has_claimed(
    monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    half = scheduler(monkeypatch, breaks)
    assert run(half) == Lost(frozenset("r"))
    half.settled(Outcome(frozenset("r"), frozenset("r")))
    assert half.plan(STEP) is None
    assert half.match(REQUEST, 0) == (0, False)
    assert half.tally.snapshot() == {"inert": 1}


@pytest.mark.parametrize("breaks", ["match", "settled", "finished", "pending"])
def test_scheduler_that_breaks_between_claims(monkeypatch: pytest.MonkeyPatch, breaks: str) -> None:
    half = scheduler(monkeypatch, breaks)
    run(half)
    half.settled(Outcome(frozenset("r"), frozenset()))
    assert half.finished(REQUEST) is None
    assert half.pending() is False
    if breaks != "match":  # then its only plan has told the workers
        assert half.plan(STEP) == Lost(frozenset())
    assert half.plan(STEP) is None
    assert half.tally.snapshot() == {"inert": 1}


def test_worker_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    half = worker(monkeypatch)
    plan = PrefixPlan(loads=(LOAD,))
    assert half.load(plan) == Outcome(frozenset("r"), frozenset())
    half.save(plan)
    assert half.load(None) == Outcome()
    assert half.inert == ""


def test_worker_that_breaks_fails_its_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    half = worker(monkeypatch, "load")
    plan = PrefixPlan(loads=(LOAD,))
    assert half.load(plan) == Outcome(frozenset("r"), frozenset("r"))
    half.save(plan)
    assert "KeyError" in half.inert
    assert half.load(plan) == Outcome(frozenset("r"), frozenset("r"))
    assert half.load(None) == Outcome()


def test_worker_that_breaks_when_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    half = worker(monkeypatch, "save")
    plan = PrefixPlan(loads=(LOAD,))
    assert half.load(plan).failed == frozenset()
    half.save(plan)
    assert half.inert
    assert half.load(None) == Outcome()


def test_worker_that_is_told_of_the_end_fails_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = worker(monkeypatch, "")
    monkeypatch.setattr(half._mode, "load", lambda _: Outcome())  # takes several steps
    assert half.load(PrefixPlan(loads=(LOAD,))) == Outcome()
    assert half.load(Lost(frozenset("s"))) == Outcome(frozenset("rs"), frozenset("rs"))
    assert half.load(None) == Outcome()


def test_worker_fails_what_the_scheduler_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    half = worker(monkeypatch)
    mode = half._mode
    assert isinstance(mode, Mode)
    assert half.load(Lost(frozenset("r"))) == Outcome(frozenset("r"), frozenset("r"))
    assert mode.closed
    assert half.inert


def test_engine_that_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise Inert("of another kind")

    monkeypatch.setattr(vllm_scheduler, "survey", refuses)
    monkeypatch.setattr(vllm_worker, "survey", refuses)
    decides = SchedulerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    moves = WorkerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    moves.register({})
    assert run(decides) is None
    assert moves.inert == "of another kind"
    assert moves.load(PrefixPlan(loads=(LOAD,))).failed == frozenset("r")
    assert decides.tally.snapshot() == moves.tally.snapshot() == {"inert": 1}


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), AttributeError("x")])
def test_engine_that_cannot_be_read_runs_without_reuse(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(vllm_scheduler, "survey", fails)
    monkeypatch.setattr(vllm_worker, "survey", fails)
    decides = SchedulerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    moves = WorkerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    moves.register({})
    assert run(decides) is None
    assert type(error).__name__ in moves.inert
    assert decides.tally.snapshot() == moves.tally.snapshot() == {"inert": 1}


def test_setting_that_is_wrong_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ValueError("weights")

    monkeypatch.setattr(vllm_scheduler, "survey", refuses)
    monkeypatch.setattr(vllm_worker, "survey", refuses)
    with pytest.raises(ValueError, match="weights"):
        SchedulerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    with pytest.raises(ValueError, match="weights"):
        WorkerHalf(SETTINGS, cast(Any, None), cast(Any, None))


@pytest.mark.parametrize("error", [ValueError("rows"), RuntimeError("out of memory")])
def test_tensors_that_cannot_be_read_end_the_reuse(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(vllm_worker, "survey", lambda *_: object())
    monkeypatch.setattr(WorkerHalf, "_start", fails)
    half = WorkerHalf(SETTINGS, cast(Any, None), cast(Any, None))
    half.register({})
    assert str(error) in half.inert
    assert half.load(PrefixPlan(loads=(LOAD,))).failed == frozenset("r")


@pytest.mark.parametrize("call", ["arrived", "match", "allocated"])
def test_requests_of_another_shape_end_the_reuse(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    half = scheduler(monkeypatch)
    odd: Any = SimpleNamespace(request_id="odd")  # of a release with other names
    if call == "arrived":
        half.arrived(odd)
    elif call == "match":
        assert half.match(odd, 0) == (0, False)
    else:
        half.allocated(odd, ((1,), (2,)), 256)
    claimed = frozenset({"odd"}) if call == "allocated" else frozenset()
    assert half.plan(STEP) == Lost(claimed)
    assert half.tally.snapshot() == {"inert": 1}


def test_reset_of_the_connector_ends_the_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    half = scheduler(monkeypatch)
    run(half)
    connector = SplicedConnector.__new__(SplicedConnector)
    connector.scheduler_half, connector.worker_half = half, None
    assert connector.reset_cache() is True
    assert half.match(REQUEST, 0) == (0, False)
    assert half.plan(STEP) == Lost(frozenset())
    assert half.tally.snapshot() == {"inert": 1}


def test_an_engine_that_sleeps_is_refused_by_the_class() -> None:
    """vLLM 0.33 asks before anything is built, with the settings of its transfers."""
    assert SplicedConnector.supports_sleep_mode(cast(Any, object())) is False


def test_caches_that_are_released_end_the_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode = in_worker(monkeypatch)
    connector.unregister_kv_caches()
    with step(connector, loads_first=False):
        pass
    assert mode.done == []
    assert mode.closed


def _break() -> None:
    raise RuntimeError


@contextmanager
def step(connector: SplicedConnector, loads_first: bool) -> Iterator[None]:
    """One step of the engine, in the order of its mixin for model runners."""
    connector.bind_connector_metadata(SplicedMetadata(PrefixPlan((LOAD,), (SAVE,))))
    if loads_first:
        connector.start_load_kv(cast(Any, None))
    try:
        yield
    finally:
        if not loads_first:
            connector.start_load_kv(cast(Any, None))
        connector.wait_for_save()
        connector.clear_connector_metadata()


def in_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[SplicedConnector, Mode]:
    connector = SplicedConnector.__new__(SplicedConnector)
    connector.scheduler_half, connector.worker_half = None, worker(monkeypatch)
    connector._outcome = Outcome()
    mode = connector.worker_half._mode
    assert isinstance(mode, Mode)
    return connector, mode


def test_step_that_works_loads_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode = in_worker(monkeypatch)
    with step(connector, loads_first=False):
        assert mode.done == []
    assert mode.done == ["load", "save"]
    assert not mode.closed


def test_step_in_somebodys_except_clause_works(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode = in_worker(monkeypatch)
    try:
        raise ValueError("handled by running an engine")
    except ValueError:
        with step(connector, loads_first=False):
            pass
        with pytest.raises(RuntimeError), step(connector, loads_first=False):
            _break()
    assert mode.done == ["load", "save"]
    assert mode.closed


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("loads_first", [False, True])
def test_step_that_fails_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], loads_first: bool
) -> None:
    connector, mode = in_worker(monkeypatch)
    with pytest.raises(error), step(connector, loads_first):
        raise error
    assert "save" not in mode.done
    assert ("load" in mode.done) == loads_first
    assert mode.closed
    half = connector.worker_half
    assert half is not None
    assert "step has failed" in half.inert
    if not loads_first:
        assert connector.get_transfer_results(set()).failed_recving == {"r"}
    with step(connector, loads_first):  # an engine that goes on
        pass
    assert "save" not in mode.done


def test_weights_that_are_replaced_end_the_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode = in_worker(monkeypatch)
    half = connector.worker_half
    assert half is not None
    fresh = LoadedModels()
    monkeypatch.setattr(vllm_worker, "loaded", fresh)
    half._config = cast(Any, object())
    with step(connector, loads_first=False):
        pass
    assert mode.done == ["load", "save"]
    runner = Runner(half._config)
    fresh.replace(runner)
    with step(connector, loads_first=False):
        pass
    assert mode.done == ["load", "save"]
    assert mode.closed
    assert connector.get_transfer_results(set()).failed_recving == {"r"}
    report = connector.build_connector_worker_meta()
    assert report is not None
    assert "weights" in report.inert


class Weights:
    """Of a model that trainers write to."""

    def __init__(self) -> None:
        self.doubts = 0
        self.compared = 0
        self.why = ""

    def doubt(self) -> None:
        self.doubts += 1

    def changed(self) -> str:
        self.compared += 1
        return self.why


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[SplicedConnector, Mode, Weights]:
    connector, mode = in_worker(monkeypatch)
    half, weights = connector.worker_half, Weights()
    assert half is not None
    half._weights = cast(Any, weights)
    return connector, mode, weights


def test_weights_that_change_end_the_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode, weights = watched(monkeypatch)
    with step(connector, loads_first=False):
        pass
    assert mode.done == ["load", "save"]
    weights.why = "layers.0.norm was written"
    with step(connector, loads_first=False):
        pass
    assert mode.done == ["load", "save"]
    assert mode.closed
    assert connector.get_transfer_results(set()).failed_recving == {"r"}
    report = connector.build_connector_worker_meta()
    assert report is not None
    assert "layers.0.norm" in report.inert
    assert connector.counts["inert"] == 1
    assert connector.get_kv_connector_stats().data["inert"] == 1


def test_weights_that_change_while_a_step_runs_are_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connector, mode, weights = watched(monkeypatch)
    with step(connector, loads_first=True):
        weights.why = "layers.0.norm was written"
    assert mode.done == ["load"]
    assert mode.closed


def test_weights_are_compared_where_something_is_shared_or_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connector, _mode, weights = watched(monkeypatch)
    half = connector.worker_half
    assert half is not None
    for plan in (None, PrefixPlan(), SplicePlan()):
        half.load(plan)
        half.save(plan)
    assert (weights.compared, weights.doubts) == (0, 0)
    connector.handle_preemptions(SplicedMetadata())
    half.load(None)
    assert (weights.compared, weights.doubts) == (0, 0)
    connector.handle_preemptions(SplicedMetadata(doubt=True))
    half.load(None)
    half.save(None)
    assert (weights.compared, weights.doubts) == (1, 1)
    half.load(PrefixPlan(loads=(LOAD,)))
    assert weights.compared == 2
    for saving in (PrefixPlan(saves=(SAVE,)), SplicePlan(prefix=PrefixPlan(saves=(SAVE,)))):
        half.load(saving)
        half.save(saving)
    assert weights.compared == 4


def test_users_calls_are_doubt_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = UsersCalls()
    monkeypatch.setattr(vllm_scheduler, "users_calls", calls)
    half = scheduler(monkeypatch)
    assert not half.doubt()
    calls.count += 2
    assert half.doubt()
    assert not half.doubt()


@pytest.mark.parametrize("where", ["loads", "prefix"])
def test_a_request_that_was_matched_before_the_change_is_computed(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    connector, mode, weights = watched(monkeypatch)
    half = connector.worker_half
    assert half is not None
    weights.why = "layers.0.norm was written"
    half.doubt()
    plan = PrefixPlan(loads=(LOAD,))
    outcome = half.load(plan if where == "loads" else SplicePlan(prefix=plan))
    assert outcome == Outcome(done=frozenset("r"), failed=frozenset("r"))
    assert mode.done == []


def test_ranks_that_walk_together_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, mode, weights = watched(monkeypatch)
    half = connector.worker_half
    assert half is not None
    half._together = True
    weights.why = "layers.0.norm was written"
    plan = PrefixPlan((LOAD,), (SAVE,))
    outcome = half.load(plan)
    half.save(plan)
    assert mode.done == ["stop_storing", "load"], "other ranks wait for its part of a walk"
    assert outcome == Outcome(done=frozenset("r"), failed=frozenset("r"))
    report = connector.build_connector_worker_meta()
    assert report is not None
    assert "layers.0.norm" in report.inert
    assert not mode.closed
    half.load(Lost(frozenset()))
    assert mode.closed
    assert half.tally.snapshot() == {"inert": 1}


def ranks(
    monkeypatch: pytest.MonkeyPatch, *starts: Callable[[WorkerHalf], Mode]
) -> tuple[WorkerHalf, WorkerHalf]:
    """The workers of two ranks that walk together, registered; starts: what `_start` does in
    each."""
    meeting, at = Meeting(), threading.local()
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=2))
    monkeypatch.setattr(vllm_worker, "survey", lambda *_: object())
    monkeypatch.setattr(vllm_worker, "ranks_of", lambda rank, size: meeting.rank(rank))
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: at.rank)
    monkeypatch.setattr(WorkerHalf, "_start", lambda half, *_: starts[at.rank](half))
    one, two = (WorkerHalf(SPLICES, config, cast(Any, None)) for _ in range(2))

    def register(half: WorkerHalf, rank: int) -> None:
        at.rank = rank
        half.register({})

    assert meeting.both(lambda: register(one, 0), lambda: register(two, 1)) == [None, None]
    return one, two


def reads(*primer: int) -> Callable[[WorkerHalf], Mode]:
    def start(half: WorkerHalf) -> Mode:
        half._session = cast(Any, SimpleNamespace(primer=primer))
        return Mode()

    return start


def refuses(err: Exception) -> Callable[[WorkerHalf], Mode]:
    def start(half: WorkerHalf) -> Mode:
        raise err

    return start


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ((reads(5, 6), refuses(Inert("primer: no file"))), "rank 1: primer: no file"),
        ((refuses(Inert("primer: no file")), reads(5, 6)), "rank 0: primer: no file"),
        ((refuses(Inert("a")), refuses(Inert("b"))), "rank 0: a"),
        ((reads(5, 6), refuses(KeyError("x"))), "rank 1: KeyError: 'x'"),
        ((reads(5, 6), reads(5, 7)), "rank 1: primer: it has other tokens than that of rank 0"),
        ((reads(5, 6), reads()), "rank 1: primer: it has other tokens than that of rank 0"),
    ],
    ids=["second", "first", "both", "error", "other", "none"],
)
def test_ranks_start_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    starts: tuple[Callable[[WorkerHalf], Mode], ...],
    why: str,
) -> None:
    halves = ranks(monkeypatch, *starts)
    assert [half.inert for half in halves] == [why, why]
    lines = [r.getMessage() for r in caplog.records if "does nothing" in r.getMessage()]
    assert lines == [f"spliced does nothing for this engine: {why}"]
    for half in halves:
        assert half.load(SplicePlan(prefix=PrefixPlan(loads=(LOAD,)))).failed == {"r"}
        assert half.tally.snapshot() == {"inert": 1}


def test_ranks_of_one_primer_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for primer in ((5, 6), ()):
        halves = ranks(monkeypatch, reads(*primer), reads(*primer))
        assert [half.inert for half in halves] == ["", ""]
        for half in halves:
            assert not half.load(SplicePlan(prefix=PrefixPlan(loads=(LOAD,)))).failed


def test_a_primer_that_only_a_worker_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(*_: object) -> None:
        raise ValueError("primer: no file")

    for name in ("_watched", "find_caches", "connect"):
        monkeypatch.setattr(vllm_worker, name, lambda *_: io.BytesIO())
    monkeypatch.setattr(vllm_worker, "join", join)
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(vllm_worker, "survey", lambda *_: SimpleNamespace(version="0"))
    compiled = SimpleNamespace(static_forward_context={})
    half = WorkerHalf(
        SETTINGS, cast(Any, SimpleNamespace(compilation_config=compiled)), cast(Any, None)
    )
    half.register({})
    assert half.inert == "primer: no file"


class Runner:
    """As the engine's, but for all that it does."""

    def __init__(self, vllm_config: object) -> None:
        self.vllm_config = vllm_config
