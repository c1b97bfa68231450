"""Moving the rows of a prompt through a model's layers.

One walk serves all: a prefill is a walk over one recomputed span, a splice one over several with
segments between them (HYPIC sections 4.2 and 4.3). The rows of all recomputed spans pass each layer
in one batch; only the state goes from span to span. So a difference between a prefill and a splice
comes from the segments alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spliced_connector.model import Kind, PlanError, SegmentSpec, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.attend import attend
from spliced_connector.walk.base import Architecture, AttentionRows, Captured, SegmentLayer
from spliced_connector.walk.context import Context
from spliced_connector.walk.rows import Rows, check_segment

PREFILL_ROWS = 2048
"""Rows computed in one walk of a long prompt: bounds what a layer holds at once."""

PLACED_ROWS = 16 * PREFILL_ROWS
"""Rows of segments that one walk of a long prompt puts in place, if no segment has more."""


def prefill(arch: Architecture, ids: Tensor | Sequence[int], context: Context) -> Tensor:
    """Continues a context over the tokens of ids behind it, all of them.

    ids is the whole prompt. Returns the last hidden rows of the tokens computed, [n, width].
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
) -> Tensor | None:
    """Moves a context over consecutive spans that begin where it ends.

    ids is the whole prompt; segments are by the number that spans give them. Works for any run of a
    plan's spans, so that a long plan can be cut: what follows continues the context. Returns the
    hidden rows of the last span, None when that is a segment. Raises PlanError, with the context as
    it was, when spans or segments do not fit.
    """
    with torch.no_grad():
        every = _tokens(ids, context.device)
        rows = Rows(arch, every, spans, segments, context.tokens)
        for segment in rows.segments.values():
            check_segment(arch, segment)
        context.reserve(rows.end)
        h = _Walk(arch, rows, context).run()
        context.tokens = rows.end
        context.spliced |= any(s.segment >= 0 and s.start > 0 for s in rows.spans)
        last = rows.spans[-1]
        return None if h is None or last.segment >= 0 else h[h.shape[0] - last.length :]


def pieces(spans: Sequence[Span]) -> list[list[Span]]:
    """Consecutive spans as walks one after the other, each of bounded memory: long recomputed
    spans are cut, and a walk ends before PREFILL_ROWS or PLACED_ROWS would be passed."""
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


def splice_long(
    arch: Architecture,
    ids: Tensor | Sequence[int],
    spans: Sequence[Span],
    segments: Mapping[int, Captured],
    context: Context,
) -> Tensor | None:
    """`splice` in walks of bounded memory; a PlanError can leave the context between two of them.

    Returns the hidden rows of the last walk's last span, None when that is a segment or no span is.
    """
    every = _tokens(ids, context.device)
    h = None
    for walk in pieces(spans):
        h = splice(arch, every, walk, segments, context)
    return h


def capture(
    arch: Architecture,
    ids: Tensor | Sequence[int],
    spec: SegmentSpec,
    device: torch.device | None = None,
) -> Captured:
    """Runs a segment's tokens alone and keeps what its spec names.

    From position 0, a zero state and an empty convolution, attention inside only: the result is a
    function of the weights, the tokens and the spec. Raises PlanError for another number of tokens.
    """
    if device is None:
        device = ids.device if isinstance(ids, Tensor) else torch.device("cpu")
    every = _tokens(ids, device)
    if spec.tokens != every.shape[0] or spec.interior[1] <= 0:
        raise PlanError(f"capture of {every.shape[0]} tokens as a segment of {spec}")
    with torch.no_grad():
        walk = _CaptureWalk(arch, every, spec, Context(arch, spec.tokens, device))
        walk.run()
        return walk.captured()


def _tokens(ids: Tensor | Sequence[int], device: torch.device) -> Tensor:
    return ids.to(device) if isinstance(ids, Tensor) else torch.tensor(ids, device=device)


