"""Where the tokens of a request with shared pages are. This module does not need torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spliced_connector.serving.splices import Splice

Span = tuple[int, int, int]
"""(block, begin, end): rows [begin, end) of a block."""

LEAST_TOKENS = 32
"""Minimum tokens of a shared part. Shorter parts are private, because each run costs a matrix
product per layer (a guess)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first, first + length) of a segment's interior, which are placed together."""

    key: bytes
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part at tokens [start, start + part.length) of a request.

    turn: the distance in tokens from the stored positions of the part's keys to their positions in
    the request. segment: the index of the segment's piece.
    """

    part: Part
    start: int
    turn: int
    segment: int

    @property
    def end(self) -> int:
        return self.start + self.part.length


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a request and its place: rows [offset, offset + length) of a block.

    generation: shows whether the block is still the same bin.
    """

    wanted: Wanted
    block: int
    offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The runs of a request, ascending. All other tokens are private; the n-th private token is in
    row n of the request's own blocks."""

    runs: tuple[Run, ...]

    @property
    def shared(self) -> int:
        """Returns the number of tokens in bins."""
        return shared_tokens(tuple(run.wanted for run in self.runs))

    @property
    def end(self) -> int:
        """Returns the position from which on all tokens are private."""
        return self.runs[-1].wanted.end

    def spans(self, block_tokens: int, kernel_tokens: int) -> Iterator[tuple[int, Span]]:
        """Yields the spans of all runs, each with the number of its run. The spans lie in blocks of
        the engine's kernels, which may be smaller than the engine's blocks."""
        split = block_tokens // kernel_tokens
        for number, run in enumerate(self.runs):
            for block, a, b in spans_of(
                run.offset, run.offset + run.wanted.part.length, kernel_tokens
            ):
                yield number, (run.block * split + block, a, b)

    def private(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields the private tokens within [begin, end) as (a, b, row): tokens [a, b), and the row
        of token a."""
        skipped, at = 0, begin
        for run in self.runs:
            wanted = run.wanted
            if wanted.start > at and at < end:
                yield at, min(wanted.start, end), at - skipped
            if wanted.end > at:
                at = wanted.end
            skipped += wanted.part.length
        if at < end:
            yield at, end, at - skipped


def spans_of(begin: int, end: int, size: int) -> Iterator[Span]:
    """Yields the spans of rows [begin, end), for blocks of `size` rows that are numbered in
    order."""
    for block in range(begin // size, -(-end // size)):
        yield block, max(begin - block * size, 0), min(end - block * size, size)


def shared_tokens(wanted: tuple[Wanted, ...]) -> int:
    """Returns the number of tokens that are placed in bins."""
    return sum(one.part.length for one in wanted)


def parts_of(
    key: bytes, start: int, length: int, turn: int, segment: int, most: int
) -> Iterator[Wanted]:
    """Yields the parts of an interior at tokens [start, start + length). Each fits into a bin of
    `most` rows.

    A part that is too short to be shared is left out.
    """
    for first in range(0, length, most):
        part = Part(key, first, min(most, length - first))
        if part.length >= LEAST_TOKENS:
            yield Wanted(part, start + first, turn, segment)


def shareable(splice: Splice, most: int) -> tuple[Wanted, ...]:
    """Returns the interiors that may be in bins, in parts of at most `most` tokens."""
    wanted: list[Wanted] = []
    for span in splice.spans:
        piece = splice.prompt.pieces[span.segment] if span.segment >= 0 else None
        if piece is not None and piece.key is not None:
            place = span.start, span.length, piece.start, piece.index
            wanted += parts_of(piece.key, *place, most)
    return tuple(wanted)
