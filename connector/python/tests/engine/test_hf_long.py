"""Long prompts of the transformers adapter: no walk holds more than its share."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import CUTS, engine, far, tokens
from engine.hybrids import qwen35
from running import Daemon
from spliced_connector.model import Span
from spliced_connector.serving import composing
from spliced_connector.walk import run, softmax
from spliced_connector.walk.base import Sight

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return qwen35()


def test_a_splice_in_small_walks_is_the_same(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, connect, daemon)
    ids = tokens(240)
    e.prefill(ids, CUTS, "splice")
    want = e.prefill(ids, CUTS, "splice")
    monkeypatch.setattr(run, "PREFILL_ROWS", 13)
    monkeypatch.setattr(run, "PLACED_ROWS", 50)
    monkeypatch.setattr(softmax, "SCORES", 0)
    walks: list[list[Span]] = []
    splice = run.splice

    def noted(*arguments: object) -> object:
        walks.append(list(arguments[2]))  # type: ignore[call-overload]
        return splice(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(composing, "splice", noted)
    done = e.prefill(ids, CUTS, "splice")
    assert (done.reused, done.computed) == (want.reused, want.computed)
    assert far(done.logits, want.logits) <= 1e-5
    assert max(sum(s.length for s in walk if s.segment < 0) for walk in walks) == 13
    # The first segment keeps 60 rows, more than a walk is to place beside others.
    assert [sum(s.length for s in walk if s.segment >= 0) for walk in walks[:3]] == [60, 44, 44]
    assert sum(s.length for walk in walks for s in walk) == 240


@pytest.mark.parametrize("window", [0, 300])
def test_masks_are_made_where_they_are_used(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MASK", 1 << 15)
    monkeypatch.setattr(softmax, "KEPT", 0)
    spans = [Sight(0, 900, 0, 1000), Sight(900, 1000, 0, 2000)]
    blocks = softmax.blocks(spans, window, torch.float32, torch.device("cpu"))
    assert all(b.given is None for b in blocks)
    assert [b.lo for b in blocks[1:]] == [b.hi for b in blocks[:-1]]
    assert (blocks[0].lo, blocks[-1].hi, blocks[-1].end) == (0, 1000, 2000)
    for b in blocks:
        mask = b.mask(torch.float32, torch.device("cpu"))
        assert mask is not None
        assert mask.shape == (b.hi - b.lo, b.end - b.begin)
        assert mask.numel() <= 1 << 15
        assert torch.equal(
            (mask == 0).sum(1),
            torch.tensor([min(b.position + i + 1, window or 1 << 20) for i in range(b.hi - b.lo)]),
        )
