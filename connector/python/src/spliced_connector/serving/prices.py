"""Measures the times of an engine's work, from which the daemon estimates the cost of splices. The
constants are the guesses that decide without the daemon's answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeAlias

from spliced_connector.client import CaptureTiming, Sample, WalkTiming

_LEAST_TOKENS = 64
"""Minimum tokens of a sample. Shorter prefills take mostly overhead of the step."""
_MOST_SAMPLES = 64

WALK_COST = 2.0
"""Time of a walked row, in rows of the engine's own prefill, if the daemon does not report it. A
cautious guess: a walk uses the engine's projections, but slower operators between them."""

CLAIM_ROWS = 64
"""Fixed cost of a splice, in rows of prefill: one step of the engine (a guess)."""

REUSED_COST = 1 / 16
"""Cost of placing a reused row, in walked rows (a guess). `job.Pace` learns from both kinds of
rows."""

_Timing: TypeAlias = Sample | WalkTiming | CaptureTiming

_FORGET = 0.9
"""Factor by which the weight of earlier measurements shrinks with each new one."""

_ENOUGH = 3
"""Minimum number of measurements. The first one is not counted, because it includes the first use
of memory and the choice of kernels."""


@dataclass(frozen=True, slots=True)
class Walked:
    """The work for one request. The walk took `seconds`: it computed a number of rows, `rows`, and
    placed a number of reused rows, `placed`. Capturing segments of `captured` tokens in all took
    `capture_seconds`."""

    rows: int
    placed: int
    seconds: float
    captured: int = 0
    capture_seconds: float = 0.0


class Line:
    """Estimates seconds = fixed + each * units by least squares over measurements. Newer
    measurements have more weight. Neither `fixed` nor `each` is negative."""

    def __init__(self) -> None:
        self._seen = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def learn(self, units: float, seconds: float) -> None:
        """Adds a measurement. One with zero units or seconds is ignored."""
        if units <= 0 or seconds <= 0:
            return
        self._seen += 1
        if self._seen == 1:
            return
        new = (1.0, units, seconds, units * units, units * seconds)
        old = (self._n, self._x, self._y, self._xx, self._xy)
        self._n, self._x, self._y, self._xx, self._xy = (
            _FORGET * a + b for a, b in zip(old, new, strict=True)
        )

    def fit(self) -> tuple[float, float] | None:
        """Returns (fixed, each) in seconds; None with too few measurements."""
        if self._seen <= _ENOUGH:
            return None
        spread = self._n * self._xx - self._x * self._x
        flat = 0.0, self._y / self._x
        # Measurements of one size cannot separate the two parts: all time counts per unit.
        if spread <= 1e-6 * self._n * self._xx:
            return flat
        each = (self._n * self._xy - self._x * self._y) / spread
        if each <= 0:
            return self._y / self._n, 0.0
        fixed = (self._y - each * self._x) / self._n
        return flat if fixed < 0 else (fixed, each)


class Clock:
    """Times prefills of one request alone, and keeps samples for the daemon."""

    def __init__(self) -> None:
        self._samples: list[_Timing] = []
        self._span: tuple[int, int] | None = None
        self._began = 0.0
        self._warm = False  # a walk has ended

    def begin(self, span: tuple[int, int] | None) -> None:
        """Starts timing a prefill of tokens [begin, end) of a prompt. None: the engine also does
        other work, so the prefill is not timed."""
        self._span = None
        if span is not None and span[1] - span[0] >= _LEAST_TOKENS:
            self._span, self._began = span, time.perf_counter()

    def end(self) -> None:
        """Ends the timing that `begin` has started."""
        if self._span is not None:
            self._keep(Sample(*self._span, time.perf_counter() - self._began))
        self._span = None

    def walked(self, walk: Walked) -> None:
        """Records the times of a request's walk and captures. The first request is skipped, because
        its time includes the first use of memory and the choice of kernels."""
        if not (walk.rows or walk.placed or walk.captured):
            return
        if not self._warm:
            self._warm = True
            return
        if walk.rows + walk.placed:
            self._keep(WalkTiming(walk.rows, walk.placed, walk.seconds))
        if walk.captured:
            self._keep(CaptureTiming(walk.captured, walk.capture_seconds))

    def _keep(self, sample: _Timing) -> None:
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append(sample)

    def take(self) -> tuple[_Timing, ...]:
        """Returns the measurements since the last call."""
        samples, self._samples = tuple(self._samples), []
        return samples
