"""Names the arithmetic of engines that compute other states from the same weights and config.

An identity has one name for a model's weights and config. If two engines apply different
constants to them, the state's type in that name gets a suffix, so that they share nothing. It is
empty where the engines agree: those names must not change, since daemons have entries under them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spliced_connector.errors import ProfileError
from spliced_connector.model.fields import FLOAT_TAG

UNBOUNDED = (0.0, math.inf)
"""The bounds that vLLM 0.32 and SGLang 0.5.23 apply to Mamba2's time steps, regardless of the
config."""

# The bounds that transformers applies to time steps, for types that more than one engine
# computes. Zamba2 is left out: it always has a variant.
_BOUNDED_BELOW = frozenset({"nemotron_h"})
_BOUNDED = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "mamba2"})

# Types whose gated norm is computed over all groups at once by transformers.
_NORMED_WHOLE = {"granitemoehybrid": "mamba_n_groups", "mamba2": "n_groups"}


def time_steps(config: Mapping[str, object], applied: tuple[float, float]) -> str:
    """Returns the suffix for bounds on Mamba2's time steps that an engine applies.

    Empty for a model whose time steps no engine bounds. Raises `ProfileError` for a config whose
    bounds cannot be read.
    """
    kind = config.get("model_type")
    if kind in _BOUNDED_BELOW:
        # The default of transformers, for config files that do not have it.
        declared = (_number(config.get("time_step_min", 0.001), "time_step_min"), math.inf)
    elif kind in _BOUNDED:
        declared = _limit(config.get("time_step_limit"))
    else:
        return ""
    if declared == applied == UNBOUNDED:
        return ""
    low, high = applied
    return f", time steps of {low!r} to {high!r}"


def served(config: Mapping[str, object]) -> str:
    """Returns the suffix for vLLM and SGLang, which have the same mixers."""
    norm = ", as vLLM computes it" if _normed_otherwise(config) else ""
    return norm + time_steps(config, UNBOUNDED)


def _normed_otherwise(config: Mapping[str, object]) -> bool:
    """Returns whether the output of Mamba2 is normed differently from transformers.

    vLLM norms it by group and after the gate. Zamba2 also differs in the norm's epsilon and the
    bounds of time steps.
    """
    kind = str(config.get("model_type"))
    if kind == "falcon_h1":
        before_gate = config.get("mamba_norm_before_gate", True)
        return bool(config.get("mamba_rms_norm")) and bool(before_gate)
    return kind == "zamba2" or config.get(_NORMED_WHOLE.get(kind, ""), 1) != 1


def _limit(value: object) -> tuple[float, float]:
    if value is None:  # only transformers reads it, and cannot compute anything with it
        return UNBOUNDED
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ProfileError(f"time_step_limit: {value!r}, want two numbers")
    low, high = (_number(bound, "time_step_limit") for bound in value)
    return low, high


def _number(value: object, name: str) -> float:
    if isinstance(value, Mapping) and set(value) == {FLOAT_TAG}:
        value = float(str(value[FLOAT_TAG]))
    if not isinstance(value, int | float):
        raise ProfileError(f"{name}: {value!r} is not a number")
    return float(value)
