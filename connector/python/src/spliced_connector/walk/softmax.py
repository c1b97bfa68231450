"""Attention of the rows of a walk over keys and values that lie in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.walk.base import Sight

SCORES = 1 << 18
"""Rows times keys up to which one masked call is quicker than a call per span (measured)."""

ROWS = 512
"""Rows per call of a long span, at most."""

KEPT = 1 << 22
"""Rows times keys of a mask that is made once for all layers, at most."""

MASK = 1 << 24
"""Rows times keys of a call's mask, if one row has no more keys than that."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [lo, hi) of a walk, the first at `position`, see keys [begin, end).

    A mask [hi - lo, end - begin] is given for rows that do not stand side by side, else it is made
    where it is used: all blocks' together would grow with the square of the prompt.
    """

    lo: int
    hi: int
    begin: int
    end: int
    position: int = 0
    window: int = 0
    given: Tensor | None = None

    @property
    def causal(self) -> bool:
        """Whether row i sees the keys up to its own, which is the i-th."""
        return self.given is None and self.position == self.begin and self.window == 0

    def mask(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """What is added to the scores; None if the block is causal."""
        if self.given is not None or self.causal:
            return self.given
        positions = torch.arange(self.position, self.end, device=device)
        return _mask(positions, self.begin, self.end, self.window).to(dtype)


def blocks(
    spans: Sequence[Sight], window: int, dtype: torch.dtype, device: torch.device
) -> list[Block]:
    """How the rows of spans attend; window 0 = all earlier tokens."""
    first, last = spans[0], spans[-1]
    together = len(spans) > 1 and first.begin == last.begin and window == 0
    if together and last.hi * last.end <= KEPT:
        positions = torch.cat([torch.arange(s.position, s.end, device=device) for s in spans])
        mask = _mask(positions, 0, last.end, 0).to(dtype)
        if mask.numel() <= SCORES:
            return [Block(0, last.hi, 0, last.end, given=mask)]
        return [Block(s.lo, s.hi, 0, s.end, given=mask[s.lo : s.hi, : s.end]) for s in spans]
    out = []
    for s in spans:
        if s.position == s.begin and (window == 0 or window >= s.end - s.begin):
            out.append(Block(s.lo, s.hi, s.begin, s.end, s.begin))
            continue
        step = max(1, min(ROWS, MASK // (s.end - s.begin)))
        for at in range(s.lo, s.hi, step):
            stop = min(at + step, s.hi)
            position = s.position + at - s.lo
            begin = max(s.begin, position - window + 1) if window else s.begin
            out.append(Block(at, stop, begin, position + stop - at, position, window))
    return out


def _mask(positions: Tensor, begin: int, end: int, window: int) -> Tensor:
    keys = torch.arange(begin, end, device=positions.device)
    hidden = keys[None, :] > positions[:, None]
    if window:
        hidden |= keys[None, :] <= positions[:, None] - window
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


def attend(q: Tensor, k: Tensor, v: Tensor, spans: list[Block], scale: float) -> Tensor:
    """Softmax attention: q [n, H, dk] over k [N, KV, dk] and v [N, KV, dv] gives [n, H, dv]."""
    grouped = q.shape[1] != k.shape[1]
    out = []
    for b in spans:
        mask = b.mask(q.dtype, q.device)
        o = torch.nn.functional.scaled_dot_product_attention(
            q[b.lo : b.hi].transpose(0, 1)[None],
            k[b.begin : b.end].transpose(0, 1)[None],
            v[b.begin : b.end].transpose(0, 1)[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        out.append(o[0].transpose(0, 1))
    return torch.cat(out) if len(out) > 1 else out[0]
