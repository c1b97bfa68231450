"""Places leased segments, with the daemon's kernels or in this process.

The daemon reads transitions, states and rows, also packed ones, in its own memory, and returns
states and rows in a slot. For segments on a GPU, the daemon writes rows into the engine's memory; a
`Remote` asks for that. The daemon and this process give the same numbers up to rounding.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from spliced_connector.client import (
    DeviceSegment,
    Model,
    Origin,
    Plan,
    PlanSpan,
    Segment,
    Slot,
    release_all,
)
from spliced_connector.errors import SplicedError
from spliced_connector.model import ALL_LAYERS, DType, Kind, Part, SegmentSpec, Span
from spliced_connector.serving.settings import Compute
from spliced_connector.serving.tally import EngineTally
from spliced_connector.walk import (
    TORCH_TYPES,
    Architecture,
    Captured,
    Context,
    Copies,
    Pages,
    Placer,
    bytes_of,
    collect,
    compose,
    is_of_spec,
    moved,
    splice,
    tensor_over,
    unpack,
)

log = logging.getLogger("spliced")

TRIALS = 5
"""Number of walks that both the daemon and the engine do before one of them is chosen."""

LONGER = 4
"""The daemon's answer about a walk is awaited for this number of times the duration of the engine's
own walk over the same number of tokens (a guess)."""

REASONS = 16
"""Maximum number of reasons that are counted separately; further reasons count as "others"."""

PAUSE = 30.0
"""Seconds for which the daemon is not asked again after it has failed a walk (a guess)."""


class RefusedError(Exception):
    """The daemon did not place a segment: the daemon is gone, too slow or full, or it refused."""


class DamagedError(ValueError):
    """A leased segment that cannot be read."""


class Assembled:
    """The states of all linear layers after the last segment, which one `assemble` has composed."""

    def __init__(self) -> None:
        self._states: dict[int, Tensor] = {}
        self._end = 0

    def add(self, layer: int, state: Tensor, end: int) -> None:
        """Adds the state of a layer after `end` tokens."""
        self._states[layer], self._end = state, end

    def __contains__(self, layer: object) -> bool:
        return layer in self._states

    def compose(
        self,
        layer: int,
        spans: Sequence[Span],
        computed: tuple[Tensor, Tensor] | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Like `Placer.compose`, for a layer that was added. The added state includes all spans but
        the last, so only `computed`, the (T, S) of the last span, is applied to it."""
        none = state.new_empty((0, *state.shape))
        if spans[-1].end < self._end:
            return state, none
        found = self._states.pop(layer)
        if computed is None:
            return found, none
        transitions, ends = computed
        return compose(transitions[0], ends[0], found), found[None]


def is_assembled(spans: Sequence[Span], holds: Callable[[int], bool]) -> bool:
    """Returns whether one `assemble` can place all segments of a walk: the walk begins at token 0,
    and all spans but the last are segments that `holds` accepts."""
    return spans[0].start == 0 and all(holds(s.segment) for s in spans[:-1])


def plan_of(spans: Sequence[Span], held: Mapping[int, Segment | DeviceSegment]) -> Plan:
    """Returns a walk's spans as a plan for the daemon. held: leased segments by their index."""
    spanned = [PlanSpan(s.start, s.length, held.get(s.segment)) for s in spans]
    return Plan(spans[0].start, spans[-1].end, spanned)


