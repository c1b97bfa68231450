"""The kinds of columns in a message body.

A column is a count, four zero bytes, the elements, and zero bytes up to a multiple of 8:

    +-------+---+--------------------------+-----+
    | count | 0 | count elements           | pad |
    +-------+---+--------------------------+-----+
     u32     u32  8-byte aligned             0..7

`write` appends the pieces of one column to a list; `read` returns the content at an offset of a
body and the offset of the next column. Both raise `WireError`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from spliced_connector.errors import WireError
from spliced_connector.wire.numbers import MAX_BODY

COUNT = struct.Struct("<Q")  # the count and the four zero bytes together
PAD = tuple(bytes(n) for n in range(8))


def require_little_endian(order: str) -> None:
    """Refuses big-endian machines: columns are used in place, so the machine must store the low
    byte first."""
    if order != "little":
        raise ImportError(
            f"spliced_connector.wire needs a little-endian machine, not a {order} one"
        )


require_little_endian(sys.byteorder)


class Column(Protocol):
    """The codec of one column, or of the two columns of a list of texts."""

    def write(self, out: list[bytes], value: object) -> None: ...

    def read(self, body: memoryview, at: int) -> tuple[object, int]: ...


class Numbers:
    """Numbers of one type. `read` returns a view of the frame."""

    __slots__ = ("code", "most", "size")

    def __init__(self, code: str, most: int) -> None:
        self.code, self.most, self.size = code, most, struct.calcsize(code)

    def write(self, out: list[bytes], value: object) -> None:
        if type(value) is memoryview and value.format == self.code:
            raw = value.tobytes()
        else:
            raw = _numbers(self.code, value)
        _put(out, len(raw) // self.size, raw)

    def read(self, body: memoryview, at: int) -> tuple[memoryview, int]:
        _, raw, end = _take(body, at, self.size, self.most)
        return raw.cast(self.code), end  # type: ignore[call-overload]


class Bytes:
    """One-byte numbers, represented as bytes."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    def write(self, out: list[bytes], value: object) -> None:
        raw = value if type(value) is bytes else _numbers("B", value)
        _put(out, len(raw), raw)

    def read(self, body: memoryview, at: int) -> tuple[bytes, int]:
        _, raw, end = _take(body, at, 1, self.most)
        return bytes(raw), end


class Hashes:
    """Hashes of 32 bytes, represented as a list of bytes."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    def write(self, out: list[bytes], value: object) -> None:
        hashes = _sequence(value)
        raw = b"".join(hashes)
        if hashes and set(map(len, hashes)) != {32}:
            raise WireError("a hash must have 32 bytes")
        _put(out, len(hashes), raw)

    def read(self, body: memoryview, at: int) -> tuple[list[bytes], int]:
        n, raw, end = _take(body, at, 32, self.most)
        return list(_hash_rows(n).unpack(raw)), end


class Text:
    """One text: a column of its bytes. Bytes that are not UTF-8 survive a round trip."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    def write(self, out: list[bytes], value: object) -> None:
        if not isinstance(value, str):
            raise WireError(f"{value!r} is not text")
        raw = value.encode("utf-8", "surrogateescape")
        _put(out, len(raw), raw)

    def read(self, body: memoryview, at: int) -> tuple[str, int]:
        _, raw, end = _take(body, at, 1, self.most)
        return str(raw, "utf-8", "surrogateescape"), end


class Blobs:
    """A list of byte strings: u32 lengths, then all bytes joined."""

    __slots__ = ("most", "rows")

    def __init__(self, rows: int, most: int) -> None:
        self.rows, self.most = rows, most

    def write(self, out: list[bytes], value: object) -> None:
        blobs = _sequence(value)
        lengths = array("I", map(len, blobs)).tobytes()
        raw = b"".join(blobs)
        _put(out, len(blobs), lengths)
        _put(out, len(raw), raw)

    def read(self, body: memoryview, at: int) -> tuple[list[bytes], int]:
        _, raw, at = _take(body, at, 4, self.rows)
        lengths = raw.cast("I")
        n, joined, end = _take(body, at, 1, MAX_BODY)
        if sum(lengths) != n:
            raise WireError(f"counts add up to {sum(lengths)}, {n} elements")
        blobs, begin = [], 0
        for i, length in enumerate(lengths):
            if length > self.most:
                raise WireError(f"text {i} has {length} bytes, at most {self.most}")
            blobs.append(bytes(joined[begin : begin + length]))
            begin += length
        return blobs, end


class Texts(Blobs):
    """A list of texts."""

    __slots__ = ()

    def write(self, out: list[bytes], value: object) -> None:
        texts = value if isinstance(value, list | tuple) else ()
        super().write(out, [text.encode("utf-8", "surrogateescape") for text in texts])

    def read(self, body: memoryview, at: int) -> tuple[list[str], int]:  # type: ignore[override]
        blobs, end = super().read(body, at)
        return [blob.decode("utf-8", "surrogateescape") for blob in blobs], end


def check_zero(body: memoryview, begin: int, end: int) -> None:
    """Checks that padding of less than 8 bytes is zero. Raises `WireError`."""
    if body[begin:end].tobytes() != PAD[end - begin]:
        raise WireError(f"padding before offset {end} is not zero")


def _numbers(code: str, value: object) -> bytes:
    # An array would take byte strings as its raw memory, not as a sequence of numbers.
    rows = list(value) if isinstance(value, bytes | bytearray) else value
    try:
        return array(code, rows).tobytes()  # type: ignore[call-overload,no-any-return]
    except (OverflowError, TypeError) as err:
        raise WireError(str(err)) from err


def _put(out: list[bytes], count: int, raw: bytes) -> None:
    out.append(COUNT.pack(count))
    out.append(raw)
    if pad := -len(raw) & 7:
        out.append(PAD[pad])


def _take(body: memoryview, at: int, size: int, most: int) -> tuple[int, memoryview, int]:
    """Returns the count and the bytes of the column at `at`, and the offset of the next one."""
    left = len(body) - at - 8
    if left < 0:
        raise WireError(f"8 bytes at offset {at}, {left + 8} left")
    (n,) = COUNT.unpack_from(body, at)
    if n >> 32:
        raise WireError(f"bytes after the count are {n >> 32:#x}")
    if n > most:
        raise WireError(f"count {n}, at most {most}")
    at += 8
    stop = at + n * size
    end = stop + (-stop & 7)
    if n * size > left:
        raise WireError(f"{n * size} bytes at offset {at}, {left} left")
    if end > len(body):
        raise WireError(f"{end - stop} bytes of padding at offset {stop}, {len(body) - stop} left")
    if end != stop:
        check_zero(body, stop, end)
    return n, body[at:stop], end


@lru_cache(maxsize=256)
def _hash_rows(n: int) -> struct.Struct:
    return struct.Struct("32s" * n)


def _sequence(value: object) -> Sequence[bytes]:
    if isinstance(value, list | tuple):
        return value
    raise WireError(f"{type(value).__name__} is not a list of byte strings")
