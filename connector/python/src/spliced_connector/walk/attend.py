"""Attention of the rows of a walk over keys and values that lie in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCORES = 1 << 18
"""Rows times keys up to which one masked call is quicker than a call per span (measured)."""

ROWS = 512
"""Rows per call of a long span, so that a mask stays small."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [lo, hi) of a walk see keys [begin, end) under an additive mask [hi - lo, end - begin];
    None: row i sees the keys up to its own, which is the i-th."""

    lo: int
    hi: int
    begin: int
    end: int
    mask: Tensor | None


def blocks(
    spans: list[tuple[int, int, int]], window: int, dtype: torch.dtype, device: torch.device
) -> list[Block]:
    """How the rows of spans (lo, hi, position of lo) attend; window 0 = all earlier tokens."""
    rows = spans[-1][1]
    end = spans[-1][2] + spans[-1][1] - spans[-1][0]
    if len(spans) == 1 and spans[0][2] == 0 and (window == 0 or window >= end):
        return [Block(0, rows, 0, end, None)]
    if rows * end <= SCORES:
        positions = torch.cat([torch.arange(p, p + hi - lo) for lo, hi, p in spans])
        return [Block(0, rows, 0, end, _mask(positions, 0, end, window).to(device, dtype))]
    out = []
    for lo, hi, position in spans:
        for at in range(lo, hi, ROWS):
            stop = min(at + ROWS, hi)
            first = position + at - lo
            begin = max(0, first - window + 1) if window else 0
            last = first + stop - at
            mask = _mask(torch.arange(first, last), begin, last, window)
            out.append(Block(at, stop, begin, last, mask.to(device, dtype)))
    return out


def _mask(positions: Tensor, begin: int, end: int, window: int) -> Tensor:
    keys = torch.arange(begin, end)
    hidden = keys[None, :] > positions[:, None]
    if window:
        hidden |= keys[None, :] <= positions[:, None] - window
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def attend(q: Tensor, k: Tensor, v: Tensor, spans: list[Block], scale: float) -> Tensor:
    """Softmax attention: q [n, H, dk] over k [N, KV, dk] and v [N, KV, dv] gives [n, H, dv]."""
    grouped = q.shape[1] != k.shape[1]
    out = []
    for b in spans:
        o = torch.nn.functional.scaled_dot_product_attention(
            q[b.lo : b.hi].transpose(0, 1)[None],
            k[b.begin : b.end].transpose(0, 1)[None],
            v[b.begin : b.end].transpose(0, 1)[None],
            attn_mask=b.mask,
            is_causal=b.mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        out.append(o[0].transpose(0, 1))
    return torch.cat(out) if len(out) > 1 else out[0]
