"""The job of one spliced request in vLLM, which writes the request's blocks while the context
moves."""

from __future__ import annotations

from torch import Tensor

from spliced_connector.serving.job import Job, LostError, Means
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.pages.plans import Run
from spliced_connector.vllm.splice_plans import SpliceLoad
from spliced_connector.walk import Context, ranges


class SpliceJob(Job):
    """Writes rows to blocks while the context moves, and states at the end."""

    def __init__(
        self, load: SpliceLoad, means: Means, caches: Caches, placed: Placed | None = None
    ) -> None:
        """placed: records which bins of the load (blocks that several requests share, see `pages`)
        are filled."""
        super().__init__(load.splice, load.ids, means, load.away)
        self.load = load
        self._caches = caches
        self._placed = placed
        self._staged: list[tuple[Run, dict[int, tuple[Tensor, Tensor]]]] = []

    def _begin(self) -> Context:
        """Returns a context after the prefix, from a checkpoint or from the engine's blocks."""
        base = self.load.base
        if base.name:
            context = self._restored(base.name, base.tokens, base.spliced)
            self._walked_over(context, base.held)
            return context
        context = Context(self._means.arch, self.splice.tokens, self.ids.device)
        if base.tokens == 0:
            return context
        if base.states is None:
            raise LostError("the engine has freed the states after its prefix")
        for layer, rows in self._caches.rows.items():
            table = self.load.blocks[self._caches.group[layer]]
            at = context.layers[layer]
            if at.k is None or at.v is None:
                raise LostError(f"layer {layer} keeps no rows")
            at.k[: base.tokens], at.v[: base.tokens] = rows.read(table, 0, base.tokens)
        for layer, states in self._caches.states.items():
            at = context.layers[layer]
            state, *tail = states.read(base.states[self._caches.group[layer]])
            at.state = state.to(at.state)
            at.conv = tail[0].to(at.conv) if tail else None
        context.tokens = base.tokens
        return context

    def _walked_over(self, context: Context, begin: int) -> None:
        """Writes the rows from `begin` on to the request's blocks, except those in bins."""
        own: slice | Tensor
        if self.load.pages is None:
            row, own = begin, slice(begin, None)
        else:
            spans = list(self.load.pages.private(begin, context.tokens))
            if not spans:
                return
            row = spans[0][2]
            own = ranges([(a, b) for a, b, _ in spans], self.ids.device)
        for layer, pages in self._caches.rows.items():
            k, v = context.rows(layer)
            table = self.load.blocks[self._caches.group[layer]]
            pages.write(table, row, k[own], v[own])

    def _stage(self) -> None:
        """Copies the rows that bins lack out of leased memory, in their stored form. `_fill` writes
        the copies to bins after the leases were released and confirmed as valid, when leased memory
        must not be read any more."""
        if self.load.pages is None or self._placed is None:
            return
        for run in self.load.pages.runs:
            if self._placed.is_filled(run):
                continue
            part = run.wanted.part
            layers = self._placement.captured(run.wanted.segment).layers
            cut = slice(part.first, part.first + part.length)
            rows: dict[int, tuple[Tensor, Tensor]] = {}
            for layer in self._caches.rows:
                k, v = layers[layer].k, layers[layer].v
                if k is None or v is None:
                    raise LostError(f"segment {run.wanted.segment} has no rows of layer {layer}")
                rows[layer] = k[cut].clone(), v[cut].clone()
            self._staged.append((run, rows))

    def _fill(self) -> None:
        """Writes the staged rows to the bins. Other requests that use these bins have not read them
        yet, or read the same content."""
        staged, self._staged = self._staged, []
        for run, rows in staged:
            for layer, (k, v) in rows.items():
                self._caches.rows[layer].write((run.block,), run.offset, k, v)
            if self._placed is not None:
                self._placed.fill(run)

    def _finish(self) -> None:
        """Writes the staged rows and the states. From now on the engine uses the blocks."""
        context = self._moving()
        self._fill()
        for layer, pages in self._caches.states.items():
            at = context.layers[layer]
            parts = [x for x in (at.state, at.conv) if x is not None]
            if len(parts) != len(pages.parts):
                raise LostError(f"layer {layer} has {len(parts)} of {pages.parts}")
            block = self._caches.state_block(self.load.blocks, layer, context.tokens)
            pages.write(block, *parts)
