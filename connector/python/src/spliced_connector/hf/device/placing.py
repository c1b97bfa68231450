"""Placing leased copies on the GPU by kernels, in tensors of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from spliced_connector.client import (
    Blocks,
    DeviceCheckpoint,
    DeviceSegment,
    DeviceSpan,
    compose,
    place,
)
from spliced_connector.gpu import DeviceEngineMemory, DeviceLayer, DevicePtr, Stream, local
from spliced_connector.model import Profile, Span
from spliced_connector.walk import Context


class Placing:
    """The `walk.Placer` of segments that are leased in GPU memory.

    If queueing work raises `SplicedError`, the walk's results must not be used.
    """

    def __init__(
        self,
        profile: Profile,
        held: Mapping[int, DeviceSegment],
        stream: Stream,
        settle: Callable[[], None],
    ) -> None:
        """settle: called after all work is queued, as `Lent.settle`."""
        self._profile = profile
        self._held = held
        self._stream = stream
        self._settle = settle

    def holds(self, segment: int) -> bool:
        return segment in self._held

    def rows(
        self, spans: Sequence[Span], into: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> None:
        """See `walk.Placer`. One launch serves all layers and segments."""
        planned = [DeviceSpan(s.start, s.length, self._held.get(s.segment)) for s in spans]
        if self._profile.attention_layers and any(span.segment for span in planned):
            place(self._stream, self._profile, planned, _blocks(into))
            self._settle()

    def compose(
        self,
        layer: int,
        spans: Sequence[Span],
        computed: tuple[Tensor, Tensor] | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `walk.Placer`. One launch composes all spans, and overwrites the given state."""
        state = state.contiguous()
        inputs = self._inputs(layer, computed, state)
        before = state.new_empty((len(inputs), *state.shape))
        seams = zip(inputs, before, strict=True)
        planned = []
        for span in spans:
            held = self._held.get(span.segment)
            given = (_at(t) for t in next(seams)) if held is None else ()
            planned.append(DeviceSpan(span.start, span.length, held, *given))
        compose(self._stream, self._profile, planned, _at(state), layer, _at(state))
        self._settle()
        return state, before

    def _inputs(self, layer: int, computed: tuple[Tensor, Tensor] | None, like: Tensor) -> Tensor:
        """Returns T and S of each computed span, in the layout that the function `compose` reads,
        one line per span."""
        layout = self._profile.seam_layout(layer)
        count = 0 if computed is None else len(computed[0])
        into = like.new_empty((count, layout.nbytes // like.element_size()))
        for part, numbers in zip(layout.parts, computed or (), strict=False):
            first = part.offset // like.element_size()
            into[:, first : first + numbers[0].numel()] = numbers.flatten(1)
        return into


def _at(tensor: Tensor) -> DevicePtr:
    return DevicePtr(tensor.data_ptr())


def place_prefix(
    profile: Profile, held: DeviceCheckpoint, stream: Stream, context: Context
) -> None:
    """Queues the copy of a saved prefix's rows into a context's rows. Raises `SplicedError`."""
    if profile.attention_layers:
        blocks = _blocks([(at.k, at.v) for at in context.layers])
        place(stream, profile, [], blocks, origin=held)


def _blocks(rows: Sequence[tuple[Tensor | None, Tensor | None]]) -> Blocks:
    """Describes keys and values [room, KV, d] of all layers as one block of `room` tokens."""
    layers, tensors = [], []
    room = 0
    for i, (k, v) in enumerate(rows):
        if k is None or v is None:
            continue
        room = k.shape[0]
        size = k.element_size()
        strides = (k.stride(0), k.stride(1), v.stride(0), v.stride(1))
        at = DevicePtr(k.data_ptr()), DevicePtr(v.data_ptr())
        layers.append(DeviceLayer(i, *at, 0, *(n * size for n in strides)))
        tensors += [k, v]
    return Blocks(DeviceEngineMemory(local(tensors), tuple(layers)), (0,), room)
