"""Labels: numbers that a prompt gives its passages, as in `[3]`, `Document 3:`, `<source id="3">`.

The same passage may have another number in another prompt, so its segment begins after the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spliced_connector.segments.tokenizer import Tokenizer

_LONGEST = 8
"""Maximum tokens of a label."""
_CLOSING = frozenset("])}>:.\"'")
_BESIDE = _CLOSING | frozenset("([{<-#|*")


@dataclass(frozen=True, slots=True)
class Labels:
    """The tokens that labels consist of. digits: ids of tokens that are digits only. closing: ids
    of tokens that end a label. They are punctuation only and contain one of `])}>:."'`."""

    digits: frozenset[int] = frozenset()
    closing: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Labels:
        """Returns the labels of a vocabulary. Decodes every token once."""
        digits, closing = set(), set()
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token]).strip()
            if text.isascii() and text.isdigit():
                digits.add(token)
            elif _CLOSING & set(text) and set(text) <= _BESIDE:
                closing.add(token)
        return cls(frozenset(digits), frozenset(closing))

    def end(self, ids: Sequence[int], start: int) -> int:
        """Returns the position after the label that begins at token `start`; `start` if no label
        begins there."""
        numbered = False
        for i, token in enumerate(ids[start : start + _LONGEST], start):
            if token in self.digits:
                numbered = True
            elif numbered:
                return i + 1 if token in self.closing else start
        return start
