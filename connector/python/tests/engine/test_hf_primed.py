"""Segments captured after a primer, which variant is reused, and what is computed in context."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, WARMING, engine, far, own, tokens
from engine.hybrids import qwen35
from running import Daemon, StartDaemon
from spliced_connector.hf import SplicedTransformers
from spliced_connector.model import divide
from spliced_connector.walk import Captured, capture, make_primer, rounded, unpack
from spliced_connector.walk.base import SegmentLayer
from spliced_connector.walk.segments import FIELDS

pytestmark = pytest.mark.engine

PRIMER = tuple(tokens(50, seed=99))
AFTER = 100
PRIMED = replace(WARMING, primer=PRIMER, primer_after=AFTER)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def kept(layer: SegmentLayer) -> list[str]:
    """Names of the parts that a layer has."""
    return [n for n in FIELDS.values() if getattr(layer, n) is not None]


def parts(captured: Captured) -> list[Tensor]:
    return [getattr(layer, n) for layer in captured.layers for n in kept(layer)]


def stored(e: SplicedTransformers, ids: list[int], index: int) -> Captured | None:
    """The segment of a prompt as the daemon has it, in the variant that its place prefers."""
    reuse = e._reuse
    assert reuse is not None
    salt = reuse.model.salt or b""
    piece = divide(reuse.profile, salt, ids, CUTS, 8, primer=reuse.lead).pieces[index]
    assert piece.spec is not None
    assert piece.key is not None
    [held] = reuse.model.acquire([piece.key])
    if held is None:
        return None
    found = unpack(reuse.profile, piece.spec, held)
    copied = tuple(
        SegmentLayer(**{n: getattr(layer, n).clone() for n in kept(layer)})
        for layer in found.layers
    )
    assert held.release()
    return Captured(found.spec, copied)


def test_segments_further_on_are_captured_after_the_primer(
    model: PreTrainedModel, connect: Connect, start_daemon: StartDaemon
) -> None:
    """The same whatever stands before them, and what the walk captures after the primer."""
    found = []
    passage = tokens(60, seed=2)
    for seed in (3, 4):
        e = engine(model, connect, start_daemon(), settings=PRIMED)
        ids = [*tokens(120, seed=seed), *passage, *tokens(20, seed=seed)]
        cold = e.prefill(ids, CUTS, "splice")
        warm = e.prefill(ids, CUTS, "splice")
        assert (cold.captured, warm.captured, warm.reused) == (180, 0, 148)
        assert far(cold.logits, warm.logits) <= 1e-5
        third = stored(e, ids, 2)
        assert third is not None
        found.append(third)
    reuse = e._reuse
    assert reuse is not None
    primer = make_primer(reuse.arch, PRIMER)
    assert found[0].spec.primer == primer.digest
    want = rounded(reuse.profile, capture(reuse.arch, passage, found[0].spec, primer=primer))
    plain = replace(found[0].spec, primer=b"")
    alone = rounded(reuse.profile, capture(reuse.arch, passage, plain))
    for one, other, right in zip(*map(parts, (*found, want)), strict=True):
        assert torch.equal(one, other)
        assert far(one, right) <= 1e-5
    assert max(far(a, b) for a, b in zip(parts(want), parts(alone), strict=True)) > 1e-3


def test_the_other_variant_stands_in(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    ids = tokens(200)
    without = engine(model, connect, daemon)
    without.prefill(ids, CUTS, "splice")
    alone = without.prefill(ids, CUTS, "splice")
    primed = engine(model, connect, daemon, settings=PRIMED)
    other = primed.prefill(ids, CUTS, "splice")
    assert (other.captured, other.reused) == (0, alone.reused)
    assert far(other.logits, alone.logits) <= 1e-6
    assert stored(primed, ids, 2) is None
    # At its place in another prompt the second segment prefers to be after the primer.
    moved = [*tokens(60, seed=5), *ids[:60], *ids[60:]]
    done = primed.prefill(moved, [0, 60, 120, 180, 240], "splice")
    assert done.captured == 60 + 60, "the first, and the one that led its prompt before"


def test_a_daemon_without_primers_gets_segments_without(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    primed = engine(model, connect, daemon, settings=PRIMED)
    reuse = primed._reuse
    assert reuse is not None
    assert reuse.model.primers
    monkeypatch.setattr(type(reuse.model), "primers", property(lambda _: False))
    ids = tokens(200)
    assert primed.prefill(ids, CUTS, "splice").captured == 180
    monkeypatch.undo()
    assert stored(primed, ids, 2) is None
    without = engine(model, connect, daemon)
    assert without.prefill(ids, CUTS, "splice").captured == 0


def test_the_last_segments_are_computed_in_context(
    model: PreTrainedModel, connect: Connect, daemon: Daemon
) -> None:
    ids = tokens(200)
    whole = engine(model, connect, daemon)
    whole.prefill(ids, CUTS, "splice")
    reused = [60, 44, 44]
    for refresh, parts in ((0.0, 3), (0.2, 2), (0.5, 1)):
        e = engine(model, connect, daemon, settings=replace(WARMING, refresh=refresh))
        done = e.prefill(ids, CUTS, "splice")
        assert (done.captured, done.reused) == (0, sum(reused[:parts]))
        assert done.approximate == (parts > 1)
    everything = engine(model, connect, daemon, settings=replace(WARMING, refresh=1.0))
    done = everything.prefill(ids, CUTS, "splice")
    assert (done.reused, done.approximate) == (0, False)
    assert far(done.logits, own(model, ids)) <= 1e-4
