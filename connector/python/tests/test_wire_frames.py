"""Frames, against the golden ones that the Go codec wrote."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from spliced_connector import wire
from spliced_connector.errors import Code, WireError
from spliced_connector.wire import columns, numbers

REPOSITORY = Path(__file__).parents[3]
GOLDEN = json.loads((REPOSITORY / "connector/wire/testdata/golden/frames.json").read_text())
SECTIONS = {
    "prompt", "estimates", "known", "rows", "packed", "buffered", "measured", "splice", "primers",
    "losses", "limit", "loss", "match",
}  # fmt: skip
HEADER_FIELDS = ("code", "deadline", "epoch", "kind", "op", "request", "tenant", "version")


def frame_of(name: str) -> bytes:
    return next(bytes.fromhex(g["frame"]) for g in GOLDEN if g["name"] == name)


def snake(name: str) -> str:
    """TTLMs is ttl_ms, KBase k_base, From from_."""
    name = name.replace("TTL", "Ttl").replace("UUID", "Uuid").replace("ID", "Id")
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return "from_" if words == "from" else words


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The golden fields, which nest as Go's do, as the flat ones of docs/protocol.md.

    A section nests in Python too.
    """
    out: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and "Present" in value:
            out[snake(name)] = {snake(f): v for f, v in value.items() if f != "Present"}
        elif isinstance(value, dict):
            out |= flat(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            prefix = {"Tenants": "tenant_", "Memory": "memory_"}[name]
            for key in value[0]:
                column = prefix + snake(key)
                column += "s" if prefix == "tenant_" else ""
                out[column] = [row[key] for row in value]
        else:
            out[snake(name)] = value
    return out


def plain(value: object) -> object:
    """A decoded value as the golden file writes it: bytes as hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, memoryview | list):
        return [plain(v) for v in value]
    if isinstance(value, wire.Message):
        return {f: plain(getattr(value, f)) for f in cast(Any, value).__dataclass_fields__}
    return value


@pytest.mark.parametrize("golden", GOLDEN, ids=[g["name"] for g in GOLDEN])
def test_golden_frames_both_ways(golden: dict[str, Any]) -> None:
    frame = bytes.fromhex(golden["frame"])
    header, message = wire.decode(frame)
    for field in HEADER_FIELDS:
        assert getattr(header, field) == golden["header"][field.title()], field
    want = flat(golden["fields"])
    names = set(cast(Any, message).__dataclass_fields__)
    names -= {name for name in SECTIONS & names if getattr(message, name) is None}
    assert set(want) == names - ({"code"} if isinstance(message, wire.Refusal) else set())
    for name, value in want.items():
        assert plain(getattr(message, name)) == value, name
    assert wire.encode(message, header) == frame


def test_absent_sections_are_the_frames_of_an_earlier_release() -> None:
    """One frame with each section and one without, which differ in the section alone."""
    sections = (
        ("match request", "prompt"),
        ("match reply", "estimates"),
        ("match request", "known"),
        ("match reply", "known"),
        ("match reply", "rows"),
        ("load reply", "rows"),
        ("match request", "primers"),
        ("match reply", "primers"),
        ("reserve request", "primers"),
        ("plan request", "primers"),
        ("watch request", "primers"),
        ("watch reply", "primers"),
        ("report request", "losses"),
    )
    for name, section in sections:
        _, whole = wire.decode(frame_of(f"{name} with {section}"))
        header, old = wire.decode(frame_of(name))
        assert getattr(old, section) is None
        changes = {section: None} | ({"tier": old.tier} if section == "estimates" else {})  # type: ignore[union-attr]
        assert wire.encode(replace(cast(Any, whole), **changes), header) == frame_of(name)


def test_every_operation_has_golden_frames() -> None:
    names = {g["name"] for g in GOLDEN}
    for op in wire.Op:
        kinds = {f"{wire.op_name(op)} request", f"{wire.op_name(op)} reply"}
        assert kinds <= names
    assert set(wire.MESSAGES) == set(wire.Op)


def test_numbers_are_those_of_the_protocol_page() -> None:
    page = (REPOSITORY / "docs/protocol.md").read_text()
    for op in wire.Op:
        assert f"| {op.value} | {wire.op_name(op)} |" in page
    for code in Code:
        assert f"| {code.value} | {code.name.lower()} |" in page
    bounds = dict(re.findall(r"\| Max(\w+) \| (\d+)", page))
    assert len(bounds) > 15
    for name, value in bounds.items():
        ours = "MAX_" + snake(name).upper()
        assert getattr(numbers, ours) == int(value), ours
    features = re.findall(r"^\| (\d+) \| ([a-z0-9-]+) \| ", page, re.M)
    for feature in wire.Feature:
        name = feature.name
        assert name is not None
        bit = feature.value.bit_length() - 1
        assert (str(bit), name.lower().replace("_", "-")) in features


def changed(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes([value]) + frame[at + 1 :]


def test_headers_that_are_refused() -> None:
    good = wire.encode(wire.MatchRequest(), wire.Header(wire.Op.MATCH, 77))
    reply = wire.encode(
        wire.MatchReply(), wire.Header(wire.Op.MATCH, 77, kind=wire.FrameKind.REPLY)
    )
    for frame, text, code in (
        (b"", "header: 0 bytes, want 40", Code.INVALID),
        (good[:39], "header: 39 bytes, want 40", Code.INVALID),
        (changed(good, 0, ord("X")), "header: magic 0x434c5058", Code.INVALID),
        (changed(good, 4, 9), "header: version 9, want 1", Code.UNSUPPORTED),
        (changed(good, 5, 2), "header: kind 2", Code.INVALID),
        (changed(reply, 30, 1), "header: bytes after code 0x10000 are not zero", Code.INVALID),
        (changed(good, 36, 1), "header: reserved 0x1", Code.INVALID),
        (changed(good, 32, 1), "header: length 1, body 32 bytes", Code.INVALID),
        (good[:48], "header: length 32, body 8 bytes", Code.INVALID),
        (good + bytes(numbers.MAX_FRAME), "header: frame of 131144 bytes", Code.INVALID),
        (changed(good, 6, 99), "header: op 99", Code.UNSUPPORTED),
        (changed(good, 6, 0), "header: op 0", Code.UNSUPPORTED),
    ):
        with pytest.raises(WireError, match=re.escape(text)) as caught:
            wire.decode(frame)
        assert caught.value.code == code


def test_refusals_carry_their_text() -> None:
    header = wire.Header(wire.Op.MATCH, 5, kind=wire.FrameKind.REPLY)
    long = wire.Refusal(Code.INVALID, "a" * (numbers.MAX_ERROR_TEXT - 1) + "é")
    got, refusal = wire.decode(wire.encode(long, header))
    assert got.code == Code.INVALID
    assert refusal == wire.Refusal(Code.INVALID, long.text[:-1])
    frame = wire.encode(wire.Refusal(999, "newer"), header)
    _, refusal = wire.decode(frame[:-1] + b"\xff")
    assert isinstance(refusal, wire.Refusal)
    assert (refusal.code, refusal.text) == (999, "newe\ufffd")
    assert str(refusal.error()) == "code 999: newe\ufffd"
    with pytest.raises(WireError, match="a refusal is a reply with a code"):
        wire.encode(wire.Refusal(Code.OK, ""), header)
    with pytest.raises(WireError, match="a refusal is a reply with a code"):
        wire.encode(long, wire.Header(wire.Op.MATCH, 5))


def test_what_fits_no_frame_is_refused() -> None:
    keys = [bytes(32)] * 2048
    with pytest.raises(WireError, match="match: 131144 bytes, at most 131072"):
        wire.encode(wire.MatchRequest(prefixes=keys, keys=keys), wire.Header(wire.Op.MATCH, 1))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (wire.MatchRequest(profile=-1), "match request: "),
        (wire.MatchRequest(accept=256), "match request: "),
        (wire.MatchRequest(positions=[1 << 32]), "match request: positions: "),
        (wire.MatchRequest(positions=[0.5]), "match request: positions: "),  # type: ignore[list-item]
        (wire.MatchRequest(keys=[bytes(31), bytes(33)]), "match request: keys: a hash must have"),
        (wire.MatchRequest(keys=b"x" * 32), "match request: keys: bytes is not a list"),  # type: ignore[arg-type]
        (wire.ReserveRequest(roles=5), "reserve request: roles: "),  # type: ignore[arg-type]
        (wire.HelloRequest(client=b"x"), "hello request: client: "),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(message: wire.Message, text: str) -> None:
    with pytest.raises(WireError, match=re.escape(text)):
        wire.encode(message, wire.Header(wire.Op.MATCH, 1))


def test_columns_take_any_sequence_of_numbers() -> None:
    header = wire.Header(wire.Op.MATCH, 1)
    want = wire.encode(wire.MatchRequest(positions=[1, 2, 3], prefixes=[bytes(32)] * 3), header)
    _, decoded = wire.decode(want)
    assert isinstance(decoded, wire.MatchRequest)
    for positions in ((1, 2, 3), range(1, 4), b"\x01\x02\x03", decoded.positions):
        m = wire.MatchRequest(positions=positions, prefixes=[bytes(32)] * 3)
        assert wire.encode(m, header) == want


def test_big_endian_machines_are_refused() -> None:
    with pytest.raises(ImportError, match="little-endian"):
        columns.require_little_endian("big")
