"""What configs are read as, against the shapes that vLLM allocates and transformers caches."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from spliced_connector.model import DType, Family, Kind, Profile, from_config
from spliced_connector.model.config_models import known_types, table

pytestmark = pytest.mark.engine

CONFIGS = Path(__file__).parents[4] / "policy/profile/testdata/config"
WEIGHTS = b"\x02" * 32
MODELS = "vllm.model_executor.models."


def read(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    text: dict[str, Any] = config.get("text_config", config)
    return text


def profile(config: dict[str, Any], ranks: int = 1) -> Profile:
    slopes = lambda layer, heads: [0.01] * heads  # noqa: E731
    return Profile(from_config(config, WEIGHTS, tp_size=ranks, kv=DType.F32, slopes=slopes))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "module", "model"),
    [
        ("qwen3-next-80b-a3b", MODELS + "qwen3_next", "Qwen3NextForCausalLM"),
        ("qwen3.5-35b-a3b", MODELS + "qwen3_next", "Qwen3NextForCausalLM"),
        ("olmo-hybrid-7b", MODELS + "olmo_hybrid", "OlmoHybridForCausalLM"),
        ("nemotron-h-8b", MODELS + "nemotron_h", "NemotronHForCausalLM"),
        ("granite-4.0-h-350m", MODELS + "granitemoehybrid", "GraniteMoeHybridForCausalLM"),
        ("granite-4.0-h-small", MODELS + "granitemoehybrid", "GraniteMoeHybridForCausalLM"),
        ("falcon-h1-0.5b", MODELS + "falcon_h1", "FalconH1ForCausalLM"),
        ("zamba2-2.7b", MODELS + "zamba2", "Zamba2ForCausalLM"),
        ("mamba-codestral-7b", MODELS + "mamba2", "Mamba2ForCausalLM"),
        ("mamba-130m", MODELS + "mamba", "MambaForCausalLM"),
        ("falcon-mamba-7b", MODELS + "mamba", "MambaForCausalLM"),
        ("jamba-1.5-mini", MODELS + "jamba", "JambaForCausalLM"),
        ("lfm2-1.2b", MODELS + "lfm2", "Lfm2ForCausalLM"),
        ("bailing-2.5-tiny", MODELS + "bailing_moe_linear", "BailingMoeV25ForCausalLM"),
        ("bailing-3-tiny", MODELS + "bailing_moe_v3", "BailingMoeV3ForCausalLM"),
        ("kimi-linear-48b-a3b", "vllm.models.kimi_k3", "KimiLinearForCausalLM"),
    ],
)
def test_states_have_the_shapes_that_vllm_allocates(
    name: str, module: str, model: str, ranks: int
) -> None:
    config = read(name)
    described = SimpleNamespace(**{"mamba_expand": 2} | config)
    engine = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=described, hf_text_config=described),
        cache_config=SimpleNamespace(use_replayssm=False, use_kda_recoverssm=False),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    cls = getattr(importlib.import_module(module), model)
    shapes = [math.prod(s) for s in cls.get_mamba_state_shape_from_config(engine)]
    at = profile(config, ranks)
    for i in at.linear_layers + at.conv_layers:
        linear = at.identity.layers[i].linear
        want = []
        if linear.conv.rows:
            want.append(linear.conv.rows * at.rank_conv_channels(i))
        if i in at.linear_layers:
            want.append(at.rank_heads(i)[1] * linear.key_dim * linear.value_dim)
        assert shapes == want, f"layer {i}"


def test_convolutions_and_rows_have_the_shapes_that_transformers_caches() -> None:
    config = transformers.Lfm2Config(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "conv"],
        conv_L_cache=4,
    )
    model = transformers.Lfm2ForCausalLM(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(9)[None], use_cache=True).past_key_values
    at = profile(config.to_dict())
    kinds = [layer.kind for layer in at.identity.layers]
    assert kinds == [Kind.CONV, Kind.FULL, Kind.CONV, Kind.CONV]
    parts = {(p.layer, p.kind): p.shape for p in at.checkpoint_layout(9).parts}
    for i, layer in enumerate(cache.layers):
        if kinds[i] == Kind.CONV:
            # The library keeps the row itself too, which nothing reads again.
            (inputs,) = layer.conv_states.values()
            channels, rows = inputs.shape[1:]
            assert parts.pop((i, "conv")) == (rows - 1, channels)
        else:
            heads, rows, dim = layer.keys.shape[1:]
            assert parts.pop((i, "K")) == parts.pop((i, "V")) == (rows, heads, dim)
    assert parts == {}


def _published() -> dict[str, str]:
    lines = (CONFIGS.parent / "shapes.txt").read_text().splitlines()
    golden = json.loads((CONFIGS.parent / "shapes.json").read_text())
    shapes = dict(line.split(": ", 1) for line in lines)
    files = {path.stem: path.read_text() for path in CONFIGS.glob("*.json")}
    return {k: v for k, v in shapes.items() if not golden[k].startswith("refused")} | files


@pytest.mark.parametrize("name", sorted(_published()))
def test_a_file_is_read_as_what_transformers_makes_of_it(name: str, tmp_path: Path) -> None:
    """Fields that it leaves out have the defaults of the class."""
    text = _published()[name]
    if json.loads(text)["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers has no such class")
    (tmp_path / "config.json").write_text(text)
    made = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    assert profile(made).identity.layers == profile(json.loads(text)).identity.layers


@pytest.mark.parametrize("kind", sorted({*table()["wrappers"]} & {*transformers.CONFIG_MAPPING}))
def test_wrappers_nest_a_text_model_that_is_read(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind).to_dict()
    assert config["text_config"]["model_type"] in known_types()
    want = profile(config["text_config"]).identity.layers
    assert profile(config).identity.layers == want


def test_wrappers_that_vllm_brings_are_read_as_their_text_model() -> None:
    configs = importlib.import_module("vllm.transformers_utils.configs")
    bailing = profile(configs.BailingMoeV3VLConfig().to_dict()).identity.layers
    assert [layer.kind for layer in bailing] == ([Kind.LINEAR] * 4 + [Kind.MLA]) * 4
    assert {layer.linear.family for layer in bailing} == {Family.NONE, Family.KDA}
    text = read("kimi-k3-tiny")
    kimi = configs.KimiK3Config(text_config=text).to_dict()
    assert profile(kimi).identity.layers == profile(text).identity.layers
