"""Errors that carry a code of the protocol."""

from __future__ import annotations

from spliced_connector.codes import Code as Code


def code_name(code: int) -> str:
    """Returns the name of a code, or its number if it is unknown because a newer daemon sent it."""
    try:
        return Code(code).name.lower()
    except ValueError:
        return f"code {code}"


class SplicedError(Exception):
    """An error that the caller must handle. `code` is one of `Code`, or a newer number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code_name(code)}: {text}" if text else code_name(code))
        self.code = code
        self.text = text


class WireError(SplicedError):
    """Bytes that do not follow the wire format, or a message that does not fit into a frame."""

    def __init__(self, text: str, code: int = Code.INVALID) -> None:
        super().__init__(code, text)


class ProfileError(SplicedError):
    """An identity, segment or config that can never be valid. Lists every problem found."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.INVALID, text)
