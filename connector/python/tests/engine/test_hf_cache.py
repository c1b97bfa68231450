"""`generate` of every class goes on behind a walk as it does behind the model's own prefill."""

from __future__ import annotations

import random

import pytest
import torch

from engine.walk_models import TINY
from spliced_connector.hf.cache import filled
from spliced_connector.model import Kind
from spliced_connector.walk import Context, Naming, architecture, run

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", sorted(TINY))
def test_generation_goes_on_behind_a_walk(name: str) -> None:
    torch.set_num_threads(1)
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
