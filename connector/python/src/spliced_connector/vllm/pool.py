"""The engine's blocks, as seen by the half in the scheduler's process.

vLLM caches full blocks under hashes of the request's tokens, and gives them to any request with the
same tokens. Spliced blocks differ from those of a prefill. So the hashes of a spliced request are
changed before any of its blocks is cached. Then no other request can find its blocks, including
those that the engine computes after the splice.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spliced_connector.vllm.plans import NO_BLOCK
from spliced_connector.vllm.support import Engine

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


def make_private(request: Request) -> None:
    """Makes the hashes of a request's uncached blocks unique to it.

    Blocks that it already shares with other requests keep their hashes.
    """
    _name(request, f"spliced:{secrets.token_hex(16)}")


def make_public(request: Request, salt: str | None) -> None:
    """Undoes `make_private`. No block may be cached yet. salt: the request's original cache
    salt."""
    _name(request, salt)


def _name(request: Request, salt: str | None) -> None:
    request.cache_salt = salt
    request.block_hashes.clear()
    request.update_block_hashes()


class EnginePool:
    """Finds and pins the states after prefixes in the engine's cache."""

    def __init__(self, engine: Engine) -> None:
        self._groups = [group.states for group in engine.groups]
        self._pool: BlockPool | None = None
        self._held: dict[str, list[KVCacheBlock]] = {}

    def bind(self, manager: KVCacheManager) -> None:
        """Called once, before the first request."""
        self._pool = manager.block_pool

    def states(self, request: Request, tokens: int) -> tuple[int, ...] | None:
        """Returns for each cache group the block with the states after the request's first `tokens`
        tokens, `NO_BLOCK` for groups of rows. None if one of the blocks is missing or evicted."""
        found = self._find(request, tokens)
        return None if found is None else _numbers(found)

    def hold(self, request: Request, tokens: int) -> tuple[int, ...] | None:
        """Like `states`, and keeps these blocks until `release`. The engine itself keeps only the
        last state of a request and may reassign the blocks of its other states."""
        found = self._find(request, tokens)
        if found is None or self._pool is None:
            return None
        held = [block for block in found if block is not None]
        self._pool.touch(held)
        self._held[request.request_id] = held
        return _numbers(found)

    def release(self, request_id: str) -> None:
        """Unpins a request's states. Further calls do nothing."""
        held = self._held.pop(request_id, None)
        if held and self._pool is not None:
            self._pool.free_blocks(held)

    def release_all(self) -> None:
        for request_id in list(self._held):
            self.release(request_id)

    def _find(self, request: Request, tokens: int) -> list[KVCacheBlock | None] | None:
        pool = self._pool
        if pool is None or tokens <= 0 or tokens % pool.hash_block_size:
            return None
        # A block's hash covers all tokens up to its end, whatever the size of the blocks.
        index = tokens // pool.hash_block_size - 1
        if index >= len(request.block_hashes):
            return None
        found: list[KVCacheBlock | None] = []
        for group, states in enumerate(self._groups):
            if not states:
                found.append(None)
                continue
            cached = pool.get_cached_block(request.block_hashes[index], [group])
            if not cached:
                return None
            found.append(cached[0])
        return found


def _numbers(blocks: Sequence[KVCacheBlock | None]) -> tuple[int, ...]:
    return tuple(NO_BLOCK if block is None else int(block.block_id) for block in blocks)
