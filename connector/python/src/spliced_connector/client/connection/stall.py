"""Watches for a daemon that is connected and silent."""

from __future__ import annotations

import threading
import time

# After so many calls in a row without an answer, while nothing at all came from the daemon,
# further ones fail at once instead of costing their time-out each. One may be bad luck (a guess).
_CALLS = 3
# Any frame ends that. The replies that are outstanding would do; a call in so many seconds is let
# through all the same, in case they never come.
_PROBE = 1.0


class Stall:
    """Whether calls should be tried at all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late = 0
        self._probe = 0.0
        self.on = False

    def heard(self) -> bool:
        """Note a frame; True when it ends a stall."""
        if not self._late:
            return False
        with self._lock:
            self._late = 0
            ended, self.on = self.on, False
            return ended

    def missed(self) -> bool:
        """Note a call without an answer; True when it begins a stall."""
        with self._lock:
            self._late += 1
            if self.on or self._late < _CALLS:
                return False
            self.on = True
            self._probe = time.monotonic() + _PROBE
            return True

    def refuses(self) -> bool:
        """Whether a call should not even try."""
        if not self.on:
            return False
        with self._lock:
            now = time.monotonic()
            if not self.on:
                return False
            if now < self._probe:
                return True
            self._probe = now + _PROBE
            return False
