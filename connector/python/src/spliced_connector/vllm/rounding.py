"""Tracks rounded states in vLLM's own prefix cache, in the scheduler's process.

Used for engines with 16-bit recurrent states. It tracks all requests, also those that the mode
ignores, because other requests may find their blocks in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spliced_connector.model import Profile
from spliced_connector.serving.rounded import Leading, Rounded

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(slots=True)
class _Followed:
    request: Request
    leading: Leading
    prompt: int  # number of prompt tokens, computed by prefill
    marked: int  # boundaries up to here were added, or need not be
    began: int = 0  # cached tokens with which the request began
    rounded: bool = False  # whether the state after the cached tokens was rounded
    exact: bool = False  # whether an exact state from the daemon replaced that state


class Rounding:
    """Tracks one engine, which caches states at multiples of `block` tokens."""

    def __init__(self, profile: Profile, block: int) -> None:
        self._profile = profile
        self._block = block
        self._rounded = Rounded()
        self._requests: dict[str, _Followed] = {}

    def matched(self, request: Request, computed: int) -> None:
        """Records that the engine begins a request after `computed` cached tokens."""
        ids = request.prompt_token_ids
        if ids is None:
            return
        one = self._requests.get(request.request_id)
        if one is None:
            leading = Leading(self._profile, self._block, request.cache_salt)
            one = _Followed(request, leading, len(ids), len(ids))
            self._requests[request.request_id] = one
        # A running request may have cached this request's prefix in this very step.
        for other in self._requests.values():
            self._mark(other)
        one.began, one.exact = computed, False
        one.rounded = computed > 0 and bool(self._rounded) and self._has(one, computed)
        one.marked = computed if one.rounded else one.prompt

    def _has(self, one: _Followed, end: int) -> bool:
        return self._rounded.has(one.leading.names(lambda: one.request.all_token_ids, [end])[0])

    def replaced(self, request_id: str) -> None:
        """Records that an exact state of more tokens replaces the cached state with which a request
        began."""
        one = self._requests.get(request_id)
        if one is not None and one.rounded:
            one.exact, one.marked = True, one.prompt

    def lost(self, request_id: str) -> None:
        """Records that the exact state could not be loaded, so the engine continues from the cached
        state."""
        one = self._requests.get(request_id)
        if one is not None and one.exact:
            one.exact, one.marked = False, one.began

    def finished(self, request: Request) -> None:
        """Marks the boundaries of the last steps, and stops tracking the request."""
        if (one := self._requests.pop(request.request_id, None)) is not None:
            self._mark(one)

    def behind(self, request_id: str) -> bool:
        """Returns whether a request continues from a rounded state. If so, all of its states differ
        from exact ones."""
        one = self._requests.get(request_id)
        return one is not None and one.rounded and not one.exact

    def _mark(self, one: _Followed) -> None:
        ids, block = one.request.all_token_ids, self._block
        ends = range((one.marked // block + 1) * block, len(ids) + 1, block)
        if ends:
            self._rounded.add(one.leading.names(lambda: ids, ends))
            one.marked = ends[-1]
