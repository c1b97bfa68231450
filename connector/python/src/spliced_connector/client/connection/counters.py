"""Counts of a client, by name."""

import threading
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Counters:
    """Counts of a client since it was made."""

    attached: int = 0
    """Times a daemon was found."""
    lost: int = 0
    """Times the daemon went away or broke the protocol."""
    malformed: int = 0
    """Frames that broke the protocol."""
    calls: int = 0
    """Requests that were sent for callers."""
    unavailable: int = 0
    """Calls that found no daemon."""
    refused: int = 0
    """Calls that the daemon answered with an error other than a miss."""
    invalid: int = 0
    """Calls with invalid arguments."""
    late: int = 0
    """Calls abandoned at their deadline."""
    late_replies: int = 0
    """Replies that arrived after their caller had returned."""
    unknown: int = 0
    """Replies that belong to no request of this client."""
    stalled: int = 0
    """Calls that failed at once because the daemon had stopped answering."""
    gave_back: int = 0
    """Leases and reservations that were given back afterwards: they came late, were dropped without
    release, or the daemon did not accept them the first time."""
    waits: int = 0
    """Calls that waited because too many were in flight."""
    unsent: int = 0
    """Cancels and releases that could not be sent at once."""
    corrupt: int = 0
    """Chunks whose digest did not match when they were read."""
    doubtful: int = 0
    """Leases whose bytes were not known to be valid when they were released."""
    advised: int = 0
    """Advice received."""
    unadvised: int = 0
    """Requests for advice without a daemon or without a reply in time."""
    published: int = 0
    """Stored segments and checkpoints."""
    unpublished: int = 0
    """Segments and checkpoints that were not stored, for any reason."""
    inert: int = 0
    """Calls in a forked child, which has no connection."""


class Tally:
    """Counters that several threads may use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {field.name: 0 for field in fields(Counters)}

    def add(self, name: str, n: int = 1) -> None:
        """Adds n to the counter of that name."""
        with self._lock:
            self._counts[name] += n

    def forked(self) -> None:
        """Resets counts and lock in a forked child: the parent may have held the lock."""
        self.__init__()  # type: ignore[misc]

    def snapshot(self) -> Counters:
        """Returns the current counts."""
        with self._lock:
            return Counters(**self._counts)
