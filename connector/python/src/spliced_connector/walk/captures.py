"""Capture: the result of an isolated pass over a segment's tokens.

Several segments pass the layers as one batch of sequences, which do not see each other. The
recurrence stops at both ends of a segment's interior (the segment without its seams). T comes from
the interior's rows. With the states `before` and `after` the interior, S = after - T before.

If a segment is captured after a primer, its rows also attend to the primer's rows, and its state
and convolution continue from the primer's. The segment's positions still begin at 0.

Denormal numbers are not flushed to zero, although heads that decay fast produce them in up to a
quarter of the results of a product. `torch.set_flush_denormal` only affects the calling thread, so
it flushes half of a product on two threads. On one thread of an AMD EPYC (family 25) it gains
nothing: 0.94 to 1.02x in 12 interleaved captures of 32 to 512 tokens with both trained models.
Transitions differ by at most 6e-38, all other parts are equal. An engine with one thread may set
it for its process if its processor is slow at denormal numbers (1.6x was seen on a Xeon).
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
from spliced_connector.walk.primer import Primer
from spliced_connector.walk.rows import Rows, ranges


def capture(
    arch: Architecture,
    ids: Tensor | Sequence[int],
    spec: SegmentSpec,
    device: torch.device | None = None,
    primer: Primer | None = None,
) -> Captured:
    """`capture_all` of one segment."""
    return capture_all(arch, [(ids, spec)], device, [primer])[0]


def capture_all(
    arch: Architecture,
    segments: Sequence[tuple[Tensor | Sequence[int], SegmentSpec]],
    device: torch.device | None = None,
    primers: Sequence[Primer | None] = (),
) -> list[Captured]:
    """Computes each segment in isolation, and returns the parts that its spec names.

    A segment begins at position 0 with a zero state and an empty convolution, and attends only to
    itself. With a primer it begins with the primer's context, and also attends to the primer.
    primers has one entry for each segment, None for no primer; () means that no segment has one.
    So a capture is a function of the weights, the segment's tokens, its spec and its primer.
    Memory grows with the tokens of all segments and of the primer of each segment that has one.
    Raises PlanError if a spec has another number of tokens than its ids, or if another model
    computed a primer.
    """
    primers = primers or [None] * len(segments)
    if len(primers) != len(segments):
        raise PlanError(f"{len(primers)} primers for {len(segments)} segments")
    for primer in primers:
        if primer is not None:
            primer.check(arch)
    tokens = [ids if isinstance(ids, Tensor) else torch.tensor(ids) for ids, _ in segments]
    for ids, (_, spec) in zip(tokens, segments, strict=True):
        if spec.tokens != ids.shape[0] or spec.interior[1] <= 0:
            raise PlanError(f"capture of {ids.shape[0]} tokens as a segment of {spec}")
    every = torch.cat(tokens)
    with torch.no_grad():
        specs = [spec for _, spec in segments]
        walk = _CapturePass(arch, every.to(device or every.device), specs, primers)
        walk.run()
        return walk.captured()


class _CapturePass(Pass[Rows]):
    def __init__(
        self,
        arch: Architecture,
        ids: Tensor,
        specs: Sequence[SegmentSpec],
        primers: Sequence[Primer | None],
    ) -> None:
        sights: list[Sight] = []
        parts: list[int] = []
        for spec, primer in zip(specs, primers, strict=True):
            lo, begin = (sights[-1].hi, sights[-1].end) if sights else (0, 0)
            seen = spec.tokens + (primer.tokens if primer is not None else 0)
            sights.append(Sight(lo, lo + spec.tokens, begin, begin + seen))
            parts += [n for n in (spec.head, spec.interior[1], spec.tail) if n]
        positions = ranges([(0, spec.tokens) for spec in specs], ids.device)
        super().__init__(arch, Rows(arch, ids, sights, positions, parts))
        self._specs, self._primers = specs, primers
        self._kept: list[dict[int, SegmentLayer]] = [{} for _ in specs]

    def captured(self) -> list[Captured]:
        """Returns the captured segments, once `run` has ended."""
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
        k, v = self._seen(layer, new.k, new.v)
        return self.arch.attention_out(layer, self.attend(layer, new.q, k, v), new)

    def _seen(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values in the order that the sights index: for each segment the rows of
        its primer, then its own rows."""
        if not any(self._primers):
            return k, v
        keys, values = [], []
        for primer, sight in zip(self._primers, self.rows.sights, strict=True):
            at = None if primer is None else primer.layers[layer]
            if at is not None and at.k is not None and at.v is not None:
                keys.append(at.k)
                values.append(at.v)
            keys.append(k[sight.lo : sight.hi])
            values.append(v[sight.lo : sight.hi])
        return torch.cat(keys), torch.cat(values)

    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        new = self.arch.linear(layer, x, self.rows.positions)
        out, tails = None, [None] * len(self._specs)
        if new.conv is not None:
            out, tails = self._convolved(layer, new.conv)
        recurrence = self.recurrence(layer, out, new)
        run = 0
        for i, (spec, tail, kept) in enumerate(zip(self._specs, tails, self._kept, strict=True)):
            transition, state = self._interior(layer, i, run, recurrence)
            kept[layer] = SegmentLayer(transition, state, tail)
            run += 1 + bool(spec.head) + bool(spec.tail)
        return self.arch.linear_out(layer, recurrence.outputs(), new)

    def _interior(
        self, layer: int, segment: int, run: int, recurrence: Recurrence
    ) -> tuple[Tensor, Tensor]:
        """Returns (T, S) of a segment's interior. run: the number of the segment's first run."""
        spec, before = self._specs[segment], self._state(layer, segment)
        moved = self._primers[segment] is not None or spec.head > 0
        if spec.head:
            before = recurrence.advance(run, before)
            run += 1
        end = behind = recurrence.advance(run, before.clone())
        transition = recurrence.transition(run)
        if moved:
            end = families.written(transition, before, behind)
        if spec.tail:
            recurrence.advance(run + 1, behind.clone() if end is behind else behind)
        return transition, end

    def _state(self, layer: int, segment: int) -> Tensor:
        """Returns the state before a segment, which may be overwritten."""
        primer = self._primers[segment]
        state = None if primer is None else primer.layers[layer].state
        if state is not None:
            return state.clone()
        d = self.arch.identity.layers[layer].linear
        wide = torch.float64 if self.arch.dtype == torch.float64 else torch.float32
        shape = (d.value_heads, d.key_dim, d.value_dim)
        return torch.zeros(shape, dtype=wide, device=self.rows.device)

    def _convolved(self, layer: int, inputs: Tensor) -> tuple[Tensor | None, list[Tensor | None]]:
        """Returns outputs after SiLU, and the last inputs of each segment's interior."""
        back = self.arch.identity.layers[layer].linear.conv.rows
        if back == 0:
            return None, [None] * len(self._specs)
        lefts = inputs.new_zeros((len(self._specs), back, inputs.shape[1]))
        tails: list[Tensor | None] = []
        for i, (spec, sight) in enumerate(zip(self._specs, self.rows.sights, strict=True)):
            primer = self._primers[i]
            conv = None if primer is None else primer.layers[layer].conv
            if conv is not None:
                lefts[i] = conv
            rows = inputs[sight.lo : sight.hi - spec.tail][-back:]
            short = rows.shape[0] < back
            tails.append(torch.cat((lefts[i], rows))[-back:] if short else rows.clone())
        return self.convolve(layer, inputs, lefts), tails
