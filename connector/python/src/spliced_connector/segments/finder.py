"""All finders together, for one prompt at a time. Each finder cuts the prompt:

    known        at both ends of each segment that the daemon has, at any position
    separators   at both ends of each separator; between two is one segment, of any length
    template     where a message, a tool call, a tool result or a document begins
    chunks       inside the parts that are still long

A finder takes precedence over those listed after it. If a client names cuts, no finder runs.
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
"""Maximum cuts of one prompt that a server accepts."""


@dataclass(frozen=True, slots=True)
class Found:
    """The cuts of a prompt. Invariant: cuts ascend from 0 and end before the last token; there
    are none, or at least two."""

    cuts: tuple[int, ...] = ()
    by: tuple[tuple[str, int], ...] = ()
    """Pairs of a finder's name and its number of cuts. Finders without cuts are left out."""
    warming: bool = False
    """Whether the prompt consists only of segments between separators. Such a prompt has no
    question: it is sent to store its segments."""


@dataclass(frozen=True, slots=True)
class Finder:
    """The finders that a server was configured with; None for a finder that is not used.

    least: a template boundary is used if at least one of the two parts next to it has this many
    tokens, so a run of shorter parts stays one part. most: maximum cuts of one prompt; tokens after
    the last of these cuts are not cut.
    """

    separators: Separators | None = None
    template: Template | None = None
    chunks: Chunker | None = None
    least: int = 64
    most: int = MOST_CUTS
    known: bool = False
    """Whether the caller must look up cached segments and pass them to `find` as `held`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the configured finders."""
        return tuple(name for name in FINDERS if getattr(self, name) not in (None, False))

    def find(
        self,
        ids: Sequence[int],
        use: Collection[str] = FINDERS,
        held: Sequence[tuple[int, int]] = (),
    ) -> Found:
        """Returns the cuts of a prompt. use: names of the finders to run.

        held: tokens [begin, end) of the segments that the daemon has, ascending and without
        overlaps. There are no cuts inside them.
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
    """Leaves out edges inside a segment that the daemon has."""
    begins = [begin for begin, _ in held]
    kept = []
    for at in edges:
        i = bisect_left(begins, at) - 1  # the last segment that begins before the edge
        if i < 0 or at >= held[i][1]:
            kept.append(at)
    return kept


def _worthwhile(edges: list[int], kept: set[int], end: int, least: int) -> list[int]:
    """Leaves out boundaries between two short parts, except those of `kept`.

    Only the two parts next to a boundary decide, so a long part has the same ends after any text.
    """
    around = (0, *edges, end)
    return [
        at
        for before, at, behind in zip(around, edges, around[2:], strict=False)
        if at in kept or at - before >= least or behind - at >= least
    ]
