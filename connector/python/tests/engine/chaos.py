"""What happens to a daemon while engines use it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from running import Daemon

Between = tuple[float, float]
"""Seconds: a draw from least to most."""


class Chaos:
    """Does something to the daemon, every so often, on a thread of its own."""

    def __init__(
        self,
        daemon: Daemon,
        seed: int,
        counts: Counter[str],
        *,
        pause: Between = (0.05, 2.0),
        stall: Between = (0.01, 1.0),
        away: Between = (0.0, 0.5),
    ) -> None:
        """counts: of what was done, by name. pause: between two faults; stall: how long the daemon
        stands still; away: until one that ended starts again."""
        self.daemon, self._random, self._counts = daemon, random.Random(seed), counts
        self._pause, self._stalled, self._away = pause, stall, away
        self._stop = threading.Event()
        self.ends: dict[str, Callable[[], None]] = {"killed": daemon.kill, "restarted": daemon.stop}
        """Faults that end the daemon, which is started again then."""
        self.others: dict[str, Callable[[], None]] = {"stalled": self._stall}
        self.failed: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        faults = self.others | self.ends
        try:
            while not self._wait(self._pause):
                what = self._random.choice(list(faults))
                self._counts[what] += 1
                faults[what]()
                if what in self.ends:
                    self._wait(self._away)
                    self.daemon.start()
        except Exception as err:
            self.failed = err

    def _stall(self) -> None:
        self.daemon.pause()
        self._wait(self._stalled)
        self.daemon.resume()

    def _wait(self, between: Between) -> bool:
        """Whether it is to end."""
        return self._stop.wait(self._random.uniform(*between))
