"""What of a config goes into the name of its weights, and what does not."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from pathlib import Path

import pytest

from spliced_connector.errors import ProfileError
from spliced_connector.model import DType, from_config, identity_digest

CONFIGS = Path(__file__).parents[3] / "policy/profile/testdata/config"
WEIGHTS = b"\x05" * 32
CONFIG: dict[str, object] = {
    "model_type": "llama",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "time_step_limit": [0.0, math.inf],
    "mlp_bias": False,
}


def digest(**changes: object) -> bytes:
    return identity_digest(WEIGHTS, CONFIG | changes, "bfloat16")


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 1e-5},
        {"rms_norm_eps": 1.0000000000000002e-6},
        {"hidden_act": "gelu"},
        {"num_experts_per_tok": 1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.5}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "dtype": "x"}},
        {"time_step_limit": [0.0, 1e300]},
        {"time_step_limit": [math.inf, 0.0]},
        {"mlp_bias": True},
        {"mlp_bias": 0},
        {"logits_scaling": 1},
        {"a setting of tomorrow": 3},
    ],
)
def test_what_may_change_values_changes_the_name(changes: dict[str, object]) -> None:
    assert digest(**changes) != digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": OrderedDict(rope_theta=10000, rope_type="default")},
        {"time_step_limit": (0, math.inf)},
        {"time_step_limit": [-0.0, {"__float__": "Infinity"}]},
        {"num_experts_per_tok": 2.0},
        {"sliding_window": None},
        {"transformers_version": "5.19", "_name_or_path": "/models/m", "dtype": "float32"},
        {"pad_token_id": 3, "eos_token_id": [1, 2], "id2label": {0: "a"}, "use_cache": False},
        {"output_router_logits": True, "attention_dropout": 0.5, "tie_word_embeddings": True},
    ],
)
def test_what_cannot_change_values_does_not(changes: dict[str, object]) -> None:
    assert digest(**changes) == digest()


def test_order_of_settings_does_not_count() -> None:
    assert identity_digest(WEIGHTS, dict(reversed(CONFIG.items())), "bfloat16") == digest()


@pytest.mark.parametrize("name", ["text_config", "llm_config"])
def test_of_a_model_with_more_than_text_the_text_counts(name: str) -> None:
    whole = {"model_type": "both", "vision_config": {"depth": 3}, name: CONFIG}
    assert identity_digest(WEIGHTS, whole, "bfloat16") == digest()


def test_how_weights_are_quantised_counts_and_leaves_the_layers() -> None:
    """The states' element types are what an engine says, whatever its weights are stored in."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["a"]}
    nvfp4 = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}, "targets": []}},
        "kv_cache_scheme": None,
    }
    named = {digest(quantization_config=how) for how in (None, fp8, nvfp4)}
    assert len(named) == 3
    config: dict[str, object] = json.loads((CONFIGS / "qwen3.5-35b-a3b.json").read_text())
    plain = from_config(config, WEIGHTS, state=DType.BF16)
    assert from_config(config | {"quantization_config": fp8}, WEIGHTS, state=DType.BF16) == plain
    assert plain.layers[0].linear.state_dtype == DType.BF16


def test_types_that_are_computed_in_and_the_weights_count() -> None:
    named = {
        digest(),
        identity_digest(WEIGHTS, CONFIG, "float32"),
        identity_digest(WEIGHTS, CONFIG, "bfloat16", "bfloat16"),
        identity_digest(b"\x06" * 32, CONFIG, "bfloat16"),
    }
    assert len(named) == 4
    assert identity_digest(WEIGHTS, CONFIG, "torch.bfloat16", "torch.float32") == digest()


def test_the_form_is_written_down() -> None:
    """Daemons keep what was stored under this name: another form is another cache."""
    assert digest().hex() == "5e3e58cdcb347da6d560c05d769e009cf87be3dd1bc397979729d47f32524fe5"


@pytest.mark.parametrize("weights", [bytes(32), b"", b"\x01" * 20])
def test_unknown_weights_stay_unknown(weights: bytes) -> None:
    assert identity_digest(weights, CONFIG, "bfloat16") == weights


def test_a_value_that_is_no_data_has_no_name() -> None:
    with pytest.raises(ProfileError, match=r"config\.inner\.hook is a object"):
        digest(inner={"hook": object()})
