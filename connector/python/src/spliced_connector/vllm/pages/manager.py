"""vLLM's block manager of the attention layers, for requests whose segments are in bins.

vLLM asks a block manager how many blocks a number of tokens takes, and makes it allocate and free
them. In this manager tokens in bins take no blocks. Bins are referenced and released together with
a request's blocks. vLLM bases its counts, admission and preemption on these answers.

vLLM chooses the manager's class by the type of the layers' spec (`vllm.v1.kv_cache_spec_registry`),
and the attention backend chooses the spec (`AttentionBackend.customize_spec`). Importing this
module registers spec and manager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry, register_kv_cache_spec

from spliced_connector.vllm.pages.bins import Bins, Block, Layout
from spliced_connector.vllm.pages.plans import PagePlan, Run, Wanted, shared_tokens

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class _Held:
    """The bins of a request."""

    plan: PagePlan
    blocks: tuple[Block, ...]  # referenced, each once


class SharedPagesManager(FullAttentionManager):  # type: ignore[misc]
    """A block manager with bins. For a request without an offer of shared pages, or whose offer was
    not followed by external tokens, it behaves like `FullAttentionManager`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bins = Bins(self.block_pool, self.block_size)
        self._offers: dict[str, tuple[Wanted, ...]] = {}
        self._pinned: dict[str, tuple[tuple[Wanted, ...], Layout]] = {}  # within one allocation
        self._held: dict[str, _Held] = {}
        self._ended: set[str] = set()

    def offer(self, request_id: str, wanted: tuple[Wanted, ...]) -> None:
        """Called before an allocation. `wanted`: the external tokens of the request that may be in
        bins; the other tokens are private. The offer is valid until it is used or replaced."""
        self._offers.pop(request_id, None)
        if wanted and self.dcp_world_size == 1:
            self._offers[request_id] = wanted

    def plan(self, request_id: str) -> PagePlan | None:
        """Returns where the segments of an allocated request are; None for a request without shared
        pages."""
        held = self._held.get(request_id)
        return None if held is None else held.plan

    def ended(self) -> frozenset[str]:
        """Returns the requests whose plans have ended since the last call, for any reason."""
        ended, self._ended = frozenset(self._ended), set()
        return ended

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        **more: Any,
    ) -> int:
        shared, bins = self._shared(request_id), 0
        wanted = self._offers.get(request_id)
        if wanted and not shared and total_computed_tokens > num_local_computed_tokens:
            shared, bins = shared_tokens(wanted), self._lay(wanted).blocks
        private: int = super().get_num_blocks_to_allocate(
            request_id,
            num_tokens - shared,
            new_computed_blocks,
            max(0, total_computed_tokens - shared),
            num_local_computed_tokens,
            num_tokens_main_model - shared,
            **more,
        )
        return private + bins

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        super().add_local_computed_blocks(
            request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens
        )
        # Bins are pinned here, in a call that vLLM makes for all groups before any group takes new
        # blocks. Taking blocks may evict bins that are not pinned.
        wanted = self._offers.pop(request_id, None)
        if wanted and num_external_computed_tokens > 0:
            layout = self._lay(wanted)
            self.bins.pin(layout)
            self._pinned[request_id] = wanted, layout

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        pinned = self._pinned.pop(request_id, None)
        if pinned is not None:
            wanted, layout = pinned
            places, blocks = self.bins.place(layout)
            runs = zip(wanted, places, strict=True)
            plan = PagePlan(tuple(Run(w, p.block, p.offset, p.generation) for w, p in runs))
            self._held[request_id] = _Held(plan, tuple(blocks))
        super().allocate_external_computed_blocks(
            request_id,
            num_local_computed_tokens,
            num_external_computed_tokens - self._shared(request_id),
            record_for_zeroing,
        )

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        shared = self._shared(request_id)
        blocks: list[KVCacheBlock] = super().allocate_new_blocks(
            request_id, num_tokens - shared, num_tokens_main_model - shared
        )
        return blocks

    def cache_blocks(self, request: Request, num_tokens: int, *args: Any, **more: Any) -> None:
        """Caches no blocks of requests with shared pages, because row n of their blocks is not
        token n."""
        if request.request_id not in self._held:
            super().cache_blocks(request, num_tokens, *args, **more)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Releases bins at once, even if the blocks are freed some steps later. A reassigned block
        gets new contents only after the steps that still read it."""
        self._offers.pop(request_id, None)
        held = self._held.pop(request_id, None)
        if held is not None:
            self._ended.add(request_id)
            self.bins.unpin(held.blocks)
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request_id)
        return blocks

    def _lay(self, wanted: tuple[Wanted, ...]) -> Layout:
        return self.bins.lay([one.part for one in wanted])

    def _shared(self, request_id: str) -> int:
        held = self._held.get(request_id)
        return 0 if held is None else held.plan.shared


KVCacheSpecRegistry.get_manager_class(
    FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
)  # vLLM registers its own specs here, and would not if ours came first


@register_kv_cache_spec(manager_class=SharedPagesManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class SharedPagesSpec(FullAttentionSpec):  # type: ignore[misc]
    """The spec of attention layers whose blocks `SharedPagesManager` manages."""

    @classmethod
    def of(cls, spec: FullAttentionSpec) -> SharedPagesSpec:
        made: SharedPagesSpec = replace_as(spec, cls)
        return made


def find_manager(manager: KVCacheManager) -> SharedPagesManager | None:
    """Returns the manager with shared pages of an engine; None if it has none, or several."""
    found = [
        one
        for one in manager.coordinator.single_type_managers
        if isinstance(one, SharedPagesManager)
    ]
    return found[0] if len(found) == 1 else None
