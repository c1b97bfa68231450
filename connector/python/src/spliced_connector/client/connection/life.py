"""The life of one connection: its stages, and the users of its mappings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum, IntEnum


class Stage(IntEnum):
    """The stage of a connection; the words on the arrows are members of `Event`.

    ATTACHED --END--> ENDED --SETTLE--> GONE --LEAVE--> UNUSED
    """

    ATTACHED = 0
    """Requests can be sent."""
    ENDED = 1
    """No more requests; all callers have been answered."""
    GONE = 2
    """No more replies are awaited. Either the daemon has closed its side, so that it can no longer
    touch our memory, or no caller waits until it has closed its side."""
    UNUSED = 3
    """The last user of the mappings has left, and they are unmapped. Until then our sending side
    stays open, which makes the daemon keep leased pages."""


class Event(Enum):
    """What changes the stage of a connection."""

    END = "end"
    """A failure, the end of file, or our hang-up."""
    SETTLE = "settle"
    """No more replies are awaited."""
    LEAVE = "leave"
    """The last user leaves."""


_NEXT = {
    (Stage.ATTACHED, Event.END): Stage.ENDED,
    (Stage.ENDED, Event.SETTLE): Stage.GONE,
    (Stage.GONE, Event.LEAVE): Stage.UNUSED,
}


class Life:
    """The stage of a connection, and the number of its users.

    The connection itself is a user until stage GONE.

    Invariant: there is no new user after the last one has left.
    """

    def __init__(self) -> None:
        self.stage = Stage.ATTACHED
        self.cause = ""
        """Why the connection ended."""
        self.ended_at = 0.0
        self._lock = threading.Lock()
        self._users = 1

    def transition(self, event: Event, cause: str = "") -> Stage | None:
        """Changes the stage as `_NEXT` says. Returns the new stage, None if the event changes
        nothing."""
        with self._lock:
            stage = _NEXT.get((self.stage, event))
            if stage is None:
                return None
            if event is Event.END:
                self.cause, self.ended_at = cause, time.monotonic()
            self.stage = stage
            return stage

    def while_attached(self, work: Callable[[], None]) -> bool:
        """Calls `work` unless the connection has ended. Returns False if it has."""
        with self._lock:
            if self.stage is not Stage.ATTACHED:
                return False
            work()
            return True

    def enter(self) -> bool:
        """Adds a user. Returns False if the last user has already left."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def leave(self) -> bool:
        """Removes a user. Returns True if it was the last one."""
        with self._lock:
            self._users -= 1
            return self._users == 0

    @property
    def used(self) -> bool:
        """Returns whether there is a user."""
        return self._users > 0

    def forget(self) -> None:
        """Ends the connection in a forked child. It belongs to the parent process."""
        self._lock = threading.Lock()
        self.stage = Stage.ENDED
