"""The loss of splicing: the share of requests whose first token differs from that of a full
prefill.

Losses are counted for each way of splicing. A request states the highest loss that it accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spliced_connector.client.terms import Splicing
from spliced_connector.errors import Code, SplicedError
from spliced_connector.wire import AdviseLimit, AdviseLoss, ReportLosses

ANY_LOSS = 1.0
"""The `max_loss` of a request that accepts any loss."""


@dataclass(frozen=True, slots=True)
class SpliceWay:
    """A way of splicing. primed: at least one segment was captured after the primer, and so was
    every segment for which the primed variant is preferred. refreshed: the last segments are
    recomputed after the text that precedes them, not reused."""

    primed: bool = False
    refreshed: bool = False


WAYS = tuple(SpliceWay(primed, last) for last in (False, True) for primed in (False, True))
"""All ways, in the order of the protocol."""


@dataclass(frozen=True, slots=True)
class LossCounts:
    """Counts of requests. `compared` counts those that were both spliced and computed in full,
    `changed` those among them whose first token differed."""

    compared: int = 0
    changed: int = 0

    def plus(self, same: bool) -> LossCounts:
        """Returns the counts with one more comparison."""
        return LossCounts(self.compared + 1, self.changed + int(not same))


Losses = Mapping[SpliceWay, LossCounts]


@dataclass(frozen=True, slots=True)
class LossLimit:
    """The highest loss that a request accepts, from 0 to 1, and the way it would be spliced."""

    max_loss: float = ANY_LOSS
    way: SpliceWay = SpliceWay()


@dataclass(frozen=True, slots=True)
class LossAdvice:
    """How a request may be spliced within its limit, and the loss that the daemon then expects
    (None if not known)."""

    splicing: Splicing = Splicing.ASKED
    expected: float | None = None


def beyond_max_loss(expected: float | None, max_loss: float) -> str:
    """Returns why a request is not spliced, in words for its caller.

    expected: the loss of the splice, None if it is not known.
    """
    if expected is None:
        return f"this splice is not known to be within max_loss {max_loss:.3g}: set fidelity"
    return f"the expected loss {expected:.3g} is not within max_loss {max_loss:.3g}"


def unanswered(limit: LossLimit) -> LossAdvice:
    """Returns the advice to use if the daemon says nothing about losses: splice only if any loss is
    accepted."""
    within = limit.max_loss >= ANY_LOSS
    return LossAdvice(Splicing.ASKED if within else Splicing.NONE)


def limit_section(limit: LossLimit) -> AdviseLimit:
    """Returns the section of an advise request. Raises `SplicedError` for an invalid `max_loss`."""
    if not 0 <= limit.max_loss <= ANY_LOSS:
        raise SplicedError(Code.INVALID, f"advise: max_loss {limit.max_loss}, want 0 to 1")
    return AdviseLimit(limit.max_loss, int(limit.way.primed), int(limit.way.refreshed))


def advice_of(section: AdviseLoss, segments: int) -> LossAdvice | None:
    """Converts the daemon's answer for a prompt with this number of segments. None: the answer is
    invalid."""
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
    """Returns the section of a report, with the counts of all ways."""
    counts = [losses.get(way, LossCounts()) for way in WAYS]
    return ReportLosses(
        int(offline), [one.compared for one in counts], [one.changed for one in counts]
    )
