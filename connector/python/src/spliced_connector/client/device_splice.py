"""Splicing segments on the GPU by kernels on the engine's own stream.

Queued kernels read leased copies and write to the engine's memory, without the daemon. The leases
are released with `release_after` on the same stream. The results are valid if all of `Passing.good`
is True.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spliced_connector.client.device_lease import DeviceCheckpoint, DeviceSegment
from spliced_connector.client.device_memory import DeviceMemory
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    ComposeJob,
    ComposeStep,
    DeviceEngineMemory,
    DeviceLayer,
    DevicePtr,
    Launch,
    RotateJob,
    RotateTarget,
    RowTurns,
    Run,
    Stream,
    Turn,
    compose_launches,
    rotate_launches,
    turn_by,
)
from spliced_connector.model import ALL_LAYERS, MAX_TOKENS, KeyMode, Layout, Part, Profile

_NOWHERE = DevicePtr(0)


@dataclass(frozen=True)
class DeviceSpan:
    """Prompt tokens [start, start + count). They are the interior of a cached segment (its tokens
    without seams), or the engine computes them."""

    start: int
    count: int
    segment: DeviceSegment | None = None
    """None: the engine computes these tokens."""
    input: DevicePtr = _NOWHERE
    """Address of the transitions and end-states (T, S) of a computed span in F32, for the requested
    layers, laid out by `Profile.seam_layout(layer)`. S was computed at the tokens' prompt
    positions. Compose needs an address for every computed span but the last."""
    before: DevicePtr = _NOWHERE
    """Address where compose writes the states before a computed span, laid out by
    `Profile.states_layout(layer, 0)`. 0: these states are not written."""


@dataclass(frozen=True)
class Blocks:
    """A request's block table in the engine's memory, starting at token 0."""

    memory: DeviceEngineMemory
    table: tuple[int, ...]
    block_tokens: int


def compose(
    stream: Stream,
    profile: Profile,
    spans: Sequence[DeviceSpan],
    into: DevicePtr,
    layer: int = ALL_LAYERS,
    origin: DeviceCheckpoint | DevicePtr | None = None,
) -> None:
    """Queues kernels that compute the running states after the last of some spans.

    `into` is the address for the final states, in F32, laid out by `Profile.states_layout(layer,
    0)`. `origin` has the states before the first span: a checkpoint, or an address with the same
    layout, which may equal `into`. None is zero states. Raises `SplicedError`: INVALID, GONE for a
    lease that has ended, or an error of the driver.
    """
    device = _checked(spans, origin if isinstance(origin, DeviceCheckpoint) else None)
    for i, span in enumerate(spans):
        if span.segment is None and not span.input and i != len(spans) - 1:
            raise SplicedError(Code.INVALID, f"computed span {i} of {len(spans)} has no input")
    operands = _Operands()
    jobs = [
        _StateJob(profile, spans, into, layer, at, origin, operands)
        for at in _asked(profile.linear_layers, layer)
    ]

    def build(addresses: list[DevicePtr]) -> Sequence[Launch]:
        return compose_launches([job.build(addresses) for job in jobs])

    device.kernels.gather(stream, operands.runs, build)


def place(
    stream: Stream,
    profile: Profile,
    spans: Sequence[DeviceSpan],
    blocks: Blocks,
    layer: int = ALL_LAYERS,
    origin: DeviceCheckpoint | None = None,
) -> None:
    """Queues kernels that copy keys and values into the engine's blocks, with keys rotated to their
    positions.

    The rows of `origin` are placed too, without rotation. The engine writes the rows of computed
    spans. Raises the same errors as `compose`.
    """
    device = _checked(spans, origin)
    operands = _Operands()
    layers = {at.layer: at for at in blocks.memory.layers}
    makers: list[Callable[[list[DevicePtr]], RotateJob]] = []
    for at in _asked(profile.attention_layers, layer):
        if at not in layers:
            raise SplicedError(Code.INVALID, f"layer {at} has no memory of the engine")
        for rows in _rows(profile, at, spans, origin):
            makers.append(rows.job(blocks, layers[at], operands))

    def build(addresses: list[DevicePtr]) -> Sequence[Launch]:
        return rotate_launches([make(addresses) for make in makers])

    device.kernels.gather(stream, operands.runs, build)


class _Operands:
    """Collects the operands of launches. `add` returns the index that an operand's address will
    have in the list of addresses."""

    def __init__(self) -> None:
        self.runs: list[list[Run]] = []

    def add(self, runs: list[Run]) -> int:
        self.runs.append(runs)
        return len(self.runs) - 1


def _checked(spans: Sequence[DeviceSpan], origin: DeviceCheckpoint | None) -> DeviceMemory:
    """Returns the device of all leases. Raises `SplicedError(INVALID)` for invalid spans."""
    at = origin.tokens if origin is not None else spans[0].start if spans else 0
    behind = 0  # position after the last segment so far
    devices = [origin.device] if origin is not None else []
    for i, span in enumerate(spans):
        if span.start != at or not 0 < span.count <= MAX_TOKENS - at:
            raise SplicedError(Code.INVALID, f"span {i}: {span.count} tokens at {span.start}")
        at += span.count
        segment = span.segment
        if segment is None:
            continue
        if segment.tokens != span.count or span.start - segment.begin < behind:
            text = f"span {i}: a segment of {segment.tokens} tokens behind a head of"
            raise SplicedError(Code.INVALID, f"{text} {segment.begin} at {span.start}")
        behind = at
        devices.append(segment.device)
    if not devices or any(device is not devices[0] for device in devices):
        raise SplicedError(Code.INVALID, f"{len(devices)} leases, want some of one client")
    return devices[0]


def _asked(layers: Sequence[int], layer: int) -> Sequence[int]:
    if layer == ALL_LAYERS:
        return layers
    if layer not in layers:
        raise SplicedError(Code.INVALID, f"layer {layer} is of another kind")
    return (layer,)


def _part(layout: Layout, layer: int, kind: str) -> tuple[int, Part]:
    i = layout.find(layer, kind)
    if i is None:
        raise SplicedError(Code.INVALID, f"layer {layer} has no {kind}")
    return i, layout.parts[i]


def _turn_of(profile: Profile, layer: int, distance: int) -> Turn | None:
    """Returns the rotation of a layer's keys by a distance in tokens, None if none is needed."""
    rope = profile.rope(layer)
    if not rope.dims or not distance:
        return None
    return turn_by(distance, rope.dims, rope.interleaved, rope.frequencies)


