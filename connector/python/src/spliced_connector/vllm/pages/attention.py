"""Attention over private rows and runs of shared ones, whose keys are turned to other positions.

A key k at position p of its segment, of which token 0 stands at s in the request, is R(p) k in its
bin and would be R(s) R(p) k as a private row. Turns are orthogonal and add up, so that the product
with a query q is q . R(s) R(p) k = (R(-s) q) . R(p) k: the query is turned, once for each run, and
the keys are read as they are (RoFormer, equation 16; MEPIC section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.vllm.pages.plans import Span
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


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a request, q [H, d]; and the spans that it sees, each with the number of its
    run in `turns`, -1 for private ones."""

    q: Tensor
    spans: Sequence[tuple[int, Span]]
    turns: Turns | None


def attend_each(
    queries: Sequence[Query], rows: Callable[[int, int, int], Rows], scale: float
) -> list[Tensor]:
    """The attention of single queries of several requests, float32 [H, dv] each: of `attend`, but
    that rows which several of them see are read once for all.

    rows: of a span.
    """
    users: dict[Span, list[tuple[int, int]]] = {}
    for i, query in enumerate(queries):
        for j, (_, span) in enumerate(query.spans):
            users.setdefault(span, []).append((i, j))
    heads = rows(*next(iter(users)))[0].shape[1]
    asked = [_turned(query, heads, scale) for query in queries]
    found: list[list[Tensor]] = [[Tensor()] * len(query.spans) for query in queries]
    for span, these in users.items():
        k = rows(*span)[0].permute(1, 2, 0).float()
        scores = torch.cat([asked[i][j] for i, j in these], 1) @ k
        for (i, j), part in zip(these, scores.chunk(len(these), 1), strict=True):
            found[i][j] = part
    for i, parts in enumerate(found):
        lengths = [part.shape[-1] for part in parts]
        found[i] = list(torch.cat(parts, -1).softmax(-1).split(lengths, -1))
    mixed: list[Tensor | None] = [None] * len(queries)
    for span, these in users.items():
        v = rows(*span)[1].transpose(0, 1).float()
        out = torch.cat([found[i][j] for i, j in these], 1) @ v
        for (i, _), part in zip(these, out.chunk(len(these), 1), strict=True):
            before = mixed[i]
            mixed[i] = part if before is None else before + part
    return [one.flatten(0, 1) for one in mixed if one is not None]


def _turned(query: Query, heads: int, scale: float) -> list[Tensor]:
    """A query as each of its spans wants it, by key head: [KV, G, d]."""
    q, turns = query.q.float()[None] * scale, query.turns
    straight = _grouped(q, heads)
    if turns is None or not len(turns.cos):
        return [straight] * len(query.spans)
    each = turn(q.expand(len(turns.cos), *q.shape), turns.cos, turns.sin, turns.interleaved)
    backs = each.view(len(each), heads, -1, q.shape[-1])
    return [straight if run < 0 else backs[run] for run, _ in query.spans]


def _grouped(q: Tensor, heads: int) -> Tensor:
    """Queries [rows, H, d] by the key head that they see: [KV, G * rows, d]."""
    return q.view(len(q), heads, -1, q.shape[-1]).permute(1, 2, 0, 3).flatten(1, 2)
