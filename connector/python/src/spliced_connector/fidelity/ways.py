"""The ways of serving a prompt that are compared, and what was read of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How the tokens of a prompt are served."""

    FULL = "full prefill"
    PREFIX = "prefix reuse"
    SPLICE = "spliced"


@dataclass(frozen=True, slots=True)
class Way:
    """One way. primer: as settings name it, "" for captures alone. refresh: the last segment is
    computed in context."""

    kind: Kind
    primer: str = ""
    refresh: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.kind is not Kind.SPLICE:
            return str(self.kind)
        primed = f"primer {self.primer}" if self.primer else "no primer"
        return f"spliced, {primed}" + (", last in context" if self.refresh else "")


FULL, PREFIX, TODAY = Way(Kind.FULL), Way(Kind.PREFIX), Way(Kind.SPLICE)


def ways_of(primers: Sequence[str], refresh: bool) -> tuple[Way, ...]:
    """Returns all ways; those of one primer are neighbors."""
    shades = (False, True) if refresh else (False,)
    return FULL, PREFIX, *(Way(Kind.SPLICE, p, last) for p in ("", *primers) for last in shades)


@dataclass(frozen=True, slots=True)
class Reading:
    """One prompt in one way, over the n tokens of the full prefill's own greedy answer.

    log_p: of each of these tokens, in nats, given those before it. top: the most likely token in
    its place. computed: prompt tokens that were computed.
    """

    log_p: tuple[float, ...]
    top: tuple[int, ...]
    computed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt in all ways. segments: that can be reused; primed: of them, those that a primer is
    for."""

    line: int
    tokens: int
    segments: int
    primed: int
    answer: tuple[int, ...]
    readings: Mapping[Way, Reading]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A prompt that was not measured, and why."""

    line: int
    reason: str
