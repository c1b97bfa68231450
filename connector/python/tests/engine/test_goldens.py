"""The files that the Go reference engine is held to, read by the installed transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from spliced_connector.walk import Context, Naming, architecture, run

pytestmark = pytest.mark.engine

TESTDATA = Path(__file__).resolve().parents[4] / "scripts" / "lab" / "refengine" / "testdata"


@pytest.mark.parametrize("name", ["qwen3next", "qwen35"])
def test_both_engines_read_the_same_logits(name: str) -> None:
    directory = TESTDATA / name
    golden = json.loads((directory / "golden.json").read_text())
    config = AutoConfig.for_model(**json.loads((directory / "config.json").read_text()))
    config.num_experts = 0  # the files are of dense models
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(load_file(directory / "model.safetensors"), False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    ids = torch.tensor(golden["tokens"])
    want = torch.tensor(golden["logits"], dtype=torch.float64).reshape(-1)
    arch = architecture(model, Naming(b"\x01" * 32))
    with torch.no_grad():
        theirs = model(ids[None]).logits[0].double()
        context = Context(arch, len(ids), torch.device("cpu"))
        ours = arch.logits(run.prefill(arch, ids, context)).double()
    rows = want.numel() // theirs.shape[-1]
    for got in (theirs, ours):
        assert (got[-rows:].reshape(-1) - want).abs().max() <= 1e-4
    assert want.abs().max() > 0.5
