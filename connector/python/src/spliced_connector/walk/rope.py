"""Rotary embedding: what the identity says about it, and turning rows by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spliced_connector.profile import Rope
from spliced_connector.walk.reading import UnsupportedError, tensor


@dataclass(frozen=True)
class Turn:
    """Rotates the leading 2*len(inv_freq) columns of rows, NeoX halves.

    With `wide`, products are taken in float32 whatever the rows' dtype; else as
    most models do, in the rows' own.
    """

    inv_freq: Tensor
    wide: bool = False

    def __call__(self, rows: Tensor, positions: Tensor) -> Tensor:
        """rows [n, heads, dim] turned to their positions [n]."""
        angles = positions[:, None].float() * self.inv_freq.float()
        dtype = torch.float32 if self.wide else rows.dtype
        if rows.dtype == torch.float64:
            dtype = rows.dtype
        cos, sin = angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]
        half = self.inv_freq.shape[0]
        a, b = rows[..., :half], rows[..., half : 2 * half]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned.to(rows.dtype), rows[..., 2 * half :]), dim=-1)


def turn_of(embedding: nn.Module, wide: bool = False) -> Turn:
    """The rotation that a model's rotary module applies."""
    scaling = getattr(embedding, "attention_scaling", 1.0)
    if scaling != 1.0:
        raise UnsupportedError(f"rope scales attention by {scaling}, want 1")
    return Turn(tensor(embedding, "inv_freq"), wide)


def rope_of(config: object, dim: int) -> Rope:
    """What an identity says of the config's rope over heads of the given size.

    Frequencies are derived in double precision from the config, so that every
    engine and the daemon name the same ones.
    """
    given = getattr(config, "rope_parameters", None)
    parameters: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    theta = _real(parameters, "rope_theta", 1e4)
    dims = round(dim * _real(parameters, "partial_rotary_factor", 1.0))
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        return Rope(dims=dims, theta=theta)
    plain = [theta ** (-2 * i / dims) for i in range(dims // 2)]
    if kind == "linear":
        factor = _real(parameters, "factor", None)
        return Rope(dims=dims, inv_freq=tuple(f / factor for f in plain))
    if kind == "llama3":
        return Rope(dims=dims, inv_freq=tuple(_llama3(f, parameters) for f in plain))
    raise UnsupportedError(
        f"rope scaling {kind!r} is not supported, want default, linear or llama3"
    )


def _llama3(frequency: float, parameters: Mapping[str, object]) -> float:
    """Keeps short wavelengths, divides long ones, blends those between."""
    factor = _real(parameters, "factor", None)
    low = _real(parameters, "low_freq_factor", None)
    high = _real(parameters, "high_freq_factor", None)
    turns = _real(parameters, "original_max_position_embeddings", None) * frequency / math.tau
    if turns < low:
        return frequency / factor
    if turns > high:
        return frequency
    blend = (turns - low) / (high - low)
    return (1 - blend) * frequency / factor + blend * frequency


def _real(parameters: Mapping[str, object], name: str, default: float | None) -> float:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(f"config: rope_parameters.{name} is {value!r}, want a number")
    return float(value)
