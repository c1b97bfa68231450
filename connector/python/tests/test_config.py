"""Configs that cannot be read are refused by name, and the digest of weights is never guessed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from spliced_connector import Profile, from_config, weights_digest
from spliced_connector.errors import ProfileError
from spliced_connector.model import DType, Kind

CONFIGS = Path(__file__).parents[3] / "policy/profile/testdata/config"
WEIGHTS = b"\x01" * 32
SEED = 5
LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 64, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "model_type: missing"),
        ({"model_type": "perceptron"}, "'perceptron' is not known"),
        ({"model_type": 5}, "model_type: 5 is not a text"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 4}, "linear_num_key_heads: missing"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 4}, "linear_conv_kernel_dim: missing"),
        (LLAMA | {"num_hidden_layers": "many"}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": 10**30}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": 5000}, "num_hidden_layers: 5000, want 1 to 4096"),
        (LLAMA | {"num_hidden_layers": -1}, "num_hidden_layers: -1, want 1 to 4096"),
        (
            LLAMA | {"model_type": "qwen2", "num_attention_heads": 28},
            "num_key_value_heads: missing, and the default 32 does not divide num_attention_heads,"
            " which is 28",
        ),
        (
            {"model_type": "minimax_m1", "num_hidden_layers": 2, "attn_type_list": [0]},
            "attn_type_list: 1 entries for 2 layers",
        ),
        (
            {"model_type": "nemotron_h", "num_hidden_layers": 1, "hybrid_override_pattern": "X"},
            "hybrid_override_pattern: 'X' at layer 0",
        ),
        (
            {"model_type": "nemotron_h", "layers_block_type": ["mlp", "conv"]},
            "layers_block_type: 'conv' at layer 1 is not known",
        ),
        (
            {"model_type": "bamba", "num_hidden_layers": 2, "attn_layer_indices": [2]},
            "attn_layer_indices: layer 2, want 0 to 1",
        ),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "'yarn' is not supported"),
        (LLAMA | {"rope_scaling": {"rope_type": "linear"}}, "factor: missing"),
        (LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope scaling: float"),
        (LLAMA | {"rope_scaling": 7}, "rope_scaling: 7 is not an object"),
        (LLAMA | {"rope_theta": float("inf")}, "rope_theta: inf is not a number"),
        (LLAMA | {"head_dim": 10**15}, "rope turns 1000000000000000 dimensions"),
        (LLAMA | {"head_dim": -64}, "rope turns -64 dimensions"),
        (LLAMA | {"head_dim": None, "hidden_size": 100}, "head_dim: missing"),
        (
            {"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 0},
            "full_attention_interval: 0, want at least 1",
        ),
        (
            {"model_type": "bailing_moe_linear", "num_hidden_layers": 2, "layer_group_size": 2,
             "head_dim": 64, "num_attention_heads": 8},
            "decay slopes: not in the config",
        ),
        (
            {"model_type": "bailing_hybrid", "num_hidden_layers": 5, "layer_group_size": 4},
            "layer_group_size: 4 of 5 layers",
        ),
        (
            {"model_type": "bailing_hybrid", "num_hidden_layers": 2, "use_mla_nope": True},
            "use_mla_nope: set",
        ),
        (
            {"model_type": "minicpmv4_6", "text_config": {"model_type": "perceptron"}},
            "'perceptron' is not known",
        ),
        ({"model_type": "kimi_k3"}, "'kimi_k3' is not known"),
        (
            {"model_type": "falcon_h1", "num_hidden_layers": 1, "head_dim": 64},
            "rope_theta: missing",
        ),
        (
            {"model_type": "zamba2", "num_hidden_layers": 1, "layers_block_type": ["moe"]},
            "layers_block_type: 'moe' at layer 0 is not known",
        ),
        (
            {"model_type": "jamba", "num_hidden_layers": 2, "attn_layer_period": 0},
            "attn_layer_period: 0, want at least 1",
        ),
    ],
)  # fmt: skip
def test_configs_that_are_refused_by_name(config: dict[str, object], text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        from_config(config, WEIGHTS)
    assert text in str(caught.value)


def test_options_reach_the_layers() -> None:
    config = json.loads((CONFIGS / "qwen3.5-tiny-dense.json").read_text())
    identity = from_config(
        config, WEIGHTS, model="tiny", adapter="lora", tokenizer="bpe", tp_size=2,
        kv=DType.F32, conv=DType.F16, state=DType.BF16, transition=DType.F32, tolerance=0.02,
    )  # fmt: skip
    assert (identity.model, identity.adapter, identity.tokenizer) == ("tiny", "lora", "bpe")
    assert (identity.tp_size, identity.tolerance) == (2, 0.02)
    linear, full = identity.layers[0].linear, identity.layers[3].attention
    assert [layer.kind for layer in identity.layers] == [Kind.LINEAR] * 3 + [Kind.FULL]
    assert (linear.state_dtype, linear.transition_dtype) == (DType.BF16, DType.F32)
    assert (linear.conv.dtype, full.dtype) == (DType.F16, DType.F32)
    plain = from_config(config, WEIGHTS)
    assert (plain.model, plain.tolerance) == ("qwen3_5_text", 0.0)
    assert Profile(plain).fingerprint != Profile(identity).fingerprint


def test_a_window_begins_where_the_config_says() -> None:
    config = json.loads((CONFIGS / "qwen2-7b.json").read_text())
    config |= {"use_sliding_window": True, "max_window_layers": 20}
    kinds = [layer.kind for layer in from_config(config, WEIGHTS).layers]
    assert kinds == [Kind.FULL] * 20 + [Kind.WINDOW] * 8


def test_nothing_but_profile_errors_comes_from_odd_configs() -> None:
    rng = random.Random(SEED)
    odd: list[object] = [
        None,
        -1,
        0,
        1,
        3,
        2**40,
        2**70,
        0.5,
        -1e300,
        "x",
        [],
        [1],
        ["mamba"],
        {},
        True,
    ]
    refused = 0
    for _ in range(500):
        path = rng.choice(sorted(CONFIGS.glob("*.json")))
        config = json.loads(path.read_text())
        values = config.get("text_config", config)
        for _ in range(rng.randrange(1, 3)):
            values[rng.choice(list(values))] = rng.choice(odd)
        try:
            Profile(from_config(config, WEIGHTS, slopes=lambda layer, heads: [0.01] * heads))
        except ProfileError:
            refused += 1
    assert 100 < refused < 500, f"seed {SEED}: {refused}"


def model_directory(at: Path) -> Path:
    at.mkdir()
    (at / "config.json").write_text("{}")
    (at / "model-00001-of-00002.safetensors").write_bytes(b"one" * 1000)
    (at / "model-00002-of-00002.safetensors").write_bytes(b"two" * 1000)
    return at


def test_the_digest_is_of_names_and_bytes(tmp_path: Path) -> None:
    model = model_directory(tmp_path / "a")
    digest = weights_digest(model)
    assert len(digest) == 32
    assert weights_digest(model_directory(tmp_path / "b")) == digest
    (model / "config.json").write_text("{ }")
    assert weights_digest(model) == digest
    one = model / "model-00001-of-00002.safetensors"
    one.write_bytes(b"One" + b"one" * 999)
    changed = weights_digest(model)
    assert changed != digest
    one.rename(model / "model-00003-of-00002.safetensors")
    assert weights_digest(model) not in (digest, changed)
    assert weights_digest(model / "model-00002-of-00002.safetensors") not in (digest, changed)


def test_an_unknown_digest_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "directory.safetensors").mkdir()
    for source in (
        tmp_path,
        tmp_path / "config.json",
        tmp_path / "none.safetensors",
        tmp_path / "x",
    ):
        with pytest.raises(ProfileError, match="weights: "):
            weights_digest(source)


def test_a_cache_is_used_only_for_the_same_file(tmp_path: Path) -> None:
    model, cache = model_directory(tmp_path / "a"), tmp_path / "cache"
    digest = weights_digest(model, cache)
    kept = sorted(cache.iterdir())
    assert len(kept) == 2
    entry = json.loads(kept[0].read_text())
    kept[0].write_text(json.dumps(entry | {"sha256": "00" * 32}))
    assert weights_digest(model, cache) != digest  # it is what the cache says
    kept[0].write_text("torn{")
    assert weights_digest(model, cache) == digest
    one = model / "model-00001-of-00002.safetensors"
    before = one.stat()
    one.write_bytes(b"ONE" * 1000)
    os.utime(one, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert weights_digest(model, cache) == weights_digest(model) != digest
    assert weights_digest(model, tmp_path / "a" / "config.json" / "no") == weights_digest(model)
