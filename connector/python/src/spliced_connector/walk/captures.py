"""Capture: what an isolated pass over a segment's tokens leaves.

Several segments pass the layers as one batch of sequences, which do not see each other. The
recurrence of a segment stops at the ends of its interior, so that with T from the interior's rows
and the states before and behind it, S = behind - T before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spliced_connector.model import PlanError, SegmentSpec
from spliced_connector.walk import families
from spliced_connector.walk.base import (
    Architecture,
    Captured,
    Recurrence,
    SegmentLayer,
    Sight,
)
from spliced_connector.walk.layers import Pass
from spliced_connector.walk.rows import Rows, ranges


def capture(
    arch: Architecture,
    ids: Tensor | Sequence[int],
    spec: SegmentSpec,
    device: torch.device | None = None,
) -> Captured:
    """`capture_all` of one segment."""
    return capture_all(arch, [(ids, spec)], device)[0]


def capture_all(
    arch: Architecture,
    segments: Sequence[tuple[Tensor | Sequence[int], SegmentSpec]],
    device: torch.device | None = None,
) -> list[Captured]:
    """Runs the tokens of segments, each alone, and keeps what its spec names.

    From position 0, a zero state and an empty convolution, attention inside only: what comes of a
    segment is a function of the weights, its tokens and its spec. Memory grows with the tokens of
    all of them. Raises PlanError where a spec is of another number of tokens.
    """
    tokens = [ids if isinstance(ids, Tensor) else torch.tensor(ids) for ids, _ in segments]
    for ids, (_, spec) in zip(tokens, segments, strict=True):
        if spec.tokens != ids.shape[0] or spec.interior[1] <= 0:
            raise PlanError(f"capture of {ids.shape[0]} tokens as a segment of {spec}")
    every = torch.cat(tokens)
    with torch.no_grad():
        walk = _CapturePass(arch, every.to(device or every.device), [s for _, s in segments])
        walk.run()
        return walk.captured()


class _CapturePass(Pass[Rows]):
    def __init__(self, arch: Architecture, ids: Tensor, specs: Sequence[SegmentSpec]) -> None:
        sights: list[Sight] = []
        parts: list[int] = []
        for spec in specs:
            lo = sights[-1].hi if sights else 0
            sights.append(Sight(lo, lo + spec.tokens, lo, lo + spec.tokens))
            parts += [n for n in (spec.head, spec.interior[1], spec.tail) if n]
        positions = ranges([(0, spec.tokens) for spec in specs], ids.device)
        super().__init__(arch, Rows(arch, ids, sights, positions, parts))
        self._specs = specs
        self._kept: list[dict[int, SegmentLayer]] = [{} for _ in specs]

    def captured(self) -> list[Captured]:
        """What was kept, once `run` has ended."""
        layers = range(len(self.arch.layers))
        return [
            Captured(spec, tuple(kept.get(i, SegmentLayer()) for i in layers))
            for spec, kept in zip(self._specs, self._kept, strict=True)
        ]

    def attention(self, layer: int, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        new = self.arch.attention(layer, x, self.rows.positions)
        for spec, sight, kept in zip(self._specs, self.rows.sights, self._kept, strict=True):
            inside = slice(sight.lo + spec.head, sight.hi - spec.tail)
            kept[layer] = SegmentLayer(k=new.k[inside], v=new.v[inside])
        return self.arch.attention_out(layer, self.attend(layer, new.q, new.k, new.v), new)

    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        new = self.arch.linear(layer, x, self.rows.positions)
        out, tails = None, [None] * len(self._specs)
        if new.conv is not None:
            out, tails = self._convolved(layer, new.conv)
        recurrence = self.recurrence(layer, out, new)
        run = 0
        for spec, tail, kept in zip(self._specs, tails, self._kept, strict=True):
            transition, state = self._interior(layer, spec, run, recurrence)
            kept[layer] = SegmentLayer(transition, state, tail)
            run += 1 + bool(spec.head) + bool(spec.tail)
        return self.arch.linear_out(layer, recurrence.outputs(), new)

    def _interior(
        self, layer: int, spec: SegmentSpec, run: int, recurrence: Recurrence
    ) -> tuple[Tensor, Tensor]:
        """(T, S) of a segment's interior; its first run is `run`."""
        d = self.arch.identity.layers[layer].linear
        wide = torch.float64 if self.arch.dtype == torch.float64 else torch.float32
        shape = (d.value_heads, d.key_dim, d.value_dim)
        before = torch.zeros(shape, dtype=wide, device=self.rows.device)
        if spec.head:
            before = recurrence.advance(run, before)
            run += 1
        end = behind = recurrence.advance(run, before.clone())
        transition = recurrence.transition(run)
        if spec.head:
            end = families.written(transition, before, behind)
        if spec.tail:
            recurrence.advance(run + 1, behind.clone() if end is behind else behind)
        return transition, end

    def _convolved(self, layer: int, inputs: Tensor) -> tuple[Tensor | None, list[Tensor | None]]:
        """Outputs behind SiLU, and the last inputs of every interior."""
        back = self.arch.identity.layers[layer].linear.conv.rows
        if back == 0:
            return None, [None] * len(self._specs)
        lefts = inputs.new_zeros((len(self._specs), back, inputs.shape[1]))
        tails: list[Tensor | None] = []
        for spec, sight, left in zip(self._specs, self.rows.sights, lefts, strict=True):
            rows = inputs[sight.lo : sight.hi - spec.tail][-back:]
            short = back - rows.shape[0]
            tails.append(torch.cat((left[:short], rows)) if short else rows.clone())
        return self.convolve(layer, inputs, lefts), tails
