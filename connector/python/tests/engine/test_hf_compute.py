"""Segments of transformers that the daemon's kernels put in place: the same numbers as torch's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import (
    CUTS,
    NAMING,
    WARMING,
    behind_prefix,
    continued,
    engine,
    exchanged,
    far,
    ids_of,
    own,
    tokens,
)
from engine.hybrids import MODELS, qwen35
from engine.walk_models import TINY
from running import Daemon
from spliced_connector.client import Model, Plan, Segment, Slot, WalkTiming
from spliced_connector.errors import Code, SplicedError
from spliced_connector.hf import Prefilled, SplicedTransformers
from spliced_connector.model import DType
from spliced_connector.serving.composing import LONGER, TRIALS, Composed, Composer
from spliced_connector.serving.settings import Compute
from spliced_connector.walk import Copies, Naming

pytestmark = pytest.mark.engine

FAMILIES = ("bamba", "granite", "minimax", "kimi", "bailing", "falcon", "zamba2", "olmo")
ALL: dict[str, Callable[[], PreTrainedModel]] = {
    **MODELS,
    **{name: TINY[name].build for name in FAMILIES},
}
PACKED = Naming(b"\x07" * 32, transition=DType.F32)
NARROW = replace(WARMING, seam_tokens=0)


def engines(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    naming: Naming = NAMING,
    seam: int = 8,
    in_place: bool = False,
) -> tuple[SplicedTransformers, SplicedTransformers]:
    """Two of one model: whose segments torch puts in place, and the daemon."""
    settings = replace(WARMING, seam_tokens=seam, in_place=in_place)
    here, there = (
        engine(model, connect, daemon, naming, replace(settings, compute=way))
        for way in ("engine", "daemon")
    )
    return here, there


def held(
    connect: Connect, daemon: Daemon, **given: Any
) -> tuple[SplicedTransformers, SplicedTransformers, list[int], Prefilled]:
    """`engines` of a model, a prompt whose segments the daemon has, and what torch makes of it."""
    here, there = engines(qwen35(), connect, daemon, **given)
    ids = tokens(200)
    here.prefill(ids, CUTS, "splice")
    return here, there, ids, here.prefill(ids, CUTS, "splice")


def close(got: Tensor, want: Tensor, most: float = 2e-5) -> bool:
    return far(got, want) <= most * float(want.abs().max())


@pytest.mark.parametrize("seam", [0, 8])
@pytest.mark.parametrize("name", sorted(ALL))
def test_the_daemon_gives_what_torch_gives(
    name: str, seam: int, connect: Connect, daemon: Daemon
) -> None:
    model = ALL[name]()
    here, there = engines(model, connect, daemon, seam=seam)
    ids = ids_of(model, 200)
    here.prefill(ids, CUTS, "splice")
    for prompt in (ids, exchanged(ids)):
        here.prefill(prompt, CUTS, "splice")
        want, got = (e.prefill(prompt, CUTS, "splice") for e in (here, there))
        assert got.reused == want.reused >= 148
        assert not got.trouble
        assert close(got.logits, want.logits)
        assert continued(model, prompt, got, 4) == continued(model, prompt, want, 4)
    assert there.composed == Composed(daemon=2)
    assert here.composed.daemon == 0


@pytest.mark.parametrize("name", ["bamba", "kimi", "minimax", "qwen3_5"])
def test_packed_parts_are_read_where_they_lie(name: str, connect: Connect, daemon: Daemon) -> None:
    model = ALL[name]()
    here, there = engines(model, connect, daemon, replace(PACKED, tolerance=0.02))
    ids = ids_of(model, 200)
    here.prefill(ids, CUTS, "splice")
    want, got = (e.prefill(ids, CUTS, "splice") for e in (here, there))
    assert got.reused == want.reused == 148
    assert there.composed == Composed(daemon=1)
    assert close(got.logits, want.logits)


def test_behind_a_prefix(connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    here, there = engines(model, connect, daemon)
    ids, cuts = behind_prefix(here)
    here.prefill(ids, cuts, "splice")
    ids = ids[:-20] + tokens(20, seed=8)
    want, got = (e.prefill(ids, cuts, "splice", keep=False) for e in (here, there))
    assert got.reused == want.reused > 148
    assert close(got.logits, want.logits)
    assert there.composed == Composed(daemon=1)


@pytest.mark.parametrize("query", [1, 40, 150])
def test_more_segments_than_one_request_takes(query: int, connect: Connect, daemon: Daemon) -> None:
    model = qwen35()
    for seam in (0, 8):
        here, there = engines(model, connect, daemon, seam=seam)
        texts = [tokens(30, seed=seed) for seed in range(11)]
        cuts = list(range(0, 331, 30))
        ids = [t for text in texts for t in text] + tokens(query, seed=99)
        here.prefill(ids, cuts, "splice")
        want, got = (e.prefill(ids, cuts, "splice") for e in (here, there))
        assert got.reused == want.reused
        assert close(got.logits, want.logits)
        assert there.composed == Composed(daemon=1)


@pytest.mark.parametrize("name", sorted(ALL))
def test_one_segment_in_front_is_assembled(
    name: str, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ALL[name]()
    here, there = engines(model, connect, daemon)
    ids, cuts = ids_of(model, 130), [0, 110]
    here.prefill(ids, cuts, "splice")
    monkeypatch.delattr(Model, "compose")
    monkeypatch.delattr(Model, "rotate")
    want, got = (e.prefill(ids, cuts, "splice") for e in (here, there))
    assert got.reused == want.reused == 110
    assert there.composed == Composed(daemon=1)
    assert close(got.logits, want.logits)
    assert continued(model, ids, got, 4) == continued(model, ids, want, 4)


@pytest.mark.parametrize("operation", ["assemble", "compose", "rotate"])
def test_what_the_daemon_refuses_is_composed_here(
    operation: str, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen35()
    here, there = engines(model, connect, daemon)
    ids, cuts = tokens(200), [0, 180] if operation == "assemble" else CUTS
    here.prefill(ids, cuts, "splice")
    want = here.prefill(ids, cuts, "splice")
    asked: list[object] = []
    monkeypatch.setattr(Model, operation, lambda self, *given, **_: asked.append(given))
    for _ in range(2):
        got = there.prefill(ids, cuts, "splice")
        assert got.reused == want.reused
        assert close(got.logits, want.logits)
    assert there.composed == Composed(engine=2, refused=1)
    assert len(asked) == 1, "a daemon that has refused is left alone for a while"


def test_segments_read_in_place_are_composed_here(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk that failed could not take back the places that it has given to pages."""
    _, there, ids, want = held(connect, daemon, in_place=True)
    monkeypatch.setattr(Model, "compose", lambda *_, **__: None)
    got = there.prefill(ids, CUTS, "splice")
    assert (got.reused, got.trouble) == (want.reused, "")
    assert close(got.logits, want.logits)
    assert there.composed == Composed(engine=1)


