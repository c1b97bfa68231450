"""Where the rows of one walk lie: made once, read by every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import Kind, PlanError, Rope, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.attend import Block, blocks
from spliced_connector.walk.base import Architecture, Captured


@dataclass(frozen=True, slots=True)
class ConvRows:
    """How the rows of several spans pass one convolution.

    order puts every span behind the rows left of it, from (all left rows | all rows); valid names
    the outputs that belong to rows. Both None: one span.
    """

    order: Tensor | None
    valid: Tensor | None


class Rows:
    """The recomputed rows of consecutive spans, and the segments between them."""

    def __init__(
        self,
        arch: Architecture,
        ids: Tensor,
        spans: Sequence[Span],
        segments: Mapping[int, Captured],
        begin: int,
    ) -> None:
        self.arch = arch
        self.device = ids.device
        self.spans = tuple(spans)
        self.begin = begin
        self.end = _check(self.spans, begin, ids.shape[0])
        self.segments = {s.segment: _given(s, segments) for s in spans if s.segment >= 0}
        computed = [s for s in spans if s.kind is SpanKind.RECOMPUTE]
        self.lengths = [s.length for s in computed]
        self.count = sum(self.lengths)
        self.at: list[tuple[int, int, int]] = []
        """Per recomputed span: its first row, the row behind its last, its position."""
        lo = 0
        for s in computed:
            self.at.append((lo, lo + s.length, s.start))
            lo += s.length
        self.positions = _ranges([(s.start, s.end) for s in computed], self.device)
        self.ids = ids.index_select(0, self.positions)
        self._runs: dict[int, families.Runs] = {}
        self._convs: dict[int, ConvRows] = {}
        self._blocks: dict[int, list[Block]] = {}
        self._turns: dict[Rope, tuple[Tensor, Tensor]] = {}
        reused = [(s.start, s.end) for s in spans if s.kind is SpanKind.SEGMENT]
        self.reused = _ranges(reused, self.device) if reused else None

    def runs(self, chunk: int) -> families.Runs:
        """The recomputed spans as runs of chunks."""
        if chunk not in self._runs:
            self._runs[chunk] = families.Runs(self.lengths, chunk, self.device)
        return self._runs[chunk]

    def blocks(self, window: int) -> list[Block]:
        """What the recomputed rows see."""
        if window not in self._blocks:
            self._blocks[window] = blocks(self.at, window, self.arch.dtype, self.device)
        return self._blocks[window]

    def conv(self, back: int) -> ConvRows:
        """How rows pass a convolution that looks back on `back` rows."""
        if back not in self._convs:
            self._convs[back] = self._conv(back)
        return self._convs[back]

    def _conv(self, back: int) -> ConvRows:
        if len(self.at) == 1:
            return ConvRows(None, None)
        first = len(self.at) * back
        order, valid = [], []
        for i, (lo, hi, _) in enumerate(self.at):
            order.append((i * back, (i + 1) * back))
            order.append((first + lo, first + hi))
            # Output j reads rows j to j + back, so a span's outputs begin where its left rows do.
            valid.append((lo + i * back, hi + i * back))
        return ConvRows(_ranges(order, self.device), _ranges(valid, self.device))

    def segment_turns(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """cos and sin [rows of all segments, 1, dims / 2] that move keys to their places."""
        if rope not in self._turns:
            starts = [(s, self.segments[s.segment].spec.head) for s in self.spans if s.segment >= 0]
            distance = torch.cat([torch.full((s.length,), s.start - head) for s, head in starts])
            cos, sin = families.angles(rope, distance.to(self.device))
            self._turns[rope] = (cos[:, None], sin[:, None])
        return self._turns[rope]


def _check(spans: tuple[Span, ...], begin: int, tokens: int) -> int:
    """The end of spans that must lie side by side from begin."""
    at = begin
    for s in spans:
        if s.start != at or s.length <= 0:
            raise PlanError(f"span at {s.start} of {s.length} tokens, expected one at {at}")
        at = s.end
    if not spans or at > tokens:
        raise PlanError(f"{len(spans)} spans end at {at}, the prompt at {tokens}")
    return at


def _given(span: Span, segments: Mapping[int, Captured]) -> Captured:
    """The segment of a span, if it is given and fits."""
    if span.segment not in segments:
        raise PlanError(f"segment {span.segment} is planned and not given")
    segment = segments[span.segment]
    if segment.spec.interior[1] != span.length:
        raise PlanError(
            f"segment {span.segment} keeps {segment.spec.interior[1]} tokens, {span.length} planned"
        )
    return segment


PARTS = ("transition", "state", "conv", "k", "v")


def check_segment(arch: Architecture, segment: Captured) -> None:
    """Raises PlanError unless every layer has its parts in their shapes.

    A part of another shape would broadcast, and give an answer that looks right.
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


def _ranges(pairs: list[tuple[int, int]], device: torch.device) -> Tensor:
    if not pairs:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.cat([torch.arange(a, b, device=device) for a, b in pairs])
