"""Names of segments and prefixes, bit-equal with the daemon's."""

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
"""The hash that names nothing."""


def segment_key(profile: Profile, salt: bytes, spec: SegmentSpec, tokens: Sequence[int]) -> bytes:
    """SHA-256 over fingerprint, salt, role, head, tail and the token ids, little-endian.

    `tokens` are all of the segment, `spec.tokens` of them. Raises `ProfileError` otherwise.
    """
    if len(tokens) != spec.tokens:
        raise ProfileError(f"{len(tokens)} tokens for a segment of {spec.tokens}")
    sha = hashlib.sha256(profile.fingerprint)
    sha.update(struct.pack("<I", len(salt)) + salt)
    sha.update(struct.pack("<BII", spec.role, spec.head, spec.tail))
    sha.update(token_bytes(tokens))
    return sha.digest()


def prefix_hashes(
    profile: Profile,
    salt: bytes,
    block_tokens: int,
    tokens: Sequence[int],
    positions: Sequence[int],
) -> list[bytes]:
    """Names the leading tokens of a prompt at each of the ascending positions, in one pass.

        H(0)   = SHA-256("spliced prefix\\0" | fingerprint | u32 salt length | salt | u32 block)
        H(i+1) = SHA-256(H(i) | token ids of block i)
        first p tokens = SHA-256(H(p // block) | token ids behind that block | u32 p)

    Positions out of order or beyond the tokens get `NOTHING`.
    """
    if not 1 <= block_tokens <= MAX_TOKENS:
        return [NOTHING] * len(positions)
    ids = memoryview(token_bytes(tokens))
    seed = b"spliced prefix\0" + profile.fingerprint + struct.pack("<I", len(salt)) + salt
    chain = hashlib.sha256(seed + struct.pack("<I", block_tokens)).digest()
    hashes = []
    done, last = 0, -1
    for position in positions:
        if not last < position <= len(tokens):
            hashes.append(NOTHING)
            continue
        last = position
        while done + block_tokens <= position:
            block = ids[4 * done : 4 * (done + block_tokens)]
            chain = hashlib.sha256(chain + block).digest()
            done += block_tokens
        rest = ids[4 * done : 4 * position]
        hashes.append(hashlib.sha256(chain + rest + struct.pack("<I", position)).digest())
    return hashes


def token_bytes(tokens: Sequence[int]) -> bytes:
    """The ids as little-endian u32. Raises `ProfileError` for an id that is none."""
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as err:
        raise ProfileError(f"token ids: {err}") from err
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
