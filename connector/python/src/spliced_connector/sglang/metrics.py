"""Exports the connector's counts with SGLang's Prometheus metrics.

Every count of `EngineTally` is a series whose label `what` has the name of the count, for example
`sglang:spliced_total{what="loaded_tokens"}`.
"""

from __future__ import annotations

import time

from spliced_connector.serving.tally import EngineTally

_SECONDS = 1.0
"""Seconds between two reads of the counts, which take a lock."""


class Counts:
    """Adds counts to a metric of SGLang's process, if it is started with --enable-metrics."""

    def __init__(self, tally: EngineTally) -> None:
        # Imported here, because prometheus_client reads the directory that SGLang's processes
        # share. SGLang sets this directory before it makes its caches.
        from prometheus_client import Counter

        self._tally = tally
        self._next = 0.0  # monotonic seconds
        self._counter = Counter(
            name="sglang:spliced",
            documentation="What the spliced connector has done, by name.",
            labelnames=["what"],
        )

    def update(self) -> None:
        """Exports the counts since the last time, at most once a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SECONDS
        self.update_now()

    def update_now(self) -> None:
        """Exports the counts since the last call."""
        for name, count in self._tally.news().items():
            self._counter.labels(name).inc(count)


def count_inert() -> None:
    """Exports the count of an engine that never reuses anything."""
    tally = EngineTally()
    tally.add("inert")
    Counts(tally).update_now()
