"""Placing leased copies on the GPU by the daemon itself, in memory that is registered with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from spliced_connector.client import DeviceSegment, DeviceSlot, Model
from spliced_connector.errors import Code, code_name
from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.registered import Registered
from spliced_connector.model import Span
from spliced_connector.serving.composing import Assembled, RefusedError, is_assembled, plan_of
from spliced_connector.walk import Context


class Writing(Placing):
    """A `Placing` whose rows the daemon writes. If only the end of the prompt is computed, the
    daemon's `assemble` also computes the states. Otherwise kernels on the engine's stream compose
    the states, because the daemon has no access to the transitions of computed rows.

    Raises `RefusedError` if the daemon refuses.
    """

    def __init__(self, of: Remote) -> None:
        memory = next(iter(of.held.values())).device
        super().__init__(
            of.model.profile, of.held, of.lent.stream(), lambda: of.lent.settle(memory)
        )
        self._of = of
        self._assembled = Assembled()

    def rows(
        self, spans: Sequence[Span], into: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> None:
        """Makes one request for all layers and segments. into: the rows of an adopted context."""
        placed = [s for s in spans if self.holds(s.segment)]
        if not placed:
            return
        of = self._of
        # The daemon's stream does not wait for the engine's, which may still use the memory.
        of.lent.wait()
        done = of.model.place(
            plan_of(spans, of.held),
            of.registered.table(into),
            states=is_assembled(spans, self.holds),
        )
        of.registered.writing(into, done)
        if done.code != Code.OK:
            raise RefusedError(f"rows: {code_name(done.code)}")
        if isinstance(done.slot, DeviceSlot):
            for layer, state in of.lent.states(done.slot).items():
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
        """Does nothing: no resource outlives a request."""


@dataclass(frozen=True)
class Remote:
    """Lets the daemon place those segments of one request that are on the model's GPU."""

    lent: Lent
    model: Model
    registered: Registered
    held: Mapping[int, DeviceSegment]

    def why_not(self, context: Context, room: int) -> str:
        """Returns why the daemon cannot be used for a walk up to token `room`; empty if it can."""
        return self.registered.why_not(self.model, context, room)

    def placer(self, context: Context, room: int) -> Writing:
        """Returns a placer for a walk of the context, and moves its rows to registered memory."""
        self.registered.adopt(context, room)
        return Writing(self)
