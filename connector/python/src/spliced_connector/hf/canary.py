"""Computes a share of the spliced prompts of the transformers adapter again, and compares."""

from __future__ import annotations

import logging
import time

import torch

from spliced_connector.client import LossCounts, Model, SpliceWay
from spliced_connector.walk import Architecture, Canary, Context, GoneError, Verdict

log = logging.getLogger("spliced")

_LONGEST = 600.0  # seconds; only requests chosen for comparison wait for it


class Watch:
    """Compares every n-th spliced prompt after its answer; decides whether splicing continues."""

    def __init__(
        self, arch: Architecture, model: Model, share: float, bound: float, changed: float
    ) -> None:
        """share: the share of spliced prompts that is compared. bound, changed: see `Canary`."""
        self._model = model
        self._bound = bound
        self._share = share
        self._seen = 0
        self._way: SpliceWay | None = None
        self._canary = Canary(arch, bound, self._report, changed)

    @property
    def off(self) -> bool:
        """Whether comparisons have ended splicing for this model."""
        return self._canary.off

    def look(self, ids: list[int], context: Context, way: SpliceWay | None = None) -> None:
        """Compares the logits after the last token of ids, if this prompt is to be compared.

        The context is spliced and has fewer tokens than ids. It belongs to the canary from now on.
        way: how the prompt was spliced; given if ids is exactly the prompt, so that first tokens
        of answers are compared. None: the comparison does not count for the loss.
        """
        share = self._model.canary_share(self._share)
        if share <= 0 or not context.spliced:
            return
        self._seen += 1
        if self._seen % max(1, round(1 / share)) == 0:
            self._way = way
            every = torch.tensor(ids, device=context.device)
            if self._canary.offer(every, context):
                try:
                    self._canary.run(time.monotonic() + _LONGEST)
                except GoneError as err:  # the request was answered before, so nothing is lost
                    log.warning("a splice is not compared: %s", str(err))

    def _report(self, verdict: Verdict) -> None:
        failed, why = int(verdict.failed or verdict.off), self._canary.why
        count = LossCounts().plus(verdict.same_token)
        losses = {} if self._way is None else {self._way: count}
        self._model.report(1, failed, verdict.error, self._bound, verdict.off, why, losses)
