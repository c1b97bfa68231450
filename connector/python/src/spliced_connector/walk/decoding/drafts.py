"""Tokens that are computed after a context and may be dropped again (KVBuffer, section 3.3).

All drafts pass the layers in one walk. A linear layer computes their outputs from the state before
the first draft and from the drafts' own rows, in the chunkwise form (Eq. 7), and keeps the rows.
Only accepted drafts change the state, in one update from these rows (Eq. 8). So no state is copied
or undone; drafts that are decoded one by one would need one state each. The next tokens overwrite
the keys and values of dropped drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import PlanError, Span, SpanKind
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.context import Context
from spliced_connector.walk.decoding.turns import TurnRows, turn_layer
from spliced_connector.walk.rows import SplicedRows
from spliced_connector.walk.run import Walk


@dataclass(frozen=True, slots=True)
class _Left:
    """The result of drafts in a linear layer: the recurrence over their rows, the state after all
    drafts, and the convolution's inputs [n, C]."""

    layer: int
    scan: families.Scan
    state: Tensor
    conv: Tensor | None


class _Trial(Walk):
    """A walk over drafts that leaves the context unchanged."""

    def __init__(self, arch: Architecture, rows: SplicedRows, context: Context) -> None:
        super().__init__(arch, rows, context, None)
        self.left: list[_Left] = []

    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        before = self.context.layers[layer].state
        if before is None or x is None:
            raise PlanError(f"layer {layer} of the context keeps no state")
        new = self.arch.linear(layer, x, self.rows.positions)
        out, _ = self._convolved(layer, new.conv)
        steps = self.arch.steps(layer, out, new, self.rows.positions)
        scan = families.Scan(steps, self.rows.runs(families.chunk_length(steps)))
        self.left.append(_Left(layer, scan, scan.advance(0, before), new.conv))
        return self.arch.linear_out(layer, scan.outputs(), new)


class Drafts:
    """Drafts after a context, valid until the context is continued. `hidden` [n, width] has the
    drafts' rows after the last layer."""

    def __init__(self, context: Context, hidden: Tensor, left: Sequence[_Left]) -> None:
        self.hidden = hidden
        self._context = context
        self._begin = context.tokens
        self._left = left

    def rows(self, n: int) -> TurnRows:
        """Returns the rows of the first n drafts, by which states can be updated."""
        layers = {left.layer: turn_layer(left.scan, left.conv).cut(0, n) for left in self._left}
        return TurnRows(self._begin, self._begin + n, layers)

    def accept(self, n: int) -> None:
        """Adds the first n drafts to the context and drops the others. Call it only once."""
        if not 0 <= n <= len(self.hidden) or self._context.tokens != self._begin:
            raise PlanError(f"{n} of {len(self.hidden)} drafts at {self._begin}, {self._context}")
        if n == 0:
            return
        for left in self._left:
            at = self._context.layers[left.layer]
            at.state = left.state if n == len(self.hidden) else left.scan.behind(0, n)
            if at.conv is not None and left.conv is not None:
                line = torch.cat((at.conv, left.conv[:n].to(at.conv)))
                at.conv = line[len(line) - len(at.conv) :].clone()
        self._context.tokens += n


def verify(arch: Architecture, ids: Sequence[int], context: Context) -> Drafts:
    """Computes the tokens of ids after the context as drafts.

    ids is the whole prompt. Raises PlanError if no token follows the context, or if the
    architecture has an engine's kernels.
    """
    if arch.kernels is not None or context.tokens >= len(ids):
        raise PlanError(f"drafts of {len(ids)} tokens after {context.tokens}")
    with torch.no_grad():
        every = torch.tensor(ids, device=context.device)
        span = Span(SpanKind.RECOMPUTE, context.tokens, len(ids) - context.tokens)
        rows = SplicedRows(arch, every, [span], {}, context.tokens)
        context.reserve(rows.end, spare=rows.end // 8)
        walk = _Trial(arch, rows, context)
        hidden = walk.run()
    if hidden is None:
        raise PlanError("no draft was computed")
    return Drafts(context, hidden, walk.left)
