"""Follows what decoding has rounded in vLLM's own prefix cache, in the scheduler's process.

Of an engine whose recurrent states have 16 bits. All requests count, also those that the mode
leaves alone: others find their blocks.
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
    marked: int  # boundaries behind it and up to here are known as rounded
    behind: bool = False  # it began behind a rounded state


class Rounding:
    """Of one engine, which files states at multiples of `block` tokens."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._rounded = Rounded()
        self._requests: dict[str, _Followed] = {}

    def matched(self, request: Request, computed: int) -> None:
        """The engine has the first `computed` tokens of a request that it begins with."""
        ids = request.prompt_token_ids
        if ids is None:
            return
        one = self._requests.get(request.request_id)
        if one is None:
            one = self._requests[request.request_id] = _Followed(request, len(ids), len(ids))
        # In this very step a running request may have filed what this one was given.
        for other in self._requests.values():
            self._mark(other)
        salt = request.cache_salt
        one.behind = self._rounded.has(request.all_token_ids, computed, salt)
        one.marked = computed if one.behind else one.prompt

    def finished(self, request: Request) -> None:
        """What the last steps have left is found by others from now on."""
        if (one := self._requests.pop(request.request_id, None)) is not None:
            self._mark(one)

    def behind(self, request_id: str) -> bool:
        """Whether a request began behind a rounded state: no state of it is a prefill's."""
        one = self._requests.get(request_id)
        return one is not None and one.behind

    def _mark(self, one: _Followed) -> None:
        ids, block = one.request.all_token_ids, self._block
        ends = range((one.marked // block + 1) * block, len(ids) + 1, block)
        if ends:
            self._rounded.add(ids, ends, one.request.cache_salt)
            one.marked = ends[-1]
