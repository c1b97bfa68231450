"""Small forms of transitions and end-states, one matrix per head, and their sizes in bytes.

A matrix is stored as rows of integers of a few bits, with one scale per row. For a transition, g
times the identity is subtracted first, where g is the mean of its diagonal; otherwise the diagonal
would determine the scales of all rows. Rows of fp8 numbers (e4m3) have such scales too. A matrix of
low rank is stored as two factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PACKED = "packed"
WHOLE = "whole"
RANKED = "ranked"
FP8 = "fp8"
WIDTHS = (8, 12, 16)
"""Bits of the integers among which the daemon chooses. It may also store nothing, or the numbers as
they were written."""
SCALE = 4
"""Bytes of a row's scale, and of g."""
SCALE_BITS = 10
"""Bits of the scale of a row of a low-rank factor; products with such a scale are exact."""
RANK_SHARE = 4
"""The daemon looks for ranks up to a state's shorter side divided by this number."""
EARLY, LATE = 20, 8
"""The daemon ends this search early if the rest exceeds the limit by the factor EARLY after a
quarter of these ranks, or by the factor LATE after half of them."""


@dataclass(frozen=True)
class Kept:
    """Matrices [heads, rows, columns] as they are read back, and the bytes of each, [heads]."""

    matrices: Tensor
    sizes: Tensor


def transitions(form: str, t: Tensor, tau: float) -> Kept:
    """Returns transitions in a form. A transition with a norm of at most tau is stored as zero, in
    no bytes. Transitions of one number per head stay as they are, since no form is smaller."""
    if t.dim() == 1:
        return plain(t, t.dtype)
    if form in (PACKED, WHOLE, RANKED):
        forms = [centred(t, bits) for bits in WIDTHS] + [plain(t, torch.float16)]
        if form == RANKED:
            forms.insert(0, ranked_beside(t, tau))
        kept = _smallest(forms, lambda k: norm_bound(k.matrices - t) <= tau)
    elif form == FP8:
        kept = beside(t, floats)
    elif form.startswith("int"):
        kept = centred(t, int(form[3:]))
    else:
        kept = plain(t, getattr(torch, form))
    if tau == 0:
        return kept
    none = norm_bound(t) <= tau
    return _where(none, Kept(torch.zeros_like(t), torch.zeros_like(kept.sizes)), kept)


def states(form: str, s: Tensor, tau: float) -> Kept:
    """Returns end-states in a form. tau: the largest relative error of "packed" and its variants."""
    if form in (PACKED, WHOLE, RANKED):
        most = tau * torch.linalg.matrix_norm(s)
        forms = [rows(s, bits) for bits in WIDTHS] + [plain(s, torch.float32)]
        if form != WHOLE:
            forms.insert(0, fitted(s, most))
        return _smallest(forms, lambda k: torch.linalg.matrix_norm(k.matrices - s) <= most)
    if form == FP8:
        return floats(s)
    if form.startswith("int"):
        return rows(s, int(form[3:]))
    return plain(s, getattr(torch, form))


def eight_bits(x: Tensor, tau: float) -> Kept:
    """Returns keys or values [tokens, heads, dim] in 8 bits with a scale for each row, if the
    relative error of the norm is at most tau. Otherwise returns them unchanged, with the size of 16
    bits per number. The size is the total of all tokens and heads."""
    one = x.flatten(0, 1)[None]
    near = rows(one, 8)
    if torch.linalg.matrix_norm(near.matrices - one) > tau * torch.linalg.matrix_norm(one):
        near = Kept(one, _sizes(one, 2 * one.numel()))
    return Kept(near.matrices.view_as(x), near.sizes)


def plain(m: Tensor, dtype: torch.dtype) -> Kept:
    return Kept(m.to(dtype).to(m.dtype), _sizes(m, dtype.itemsize * m[0].numel()))


