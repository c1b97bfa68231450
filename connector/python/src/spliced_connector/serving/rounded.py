"""Tracks which states of an engine's own prefix cache were rounded by decoding.

An engine that stores recurrent states in 16 bits rounds them at each token that it decodes, but in
a prefill only at the end of a chunk. So a decoded state differs from that of a prefill. All states
computed from a decoded state differ too, such as those of a conversation's next turn, which begins
in the engine's own cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from spliced_connector.model import PrefixNames, Profile

_MOST = 1 << 17
"""Maximum number of tracked prefixes, 32 bytes each: many times the states that fit into an engine.
The least recently used one is dropped first, as in engines."""


class Leading:
    """Hashes the prefixes of one request, each only once. The request's tokens may only grow."""

    def __init__(self, profile: Profile, block: int, salt: str | None = None) -> None:
        """block: tokens of a block. salt: the request's cache salt, None without one."""
        self._made = profile, b"-" if salt is None else b"+" + salt.encode(), block
        self._namer = PrefixNames(*self._made)
        self._last = 0  # last named position
        self._names: dict[int, bytes] = {}

    def names(self, ids: Callable[[], Sequence[int]], ends: Sequence[int]) -> list[bytes]:
        """Returns, for each position in `ends`, a hash of the tokens before it. Positions ascend.

        ids: a function that returns at least the tokens before the last position. It is called only
        if a hash is new.
        """
        new = [end for end in ends if end not in self._names]
        if new:
            if new[0] <= self._last:
                self._namer = PrefixNames(*self._made)
            self._names.update(zip(new, self._namer.name(ids(), new), strict=True))
            self._last = new[-1]
        return [self._names[end] for end in ends]


class Rounded:
    """The prefixes for which an engine may have cached a rounded state. For one thread only."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._seen)

    def add(self, names: Sequence[bytes]) -> None:
        """Records that the states after these prefixes were rounded, or computed from a rounded
        state."""
        for name in names:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def has(self, name: bytes) -> bool:
        """Returns whether the state after a prefix may be rounded."""
        if name not in self._seen:
            return False
        self._seen.move_to_end(name)
        return True
