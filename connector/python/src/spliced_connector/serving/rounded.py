"""Tracks which states of an engine's own prefix cache were rounded by decoding.

With recurrent states in 16 bits an engine rounds them at each token that it decodes, and in a
prefill only where a chunk ends. A decoded state therefore differs from that of a prefill, and so
do all states computed from it: the next turn of a conversation, which begins in the engine's own
cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from spliced_connector.model import PrefixNames, Profile

_MOST = 1 << 17
"""Maximum number of tracked prefixes, 32 bytes each: many times the states that fit into an
engine. The least recently used one is forgotten first, as engines evict."""


class Leading:
    """Names the leading tokens of one request, each position once. Tokens are only appended."""

    def __init__(self, profile: Profile, block: int, salt: str | None = None) -> None:
        """salt: of the request."""
        self._made = profile, b"-" if salt is None else b"+" + salt.encode(), block
        self._namer = PrefixNames(*self._made)
        self._last = 0  # last named position
        self._names: dict[int, bytes] = {}

    def names(self, ids: Callable[[], Sequence[int]], ends: Sequence[int]) -> list[bytes]:
        """Returns names of the first tokens at each of the ascending ends.

        ids: returns at least the tokens up to the last end. Called only if a name is new.
        """
        new = [end for end in ends if end not in self._names]
        if new:
            if new[0] <= self._last:
                self._namer = PrefixNames(*self._made)
            self._names.update(zip(new, self._namer.name(ids(), new), strict=True))
            self._last = new[-1]
        return [self._names[end] for end in ends]


class Rounded:
    """Prefixes for which an engine may cache a rounded state. Used by one thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._seen)

    def add(self, names: Sequence[bytes]) -> None:
        """Records that the states after these prefixes were rounded, or computed from a rounded
        one."""
        for name in names:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def has(self, name: bytes) -> bool:
        """Returns whether the state after a prefix may be one of them."""
        if name not in self._seen:
            return False
        self._seen.move_to_end(name)
        return True
