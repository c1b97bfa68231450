"""Which engines compute a model's states alike, and which need names of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spliced_connector.errors import ProfileError
from spliced_connector.model import UNBOUNDED, served, time_steps

TAGGED = [0.0, {"__float__": "Infinity"}]


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"model_type": "nemotron_h"}, (0.001, math.inf)),
        ({"model_type": "nemotron_h", "time_step_min": 0.01}, (0.01, math.inf)),
        ({"model_type": "falcon_h1", "time_step_limit": [0.0, 0.1]}, (0.0, 0.1)),
        ({"model_type": "granitemoehybrid", "time_step_limit": (0.5, math.inf)}, (0.5, math.inf)),
        ({"model_type": "bamba", "time_step_limit": [0, 1]}, (0.0, 1.0)),
        ({"model_type": "mamba2", "time_step_limit": [0.001, 0.1]}, (0.001, 0.1)),
    ],
)  # fmt: skip
def test_engines_that_bound_time_steps_differently_share_nothing(
    config: dict[str, Any], own: tuple[float, float]
) -> None:
    """Both names are others than that of a release that did not look at the bounds."""
    assert "" != time_steps(config, own) != served(config) != ""
    assert time_steps(config, UNBOUNDED) == served(config)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "nemotron_h", "time_step_min": 0.0, "time_step_limit": [0.001, 0.1]},
        {"model_type": "nemotron_h", "time_step_min": 0},
        {"model_type": "granitemoehybrid", "time_step_limit": TAGGED, "time_step_min": 0.001},
        {"model_type": "granitemoehybrid", "time_step_limit": [0, math.inf], "mamba_n_groups": 1},
        {"model_type": "falcon_h1", "time_step_limit": None, "mamba_norm_before_gate": True},
        {"model_type": "falcon_h1", "mamba_rms_norm": True, "mamba_norm_before_gate": False},
        {"model_type": "mamba2", "n_groups": 1},
        {"model_type": "bamba"},
        {"model_type": "jamba", "time_step_limit": [0.001, 0.1], "time_step_min": 0.001},
        {"model_type": "qwen3_next"},
        {"model_type": "nemotron_h_puzzle", "time_step_min": 0.001},
        {"model_type": "nemotron_h_omni", "text_config": {"model_type": "nemotron_h"}},
        {},
    ],
)
def test_names_of_models_that_all_engines_compute_alike_stay(config: dict[str, Any]) -> None:
    """Also of those that transformers has no class of."""
    assert served(config) == time_steps(config, UNBOUNDED) == ""


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "granitemoehybrid", "mamba_n_groups": 2},
        {"model_type": "mamba2", "n_groups": 8},
        {"model_type": "falcon_h1", "mamba_rms_norm": True},
        {"model_type": "zamba2"},
    ],
)
def test_what_is_normed_otherwise_keeps_its_name(config: dict[str, Any]) -> None:
    assert served(config) == ", as vLLM computes it"
    assert time_steps(config, UNBOUNDED) == ""


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": "mamba2", "time_step_limit": [0.0]}, r"time_step_limit: \[0.0\], want two"),
        ({"model_type": "mamba2", "time_step_limit": ["a", 1]}, "time_step_limit: 'a' is not"),
        ({"model_type": "nemotron_h", "time_step_min": None}, "time_step_min: None is not"),
    ],
)
def test_bounds_that_cannot_be_read_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ProfileError, match=text):
        served(config)
