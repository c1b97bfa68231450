"""Positions of the tokens of a request with shared pages. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spliced_connector.serving.splices import Splice

Span = tuple[int, int, int]
"""A block, and rows [begin, end) of it."""

LEAST_TOKENS = 32
"""Minimum length of a shared interior; shorter ones are private: each run costs a product per
layer (a guess)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first, first + length) of a segment's interior, which are placed together."""

    key: bytes
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part at tokens [start, start + part.length) of a request.

    turn: the distance between the stored positions of the part's keys and their positions here.
    segment: the piece's index.
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
    """A part of a request, and its place: rows [offset, offset + length) of a block.

    The block's generation shows whether it is still the same bin.
    """

    wanted: Wanted
    block: int
    offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The runs of a request, ascending. All other tokens are private, the n-th of them in row n
    of the request's blocks."""

    runs: tuple[Run, ...]

    @property
    def shared(self) -> int:
        """Returns the number of tokens in bins."""
        return shared_tokens(tuple(run.wanted for run in self.runs))

    @property
    def end(self) -> int:
        """Returns the token from which on all are private."""
        return self.runs[-1].wanted.end

    def spans(self, block_tokens: int, kernel_tokens: int) -> Iterator[tuple[int, Span]]:
        """Yields the runs by number, in blocks of the engine's kernels, which may be smaller than
        its own."""
        split = block_tokens // kernel_tokens
        for number, run in enumerate(self.runs):
            for block, a, b in spans_of(
                run.offset, run.offset + run.wanted.part.length, kernel_tokens
            ):
                yield number, (run.block * split + block, a, b)

    def private(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields the private tokens [a, b) within [begin, end), each with the row of a."""
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
    """Yields rows [begin, end) of a table of blocks of `size` rows."""
    for block in range(begin // size, -(-end // size)):
        yield block, max(begin - block * size, 0), min(end - block * size, size)


def shared_tokens(wanted: tuple[Wanted, ...]) -> int:
    """Returns the number of tokens that are placed in bins."""
    return sum(one.part.length for one in wanted)


def parts_of(
    key: bytes, start: int, length: int, turn: int, segment: int, most: int
) -> Iterator[Wanted]:
    """Returns an interior at tokens [start, start + length), in parts that fit into a bin of
    `most` rows.

    Parts that are too short to be shared are left out.
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