class _StateJob:
    """The compose job of one layer, before the addresses of operands are known."""

    def __init__(
        self,
        profile: Profile,
        spans: Sequence[DeviceSpan],
        into: DevicePtr,
        asked: int,
        layer: int,
        origin: DeviceCheckpoint | DevicePtr | None,
        operands: _Operands,
    ) -> None:
        self._profile = profile
        self._layer = layer
        self._seam = profile.seam_layout(asked)
        _, state = _part(profile.states_layout(asked, 0), layer, "S")
        self._state = state
        self._out = into + state.offset
        self._origin = 0
        self._from = -1
        if isinstance(origin, DeviceCheckpoint):
            last = len(origin.nodes) - 1
            i, _ = _part(origin.layouts[last], layer, "S")
            self._from = operands.add(origin.runs(last, i))
        elif origin is not None:
            self._origin = origin + state.offset
        self._steps = [self._step(span, operands) for span in spans]

    def _step(
        self, span: DeviceSpan, operands: _Operands
    ) -> Callable[[list[DevicePtr]], ComposeStep]:
        segment = span.segment
        if segment is None:
            seam = self._seam_step(span)
            return lambda _: seam
        (t, t_part), (s, s_part) = (_part(segment.layout, self._layer, kind) for kind in "TS")
        at_t, at_s = operands.add(segment.runs(t)), operands.add(segment.runs(s))
        types = t_part.dtype, s_part.dtype
        turn = _turn_of(self._profile, self._layer, span.start - segment.begin)
        t_packed, s_packed = (part.nbytes if part.packed else 0 for part in (t_part, s_part))
        return lambda at: ComposeStep(at[at_t], at[at_s], 0, *types, t_packed, s_packed, turn)

    def _seam_step(self, span: DeviceSpan) -> ComposeStep:
        before = span.before + self._state.offset if span.before else 0
        if not span.input:
            return ComposeStep(before=before)
        (_, t), (_, s) = (_part(self._seam, self._layer, kind) for kind in "TS")
        at = span.input
        return ComposeStep(at + t.offset, at + s.offset, before, t.dtype, s.dtype)

    def build(self, at: list[DevicePtr]) -> ComposeJob:
        """Returns the job with its operands at these addresses."""
        transition = self._profile.identity.layers[self._layer].linear.family.transition
        heads, dk, dv = self._state.shape
        origin = at[self._from] if self._from >= 0 else self._origin
        steps = [step(at) for step in self._steps]
        return ComposeJob(transition, heads, dk, dv, origin, steps, self._out)


