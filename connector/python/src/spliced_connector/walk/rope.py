"""Rotary embedding: what the identity says about it, and turning rows by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spliced_connector.model import Fields, Problems, Rope
from spliced_connector.walk.reading import UnsupportedError, tensor

_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_dim")


@dataclass(frozen=True)
class Turn:
    """Rotates the leading 2*len(inv_freq) columns of rows: NeoX halves, or neighbours as pairs.

    With `wide`, products are taken in float32 whatever the rows' dtype; else as
    most models do, in the rows' own.
    """

    inv_freq: Tensor
    wide: bool = False
    interleaved: bool = False

    def __call__(self, rows: Tensor, positions: Tensor) -> Tensor:
        """rows [n, heads, dim] turned to their positions [n]."""
        angles = positions[:, None].float() * self.inv_freq.float()
        dtype = torch.float32 if self.wide else rows.dtype
        if rows.dtype == torch.float64:
            dtype = rows.dtype
        cos, sin = angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]
        half = self.inv_freq.shape[0]
        if self.interleaved:
            a, b = rows[..., 0 : 2 * half : 2], rows[..., 1 : 2 * half : 2]
        else:
            a, b = rows[..., :half], rows[..., half : 2 * half]
        both = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.stack(both, -1).flatten(-2) if self.interleaved else torch.cat(both, -1)
        return torch.cat((turned.to(rows.dtype), rows[..., 2 * half :]), dim=-1)


def turn_of(embedding: nn.Module, wide: bool = False, interleaved: bool = False) -> Turn:
    """The rotation that a model's rotary module applies."""
    scaling = getattr(embedding, "attention_scaling", 1.0)
    if scaling != 1.0:
        raise UnsupportedError(f"rope scales attention by {scaling}, want 1")
    return Turn(tensor(embedding, "inv_freq"), wide, interleaved)


def rope_of(config: object, dim: int) -> Rope:
    """What an identity says of the config's rope over heads of the given size.

    By the rules that identities are read from config files with, so that both name the same.
    """
    return _read(config, lambda fields: fields.rope(dim))


def latent_rope_of(config: object, dim: int) -> Rope:
    """The same of latent attention, which turns the whole shared key, in pairs."""
    return replace(_read(config, lambda fields: fields.rope_over(dim)), interleaved=True)


def _read(config: object, read: Callable[[Fields], Rope]) -> Rope:
    problems = Problems()
    values = {name: getattr(config, name, None) for name in _FIELDS}
    rope = read(Fields(values, problems))
    if problems.texts:
        raise UnsupportedError(f"config: {'; '.join(problems.texts)}")
    return rope
