"""Loads a model of transformers and its tokenizer from a directory, without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spliced_connector.segments import Tokenizer
from spliced_connector.walk import Architecture, Naming, architecture


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model. ends: tokens that end an answer. longest: maximum tokens of a context, 0 if the
    config does not say. vocabulary: token ids are below it."""

    arch: Architecture
    device: torch.device
    ends: frozenset[int]
    longest: int
    vocabulary: int


def load(directory: Path, dtype: str = "auto", device: str = "cpu") -> Loaded:
    """Loads a model. dtype: "auto" for the checkpoint's type, or torch's name of a type.

    The identity names the config instead of the weights, so no data may be shared under it.
    Raises UnsupportedError for a model whose segments cannot be reused, OSError or ValueError for
    a directory without a model, and ValueError for a device that cannot hold it.
    """
    kind = dtype if dtype == "auto" else getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=kind, local_files_only=True)
    try:
        model = model.to(device).eval()
    except (RuntimeError, AssertionError) as err:  # torch without CUDA asserts
        raise ValueError(f"device {device}: {err}") from err
    named = hashlib.sha256((directory / "config.json").read_bytes()).digest()
    return Loaded(
        arch=architecture(model, Naming(named)),
        device=torch.device(device),
        ends=_ends(model.generation_config.eos_token_id, model.config.eos_token_id),
        longest=getattr(model.config, "max_position_embeddings", None) or 0,
        vocabulary=model.get_input_embeddings().weight.shape[0],
    )


def load_tokenizer(directory: Path) -> Tokenizer:
    """Loads a model's tokenizer. Raises ValueError if there is none."""
    try:
        return cast(Tokenizer, AutoTokenizer.from_pretrained(directory, local_files_only=True))
    except (OSError, ValueError) as err:
        raise ValueError(f"the tokenizer of {directory} cannot be loaded: {err}") from err


def _ends(*named: int | Sequence[int] | None) -> frozenset[int]:
    """Returns the token ids of the first given setting of a model."""
    for ids in named:
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
