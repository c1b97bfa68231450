"""Errors of the state after a chain of segments, by the form in which T and S are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor
from variants import kept
from ways import Variant

from spliced_connector.walk import Captured, families

LENGTHS = (1, 2, 5, 10, 20, 40)
"""Numbers of segments after which the state of a chain is compared."""
Row = Mapping[str, float]


def chains(ways: Sequence[Variant], segments: Sequence[Captured]) -> dict[str, dict[str, Row]]:
    """Returns for each way and each of `LENGTHS` the errors of states, relative to the norm of
    exact states: the mean and the maximum over heads, and the mean of an upper bound. If T and S
    are stored as T' and S', a state x with an error e gets an error of at most |T'|e + |T' - T||x|
    + |S' - S|. The bound uses exact spectral norms of T' and T' - T. Each chain begins with a zero
    state."""
    return {v.name: _of(v, segments) for v in ways}


def _of(way: Variant, segments: Sequence[Captured]) -> dict[str, Row]:
    errors: dict[int, list[float]] = {n: [] for n in LENGTHS}
    bounds: dict[int, list[float]] = {n: [] for n in LENGTHS}
    for first in range(0, len(segments), max(LENGTHS)):
        some = segments[first : first + max(LENGTHS)]
        for layer in range(len(some[0].layers)):
            for n, off, bound in _chain(way, [s.layers[layer] for s in some]):
                errors[n] += off.tolist()
                bounds[n] += bound.tolist()
    return {
        str(n): {"mean": fmean(errors[n]), "most": max(errors[n]), "bound": fmean(bounds[n])}
        for n in LENGTHS
        if errors[n]
    }


def _chain(way: Variant, layers: Sequence[object]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields the number of segments, and errors and bounds [heads] of one layer after them."""
    exact = stored = bound = None
    for n, layer in enumerate(layers, 1):
        t, s = layer.transition, layer.state  # type: ignore[attr-defined]
        if t is None or s is None:
            return
        near_t, near_s = (k.matrices for k in kept(way, t, s))
        if exact is None:
            exact, stored, bound = torch.zeros_like(s), torch.zeros_like(s), torch.zeros(len(s))
        before = _norm(stored) + bound
        bound = _spectral(near_t) * bound + _spectral(near_t - t) * before + _norm(near_s - s)
        exact, stored = families.compose(t, s, exact), families.compose(near_t, near_s, stored)
        if n in LENGTHS:
            size = _norm(exact)
            yield n, _norm(stored - exact) / size, bound / size


def _spectral(m: Tensor) -> Tensor:
    return m.abs() if m.dim() == 1 else torch.linalg.matrix_norm(m, 2)


def _norm(m: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(m)
