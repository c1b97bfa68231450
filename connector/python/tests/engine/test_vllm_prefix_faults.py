"""What goes wrong between vLLM and the daemon costs time, never a wrong answer."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.vllm_harness import Answer, Engine, Setup, elsewhere, hybrid_model, prompt
from running import Daemon
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

BLOCK = 256
PROMPT = prompt(700, seed=3)
HIT = 2 * BLOCK


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[Daemon]:
    running = Daemon(directory, "-prefill-speed=500", disk=True)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(directory: Path, daemon: Daemon) -> Iterator[Engine]:
    settings: dict[str, object] = {"timeout_ms": 1500.0, "load_ms": 1500.0}
    running = Engine(Setup(hybrid_model(directory / "model"), daemon.socket, settings))
    yield running
    running.close()


@pytest.fixture(scope="module")
def cold(engine: Engine) -> Answer:
    """The right answer, and a checkpoint to load."""
    (answer,) = engine.ask(PROMPT)
    engine.settle()
    assert answer.cached == 0
    return answer


@pytest.fixture
def warm(engine: Engine, daemon: Daemon, cold: Answer) -> Iterator[Answer]:
    """The daemon runs and has the prefix; the engine itself has forgotten it."""
    engine.wait_attached()
    engine.settle()
    (answer,) = engine.ask(PROMPT)
    assert (answer.cached, answer.tokens) == (HIT, cold.tokens)
    engine.settle()
    yield cold
    engine.settle()


def between_match_and_load(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Let something happen when the next load is about to begin."""
    half = engine.worker
    load = half.load

    def first(plan: object) -> object:
        if getattr(plan, "loads", ()):
            monkeypatch.setattr(half, "load", load)
            happens()
        return load(plan)

    monkeypatch.setattr(half, "load", first)


def ask_through_trouble(engine: Engine, right: Answer) -> tuple[Answer, float]:
    """The answer must be right and the failure counted. Answers also how long it took."""
    failures = engine.counts().get("load_failures", 0)
    began = time.monotonic()
    (answer,) = engine.ask(PROMPT)
    took = time.monotonic() - began
    assert answer.tokens == right.tokens
    assert answer.logprobs == right.logprobs
    assert engine.counts()["load_failures"] == failures + 1
    return answer, took


def test_daemon_stalls_before_the_load(
    engine: Engine, daemon: Daemon, warm: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_match_and_load(engine, monkeypatch, daemon.pause)
    try:
        ask_through_trouble(engine, warm)
    finally:
        daemon.resume()


def test_daemon_stalls_before_the_request(engine: Engine, daemon: Daemon, warm: Answer) -> None:
    daemon.pause()
    try:
        (answer,) = engine.ask(PROMPT)
    finally:
        daemon.resume()
    assert answer.tokens == warm.tokens
    assert answer.cached == 0


def test_memory_of_the_lease_is_lost(
    engine: Engine, warm: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied does not count when the lease was not good to its end."""
    from spliced_connector.client import Checkpoint

    release = Checkpoint.release
    monkeypatch.setattr(Checkpoint, "release", lambda self: release(self) and False)
    ask_through_trouble(engine, warm)


def test_checkpoint_of_another_shape(
    engine: Engine, warm: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spliced_connector.vllm.caches import StatePages

    def refuses(*_: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(StatePages, "write", refuses)
    ask_through_trouble(engine, warm)


def test_request_is_aborted_behind_its_load(engine: Engine, warm: Answer) -> None:
    from vllm import SamplingParams

    core = engine.llm.llm_engine
    core.add_request(
        "doomed",
        {"prompt_token_ids": PROMPT},
        SamplingParams(max_tokens=50, detokenize=False, temperature=0),
    )
    loads = engine.counts()["loads"]
    core.step()
    assert engine.counts()["loads"] == loads + 1
    core.abort_request(["doomed"])
    (answer,) = engine.ask(PROMPT)
    assert answer.tokens == warm.tokens
    mode = engine.scheduler._mode
    assert isinstance(mode, PrefixScheduler)
    assert not mode._prompts


def test_daemon_is_killed_before_the_load(
    engine: Engine, daemon: Daemon, warm: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_match_and_load(engine, monkeypatch, daemon.kill)
    try:
        ask_through_trouble(engine, warm)
    finally:
        daemon.start()


def test_other_weights_share_nothing(
    engine: Engine, daemon: Daemon, warm: Answer, directory: Path
) -> None:
    other = Setup(engine.setup.model, daemon.socket, {"weights": "ab" * 32})
    (answer,) = elsewhere(other, [PROMPT], directory)
    assert (answer.cached, answer.tokens) == (0, warm.tokens)


def test_bytes_on_disk_are_wrong(engine: Engine, daemon: Daemon, warm: Answer) -> None:
    daemon.stop()
    slabs = [path for path in (daemon.directory / "disk").rglob("*.slab") if path.is_file()]
    assert slabs
    for slab in slabs:
        damage(slab)
    daemon.start()
    engine.wait_attached()
    (answer,) = engine.ask(PROMPT)
    assert (answer.cached, answer.tokens) == (0, warm.tokens)
    engine.settle()
    for _ in range(2):
        (answer,) = engine.ask(PROMPT)
        assert answer.tokens == warm.tokens
        engine.settle()
    assert answer.cached == HIT


def damage(path: Path) -> None:
    """Turn a bit in every 512 bytes."""
    data = bytearray(path.read_bytes())
    for at in range(100, len(data), 512):
        data[at] ^= 4
    path.write_bytes(data)
