# Code generated from connector/wire/schema by wiregen; DO NOT EDIT.
"""Numbers of the protocol that callers of the client see."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Accept(IntFlag):
    """Accept bits are the kind of a checkpoint, or the kinds that a request accepts."""

    NONE = 0
    """No checkpoint."""
    EXACT = 1
    """The states are those of a full prefill."""
    SPLICED = 2
    """The states were composed from segments."""
    ANY = 3
    """Exact or spliced."""
    ROWS = 4
    """Exact, but stored as rows without states: `replay` rebuilds the states at any of its tokens.
    Only with the feature *rows*.
    """


class Level(IntEnum):
    """Level is an acknowledgement level: the failure that an object must survive before its commit
    is answered, or the failure that it survives. All other numbers are invalid.
    """

    DEFAULT = 0
    """The level in the daemon's setting `ack-level`."""
    MEMORY = 1
    """No failure: the object may be lost when the daemon ends."""
    LOGGED = 2
    """A kill of the daemon: the kernel has the bytes and the row with their location."""
    SYNCED = 3
    """A loss of power: the disk has the bytes and the row with their location."""


class Status(IntEnum):
    """Status of a segment in a match."""

    MISS = 0
    """Not cached."""
    HIT = 1
    """Cached: `acquire` may lease it."""
    PENDING = 2
    """A client is filling it."""


class Tier(IntEnum):
    """Tier numbers say where a segment or checkpoint is stored."""

    NONE = 0
    """Nowhere."""
    HBM = 1
    """Memory of GPUs: each rank that has an engine has a copy on its GPU. Only connections with
    *attach-device* see this tier; other connections see the tier that `acquire` reads.
    """
    DRAM = 2
    """Memory of the host."""
    DISK = 3
    """The disk: a hit that must first be read."""
    PEER = 4
    """Another node, or a store that nodes share, is believed to have it: a hit that must first be
    fetched. Only connections with *estimates* see this tier; for other connections it is a miss.
    """


class Reason(IntEnum):
    """Reason numbers say why something is a miss."""

    NONE = 0
    """Not a miss."""
    UNKNOWN = 1
    """Never seen."""
    EVICTED = 2
    """Evicted to make room."""
    PENDING = 3
    """A client is filling it."""
    REMOVED = 4
    """Removed by an operator."""
    REFUSED = 5
    """Refused by admission or by a quota, or for lack of room."""
    ABORTED = 6
    """Its writer failed."""
    OTHER_KIND = 7
    """A checkpoint is cached, but not of an accepted kind."""
    OFF = 8
    """The profile is switched off for splicing, see *report*."""


class Way(IntEnum):
    """Way to serve a prompt; AdviseReply.WayMicros is indexed by way minus one."""

    RECOMPUTE = 1
    """Computing everything."""
    PREFIX = 2
    """Continuing from the longest checkpoint."""
    SPLICE = 3
    """Continuing from the longest checkpoint, with the cached segments."""
    REPLAY = 4
    """Continuing from a token inside a buffer."""


class Splicing(IntEnum):
    """Splicing numbers are ways to splice a request within its max loss."""

    ASKED = 0
    """As requested."""
    REFRESHED = 1
    """With the last segment computed in context."""
    NONE = 2
    """Not at all."""


class Why(IntEnum):
    """Why numbers say why a checkpoint at a position is worth having."""

    BRANCH = 1
    """Prompts branch there."""
    LAST = 2
    """The last position that the same prompt can use, or the end of an answer."""
    BOUNDARY = 3
    """A cut that the application named."""
    PLACED = 4
    """Chosen from the depths at which earlier prompts branched."""


class Verdict(IntEnum):
    """Advice numbers say why an object is worth storing (numbers below 16) or is not. Unlike the
    Reason of a match, they concern objects that are not cached yet.
    """

    NONE = 0
    """It is cached or being stored."""
    SEEN = 1
    """It was seen before."""
    CHEAP = 2
    """Not seen before, but storing it costs very little compared with computing it."""
    ASKED = 3
    """The application named it."""
    RETURNING = 4
    """Not seen before, but similar objects are used again."""
    SHORT = 16
    """Computing it again takes less time than fetching it."""
    COLD = 17
    """Not expected to be used often enough to justify the cost of storing it."""
    THIN = 18
    """Saves less per byte than the objects that would be evicted for it."""
    LARGE = 19
    """Takes more than its share of the pool."""
    NO_GAIN = 20
    """Fetching it is no faster than computing it."""


class Alone(IntEnum):
    """Alone numbers say why no plan was started."""

    NONE = 0
    """A plan was started."""
    NO_GAIN = 1
    """With other engines, the rows would not be available sooner."""
    NO_WORKERS = 2
    """No engine of another connection takes jobs of this profile and tenant."""
    NOT_ALLOWED = 3
    """The tenant does not have `parallel`: its token ids must stay on this node."""
    NO_ROOM = 4
    """This node has no room for the results of other engines."""
    BUSY = 5
    """The maximum number of plans is reached, on this node or on the connection."""
    OFF = 6
    """The profile is switched off for splicing, see *report*."""
    HERE = 7
    """All rows are already cached or being computed on this node."""


class Progress(IntEnum):
    """Progress numbers say what happened to a row of a plan."""

    COMMITTED = 1
    """The row is on this node: `acquire` leases it."""
    ABORTED = 2
    """The worker declined the row or is gone, or the bytes did not arrive; compute the row."""
    LATE = 3
    """The row did not arrive in time; compute it."""
    PIECE = 4
    """The first piece of the row is on this node: the segment of the tokens before `own begins`.
    The row is still open.
    """


NONE64 = 2**64 - 1
"""An offset that stands for no offset."""
