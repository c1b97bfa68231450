"""Two engines of transformers, each with a daemon of one cluster, for one prompt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect, at_most, wait_until
from engine.hf_requests import engine, tokens
from engine.hybrids import MODELS, qwen35
from running import Daemon, StartCluster
from spliced_connector.client import Model
from spliced_connector.hf import HFSettings, SplicedTransformers, weights

pytestmark = pytest.mark.engine

SLOW = "-prefill-speed=5"
"""Tokens a second: to share is always quicker, by what the daemons know."""

SEGMENTS, TOKENS = 6, 60
CUTS = [i * TOKENS for i in range(SEGMENTS + 1)]
COMBINING = HFSettings(keep_all=True, parallel=True, parallel_tokens=200)


def ids_of(seed: int) -> list[int]:
    return tokens(SEGMENTS * TOKENS + 20, seed=seed)


class Helping:
    """An engine whose owner has nothing else to do, on a thread of its own. before: is called
    with each segment that it is about to compute."""

    def __init__(
        self, helper: SplicedTransformers, before: Callable[[], bool] = lambda: True
    ) -> None:
        self.published = 0
        self._idle = 0  # steps that published nothing
        self._over = threading.Event()
        self._helper, self._before = helper, before
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._helper.worker() as worker:
            compute = worker._compute
            worker._compute = lambda *what: self._before() and compute(*what)  # type: ignore[method-assign]
            while not self._over.is_set():
                published = worker.step(wait=0.1)
                self.published += published
                self._idle += not published

    def settled(self) -> int:
        """How many segments it has published, once nothing more is wanted of it."""
        seen = self._idle
        wait_until(lambda: self._idle > seen + 1)  # one of them may have ended before
        return self.published

    def end(self) -> None:
        self._over.set()
        self._thread.join()


Help = Callable[..., Helping]


@pytest.fixture
def helping() -> Iterator[Help]:
    made: list[Helping] = []

    def start(*what: object) -> Helping:
        made.append(Helping(*what))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.end()


def together(e: SplicedTransformers, helper: Helping, first: int = 100) -> int:
    """Waits until the daemons have found each other, with prompts that nobody asks again. Returns
    how many segments the helper has published."""
    seeds = iter(range(first, first + 1000))
    wait_until(lambda: e.prefill(ids_of(next(seeds)), CUTS, "splice").elsewhere > 0)
    published = helper.settled()
    assert published
    return published


def alone(model: PreTrainedModel, connect: Connect, daemon: Daemon, ids: list[int]) -> torch.Tensor:
    """Logits of an engine that computes all of it at home, with a daemon of its own."""
    return engine(model, connect, daemon).prefill(ids, CUTS, "splice").logits


@pytest.mark.parametrize("name", sorted(MODELS))
def test_together_they_say_what_one_says(
    name: str, start_cluster: StartCluster, connect: Connect, daemon: Daemon, helping: Help
) -> None:
    a, b = start_cluster(SLOW)
    here = engine(MODELS[name](), connect, a, settings=COMBINING)
    there = helping(engine(MODELS[name](), connect, b))
    before, ids = together(here, there), ids_of(1)
    done = here.prefill(ids, CUTS, "splice")
    assert not done.trouble
    assert done.elsewhere > 0
    assert 0 < done.captured < SEGMENTS * TOKENS, "both have computed some"
    assert there.settled() - before == SEGMENTS - done.captured // TOKENS
    assert torch.equal(done.logits, alone(MODELS[name](), connect, daemon, ids))
    again = here.prefill(ids, CUTS, "splice")
    assert (again.elsewhere, again.captured) == (0, 0), "now it is held here"
    assert torch.equal(again.logits, done.logits)


def test_an_answer_goes_on_behind_what_others_have_computed(
    start_cluster: StartCluster, connect: Connect, daemon: Daemon, helping: Help
) -> None:
    a, b = start_cluster(SLOW)
    here = engine(qwen35(), connect, a, settings=COMBINING)
    there = helping(engine(qwen35(), connect, b))
    before, ids = together(here, there), ids_of(3)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    out = here.generate(ids, CUTS, "splice", **options)
    assert there.settled() > before
    alone = engine(qwen35(), connect, daemon)
    assert torch.equal(out, alone.generate(ids, CUTS, "splice", **options))


def test_a_helper_that_dies_costs_its_segments(
    start_cluster: StartCluster, connect: Connect, daemon: Daemon, helping: Help
) -> None:
    """Its daemon, while it computes."""
    model = qwen35()
    a, b = start_cluster(SLOW)
    here = engine(model, connect, a, settings=COMBINING)
    killed = threading.Event()
    armed = threading.Event()

    def before() -> bool:
        if armed.is_set() and not killed.is_set():
            killed.set()  # before the kill, which lets the other engine go on
            b.kill()
        return True

    together(here, helping(engine(qwen35(), connect, b), before))
    armed.set()
    ids = ids_of(2)
    done = here.prefill(ids, CUTS, "splice")
    assert killed.is_set()
    assert (done.elsewhere, done.captured) == (0, SEGMENTS * TOKENS)
    assert torch.equal(done.logits, alone(model, connect, daemon, ids))


def test_a_helper_that_declines_costs_its_segments(
    start_cluster: StartCluster, connect: Connect, daemon: Daemon, helping: Help
) -> None:
    model = qwen35()
    a, b = start_cluster(SLOW)
    here = engine(model, connect, a, settings=COMBINING)
    good = threading.Event()
    good.set()
    together(here, helping(engine(qwen35(), connect, b), good.is_set))
    good.clear()
    ids = ids_of(2)
    done = here.prefill(ids, CUTS, "splice")
    assert (done.elsewhere, done.captured) == (0, SEGMENTS * TOKENS)
    assert torch.equal(done.logits, alone(model, connect, daemon, ids))


def test_where_the_tenant_does_not_allow_it_all_is_computed_here(
    start_cluster: StartCluster, connect: Connect, helping: Help
) -> None:
    a, b = start_cluster(SLOW, parallel=False)
    here = engine(qwen35(), connect, a, settings=COMBINING)
    there = helping(engine(qwen35(), connect, b))
    ids = ids_of(1)
    done = here.prefill(ids, CUTS, "splice")
    assert (done.elsewhere, done.captured, there.published) == (0, SEGMENTS * TOKENS, 0)
    assert not done.trouble


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        (HFSettings(keep_all=True), CUTS),
        (HFSettings(keep_all=True, parallel=True, parallel_tokens=6 * TOKENS + 1), CUTS),
        (HFSettings(keep_all=True, parallel=True, parallel_tokens=1), [0, SEGMENTS * TOKENS]),
    ],
    ids=["off", "too little", "one segment"],
)
def test_others_are_asked_for_much_only(
    settings: HFSettings,
    cuts: list[int],
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Model, "plan", lambda *_, **__: asked.append(1))
    here = engine(qwen35(), connect, daemon, settings=settings)
    done = here.prefill(ids_of(1), cuts, "splice")
    assert done.captured == SEGMENTS * TOKENS
    assert not asked


def test_without_a_daemon_there_is_nobody_to_help(connect: Connect, daemon: Daemon) -> None:
    e = engine(qwen35(), connect, daemon)
    daemon.kill()
    with e.worker() as worker:
        for wait in (0.01, 0.0):
            with at_most(wait):
                assert worker.step(wait) == 0
    with at_most(0.0):
        assert worker.step() == 0, "it is closed"


def test_an_engine_with_other_weights_than_it_named_helps_nobody(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Model, "jobs", lambda *_, **__: asked.append(1))
    e = engine(qwen35(), connect, daemon)
    with e.worker() as worker:
        assert worker.step() == 0
        assert len(asked) == 1
        monkeypatch.setattr(weights, "altered", lambda _: "an adapter was added")
        assert worker.step() == 0
    assert len(asked) == 1
