"""Outcomes of the protocol, and the errors that carry them."""

from __future__ import annotations

from spliced_connector.codes import Code as Code


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
