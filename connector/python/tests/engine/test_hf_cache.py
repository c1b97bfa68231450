"""`generate` of every class goes on behind a walk as it does behind the model's own prefill."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from engine.walk_models import TINY
from spliced_connector.hf.cache import filled, read_back
from spliced_connector.model import Kind
from spliced_connector.walk import Context, Naming, architecture, run

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", sorted(TINY))
def test_generation_goes_on_behind_a_walk(name: str) -> None:
    model = TINY[name].build()
    arch = architecture(model, Naming(b"\x01" * 32))
    if not any(kind in (Kind.FULL, Kind.MLA) for kind in arch.layers):
        pytest.skip("generate cannot be handed a cache without attention layers")
    ids = random.Random(2).choices(range(3, 96), k=60)
    line = torch.tensor([ids])
    mask = torch.ones_like(line)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    want = model.generate(line, attention_mask=mask, **options)
    context = Context(arch, len(ids), torch.device("cpu"))
    with torch.no_grad():
        run.prefill(arch, ids[:-1], context)
        cache = filled(model, arch, context)
    got = model.generate(line, attention_mask=mask, past_key_values=cache, **options)
    assert got[0].tolist() == want[0].tolist()


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_cache_that_went_on_is_read_back(name: str) -> None:
    tiny = TINY[name]
    if "time_step_limit" in tiny.settings:  # the library's steps of one token have no bound
        tiny = replace(tiny, settings={**tiny.settings, "time_step_limit": (0.0, math.inf)})
    model = tiny.build()
    arch = architecture(model, Naming(b"\x01" * 32))
    if not any(kind in (Kind.FULL, Kind.MLA) for kind in arch.layers):
        pytest.skip("generate cannot be handed a cache without attention layers")
    line = torch.tensor([random.Random(3).choices(range(3, 96), k=40)])
    got, want = (Context(arch, 60, torch.device("cpu")) for _ in range(2))
    with torch.no_grad():
        run.prefill(arch, line[0, :-1], got)
        cache = filled(model, arch, got)
        options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
        out = model.generate(
            line, attention_mask=torch.ones_like(line), past_key_values=cache, **options
        )
        read_back(model, arch, cache, got)
        run.prefill(arch, out[0, :-1], want)
    assert got.tokens == want.tokens == 43
    for layer, (a, b) in enumerate(zip(got.layers, want.layers, strict=True)):
        for part in ("state", "conv", "k", "v"):
            ours, theirs = getattr(a, part), getattr(b, part)
            if theirs is not None:
                n = len(theirs) if part in ("state", "conv") else 43
                far = (ours[:n] - theirs[:n]).abs().max() / theirs[:n].abs().max()
                assert far <= 1e-4, f"layer {layer}: {part}"
