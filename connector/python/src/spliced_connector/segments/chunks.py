"""Content-defined chunks of token ids: the same passage has the same cuts at any position.

A position is a cut if its rank is the least within some distance on both sides (the local minimum
method: Bjoerner, Blass, Gurevich, "Content-dependent chunking for differential compression, the
local maximum approach", 2010). The rank is a rolling hash of the tokens before the position, so a
cut depends only on nearby tokens. In the common method that compares a hash with a mask, a cut also
depends on the previous cut. Here it does not, so cuts need not resynchronize.

Cuts lie at pauses of the text if possible. A part is cut at the ends of its paragraphs. Parts that
are still long are cut at the ends of lines, then of sentences, and finally anywhere. If a paragraph
begins with a number that the prompt gives it, another cut follows that label (`labels.py`), so the
same paragraph with another number is the same segment. Cuts have these distances, in tokens:

    ends of paragraphs            at least `least`
    other cuts by rank            `mean` on average, only within parts of more than `most` tokens
    if no rank is the least       `most` (one token that is repeated)

For reuse this means: two prompts may differ up to an edit, or up to the edge of a shared passage.
After that, their cuts are the same again from the first paragraph end at which both are cut, or
after about `mean` tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spliced_connector.segments.breaks import Break
from spliced_connector.segments.labels import Labels

_WINDOW = 3
"""Number of tokens that a rank is computed from."""
_SHIFT = 11
_MASK = (1 << _SHIFT * _WINDOW) - 1


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of chunks, in tokens. Raises ValueError unless 1 <= least <= mean <= most."""

    least: int = 64
    mean: int = 256
    most: int = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.mean <= self.most:
            raise ValueError(
                f"chunks of {self.least} to {self.most} tokens, {self.mean} on average:"
                " want 1 <= least <= mean <= most"
            )


class _Gear(dict[int, int]):
    """A random number for each token id: the finalizer of splitmix64 (Steele, Lea, Flood)."""

    def __missing__(self, token: int) -> int:
        z = (token + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        self[token] = value = (z ^ z >> 31) & _MASK
        return value


class Chunker:
    """Cuts long parts of prompts. breaks: the result of `breaks_of`; without it all cuts come from
    the hash alone. labels: the numbers of passages; none by default."""

    def __init__(
        self,
        lengths: Lengths,
        breaks: Mapping[int, Break] | None = None,
        labels: Labels = Labels(),  # noqa: B008  (frozen)
    ) -> None:
        self.lengths = lengths
        self._breaks = dict(breaks or {})
        self._labels = labels
        self._gear = _Gear()  # has at most one entry per token of the vocabulary

    def cuts(self, ids: Sequence[int], start: int, end: int) -> list[int]:
        """Returns ascending positions within (start, end), at least `least` tokens apart and away
        from `start` and `end`. There are two exceptions. Ends of paragraphs may be nearer to
        `start` or `end`, so a passage after a short instruction, or before a short question, is a
        separate chunk. And two positions with a passage's number between them may be nearer."""
        lengths = self.lengths
        edges = [start, end]
        breaks = self._breaks_in(ids, start, end) if end - start >= lengths.least else []
        for kind in reversed(Break):
            paragraph = kind is Break.PARAGRAPH
            within = lengths.least if paragraph else lengths.most + 1
            distance = lengths.least if paragraph else max(lengths.least, lengths.mean // 2)
            last = edges.pop()
            new = []
            for a, b in pairwise((*edges, last)):
                new.append(a)
                if b - a >= within:
                    new += self._minima(ids, (a, b), kind, breaks, distance)
            edges = [*new, last]
            if paragraph:
                edges = self._labelled(ids, edges)
        return list(self._bounded(edges))[1:-1]

    def _labelled(self, ids: Sequence[int], edges: list[int]) -> list[int]:
        """Returns the edges, and the positions after labels that begin at an edge."""
        end = edges[-1]
        behind = (self._labels.end(ids, edge) for edge in edges[:-1])
        return sorted({*edges, *(at for at in behind if at < end)})

    def _breaks_in(self, ids: Sequence[int], start: int, end: int) -> list[tuple[int, Break]]:
        """Returns the positions after tokens with a break, and the kinds of the breaks."""
        breaks = self._breaks
        part = ids[start:end]
        return [(i, breaks[token]) for i, token in enumerate(part, start + 1) if token in breaks]

    def _minima(
        self,
        ids: Sequence[int],
        part: tuple[int, int],
        kind: Break,
        breaks: list[tuple[int, Break]],
        distance: int,
    ) -> list[int]:
        """Returns the positions in a part that follow a break of at least this kind and have the
        lowest rank within the distance."""
        margin = 1 if kind is Break.PARAGRAPH else self.lengths.least
        first, last = part[0] + margin, part[1] - margin
        if last < first:
            return []
        if kind is Break.NOTHING:
            ranks = self._ranks(ids[first : last + _WINDOW])[: last - first + 1]
            return minima(range(first, first + len(ranks)), ranks, distance)
        begin = bisect_left(breaks, (first, Break.NOTHING))
        end = bisect_right(breaks, (last, Break.PARAGRAPH))
        places = [place for place, what in breaks[begin:end] if what >= kind]
        begins = [self._labels.end(ids, place) for place in places]
        ranks = [self._ranks(ids[at : at + _WINDOW])[0] for at in begins]
        return minima(places, ranks, distance)

    def _ranks(self, ids: Sequence[int]) -> list[int]:
        """Returns the rank of each token that has enough tokens before it. With too few tokens,
        returns one rank over all of them."""
        gear, rank = self._gear, 0
        ranks = [rank := (rank << _SHIFT) + gear[token] & _MASK for token in ids]
        return ranks[_WINDOW - 1 :] or ranks[-1:]

    def _bounded(self, edges: list[int]) -> Iterator[int]:
        """Yields the edges, and further edges between any two that are more than `most` tokens
        apart."""
        most, least = self.lengths.most, self.lengths.least
        for a, b in pairwise(edges):
            yield from range(a, max(a + 1, b - least + 1), most)
        yield edges[-1]


def minima(places: Sequence[int], ranks: Sequence[int], distance: int) -> list[int]:
    """Returns the places whose rank is the lowest within the distance on both sides; of places with
    equal ranks the first one.

    places: positions in ascending order. ranks: one rank for each place. The time taken is
    proportional to the number of places, whatever the ranks are.
    """
    found: list[int] = []
    i, n = 0, len(places)
    while i < n:
        behind = bisect_right(places, places[i] + distance, i)
        least = ranks.index(min(ranks[i:behind]), i, behind)
        if least != i:
            i = least  # places before it are no minima: this lower rank is near them
            continue
        near = i - 1
        while near >= 0 and places[near] >= places[i] - distance and ranks[near] > ranks[i]:
            near -= 1
        if near < 0 or places[near] < places[i] - distance:
            found.append(places[i])
            i = behind
        else:  # ranks up to `behind` are not below i's, so nothing close to `near` is a minimum
            i = max(i + 1, bisect_right(places, places[near] + distance, i))
    return found
