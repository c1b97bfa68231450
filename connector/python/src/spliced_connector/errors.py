"""Outcomes of the protocol, and the errors that carry them."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The outcome of a request or of one row of a batch. A miss is an answer, not an error."""

    OK = 0
    MISS = 1
    INVALID = 2
    BUSY = 3
    FULL = 4
    GONE = 5
    CORRUPT = 6
    UNAVAILABLE = 7
    EXISTS = 8
    DENIED = 9
    STALE = 10
    UNSUPPORTED = 11
    CANCELED = 12
    LATE = 13
    QUOTA = 14


def code_name(code: int) -> str:
    """The name of a code, or its number when a newer daemon sent one that we do not know."""
    try:
        return Code(code).name.lower()
    except ValueError:
        return f"code {code}"


class SplicedError(Exception):
    """Something the caller has to handle. `code` is one of `Code`, or a newer number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code_name(code)}: {text}" if text else code_name(code))
        self.code = code
        self.text = text


class WireError(SplicedError):
    """Bytes that break the layout, or a message that fits no frame."""

    def __init__(self, text: str, code: int = Code.INVALID) -> None:
        super().__init__(code, text)


class ProfileError(SplicedError):
    """An identity, segment or config that can never be right. Lists every problem found."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.INVALID, text)
