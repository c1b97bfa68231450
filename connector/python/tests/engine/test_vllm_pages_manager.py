"""vLLM's own manager of blocks over a hybrid's cache groups, with shared pages: what requests take,
what they share, and what is there again when they are gone."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

from spliced_connector.vllm.pages.plans import Part, Wanted  # noqa: E402

if find_spec("vllm"):
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
    )
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
    from vllm.v1.request import RequestStatus

    from spliced_connector.vllm.pages.manager import (
        SharedPagesManager,
        SharedPagesSpec,
        find_manager,
    )

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

BLOCK = 544
"""Tokens of a block of Qwen3-Next-80B, at TP 1 in bfloat16."""
STATES = 3
"""Groups of recurrent layers beside the one of attention layers, as Qwen3-Next has them."""


def manager_of(blocks: int) -> KVCacheManager:
    """A pool of so many blocks, and the null block."""
    attention = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=256, dtype=torch.bfloat16
    )
    states = MambaSpec(
        block_size=1 << 20,
        shapes=((32, 128, 128),),
        dtypes=(torch.float32,),
        page_size_padded=attention.page_size_bytes,
    )
    groups = [KVCacheGroupSpec([f"state {i}"], states) for i in range(STATES)]
    groups.append(KVCacheGroupSpec(["attention"], SharedPagesSpec.of(attention)))
    config = KVCacheConfig(blocks + 1, [], groups)
    return KVCacheManager(
        config,
        max_model_len=1 << 17,
        scheduler_block_size=BLOCK << 20,
        hash_block_size=BLOCK << 20,
        enable_caching=False,
    )


class Requests:
    """Requests as the scheduler brings them: admitted with all but the last tokens filled from
    outside, in one step."""

    def __init__(self, blocks: int) -> None:
        self.manager = manager_of(blocks)
        found = find_manager(self.manager)
        assert found is not None
        self.pages: SharedPagesManager = found
        self.pool = self.manager.block_pool
        self.free: int = self.pool.get_num_free_blocks()
        self._made: dict[str, Any] = {}

    @property
    def used(self) -> int:
        free: int = self.pool.get_num_free_blocks()
        return self.free - free

    def admit(self, name: str, segments: list[tuple[str, int]], share: bool = True) -> bool:
        """A prompt of 8 private tokens in front of each segment's interior, and 40 behind."""
        at, wanted = 0, []
        for number, (segment, length) in enumerate(segments):
            at += 8
            part = Part(segment.encode(), 0, length)
            wanted.append(Wanted(part, at, at - 8, number))
            at += length
        request = SimpleNamespace(
            request_id=name,
            num_tokens=at + 40,
            num_prompt_tokens=at + 40,
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            status=RequestStatus.WAITING,
            shared_prefix_boundary=0,
        )
        self.pages.offer(name, tuple(wanted) if share else ())
        got = self.manager.allocate_slots(
            cast(Any, request),
            0,
            num_external_computed_tokens=at,
            delay_cache_blocks=True,
            full_sequence_must_fit=True,
        )
        if got is None:
            return False
        request.num_computed_tokens = at
        self._made[name] = request
        return self.grow(name, 40)

    def grow(self, name: str, tokens: int) -> bool:
        """Computes so many more tokens."""
        request = self._made[name]
        request.num_tokens = max(request.num_tokens, request.num_computed_tokens + tokens)
        request.status = RequestStatus.RUNNING
        got = self.manager.allocate_slots(request, tokens)
        if got is None:
            return False
        request.num_computed_tokens += tokens
        return True

    def end(self, name: str) -> None:
        self.manager.free(self._made.pop(name))

    def own(self, name: str) -> list[KVCacheBlock]:
        return list(self.pages.req_to_blocks[name])


def test_the_registry_keeps_vllms_own_managers() -> None:
    plain = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    assert KVCacheSpecRegistry.get_manager_class(plain) is FullAttentionManager
    ours = SharedPagesSpec.of(plain)
    assert KVCacheSpecRegistry.get_manager_class(ours) is SharedPagesManager
    assert KVCacheSpecRegistry.get_uniform_type_base_spec(ours) is FullAttentionSpec
    assert ours.page_size_bytes == plain.page_size_bytes


