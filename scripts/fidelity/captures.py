"""Captures of one text with several specs in one pass.

Specs differ only in where the interior begins and ends. So the layers run once for all specs, and T
of an interior is the product of the T of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from spliced_connector.model import SegmentSpec
from spliced_connector.walk import Architecture, Captured, families
from spliced_connector.walk.base import Recurrence, SegmentLayer, Sight
from spliced_connector.walk.layers import Pass
from spliced_connector.walk.rows import Rows, ranges


def captures(
    arch: Architecture, ids: Sequence[int], specs: Sequence[SegmentSpec]
) -> dict[SegmentSpec, Captured]:
    """Returns for each spec the result of `walk.capture`, up to rounding."""
    with torch.no_grad():
        walk = _Captures(arch, torch.tensor(ids), specs)
        walk.run()
    layers = [walk.kept.get(i, {}) for i in range(len(arch.layers))]
    return {s: Captured(s, tuple(kept.get(s, SegmentLayer()) for kept in layers)) for s in specs}


class _Captures(Pass[Rows]):
    def __init__(self, arch: Architecture, ids: Tensor, specs: Sequence[SegmentSpec]) -> None:
        n = len(ids)
        self.specs = specs
        self.cuts = sorted({0, n, *(s.head for s in specs), *(n - s.tail for s in specs)})
        self.kept: dict[int, dict[SegmentSpec, SegmentLayer]] = {}
        parts = [b - a for a, b in pairwise(self.cuts)]
        places = ranges([(0, n)], ids.device)
        super().__init__(arch, Rows(arch, ids, [Sight(0, n, 0, n)], places, parts))

    def attention(self, layer: int, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        new = self.arch.attention(layer, x, self.rows.positions)
        self.kept[layer] = {
            s: SegmentLayer(
                k=new.k[s.head : s.tokens - s.tail], v=new.v[s.head : s.tokens - s.tail]
            )
            for s in self.specs
        }
        return self.arch.attention_out(layer, self.attend(layer, new.q, new.k, new.v), new)

    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        new = self.arch.linear(layer, x, self.rows.positions)
        d = self.arch.identity.layers[layer].linear
        line, out = None, None
        if new.conv is not None and d.conv.rows:
            left = new.conv.new_zeros((d.conv.rows, new.conv.shape[1]))
            line = torch.cat((left, new.conv))
            out = self.convolve(layer, new.conv, left[None])
        recurrence = self.recurrence(layer, out, new)
        shape = (d.value_heads, d.key_dim, d.value_dim)
        tuples = self._tuples(recurrence, torch.zeros(shape, device=self.rows.device))
        tails = [
            None if line is None else line[s.tokens - s.tail :][: d.conv.rows] for s in self.specs
        ]
        self.kept[layer] = {
            s: SegmentLayer(*pair, tail)
            for s, pair, tail in zip(self.specs, tuples, tails, strict=True)
        }
        return self.arch.linear_out(layer, recurrence.outputs(), new)

    def _tuples(self, recurrence: Recurrence, state: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns (T, S) of every spec's interior."""
        states, parts = [state], []
        for run in range(len(self.cuts) - 1):
            states.append(recurrence.advance(run, states[-1].clone()))
            parts.append(recurrence.transition(run))
        out = []
        for s in self.specs:
            first, last = self.cuts.index(s.head), self.cuts.index(s.tokens - s.tail)
            transition = reduce(_behind, parts[first:last])
            out.append((transition, families.written(transition, states[first], states[last])))
        return out


def _behind(first: Tensor, then: Tensor) -> Tensor:
    """Returns T of two consecutive runs."""
    return then @ first if first.dim() == 3 else then * first
