"""Hooks of SGLang's plugin and the settings it reads, with an engine that is only remembered."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from spliced_connector.client import Sample
from spliced_connector.serving.prices import Clock
from spliced_connector.serving.settings import Mode
from spliced_connector.sglang import plugin
from spliced_connector.sglang.splice_settings import VARIABLE, SpliceSettings

MODEL = "/models/m"


class AddReqResult(Enum):
    """As SGLang's."""

    CONTINUE = auto()
    NO_TOKEN = auto()


@dataclass
class Cache:
    """What hooks ask of a cache of ours, and what they asked."""

    admitted: bool = True
    reuse: object | None = None
    calls: list[object] = field(default_factory=list)

    def admit(self, req: Any) -> bool:
        self.calls.append(("admit", req.rid))
        return self.admitted

    def step(self, alone: bool) -> None:
        self.calls.append(("step", alone))

    def turn_off(self, why: str) -> None:
        self.calls.append(("off", why))

    @contextmanager
    def stopping(self, adder: Any, req: Any, computed: int) -> Iterator[None]:
        self.calls.append(("stopping", computed))
        yield
        self.calls.append("stopped")


class Original:
    """A method of the engine that is wrapped."""

    def __init__(self, answer: object, calls: list[object] | None = None) -> None:
        self.answer = answer
        self.given: list[tuple[object, ...]] = []
        self._calls = calls

    def __call__(self, *given: object, **named: object) -> object:
        self.given.append(given)
        if self._calls is not None:
            self._calls.append("original")
        return self.answer


@pytest.fixture(autouse=True)
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that a request's result is taken from."""
    module = cast(Any, ModuleType("sglang.srt.managers.schedule_policy"))
    module.AddReqResult = AddReqResult
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def adder(cache: object, chunked: object = None) -> Any:
    return SimpleNamespace(tree_cache=cache, new_chunked_req=chunked)


def req(prefix: int = 100, host: int = 40) -> Any:
    return SimpleNamespace(rid="r", prefix_len=prefix, host_hit_length=host, extend_end=300)


def test_a_request_that_waits_is_passed_over() -> None:
    cache, original = Cache(admitted=False), Original("added")
    assert plugin.add(original, adder(cache), req(), False, None) is AddReqResult.CONTINUE
    assert original.given == []
    cache.admitted = True
    one, given = req(), adder(cache)
    assert plugin.add(original, given, one, False, 16) == "added"
    assert original.given == [(given, one, False, 16)]


def test_a_chunk_is_cut_behind_all_that_is_there() -> None:
    cache = Cache()
    original = Original("added", cache.calls)
    plugin.add(original, adder(cache), req(100, 40), False, None)
    assert cache.calls == [("admit", "r"), ("stopping", 140), "original", "stopped"]
    cache.calls.clear()
    plugin.add_chunk(original, adder(cache), req(200, 40))
    assert cache.calls == [("stopping", 200), "original", "stopped"]


@pytest.mark.parametrize(("has", "new"), [(True, None), (False, "another")])
def test_beside_a_prompt_in_chunks_no_other_is_cut(has: bool, new: object) -> None:
    cache = Cache()
    assert plugin.add(Original("added"), adder(cache, new), req(), has, None) == "added"
    assert cache.calls == [("admit", "r")]


def test_steps_say_whether_anything_runs() -> None:
    cache, plan = Cache(), Original("plan")
    scheduler = cast(Any, SimpleNamespace(tree_cache=cache))
    for empty, last, alone in ((True, None, True), (False, None, False), (True, "batch", False)):
        running = cast(Any, SimpleNamespace(is_empty=lambda empty=empty: empty))
        assert plugin.plan(plan, scheduler, running, cast(Any, last)) == "plan"
        assert plan.given[-1] == (scheduler, running, last)
        assert cache.calls.pop() == ("step", alone)


def batch(extend: bool, *spans: tuple[int, int]) -> Any:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: extend),
        reqs=[SimpleNamespace(prefix_len=a, extend_end=b) for a, b in spans],
    )


def test_a_prefill_by_itself_is_timed() -> None:
    clock = Clock()
    scheduler: Any = SimpleNamespace(
        tree_cache=Cache(reuse=SimpleNamespace(clock=clock)), enable_overlap=False
    )
    original = Original("ran")
    for one in (batch(True, (0, 200), (0, 200)), batch(False, (0, 200))):
        assert plugin.run(original, scheduler, one) == "ran"
    assert clock.take() == ()
    assert plugin.run(original, scheduler, batch(True, (100, 300)), "more") == "ran"
    assert original.given[-1][2:] == ("more",)
    (sample,) = clock.take()
    assert isinstance(sample, Sample)
    assert (sample.begin, sample.end) == (100, 300)
    assert sample.seconds > 0
    scheduler.enable_overlap = True  # the call ends before the batch does
    plugin.run(original, scheduler, batch(True, (100, 300)))
    assert clock.take() == ()


