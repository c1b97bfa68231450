"""Positions of the rows of one walk: computed once, read by every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor

from spliced_connector.model import Kind, PlanError, Rope, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture, Captured, Placer, Sight
from spliced_connector.walk.softmax import Block, blocks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConvRows:
    """How the rows of several sequences pass one convolution.

    A sequence's left rows are the inputs before its first row. The convolution's input is the left
    rows of all sequences, followed by the rows of all sequences. order has the indices that put
    each sequence directly after its left rows. valid has the indices of the outputs that belong to
    rows. Both are None if there is one sequence.
    """

    order: Tensor | None
    valid: Tensor | None


class Rows:
    """Sequences of rows that pass the layers together; the `Batch` of kernels."""

    def __init__(
        self,
        arch: Architecture,
        ids: Tensor,
        sights: Sequence[Sight],
        positions: Tensor,
        parts: Sequence[int] = (),
    ) -> None:
        """ids and positions have one entry per row, [n]. parts: the number of rows of each run of
        the recurrence; () if each sequence is one run."""
        self.arch = arch
        self.device = ids.device
        self.ids, self.positions = ids, positions
        self.sights = tuple(sights)
        self.lengths = tuple(s.hi - s.lo for s in sights)
        self.parts = tuple(parts) or self.lengths
        self.count = sum(self.lengths)
        self._made: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Returns the result of `make`, computed once for all layers."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])

    def runs(self, chunk: int) -> families.Runs:
        """Returns the runs of the recurrence, divided into chunks of `chunk` rows."""
        return self.once(("runs", chunk), lambda: families.Runs(self.parts, chunk, self.device))

    def blocks(self, window: int) -> list[Block]:
        """Returns the keys that the rows see, as blocks."""
        return self.once(
            ("blocks", window), lambda: blocks(self.sights, window, self.arch.dtype, self.device)
        )

    def conv(self, back: int) -> ConvRows:
        """Returns how rows pass a convolution that reads `back` earlier rows."""
        return self.once(("conv", back), lambda: self._conv(back))

    def _conv(self, back: int) -> ConvRows:
        if len(self.sights) == 1:
            return ConvRows(None, None)
        first = len(self.sights) * back
        order, valid = [], []
        for i, s in enumerate(self.sights):
            order.append((i * back, (i + 1) * back))
            order.append((first + s.lo, first + s.hi))
            # Output j reads rows j to j + back, so a sequence's outputs begin at its left rows.
            valid.append((s.lo + i * back, s.hi + i * back))
        return ConvRows(ranges(order, self.device), ranges(valid, self.device))


class SplicedRows(Rows):
    """The recomputed rows of consecutive spans, and the segments between them."""

    def __init__(
        self,
        arch: Architecture,
        ids: Tensor,
        spans: Sequence[Span],
        segments: Mapping[int, Captured],
        begin: int,
        placer: Placer | None = None,
        paged: bool = False,
    ) -> None:
        """placer: places the segments that it holds. paged: attention reads the rows of segments in
        place."""
        self.spans = tuple(spans)
        self.begin = begin
        self.end = _check(self.spans, begin, ids.shape[0])
        self.segments = {s.segment: _given(s, segments) for s in spans if s.segment >= 0}
        computed = [s for s in spans if s.kind is SpanKind.RECOMPUTE]
        sights: list[Sight] = []
        for s in computed:
            lo = sights[-1].hi if sights else 0
            sights.append(Sight(lo, lo + s.length, 0, s.end))
        positions = ranges([(s.start, s.end) for s in computed], ids.device)
        super().__init__(arch, ids.index_select(0, positions), sights, positions)
        whole = tuple(s for s in spans if s.segment >= 0)
        self.composed = tuple(s for s in whole if placer is None or not placer.holds(s.segment))
        """Spans of the segments that the walk itself composes with the states; a placer composes
        the others."""
        self.copied = whole if paged else self.composed
        """Spans of the segments whose keys and values the walk itself copies or reads in place."""
        reused = [(s.start, s.end) for s in self.copied]
        self.reused = ranges(reused, self.device) if reused else None

    def segment_turns(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """Returns cos and sin [rows of the copied segments, 1, dims / 2] that rotate keys to
        their positions."""
        return self.once(("turns", rope), lambda: self._turns(rope))

    def _turns(self, rope: Rope) -> tuple[Tensor, Tensor]:
        spans = self.copied
        moved = [s.start - self.segments[s.segment].spec.head for s in spans]
        distance = repeated(moved, [s.length for s in spans], self.device)
        cos, sin = families.angles(rope, distance)
        return cos[:, None], sin[:, None]


def _check(spans: tuple[Span, ...], begin: int, tokens: int) -> int:
    """Checks that spans are contiguous from begin. Returns their end."""
    at = begin
    for s in spans:
        if s.start != at or s.length <= 0:
            raise PlanError(f"span at {s.start} of {s.length} tokens, expected one at {at}")
        at = s.end
    if not spans or at > tokens:
        raise PlanError(f"{len(spans)} spans end at {at}, the prompt at {tokens}")
    return at


def _given(span: Span, segments: Mapping[int, Captured]) -> Captured:
    """Returns the segment of a span, if it is given and fits."""
    if span.segment not in segments:
        raise PlanError(f"segment {span.segment} is planned but missing")
    segment = segments[span.segment]
    if segment.spec.interior[1] != span.length:
        raise PlanError(
            f"segment {span.segment} keeps {segment.spec.interior[1]} tokens, {span.length} planned"
        )
    return segment


PARTS = ("transition", "state", "conv", "k", "v")


def check_segment(arch: Architecture, segment: Captured, composed: bool = True) -> None:
    """Raises PlanError unless every layer has exactly its parts, in their shapes. composed: whether
    linear layers must have T and S; if not, they must have neither.

    Without this check, a part of another shape could broadcast and give an answer that looks right.
    """
    rows = segment.spec.interior[1]
    if len(segment.layers) != len(arch.layers):
        raise PlanError(
            f"segment of {len(segment.layers)} layers, the model has {len(arch.layers)}"
        )
    for i, (got, d) in enumerate(zip(segment.layers, arch.identity.layers, strict=True)):
        want: dict[str, tuple[int, ...] | None] = dict.fromkeys(
            ("transition", "state", "conv", "k", "v")
        )
        if d.kind == Kind.LINEAR:
            a = d.linear
            if composed:
                keys = (a.key_dim,) * (int(a.family.transition) - 1)
                want["transition"] = (a.value_heads, *keys)
                want["state"] = (a.value_heads, a.key_dim, a.value_dim)
            if a.conv.rows:
                want["conv"] = (a.conv.rows, sum(a.conv.channels))
        elif d.kind != Kind.NONE:
            want["k"] = (rows, d.attention.kv_heads, d.attention.key_dim)
            want["v"] = (rows, d.attention.kv_heads, d.attention.value_dim)
        for name, shape in want.items():
            part: Tensor | None = getattr(got, name)
            if (None if part is None else tuple(part.shape)) != shape:
                found = None if part is None else tuple(part.shape)
                raise PlanError(f"layer {i}: part {name} is {found}, expected {shape}")


def ranges(pairs: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Returns all numbers from a to b, without b, of every pair (a, b)."""
    shifts, at = [], 0
    for a, b in pairs:
        shifts.append(a - at)
        at += b - a
    return torch.arange(at, device=device) + repeated(shifts, [b - a for a, b in pairs], device)


def repeated(numbers: Sequence[int], times: Sequence[int], device: torch.device) -> Tensor:
    """Repeats each number the given number of times."""
    each = torch.tensor(numbers, dtype=torch.int64, device=device)
    counts = torch.tensor(times, dtype=torch.int64, device=device)
    return each.repeat_interleave(counts, output_size=sum(times))
