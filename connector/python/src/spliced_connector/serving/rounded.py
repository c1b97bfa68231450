"""Remembers which states of an engine's own prefix cache decoding has rounded.

With recurrent states in 16 bits an engine rounds them at each token that it decodes, a prefill
where a chunk ends. A decoded state therefore differs from that of a prefill, and so do all states
computed from it: the next turn of a conversation, which begins in the engine's own cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

_MOST = 1 << 17
"""Bound on the remembered prefixes, 16 bytes each: many times the states that fit into an engine.
The least recently used is forgotten first, as engines evict."""


class Rounded:
    """Prefixes for which an engine may cache a rounded state. Used by one thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def add(self, ids: Sequence[int], ends: Sequence[int], salt: str | None = None) -> None:
        """Records that the states at these ends were rounded, or computed from a rounded one.

        ids: at least up to the last end. ends: ascending. salt: the request's own.
        """
        digest, begin = _begun(salt), 0
        for end in ends:
            digest.update(_bytes(ids[begin:end]))
            begin, name = end, digest.digest()
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def has(self, ids: Sequence[int], end: int, salt: str | None = None) -> bool:
        """Reports whether the state after the first `end` tokens may be one of them."""
        if not end or not self._seen:
            return False
        digest = _begun(salt)
        digest.update(_bytes(ids[:end]))
        name = digest.digest()
        if name not in self._seen:
            return False
        self._seen.move_to_end(name)
        return True


def _begun(salt: str | None) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(b"-" if salt is None else b"+" + hashlib.sha256(salt.encode()).digest())
    return digest


def _bytes(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()
