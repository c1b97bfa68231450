"""Tokens that end a sentence, line or paragraph. Cuts there cost the least accuracy."""

from __future__ import annotations

from enum import IntEnum

from spliced_connector.segments.tokenizer import Tokenizer


class Break(IntEnum):
    """What a token ends. Cuts after tokens with a greater number are better."""

    NOTHING = 0
    SENTENCE = 1
    LINE = 2
    PARAGRAPH = 3


_STOPS = (".", "!", "?", "。", "！", "？")


def breaks_of(tokenizer: Tokenizer) -> dict[int, Break]:
    """Returns the tokens of a vocabulary that have a break after them. Decodes every token once."""
    found: dict[int, Break] = {}
    for token in range(len(tokenizer)):
        kind = _break_after(tokenizer.decode([token]))
        if kind is not Break.NOTHING:
            found[token] = kind
    return found


def _break_after(text: str) -> Break:
    text = text.rstrip(" \t")
    if text.endswith("\n"):
        return Break.PARAGRAPH if text.replace("\r", "").endswith("\n\n") else Break.LINE
    return Break.SENTENCE if text.endswith(_STOPS) else Break.NOTHING
