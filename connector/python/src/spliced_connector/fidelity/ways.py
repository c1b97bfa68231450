"""The compared ways of serving a prompt, and the readings of each."""

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
    """One way. primer and refresh: as in an engine's settings; "" for captures without a primer,
    and 0 if all segments are reused."""

    kind: Kind
    primer: str = ""
    refresh: float = 0.0

    @property
    def name(self) -> str:
        """Returns its name in tables."""
        if self.kind is not Kind.SPLICE:
            return str(self.kind)
        primed = f"primer {self.primer}" if self.primer else "no primer"
        return f"spliced, {primed}" + (f", refresh {self.refresh:g}" if self.refresh else "")


FULL, PREFIX, TODAY = Way(Kind.FULL), Way(Kind.PREFIX), Way(Kind.SPLICE)


def ways_of(primers: Sequence[str], shares: Sequence[float] = ()) -> tuple[Way, ...]:
    """Returns all ways; ways with one primer are neighbors. shares: values of refresh besides 0."""
    return (
        FULL,
        PREFIX,
        *(Way(Kind.SPLICE, primer, share) for primer in ("", *primers) for share in (0.0, *shares)),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """One prompt in one way, over the n tokens of the full prefill's own greedy answer.

    log_p: the log-probability of each of these tokens, in nats, given the tokens before it. top:
    the most likely token at each position. computed: number of prompt tokens that were computed.
    """

    log_p: tuple[float, ...]
    top: tuple[int, ...]
    computed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one prompt, spliced in every way that was measured. segments: number of
    reusable segments; primed: how many of them are captured after a primer."""

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
