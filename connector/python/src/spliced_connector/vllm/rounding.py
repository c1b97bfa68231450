"""Tracks rounded states in vLLM's own prefix cache, in the scheduler's process.

Used for engines whose recurrent states have 16 bits. It follows all requests, also those that the
mode leaves alone, because other requests find their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spliced_connector.serving.rounded import Rounded

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(slots=True)
class _Followed:
    request: Request
    prompt: int  # tokens that a prefill computes
    marked: int  # boundaries up to here were added, or need not be
    behind: bool = False  # it began at a rounded state


class Rounding:
    """Tracks one engine, which caches states at multiples of `block` tokens."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._rounded = Rounded()
        self._requests: dict[str, _Followed] = {}

    def matched(self, request: Request, computed: int) -> None:
        """Notes that the engine begins a request after `computed` cached tokens."""
        ids = request.prompt_token_ids
        if ids is None:
            return
        one = self._requests.get(request.request_id)
        if one is None:
            one = self._requests[request.request_id] = _Followed(request, len(ids), len(ids))
        # A running request may have cached this request's prefix in this very step.
        for other in self._requests.values():
            self._mark(other)
        salt = request.cache_salt
        one.behind = self._rounded.has(request.all_token_ids, computed, salt)
        one.marked = computed if one.behind else one.prompt

    def finished(self, request: Request) -> None:
        """Adds the boundaries of the last steps, and forgets the request."""
        if (one := self._requests.pop(request.request_id, None)) is not None:
            self._mark(one)

    def behind(self, request_id: str) -> bool:
        """Reports whether a request began at a rounded state; then all of its states differ."""
        one = self._requests.get(request_id)
        return one is not None and one.behind

    def _mark(self, one: _Followed) -> None:
        ids, block = one.request.all_token_ids, self._block
        ends = range((one.marked // block + 1) * block, len(ids) + 1, block)
        if ends:
            self._rounded.add(ids, ends, one.request.cache_salt)
            one.marked = ends[-1]
