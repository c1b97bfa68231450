"""Computes rows of a prompt through all layers of a model: prefill and splice.

Prefill and splice use the same walk. A prefill is a walk over one recomputed span; a splice is a
walk over several recomputed spans with segments between them (HYPIC sections 4.2 and 4.3). The
rows of all recomputed spans pass each layer in one batch; only the state passes from span to span.
So a difference between a prefill and a splice is due to the segments alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from spliced_connector.model import PlanError, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture, Captured, Placer, Recurrence
from spliced_connector.walk.context import Context
from spliced_connector.walk.layers import Pass
from spliced_connector.walk.paged import PagedRows, Pages, Place
from spliced_connector.walk.rows import Rows, SplicedRows, check_segment

PREFILL_ROWS = 2048
"""Maximum number of rows computed in one walk of a long prompt. It bounds the memory of a layer."""

PLACED_ROWS = 16 * PREFILL_ROWS
"""Maximum rows of segments that one walk of a long prompt places, unless one segment has more."""

COMPOSED = 8
"""Maximum number of segments that a placer composes with a state in one call. It bounds the memory
for their operands."""

CONVERTED = 16
"""Maximum number of a layer's transitions that are converted from their stored type in one call. It
bounds the memory for converted transitions."""


def prefill(arch: Architecture, ids: Tensor | Sequence[int], context: Context) -> Tensor:
    """Continues a context over all remaining tokens of ids.

    ids is the whole prompt. Returns the last layer's hidden rows of the computed tokens, [n,
    width].
    """
    every = _tokens(ids, context.device)
    if context.tokens >= every.shape[0]:
        raise PlanError(f"{context.tokens} tokens in place of {every.shape[0]}: nothing to compute")
    out = []
    for lo in range(context.tokens, every.shape[0], PREFILL_ROWS):
        n = min(PREFILL_ROWS, every.shape[0] - lo)
        out.append(splice(arch, every, [Span(SpanKind.RECOMPUTE, lo, n)], {}, context))
    rows = [h for h in out if h is not None]
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def splice(
    arch: Architecture,
    ids: Tensor | Sequence[int],
    spans: Sequence[Span],
    segments: Mapping[int, Captured],
    context: Context,
    placer: Placer | None = None,
    pages: Pages | None = None,
) -> Tensor | None:
    """Continues a context by consecutive spans that begin where the context ends.

    ids is the whole prompt. segments maps the segment numbers in spans to segments; placer places
    the segments that it holds. With pages, layers that can read a segment's rows in place do so,
    and the rows must stay readable as long as the context is used; other layers copy them. A long
    plan can be cut into several calls: each call continues the context. Returns the hidden rows of
    the last span, None if that span is a segment. Raises PlanError, and leaves the context
    unchanged, if spans or segments do not fit.
    """
    with torch.no_grad():
        every = _tokens(ids, context.device)
        rows = SplicedRows(arch, every, spans, segments, context.tokens, placer, pages is not None)
        for span in rows.copied:
            check_segment(arch, rows.segments[span.segment], span in rows.composed)
        if pages is not None:
            context.page(arch, pages)
            pages.add(places(rows))
        context.reserve(rows.end)
        if placer is not None and pages is None:
            placer.rows(rows.spans, [(at.k, at.v) for at in context.layers])
        h = Walk(arch, rows, context, placer).run()
        context.tokens = rows.end
        context.spliced |= any(s.segment >= 0 and s.start > 0 for s in rows.spans)
        last = rows.spans[-1]
        return None if h is None or last.segment >= 0 else h[h.shape[0] - last.length :]


def places(rows: SplicedRows) -> list[Place]:
    """Returns where a walk reads the rows of its segments in place."""
    return [
        Place(s.start, s.length, s.start - rows.segments[s.segment].spec.head) for s in rows.copied
    ]


def pieces(spans: Sequence[Span]) -> list[list[Span]]:
    """Divides consecutive spans into walks of bounded memory. Long recomputed spans are cut, and a
    walk ends before it computes more than PREFILL_ROWS or places more than PLACED_ROWS."""
    out: list[list[Span]] = [[]]
    computed = placed = 0
    for span in spans:
        if span.segment >= 0:
            if placed and placed + span.length > PLACED_ROWS:
                out.append([])
                computed = placed = 0
            placed += span.length
            out[-1].append(span)
            continue
        at = span.start
        while at < span.end:
            if computed == PREFILL_ROWS:
                out.append([])
                computed = placed = 0
            n = min(span.end - at, PREFILL_ROWS - computed)
            out[-1].append(Span(SpanKind.RECOMPUTE, at, n))
            at, computed = at + n, computed + n
    return [walk for walk in out if walk]


def _tokens(ids: Tensor | Sequence[int], device: torch.device) -> Tensor:
    return ids.to(device) if isinstance(ids, Tensor) else torch.tensor(ids, device=device)


class Walk(Pass[SplicedRows]):
    """The pass of a splice. The context's states are replaced only when the pass has ended."""

    def __init__(
        self, arch: Architecture, rows: SplicedRows, context: Context, placer: Placer | None
    ) -> None:
        super().__init__(arch, rows)
        self.context = context
        self._placer = placer
        self.moved: list[tuple[int, Tensor, Tensor | None]] = []
        """For each linear layer: its number, and the state and the convolution tail after the last
        span."""

    def run(self) -> Tensor | None:
        h = super().run()
        for layer, state, tail in self.moved:
            at = self.context.layers[layer]
            at.state, at.conv = state, tail
        return h

    def attention(self, layer: int, x: Tensor | None) -> Tensor | None:
        at, rows = self.context.layers[layer], self.rows
        if at.pages is not None:
            return self._paged(layer, at.pages, x)
        if at.k is None or at.v is None:
            raise PlanError(f"layer {layer} of the context keeps no rows")
        self._place_segments(layer, at.k, at.v)
        if x is None:
            return None
        new = self.arch.attention(layer, x, rows.positions)
        _put(at.k, rows, new.k)
        _put(at.v, rows, new.v)
        o = self.attend(layer, new.q, at.k[: rows.end], at.v[: rows.end])
        return self.arch.attention_out(layer, o, new)

    def _paged(self, layer: int, pages: PagedRows, x: Tensor | None) -> Tensor | None:
        """Does what `attention` does, for a layer whose rows are read in place."""
        parts = [self.rows.segments[s.segment].layers[layer] for s in self.rows.copied]
        pages.add([(p.k, p.v) for p in parts if p.k is not None and p.v is not None])
        if x is None:
            return None
        new = self.arch.attention(layer, x, self.rows.positions)
        stretches = [(s.position, s.hi - s.lo) for s in self.rows.sights]
        pages.put(stretches, new.k, new.v)
        o = pages.attend(new.q, stretches, self.arch.scale(layer))
        return self.arch.attention_out(layer, o, new)

    def _place_segments(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Writes the segments' rows at their positions, with rotated keys."""
        if self.rows.reused is None:
            return
        parts = [self.rows.segments[s.segment].layers[layer] for s in self.rows.copied]
        # Parts may be in different memories: leased ones on the host, fresh captures on the device.
        keys = torch.cat([p.k.to(k.device) for p in parts if p.k is not None]).to(k)
        values = torch.cat([p.v.to(v.device) for p in parts if p.v is not None]).to(v)
        rope = self.arch.identity.layers[layer].attention.rope
        if rope.dims:
            cos, sin = self.rows.segment_turns(rope)
            front = keys[..., : rope.dims]
            front.copy_(families.turn(front, cos, sin, rope.interleaved))
        k.index_copy_(0, self.rows.reused, keys)
        v.index_copy_(0, self.rows.reused, values)

    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        before = self.context.layers[layer].state
        if before is None:
            raise PlanError(f"layer {layer} of the context keeps no state")
        if x is None:
            self.moved.append((layer, self._through(layer, before, None), self._after(layer)))
            return None
        new = self.arch.linear(layer, x, self.rows.positions)
        out, tail = self._convolved(layer, new.conv)
        recurrence = self.recurrence(layer, out, new)
        self.moved.append((layer, self._through(layer, before, recurrence), tail))
        return self.arch.linear_out(layer, recurrence.outputs(), new)

    def _through(self, layer: int, state: Tensor, recurrence: Recurrence | None) -> Tensor:
        """Returns the state after the last span. Computed rows advance the state, and segments
        are composed with it."""
        state = state.clone()  # the context keeps its own state until the walk has ended
        run = 0
        segments = self._tuples(layer, state)
        for spans in self._moves(recurrence):
            if any(self._held(s) for s in spans):
                runs = range(run, run + sum(s.segment < 0 for s in spans))
                state = self._placed(layer, spans, runs, recurrence, state)
                run = runs.stop
            elif spans[0].segment >= 0:
                state = families.compose(*next(segments), state)
            elif recurrence is not None:
                state = recurrence.advance(run, state)
                run += 1
        return state

    def _held(self, span: Span) -> bool:
        return self._placer is not None and self._placer.holds(span.segment)

    def _moves(self, recurrence: Recurrence | None) -> list[list[Span]]:
        """Groups the spans, in order, into moves. Neighbouring segments of the placer and short
        computed spans form one move, with which the placer composes a state in one call. Every
        other span is a move by itself."""
        if self._placer is None:
            return [[span] for span in self.rows.spans]
        chunk = recurrence.runs.chunk if isinstance(recurrence, families.Scan) else 0
        return self.rows.once(("moves", chunk), lambda: self._together(recurrence))

    def _together(self, recurrence: Recurrence | None) -> list[list[Span]]:
        out: list[list[Span]] = []
        run = 0
        segments = 0  # in the last move
        goes_on = False
        for span in self.rows.spans:
            held = self._held(span)
            joins = held
            if span.segment < 0:
                joins = isinstance(recurrence, families.Scan) and recurrence.short(run)
                run += 1
            if joins and goes_on and not (held and segments == COMPOSED):
                out[-1].append(span)
            else:
                out.append([span])
                segments = 0
            goes_on = joins
            segments += int(held)
        return out

    def _placed(
        self,
        layer: int,
        spans: Sequence[Span],
        runs: range,
        recurrence: Recurrence | None,
        state: Tensor,
    ) -> Tensor:
        """Returns the state after one move of the placer. runs: the numbers of the runs of the
        move's computed spans; empty if all its spans are segments."""
        if self._placer is None:
            raise RuntimeError("no placer")
        if not runs or not isinstance(recurrence, families.Scan):
            return self._placer.compose(layer, spans, None, state)[0]
        computed = recurrence.tuples(runs)
        state, before = self._placer.compose(layer, spans, computed, state)
        recurrence.moved_over(runs, before)
        return state

    def _tuples(self, layer: int, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (T, S) of every segment that the walk itself composes, in order. They have the
        type of `like`. The tensors of up to `CONVERTED` segments are converted in one call."""
        rope = self.arch.identity.layers[layer].linear.rope
        spans = self.rows.composed
        for first in range(0, len(spans), CONVERTED):
            some = spans[first : first + CONVERTED]
            found = [self._tuple(layer, s.segment) for s in some]
            transitions = alike([t for t, _ in found], like)
            ends = alike([s for _, s in found], like)
            for span, t, s in zip(some, transitions, ends, strict=True):
                if rope.dims:
                    head = self.rows.segments[span.segment].spec.head
                    s = families.rotate_state(s, span.start - head, rope)
                yield t, s

    def _tuple(self, layer: int, segment: int) -> tuple[Tensor, Tensor]:
        part = self.rows.segments[segment].layers[layer]
        if part.transition is None or part.state is None:
            raise PlanError(f"layer {layer} of segment {segment} has no tuple")
        return part.transition, part.state

    def _left(self, layer: int, span: int) -> Tensor | None:
        """Returns the convolution's inputs before a span. They come from the segment, or from the
        context, that precedes the span."""
        tail = self.context.layers[layer].conv
        if tail is None or span == 0:
            return tail
        left = self.rows.spans[span - 1]
        if left.segment < 0:
            raise PlanError(f"recomputed spans meet at {left.end}")
        conv = self.rows.segments[left.segment].layers[layer].conv
        return None if conv is None else conv.to(tail)

    def _after(self, layer: int) -> Tensor | None:
        """Returns a copy of the convolution's tail after the last span, which is a segment."""
        tail = self._left(layer, len(self.rows.spans))
        return None if tail is None else tail.clone()

    def _convolved(self, layer: int, inputs: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Returns outputs after SiLU [n, C], and the tail [k-1, C] after the last span."""
        if inputs is None:
            return None, None
        spans = [i for i, s in enumerate(self.rows.spans) if s.segment < 0]
        lefts = [x for x in (self._left(layer, i) for i in spans) if x is not None]
        out = self.convolve(layer, inputs, torch.stack(lefts))
        if spans[-1] != len(self.rows.spans) - 1:
            return out, self._after(layer)
        rows = inputs[self.rows.sights[-1].lo :]
        back = lefts[-1].shape[0]
        tail = rows if len(rows) >= back else torch.cat((lefts[-1], rows))
        return out, tail[len(tail) - back :].clone()


def alike(tensors: Sequence[Tensor], like: Tensor) -> Sequence[Tensor]:
    """Converts tensors of one shape to the type and device of `like`. Tensors that have both
    already are not copied."""
    if all(x.dtype == like.dtype and x.device == like.device for x in tensors):
        return tensors
    # The stored type is narrower than the type of `like`, so tensors are converted after the
    # transfer.
    if len({(x.dtype, x.device) for x in tensors}) > 1:  # some are in memory, some on the GPU
        return [x.to(like.device).to(like.dtype) for x in tensors]
    return list(torch.stack(list(tensors)).to(like.device).to(like.dtype))


def _put(into: Tensor, rows: Rows, new: Tensor) -> None:
    if len(rows.sights) == 1:
        begin = rows.sights[0].position
        into[begin : begin + rows.count] = new
    else:
        into.index_copy_(0, rows.positions, new.to(into.dtype))
