"""All finders together, for one prompt at a time.

    known        both ends of each segment that the daemon holds, wherever it stands
    separators   both ends of each; what lies between two neighbours is one segment, however long
    template     where a message, a tool call, a tool result or a document begins
    chunks       within the parts that are left and long

What stands further up wins. The cuts that a client names win over everything: no finder runs then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spliced_connector.segments.chunks import Chunker
from spliced_connector.segments.separators import Separators
from spliced_connector.segments.template import Template

FINDERS = ("known", "separators", "template", "chunks")
MOST_CUTS = 2048
"""Cuts of one prompt that a server takes."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in a prompt. Invariant: cuts ascend from 0 and end before the last token;
    none, or two and more."""

    cuts: tuple[int, ...] = ()
    by: tuple[tuple[str, int], ...] = ()
    """How many cuts each finder gave, by its name; finders without any are left out."""
    warming: bool = False
    """The prompt is nothing but segments between separators: they are to be stored, and there is
    no question."""


@dataclass(frozen=True, slots=True)
class Finder:
    """The finders that a server was set up with; None for those it was not.

    least: template boundaries are kept where at least one of the parts beside them has so many
    tokens; a run of shorter ones is a part. most: cuts of one prompt; what lies behind is not cut.
    """

    separators: Separators | None = None
    template: Template | None = None
    chunks: Chunker | None = None
    least: int = 64
    most: int = MOST_CUTS
    known: bool = False
    """Whether who asks is to look up what the daemon holds."""

    @property
    def names(self) -> tuple[str, ...]:
        """The finders that there are."""
        return tuple(name for name in FINDERS if getattr(self, name) not in (None, False))

    def find(
        self,
        ids: Sequence[int],
        use: Collection[str] = FINDERS,
        held: Sequence[tuple[int, int]] = (),
    ) -> Found:
        """The cuts of a prompt by some of the finders.

        held: tokens [begin, end) of the segments that the daemon holds, ascending and without
        overlaps; they stay whole.
        """
        marked = {edge for span in held for edge in span if 0 < edge < len(ids)}
        by = {"known": len(marked)}
        spans = self.separators.find(ids) if self.separators and "separators" in use else []
        marked.update(_outside([e for span in spans for e in span if 0 < e < len(ids)], held))
        by["separators"] = len(marked) - by["known"]
        edges = sorted(marked)
        if self.template and "template" in use:
            new = [at for at in _outside(self.template.find(ids), held) if at not in marked]
            edges = _worthwhile(sorted((*edges, *new)), marked, len(ids), self.least)
            by["template"] = len(edges) - len(marked)
        if self.chunks and "chunks" in use:
            named = {*held, *((a[1], b[0]) for a, b in pairwise(spans))}
            cuts = [
                cut
                for part in pairwise((0, *edges, len(ids)))
                if part not in named
                for cut in self.chunks.cuts(ids, *part)
            ]
            by["chunks"] = len(cuts)
            edges = sorted((*edges, *cuts))
        if not edges:
            return Found()
        return Found(
            (0, *edges)[: self.most],
            tuple((name, n) for name, n in by.items() if n),
            len(spans) > 1 and spans[0][0] == 0 and spans[-1][1] == len(ids),
        )


def _outside(edges: Sequence[int], held: Sequence[tuple[int, int]]) -> list[int]:
    """Leaves out what lies inside of a segment that is held."""
    begins = [begin for begin, _ in held]
    kept = []
    for at in edges:
        i = bisect_left(begins, at) - 1  # the last that begins before it
        if i < 0 or at >= held[i][1]:
            kept.append(at)
    return kept


def _worthwhile(edges: list[int], kept: set[int], end: int, least: int) -> list[int]:
    """Leaves out boundaries between two short parts, but for those of `kept`.

    Whether one stays depends on the two parts beside it alone, so that a long part begins and ends
    where it does whatever stands before.
    """
    around = (0, *edges, end)
    return [
        at
        for before, at, behind in zip(around, edges, around[2:], strict=False)
        if at in kept or at - before >= least or behind - at >= least
    ]
