"""Frames: a header of 40 bytes, then the body.

     0      4   5   6    8         16        24       28       32       36
    +------+---+---+----+---------+---------+--------+--------+--------+--------+
    | SPLC | v | k | op | request |  epoch  | tenant | c or d | length |   0    |
    +------+---+---+----+---------+---------+--------+--------+--------+--------+

v is the version and k the kind of frame. "c or d" is the code and two zero bytes in replies, and
the deadline in requests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire.messages import MESSAGES
from spliced_connector.wire.numbers import (
    HEADER_BYTES,
    MAX_ERROR_TEXT,
    MAX_FRAME,
    VERSION,
    FrameKind,
    Op,
)
from spliced_connector.wire.schema import Message

MAGIC = int.from_bytes(b"SPLC", "little")
_HEADER = struct.Struct("<IBBHQQIIII")
_REPLY = int(FrameKind.REPLY)  # kept as a number, because looking up a member of an enum takes long


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a frame. Its fields are plain numbers, because a newer daemon may send unknown
    ones."""

    op: int
    request: int  # id chosen by the client, not 0, used only once per connection
    epoch: int = 0  # boot epoch of the daemon; 0 in hello
    tenant: int = 0
    deadline: int = 0  # requests: microseconds from arrival; 0 = the daemon's default
    code: int = 0  # replies
    kind: int = FrameKind.REQUEST
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply whose code is not OK: no message, but a text for people."""

    code: int
    text: str

    def error(self) -> SplicedError:
        return SplicedError(self.code, self.text)


def encode(message: Message | Refusal, header: Header) -> bytes:
    """Encodes one frame. Raises `WireError` for values that do not fit their fields or a frame."""
    pieces: list[bytes] = []
    if isinstance(message, Refusal):
        if message.code == Code.OK or header.kind != _REPLY:
            raise WireError("a refusal is a reply with a code")
        code = message.code
        pieces.append(_cut(message.text))
    else:
        code = header.code
        message.schema.append(pieces, message)
    body = b"".join(pieces)
    if len(body) > MAX_FRAME - HEADER_BYTES:
        name = op_name(header.op)
        raise WireError(f"{name}: {len(body) + HEADER_BYTES} bytes, at most {MAX_FRAME}")
    outcome = code if header.kind == _REPLY else header.deadline
    try:
        head = _HEADER.pack(
            MAGIC, header.version, header.kind, header.op, header.request, header.epoch,
            header.tenant, outcome, len(body), 0,
        )  # fmt: skip
    except struct.error as err:
        raise WireError(f"header: {err}") from err
    return head + body


def decode(frame: bytes | bytearray | memoryview) -> tuple[Header, Message | Refusal]:
    """Decodes one frame. Columns of the message are views of the frame.

    Raises `WireError`, with code `UNSUPPORTED` for an unknown version or operation.
    """
    header, body = parse_header(frame)
    if header.code:
        return header, Refusal(header.code, str(body[:MAX_ERROR_TEXT], "utf-8", "replace"))
    pair = MESSAGES.get(header.op)
    if pair is None:
        raise WireError(f"header: op {header.op}", Code.UNSUPPORTED)
    return header, pair[header.kind].schema.decode(body)


def parse_header(frame: bytes | bytearray | memoryview) -> tuple[Header, memoryview]:
    """Splits a frame into header and body. Raises `WireError`."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"header: {len(frame)} bytes, want {HEADER_BYTES}")
    magic, version, kind, op, request, epoch, tenant, outcome, length, zero = _HEADER.unpack_from(
        frame
    )
    if magic != MAGIC:
        raise WireError(f"header: magic {magic:#010x}")
    if version != VERSION:
        raise WireError(f"header: version {version}, want {VERSION}", Code.UNSUPPORTED)
    if kind > _REPLY:
        raise WireError(f"header: kind {kind}")
    code, deadline = (outcome, 0) if kind == _REPLY else (0, outcome)
    if code >> 16:
        raise WireError(f"header: bytes after code {code:#x} are not zero")
    if zero:
        raise WireError(f"header: reserved {zero:#x}")
    if len(frame) > MAX_FRAME:
        raise WireError(f"header: frame of {len(frame)} bytes, at most {MAX_FRAME}")
    if length != len(frame) - HEADER_BYTES:
        raise WireError(f"header: length {length}, body {len(frame) - HEADER_BYTES} bytes")
    header = Header(op, request, epoch, tenant, deadline, code, kind, version)
    return header, memoryview(frame)[HEADER_BYTES:].toreadonly()


def op_name(op: int) -> str:
    """Returns the name of an operation, or its number."""
    try:
        return Op(op).name.lower().replace("_", "-")
    except ValueError:
        return f"op {op}"


def _cut(text: str) -> bytes:
    """Encodes a text in at most MAX_ERROR_TEXT bytes, cut between characters."""
    raw = text.encode("utf-8", "replace")
    return raw[:MAX_ERROR_TEXT].decode("utf-8", "ignore").encode()