class _Walk:
    """One pass of rows through all layers; the context changes only when it has ended."""

    def __init__(self, arch: Architecture, rows: Rows, context: Context) -> None:
        self.arch = arch
        self.rows = rows
        self.context = context
        self.moved: list[tuple[Tensor | None, Tensor | None]] = []
        """Per layer: the state and the convolution tail behind the last span."""

    def run(self) -> Tensor | None:
        """Returns the hidden rows behind the last layer, None when no row is computed."""
        computes = self.rows.count > 0
        h = self.arch.embed(self.rows.ids) if computes else None
        for layer, kind in enumerate(self.arch.layers):
            state: tuple[Tensor | None, Tensor | None] = (None, None)
            x = None if h is None else self.arch.norm(layer, h)
            if kind == Kind.LINEAR:
                y, state = self._linear(layer, x)
            elif kind == Kind.NONE:
                y = x
            else:
                y = self._attention(layer, x)
            if h is not None and y is not None:
                h = self.arch.mix(layer, h, y)
            self.moved.append(state)
        for at, (after, tail) in zip(self.context.layers, self.moved, strict=True):
            if after is not None:
                at.state, at.conv = after, tail
        return h

    def _attention(self, layer: int, x: Tensor | None) -> Tensor | None:
        at, arch, rows = self.context.layers[layer], self.arch, self.rows
        if at.k is None or at.v is None:
            raise PlanError(f"layer {layer} of the context keeps no rows")
        self._place_segments(layer, at.k, at.v)
        if x is None:
            return None
        new = arch.attention(layer, x, rows.positions)
        _put(at.k, rows, new.k)
        _put(at.v, rows, new.v)
        return arch.attention_out(layer, self._attend(layer, new, at.k, at.v), new)

    def _attend(self, layer: int, new: AttentionRows, k: Tensor, v: Tensor) -> Tensor:
        described = self.arch.identity.layers[layer]
        if described.kind == Kind.MLA:
            k = torch.cat((v[: self.rows.end], k[: self.rows.end]), -1)
        blocks = self.rows.blocks(described.attention.window)
        return attend(new.q, k, v, blocks, self.arch.scale(layer))

    def _place_segments(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Writes the segments' rows at their places, keys turned to them."""
        if self.rows.reused is None:
            return
        parts = [
            self.rows.segments[s.segment].layers[layer] for s in self.rows.spans if s.segment >= 0
        ]
        wide = torch.float64 if k.dtype == torch.float64 else torch.float32
        keys = torch.cat([p.k.to(k.device, wide) for p in parts if p.k is not None])
        values = torch.cat([p.v.to(v.device, v.dtype) for p in parts if p.v is not None])
        rope = self.arch.identity.layers[layer].attention.rope
        if rope.dims:
            cos, sin = self.rows.segment_turns(rope)
            keys = families.turn(keys, cos, sin, rope.interleaved)
        k.index_copy_(0, self.rows.reused, keys.to(k.dtype))
        v.index_copy_(0, self.rows.reused, values)

    def _linear(
        self, layer: int, x: Tensor | None
    ) -> tuple[Tensor | None, tuple[Tensor | None, Tensor | None]]:
        at, arch, rows = self.context.layers[layer], self.arch, self.rows
        if at.state is None:
            raise PlanError(f"layer {layer} of the context keeps no state")
        if x is None:
            return None, (self._through(layer, at.state, None), self._behind(layer))
        new = arch.linear(layer, x, rows.positions)
        out, tail = self._convolve(layer, new.conv)
        steps = arch.steps(layer, out, new, rows.positions)
        scan = families.Scan(steps, rows.runs(families.chunk_length(steps)))
        state = self._through(layer, at.state, scan)
        return arch.linear_out(layer, scan.outputs(), new), (state, tail)

    def _through(self, layer: int, state: Tensor, scan: families.Scan | None) -> Tensor:
        """The state behind the last span: rows of ours move it, segments compose onto it."""
        rope = self.arch.identity.layers[layer].linear.rope
        run = 0
        for span in self.rows.spans:
            if span.segment < 0:
                if scan is not None:
                    state = scan.advance(run, state)
                run += 1
                continue
            segment = self.rows.segments[span.segment]
            part = segment.layers[layer]
            if part.transition is None or part.state is None:
                raise PlanError(f"layer {layer} of segment {span.segment} has no tuple")
            end = part.state
            if rope.dims:
                end = families.rotate_state(end.to(state), span.start - segment.spec.head, rope)
            state = families.compose(part.transition, end, state)
        return state

    def _left(self, layer: int, span: int) -> Tensor | None:
        """The convolution's inputs before a span: of the segment or the context left of it."""
        tail = self.context.layers[layer].conv
        if tail is None or span == 0:
            return tail
        left = self.rows.spans[span - 1]
        if left.segment < 0:
            raise PlanError(f"recomputed spans meet at {left.end}")
        conv = self.rows.segments[left.segment].layers[layer].conv
        return None if conv is None else conv.to(tail)

    def _behind(self, layer: int) -> Tensor | None:
        """The convolution's tail behind a last span that is a segment: a copy of its own."""
        tail = self._left(layer, len(self.rows.spans))
        return None if tail is None else tail.clone()

    def _convolve(self, layer: int, inputs: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Outputs behind SiLU [n, C], and the tail [k-1, C] behind the last span."""
        weight = self.arch.conv_weight(layer)
        if inputs is None or weight is None:
            return None, None
        taps, bias = weight
        spans = [i for i, s in enumerate(self.rows.spans) if s.segment < 0]
        lefts = [x for x in (self._left(layer, i) for i in spans) if x is not None]
        line = torch.cat((*lefts, inputs))
        where = self.rows.conv(taps.shape[1] - 1)
        if where.order is not None:
            line = line.index_select(0, where.order)
        out = causal_convolution(line, taps, bias)
        if where.valid is not None:
            out = out.index_select(0, where.valid)
        tail = line[line.shape[0] - taps.shape[1] + 1 :]
        if spans[-1] != len(self.rows.spans) - 1:
            return out, self._behind(layer)
        return out, self._tail(layer, line, tail)

    def _tail(self, layer: int, line: Tensor, tail: Tensor) -> Tensor:
        return tail.clone()


def causal_convolution(line: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU of a depthwise convolution, [m, C] from inputs [m + k - 1, C], in float32 or wider."""
    m = line.shape[0] - taps.shape[1] + 1
    wide = line if line.dtype == torch.float64 else line.float()
    each = taps.to(wide.dtype).unbind(1)
    out = wide[:m] * each[0]
    if bias is not None:
        out = out + bias.to(wide.dtype)
    for j in range(1, taps.shape[1]):
        out = torch.addcmul(out, wide[j : j + m], each[j])
    return torch.nn.functional.silu(out).to(line.dtype)


def _put(into: Tensor, rows: Rows, new: Tensor) -> None:
    if len(rows.at) == 1:
        begin = rows.at[0][2]
        into[begin : begin + rows.count] = new
    else:
        into.index_copy_(0, rows.positions, new.to(into.dtype))


class _CaptureWalk(_Walk):
    """A pass over one segment that keeps (T, S) and the convolution tail of its interior."""

    def __init__(
        self, arch: Architecture, ids: Tensor, spec: SegmentSpec, context: Context
    ) -> None:
        rows = Rows(arch, ids, [Span(SpanKind.RECOMPUTE, 0, spec.tokens)], {}, 0)
        super().__init__(arch, rows, context)
        self.spec = spec
        begin, n = spec.interior
        runs = [(n, True)]
        if begin:
            runs.insert(0, (begin, False))
        if spec.tail:
            runs.append((spec.tail, False))
        # The recurrence alone stops at the interior's ends.
        rows.lengths = [n for n, _ in runs]
        self._inside = [inside for _, inside in runs]
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}
        self._conv: dict[int, Tensor] = {}

    def _through(self, layer: int, state: Tensor, scan: families.Scan | None) -> Tensor:
        if scan is None:
            raise PlanError("a capture computes rows")
        for run, inside in enumerate(self._inside):
            move = self._interior if inside else self._edge
            state = move(layer, run, state, scan)
        return state

    def _edge(self, layer: int, run: int, state: Tensor, scan: families.Scan) -> Tensor:
        return scan.advance(run, state)

    def _interior(self, layer: int, run: int, state: Tensor, scan: families.Scan) -> Tensor:
        """Moves the state, and beside it what starts from zero and from the identity."""
        dv, steps = state.shape[-1], scan.steps
        begin, n = self.spec.interior
        zero = [torch.zeros_like(state)] if begin else []
        if not steps.delta:
            x = scan.advance(run, torch.cat((state, *zero), -1), 1 + len(zero))
            transition = families.plain_transition(steps, begin, begin + n)
        else:
            dk = state.shape[1]
            one = torch.eye(dk, dtype=state.dtype, device=state.device).expand(len(state), dk, dk)
            x = scan.advance(run, torch.cat((state, *zero, one), -1), 1 + len(zero))
            transition = x[..., -dk:]
        end = x[..., dv : 2 * dv] if begin else x[..., :dv]
        self._parts[layer] = (transition.contiguous(), end.contiguous())
        return x[..., :dv]

    def _tail(self, layer: int, line: Tensor, tail: Tensor) -> Tensor:
        begin, n = self.spec.interior
        # Row j of the segment is row j + k-1 of the line: the tail begins at the interior's end.
        self._conv[layer] = line[begin + n : begin + n + tail.shape[0]].clone()
        return super()._tail(layer, line, tail)

    def captured(self) -> Captured:
        """The parts, once `run` has ended."""
        begin, n = self.spec.interior
        layers = []
        for layer, at in enumerate(self.context.layers):
            t, s = self._parts.get(layer, (None, None))
            k = None if at.k is None else at.k[begin : begin + n]
            v = None if at.v is None else at.v[begin : begin + n]
            layers.append(SegmentLayer(t, s, self._conv.get(layer), k, v))
        return Captured(self.spec, tuple(layers))
