"""Bodies that break the layout are refused, and a body has one meaning only."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import pytest

from spliced_connector import wire
from spliced_connector.errors import Code, WireError
from spliced_connector.wire import schema
from test_wire_frames import GOLDEN

SEED = 11
FRAMES = {g["name"]: bytes.fromhex(g["frame"]) for g in GOLDEN if g["name"] != "error reply"}


def body_frame(header: wire.Header, body: bytes) -> bytes:
    """A frame of any body under a right header."""
    head = wire.encode(wire.StatsRequest(), header)
    return head[:32] + len(body).to_bytes(4, "little") + head[36:40] + body


def split(name: str) -> tuple[wire.Header, bytes]:
    header, body = wire.parse_header(FRAMES[name])
    return header, bytes(body)


def check(header: wire.Header, body: bytes) -> bool:
    """Any bytes are refused as invalid, or are the one encoding of what they say."""
    frame = body_frame(header, body)
    try:
        _, message = wire.decode(frame)
    except WireError as err:
        if err.code != Code.INVALID:
            raise
        return False
    assert wire.encode(message, header) == frame
    return True


SECTION_BEGINS = {
    whole: len(FRAMES[without]) - wire.HEADER_BYTES
    for whole, without in (
        ("match request with prompt", "match request"),
        ("match reply with estimates", "match reply"),
        ("match request with known", "match request"),
        ("match reply with known", "match reply"),
        ("match reply with rows", "match reply"),
        ("load reply with rows", "load reply"),
        ("acquire reply with packed", "acquire reply"),
        ("save request with buffered", "save request"),
        ("advise request with what was measured", "advise request"),
        ("advise reply with a splice", "advise reply"),
        ("match request with primers", "match request"),
        ("match reply with primers", "match reply"),
        ("reserve request with primers", "reserve request"),
        ("plan request with primers", "plan request"),
        ("watch request with primers", "watch request"),
        ("watch reply with primers", "watch reply"),
        ("report request with losses", "report request"),
        ("advise request with a limit", "advise request"),
        ("advise reply with a loss", "advise reply"),
        ("served request with a loss", "served request"),
        ("advise request with a lookup", "advise request"),
        ("advise reply with a match", "advise reply"),
    )
}
"""Where a body may end too."""


@pytest.mark.parametrize("name", FRAMES)
def test_a_body_cut_or_lengthened_is_refused(name: str) -> None:
    header, body = split(name)
    for n in range(len(body)):
        if n == SECTION_BEGINS.get(name):
            assert check(header, body[:n])
            continue
        with pytest.raises(WireError):
            wire.decode(body_frame(header, body[:n]))
    for more in (1, 7, 8):
        with pytest.raises(WireError):
            wire.decode(body_frame(header, body + bytes(more)))


@pytest.mark.parametrize("name", FRAMES)
def test_changed_bytes_have_one_meaning(name: str) -> None:
    header, body = split(name)
    for i in range(len(body)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(body)
            changed[i] ^= flip
            check(header, bytes(changed))


def test_random_changes_have_one_meaning() -> None:
    rng = random.Random(SEED)
    refused = read = 0
    for _ in range(4000):
        header, body = split(rng.choice(list(FRAMES)))
        changed = bytearray(body)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(4):
                case 0:
                    changed[at:at] = rng.randbytes(8)
                case 1:
                    del changed[at : at + 8]
                case 2:
                    changed[at : at + 4] = rng.choice((0, 1, 2049, 1 << 31)).to_bytes(4, "little")
                case _:
                    changed[at : at + 1] = rng.randbytes(1)
        if check(header, bytes(changed)):
            read += 1
        else:
            refused += 1
    assert refused > 1000, f"seed {SEED}: {refused} refused"
    assert read > 500, f"seed {SEED}: {read} read"


@pytest.mark.parametrize("name", FRAMES)
def test_frames_read_where_they_lie(name: str) -> None:
    """A frame in the middle of a buffer at an odd place decodes to the same."""
    frame = FRAMES[name]
    header, want = wire.decode(frame)
    buffer = bytearray(b"\xff" * 3 + frame + b"\xff")
    _, got = wire.decode(memoryview(buffer)[3:-1])
    assert got == want
    assert wire.encode(got, header) == frame


# Offsets in MatchRequest: scalars 0-7, positions 8, prefixes 24, keys 96.
MATCH = wire.MatchRequest(positions=[1, 2], prefixes=[bytes(32)] * 2, keys=[bytes(32)])


@pytest.mark.parametrize(
    ("at", "put", "text"),
    [
        (8, b"\x01\x08\0\0", "match request: positions: count 2049, at most 2048"),
        (96, b"\x02", "match request: keys: 64 bytes at offset 104, 32 left"),
        (96, b"\xff\xff\xff\xff", "match request: keys: count 4294967295, at most 2048"),
        (8, b"\x01\0\0\0\0\0\0\0\1\0\0\0\0", "match request: prefixes: 2 rows, want 1"),
        (5, b"\x09", "match request: scalars: padding before offset 8 is not zero"),
        (12, b"\x01", "match request: positions: bytes after the count are 0x1"),
        (136, bytes(16), "match request: end: 16 bytes left"),
    ],
)
def test_what_is_malformed_is_named(at: int, put: bytes, text: str) -> None:
    header = wire.Header(wire.Op.MATCH, 1)
    body = bytearray(wire.encode(MATCH, header)[wire.HEADER_BYTES :])
    body[at : at + len(put)] = put
    with pytest.raises(WireError, match=re.escape(text)):
        wire.decode(body_frame(header, bytes(body)))


@pytest.mark.parametrize(
    ("name", "more", "text"),
    [
        ("match request", (3, 7, 8), "match request: end: 24 bytes left"),
        ("match request", (2 | 1 << 32, 7, 8), "match request: end: 24 bytes left"),
        ("match request", (2, 7), "match request: prompt: 16 bytes of scalars, 8 left"),
        ("match request", (2, 7 | 1 << 32, 8), "match request: prompt: scalars: padding before"),
        ("match request", (2, 7, 8, 2, 7, 8), "match request: end: 24 bytes left"),
        ("match reply", (2, 7, 8), "match reply: end: 24 bytes left"),
        ("match reply", (3, 0, 0, 0, 0), "match reply: estimates: micros: 0 rows, want 3"),
    ],
)
def test_sections_that_do_not_belong_are_refused(
    name: str, more: tuple[int, ...], text: str
) -> None:
    header, body = split(name)
    body += b"".join(n.to_bytes(8, "little") for n in more)
    with pytest.raises(WireError, match=re.escape(text)):
        wire.decode(body_frame(header, body))


def test_counts_must_add_up() -> None:
    header = wire.Header(wire.Op.COMMIT, 1)
    rows = wire.CommitRequest(
        reservations=[1], parts=[0], chunk_first=[0], chunk_count=[3], staging_off=[0], digest=[5]
    )
    with pytest.raises(WireError, match="chunk count: counts add up to 3, 1 elements"):
        wire.decode(wire.encode(rows, header))
    hello = wire.encode(
        wire.HelloRequest(tenant_names=["ab"], tenant_tokens=["t"]), wire.Header(wire.Op.HELLO, 1)
    )
    at = hello.index(b"\x02\0\0\0\0\0\0\0\x02\0\0\0")  # the length of the name
    with pytest.raises(WireError, match="tenant names: counts add up to 3, 2 elements"):
        wire.decode(hello[:at] + b"\x03" + hello[at + 1 :])


def test_texts_over_their_bounds_are_refused() -> None:
    for message, text in (
        (wire.HelloRequest(tenant_names=["x" * 257], tenant_tokens=[""]), "text 0 has 257 bytes"),
        (wire.HelloRequest(client="é" * 129), "client: count 258, at most 256"),
    ):
        with pytest.raises(WireError, match=text):
            wire.decode(wire.encode(message, wire.Header(wire.Op.HELLO, 1)))


def test_text_that_is_no_utf8_goes_through() -> None:
    header = wire.Header(wire.Op.HELLO, 1)
    frame = wire.encode(wire.HelloRequest(client="abc"), header).replace(b"abc", b"a\xffc")
    _, message = wire.decode(frame)
    assert wire.encode(message, header) == frame


def test_columns_are_views_of_the_frame() -> None:
    header = wire.Header(wire.Op.CANCEL, 1)
    frame = bytearray(wire.encode(wire.CancelRequest([1, 2]), header))
    _, message = wire.decode(frame)
    assert isinstance(message, wire.CancelRequest)
    frame[-8] = 9
    assert list(message.requests) == [1, 9]
    with pytest.raises(TypeError):
        message.requests[0] = 5  # type: ignore[index]


def test_scalars_come_before_columns() -> None:
    with pytest.raises(TypeError, match="count is a scalar after a column"):

        @schema.message("odd")
        @dataclass(frozen=True, slots=True)
        class Odd(schema.Message):
            rows: object = schema.u32s(4)
            count: int = schema.u32()
