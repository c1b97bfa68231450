"""The canary of one engine, and its reports to the daemon."""

from __future__ import annotations

import logging
import time

from torch import Tensor

from spliced_connector.client import LossCounts, Model, SpliceWay
from spliced_connector.serving.modules import eager
from spliced_connector.serving.tally import EngineTally
from spliced_connector.walk import Architecture, Canary, Context, Verdict

log = logging.getLogger("spliced.canary")

CANARY_SECONDS = 0.01
"""How long a comparison may extend a step of the engine: less than most models take for a token."""

REPORT_SECONDS = 1.0
"""Minimum seconds between two reports to the daemon."""


class Watch:
    """Compares a sample of spliced requests with a full prefill, and reports the results. Only the
    thread that runs the model may use it."""

    def __init__(
        self,
        arch: Architecture,
        model: Model,
        tally: EngineTally,
        bound: float,
        changed: float,
        alone: bool = True,
        tells: bool = True,
    ) -> None:
        """bound, changed: as in `Canary`. alone: whether there is only one rank. tells: whether
        this rank reports to the daemon; all ranks have the same results."""
        self._canary = Canary(arch, bound, self._compared, changed)
        self._model, self._tally, self._bound = model, tally, bound
        self._alone, self._tells = alone, tells
        self._untold = self._untold_failures = 0  # comparisons that were not reported
        self._untold_losses: dict[SpliceWay, LossCounts] = {}
        self._way: SpliceWay | None = None  # way of the request that is compared
        self._worst = 0.0  # largest error so far
        self._next_try = 0.0  # monotonic seconds

    @property
    def off(self) -> bool:
        """Whether the canary has switched splicing off."""
        return self._canary.off

    @property
    def busy(self) -> bool:
        """Whether a comparison is in progress."""
        return self._canary.busy

    def offer(self, ids: Tensor, context: Context, way: SpliceWay | None) -> None:
        """Offers a sampled request for comparison. way: the way in which it was spliced, None if it
        counts for no loss. See `Canary.offer`."""
        taken = self._canary.offer(ids, context)
        if taken:
            self._way = way
        self._tally.add("sampled" if taken else "sample_dropped")

    def compare(self) -> None:
        """Continues a comparison, in a step that splices nothing."""
        try:
            # Several ranks must compute the same rows. A run whose time is already over computes a
            # fixed number of rows.
            with eager():
                self._canary.run(time.monotonic() + CANARY_SECONDS if self._alone else 0.0)
        except Exception:
            log.exception("a comparison of a spliced request was given up")
            self._tally.add("comparison_failures")

    def tell(self, again: bool) -> None:
        """Reports the results that the daemon has not accepted yet.

        again: whether a request was spliced although splicing is off. The daemon then does not know
        that it is off, or has forgotten it, so this is reported again. If the daemon cannot be
        reached for this report, it cannot be asked about requests either, so none is spliced.
        """
        again = again and self.off
        if not self._tells or not (self._untold or again) or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + REPORT_SECONDS
        off = self.off
        text = self._canary.why
        # A report needs a comparison. A report that only repeats that splicing is off therefore
        # counts a failed comparison again.
        compared, failed = max(1, self._untold), max(self._untold_failures, int(off))
        answer = self._model.report(
            compared, failed, self._worst, self._bound, off, text, self._untold_losses
        )
        if answer is None or (off and not answer):
            self._tally.add("report_failures")
            return
        self._untold = self._untold_failures = 0
        self._untold_losses = {}

    def _compared(self, verdict: Verdict) -> None:
        self._tally.add("compared")
        self._tally.add("compared_same_token", verdict.same_token)
        self._tally.add("compared_beyond_bound", verdict.failed)
        self._untold += 1
        self._untold_failures += int(verdict.failed)
        if self._way is not None:
            before = self._untold_losses.get(self._way, LossCounts())
            self._untold_losses[self._way] = before.plus(verdict.same_token)
        self._worst = max(self._worst, verdict.error)
