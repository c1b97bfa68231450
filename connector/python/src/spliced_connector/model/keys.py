"""Keys of segments and hashes of prefixes, bit-equal with the daemon's."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence

from spliced_connector.errors import ProfileError
from spliced_connector.model.identity import MAX_TOKENS, SegmentSpec
from spliced_connector.model.profile import Profile

NOTHING = bytes(32)
"""The hash that stands for no object."""


_PRIMED_ROLE = 0x80  # the bit of a key's role that marks a primer


def primer_digest(tokens: Sequence[int]) -> bytes:
    """Returns the digest that names a primer: SHA-256 over its token ids as little-endian u32.

    Raises `ProfileError` for an invalid id.
    """
    return hashlib.sha256(token_bytes(tokens)).digest()


def segment_key(profile: Profile, salt: bytes, spec: SegmentSpec, tokens: Sequence[int]) -> bytes:
    """Returns the key of a segment: SHA-256 over fingerprint, salt, role, head, tail and token ids,
    little-endian.

    With a primer, bit 7 of the role is set, and the primer's digest comes before the token ids.
    Roles are 1 and 2, so no input with a primer equals one without.

    `tokens` lists the segment's token ids. Raises `ProfileError` unless there are `spec.tokens`.
    """
    if len(tokens) != spec.tokens:
        raise ProfileError(f"{len(tokens)} tokens for a segment of {spec.tokens}")
    sha = hashlib.sha256(profile.fingerprint)
    sha.update(struct.pack("<I", len(salt)) + salt)
    role = spec.role | (_PRIMED_ROLE if spec.primer else 0)
    sha.update(struct.pack("<BII", role, spec.head, spec.tail) + spec.primer)
    sha.update(token_bytes(tokens))
    return sha.digest()


class PrefixNames:
    """Computes the hashes of a prompt's prefixes at ascending positions; the prompt may grow.

        H(0)   = SHA-256("spliced prefix\\0" | fingerprint | u32 salt length | salt | u32 block)
        H(i+1) = SHA-256(H(i) | token ids of block i)
        first p tokens = SHA-256(H(p // block) | token ids after that block | u32 p)

    Each token is hashed into the chain H only once, whatever the number of calls.
    """

    def __init__(self, profile: Profile, salt: bytes, block_tokens: int) -> None:
        seed = b"spliced prefix\0" + profile.fingerprint + struct.pack("<I", len(salt)) + salt
        self._chain = hashlib.sha256(seed + struct.pack("<I", block_tokens)).digest()
        self._block = block_tokens
        self._done = 0  # tokens in the chain
        self._last = -1  # last hashed position

    def name(self, tokens: Sequence[int], positions: Sequence[int]) -> list[bytes]:
        """Returns for each position p the hash of the first p tokens, in one pass.

        tokens: the whole prompt, which may only grow from call to call. Positions must ascend, also
        from call to call. A position that does not ascend, or that exceeds the tokens, gets
        `NOTHING`.
        """
        begin = self._done
        ids = memoryview(token_bytes(tokens[begin:]))
        hashes = []
        for position in positions:
            if not self._last < position <= len(tokens):
                hashes.append(NOTHING)
                continue
            self._last = position
            while self._done + self._block <= position:
                block = ids[4 * (self._done - begin) : 4 * (self._done + self._block - begin)]
                self._chain = hashlib.sha256(self._chain + block).digest()
                self._done += self._block
            rest = ids[4 * (self._done - begin) : 4 * (position - begin)]
            name = hashlib.sha256(self._chain + rest + struct.pack("<I", position))
            hashes.append(name.digest())
        return hashes


def prefix_hashes(
    profile: Profile,
    salt: bytes,
    block_tokens: int,
    tokens: Sequence[int],
    positions: Sequence[int],
) -> list[bytes]:
    """Returns the hashes of a prompt's prefixes, as `PrefixNames.name` does. All are `NOTHING` if
    `block_tokens` is invalid."""
    if not 1 <= block_tokens <= MAX_TOKENS:
        return [NOTHING] * len(positions)
    return PrefixNames(profile, salt, block_tokens).name(tokens, positions)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Returns the ids as little-endian u32. Raises `ProfileError` for an invalid id."""
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as err:
        raise ProfileError(f"token ids: {err}") from err
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