def test_a_daemon_that_dies_within_a_walk(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there, ids, want = held(connect, daemon)
    compose = Model.compose
    killed: list[int] = []

    def dying(self: Model, plan: Plan, layer: int, *given: Any, **named: Any) -> Slot | None:
        if layer > 0 and not killed:
            killed.append(daemon.pid)
            daemon.kill()
        return compose(self, plan, layer, *given, **named)

    monkeypatch.setattr(Model, "compose", dying)
    got = there.prefill(ids, CUTS, "splice")
    assert there.composed.refused == 1
    assert close(got.logits, want.logits)


def test_auto_measures_and_then_keeps_one_way(
    connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    model = qwen35()
    e = engine(model, connect, daemon, settings=replace(WARMING, compute="auto"))
    ids = tokens(200)
    e.prefill(ids, CUTS, "splice")
    first = e.prefill(ids, CUTS, "splice")
    caplog.set_level(logging.INFO, "spliced")
    timed = []
    for _ in range(TRIALS + 1):
        assert close(e.prefill(ids, CUTS, "splice").logits, first.logits)
        assert e._reuse is not None
        timed.append(any(isinstance(s, WalkTiming) for s in e._reuse._samples))
    assert timed == [False] * (TRIALS - 1) + [True, True], (
        "a walk both ways is no measurement of one"
    )
    assert e.composed.daemon + e.composed.engine == 2 * TRIALS + 2
    said = [r for r in caplog.records if "segments are composed by the" in r.getMessage()]
    assert len(said) == 1


def test_the_daemon_is_waited_for_as_long_as_the_engines_own_walks_say(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that serves waits 50 ms for an answer: less than a large model's states take."""
    _, there, ids, _ = held(connect, daemon)
    assert there._reuse is not None
    composer = there._reuse.composer
    composer.wait = 1e-9
    asked: list[float | None] = []
    compose = Model.compose

    rotate = Model.rotate

    def composed(self: Model, *given: Any, **named: Any) -> Slot | None:
        asked.append(named["wait"])
        return compose(self, *given, **(named | {"wait": 20.0}))

    def rotated(self: Model, *given: Any, **named: Any) -> Slot | None:
        asked.append(named["wait"])
        return rotate(self, *given, **(named | {"wait": 20.0}))

    monkeypatch.setattr(Model, "compose", composed)
    monkeypatch.setattr(Model, "rotate", rotated)
    there.prefill(ids, CUTS, "splice")
    assert there.composed == Composed(engine=1) and not asked, "it has to be measured first"
    bound = composer.patience(200)
    assert bound is not None and bound == LONGER * 200 * composer._own > 1e-9
    there.prefill(ids, CUTS, "splice")
    assert there.composed == Composed(engine=1, daemon=1) and set(asked) == {bound}
    composer.wait = 1e9
    assert composer.patience(200) == 1e9


def test_a_damaged_segment_does_not_cost_what_was_captured(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen35()
    here, there = engines(model, connect, daemon)
    ids = tokens(200)
    here.prefill([*ids[:120], *tokens(60, seed=8), *ids[180:]], CUTS, "splice")

    def damaged(*_: object) -> memoryview:
        raise SplicedError(Code.GONE, "it is not in memory")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "part", damaged)
        got = there.prefill(ids, CUTS, "splice")
    assert "a leased segment" in got.trouble
    assert (got.reused, got.computed, got.captured) == (0, 200, 60)
    assert close(got.logits, own(model, ids), 1e-4)
    assert here.prefill(ids, CUTS, "splice").reused == 148


@pytest.fixture
def composer(connect: Connect, daemon: Daemon) -> Composer:
    e = engine(qwen35(), connect, daemon)
    assert e._reuse is not None
    return Composer(e._reuse.arch, e._reuse.model, Copies(torch.device("cpu")))


@pytest.mark.parametrize(
    ("engine_seconds", "daemon_seconds", "want"),
    [
        ([1, 1, 1, 1, 1], [2, 2, 2, 2, 2], Compute.ENGINE),
        ([3, 3, 3, 1, 1], [2, 2, 2, 2, 2], Compute.DAEMON),
        ([3, 3, 3, 3, 3], [2, 2, float("inf"), float("inf"), float("inf")], Compute.ENGINE),
    ],
)
def test_the_median_decides(
    engine_seconds: list[float],
    daemon_seconds: list[float],
    want: Compute,
    composer: Composer,
) -> None:
    for ours, theirs in zip(engine_seconds, daemon_seconds, strict=True):
        assert composer.choice is None
        composer.tried(ours, theirs)
    assert composer.choice is want


def test_where_the_daemon_is_never_asked(composer: Composer) -> None:
    arch, model = composer.arch, composer.model
    on_gpu = Composer(arch, model, Copies(torch.device("meta")), Compute.DAEMON)
    assert on_gpu.choice is Compute.ENGINE
    assert "meta" in on_gpu.never
    plain = Composer(arch, model, Copies(torch.device("cpu")), Compute.DAEMON)
    assert plain.choice is Compute.DAEMON