@dataclass(frozen=True)
class _Rows:
    """Keys or values of one layer to copy to the engine."""

    part: Part
    runs: list[Run]
    start: int
    """The prompt position of the first row."""
    turn: Turn | None = None
    per_row: RowTurns | None = None

    def job(
        self, blocks: Blocks, layer: DeviceLayer, operands: _Operands
    ) -> Callable[[list[DevicePtr]], RotateJob]:
        """Returns a function that builds the job, once the addresses of the operands are known."""
        rows, heads, dim = self.part.shape
        keys = self.part.kind == "K"
        target = RotateTarget(
            layer.k_address if keys else layer.v_address, blocks.table, blocks.block_tokens,
            self.start, layer.block_stride, layer.k_token_stride if keys else layer.v_token_stride,
            layer.k_head_stride if keys else layer.v_head_stride,
        )  # fmt: skip
        dtype = self.part.dtype
        _check_inside(blocks, target, rows, heads, dim * dtype.size)
        index = operands.add(self.runs)
        turns = self.turn, self.per_row
        return lambda at: RotateJob(rows, heads, dim, dtype, at[index], *turns, target)


def _check_inside(blocks: Blocks, t: RotateTarget, rows: int, heads: int, row_bytes: int) -> None:
    """Refuses rows outside the engine's memory."""
    n = t.block_rows
    used = t.blocks[t.first_row // n : -(-(t.first_row + rows) // n)] if n > 0 else ()
    if not used or len(used) * n < t.first_row % n + rows or min(used) < 0:
        text = f"{rows} rows from {t.first_row} on, {len(t.blocks)} blocks of {n} tokens"
        raise SplicedError(Code.INVALID, text)
    last = max(used) * t.block_stride + (n - 1) * t.row_stride + (heads - 1) * t.head_stride
    room = blocks.memory.exported.room(t.base)
    if last + row_bytes > room:
        text = f"block {max(used)} ends at {last + row_bytes} of {room} bytes of the engine"
        raise SplicedError(Code.INVALID, text)


def _rows(
    profile: Profile,
    layer: int,
    spans: Sequence[DeviceSpan],
    origin: DeviceCheckpoint | None,
) -> Iterator[_Rows]:
    """Returns the rows of one layer to copy to the engine."""
    if origin is not None:
        for node, (begin, end) in enumerate(origin.nodes):
            for kind in "KV":
                i, part = _part(origin.layouts[node], layer, kind)
                if end > begin:
                    yield _Rows(part, origin.runs(node, i), begin)
    unturned = profile.identity.layers[layer].attention.keys == KeyMode.UNROTATED
    rope = profile.rope(layer)
    for span in spans:
        segment = span.segment
        if segment is None:
            continue
        turn, per_row = _turn_of(profile, layer, span.start - segment.begin), None
        if unturned and rope.dims:
            turn = None
            per_row = RowTurns(rope.dims, rope.interleaved, span.start, rope.frequencies)
        for kind in "KV":
            i, part = _part(segment.layout, layer, kind)
            turns = (turn, per_row) if kind == "K" else (None, None)
            yield _Rows(part, segment.runs(i), span.start, *turns)
