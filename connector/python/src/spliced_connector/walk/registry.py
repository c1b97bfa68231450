"""Finds the walk over a model's layers by the config's model_type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import cast

from torch import nn

from spliced_connector.model import UNBOUNDED, identity_digest, time_steps
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.mamba2 import step_limits
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.plain import require_plain
from spliced_connector.walk.reading import UnsupportedError, float_dtype

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "qwen3_next": "qwen3_next",
        "qwen3_5_text": "qwen3_next",
        "qwen3_5_moe_text": "qwen3_next",
        "granitemoehybrid": "granite",
        "bamba": "bamba",
        "nemotron_h": "nemotron",
        "falcon_h1": "falcon",
        "zamba2": "zamba",
        "zamba": "zamba",
        "jamba": "jamba",
        "mamba": "mamba",
        "mamba2": "mamba",
        "falcon_mamba": "mamba",
        "minimax": "minimax",
        "kimi_linear": "kimi",
        "bailing_hybrid": "bailing",
        "bailing_moe_linear": "ring",
        "olmo_hybrid": "olmo",
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "llama",
        "qwen3": "llama",
    }
)
"""Modules of `walk.architectures` by model_type; each has `build(model, config, naming)`."""

_WRAPS = "it reads more than text; its text model alone can be used"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "qwen3_5": _WRAPS,
        "qwen3_5_moe": _WRAPS,
        "minicpmv4_6": _WRAPS,
        "minicpmv4_7": _WRAPS,
        "nemotron_h_omni": _WRAPS,
        "nemo_speechlm": _WRAPS,
        "nemotron3_5_transcribe_word_timestamp": "it aligns words with speech",
        "minicpm_ocr": _WRAPS,
        "jev": "it decides over a text model, and generates no text",
        "lfm2_vl": "it reads more than text, and its text model has short convolutions",
        "deepseek_v4": "its attention compresses a running window of tokens",
        "zaya": "its attention convolves queries and keys over tokens and delays values",
        "lfm3_vl": "it reads more than text, and its text model has short convolutions",
        "lfm2": "its short convolutions are no recurrence that segments compose by",
        "lfm2_moe": "its short convolutions are no recurrence that segments compose by",
        "lfm3": "its short convolutions are no recurrence that segments compose by",
        "recurrent_gemma": "its states lie outside the cache, and its attention has a window",
        "rwkv": "its state is a quotient under a running maximum, not a linear recurrence",
        "xlstm": "its state is a quotient under a running maximum, not a linear recurrence",
        "glm5_next": "its attention picks tokens by an index of the whole context",
        "glm5_next_text": "its attention picks tokens by an index of the whole context",
        "qwen4_exp": "its attention picks tokens by an index of the whole context",
        "qwen4_exp_text": "its attention picks tokens by an index of the whole context",
        "inkling_mm_model": "it convolves rows over tokens outside of the mixers",
        "inkling_text": "it convolves rows over tokens outside of the mixers",
        "inkling2": "its attention convolves keys and values over tokens",
        "inkling2_text": "its attention convolves keys and values over tokens",
    }
)
"""Model types of transformers whose segments are not reused, and why."""


def architecture(model: nn.Module, naming: Naming) -> Architecture:
    """Returns the walk over a causal language model of transformers.

    The walk reads the model's own weights, so the model must live as long as the walk. Raises
    `UnsupportedError` if the state cannot be reused; its text says why. Raises `ProfileError` for
    a config with a value that the identity's digest cannot include.
    """
    config: object = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not isinstance(kind, str):
        raise UnsupportedError(f"{type(model).__name__} has no config with a model_type")
    if kind in REFUSED:
        raise UnsupportedError(f"{kind}: {REFUSED[kind]}")
    if kind not in ARCHITECTURES:
        raise UnsupportedError(
            f"model_type {kind!r} is not known, want one of {sorted(ARCHITECTURES)}"
        )
    require_plain(model)
    module = import_module(f"spliced_connector.walk.architectures.{ARCHITECTURES[kind]}")
    dtype = float_dtype(model.get_input_embeddings())
    described = _described(config)
    computed = "float32" + time_steps(described, _step_limits(model))
    named = replace(
        naming,
        model=naming.model or kind,
        weights=identity_digest(naming.weights, described, str(dtype), computed),
    )
    return cast(Architecture, module.build(model, config, named))


def _step_limits(model: nn.Module) -> tuple[float, float]:
    """Returns the bounds that the library's own Mamba2 layers apply to their time steps."""
    bounds = {step_limits(m) for m in model.modules() if hasattr(m, "time_step_limit")}
    if len(bounds) > 1:
        raise UnsupportedError(f"layers bound their time steps differently: {sorted(bounds)}")
    return bounds.pop() if bounds else UNBOUNDED


def _described(config: object) -> Mapping[str, object]:
    to_dict = getattr(config, "to_dict", None)
    if not callable(to_dict):
        raise UnsupportedError(f"a {type(config).__name__} is not a transformers config")
    return cast(Mapping[str, object], to_dict())