def test_requests_point_into_one_copy_at_positions_of_their_own() -> None:
    requests = Requests(100)
    assert requests.admit("a", [("x", 128), ("y", 256)])
    first = requests.used
    assert first == STATES + 1 + 1, "states, private rows and one bin"
    assert requests.admit("b", [("y", 256), ("z", 100), ("x", 128)])
    assert requests.used - first == STATES + 1, "z went where there was room"
    a, b = requests.pages.plan("a"), requests.pages.plan("b")
    assert a is not None and b is not None
    there = {run.wanted.part.key: (run.block, run.offset) for run in a.runs}
    for run in b.runs:
        if run.wanted.part.key in there:
            assert there[run.wanted.part.key] == (run.block, run.offset)
    starts = [{run.wanted.part.key: run.wanted.start for run in plan.runs} for plan in (a, b)]
    assert starts[0][b"x"] != starts[1][b"x"] and starts[0][b"y"] != starts[1][b"y"]
    places = sorted(
        {(run.offset, run.offset + run.wanted.part.length) for run in (*a.runs, *b.runs)}
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))
    own = [{block.block_id for block in requests.own(name)} for name in "ab"]
    assert not own[0] & own[1] and a.runs[0].block not in own[0] | own[1]


def test_what_requests_leave_serves_later_ones_until_its_block_is_wanted() -> None:
    requests = Requests(8)
    assert requests.admit("a", [("x", 128), ("y", 256)])
    plan = requests.pages.plan("a")
    assert plan is not None
    requests.end("a")
    assert requests.used == 0, "what nobody uses counts as free"
    assert requests.pages.ended() == {"a"}
    assert requests.pages.ended() == frozenset()
    assert requests.admit("b", [("y", 256)])
    again = requests.pages.plan("b")
    assert again is not None
    assert (again.runs[0].block, again.runs[0].generation) == (plan.runs[1].block, 1)
    requests.end("b")
    assert requests.admit("c", [("u", 5 * BLOCK - 60 - 8)], share=False)
    assert requests.used == 8, "all blocks, the bin's too"
    requests.end("c")
    assert len(requests.pages.bins) == 0
    assert requests.admit("d", [("y", 256)])
    fresh = requests.pages.plan("d")
    assert fresh is not None and fresh.runs[0].generation == 2, "its bin has to be filled again"


def test_what_does_not_fit_is_not_admitted_and_takes_nothing() -> None:
    requests = Requests(2 * (STATES + 1) + 1)
    assert requests.admit("a", [("x", 300)])
    assert requests.admit("b", [("x", 300)])
    assert requests.used == 2 * (STATES + 1) + 1
    assert not requests.admit("c", [("x", 300)])
    assert requests.used == 2 * (STATES + 1) + 1
    assert requests.pages.plan("c") is None
    requests.end("a")
    assert requests.admit("c", [("x", 300)])
    plans = [requests.pages.plan(name) for name in "bc"]
    assert plans[0] is not None and plans[1] is not None
    assert plans[0].runs[0].block == plans[1].runs[0].block
    # The same without sharing: one at a time.
    alone = Requests(2 * (STATES + 1) + 1)
    assert alone.admit("a", [("x", 600)], share=False)
    assert not alone.admit("b", [("x", 600)], share=False)


def test_an_idle_bin_is_not_evicted_by_the_request_that_wants_it() -> None:
    requests = Requests(STATES + 2)
    assert requests.admit("a", [("x", 300)])
    requests.end("a")
    # Its bin is the only block beside those that the request takes itself.
    assert requests.admit("b", [("x", 300)])
    plan = requests.pages.plan("b")
    assert plan is not None and plan.runs[0].generation == 1
    assert plan.runs[0].block not in {block.block_id for block in requests.own("b")}


def test_private_blocks_grow_by_private_tokens() -> None:
    requests = Requests(40)
    assert requests.admit("a", [("x", 512), ("y", 512), ("z", 512)])
    private = 3 * 8 + 40
    assert len(requests.own("a")) == 1
    assert requests.grow("a", BLOCK - private)
    assert len(requests.own("a")) == 1
    assert requests.grow("a", 1)
    assert len(requests.own("a")) == 2
    requests.end("a")
    assert requests.used == 0


def test_blocks_that_are_given_back_later_leave_the_bins_at_once() -> None:
    requests = Requests(40)
    assert requests.admit("a", [("x", 512)])
    request = requests._made["a"]
    blocks = requests.manager.pop_blocks_for_free(request)
    assert requests.used == STATES + 1, "states and private rows"
    requests.pool.free_blocks(reversed(blocks))
    assert requests.used == 0
    assert requests.pages.ended() == {"a"}


def test_what_stands_in_the_way_still_does() -> None:
    """When one of these fails, shared pages can be made faster or simpler: see docs/engines.md."""
    from vllm import _custom_ops  # noqa: F401  (registers the operators)
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    asked = AttentionSelectorConfig(
        head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None
    )
    taken = current_platform.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, asked)
    assert taken == AttentionBackendEnum.CPU_ATTN.get_path(), "a CPU takes CUSTOM"
    kernel = torch.ops._C.cpu_attention_with_kv_cache.default._schema
    assert not kernel.returns, "the kernel answers more than its output"
    written = [a.name for a in kernel.arguments if a.alias_info and a.alias_info.is_write]
    assert written in ([], ["output"]), "likewise"
