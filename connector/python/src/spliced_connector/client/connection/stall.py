"""Detects a daemon that is connected but silent."""

from __future__ import annotations

import threading
import time

# After this many consecutive calls without an answer or any other frame from the daemon, further
# calls fail at once instead of waiting for their timeout. Fewer may be chance. (A guess.)
_CALLS = 3
# Any frame from the daemon ends a stall, such as a reply that is still outstanding. In case no
# frame ever comes, one call per this many seconds is sent anyway.
_PROBE = 1.0


class Stall:
    """Decides whether calls should be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late = 0
        self._probe = 0.0
        self.on = False

    @property
    def silent(self) -> bool:
        """Whether a call was not answered and nothing was heard since."""
        return self._late > 0

    def heard(self) -> bool:
        """Records a frame. Returns True if it ends a stall."""
        if not self._late:
            return False
        with self._lock:
            self._late = 0
            ended, self.on = self.on, False
            return ended

    def missed(self) -> bool:
        """Records a call without an answer. Returns True if it begins a stall."""
        with self._lock:
            self._late += 1
            if self.on or self._late < _CALLS:
                return False
            self.on = True
            self._probe = time.monotonic() + _PROBE
            return True

    def refuses(self) -> bool:
        """Returns whether a call should fail without being sent."""
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
