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


Rows = tuple[Tensor, Tensor]
"""Keys [n, KV, d] and values [n, KV, dv] that lie together; of any strides."""


def attend(
    q: Tensor,
    shared: Sequence[tuple[int, Rows]],
    own: Sequence[Rows],
    turns: Turns | None,
    scale: float,
) -> Tensor:
    """Causal attention of the last queries of a request, float32 [m, H, dv].

    q [m, H, d] at their positions. shared: rows of runs, by the number of the run in `turns`. own:
    private rows, the last m of which are the queries' own.
    """
    every = [rows for _, rows in shared] + list(own)
    n = sum(len(k) for k, _ in every)
    heads, dim = every[0][1].shape[1:]
    out = q.new_empty((len(q), q.shape[1], dim), dtype=torch.float32)
    for begin in range(0, len(q), QUERY_ROWS):
        part = q[begin : begin + QUERY_ROWS].float()
        scores = _scores(part * scale, shared, own, turns)  # [KV, G * rows, n]
        if len(q) > 1:
            last = n - len(q) + begin + torch.arange(len(part), device=q.device)
            hidden = torch.arange(n, device=q.device) > last[:, None]
            scores.view(heads, -1, len(part), n).masked_fill_(hidden, -torch.inf)
        weights = scores.softmax(-1).split([len(k) for k, _ in every], -1)
        mixed = sum(
            (w @ v.transpose(0, 1).float() for w, (_, v) in zip(weights, every, strict=True)),
            start=q.new_zeros((), dtype=torch.float32),
        )
        grouped = mixed.view(heads, -1, len(part), dim)
        out[begin : begin + QUERY_ROWS] = grouped.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _scores(
    q: Tensor, shared: Sequence[tuple[int, Rows]], own: Sequence[Rows], turns: Turns | None
) -> Tensor:
    """Products of queries [rows, H, d] with all keys: [KV, G * rows, n]."""
    heads = own[0][0].shape[1]
    straight = _grouped(q, heads)
    backs: Sequence[Tensor] = ()
    if turns is not None:
        each = q.expand(len(turns.cos), *q.shape)
        backs = [_grouped(x, heads) for x in turn(each, turns.cos, turns.sin, turns.interleaved)]
    pairs = [(backs[run] if backs else straight, k) for run, (k, _) in shared]
    pairs += [(straight, k) for k, _ in own]
    return torch.cat([x @ k.permute(1, 2, 0).float() for x, k in pairs], -1)


def _grouped(q: Tensor, heads: int) -> Tensor:
    """Queries [rows, H, d] by the key head that they see: [KV, G * rows, d]."""
    return q.view(len(q), heads, -1, q.shape[-1]).permute(1, 2, 0, 3).flatten(1, 2)
