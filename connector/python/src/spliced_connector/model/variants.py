"""Suffixes for engines that compute different states from the same weights and config.

An identity has one digest for a model's weights and config, which includes the type of the states
(`identity_digest`). If two engines apply different constants, that type gets a suffix, so that the
engines share nothing. If the engines agree, the suffix is empty; it must stay so, because daemons
have entries under those identities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spliced_connector.errors import ProfileError
from spliced_connector.model.fields import FLOAT_TAG

UNBOUNDED = (0.0, math.inf)
"""The bounds that vLLM 0.32 and SGLang 0.5.23 apply to Mamba2's time steps, regardless of the
config."""

# Model types whose time steps transformers bounds: from below, or from both sides. Only types that
# more than one engine computes are listed. Zamba2 is not, because its states always differ.
_BOUNDED_BELOW = frozenset({"nemotron_h"})
_BOUNDED = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "mamba2"})

# Model types for which transformers computes the gated norm over all groups at once, with the
# config field that has the number of groups.
_NORMED_WHOLE = {"granitemoehybrid": "mamba_n_groups", "mamba2": "n_groups"}


def time_steps(config: Mapping[str, object], applied: tuple[float, float]) -> str:
    """Returns the suffix for an engine that bounds Mamba2's time steps by `applied`.

    The suffix is empty if no engine bounds the time steps of this model. Raises `ProfileError` if
    the config's bounds cannot be read.
    """
    kind = config.get("model_type")
    if kind in _BOUNDED_BELOW:
        # 0.001 is the default of transformers, for config files without the field.
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
    """Returns the suffix for vLLM and SGLang, which compute Mamba2 layers alike."""
    norm = ", as vLLM computes it" if _normed_otherwise(config) else ""
    return norm + time_steps(config, UNBOUNDED)


def _normed_otherwise(config: Mapping[str, object]) -> bool:
    """Returns whether vLLM normalizes the output of Mamba2 differently from transformers.

    vLLM normalizes each group separately, after the gate. For Zamba2 the norm's epsilon and the
    bounds of time steps differ too.
    """
    kind = str(config.get("model_type"))
    if kind == "falcon_h1":
        before_gate = config.get("mamba_norm_before_gate", True)
        return bool(config.get("mamba_rms_norm")) and bool(before_gate)
    return kind == "zamba2" or config.get(_NORMED_WHOLE.get(kind, ""), 1) != 1


def _limit(value: object) -> tuple[float, float]:
    if value is None:  # only transformers reads this field, and it fails with None
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
