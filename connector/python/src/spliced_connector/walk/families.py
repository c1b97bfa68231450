"""Arithmetic of linear-attention layers: scans, transitions, composition and rotation, in torch.

One algorithm serves every family that `walk.base.Steps` can express. Rows are cut into chunks.
Inside a chunk all work is matrix products (the WY form of a product of Householder-like factors:
Bischof and Van Loan 1987; for the gated delta rule Yang et al. 2024, arXiv 2412.06464). The state
is updated once per chunk. S is the state before the chunk, g the chunk's decay, Kd and Qd its
decayed keys and queries, and A the decayed products of queries and keys. U has the values that the
tokens write if S is zero, and W reads S:

    V = U - W S            what the chunk's tokens write
    S' = g S + Kd^T V      so that T = g I - Kd^T W and the end-state is Kd^T U
    O = Qd S + A V         the outputs

The arithmetic is in float32, or in float64 if the values are. Sums of logarithmic decays are in
float64: over a chunk of strong decays, float32 would leave no digits for small differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk.base import Steps

CHUNK = 64
"""Rows per chunk. The work of the products inside a chunk grows with the square of this number; the
number of chunks, and so of states, falls with it."""

_PAIR_BYTES = 32 << 20  # bound on the table of decays between pairs of rows and key channels


@dataclass(frozen=True, slots=True)
class _Group:
    """`count` chunks of `length` rows. index [count * length] has the numbers of their rows. mask
    [count, length] is False for rows that only pad a chunk; None: no padding. later[i, j], of
    shape [length, length], is True if row j of a chunk is after its row i."""

    count: int
    length: int
    index: Tensor
    mask: Tensor | None
    later: Tensor


class Runs:
    """The division of consecutive runs of rows into chunks, made once for all layers.

    A chunk never crosses the border of a run. Full chunks of runs longer than one chunk form one
    group. Runs of at most one chunk, and the remainders of longer runs, form a second group. So
    short runs next to a long run need no padding to a full chunk, and they are contiguous.
    """

    def __init__(self, lengths: Sequence[int], chunk: int, device: torch.device) -> None:
        self.lengths, self.chunk = tuple(lengths), chunk
        whole: list[tuple[int, int]] = []
        short: list[tuple[int, int]] = []
        places: list[list[tuple[bool, int, int]]] = []  # per run: is short, index there, rows
        at = 0
        for n in lengths:
            places.append([])
            for lo in range(0, n, chunk):
                size = min(chunk, n - lo)
                kind = whole if size == chunk < n else short
                places[-1].append((kind is short, len(kind), size))
                kind.append((at + lo, size))
            at += n
        self.rows = at
        parts = [(whole, chunk)] if whole else []
        if short:
            parts.append((short, max(size for _, size in short)))
        self.groups = [_group(kind, length, device) for kind, length in parts]
        behind = len(self.groups) - 1  # the group of the short chunks
        self.chunks = [[(behind if s else 0, i) for s, i, _ in run] for run in places]
        """Per run: (group, index in the group) of its chunks, in order."""
        self.order = self._order([p for run in places for p in run], device)

    def _order(self, places: list[tuple[bool, int, int]], device: torch.device) -> Tensor | None:
        """Returns the index of each row in the concatenated rows of the groups. Returns None if
        that is the order of the rows already."""
        short = self.groups[-1]
        offset = sum(g.count * g.length for g in self.groups[:-1])
        out: list[int] = []
        for is_short, i, size in places:
            first = offset + i * short.length if is_short else i * self.groups[0].length
            out.extend(range(first, first + size))
        if out == list(range(offset + short.count * short.length)):
            return None
        return torch.tensor(out, device=device)


def _group(chunks: list[tuple[int, int]], length: int, device: torch.device) -> _Group:
    lo = torch.tensor([c[0] for c in chunks], device=device)[:, None]
    size = torch.tensor([c[1] for c in chunks], device=device)[:, None]
    within = torch.arange(length, device=device)[None, :]
    mask = None if all(c[1] == length for c in chunks) else (within < size)
    later = torch.ones((length, length), dtype=torch.bool, device=device).triu(1)
    return _Group(len(chunks), length, (lo + within.minimum(size - 1)).flatten(), mask, later)


def chunk_length(steps: Steps) -> int:
    """Returns the rows per chunk: as many as the bound on the table of decays allows."""
    if steps.decay.dim() == 2:
        return CHUNK
    heads, dk = steps.decay.shape[1:]
    n = 16
    while n > 1 and heads * dk * n * n * 4 > _PAIR_BYTES:
        n //= 2
    return n


@dataclass(slots=True)
class _Prepared:
    """A group's c chunks of L rows, ready for the scan. Letters are as in the module's formulas.

    writes (U) [c, Hv, L, dv]; reads (W) [c, Hv, L, dk], None without the delta rule; scores (A)
    [c, Hv, L, L]; queries (Qd) [c, Hv, L, dk]; keys (Kd^T) [c, Hv, dk, L]; decay (g) [c, Hv, 1 or
    dk, 1].
    """

    writes: Tensor
    reads: Tensor | None
    scores: Tensor
    queries: Tensor
    keys: Tensor
    decay: Tensor

    def chunks(self) -> list[tuple[Tensor, Tensor | None, Tensor, Tensor]]:
        """Returns writes, reads, keys and decay of each chunk; all views are made together."""
        count = len(self.writes)
        reads = [None] * count if self.reads is None else self.reads.unbind()
        each = (self.writes.unbind(), reads, self.keys.unbind(), self.decay.unbind())
        return list(zip(*each, strict=True))


class Scan:
    """The recurrence of one layer over runs of rows.

    `advance` returns the state after one run and records what the run's outputs need. `outputs`
    returns the outputs of all rows. Between two runs the caller may compose the state with cached
    segments.
    """

    def __init__(self, steps: Steps, runs: Runs) -> None:
        self.steps = steps
        self.runs = runs
        self.wide = torch.float64 if steps.v.dtype == torch.float64 else torch.float32
        self._groups = [_prepare(steps, g, self.wide) for g in runs.groups]
        self._chunks = [p.chunks() for p in self._groups]
        self._seen: list[list[tuple[Tensor, Tensor] | None]] = [
            [None] * g.count for g in runs.groups
        ]

    def advance(self, run: int, state: Tensor) -> Tensor:
        """Returns the state [Hv, dk, dv] after a run that begins at `state`."""
        for group, i in self.runs.chunks[run]:
            new, reads, keys, decay = self._chunks[group][i]
            if reads is not None:
                new = torch.baddbmm(new, reads, state, alpha=-1)
            self._seen[group][i] = (state, new)
            state = torch.baddbmm(decay * state, keys, new)
        return state

    def behind(self, run: int, n: int) -> Tensor:
        """Returns the state after the first n rows (at least one) of a run. It uses the record of
        `advance`, so that no row is recomputed. Raises RuntimeError without such a record."""
        at, last = divmod(n - 1, self.runs.chunk)
        group, i = self.runs.chunks[run][at]
        seen = self._seen[group][i]
        if seen is None:
            raise RuntimeError("a state within a run that no state was moved over")
        (state, new), size = seen, last + 1
        lo = sum(self.runs.lengths[:run]) + at * self.runs.chunk
        total = self.steps.decay[lo : lo + size].double().cumsum(0).transpose(0, 1)
        if total.dim() == 2:
            total = total.unsqueeze(-1)
        until = (total[:, -1:] - total).to(self.wide).exp()
        keys = self.steps.k[lo : lo + size].to(self.wide).permute(1, 2, 0)[None]
        keys = _heads(keys, new.shape[0])[0] * until.transpose(1, 2)
        decay = total[:, -1].to(self.wide).exp().unsqueeze(-1)
        return torch.baddbmm(decay * state, keys, new[:, :size])

    def writes(self, run: int) -> Tensor:
        """Returns what each row of a run writes, [n, Hv, dv]: the row's step is
        S = decay S + k write^T. Raises RuntimeError if `advance` was not called for the run."""
        out = []
        for at, (group, i) in enumerate(self.runs.chunks[run]):
            seen = self._seen[group][i]
            if seen is None:
                raise RuntimeError("writes of a run that no state was moved over")
            size = min(self.runs.chunk, self.runs.lengths[run] - at * self.runs.chunk)
            out.append(seen[1][:, :size].transpose(0, 1))
        return torch.cat(out)

    def transition(self, run: int) -> Tensor:
        """Returns T of a run, [Hv], [Hv, dk] or [Hv, dk, dk]: the product of its rows' transitions,
        with the factors of later rows on the left."""
        steps = self.steps
        if not steps.delta:
            begin = sum(self.runs.lengths[:run])
            return plain_transition(steps, begin, begin + self.runs.lengths[run])
        heads, dk = steps.v.shape[1], steps.k.shape[2]
        x = torch.eye(dk, dtype=self.wide, device=steps.v.device).expand(heads, dk, dk)
        for group, i in self.runs.chunks[run]:
            _, reads, keys, decay = self._chunks[group][i]
            if reads is not None:
                x = torch.baddbmm(decay * x, keys, reads @ x, alpha=-1)
        return x

    def short(self, run: int) -> bool:
        """Whether a run is one chunk, in the group that `tuples` reads."""
        return [group for group, _ in self.runs.chunks[run]] == [len(self._groups) - 1]

    def tuples(self, runs: range) -> tuple[Tensor, Tensor]:
        """Returns T [runs, ...], as in `transition`, and S [runs, Hv, dk, dv] of consecutive
        short runs."""
        p, at = self._groups[-1], self._place(runs)
        keys, decay = p.keys[at], p.decay[at].squeeze(-1)
        written = keys @ p.writes[at]
        if p.reads is None:
            return (decay if self.steps.decay.dim() == 3 else decay.squeeze(-1)), written
        t = torch.matmul(keys, p.reads[at]).neg_()
        t.diagonal(dim1=-2, dim2=-1).add_(decay)
        return t, written

    def moved_over(self, runs: range, before: Tensor) -> None:
        """Records that a placer has composed the state with consecutive short runs; this replaces
        a call of `advance` for each run. before [runs, Hv, dk, dv]: the state before each run."""
        p, at = self._groups[-1], self._place(runs)
        new = p.writes[at] if p.reads is None else p.writes[at] - p.reads[at] @ before
        self._seen[-1][at] = list(zip(before.unbind(), new.unbind(), strict=True))

    def _place(self, runs: range) -> slice:
        """Returns the range of the chunks of consecutive short runs in their group."""
        first = self.runs.chunks[runs[0]][0][1]
        return slice(first, first + len(runs))

    def outputs(self) -> Tensor:
        """Returns the outputs of all rows, [n, Hv, dv]. Call it after `advance` of every run."""
        out = []
        for p, seen in zip(self._groups, self._seen, strict=True):
            done = [s for s in seen if s is not None]
            if len(done) < len(seen):
                raise RuntimeError("outputs of a run that no state was moved over")
            before = torch.stack([s for s, _ in done])
            new = torch.stack([n for _, n in done])
            o = p.queries @ before + p.scores @ new
            out.append(o.transpose(1, 2).flatten(0, 1))
        rows = torch.cat(out) if len(out) > 1 else out[0]
        if self.runs.order is not None:
            rows = rows.index_select(0, self.runs.order)
        if self.steps.skip is not None:
            rows = rows + self.steps.skip
        return rows.to(self.steps.v.dtype)


def _prepare(steps: Steps, group: _Group, wide: torch.dtype) -> _Prepared:
    heads = steps.v.shape[1]
    q, k, v, g = (_cut(x, group, wide) for x in (steps.q, steps.k, steps.v, steps.decay))
    beta = None if steps.beta is None else _cut(steps.beta, group, wide).unsqueeze(-1)
    erase = None if steps.erase is None else _cut(steps.erase, group, wide)
    if group.mask is not None:
        # A padding row neither decays nor reads nor writes.
        mask = group.mask[:, None, :, None]
        g = g * mask.view(group.count, 1, group.length, *[1] * (g.dim() - 3))
        if beta is None:
            v = v * mask
        else:
            beta = beta * mask
        if erase is not None:
            erase = erase * mask
    total = g.double().cumsum(2)
    readers = [q]
    if steps.delta:
        readers.append(k if erase is None else erase)
    scores, *own = _pairs(readers, k, total, heads, group.later)
    q, k = _heads(q, heads), _heads(k, heads)
    if total.dim() == 3:
        total = total.unsqueeze(-1)
    since, until = total.to(wide).exp(), (total[:, :, -1:] - total).to(wide).exp()
    decay = since[:, :, -1].unsqueeze(-1)
    keys = (k * until).transpose(2, 3)
    if not own:
        return _Prepared(v, None, scores, q * since, keys, decay)
    system, both = own[0], torch.cat((v, (k if erase is None else erase) * since), -1)
    if beta is not None:
        system, both = system * beta, both * beta
    # The solver takes the diagonal as ones and never reads above it.
    both = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    dv = v.shape[-1]
    return _Prepared(both[..., :dv], both[..., dv:], scores, q * since, keys, decay)


def _cut(x: Tensor, group: _Group, wide: torch.dtype) -> Tensor:
    """Returns rows [n, H, ...] as [chunks, H, length, ...]."""
    if group.mask is None and group.count * group.length == x.shape[0]:
        rows = x  # one group of whole chunks: its rows are all rows, in order
    else:
        rows = x.index_select(0, group.index)
    return rows.to(wide).view(group.count, group.length, *x.shape[1:]).transpose(1, 2)


def _pairs(
    readers: Sequence[Tensor], k: Tensor, total: Tensor, heads: int, later: Tensor
) -> list[Tensor]:
    """Returns for each reader r the products r_i . k_j times the decay from row j to row i, zero
    for j > i: [c, Hv, L, L].

    The readers are the queries and, in a delta rule, the rows that read the state before a write:
    the keys, or `Steps.erase`.
    """
    if total.dim() == 3:
        fade = (total.unsqueeze(3) - total.unsqueeze(2)).to(k.dtype)
        fade = fade.masked_fill_(later, -torch.inf).exp_()
        return [_products(r, k, heads) * fade for r in readers]
    out: list[list[Tensor]] = [[] for _ in readers]
    # One chunk at a time: `chunk_length` bounds the table of decays of one chunk.
    for c, tc in enumerate(total):
        fade = (tc.unsqueeze(2) - tc.unsqueeze(1)).to(k.dtype)
        fade = fade.masked_fill_(later[:, :, None], -torch.inf).exp_()
        fade *= _heads(k[c, None], heads)[0].unsqueeze(1)
        for r, products in zip(readers, out, strict=True):
            products.append((fade @ _heads(r[c, None], heads)[0].unsqueeze(-1)).squeeze(-1))
    return [torch.stack(products) for products in out]


def _products(rows: Tensor, k: Tensor, heads: int) -> Tensor:
    """Returns rows_i . k_j of every value head. If both arguments have one row per key head, the
    products are computed per key head, because these are fewer."""
    if rows.shape[1] != k.shape[1]:
        k = _heads(k, heads)
    return _heads(rows @ k.transpose(2, 3), heads)


def _heads(x: Tensor, heads: int) -> Tensor:
    """Repeats each key head for its value heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def recur(steps: Steps, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Runs the recurrence from a state [Hv, dk, dv] (None = zero).

    Returns outputs [n, Hv, dv] and the state after the last row.
    """
    scan = Scan(steps, Runs([steps.v.shape[0]], chunk_length(steps), steps.v.device))
    if state is None:
        state = zero_state(steps)
    state = scan.advance(0, state.to(scan.wide))
    return scan.outputs(), state


def zero_state(steps: Steps) -> Tensor:
    """Returns the state before the first token."""
    wide = torch.float64 if steps.v.dtype == torch.float64 else torch.float32
    shape = (steps.v.shape[1], steps.k.shape[2], steps.v.shape[2])
    return torch.zeros(shape, dtype=wide, device=steps.v.device)


def end_state(steps: Steps) -> Tensor:
    """Returns S of the rows: the state that they reach from zero, [Hv, dk, dv]."""
    return recur(steps)[1]


def transition(steps: Steps) -> Tensor:
    """Returns T of the rows, [Hv], [Hv, dk] or [Hv, dk, dk]: the product of their transitions, with
    the factors of later rows on the left."""
    if not steps.delta:
        return plain_transition(steps)
    scan = Scan(steps, Runs([steps.v.shape[0]], chunk_length(steps), steps.v.device))
    return scan.transition(0)


def plain_transition(steps: Steps, begin: int = 0, end: int | None = None) -> Tensor:
    """Returns T of rows [begin, end) of a family without the delta rule."""
    wide = torch.float64 if steps.v.dtype == torch.float64 else torch.float32
    return steps.decay[begin:end].double().sum(0).exp().to(wide)


def written(transition: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Returns S of rows that moved a state from `before` to `after`, given their T. All three
    tensors have one type."""
    if transition.dim() == 3:
        return torch.baddbmm(after, transition, before, alpha=-1)
    t = transition.view(*transition.shape, *[1] * (3 - transition.dim()))
    return torch.addcmul(after, t, before, value=-1)


def compose(transition: Tensor, state: Tensor, before: Tensor) -> Tensor:
    """Returns the state after a segment, T before + S, [Hv, dk, dv], in the type of `before`.

    transition (T) is [Hv], [Hv, dk] or [Hv, dk, dk] and acts from the left; state is S. Both may
    have a narrower type than `before`, or be on another device.
    """
    t = transition.to(before)
    s = state.to(before)
    if t.dim() == 3:
        return torch.baddbmm(s, t, before)
    return torch.addcmul(s, t.view(*t.shape, *[1] * (3 - t.dim())), before)


def angles(rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns cos and sin, float32 [n, dims / 2], of a rotation by positions (or distances) [n]."""
    freq = torch.tensor(rope.frequencies, dtype=torch.float64, device=positions.device)
    angle = positions.double()[:, None] * freq
    return angle.cos().float(), angle.sin().float()


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotates the leading 2 * cos.shape[-1] dimensions of x [..., d]. Computes in float32 or
    wider, and returns x's type.

    cos and sin broadcast against [..., dims / 2]. If interleaved, dimensions (2i, 2i + 1) form a
    pair, otherwise (i, i + dims / 2).
    """
    half = cos.shape[-1]
    wide = x if x.dtype == torch.float64 else x.float()
    if interleaved:
        a, b = wide[..., 0 : 2 * half : 2], wide[..., 1 : 2 * half : 2]
    else:
        a, b = wide[..., :half], wide[..., half : 2 * half]
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        turned = torch.stack((first, second), -1).flatten(-2)
    else:
        turned = torch.cat((first, second), -1)
    if 2 * half < x.shape[-1]:
        turned = torch.cat((turned, wide[..., 2 * half :]), -1)
    return turned.to(x.dtype)


def rotate(keys: Tensor, distance: Tensor, rope: Rope) -> Tensor:
    """Rotates keys [n, KV, d] by distances in tokens, int [n]; without rope they stay unchanged."""
    if rope.dims == 0:
        return keys
    cos, sin = angles(rope, distance)
    return turn(keys, cos[:, None], sin[:, None], rope.interleaved)


def rotate_state(state: Tensor, distance: int, rope: Rope) -> Tensor:
    """Rotates a state [Hv, dk, dv] along its key axis by a distance in tokens, for models that
    rotate the keys of linear layers.

    This is correct only for scalar transitions, which commute with the rotation.
    """
    if rope.dims == 0 or distance == 0:
        return state
    cos, sin = angles(rope, torch.tensor([distance], device=state.device))
    return turn(state.transpose(1, 2), cos, sin, rope.interleaved).transpose(1, 2)