class DaemonPlacer:
    """A `walk.Placer` for segments that are leased in host memory.

    It sends one request for all rows and one per layer for states, or a single `assemble` if only
    the end of the prompt is computed. Raises `RefusedError`; the walk's context is unchanged then.
    """

    def __init__(self, model: Model, held: Mapping[int, Segment], wait: float | None) -> None:
        """wait: timeout of each answer in seconds; None: `Options.transfer_timeout`."""
        self._model = model
        self._profile = model.profile
        self._held = held
        self._wait = wait
        self._slots: dict[int, tuple[Slot, int]] = {}  # (slot, bytes) by `_moves`
        self._layer, self._moves = -1, 0
        self._assembled = Assembled()

    def holds(self, segment: int) -> bool:
        return segment in self._held

    def rows(
        self, spans: Sequence[Span], into: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> None:
        """Copies the rows from the slot that the daemon wrote them to."""
        placed = [s for s in spans if self.holds(s.segment)]
        if not placed:
            return
        plan = plan_of(spans, self._held)
        count = sum(s.length for s in placed)
        if is_assembled(spans, self.holds):
            slot = self._model.assemble(plan, wait=self._wait)
            layout = self._profile.checkpoint_layout(count)
        elif self._profile.attention_layers:
            slot = self._model.rotate(plan, wait=self._wait)
            layout = self._profile.rows_layout(ALL_LAYERS, count)
        else:
            return
        if slot is None:
            raise RefusedError("rows")
        try:
            for part in layout.parts:
                found = _over(slot, part)
                if part.kind == "S":
                    self._assembled.add(part.layer, found.clone(), placed[-1].end)
                elif part.kind in ("K", "V"):
                    k, v = into[part.layer]
                    _put(k if part.kind == "K" else v, placed, found)
        finally:
            slot.release()

    def compose(
        self,
        layer: int,
        spans: Sequence[Span],
        computed: tuple[Tensor, Tensor] | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `Placer.compose`. The returned states before computed spans are a view of the slot,
        valid until another layer is composed."""
        if layer in self._assembled:
            return self._assembled.compose(layer, spans, computed, state)
        if layer != self._layer:
            self._layer, self._moves = layer, 0
        # The state before the spans is sent as a computed span of all tokens before, with T = 0.
        behind = spans[0].start > 0
        inputs = self._inputs(layer, computed, state if behind else None)
        given = iter(inputs)
        planned = [PlanSpan(0, spans[0].start, None, next(given))] if behind else []
        for span in spans:
            held = self._held.get(span.segment)
            data = None if held is not None else next(given)
            planned.append(PlanSpan(span.start, span.length, held, data))
        plan = Plan(planned[0].start, spans[-1].end, planned)
        layout = self._profile.states_layout(layer, len(inputs))
        slot = self._slot(layer, plan, layout.nbytes)
        size = layout.parts[0].nbytes
        step = layout.parts[1].offset if len(layout.parts) > 1 else size
        numbers = tensor_over(slot.view(), DType.F32, (layout.nbytes // 4,))
        strides = (step // 4, *state.new_empty(state.shape).stride())
        states = numbers.as_strided((len(layout.parts), *state.shape), strides)[int(behind) :]
        return states[-1].clone(), states[:-1]

    def _slot(self, layer: int, plan: Plan, nbytes: int) -> Slot:
        """Returns a slot with the states of a plan. The n-th request about a layer uses the slot of
        the n-th request about the layer before it."""
        former, size = self._slots.get(self._moves, (None, 0))
        into = former if size >= nbytes else None
        slot = self._model.compose(plan, layer, Origin(), into, wait=self._wait)
        if slot is None:
            raise RefusedError("states")
        if former is not None and slot is not former:
            former.release()
        self._slots[self._moves] = slot, max(size, nbytes)
        self._moves += 1
        return slot

    def _inputs(
        self, layer: int, computed: tuple[Tensor, Tensor] | None, state: Tensor | None
    ) -> list[list[memoryview]]:
        """Returns T and S of each computed span. state: the state before the first span, None if it
        is zero."""
        out = []
        if state is not None:
            parts = self._profile.seam_layout(layer).parts
            t = torch.zeros(next(p.shape for p in parts if p.kind == "T"), dtype=torch.float32)
            out.append([_bytes(t), _bytes(state)])
        if computed is not None:
            out += [[_bytes(t), _bytes(s)] for t, s in zip(*computed, strict=True)]
        return out

    def close(self) -> None:
        """Releases the slots."""
        slots, self._slots = [slot for slot, _ in self._slots.values()], {}
        release_all(slots)


def _bytes(numbers: Tensor) -> memoryview:
    return bytes_of(numbers.float().contiguous())


def _over(slot: Slot, part: Part) -> Tensor:
    view = slot.view()[part.offset : part.offset + part.nbytes]
    return tensor_over(view, part.dtype, part.shape)


def _put(into: Tensor | None, spans: Sequence[Span], rows: Tensor) -> None:
    if into is None:
        raise RefusedError("rows of a layer that keeps none")
    at = 0
    for span in spans:
        into[span.start : span.end] = rows[at : at + span.length]
        at += span.length


class Remote(Protocol):
    """Asks the daemon to place segments in memory of the engine's own device."""

    def why_not(self, context: Context, room: int) -> str:
        """Returns why the daemon cannot be used for a walk up to token `room`; empty if it can."""
        ...

    def placer(self, context: Context, room: int) -> RemotePlacer:
        """Returns a placer for one walk of the context up to token `room`. Raises
        `SplicedError`."""
        ...


class RemotePlacer(Placer, Protocol):
    """A `Placer` that raises `RefusedError` and then leaves the context unchanged."""

    def close(self) -> None:
        """Ends the walk."""
        ...


@dataclass
class Composed:
    """Counts of walks with leased segments, by who placed them: the daemon or the engine."""

    daemon: int = 0
    engine: int = 0
    refused: int = 0
    """Walks that failed in the daemon. The engine did them instead."""
    unasked: int = 0
    """Walks for which the daemon could not be asked, though it was chosen."""
    reasons: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Why the daemon was not asked or failed, with the number of walks for each reason."""


_NUMBERS = ("daemon", "engine", "refused", "unasked")


class Composer:
    """Chooses for one model whether the daemon or the engine places segments: as configured, or as
    measured on the first walks with leased segments.

    For one thread at a time.
    """

    def __init__(
        self,
        arch: Architecture,
        model: Model,
        copies: Copies,
        want: Compute = Compute.AUTO,
        *,
        wait: float | None = None,
        tally: EngineTally | None = None,
        on_device: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """wait: minimum timeout of each answer of the daemon, in seconds. If `LONGER` times the
        duration of the engine's own walk is longer, that is the timeout; to measure it, the engine
        does the first walk. None: `Options.transfer_timeout`. tally: counts the fields of `count`
        as `composed_...`.
        on_device: placements have a `Remote` for segments on the model's device."""
        self.arch, self.model, self.copies = arch, model, copies
        self.wait = wait
        self._tally = EngineTally() if tally is None else tally
        self._reasons: Counter[str] = Counter()
        self.never = "" if want is not Compute.ENGINE else "compute is set to engine"
        """Why the daemon is never used for this model; empty if it may be used."""
        self.never = self.never or _unusable(arch, copies.device, on_device)
        self.choice: Compute | None = Compute.ENGINE if self.never else None
        """Who places segments. None: not measured yet."""
        if self.choice is None and want is Compute.DAEMON:
            self.choice = Compute.DAEMON
        if self.never and want is Compute.DAEMON:
            log.warning("segments are composed by the engine: %s", self.never)
        self._trials: list[tuple[float, float]] = []
        self._own = 0.0  # seconds per token of the engine's own walks
        self._clock = clock
        self._asked_again = 0.0

    @property
    def count(self) -> Composed:
        """Returns the walks so far."""
        counts = self._tally.snapshot()
        numbers = {name: counts.get(f"composed_{name}", 0) for name in _NUMBERS}
        return Composed(**numbers, reasons=dict(self._reasons))

    def walked(self, way: Compute) -> None:
        """Counts a walk with leased segments."""
        self._tally.add(f"composed_{way.value}")

    def unasked(self, why: str) -> None:
        """Counts a walk that the daemon should do but cannot. Each reason is logged once."""
        self._tally.add("composed_unasked")
        if why not in self._reasons:
            log.warning("segments composed by the engine: %s", why)
        self._because(why)

    def _because(self, why: str) -> None:
        counted = self._reasons
        counted[why if why in counted or len(counted) < REASONS else "others"] += 1

    def now(self) -> float:
        """Returns the time in seconds, after waiting for the queued work of the model's device."""
        if self.copies.device.type == "cuda":
            torch.cuda.synchronize(self.copies.device)
        return time.perf_counter()

    @property
    def learns(self) -> bool:
        """Whether the engine's walks are timed. Not on a GPU, because timing would wait for it."""
        return self.wait is not None and self.copies.device.type == "cpu"

    @property
    def measures(self) -> bool:
        """Whether the engine must do this walk, because no timeout for the daemon is known yet."""
        return self.learns and not self._own

    def took(self, tokens: int, seconds: float) -> None:
        """Learns from a walk of the engine over this number of tokens, which includes those of
        segments."""
        each = seconds / max(1, tokens)
        self._own += (each - self._own) / 4 if self._own else each

    def patience(self, tokens: int) -> float | None:
        """Returns the timeout in seconds of one answer about a walk over this number of tokens."""
        return None if self.wait is None else max(self.wait, LONGER * tokens * self._own)

    @property
    def rests(self) -> bool:
        """Whether the daemon is not asked for now, because it failed to answer recently."""
        return self._clock() < self._asked_again

    def refused(self, why: RefusedError) -> None:
        """Counts a walk that failed in the daemon, and pauses requests to it."""
        self._tally.add("composed_refused")
        self._because(str(why))
        self._asked_again = self._clock() + PAUSE
        # Logs the text only: a log record with the error itself would keep leases mapped.
        log.warning("segments composed by the engine, since the daemon failed: %s", str(why))

    def tried(self, engine: float, daemon: float) -> None:
        """Records how many seconds the engine and the daemon took for the same walk. Chooses one of
        them after `TRIALS` walks."""
        self._trials.append((engine, daemon))
        if len(self._trials) < TRIALS:
            return
        ours, theirs = (statistics.median(times) for times in zip(*self._trials, strict=True))
        self.choice = Compute.DAEMON if theirs < ours else Compute.ENGINE
        log.info(
            "segments are composed by the %s: a walk took %.2f ms there, %.2f ms by the %s",
            self.choice,
            1e3 * min(ours, theirs),
            1e3 * max(ours, theirs),
            Compute.ENGINE if self.choice is Compute.DAEMON else Compute.DAEMON,
        )

    @property
    def daemon_first(self) -> bool:
        """Whether the next trial begins with the daemon. Trials alternate."""
        return len(self._trials) % 2 == 1


class Placement:
    """The segments of one request, and the walks over them."""

    def __init__(
        self,
        composer: Composer,
        placer: Placer | None = None,
        remote: Remote | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        """placer: places segments that it holds on the model's device. remote: makes the daemon
        place them. in_place: walks write to pages of the engine. Such writes could not be undone if
        a walk failed in the daemon, so the daemon is not used."""
        self._composer = composer
        self._placer = placer
        self._remote = remote
        self._in_place = in_place
        self._held: dict[int, Segment] = {}
        self._specs: dict[int, SegmentSpec] = {}
        self._read: dict[int, Captured] = {}
        self.own: dict[int, Captured] = {}
        """Segments of the plan that are not leased, such as those that were computed here, by their
        index."""
        self._failed = False
        self.odd = False
        """Whether the time of a walk is no measurement, because both the engine and the daemon did
        the walk, or because it failed in the daemon."""

    def lease(self, index: int, spec: SegmentSpec, segment: Segment) -> None:
        """Adds a leased segment. Raises `DamagedError` if it lacks parts of its spec, or if its
        data is read already here and is damaged."""
        if not is_of_spec(self._composer.model.profile, spec, segment.layout):
            raise DamagedError(f"segment of {segment.layout.nbytes} bytes is not as its spec says")
        if not self._asks():
            self._read[index] = self._unpacked(spec, segment)
        self._held[index], self._specs[index] = segment, spec

    def __contains__(self, index: object) -> bool:
        return index in self._held or index in self.own

    def captured(self, index: int) -> Captured:
        """Returns a segment as tensors. Raises `DamagedError`."""
        if index in self.own:
            return self.own[index]
        if index not in self._read:
            self._read[index] = self._unpacked(self._specs[index], self._held[index])
        return self._read[index]

    def clear(self) -> None:
        """Drops everything; views of a lease must not outlive it."""
        for those in (self._held, self._specs, self._read, self.own):
            those.clear()

    def splice(
        self, ids: Tensor, spans: Sequence[Span], context: Context, pages: Pages | None = None
    ) -> Tensor | None:
        """See `walk.splice`. Raises `DamagedError` for a damaged segment."""
        if pages is not None or not self._leased(spans) or not self._asks():
            return self._in_engine(ids, spans, context, pages)
        if why := self._unfit(context, spans[-1].end):
            self._composer.unasked(why)
            return self._in_engine(ids, spans, context, None)
        if self._composer.choice is None:
            return self._both(ids, spans, context)
        if self._composer.measures:
            return self._in_engine(ids, spans, context, None)
        try:
            return self._in_daemon(ids, spans, context)
        except RefusedError as err:
            self._refused(err)
        return self._in_engine(ids, spans, context, None)

    def _asks(self) -> bool:
        composer = self._composer
        if self._in_place or self._failed:
            return False
        return composer.choice is not Compute.ENGINE and not composer.rests

    def _leased(self, spans: Sequence[Span]) -> bool:
        """Whether any segment of a walk is leased, in host memory or on the device."""
        placer = self._placer
        return any(
            s.segment in self._held or (placer is not None and placer.holds(s.segment))
            for s in spans
        )

    def _unfit(self, context: Context, room: int) -> str:
        """Returns why the daemon cannot be used for a walk; empty if it can."""
        if self._placer is None:
            host = self._composer.copies.device.type == "cpu"
            return "" if host else "the segments are in memory of the host"
        if self._held:
            return "some of the segments are in memory of the host"
        if self._remote is None:
            return "it cannot write to the model's device"
        return self._remote.why_not(context, room)

    def _refused(self, err: RefusedError) -> None:
        self._failed = self.odd = True
        self._composer.refused(err)

    def _in_engine(
        self, ids: Tensor, spans: Sequence[Span], context: Context, pages: Pages | None
    ) -> Tensor | None:
        composer = self._composer
        held = {s.segment for s in spans} & self._held.keys()
        times = self._leased(spans) and composer.learns
        began = composer.now() if times else 0.0
        segments = {index: self.captured(index) for index in held} | self.own
        out = splice(composer.arch, ids, spans, segments, context, self._placer, pages)
        if self._leased(spans):
            composer.walked(Compute.ENGINE)
        if times:
            composer.took(spans[-1].end - spans[0].start, composer.now() - began)
        return out

    def _unpacked(self, spec: SegmentSpec, segment: Segment) -> Captured:
        composer = self._composer
        try:
            there = unpack(composer.model.profile, spec, segment)
        except (SplicedError, ValueError) as err:
            raise DamagedError(str(err)) from err
        return moved(there, composer.copies)

    def _in_daemon(self, ids: Tensor, spans: Sequence[Span], context: Context) -> Tensor | None:
        composer = self._composer
        segments: dict[int, Captured] = {}
        placer: RemotePlacer
        if self._remote is not None:
            context.reserve(spans[-1].end)
            placer = self._remote.placer(context, spans[-1].end)
        else:
            placer, segments = self._on_host(spans)
        try:
            out = splice(composer.arch, ids, spans, {**self.own, **segments}, context, placer)
        finally:
            placer.close()
        composer.walked(Compute.DAEMON)
        return out

    def _on_host(self, spans: Sequence[Span]) -> tuple[DaemonPlacer, dict[int, Captured]]:
        """Returns a placer for segments in host memory, and the tensors of these segments that a
        walk reads itself (convolution tails)."""
        composer = self._composer
        named = {s.segment for s in spans} & self._held.keys()
        try:
            segments = {i: _tails(composer.arch, self._specs[i], self._held[i]) for i in named}
        except (SplicedError, ValueError) as err:
            raise DamagedError(str(err)) from err
        held = {i: self._held[i] for i in named}
        wait = composer.patience(spans[-1].end - spans[0].start)
        return DaemonPlacer(composer.model, held, wait), segments

    def _both(self, ids: Tensor, spans: Sequence[Span], context: Context) -> Tensor | None:
        """Does a walk in the engine and, on a copy of the context, in the daemon, and times both.
        If the daemon fails, its time is infinite."""
        composer = self._composer
        self.odd = True
        context.reserve(spans[-1].end)
        other = context.snapshot()
        daemon = 0.0
        if composer.daemon_first:
            daemon = self._timed(ids, spans, other)
        self._read.clear()
        began = composer.now()
        out = self._in_engine(ids, spans, context, None)
        engine = composer.now() - began
        if not composer.daemon_first:
            daemon = self._timed(ids, spans, other)
        composer.tried(engine, daemon)
        return out

    def _timed(self, ids: Tensor, spans: Sequence[Span], context: Context) -> float:
        """Returns the seconds of a walk by the daemon, infinite if it fails."""
        began = self._composer.now()
        try:
            self._in_daemon(ids, spans, context)
        except RefusedError as err:
            self._refused(err)
            return math.inf
        return self._composer.now() - began


def _tails(arch: Architecture, spec: SegmentSpec, segment: Segment) -> Captured:
    """Returns the convolution tails of a leased segment. A walk reads them itself; a placer places
    the other parts."""
    layout = segment.layout
    chosen = [i for i, part in enumerate(layout.parts) if part.kind == "conv"]
    some = replace(layout, parts=tuple(layout.parts[i] for i in chosen))
    layers = collect(len(arch.layers), some, lambda i: segment.part(chosen[i]))
    return Captured(spec, layers)


def _unusable(arch: Architecture, device: torch.device, on_device: bool) -> str:
    """Returns why the daemon cannot compose for a model; empty if it can."""
    if device.type != "cpu" and not on_device:
        return f"the model is on {device.type}, the segments are in memory of the host"
    if arch.identity.tp_size > 1:
        return "ranks of one model have to walk alike"
    if arch.dtype == torch.float64:
        return "states are float64"
    for i, layer in enumerate(arch.identity.layers):
        if layer.kind in (Kind.LINEAR, Kind.NONE):
            continue
        if TORCH_TYPES.get(layer.attention.dtype) != arch.dtype:
            return f"rows of layer {i} are kept as {DType(layer.attention.dtype).name}"
    return ""