def rows(m: Tensor, bits: int) -> Kept:
    """Returns rows of integers. The largest number of a row becomes the largest integer of that
    many bits."""
    scale = m.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    whole = torch.round(m / scale.clamp_min(torch.finfo(m.dtype).tiny))
    size = -(-m[0].numel() * bits // 8) + SCALE * m.shape[-2]
    return Kept(whole * scale, _sizes(m, size))


def floats(m: Tensor) -> Kept:
    """Returns rows of 8-bit numbers with an exponent (e4m3). The largest of a row becomes 448."""
    scale = m.abs().amax(-1, keepdim=True) / 448
    near = (m / scale.clamp_min(torch.finfo(m.dtype).tiny)).to(torch.float8_e4m3fn).to(m.dtype)
    return Kept(near * scale, _sizes(m, m[0].numel() + SCALE * m.shape[-2]))


def centred(t: Tensor, bits: int) -> Kept:
    """Returns g times the identity, plus the remaining matrix as rows of integers."""
    return beside(t, lambda rest: rows(rest, bits))


def beside(t: Tensor, form: Callable[[Tensor], Kept]) -> Kept:
    """Returns g times the identity, plus the remaining matrix in a form."""
    return _beside(t, diagonal(t), form)


def _beside(t: Tensor, middle: Tensor, form: Callable[[Tensor], Kept]) -> Kept:
    rest = form(t - middle)
    return Kept(rest.matrices + middle, rest.sizes + SCALE)


def diagonal(t: Tensor) -> Tensor:
    """Returns g times the identity, where g is the mean of the diagonal."""
    g = t.diagonal(dim1=-2, dim2=-1).mean(-1)
    return g[:, None, None] * torch.eye(t.shape[-1], dtype=t.dtype)


def fitted(s: Tensor, most: Tensor) -> Kept:
    """Returns sums of products of a column and a row in int8. Products are added until the rest of
    the matrix has a norm of at most `most`. Each product is found as the daemon finds it: the
    largest row of the rest, and the column that fits this row best. A head that would need too many
    products gets a size larger than that of any other form."""
    ranks = min(s.shape[1:]) // RANK_SHARE
    rest, taken = s.clone(), torch.full((len(s),), -1)
    trying = torch.linalg.matrix_norm(s) > 0
    for k in range(1, ranks + 1):
        if not trying.any():
            break
        x = rest[trying]
        row = x[torch.arange(len(x)), x.square().sum(-1).argmax(-1)]
        row, _ = _whole(row)
        column, scale = _whole((x @ row[:, :, None])[..., 0] / row.square().sum(-1, keepdim=True))
        rest[trying] = x - (scale * column)[:, :, None] * row[:, None]
        left = torch.linalg.matrix_norm(rest) / most
        taken[trying & (left <= 1)] = k
        allowed = {ranks // 4: EARLY, ranks // 2: LATE}.get(k, torch.inf)
        trying = trying & (left > 1) & (left <= allowed)
    sizes = torch.where(taken > 0, taken * (s.shape[1] + s.shape[2] + SCALE), 1 << 40)
    return Kept(s - rest, sizes)


def _whole(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rows as 8-bit integers, and their scales, which have few bits."""
    part, power = torch.frexp(x.abs().amax(-1, keepdim=True) / 127)
    scale = torch.ldexp((part * 2**SCALE_BITS).ceil(), power - SCALE_BITS)
    return torch.round(x / scale.clamp_min(torch.finfo(x.dtype).tiny)), scale


def factors(m: Tensor, needed: Callable[[Tensor], Tensor]) -> Kept:
    """Returns the product of two int8 factors. needed: selects singular values [heads, n]."""
    left, values, right = torch.linalg.svd(m, full_matrices=False)
    which = needed(values)
    root = (values.sqrt() * which)[:, :, None]
    tall, wide = rows(left.mT * root, 8), rows(right * root, 8)
    each = m.shape[-2] + m.shape[-1] + 2 * SCALE
    return Kept(tall.matrices.mT @ wide.matrices, which.sum(-1) * each)


def ranked_beside(t: Tensor, tau: float) -> Kept:
    """Returns g times the identity, plus two int8 factors. Their rank is the lowest that leaves a
    rest with a spectral norm of at most tau / 2; the other half of tau is for rounding them."""
    return _beside(t, decayed(t), lambda rest: factors(rest, lambda values: values > tau / 2))


def decayed(t: Tensor) -> Tensor:
    """Returns g times the identity, where g is the median singular value. This is the decay over
    all tokens if most directions are written by few tokens."""
    g = torch.linalg.svdvals(t).median(-1).values
    return g[:, None, None] * torch.eye(t.shape[-1], dtype=t.dtype)


def norm_bound(m: Tensor) -> Tensor:
    """Returns an upper bound of each spectral norm, without singular values: the root of |m'm|."""
    return torch.linalg.matrix_norm(m.mT @ m).sqrt()


def _smallest(forms: list[Kept], fits: Callable[[Kept], Tensor]) -> Kept:
    """Returns for each head the smallest of the forms that fit; the last form if none fits."""
    kept = forms[-1]
    for form in forms[:-1]:
        kept = _where(fits(form) & (form.sizes < kept.sizes), form, kept)
    return kept


def _where(which: Tensor, a: Kept, b: Kept) -> Kept:
    matrices = torch.where(which[:, None, None], a.matrices, b.matrices)
    return Kept(matrices, torch.where(which, a.sizes, b.sizes))


def _sizes(m: Tensor, each: int) -> Tensor:
    return torch.full((len(m),), each)
