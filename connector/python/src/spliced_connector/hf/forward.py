"""Calls of the library's own forward after a cache.

Some classes of transformers restart positions unless positions are passed. Some restart the
recurrence if more than one token follows a cache. A single token, passed with its position, is
computed correctly by all classes.
"""

from __future__ import annotations

import inspect
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names that the cache parameter of a model's forward may have. transformers uses the first name
since 5.24."""


def cache_name(model: PreTrainedModel) -> str:
    """Returns the name of the cache: a parameter of the model's forward and field of its output."""
    parameters = _parameters(model)
    return next((name for name in CACHE_NAMES if name in parameters), "past_key_values")


def step(model: PreTrainedModel, cache: Cache, ids: Tensor, position: int) -> Tensor:
    """Computes tokens ids [n] after a cache and adds them to it; the first is at `position`.

    Returns the logits [vocabulary] of the last token. After a cache that is not empty, only n = 1
    is computed correctly by all classes.
    """
    given: dict[str, object] = {cache_name(model): cache}
    if "position_ids" in _parameters(model):
        given["position_ids"] = torch.arange(position, position + len(ids), device=ids.device)[None]
    out = model(ids[None], use_cache=True, **given)
    return cast(Tensor, out.logits[0, -1])


def _parameters(model: PreTrainedModel) -> frozenset[str]:
    return frozenset(inspect.signature(type(model).forward).parameters)
