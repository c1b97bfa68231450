"""Cuts of a question at other places than between its notes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

from questions import TINYHYBRID, Question

from spliced_connector.segments import Chunker, Lengths, breaks_of

EVEN = 64
LENGTHS = Lengths(least=16, mean=64, most=128)
"""Lengths of segments that `chunks` makes of notes. Notes have some 90 tokens; the default lengths
are for passages of some hundred tokens."""


def placed(question: Question, where: str) -> Question:
    """Returns the question with other cuts. The last cut stays, because the query follows it.

    notes      between the notes: also the result of `chunks` if blank lines separate the notes
    sentences  what `chunks` finds in this vocabulary, which has no lines: at ends of sentences
    even       every 64 tokens, amid a sentence or not
    moved      in the middle of every note
    """
    first, last = question.cuts[0], question.cuts[-1]
    if where == "notes":
        return question
    if where == "even":
        inner = list(range(EVEN, last - EVEN // 2, EVEN))
    elif where == "moved":
        inner = [(a + b) // 2 for a, b in pairwise(question.cuts[1:])]
    else:
        inner = _chunker().cuts(question.ids, first, last)
    return replace(question, cuts=(first, *inner, last))


@cache
def _chunker() -> Chunker:
    from transformers import AutoTokenizer

    return Chunker(LENGTHS, breaks_of(AutoTokenizer.from_pretrained(TINYHYBRID / "model")))
