"""Progress of a measurement, with the expected remaining time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

_KNOWN = 3
"""Number of prompts before a time is estimated: the first one also loads and compiles kernels."""

_EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """Writes lines about prompts of given lengths, which are measured in that order. clock returns
    seconds."""

    def __init__(self, tokens: Sequence[int], out: TextIO, clock: Callable[[], float]) -> None:
        self._tokens, self._out, self._clock = tokens, out, clock
        self._n = 0
        self._began = clock()
        self._last = self._began

    def done(self) -> None:
        """Records that one more prompt is measured."""
        self._n += 1
        now, total = self._clock(), len(self._tokens)
        due = now - self._last >= _EVERY or self._n in (_KNOWN, total)
        if self._n < min(_KNOWN, total) or not due:
            return
        self._last = now
        pace = (now - self._began) / sum(self._tokens[: self._n])
        left = pace * sum(self._tokens[self._n :])
        print(
            f"{self._n} of {total} prompts in {_time(now - self._began)}, {_time(left)} left",
            file=self._out,
            flush=True,
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
