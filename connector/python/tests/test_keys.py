"""Names of segments and prefixes."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace

import pytest

from spliced_connector.errors import ProfileError
from spliced_connector.model import (
    NOTHING,
    PrefixNames,
    Profile,
    Role,
    SegmentSpec,
    answer_starts,
    prefix_hashes,
    primer_digest,
    segment_key,
    turn_ends,
)
from test_profile import TINY

PROFILE = Profile(TINY)
TOKENS = [(i * 2654435761 + 7) & 0xFFFFFFFF for i in range(100)]


def test_a_segment_key_is_the_hash_it_is_said_to_be() -> None:
    spec = SegmentSpec(Role.MID, 8, 9, len(TOKENS))
    plain = PROFILE.fingerprint + b"\x03\0\0\0abc\x02" + b"\x08\0\0\0" + b"\x09\0\0\0"
    plain += b"".join(t.to_bytes(4, "little") for t in TOKENS)
    assert segment_key(PROFILE, b"abc", spec, TOKENS) == hashlib.sha256(plain).digest()
    assert segment_key(PROFILE, b"abc", spec, array("I", TOKENS)) == hashlib.sha256(plain).digest()


def test_a_primer_is_part_of_the_key() -> None:
    primer = primer_digest([0x201])
    assert primer == hashlib.sha256(b"\x01\x02\0\0").digest()
    spec = SegmentSpec(Role.MID, 8, 9, len(TOKENS))
    plain = PROFILE.fingerprint + b"\x03\0\0\0abc\x82" + b"\x08\0\0\0" + b"\x09\0\0\0" + primer
    plain += b"".join(t.to_bytes(4, "little") for t in TOKENS)
    primed = segment_key(PROFILE, b"abc", replace(spec, primer=primer), TOKENS)
    assert primed == hashlib.sha256(plain).digest()
    other = replace(spec, primer=primer_digest([0x202]))
    keys = {primed, segment_key(PROFILE, b"abc", other, TOKENS)}
    assert len(keys | {segment_key(PROFILE, b"abc", spec, TOKENS)}) == 3


def test_keys_need_all_tokens_of_the_segment() -> None:
    spec = PROFILE.first_spec(3)
    for tokens in ([1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, 1 << 32], [1, 2, 0.5]):
        with pytest.raises(ProfileError):
            segment_key(PROFILE, b"", spec, tokens)  # type: ignore[arg-type]


def test_a_prefix_hash_depends_on_its_tokens_only() -> None:
    whole = prefix_hashes(PROFILE, b"s", 16, TOKENS, range(101))
    assert len(set(whole)) == 101
    assert NOTHING not in whole
    for i in (0, 1, 15, 16, 17, 100):
        assert prefix_hashes(PROFILE, b"s", 16, TOKENS[:i], [i]) == [whole[i]]
    assert prefix_hashes(PROFILE, b"s", 32, TOKENS, [64]) != [whole[64]]
    assert prefix_hashes(PROFILE, b"", 16, TOKENS, [64]) != [whole[64]]


def test_positions_that_name_nothing() -> None:
    first, back, beyond = prefix_hashes(PROFILE, b"", 16, TOKENS, [50, 20, 101])
    assert first != NOTHING
    assert back == beyond == NOTHING
    assert prefix_hashes(PROFILE, b"", 16, TOKENS, [5, 5])[1] == NOTHING
    assert prefix_hashes(PROFILE, b"", 0, TOKENS, [5]) == [NOTHING]


def test_names_grow_with_the_tokens() -> None:
    namer = PrefixNames(PROFILE, b"s", 16)
    for some in ([3, 16], [17, 40], [41], [100]):
        told = namer.name(TOKENS[: some[-1]], some)
        assert told == prefix_hashes(PROFILE, b"s", 16, TOKENS, some)
    assert namer.name(TOKENS, [100, 20]) == [NOTHING, NOTHING]


def test_turns_end_in_front_of_their_last_tokens() -> None:
    assert turn_ends([7, 1, 2, 7, 3, 9, 7], {7, 9}) == (3, 5, 6)
    assert turn_ends([7, 1], ()) == ()


def test_answers_began_where_the_prompt_asks_in_the_same_words() -> None:
    """7 ends a turn, 3 4 asks for an answer."""
    chat = [1, 7, 3, 4, 50, 51, 7, 2, 9, 7, 3, 4, 52, 7, 3, 5, 7, 3, 4]
    assert answer_starts(chat, {7}) == (4, 12, 19)
    assert answer_starts(chat[:-1], {7}) == (3, 11, 15, 18)
    assert answer_starts(chat, ()) == ()
    assert answer_starts([1, 2, 3], {7}) == ()
    assert answer_starts([1, 2, 7], {7}) == (3,)
