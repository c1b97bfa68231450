"""Rotary embedding: its form in an identity, and the rotation of rows."""

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
    """Rotates the leading 2*len(inv_freq) columns of rows. A pair consists of neighbouring columns
    if `interleaved` is set, otherwise of one column from each half (as in GPT-NeoX).

    Products are computed in float32 if `wide` is set, otherwise in the rows' dtype, as in most
    models. Rows of float64 are always computed in float64.
    """

    inv_freq: Tensor
    wide: bool = False
    interleaved: bool = False

    def __call__(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Rotates rows [n, heads, dim] to their positions [n]."""
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
    """Returns the rotation that a model's rotary module applies."""
    scaling = getattr(embedding, "attention_scaling", 1.0)
    if scaling != 1.0:
        raise UnsupportedError(f"rope scales attention by {scaling}, want 1")
    return Turn(tensor(embedding, "inv_freq"), wide, interleaved)


def rope_of(config: object, dim: int) -> Rope:
    """Returns the identity's form of the config's rope over heads of the given size.

    It uses the rules by which identities are read from config files, so that both agree.
    """
    return _read(config, lambda fields: fields.rope(dim))


def latent_rope_of(config: object, dim: int) -> Rope:
    """Returns the rope of latent attention, which rotates the whole shared key, in pairs."""
    return replace(_read(config, lambda fields: fields.rope_over(dim)), interleaved=True)


def _read(config: object, read: Callable[[Fields], Rope]) -> Rope:
    problems = Problems()
    values = {name: getattr(config, name, None) for name in _FIELDS}
    rope = read(Fields(values, problems))
    if problems.texts:
        raise UnsupportedError(f"config: {'; '.join(problems.texts)}")
    return rope
