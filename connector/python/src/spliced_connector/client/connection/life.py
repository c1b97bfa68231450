"""The life of one connection: its stages, and who uses what it has mapped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum, IntEnum


class Stage(IntEnum):
    """
    ATTACHED --END--> ENDED --SETTLE--> GONE --LEAVE--> UNUSED
    """

    ATTACHED = 0
    """Requests are sent."""
    ENDED = 1
    """No more requests; all callers have been answered."""
    GONE = 2
    """The daemon has ended its side, which it does when nothing there can touch our memory any
    more, or nobody waits to know."""
    UNUSED = 3
    """The last user of the mappings has left: they are given back. Until then the daemon keeps its
    pages, for as long as we go on being able to send."""


class Event(Enum):
    """What moves a connection on."""

    END = "end"
    """Trouble, the end of file, or we hang up."""
    SETTLE = "settle"
    """Nothing is waited for any more."""
    LEAVE = "leave"
    """The last user leaves."""


_NEXT = {
    (Stage.ATTACHED, Event.END): Stage.ENDED,
    (Stage.ENDED, Event.SETTLE): Stage.GONE,
    (Stage.GONE, Event.LEAVE): Stage.UNUSED,
}


class Life:
    """The stage of a connection, and the number of its users.

    The connection is a user itself until it is gone.

    Invariant: nobody becomes a user after the last one has left.
    """

    def __init__(self) -> None:
        self.stage = Stage.ATTACHED
        self.cause = ""
        """Why it ended."""
        self.ended_at = 0.0
        self._lock = threading.Lock()
        self._users = 1

    def transition(self, event: Event, cause: str = "") -> Stage | None:
        """The only place where the stage changes: to which one, None where it stays."""
        with self._lock:
            stage = _NEXT.get((self.stage, event))
            if stage is None:
                return None
            if event is Event.END:
                self.cause, self.ended_at = cause, time.monotonic()
            self.stage = stage
            return stage

    def while_attached(self, work: Callable[[], None]) -> bool:
        """Do something before the end; False when that has come."""
        with self._lock:
            if self.stage is not Stage.ATTACHED:
                return False
            work()
            return True

    def enter(self) -> bool:
        """Become a user; False when the last one has left."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def leave(self) -> bool:
        """Undo `enter`. True for the last one."""
        with self._lock:
            self._users -= 1
            return self._users == 0

    @property
    def used(self) -> bool:
        """Whether there is a user."""
        return self._users > 0

    def forget(self) -> None:
        """In a forked child: the connection is its parent's, and ended here."""
        self._lock = threading.Lock()
        self.stage = Stage.ENDED
