"""Leased copies on the GPU put in place by the daemon's own kernels, in memory registered there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from spliced_connector.client import DeviceSegment, DeviceSlot, Model, Plan, PlanSpan
from spliced_connector.errors import Code, code_name
from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.registered import Registered
from spliced_connector.model import Span
from spliced_connector.serving.composing import Assembled, RefusedError, is_assembled
from spliced_connector.walk import Context


class Writing(Placing):
    """As `Placing`, with rows that the daemon writes, and with the states that one `assemble`
    gives where nothing but the end of the prompt is computed. Other states are composed by kernels
    on the engine's stream: what the daemon would need for them are transitions of computed rows,
    which are in memory of the engine.

    Raises `RefusedError`.
    """

    def __init__(
        self,
        lent: Lent,
        model: Model,
        registered: Registered,
        held: Mapping[int, DeviceSegment],
    ) -> None:
        memory = next(iter(held.values())).device
        super().__init__(model.profile, held, lent.stream(), lambda: lent.settle(memory))
        self._lent = lent
        self._model = model
        self._registered = registered
        self._assembled = Assembled()

    def rows(
        self, spans: Sequence[Span], into: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> None:
        """One request for all layers and segments. The rows are those of a context that was
        adopted."""
        placed = [s for s in spans if self.holds(s.segment)]
        if not placed:
            return
        spanned = [PlanSpan(s.start, s.length, self._held.get(s.segment)) for s in spans]
        plan = Plan(spans[0].start, spans[-1].end, spanned)
        # The daemon's stream does not know ours, which may still be using the memory.
        self._lent.wait()
        done = self._model.place(
            plan, self._registered.table(into), states=is_assembled(spans, self.holds)
        )
        self._registered.writing(into, done)
        if done.code != Code.OK:
            raise RefusedError(f"rows: {code_name(done.code)}")
        if isinstance(done.slot, DeviceSlot):
            for layer, state in self._lent.states(done.slot).items():
                self._assembled.add(layer, state, placed[-1].end)

    def compose(
        self,
        layer: int,
        spans: Sequence[Span],
        computed: tuple[Tensor, Tensor] | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        if layer in self._assembled:
            return self._assembled.compose(layer, spans, computed, state)
        return super().compose(layer, spans, computed, state)

    def close(self) -> None:
        """Nothing is held beyond a request."""


class Remote:
    """Has the daemon put the segments of one request in place that lie on the model's GPU."""

    def __init__(
        self,
        lent: Lent,
        model: Model,
        registered: Registered,
        held: Mapping[int, DeviceSegment],
    ) -> None:
        self._lent = lent
        self._model = model
        self._registered = registered
        self._held = held

    def why_not(self, context: Context, room: int) -> str:
        """Why the daemon cannot be asked for a walk up to token `room`; empty when it can."""
        return self._registered.why_not(self._model, context, room)

    def placer(self, context: Context, room: int) -> Writing:
        """For a walk of the context, whose rows lie in registered memory then."""
        self._registered.adopt(context, room)
        return Writing(self._lent, self._model, self._registered, self._held)
