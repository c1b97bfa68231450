"""Attention over a request's private rows and over runs of shared rows. Keys of shared rows are not
rotated to the request's positions. It computes the same as `walk.attend_runs`, for several queries
of one request, or for one query of each of several requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.vllm.pages.plans import Span
from spliced_connector.walk import Turns, attend_runs, grouped

QUERY_ROWS = 128
"""Maximum queries that are computed at once, which limits the memory for scores [heads, rows,
keys]."""

Rows = tuple[Tensor, Tensor]
"""Keys [n, KV, d] and values [n, KV, dv] of contiguous tokens, with any strides."""


def attend(
    q: Tensor,
    shared: Sequence[tuple[int, Rows]],
    own: Sequence[Rows],
    turns: Turns | None,
    scale: float,
) -> Tensor:
    """Returns the causal attention of the last m queries of a request, float32 [m, H, dv].

    q [m, H, d]: queries, rotated to their positions. shared: the rows of runs, each with the number
    of its run in `turns`. own: private rows; the last m of them are the queries' own.
    """
    runs = [
        (at, k.permute(1, 2, 0), v.transpose(0, 1))
        for at, (k, v) in (*shared, *((-1, rows) for rows in own))
    ]
    n = sum(k.shape[-1] for _, k, _ in runs)
    out = []
    for begin in range(0, len(q), QUERY_ROWS):
        part, hidden = q[begin : begin + QUERY_ROWS].float(), None
        if len(q) > 1:
            last = n - len(q) + begin + torch.arange(len(part), device=q.device)
            hidden = torch.arange(n, device=q.device) > last[:, None]
        out.append(attend_runs(part, runs, turns, scale, hidden))
    return torch.cat(out)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a request, q [H, d]. spans: the spans that it sees, each with the number of its
    run in `turns`, -1 for private spans."""

    q: Tensor
    spans: Sequence[tuple[int, Span]]
    turns: Turns | None


def attend_each(
    queries: Sequence[Query], rows: Callable[[int, int, int], Rows], scale: float
) -> list[Tensor]:
    """Returns the attention of single queries of several requests, each float32 [H, dv], as in
    `attend`. Rows that several queries see are read only once.

    rows: a function that returns the rows of a span.
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
    """Returns the query for each of its spans, rotated for the span and grouped by key head: [KV,
    G, d]."""
    q, turns = query.q.float()[None] * scale, query.turns
    straight = grouped(q, heads)
    if turns is None or not len(turns.cos):
        return [straight] * len(query.spans)
    backs = grouped(turns.of(q), heads)
    return [straight if run < 0 else backs[run] for run, _ in query.spans]
