"""Numbers of the protocol that callers of the client see."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Accept(IntFlag):
    """What a checkpoint is, or which ones a request takes."""

    NONE = 0
    EXACT = 1
    """What a full prefill gives."""
    SPLICED = 2
    """It went through the composition of segments."""
    ANY = 3


class Level(IntEnum):
    """What an object survives before its commit is answered."""

    DEFAULT = 0
    """As the daemon is configured."""
    MEMORY = 1
    LOGGED = 2
    """A killed daemon."""
    SYNCED = 3
    """Power loss."""


class Status(IntEnum):
    """What `match` says of a segment."""

    MISS = 0
    HIT = 1
    PENDING = 2
    """Somebody is filling it."""


class Tier(IntEnum):
    """Where something lies."""

    NONE = 0
    HBM = 1
    DRAM = 2
    DISK = 3


class Reason(IntEnum):
    """Why something is a miss."""

    NONE = 0
    UNKNOWN = 1
    EVICTED = 2
    PENDING = 3
    REMOVED = 4
    REFUSED = 5
    ABORTED = 6
    OTHER_KIND = 7
    """A checkpoint is held, but not of an accepted kind."""
    OFF = 8
    """The profile is switched off for splicing."""


class Way(IntEnum):
    """How a prompt is served the quickest."""

    RECOMPUTE = 1
    PREFIX = 2
    SPLICE = 3
    REPLAY = 4


class Why(IntEnum):
    """What makes a position one for a checkpoint."""

    BRANCH = 1
    """Prompts part there."""
    LAST = 2
    """The last token."""
    BOUNDARY = 3
    """A cut that the application named."""
    PLACED = 4
    """Placed from the depths at which earlier prompts parted."""


class Verdict(IntEnum):
    """Why the daemon advises to store something (below 16), or not to."""

    NONE = 0
    SEEN = 1
    CHEAP = 2
    ASKED = 3
    RETURNING = 4
    SHORT = 16
    COLD = 17
    THIN = 18
    LARGE = 19
    NO_GAIN = 20


NONE64 = 2**64 - 1
"""An offset that stands for no offset."""
