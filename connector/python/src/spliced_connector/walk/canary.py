"""Recomputes a sample of spliced requests in full, and compares.

A splice is an approximation, and its accuracy was measured on other prompts. The canary checks
prompts that are served: it compares the logits after a prompt's last token, computed once from the
spliced context and once by a full walk. It takes one request at a time, works only when called and
within the given time, and never delays a request.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from spliced_connector.model import Span, SpanKind
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.context import Context
from spliced_connector.walk.run import splice

log = logging.getLogger("spliced.canary")

WINDOW = 16
"""Number of the latest comparisons whose failures are counted."""

STRIKES = 3
"""Number of failures among the last WINDOW comparisons that switches the profile off. It is above
one, so that one odd prompt is not enough."""

CHANGED = 0.1
"""Share of spliced prompts with another first token that ends splicing."""

_FINE = 0.6
"""The test compares the share `CHANGED` with this fraction of it, which is tolerated. If the true
share is between both, and above about 0.8 of `CHANGED`, splicing ends eventually."""

_THRESHOLD = 5.0
"""Sum of log likelihood ratios that ends splicing. In 1,000 simulated runs with a share of 0.1, 95
of 100 runs ended after at most 765 comparisons if 10 of 100 first tokens changed, after at most 263
if 14 changed, and after at most 2,700 if 8 changed. Within 10,000 comparisons 44 of 100 runs ended
if 6 of 100 first tokens changed, and none if 4.1 changed."""

_ROWS = 64
"""Rows that are computed between two reads of the clock while the time per row is unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one comparison. error: the result of `logit_error`; failed: the error exceeds
    the bound; same_token: both walks rank the same token first."""

    error: float
    same_token: bool
    failed: bool
    off: bool  # the profile is to be switched off after this one


def logit_error(spliced: Tensor, full: Tensor) -> float:
    """Returns the root-mean-square error of spliced logits [vocabulary], divided by the spread
    (standard deviation) of the full walk's logits.

    A constant added to all logits does not count, because it changes no probability. The error is
    infinite if a logit is not finite.
    """
    a, b = spliced.double(), full.double()
    a, b = a - a.mean(), b - b.mean()
    spread = float(b.square().mean().sqrt())
    error = float((a - b).square().mean().sqrt())
    if not math.isfinite(error) or not math.isfinite(spread):
        return math.inf
    if spread == 0:
        return 0.0 if error == 0 else math.inf
    return error / spread


class ChangedTokens:
    """Cumulative-sum test (Page, Biometrika 41, 1954) of the share of changed first tokens.

    A bound on the error of logits must allow for rounding, and answers can change within such a
    bound. So this test counts changed tokens. Each comparison adds the logarithm of a likelihood
    ratio: the probability of its result at the share `share` of changed tokens, divided by the
    probability at a smaller, acceptable share. A sum below zero restarts at zero.
    """

    def __init__(self, share: float = CHANGED) -> None:
        """share: above 0 and below 1, or 0 for no test. Raises ValueError for other values."""
        if not 0 <= share < 1:
            raise ValueError(f"share of changed tokens {share}, want at least 0 and below 1")
        self._changed = math.log(1 / _FINE) if share else 0.0
        self._same = math.log((1 - share) / (1 - _FINE * share))
        self._sum = 0.0

    def add(self, same: bool) -> bool:
        """Adds a comparison. Returns whether too many tokens have changed."""
        self._sum = max(0.0, self._sum + (self._same if same else self._changed))
        return self._sum >= _THRESHOLD


class Canary:
    """The comparisons of one profile's requests. Only one thread may use it.

    `report` is called with every verdict. Once `off` is set, the canary takes no more requests: an
    operator has to investigate and restart the engine.
    """

    def __init__(
        self,
        arch: Architecture,
        bound: float,
        report: Callable[[Verdict], None],
        changed: float = CHANGED,
    ) -> None:
        """bound: a comparison fails if its `logit_error` is larger. changed: the share of changed
        first tokens that ends splicing, as in `ChangedTokens`."""
        self._arch = arch
        self._bound = bound
        self._report = report
        self._tokens = ChangedTokens(changed)
        self.why = ""
        """The reason why the canary is off; empty while it is on."""
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._work: _Comparison | None = None
        self.off = False

    @property
    def busy(self) -> bool:
        """Whether a comparison is in progress."""
        return self._work is not None

    def offer(self, ids: Tensor, context: Context) -> bool:
        """Takes a request and returns True. Returns False if another is in progress, if the canary
        is off, or if the context already covers the prompt.

        ids [n] has the tokens of the whole prompt. context is the spliced context of some of its
        first tokens; it belongs to the canary once the request is taken.
        """
        if self.off or self._work is not None or context.tokens >= len(ids):
            return False
        self._work = _Comparison(self._arch, ids, context)
        return True

    def run(self, until: float) -> None:
        """Works until the monotonic time `until`, and computes at least one piece of rows. If a
        walk raises an error, the comparison is abandoned and the error passed on."""
        work = self._work
        if work is None:
            return
        try:
            found = work.run(until)
        except Exception:
            self._work = None
            raise
        if found is not None:
            self._work = None
            self._settle(*found)

    def _settle(self, spliced: Tensor, full: Tensor) -> None:
        error = logit_error(spliced, full)
        failed = error > self._bound
        self._recent.append(failed)
        same = int(spliced.argmax()) == int(full.argmax())
        many = self._tokens.add(same)
        if not self.off:
            if sum(self._recent) >= STRIKES or math.isinf(error):
                self.why = "logits of spliced prompts differ from full walks"
                log.error(
                    "splicing is off: logits of a spliced prompt are off by %.3g of their spread,"
                    " %d of the last %d were beyond the bound of %.3g",
                    error,
                    sum(self._recent),
                    len(self._recent),
                    self._bound,
                )
            elif many:
                self.why = "too many first tokens of spliced prompts differ from full walks"
                log.error("splicing is off: %s", self.why)
            self.off = bool(self.why)
        self._report(Verdict(error, same, failed, self.off))


class _Comparison:
    """Both walks of one prompt, in pieces of rows."""

    def __init__(self, arch: Architecture, ids: Tensor, spliced: Context) -> None:
        self._arch, self._ids = arch, ids
        self._seconds = 0.0  # per row, 0 while unknown
        self._walks = [spliced, Context(arch, len(ids), spliced.device)]
        self._logits: list[Tensor] = []

    def run(self, until: float) -> tuple[Tensor, Tensor] | None:
        """Returns the logits of the spliced and the full walk; None if `until` came first."""
        while len(self._logits) < len(self._walks):
            self._step(self._walks[len(self._logits)], until)
            if time.monotonic() >= until:
                break
        if len(self._logits) < len(self._walks):
            return None
        return self._logits[0], self._logits[1]

    def _step(self, context: Context, until: float) -> None:
        """Computes as many further rows of a context as fit into the time."""
        began = time.monotonic()
        left = len(self._ids) - context.tokens
        fit = int((until - began) / self._seconds) if self._seconds else _ROWS
        n = max(1, min(left, max(fit, _ROWS // 4)))
        rows = splice(
            self._arch, self._ids, [Span(SpanKind.RECOMPUTE, context.tokens, n)], {}, context
        )
        if rows is not None and n == left:
            self._logits.append(self._arch.logits(rows[-1:])[0].detach().clone())
        self._seconds = (time.monotonic() - began) / n
