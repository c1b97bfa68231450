"""Tokens that move a state twice show, at the lengths that segments have; see docs/hypic.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from engine.seam_counting import DIM, HEADS, LENGTHS, WAYS, W, errors, operator, tokens
from spliced_connector.walk import Steps, families

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[4] / "docs/hypic.md"


@pytest.mark.parametrize("segments", [1, 8])
@pytest.mark.parametrize("half_life", [16.0, 64.0, 256.0])
def test_only_what_is_counted_once_is_exact(half_life: float, segments: int) -> None:
    twice = []
    for n in LENGTHS:
        found = errors(n, half_life, segments)
        assert found["sink, then interior"] < 1e-12
        assert found["whole, once"] < 1e-12
        assert found["whole, added"] > found["sink, then whole"] > 1e-4
        twice.append(found["sink, then whole"])
    assert twice == sorted(twice, reverse=True), "it fades with the segment's length"
    assert twice[0] > 0.1


def test_the_walk_composes_by_the_same_operators() -> None:
    t = tokens(40, 64.0, torch.Generator().manual_seed(2)).part(W, 40)
    steps = Steps(torch.zeros_like(t.k), t.k, t.v, t.decay.log(), t.beta)
    T, S = operator(t)
    assert T.shape == (HEADS, DIM, DIM)
    # Taking the logarithm of a decay and its exponential again is not exact.
    assert float((families.transition(steps) - T).abs().max()) < 1e-12
    assert float((families.end_state(steps) - S).abs().max()) < 1e-12


def test_the_page_quotes_what_is_computed() -> None:
    rows = re.findall(
        r"^\| (\d+) tokens \| (\d+) \| (\d+) \| (.*) \|$", PAGE.read_text("utf-8"), flags=re.M
    )
    assert len(rows) == 2 * len(LENGTHS)
    for half_life, n, segments, cells in rows:
        found = errors(int(n), float(half_life), int(segments))
        for way, cell in zip(WAYS, cells.split(" | "), strict=True):
            if found[way] > 1e-6:
                assert float(cell) == pytest.approx(found[way], rel=0.06)
            else:
                assert float(cell) < 1e-12
