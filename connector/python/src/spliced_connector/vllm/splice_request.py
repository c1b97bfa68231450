"""One request of mode splice in the scheduler's process: the daemon's answer, and its state.

ENGINE          a request that is not spliced stays here

         offer             claim             fill
OPEN ───────────> OFFERED ───────> CLAIMED ───────> FILLED
     <───────────                     │                │
       withdraw                       └──> LOST <──────┘
                                     lose
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from spliced_connector.model import Choice
from spliced_connector.segments import Found
from spliced_connector.serving.decider import Asked, Known
from spliced_connector.serving.splices import Splice
from spliced_connector.serving.telling import Served
from spliced_connector.vllm.splice_plans import Base

if TYPE_CHECKING:
    from vllm.v1.request import Request


class State(Enum):
    """The state of a request. The engine computes all tokens that are neither offered nor
    claimed."""

    ENGINE = auto()  # the request is not spliced
    OPEN = auto()  # a splice may be offered to the engine's scheduler
    OFFERED = auto()  # a splice is offered, and the engine's scheduler may ask for another one
    CLAIMED = auto()  # the request has blocks, which the workers are filling
    FILLED = auto()  # the blocks are filled
    LOST = auto()  # the blocks could not be filled, so the engine computes the whole request


_FOLLOWS = {
    State.ENGINE: frozenset[State](),
    State.OPEN: frozenset({State.OPEN, State.OFFERED}),
    State.OFFERED: frozenset({State.OPEN, State.OFFERED, State.CLAIMED}),
    State.CLAIMED: frozenset({State.FILLED, State.LOST}),
    State.FILLED: frozenset({State.LOST}),
    State.LOST: frozenset[State](),
}

_OPEN = frozenset({State.OPEN, State.OFFERED})
_SPLICED = frozenset({State.CLAIMED, State.FILLED})


@dataclass(slots=True)
class SpliceRequest:
    """A request that named cuts, or whose prompt was searched for segments."""

    request: Request
    asked: Asked = field(default_factory=Asked)
    """The daemon's answer. Its `known` is None if the request cannot be spliced."""
    found: Found = field(default_factory=Found)
    trouble: str = ""
    """Why the request is not spliced, in words for the caller."""
    decided_micros: int = 0
    """Microseconds that the scheduler's thread spent on the decision."""
    state: State = State.ENGINE
    splice: Splice | None = None
    """The splice that is offered or was claimed."""
    base: Base = Base()  # noqa: RUF009  (frozen)
    """The prefix after which the splice begins."""
    elsewhere: frozenset[bytes] = frozenset()
    """Keys of the claimed segments that other nodes were asked to compute."""
    shared: int = 0
    """Tokens that lie in shared pages."""
    salt: str | None = None
    """The request's own cache salt, kept while its blocks are cached under private names."""
    waited: float = 0.0
    """Seconds from the claim until the blocks were filled."""
    _claimed: float = 0.0  # time.monotonic() of the claim

    def __post_init__(self) -> None:
        if self.asked.known is not None:
            self.state = State.OPEN

    def _to(self, state: State) -> None:
        if state not in _FOLLOWS[self.state]:
            raise RuntimeError(f"a request that is {self.state.name} cannot be {state.name}")
        self.state = state

    @property
    def known(self) -> Known | None:
        return self.asked.known

    @property
    def open(self) -> Known | None:
        """Returns the answer from which a splice may be offered, None in any other state."""
        return self.asked.known if self.state in _OPEN else None

    @property
    def offered(self) -> Splice | None:
        return self.splice if self.state is State.OFFERED else None

    @property
    def spliced(self) -> bool:
        """Returns whether the blocks hold a splice, or are about to."""
        return self.state in _SPLICED

    @property
    def way(self) -> str:
        """Returns how the request is served, in words for its caller."""
        if self.spliced:
            return "splice"
        return "recomputed" if self.state is State.LOST else "engine"

    def offer(self, splice: Splice, base: Base) -> None:
        self._to(State.OFFERED)
        self.splice, self.base = splice, base

    def withdraw(self) -> None:
        """Takes back an offer that was not claimed; does nothing in other states."""
        if self.state is State.OFFERED:
            self._to(State.OPEN)
            self.splice = None

    def claim(self, splice: Splice, base: Base, elsewhere: frozenset[bytes]) -> None:
        self._to(State.CLAIMED)
        self.splice, self.base, self.elsewhere, self.trouble = splice, base, elsewhere, ""
        self._claimed = time.monotonic()

    def lose_segments(self, keys: frozenset[bytes]) -> None:
        """Records that other nodes do not compute these segments: this engine does."""
        if self.splice is not None:
            self.splice = self.splice.lost(keys)

    def fill(self) -> None:
        """Records that the workers have ended their work on the request's blocks. Does nothing for
        a request that is not claimed."""
        if self.state is State.CLAIMED:
            self._to(State.FILLED)
            self.waited = time.monotonic() - self._claimed

    def lose(self) -> None:
        self._to(State.LOST)
        self.trouble = "segments were lost after the match"

    def report(self, report: Served) -> Served:
        """Adds the splice to a report about mode prefix."""
        asked, known = self.asked, self.asked.known
        report = replace(
            report,
            prompt=None if known is None else known.prompt,
            found=report.found if asked.found is None else asked.found,
            asked=asked.found,
            predicted=report.predicted if asked.advice is None else asked.advice.predicted,
            decided=report.decided + self.decided_micros / 1e6,
        )
        if self.splice is None or not self.spliced:
            return report
        base = self.base
        engine = base.held if base.name else base.tokens
        return replace(
            report,
            engine=engine,
            prefix=base.tokens - engine,
            placed=self.splice.tokens,
            splice=self.splice,
            waited=self.waited,
        )

    def summary(self, exact: dict[str, object] | None) -> dict[str, object]:
        """Returns the result for the request's response.

        exact: what mode prefix returns for the response, None if it has nothing.
        """
        by_prefix = {} if exact is None else cast("dict[str, object]", exact["spliced"])
        summary: dict[str, object] = {"way": self.way, "decided_micros": self.decided_micros}
        if self.splice is not None and self.spliced:
            summary |= self._spliced(self.splice)
            if stored := cast(int, by_prefix.get("stored", 0)):
                summary["stored"] = stored
        elif self.way == "engine":
            summary |= by_prefix
        if self.found.by:
            summary["found"] = dict(self.found.by)
        if self.trouble:
            summary["trouble"] = self.trouble
        return summary

    def _spliced(self, splice: Splice) -> dict[str, object]:
        summary: dict[str, object] = {
            "tokens": splice.tokens,
            "walked": splice.walked,
            "reused": splice.reused,
            "captured": len(splice.pieces(Choice.ISOLATED)),
        }
        if splice.loss is not None:
            summary["expected_loss"] = splice.loss
        if self.shared:
            summary["shared"] = self.shared
        if self.elsewhere:
            came = self.elsewhere & splice.keys(Choice.HIT)
            summary["elsewhere"], summary["late"] = len(came), len(self.elsewhere - came)
        if splice.begin:
            summary["prefix"] = splice.begin
        return summary
