"""SGLang's radix cache with the daemon as a lower tier: `--radix-cache-backend spliced`.

The tree's prefix of a prompt is used first; it is exact and shared between requests. The daemon
may have more: a longer exact prefix, or segments at any position. This cache reports these tokens
as a hit of a host tier. SGLang admits the request for the remaining tokens, and then asks for slots
with the hit tokens; these slots belong to the request. An exact prefix joins the tree with the
tokens computed after it, as any row does. Rows after composed segments never join the tree, and are
freed with their request.

A job works between batches, for as long as `Reuse` allows. Its request is skipped until the job is
done. All promised tokens are delivered, or none; in that case the request is matched again without
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    CacheRequestOutcome,
    EvictParams,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from torch import Tensor

from spliced_connector.serving.decider import NEXT_TOKENS
from spliced_connector.serving.rounded import Leading
from spliced_connector.serving.telling import traceparent
from spliced_connector.sglang.job import Prefix
from spliced_connector.sglang.requests import STEP, Tracked, log
from spliced_connector.sglang.reuse import ChangedError, Reuse

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

TOLD = "spliced"
"""Key of a request's outcome in its `meta_info`."""


class SplicedRadixCache(UnifiedRadixCache):  # type: ignore[misc]
    """Behaves like its base class until `attach` sets `reuse`. An error in reuse ends reuse, but
    not the engine."""

    reuse: Reuse | None = None
    inert = ""
    """Why nothing is reused; empty while reuse is on."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        # The fields below have entries by request. The entries stay when reuse ends, because
        # requests keep the slots that they were given.
        self._private: dict[str, Tensor] = {}  # slots that no row of the table names yet
        self._composed: set[str] = set()  # requests with rows after composed segments
        self._lent = False  # the last load gave slots to a request
        self._rounded: set[str] = set()  # requests that continue from rounded states
        self._leading: dict[str, Leading] = {}  # names of requests' leading tokens

    def attach(self, reuse: Reuse) -> None:
        """Starts using the daemon."""
        self.reuse = reuse

    def turn_off(self, why: str) -> None:
        """Ends reuse and storing."""
        reuse, self.reuse = self.reuse, None
        if reuse is not None:
            log.warning("spliced does nothing any more: %s", why)
            reuse.tally.add("inert")
            reuse.close()
        self.inert = why

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Returns the tree's match, with the daemon's further tokens as a hit of the host tier."""
        found = None
        with self._guarded():
            found = self._matched(params)
        found = super().match_prefix(params) if found is None else found
        if params.req is not None:
            with self._guarded():
                self._began(params.req, found.device_prefix_len)
        return found

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Any] | None:
        """Returns slots that belong to the request and hold the result of its job."""
        tracked = self._of(params.req)
        if params.req is None or tracked is None or tracked.job is None:
            loaded: tuple[int, Any] | None = super().init_load_back(params)
            return loaded
        try:
            count = self._load(tracked, params.req, params.host_hit_length)
        except Exception as err:
            self._failed(err)
            count = 0
        return None if count is None else (count, params.req.last_node)

    def load_back_is_cache_owned(self) -> bool:
        lent, self._lent = self._lent, False
        return not lent and bool(super().load_back_is_cache_owned())

    def prefix_device_indices(self, req: Req) -> Tensor:
        own = self._private.get(req.rid)
        if own is None:
            found: Tensor = super().prefix_device_indices(req)
            return found
        path = self.path_device_indices(req.last_node)[: req.prefix_len - len(own)]
        return torch.cat([path, own.to(path)])

    def checkpoint(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        """Stores those states of the request that the daemon wants. Rows after composed segments
        stay out of the tree."""
        self._private.pop(req.rid, None)
        tracked = self._of(req)
        if tracked is not None:
            with self._guarded():
                self._store(tracked, req, up_to)
                self._served(tracked, req, up_to)
            self._report(tracked, req)
        if req.rid not in self._composed:
            with self._guarded():
                self._filed(req, up_to)
            super().checkpoint(req, up_to=up_to, **kwargs)
        elif req.finished():
            for component in self._components_tuple:
                component.cleanup_after_caching_req(req, is_finished=True)

    def on_release(self, req: Req, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        self._private.pop(req.rid, None)
        self._composed.discard(req.rid)
        self._rounded.discard(req.rid)
        self._leading.pop(req.rid, None)
        tracked = self._of(req)
        if self.reuse is None or tracked is None:
            return
        if req.finished():
            self.reuse.drop(req.rid)
        else:  # it was preempted, and is matched again
            self.reuse.released(tracked)

    def finish(self, handle: CacheRequestHandle, outcome: CacheRequestOutcome) -> None:
        super().finish(handle, outcome)
        self._leading.pop(handle.rid, None)
        if self.reuse is not None and outcome != CacheRequestOutcome.SUCCESS:
            self.reuse.drop(handle.rid)

    def release_host_resources(self) -> None:
        super().release_host_resources()
        self.turn_off("the engine ends")

    def shutdown(self) -> None:
        super().shutdown()
        self.turn_off("the engine ends")

    def step(self, alone: bool) -> None:
        """Works before the scheduler plans a batch. alone: no request runs."""
        if self.reuse is not None:
            with self._guarded():
                self.reuse.step(alone)

    def admit(self, req: Req) -> bool:
        """Returns whether a request that was just matched can be admitted: its promised tokens
        are there, or were lost and are no longer promised."""
        tracked = self._of(req)
        if self.reuse is None or tracked is None or tracked.offer is None:
            return True
        done = True
        with self._guarded():
            done = self.reuse.ready(tracked, self._held(req))
        if self.reuse is None or tracked.lost:
            req.init_next_round_input(self)
        return done

    @contextmanager
    def stopping(self, adder: PrefillAdder, req: Req, computed: int) -> Iterator[None]:
        """Ends a chunk of a prompt where the daemon wants a state. computed: tokens before the
        chunk."""
        tracked, before = self._of(req), adder.rem_chunk_tokens
        stop = 0
        if self.reuse is not None and tracked is not None and before is not None:
            stop = self.reuse.next_stop(tracked, computed)
        if stop and before is not None and stop - computed < before:
            adder.rem_chunk_tokens = stop - computed
        yield
        if req not in adder.can_run_list:
            adder.rem_chunk_tokens = before

    def _began(self, req: Req, held: int) -> None:
        """Records whether the tree's state after `held` tokens of a request was rounded."""
        if self.reuse is None or self.reuse.rounded is None:
            return
        self._rounded.discard(req.rid)
        rounded = self.reuse.rounded
        if held and rounded and rounded.has(self._name(self.reuse, req, held)):
            self._rounded.add(req.rid)
        if (tracked := self.reuse.of(req.rid)) is not None:
            tracked.rounded = req.rid in self._rounded

    def _filed(self, req: Req, up_to: int) -> None:
        """Records that the tree gets the state after the first `up_to` tokens of a request."""
        if self.reuse is None or self.reuse.rounded is None:
            return
        if up_to > len(req.origin_input_ids) or req.rid in self._rounded:
            self.reuse.rounded.add([self._name(self.reuse, req, up_to)])

    def _name(self, reuse: Reuse, req: Req, tokens: int) -> bytes:
        """Returns the name of the first `tokens` tokens of a request. It lists the tokens only if
        the name is not known yet, because waiting requests are looked up at every step."""
        leading = self._leading.get(req.rid)
        if leading is None:
            leading = self._leading[req.rid] = Leading(reuse.model.profile, STEP)
        return leading.names(lambda: _ids(req), [tokens])[0]

    def _of(self, req: Req | None) -> Tracked | None:
        return None if self.reuse is None or req is None else self.reuse.of(req.rid)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as err:
            self._failed(err)

    def _failed(self, err: Exception) -> None:
        if isinstance(err, ChangedError):
            self.turn_off(str(err))
            return
        log.exception("spliced has failed")
        self.turn_off(f"{type(err).__name__}: {err}")

    def _matched(self, params: MatchPrefixParams) -> MatchResult | None:
        req = params.req
        if self.reuse is None or self.disable or req is None or not _plain(req):
            return None
        tracked = self.reuse.of(req.rid)
        if tracked is None:
            said = req.sampling_params.custom_params
            said = said if isinstance(said, dict) else None
            tracked = self.reuse.open(req.rid, req.origin_input_ids, said, _stops(req))
        if tracked.computed:
            return None
        # The tree's prefix is used only once it is known that there is nothing better.
        found = super().match_prefix(replace(params, cow_mamba=False))
        held = found.device_prefix_len
        offer = self.reuse.offer(tracked, held, len(params.key))
        if offer is None or found.host_hit_length:
            return found if not params.cow_mamba else None
        page = self.page_size
        return found._replace(
            last_host_node=found.best_match_node,
            host_hit_length=offer.splice.tokens // page * page - held,
            mamba_host_hit_length=int(self.reuse.engine.states),
            mamba_branching_seqlen=None,
        )

    def _held(self, req: Req) -> Prefix | None:
        """Returns the tree's prefix of a request that was just matched."""
        if not req.prefix_len:
            return None
        slots = self.path_device_indices(req.last_node)[: req.prefix_len].to(torch.int64)
        state = None
        if self.supports_mamba():
            found = self.tree_core.get_component_device_value(req.last_node, ComponentType.MAMBA)
            state = None if found is None else int(found)
        return Prefix(slots, state)

    def _load(self, tracked: Tracked, req: Req, count: int) -> int | None:
        """Returns the number of tokens for which the request now has slots. None: there is no room
        yet; 0: it gets none."""
        if self.reuse is None:
            return 0
        slots = self._take_slots(count)
        state = self._take_state(req) if slots is not None and self.reuse.engine.states else None
        if slots is None or (state is None and self.reuse.engine.states):
            if slots is not None:
                self.token_to_kv_pool_allocator.free(slots)
            return None
        try:
            self.reuse.write(tracked, slots, req.prefix_len, None if state is None else int(state))
        except Exception:
            self.token_to_kv_pool_allocator.free(slots)
            raise
        if state is not None:
            # The written state replaces a state that was to be copied or cleared.
            req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        self._private[req.rid] = slots
        if tracked.spliced:
            self._composed.add(req.rid)
        else:  # an exact state replaced the tree's
            self._rounded.discard(req.rid)
            tracked.rounded = False
        self._lent = True
        return count

    def _take_slots(self, count: int) -> Tensor | None:
        allocator = self.token_to_kv_pool_allocator
        if (short := count - allocator.available_size()) > 0:
            self.evict(EvictParams(num_tokens=short))
        found = allocator.alloc(count)
        return None if found is None else found.to(torch.int64)

    def _take_state(self, req: Req) -> Tensor | None:
        if req.kv.holds_mamba:
            held: Tensor = req.kv.mamba_pool_idx
            return held
        allocator = self.req_to_token_pool.mamba_allocator
        found = allocator.alloc(1)
        if found is None:
            self.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            found = allocator.alloc(1)
        if found is None:
            return None
        req.kv.mamba_pool_idx = found[0]
        state: Tensor = found[0]
        return state

    def _store(self, tracked: Tracked, req: Req, up_to: int) -> None:
        ended = req.kv.kv_committed_len if req.finished() else req.extend_end
        if self.reuse is None or up_to != ended:
            return  # the request's state is not the one after `up_to` tokens

        def row() -> tuple[Tensor, int | None]:
            held = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :up_to]
            state = int(req.kv.mamba_pool_idx) if req.kv.holds_mamba else None
            return held.to(torch.int64), state

        self.reuse.reached(tracked, req.full_untruncated_fill_ids, up_to, row)

    def _served(self, tracked: Tracked, req: Req, up_to: int) -> None:
        if self.reuse is None or tracked.served or up_to < tracked.tokens:
            return
        queued = float(req.time_stats.wait_queue_entry_time)  # by the clock of `arrived`
        first = time.perf_counter() - (queued if queued > 0 else tracked.arrived)
        header = traceparent(getattr(req.time_stats.trace_ctx, "external_trace_header", None))
        self.reuse.served(tracked, req.rid, int(req.cached_tokens), first, header)

    @staticmethod
    def _report(tracked: Tracked, req: Req) -> None:
        info = req.customized_info or {}
        info[TOLD] = [tracked.told()]
        req.customized_info = info


def _ids(req: Req) -> list[int]:
    return [*req.origin_input_ids, *req.output_ids]


def _plain(req: Req) -> bool:
    """Returns whether a request is of a kind that is reused: its tokens alone determine its state,
    and there are more than NEXT_TOKENS of them."""
    special = (
        req.lora_id,
        req.extra_key,
        req.cache_salt,
        req.multimodal_inputs,
        req.input_embeds,
        req.positional_embed_overrides,
        req.session,
    )
    return all(x is None for x in special) and len(req.origin_input_ids) > NEXT_TOKENS


def _stops(req: Req) -> set[int]:
    """Returns the ids that end a turn."""
    found = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    eos = getattr(req.tokenizer, "eos_token_id", None)
    return found if eos is None else {*found, int(eos)}
