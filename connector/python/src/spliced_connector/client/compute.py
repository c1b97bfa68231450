"""Requests that make the daemon compose states and place keys and values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spliced_connector.client.connection.flight import Call, Write
from spliced_connector.client.device_lease import (
    DeviceCheckpoint,
    DeviceHeld,
    DeviceSegment,
    DeviceSlot,
)
from spliced_connector.client.device_memory import DeviceMemory, device_of
from spliced_connector.client.lease import Checkpoint, Segment, Slot
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import NONE64
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import ALL_LAYERS, MAX_TOKENS, Layout
from spliced_connector.wire import (
    AssembleRequest,
    ComposeReply,
    ComposeRequest,
    Op,
    ReplayRequest,
    RotateReply,
    RotateRequest,
)
from spliced_connector.wire.numbers import MAX_BLOCKS, MAX_SPANS, WireDest, WireFrom, WireSpan

_UNTOUCHED = {Code.INVALID, Code.BUSY, Code.FULL}


Bytes: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class PlanSpan:
    """Prompt tokens [start, start + count). They are the interior of a cached segment (its tokens
    without seams), or the engine computes them."""

    start: int
    count: int
    segment: Segment | DeviceSegment | None = None
    """None: the engine computes these tokens."""
    input: Bytes | Sequence[Bytes] | None = None
    """Transitions and end-states (T, S) of a computed span in F32, for the requested layers: one
    buffer laid out by `Profile.seam_layout(layer)`, or one buffer per part of that layout. Compose
    needs them for every computed span but the last. If a segment of the plan is on a GPU, they are
    refused; see `device_splice`."""


@dataclass(frozen=True)
class Plan:
    """The prompt tokens [begin, end), divided into spans in order, without gaps or overlaps."""

    begin: int
    end: int
    spans: Sequence[PlanSpan]


@dataclass(frozen=True)
class Origin:
    """The states that a plan starts from: those of a loaded checkpoint of `Plan.begin` tokens,
    states that an earlier call stored in a slot, or zero states if neither is given."""

    checkpoint: Checkpoint | DeviceCheckpoint | None = None
    slot: Slot | None = None
    slot_offset: int = 0
    """Offset of the states in `Slot.view()`."""


class Placed(Write):
    """The outcome of a request that writes rows into blocks of engine memory."""

    slot: Slot | None = None
    """States and convolution tails, if they were requested."""


def compose(
    r: Registration,
    plan: Plan,
    layer: int,
    origin: Origin,
    into: Slot | None,
    wait: float | None = None,
) -> Slot | None:
    """Computes the running states after the last span of a plan, from those of `origin`. wait:
    timeout in seconds, None is `Options.transfer_timeout`. Raises `SplicedError`."""
    call = _call(r, Op.COMPOSE, into, wait)
    kind, lease, offset = encode_origin(r, origin)
    columns = _columns(r, plan)
    target = _target(r, into)
    inputs = _stage_inputs(r, call, plan, layer, wait)
    request = ComposeRequest(
        r.profile, r.rank, layer, plan.begin, plan.end, kind, lease, offset, target,
        *columns, inputs,
    )  # fmt: skip
    reply = _computed(r, call, request, into)
    where = _memory(r, plan, origin, into)
    return result_slot(r, reply.lease, reply.off, reply.bytes, 0, into, where)


def _memory(r: Registration, plan: Plan, origin: Origin, into: Slot | None) -> DeviceMemory | None:
    """Returns the GPU's memory if results are stored in it, which is so if any lease that a request
    names is on the GPU."""
    named = [span.segment for span in plan.spans] + [origin.checkpoint, origin.slot, into]
    return device_of(r.attachment) if any(isinstance(held, DeviceHeld) for held in named) else None


def rotate(
    r: Registration,
    op: Op,
    plan: Plan,
    layer: int,
    origin: Origin,
    into: Slot | None,
    wait: float | None = None,
) -> Slot | None:
    """Places keys and values in a slot, and also states if the parameter op is ASSEMBLE. wait: as
    in `compose`. Raises `SplicedError`."""
    call = _call(r, op, into, wait)
    request = _rotate_request(r, op, plan, layer, origin, _target(r, into), None)
    try:
        reply = r.exchange.request(call, request, RotateReply)
    except SplicedError as err:
        _mark_corrupt(into, err)
        raise
    where = _memory(r, plan, origin, into)
    return result_slot(r, reply.lease, reply.off, reply.bytes, reply.rows, into, where)


def place(
    r: Registration, plan: Plan, blocks: Sequence[int], layer: int, origin: Origin, states: bool
) -> Placed:
    """Places keys and values in engine memory. Failures are reported in the result."""
    op = Op.ASSEMBLE if states else Op.ROTATE
    placed = Placed()
    call = r.call(op, r.options.transfer_timeout, gives_back=True, cancel=True)
    call.late.write = placed
    sent = False
    try:
        if r.memory == 0 or len(blocks) > MAX_BLOCKS:
            text = f"memory {r.memory}, {len(blocks)} blocks, at most {MAX_BLOCKS}"
            raise SplicedError(Code.INVALID, text)
        request = _rotate_request(r, op, plan, layer, origin, 0, blocks)
        r.exchange.start(call, request)
        sent = True
        reply = r.exchange.result(call, RotateReply)
        where = _memory(r, plan, origin, None)
        placed.slot = result_slot(r, reply.lease, reply.off, reply.bytes, reply.rows, None, where)
    except SplicedError as err:
        placed.code = err.code
    if not (sent and call.left):
        placed.settle()
    return placed


def _call(r: Registration, op: Op, into: Slot | None, wait: float | None = None) -> Call:
    return r.call(op, _seconds(r, wait), gives_back=into is None, cancel=True)


def _seconds(r: Registration, wait: float | None) -> float:
    return r.options.transfer_timeout if wait is None else wait


def _rotate_request(
    r: Registration,
    op: Op,
    plan: Plan,
    layer: int,
    origin: Origin,
    target: int,
    blocks: Sequence[int] | None,
) -> RotateRequest:
    kind, lease, _ = encode_origin(r, origin)
    if kind == WireFrom.SLOT:
        raise SplicedError(Code.INVALID, "rows begin from a slot")
    columns = _columns(r, plan)
    request = AssembleRequest if op == Op.ASSEMBLE else RotateRequest
    return request(
        profile=r.profile,
        rank=r.rank,
        layer=ALL_LAYERS if op == Op.ASSEMBLE else layer,
        memory=r.memory if blocks is not None else 0,
        begin=plan.begin,
        end=plan.end,
        dest=WireDest.SLOT if blocks is None else WireDest.MEMORY,
        from_=kind,
        from_lease=lease,
        into=target,
        kinds=columns[0],
        leases=columns[1],
        starts=columns[2],
        counts=columns[3],
        inputs=[NONE64] * len(plan.spans),
        blocks=blocks if blocks is not None else (),
    )


def _columns(r: Registration, plan: Plan) -> tuple[bytes, list[int], list[int], list[int]]:
    """Returns the spans in wire form. Raises `SplicedError`."""
    if len(plan.spans) > MAX_SPANS or not 0 <= plan.begin <= plan.end <= MAX_TOKENS:
        text = f"plan of {len(plan.spans)} spans over [{plan.begin}, {plan.end})"
        raise SplicedError(Code.INVALID, text)
    kinds = bytearray()
    leases = []
    for span in plan.spans:
        if span.count < 0 or not plan.begin <= span.start <= plan.end - span.count:
            text = f"span of {span.count} tokens at {span.start}"
            raise SplicedError(Code.INVALID, f"{text}, plan is [{plan.begin}, {plan.end})")
        kinds.append(WireSpan.RECOMPUTE if span.segment is None else WireSpan.SEGMENT)
        leases.append(0 if span.segment is None else span.segment.lease_on(r.attachment))
    starts = [span.start for span in plan.spans]
    return bytes(kinds), leases, starts, [span.count for span in plan.spans]


def encode_origin(r: Registration, origin: Origin) -> tuple[int, int, int]:
    """Returns kind, lease and offset in wire form. Raises `SplicedError`."""
    if origin.checkpoint is not None and origin.slot is not None:
        raise SplicedError(Code.INVALID, "a plan begins from either a checkpoint or a slot")
    if origin.checkpoint is not None:
        return WireFrom.CHECKPOINT, origin.checkpoint.lease_on(r.attachment), 0
    if origin.slot is not None:
        if not 0 <= origin.slot_offset <= origin.slot.nbytes:
            text = f"offset {origin.slot_offset} of a slot of {origin.slot.nbytes} bytes"
            raise SplicedError(Code.INVALID, text)
        lease = origin.slot.lease_on(r.attachment)
        return WireFrom.SLOT, lease, origin.slot.offset + origin.slot_offset
    return WireFrom.ZERO, 0, 0


def _target(r: Registration, into: Slot | None) -> int:
    return 0 if into is None else into.lease_on(r.attachment)


def _stage_inputs(
    r: Registration, call: Call, plan: Plan, layer: int, wait: float | None
) -> list[int]:
    """Copies the inputs of a plan into staging. Returns their offsets.

    The daemon is told only where an input begins and reads as many bytes as the layers need. If an
    input were shorter, the daemon would also read unrelated bytes, so lengths are checked here.
    """
    layout = r.enrolment.profile.seam_layout(layer)
    size = layout.nbytes
    flat = [_flat(span, layout) for span in plan.spans]
    count = sum(data is not None for data in flat)
    if not count:
        return [NONE64] * len(flat)
    if any(isinstance(span.segment, DeviceSegment) for span in plan.spans):
        raise SplicedError(
            Code.INVALID,
            "spans with inputs beside segments on a GPU: compose in this process",
        )
    staging = r.attachment.staging
    room = staging.allocate(size * count, call.deadline)
    call.late.staged = [room]
    memory = staging.bytes_of(room)
    offsets = []
    at = 0
    for data in flat:
        if data is None:
            offsets.append(NONE64)
            continue
        for off, part in data:
            memory[at + off : at + off + part.nbytes] = part
        offsets.append(room.offset + at)
        at += size
    # The daemon's time starts only now, when all inputs are in staging.
    call.deadline = time.monotonic() + _seconds(r, wait)
    return offsets


def _flat(span: PlanSpan, layout: Layout) -> list[tuple[int, memoryview]] | None:
    """Returns the input of a span as pairs of offset and bytes: one pair for an input given as one
    buffer, otherwise one per part. None: the span has no input."""
    if span.input is None:
        return None
    whole = isinstance(span.input, Bytes)
    places = [(0, layout.nbytes)] if whole else [(p.offset, p.nbytes) for p in layout.parts]
    given = [span.input] if isinstance(span.input, Bytes) else span.input
    try:
        views = [memoryview(data).cast("B") for data in given]
    except (TypeError, ValueError) as err:
        raise SplicedError(Code.INVALID, f"input at {span.start}: {err}") from err
    sizes = [view.nbytes for view in views]
    if sizes != [nbytes for _, nbytes in places] or not layout.parts:
        text = f"input of {sizes} bytes, takes {[nbytes for _, nbytes in places]}"
        raise SplicedError(Code.INVALID, text)
    return [(offset, view) for (offset, _), view in zip(places, views, strict=True)]


def run_into(r: Registration, op: Op, request: ReplayRequest, into: Slot | None) -> ComposeReply:
    """Sends a request whose reply names a slot. Raises `SplicedError`."""
    return _computed(r, _call(r, op, into), request, into)


def _computed(
    r: Registration, call: Call, request: ComposeRequest | ReplayRequest, into: Slot | None
) -> ComposeReply:
    try:
        return r.exchange.request(call, request, ComposeReply)
    except SplicedError as err:
        _mark_corrupt(into, err)
        raise
    finally:
        r.free_staging(call)


def _mark_corrupt(into: Slot | None, err: SplicedError) -> None:
    """Marks a slot that a request may have written partly or may still be writing."""
    if into is not None and err.code not in _UNTOUCHED:
        into.corrupt = True


def result_slot(
    r: Registration,
    lease: int,
    offset: int,
    nbytes: int,
    rows: int,
    into: Slot | None,
    device: DeviceMemory | None = None,
) -> Slot | None:
    """Returns the slot that a reply names, or None if the result is not in a slot. Raises
    `SplicedError` if the reply is invalid."""
    if lease == 0 and nbytes == 0:
        return None
    size = len(r.attachment.slots) if device is None else device.private.nbytes
    wrong = nbytes > size or offset > size - nbytes
    if wrong or (into is not None and into.lease_on(r.attachment) != lease):
        raise r.exchange.garbage(f"result of {nbytes} bytes at {offset} of {size}")
    slot = into
    if slot is None:
        held = (r.attachment, r.tenant, lease, r.options.timeout)
        slot = Slot(held) if device is None else DeviceSlot(held, device)
    slot.place(offset, nbytes, rows)
    return slot
