"""Attention of the rows of a walk over keys and values that lie in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk import families
from spliced_connector.walk.base import Sight

SCORES = 1 << 18
"""Rows times keys up to which one masked call is quicker than a call per span (measured)."""

ROWS = 256
"""Rows per call of a long span, at most."""

KEPT = 1 << 22
"""Rows times keys of the masks that are made once for all layers, at most."""

MASK = 1 << 24
"""Rows times keys of a call's mask, if one row has no more keys than that."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [lo, hi) of a walk, the first at `position`, see keys [begin, end).

    A mask [hi - lo, end - begin] is given for rows that do not stand side by side, and where all
    blocks need little memory for theirs. Else it is made where it is used: all masks together would
    grow with the square of the prompt.
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
    if sum((b.hi - b.lo) * (b.end - b.begin) for b in out if not b.causal) > KEPT:
        return out
    return [replace(b, given=b.mask(dtype, device)) for b in out]


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


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of queries by one rope: cos and sin [turns, 1, 1, dims / 2]."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    @classmethod
    def back(
        cls, rope: Rope, distances: Sequence[int], device: torch.device | None = None
    ) -> Turns | None:
        """By what runs of keys are short of their positions, backwards; None without positions."""
        if rope.dims == 0:
            return None
        short = torch.tensor(distances, dtype=torch.int64, device=device)
        cos, sin = families.angles(rope, -short)
        return cls(cos[:, None, None], sin[:, None, None], rope.interleaved)

    def of(self, q: Tensor) -> Tensor:
        """q [n, H, d] by every turn: [turns, n, H, d]."""
        each = q.expand(len(self.cos), *q.shape)
        return families.turn(each, self.cos, self.sin, self.interleaved)


Run = tuple[int, Tensor, Tensor]
"""Rows that lie together, as products read them: the number of the turn that queries are read with,
-1 for none, keys [KV, dk, rows] and values [KV, rows, dv]; of any strides."""


def attend_runs(
    q: Tensor, runs: Sequence[Run], turns: Turns | None, scale: float, hidden: Tensor | None
) -> Tensor:
    """Softmax attention of q [n, H, dk] over rows where they lie: [n, H, dv], float32 or wider.

    A key k at position p of its segment, of which token 0 stands at s in the request, is kept as
    R(p) k and would be R(s) R(p) k in place. Turns are orthogonal and add up, so that its product
    with a query is q . R(s) R(p) k = (R(-s) q) . R(p) k: the query is turned, once for each run,
    and keys are read as they are (RoFormer, equation 16; MEPIC, arXiv 2512.16822, section 3.3.3).

    hidden [n, rows of all runs]: those that a query must not see; None: it sees all. Rows of 16
    bits are widened as they are read: scores in 16 bits would lose what tells weights apart.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    asked, heads = q.to(wide) * scale, runs[0][1].shape[0]
    straight = grouped(asked, heads)
    backs = None if turns is None else grouped(turns.of(asked), heads).unbind()
    scores = torch.cat(
        [
            torch.bmm(straight if backs is None or at < 0 else backs[at], k.to(wide))
            for at, k, _ in runs
        ],
        -1,
    )
    if hidden is not None:
        scores.view(heads, -1, len(q), scores.shape[-1]).masked_fill_(hidden, -torch.inf)
    weights = torch.softmax(scores, -1).split([k.shape[-1] for _, k, _ in runs], -1)
    out = torch.bmm(weights[0], runs[0][2].to(wide))
    for weight, (_, _, v) in zip(weights[1:], runs[1:], strict=True):
        out.baddbmm_(weight, v.to(wide))
    return out.view(heads, -1, len(q), out.shape[-1]).permute(2, 0, 1, 3).flatten(1, 2)


def grouped(q: Tensor, heads: int) -> Tensor:
    """Queries [..., n, H, d] by the key head that they see: [..., KV, H / KV * n, d]."""
    return q.unflatten(-2, (heads, -1)).movedim(-4, -2).flatten(-3, -2)
