"""One request of SGLang: a context that is computed in pieces, and the slots to which it is written
at the end.

The engine allocates a job's slots only when the job has ended, so that a request that waits or
fails occupies no slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spliced_connector.serving.job import Job, LostError, Means
from spliced_connector.serving.splices import Splice
from spliced_connector.sglang.slots import Slots
from spliced_connector.walk import Context


@dataclass(frozen=True, slots=True)
class Prefix:
    """The exact prefix of a request in the engine's tree: the slots [tokens] of its rows, and the
    slot of the states after them (None in a model without states)."""

    slots: Tensor
    state: int | None

    @property
    def tokens(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Base:
    """Where a job begins: after the first `tokens` tokens. Their state and rows come from the
    daemon's checkpoint `name`, or from the engine's tree if the name is empty. spliced: the
    checkpoint may come from a splice."""

    tokens: int = 0
    name: bytes = b""
    spliced: bool = False


class SlotJob(Job):
    """A job (see `serving.job`) whose result is written to SGLang's slots."""

    def __init__(
        self,
        splice: Splice,
        ids: tuple[int, ...],
        means: Means,
        slots: Slots,
        base: Base,
        sampled: bool,
    ) -> None:
        """sampled: the canary recomputes the request."""
        super().__init__(splice, ids, means)
        self.base = base
        self.sampled = sampled
        self.prefix: Prefix | None = None
        """The prefix of the request in the engine's tree, while `run` is called."""
        self._slots = slots

    @property
    def fresh(self) -> bool:
        """Whether this job has done no work that a new job would have to repeat."""
        return self.context is None and not self.captured

    def write(self, into: Tensor, begin: int, state: int | None) -> None:
        """Writes the rows from token `begin` on to the slots `into`, and the states after the last
        row to the slot `state`. Call it once `run` has returned True."""
        context = self._moving()
        for layer, rows in self._slots.rows.items():
            k, v = context.rows(layer)
            rows.write(into, k[begin : begin + len(into)], v[begin : begin + len(into)])
        if state is None:
            return
        for layer, states in self._slots.states.items():
            at = context.layers[layer]
            if at.state is None:
                raise LostError(f"layer {layer} has no state")
            states.write(state, at.state, at.conv)

    def _begin(self) -> Context:
        base = self.base
        if base.name:
            return self._restored(base.name, base.tokens, base.spliced)
        context = Context(self._means.arch, self.splice.tokens, self.ids.device)
        if base.tokens == 0:
            return context
        held = self.prefix
        if held is None or held.tokens < base.tokens:
            raise LostError("the engine has freed the prefix")
        if self._slots.states and held.tokens != base.tokens:
            raise LostError("the engine's states belong to another prefix")
        for layer, rows in self._slots.rows.items():
            at = context.layers[layer]
            if at.k is None or at.v is None:
                raise LostError(f"layer {layer} keeps no rows")
            at.k[: base.tokens], at.v[: base.tokens] = rows.read(held.slots[: base.tokens])
        for layer, states in self._slots.states.items():
            if held.state is None:
                raise LostError("the engine has freed the states after the prefix")
            at = context.layers[layer]
            found = states.read(held.state)
            at.state = found[0].to(at.state)
            at.conv = found[1].to(at.conv) if len(found) > 1 else None
        context.tokens = base.tokens
        return context

    def _walked_over(self, context: Context, begin: int) -> None:
        """Does nothing: rows stay in the context."""

    def _stage(self) -> None:
        """Does nothing: the walk has copied what it read."""

    def _finish(self) -> None:
        """Does nothing: see `write`."""
