"""Softmax attention of the rows of a walk, with the keys and values where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk import families
from spliced_connector.walk.base import Sight

SCORES = 1 << 18
"""Largest number of scores (rows times keys) for which one masked call is quicker than a call per
span (measured)."""

ROWS = 256
"""Maximum number of rows in one call; a longer span takes several calls."""

KEPT = 1 << 22
"""Maximum number of elements (rows times keys) of all masks together. If there are more, masks are
not kept for all layers, but made for each use."""

MASK = 1 << 24
"""Maximum number of elements (rows times keys) of the mask of one call, unless one row has more
keys."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [lo, hi) of a walk see keys [begin, end). Row lo is at `position`.

    window: how many tokens a row sees, 0 for all. `given` is the mask [hi - lo, end - begin]. It is
    set for rows that are not contiguous, or if the masks of all blocks are small. Otherwise the
    method `mask` makes the mask for each use, because all masks together would grow with the square
    of the prompt.
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
        """Whether the i-th row sees exactly the first i keys, so that no mask is needed."""
        return self.given is None and self.position == self.begin and self.window == 0

    def mask(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Returns the numbers to add to the scores, 0 or -inf; None if the block is causal."""
        if self.given is not None or self.causal:
            return self.given
        positions = torch.arange(self.position, self.end, device=device)
        return _mask(positions, self.begin, self.end, self.window).to(dtype)


def blocks(
    spans: Sequence[Sight], window: int, dtype: torch.dtype, device: torch.device
) -> list[Block]:
    """Divides the rows of spans into blocks. window 0: a row sees all earlier tokens."""
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
    """Returns the softmax attention of q [n, H, dk] over k [N, KV, dk] and v [N, KV, dv]: [n, H,
    dv]."""
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
    """Rotations of queries by one rope: cos and sin [turns, 1, 1, dims / 2]."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    @classmethod
    def back(
        cls, rope: Rope, distances: Sequence[int], device: torch.device | None = None
    ) -> Turns | None:
        """Returns a rotation of queries for each run of keys. distances: by how many tokens the
        stored keys of each run would have to be rotated; queries are rotated by the inverse.
        Returns None if the rope rotates nothing."""
        if rope.dims == 0:
            return None
        short = torch.tensor(distances, dtype=torch.int64, device=device)
        cos, sin = families.angles(rope, -short)
        return cls(cos[:, None, None], sin[:, None, None], rope.interleaved)

    def of(self, q: Tensor) -> Tensor:
        """Returns q [n, H, d] with every rotation: [turns, n, H, d]."""
        each = q.expand(len(self.cos), *q.shape)
        return families.turn(each, self.cos, self.sin, self.interleaved)


Run = tuple[int, Tensor, Tensor]
"""Rows in one place: the index in `Turns` of the rotation of queries for these rows (-1: none), the
keys [KV, dk, rows] and the values [KV, rows, dv]. Keys and values may have any strides."""


def attend_runs(
    q: Tensor, runs: Sequence[Run], turns: Turns | None, scale: float, hidden: Tensor | None
) -> Tensor:
    """Returns the softmax attention of q [n, H, dk] over rows in place: [n, H, dv], float32 or
    wider.

    R(x) is the rotation by x tokens. A key k at position p of its segment is stored as R(p) k. If
    the segment's token 0 is at position s of the request, attention needs the key R(s) R(p) k.
    Rotations are orthogonal and add up, so the product of a query q with this key
    is q . R(s) R(p) k = (R(-s) q) . R(p) k. So the query is rotated, once for each run, and keys
    are read unchanged (RoFormer, equation 16; MEPIC, arXiv 2512.16822, section 3.3.3).

    hidden [n, rows of all runs] is True for rows that a query must not see; None: queries see all
    rows. Rows of 16 bits are widened when they are read, because scores in 16 bits would lose the
    differences between weights.
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
    """Groups queries [..., n, H, d] by the key head that they see: [..., KV, H / KV * n, d]."""
    return q.unflatten(-2, (heads, -1)).movedim(-4, -2).flatten(-3, -2)
