"""Messages as dataclasses whose fields define their encoding.

Fields are declared in the order of docs/protocol.md: scalars first, each aligned to its size, then
columns (arrays with a count), then optional sections. From these fields `message` builds the
encoder and decoder of a body. A body has only one valid encoding, so decoding it and encoding it
again gives the same bytes. The messages themselves are generated, see messages.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from spliced_connector.errors import WireError
from spliced_connector.wire import columns
from spliced_connector.wire.columns import Column, check_zero

_KEY = "wire"


@dataclass(frozen=True, slots=True)
class _Scalar:
    code: str
    size: int


@dataclass(frozen=True, slots=True)
class _Column:
    codec: Column
    rows: str  # the column that must have as many rows; empty = any number
    divides: str  # the column whose length is the sum of these counts; empty = none
    optional: bool  # the column may also be empty


@dataclass(frozen=True, slots=True)
class _Section:
    """An optional part after the columns, which begins with the bit of its feature."""

    message: type[Message]
    feature: int


def _scalar(code: str, size: int, zero: object) -> Any:
    return field(default=zero, metadata={_KEY: _Scalar(code, size)})


def u8() -> int:
    return cast(int, _scalar("B", 1, 0))


def u16() -> int:
    return cast(int, _scalar("H", 2, 0))


def u32() -> int:
    return cast(int, _scalar("I", 4, 0))


def i32() -> int:
    return cast(int, _scalar("i", 4, 0))


def u64() -> int:
    return cast(int, _scalar("Q", 8, 0))


def f64() -> float:
    return cast(float, _scalar("d", 8, 0.0))


def hash32() -> bytes:
    return cast(bytes, _scalar("32s", 8, bytes(32)))


def _column(
    codec: Column, zero: object, rows: str, divides: str = "", optional: bool = False
) -> Any:
    meta = {_KEY: _Column(codec, rows, divides, optional)}
    return field(default=zero, metadata=meta)


def u16s(most: int, rows: str = "") -> Sequence[int]:
    return cast(Sequence[int], _column(columns.Numbers("H", most), (), rows))


def u32s(most: int, rows: str = "", divides: str = "", optional: bool = False) -> Sequence[int]:
    return cast(Sequence[int], _column(columns.Numbers("I", most), (), rows, divides, optional))


def u64s(most: int, rows: str = "") -> Sequence[int]:
    return cast(Sequence[int], _column(columns.Numbers("Q", most), (), rows))


def f64s(most: int, rows: str = "") -> Sequence[float]:
    return cast(Sequence[float], _column(columns.Numbers("d", most), (), rows))


def u8s(most: int, rows: str = "") -> bytes:
    return cast(bytes, _column(columns.Bytes(most), b"", rows))


def hashes(most: int, rows: str = "") -> Sequence[bytes]:
    return cast(Sequence[bytes], _column(columns.Hashes(most), (), rows))


def text(most: int) -> str:
    return cast(str, _column(columns.Text(most), "", ""))


def texts(count: int, most: int, rows: str = "") -> Sequence[str]:
    return cast(Sequence[str], _column(columns.Texts(count, most), (), rows))


def blobs(count: int, most: int, rows: str = "") -> Sequence[bytes]:
    return cast(Sequence[bytes], _column(columns.Blobs(count, most), (), rows))


S = TypeVar("S", bound="Message")


def section(message: type[S], feature: int) -> S | None:
    """Declares an optional part of a message. It is sent only if client and daemon have agreed on
    its feature."""
    return cast(S | None, field(default=None, metadata={_KEY: _Section(message, feature)}))


class Message:
    """The body of a frame. Decoded columns are views of the frame, so its bytes must not change."""

    __slots__ = ()
    schema: ClassVar[Schema]

    def check(self) -> None:
        """Raises `WireError` if the fields of a decoded message are inconsistent."""

    def same(self, words: str, got: int, want: int) -> None:
        """Raises `WireError` unless a column has the wanted number of rows."""
        if got != want:
            self.fail(words, f"{got} rows, want {want}")

    def fail(self, words: str, what: str) -> NoReturn:
        """Raises `WireError` about a field."""
        raise WireError(f"{self.schema.name}: {words}: {what}")


M = TypeVar("M", bound=Message)


def message(name: str) -> Callable[[type[M]], type[M]]:
    """Gives a dataclass of wire fields its schema; `name` is used in errors."""

    def build(cls: type[M]) -> type[M]:
        cls.schema = Schema(name, cls)
        return cls

    return build


class Schema:
    """The encoding of one message. It does not change after construction."""

    def __init__(self, name: str, cls: type[Message]) -> None:
        self.name = name
        self._cls = cls
        self._scalars: list[str] = []
        self._columns: list[tuple[str, _Column]] = []
        sections: list[tuple[str, _Section]] = []
        layout, size, pads = "<", 0, []
        for f in fields(cls):  # type: ignore[arg-type]
            wire = f.metadata[_KEY]
            if isinstance(wire, _Section):
                sections.append((f.name, wire))
                continue
            if isinstance(wire, _Column):
                self._columns.append((f.name, wire))
                continue
            if self._columns:
                raise TypeError(f"{name}: {f.name} is a scalar after a column")
            align = min(wire.size, 8)
            gap = -size & (align - 1)
            if gap:
                pads.append((size, size + gap))
            layout += f"{gap}x{wire.code}"
            size = struct.calcsize(layout)
            self._scalars.append(f.name)
        if gap := -size & 7:
            pads.append((size, size + gap))
        self._struct = struct.Struct(f"{layout}{gap}x")
        self._pads = tuple(pads)
        self._get = _getter(self._scalars)
        self._codecs = tuple((f, c.codec.write, c.codec.read) for f, c in self._columns)
        self._index = {f: i for i, (f, _) in enumerate(self._columns, len(self._scalars))}
        self._checks = self._row_checks()
        self._sections = tuple(
            (f, columns.COUNT.pack(s.feature.bit_length() - 1), s.message.schema)
            for f, s in sections
        )
        self._absent = [None] * len(sections)
        self._checked = cls.check is not Message.check

    def _row_checks(self) -> tuple[tuple[int, int, bool, bool], ...]:
        """Returns the checks of column lengths. Each check has the index of a first column, the
        index of a second column, whether the values of the first add up to the length of the second
        (else both have the same length), and whether the first may be empty.

        The indices count all values of a message, scalars first.
        """
        checks = []
        for i, (_, c) in enumerate(self._columns, len(self._scalars)):
            if c.rows in self._index:
                checks.append((i, self._index[c.rows], False, c.optional))
            if c.divides:
                checks.append((i, self._index[c.divides], True, False))
        return tuple(checks)

    def append(self, out: list[bytes], m: Message) -> None:
        """Appends the pieces of the body. Raises `WireError` for a value that does not fit."""
        try:
            out.append(self._struct.pack(*self._get(m)))
        except struct.error as err:
            raise WireError(f"{self.name}: {err}") from err
        for name, write, _ in self._codecs:
            try:
                write(out, getattr(m, name))
            except WireError as err:
                raise WireError(f"{self.name}: {_words(name)}: {err.text}") from err
        for name, head, schema in self._sections:
            part = getattr(m, name)
            if part is not None:
                out.append(head)
                schema.append(out, part)

    def decode(self, body: memoryview) -> Message:
        """Decodes a whole body. Raises `WireError`, naming field and value."""
        values, size = self._read(body, 0)
        if size == len(body):
            values += self._absent
        else:
            size = self._read_sections(body, size, values)
            if size != len(body):
                raise WireError(f"{self.name}: end: {len(body) - size} bytes left")
        self._check_rows(values)
        m = self._cls(*values)
        if self._checked:
            m.check()
        return m

    def _read_sections(self, body: memoryview, size: int, values: list[Any]) -> int:
        """Decodes the sections that begin at offset `size` and appends them to `values`, None for
        absent ones. Returns the offset after them."""
        for _, head, schema in self._sections:
            if body[size : size + 8].tobytes() != head:
                values.append(None)
                continue
            inner, size = schema._read(body, size + 8)
            schema._check_rows(inner)
            self._check_outer(schema, inner, values)
            part = schema._cls(*inner)
            if schema._checked:
                part.check()
            values.append(part)
        return size

    def _read(self, body: memoryview, at: int) -> tuple[list[Any], int]:
        """Returns the values of the scalars and columns that begin at offset `at`, and the offset
        after them."""
        size = at + self._struct.size
        if len(body) < size:
            left = len(body) - at
            raise WireError(f"{self.name}: {size - at} bytes of scalars, {left} left")
        values: list[Any] = list(self._struct.unpack_from(body, at))
        name = "scalars"
        try:
            for begin, end in self._pads:
                check_zero(body, at + begin, at + end)
            for name, _, read in self._codecs:  # noqa: B007 (the handler names it)
                value, size = read(body, size)
                values.append(value)
        except WireError as err:
            raise WireError(f"{self.name}: {_words(name)}: {err.text}") from err
        return values, size

    def _check_rows(self, values: list[Any]) -> None:
        for i, other, divides, optional in self._checks:
            got, want = values[i], len(values[other])
            got = sum(got) if divides else len(got)
            if got == want or (optional and got == 0):
                continue
            what = "counts add up to {}, {} elements" if divides else "{} rows, want {}"
            field = _words(self._columns[i - len(self._scalars)][0])
            raise WireError(f"{self.name}: {field}: {what.format(got, want)}")

    def _check_outer(self, section: Schema, inner: list[Any], values: list[Any]) -> None:
        """Checks that a section's columns have as many rows as the columns of the enclosing message
        that they refer to."""
        for i, (name, c) in enumerate(section._columns, len(section._scalars)):
            if c.rows in self._index and c.rows not in section._index:
                got, want = len(inner[i]), len(values[self._index[c.rows]])
                if got != want:
                    raise WireError(f"{section.name}: {_words(name)}: {got} rows, want {want}")


def _getter(names: list[str]) -> Callable[[Message], tuple[Any, ...]]:
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda m: (get(m),)


def _words(name: str) -> str:
    return name.replace("_", " ").strip()
