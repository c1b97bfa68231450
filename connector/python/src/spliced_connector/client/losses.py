"""The loss of splicing: the share of requests whose first token is not that of a full prefill.

It is counted by way of splicing, and a request states the most that it accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spliced_connector.client.terms import Splicing
from spliced_connector.errors import Code, SplicedError
from spliced_connector.wire import AdviseLimit, AdviseLoss, ReportLosses

ANY_LOSS = 1.0
"""The max_loss of a request that accepts everything."""

BEYOND_MAX_LOSS = (
    "no splice is known to keep its loss within max_loss:"
    " set fidelity, refresh or a higher max_loss"
)
"""Reported to the caller of a request that is not spliced for its limit."""


@dataclass(frozen=True, slots=True)
class SpliceWay:
    """A way of splicing; losses are counted for each. primed: segments were captured after the
    primer wherever it is preferred, and at least one was. refreshed: the last ones are computed in
    context."""

    primed: bool = False
    refreshed: bool = False


WAYS = tuple(SpliceWay(primed, last) for last in (False, True) for primed in (False, True))
"""In the order of the protocol."""


@dataclass(frozen=True, slots=True)
class LossCounts:
    """Requests that were spliced and computed in full, and of them those whose first token
    changed."""

    compared: int = 0
    changed: int = 0

    def plus(self, same: bool) -> LossCounts:
        """Returns the counts with one more comparison."""
        return LossCounts(self.compared + 1, self.changed + int(not same))


Losses = Mapping[SpliceWay, LossCounts]


@dataclass(frozen=True, slots=True)
class LossLimit:
    """The loss that a request accepts, from 0 to 1, and how it would be spliced."""

    max_loss: float = ANY_LOSS
    way: SpliceWay = SpliceWay()


@dataclass(frozen=True, slots=True)
class LossAdvice:
    """How a request may be spliced within its limit, and the loss that the daemon expects of that,
    None where it is not known."""

    splicing: Splicing = Splicing.ASKED
    expected: float | None = None


def unanswered(limit: LossLimit) -> LossAdvice:
    """Returns the advice that holds without an answer, or with a daemon that knows no losses."""
    within = limit.max_loss >= ANY_LOSS
    return LossAdvice(Splicing.ASKED if within else Splicing.NONE)


def limit_section(limit: LossLimit) -> AdviseLimit:
    """Returns a request's section. Raises `SplicedError` for a max_loss outside of 0 to 1."""
    if not 0 <= limit.max_loss <= ANY_LOSS:
        raise SplicedError(Code.INVALID, f"advise: max_loss {limit.max_loss}, want 0 to 1")
    return AdviseLimit(limit.max_loss, int(limit.way.primed), int(limit.way.refreshed))


def advice_of(section: AdviseLoss, segments: int) -> LossAdvice | None:
    """Returns the daemon's answer for a prompt with this number of segments; None for an invalid
    one."""
    known = section.splicing in list(Splicing)
    if not known or math.isnan(section.asked + section.refreshed):
        return None
    splicing = Splicing(section.splicing)
    last = splicing is Splicing.REFRESHED
    loss = section.refreshed if last else section.asked
    if loss > 1 or (last and segments < 2):
        return None
    return LossAdvice(splicing, loss if loss >= 0 else None)


def report_section(losses: Losses, offline: bool) -> ReportLosses:
    """Returns the counts of all ways as a report has them."""
    counts = [losses.get(way, LossCounts()) for way in WAYS]
    return ReportLosses(
        int(offline), [one.compared for one in counts], [one.changed for one in counts]
    )
