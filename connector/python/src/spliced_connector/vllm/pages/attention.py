"""Attention over private rows and runs of shared ones, whose keys are turned to other positions.

A key k at position p of its segment, of which token 0 stands at s in the request, is R(p) k in its
bin and would be R(s) R(p) k as a private row. Turns are orthogonal and add up, so that the product
with a query q is q . R(s) R(p) k = (R(-s) q) . R(p) k: the query is turned, once for each run, and
the keys are read as they are (RoFormer, equation 16; MEPIC section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk import angles, turn

QUERY_ROWS = 128
"""Queries that are multiplied at once: bounds the scores that are held, [heads, rows, keys]."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one request's runs by one rope: cos and sin [runs, 1, 1, dims / 2]."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    @classmethod
    def back(cls, rope: Rope, distances: Sequence[int]) -> Turns | None:
        """By the distances that the runs' keys lack, backwards; None without positions."""
        if rope.dims == 0:
            return None
        cos, sin = angles(rope, -torch.tensor(distances, dtype=torch.int64))
        return cls(cos[:, None, None], sin[:, None, None], rope.interleaved)


def attend(
    q: Tensor, k: Tensor, v: Tensor, runs: Sequence[int], turns: Turns | None, scale: float
) -> Tensor:
    """Causal attention of the last queries of a request, float32 [m, H, dv].

    q [m, H, d] at their positions. k [n, KV, d] and v [n, KV, dv]: the rows of the runs, whose
    lengths `runs` are, in front of the private ones, the last m of which are the queries' own.
    """
    heads, n = k.shape[1], k.shape[0]
    keys = k.float().transpose(0, 1)  # [KV, n, d]
    values = v.float().transpose(0, 1)
    out = q.new_empty((len(q), q.shape[1], v.shape[2]), dtype=torch.float32)
    for begin in range(0, len(q), QUERY_ROWS):
        part = q[begin : begin + QUERY_ROWS].float()
        scores = _scores(part, keys, runs, turns) * scale  # [KV, G * rows, n]
        if len(q) > 1:
            last = n - len(q) + begin + torch.arange(len(part), device=q.device)
            hidden = torch.arange(n, device=q.device) > last[:, None]
            scores.view(heads, -1, len(part), n).masked_fill_(hidden, -torch.inf)
        mixed = scores.softmax(-1) @ values
        grouped = mixed.view(heads, -1, len(part), v.shape[2])
        out[begin : begin + QUERY_ROWS] = grouped.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _scores(q: Tensor, keys: Tensor, runs: Sequence[int], turns: Turns | None) -> Tensor:
    """Products of queries [rows, H, d] and keys [KV, n, d]: [KV, G * rows, n]."""
    if turns is None or not runs:
        return _grouped(q, len(keys)) @ keys.transpose(1, 2)
    each = q.expand(len(runs), *q.shape)
    turned = turn(each, turns.cos, turns.sin, turns.interleaved)
    own = keys[:, sum(runs) :]
    found, at = [], 0
    for length, back in zip(runs, turned, strict=True):
        found.append(_grouped(back, len(keys)) @ keys[:, at : at + length].transpose(1, 2))
        at += length
    found.append(_grouped(q, len(keys)) @ own.transpose(1, 2))
    return torch.cat(found, -1)


def _grouped(q: Tensor, heads: int) -> Tensor:
    """Queries [rows, H, d] by the key head that they see: [KV, G * rows, d]."""
    return q.view(len(q), heads, -1, q.shape[-1]).permute(1, 2, 0, 3).flatten(1, 2)