def test_replaced_weights_end_the_reuse_before_they_are_there() -> None:
    cache = Cache()
    original = Original("updated", cache.calls)
    updater = SimpleNamespace(scheduler=SimpleNamespace(tree_cache=cache))
    assert plugin.updated(original, updater, "request") == "updated"
    (off, why), then = cast(list[Any], cache.calls)
    assert (off, then) == ("off", "original")
    assert "weights" in why
    assert plugin.updated(original, SimpleNamespace(scheduler=None), "request") == "updated"


class Weights:
    """What hooks say of the process's weights, and of those of one cache."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> Weights:
    made = Weights()
    monkeypatch.setattr(plugin, "engine_weights", made)
    return made


def test_other_threads_hear_of_replaced_weights_first(weights: Weights) -> None:
    original = Original("updated", cast(Any, weights.calls))
    updater = SimpleNamespace(scheduler=None)
    assert plugin.updated(original, updater, "request") == "updated"
    assert weights.calls == ["replace", "original"]


def test_runners_are_kept_once_they_have_loaded(weights: Weights) -> None:
    original = Original(None, cast(Any, weights.calls))
    plugin.loaded(original, "runner")
    assert weights.calls == ["original", "keep"]


def test_a_flush_is_doubt(weights: Weights) -> None:
    seen = Weights()
    cache = Cache(reuse=SimpleNamespace(weights=seen))
    scheduler = SimpleNamespace(tree_cache=cache)
    original = Original(True, cast(Any, weights.calls))
    assert plugin.flushed(original, scheduler, empty_cache=False) is True
    assert weights.calls == ["original", "doubt"]
    assert seen.calls == ["doubt"]
    cache.reuse = None
    assert plugin.flushed(Original(False), scheduler) is False


@pytest.mark.parametrize(
    ("tags", "left", "said"),
    [
        (None, set(), ["release", "original", "original", "resume", "doubt"]),
        ([], set(), ["release", "original", "original", "resume", "doubt"]),
        (["weights"], set(), ["release", "original", "original", "resume", "doubt"]),
        (["kv_cache"], {"weights"}, ["original", "original"]),
    ],
)
def test_memory_that_is_released_is_not_read(
    weights: Weights, tags: list[str] | None, left: set[str], said: list[str]
) -> None:
    scheduler = SimpleNamespace(tree_cache=None)
    updater = SimpleNamespace(scheduler=scheduler, offload_tags=left)
    original = Original("done", cast(Any, weights.calls))
    request = SimpleNamespace(tags=tags)
    assert plugin.released(original, updater, request) == "done"
    assert plugin.resumed(original, updater, request) == "done"
    assert weights.calls == said


def test_other_caches_are_left_alone() -> None:
    other = SimpleNamespace()  # whatever is asked of it fails
    scheduler: Any = SimpleNamespace(tree_cache=other, enable_overlap=False)
    updater = SimpleNamespace(scheduler=scheduler)
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (plugin.plan, (scheduler, "running", "last")),
        (plugin.run, (scheduler, "batch", "more")),
        (plugin.add, (adder(other), req(), False, None)),
        (plugin.add_chunk, (adder(other), req())),
        (plugin.updated, (updater, "request")),
        (plugin.flushed, (scheduler,)),
    ]
    for hook, given in calls:
        original = Original("its own")
        assert hook(original, *given) == "its own"
        assert original.given == [given]


def test_an_empty_setting_is_that_of_the_model() -> None:
    settings = SpliceSettings.parse("", MODEL)
    assert settings == SpliceSettings(weights=MODEL)
    assert settings.mode is Mode.PREFIX
    assert SpliceSettings.parse('{"weights": "/w"}', MODEL).weights == "/w"


def test_settings_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spliced.json"
    file.write_text(json.dumps({"mode": "splice", "stall_ms": 20, "find": ["chunks"]}))
    settings = SpliceSettings.parse(f"@{file}", MODEL)
    assert settings.mode is Mode.SPLICE
    assert (settings.stall_ms, settings.find, settings.weights) == (20.0, ("chunks",), MODEL)
    with pytest.raises(ValueError, match=f"{VARIABLE}: .*No such file"):
        SpliceSettings.parse(f"@{file}s", MODEL)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"mdoe": "splice"}', "mdoe: unknown, want one of weights"),
        ('{"stall_ms": -1}', "stall_ms: -1.0, want 0 to 60000"),
        ('{"canary_share": 2}', "canary_share: 2.0, want 0 to 1"),
        ('{"answers": 1}', "answers: 1, want bool"),
        ('{"mode": "both"}', "mode: 'both', want prefix or splice"),
        ('{"weights": ""}', "weights: missing"),
        ('["mode"]', "a list, want an object"),
        ("{mode}", VARIABLE),
    ],
)
def test_settings_that_are_wrong_end_the_start(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{VARIABLE}: ") as wrong:
        SpliceSettings.parse(text, MODEL)
    assert said in str(wrong.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=VARIABLE) as wrong:
        SpliceSettings.parse('{"stall_ms": "x", "load_ms": 0, "tenants": 3}', MODEL)
    for part in ("stall_ms: 'x', want float", "load_ms: 0.0, want 0.1", "tenants: unknown"):
        assert part in str(wrong.value)
