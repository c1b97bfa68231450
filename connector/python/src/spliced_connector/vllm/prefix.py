"""Mode prefix in a worker: fills blocks from checkpoints and copies new checkpoints out.

All work starts on the thread that runs the model, between two forward passes. That thread does not
wait for storing.
"""

from __future__ import annotations

import time

from torch import Tensor

from spliced_connector.client import Accept, Checkpoint
from spliced_connector.errors import SplicedError
from spliced_connector.serving.storing import Saver, Taken
from spliced_connector.vllm.caches import BlocksError, Caches
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.pages.reading import read_rows
from spliced_connector.vllm.plans import Blocks, LoadPlan, Outcome, PrefixPlan, SavePlan
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.tally import log
from spliced_connector.walk import part_tensors, tensor_over


class PrefixWorker:
    """Fills blocks from checkpoints and copies new ones out."""

    def __init__(self, session: Session, caches: Caches) -> None:
        self._session = session
        self._caches = caches
        self._profile = session.model.profile
        self.placed: Placed | None = None
        """Records requests with shared pages, which have rows outside their own blocks; None
        without them."""
        self._saver = Saver(session.model, session.tally, session.settings.pending_mib << 20)

    def shares(self, plan: object) -> bool:
        return isinstance(plan, PrefixPlan) and bool(plan.loads)

    def load(self, plan: object) -> Outcome:
        """Fills blocks for at most `load_ms` in total. The remaining requests fail, and the engine
        computes them."""
        if not isinstance(plan, PrefixPlan):
            return Outcome()
        failed = set()
        until = time.monotonic() + self._session.settings.load_ms / 1000
        for load in plan.loads:
            began = time.perf_counter()
            filled = self._load(load, until - time.monotonic())
            self._session.tally.add("load_micros", round((time.perf_counter() - began) * 1e6))
            if filled:
                self._session.tally.add("loads")
                self._session.tally.add("loaded_tokens", load.tokens - load.begin)
            else:
                self._session.tally.add("load_failures")
                failed.add(load.request_id)
        return Outcome(frozenset(load.request_id for load in plan.loads), frozenset(failed))

    def save(self, plan: object) -> None:
        for save in plan.saves if isinstance(plan, PrefixPlan) else ():
            if self._saver.full:
                self._session.tally.add("save_failures")
                continue
            began = time.perf_counter()
            try:
                self._saver.put(self._take(save))
            except BlocksError as err:
                self._session.tally.add("save_failures")
                log.warning("spliced: %d tokens are not stored: %s", save.tokens, err)
            self._session.tally.add("save_micros", round((time.perf_counter() - began) * 1e6))

    def drain(self, timeout: float) -> bool:
        return self._saver.drain(timeout)

    def stop_storing(self) -> None:
        """Drops data that is not stored yet, and stores nothing more."""
        self._saver.close()

    def close(self) -> None:
        self.stop_storing()

    def _load(self, plan: LoadPlan, seconds: float) -> bool:
        """Fills blocks from one checkpoint. Returns whether all of its data is in the blocks and
        the checkpoint was valid until the data was copied."""
        if seconds <= 0:
            return False
        checkpoint = self._session.model.load(plan.hash, wait=seconds)
        if checkpoint is None:
            return False
        filled = False
        try:
            filled = self._fill(plan, checkpoint)
        except (SplicedError, ValueError, RuntimeError) as err:
            log.warning("spliced: a checkpoint of %d tokens does not fit: %s", plan.tokens, err)
        finally:
            good = checkpoint.release()
        return filled and good

    def _fill(self, plan: LoadPlan, checkpoint: Checkpoint) -> bool:
        if checkpoint.tokens != plan.tokens or checkpoint.kind != Accept.EXACT:
            return False
        begins, ends = zip(*checkpoint.nodes, strict=True)
        if begins != (0, *ends[:-1]):
            raise ValueError(f"nodes {checkpoint.nodes} leave something out")
        for layer, pages in self._caches.rows.items():
            table = self._caches.table(plan.blocks, layer, plan.begin, plan.tokens)
            for node, (begin, end) in enumerate(checkpoint.nodes):
                skip = max(plan.begin - begin, 0)
                if skip < end - begin:
                    k = _part(checkpoint, node, layer, "K")[skip:]
                    v = _part(checkpoint, node, layer, "V")[skip:]
                    pages.write(table, begin + skip, *self._caches.copies.to_device([k, v]))
        last = len(checkpoint.nodes) - 1
        for layer, states in self._caches.states.items():
            parts = [_part(checkpoint, last, layer, kind) for kind in states.parts]
            block = self._state_block(plan.blocks, layer, plan.tokens)
            states.write(block, *self._caches.copies.to_device(parts))
        return True

    def _take(self, plan: SavePlan) -> Taken:
        """Starts copying rows and states out of the engine, in the order of the layout."""
        parts: list[Tensor] = []
        for layer in range(len(self._session.engine.identity.layers)):
            if layer in self._caches.states:
                block = self._caches.state_block(plan.blocks, layer, plan.tokens)
                parts += self._caches.states[layer].read(block)
            elif layer in self._caches.rows:
                parts += self._rows(plan, layer)
        layout = self._profile.checkpoint_layout(plan.tokens - plan.parent_tokens)
        leaving = self._caches.copies.to_host(part_tensors(layout, parts))
        kind = Accept.SPLICED if plan.spliced else Accept.EXACT
        return Taken(plan.hash, plan.tokens, plan.parent_hash, plan.parent_tokens, leaving, kind)

    def _rows(self, plan: SavePlan, layer: int) -> tuple[Tensor, Tensor]:
        pages, begin, end = self._caches.rows[layer], plan.parent_tokens, plan.tokens
        shared = None if self.placed is None else self.placed.plan(plan.request_id)
        if shared is None:
            return pages.read(self._caches.table(plan.blocks, layer, begin, end), begin, end)
        rope = self._session.engine.identity.layers[layer].attention.rope
        own = plan.blocks[self._caches.group[layer]]
        return read_rows(pages, rope, shared, own, begin, end)

    def _state_block(self, blocks: Blocks, layer: int, tokens: int) -> int:
        """Returns the block of the state after `tokens` tokens. Raises BlocksError if position
        `tokens` is no block boundary: the engine keeps only states at boundaries."""
        if tokens % self._caches.block_tokens[self._caches.group[layer]]:
            raise BlocksError(f"layer {layer} keeps no state after token {tokens}")
        return self._caches.state_block(blocks, layer, tokens)


def _part(checkpoint: Checkpoint, node: int, layer: int, kind: str) -> Tensor:
    """Returns one part over the daemon's memory. Raises ValueError for a layout without it."""
    layout = checkpoint.layouts[node]
    index = layout.find(layer, kind)
    if index is None:
        raise ValueError(f"layer {layer} has no {kind}")
    part = layout.parts[index]
    return tensor_over(checkpoint.part(node, index), part.dtype, part.shape)
