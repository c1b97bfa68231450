# Code generated from connector/wire/schema by wiregen; DO NOT EDIT.
"""Numbers of the protocol that callers of the client see."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Accept(IntFlag):
    """Accept bits say what a checkpoint is, or which ones a request takes."""

    NONE = 0
    """No checkpoint."""
    EXACT = 1
    """What a full prefill gives."""
    SPLICED = 2
    """It went through the composition of segments."""
    ANY = 3
    """Either."""
    ROWS = 4
    """Exact, and kept as rows without states: those of any of its tokens are rebuilt by `replay`.
    With the feature *rows* only.
    """


class Level(IntEnum):
    """Level is an acknowledgement level: what an object has to survive before its commit is
    answered, or what it survives. Every number but these is invalid.
    """

    DEFAULT = 0
    """What the daemon's `ack-level` says."""
    MEMORY = 1
    """Nothing: a daemon that ends may lose it."""
    LOGGED = 2
    """A killed daemon: the kernel has its bytes and the row that finds them."""
    SYNCED = 3
    """Power loss: the disk has both."""


class Status(IntEnum):
    """Status of a segment in a match."""

    MISS = 0
    """Not held."""
    HIT = 1
    """Held: `acquire` may lease it."""
    PENDING = 2
    """It is being filled."""


class Tier(IntEnum):
    """Tier numbers say where a segment or checkpoint lies."""

    NONE = 0
    """Nowhere."""
    HBM = 1
    """Memory of GPUs: all ranks with engines have it on theirs. Only connections with
    *attach-device* see this tier; others see the one that `acquire` reads.
    """
    DRAM = 2
    """Memory of the host."""
    DISK = 3
    """A hit that takes a read."""
    PEER = 4
    """Another node, or a store that nodes share, is believed to have it: a hit that is fetched.
    Only connections with *estimates* see this tier; for others it is a miss.
    """


class Reason(IntEnum):
    """Reason numbers say why something is a miss."""

    NONE = 0
    """It is no miss."""
    UNKNOWN = 1
    """Never seen."""
    EVICTED = 2
    """It left to make room."""
    PENDING = 3
    """It is being filled."""
    REMOVED = 4
    """By an operator."""
    REFUSED = 5
    """By admission, a quota or for want of room."""
    ABORTED = 6
    """Its writer failed."""
    OTHER_KIND = 7
    """A checkpoint is held, but not of an accepted kind."""
    OFF = 8
    """The profile is switched off for splicing, see *report*."""


class Way(IntEnum):
    """Way to serve a prompt; AdviseReply.WayMicros is indexed by way minus one."""

    RECOMPUTE = 1
    """Nothing is used."""
    PREFIX = 2
    """From the longest checkpoint on."""
    SPLICE = 3
    """From the longest checkpoint on, with the segments that are held."""
    REPLAY = 4
    """From a token inside a buffer on."""


class Splicing(IntEnum):
    """Splicing numbers are ways to splice a request within its max loss."""

    ASKED = 0
    """As it asked."""
    REFRESHED = 1
    """With the last of its segments computed in context."""
    NONE = 2
    """Not at all."""


class Why(IntEnum):
    """Why numbers say why a checkpoint at a position is worth having."""

    BRANCH = 1
    """Prompts part there."""
    LAST = 2
    """The last position that the same prompt can use, or the end of an answer."""
    BOUNDARY = 3
    """A cut that the application named."""
    PLACED = 4
    """Placed from the depths at which earlier prompts parted."""


class Verdict(IntEnum):
    """Advice numbers say why something is worth storing (below 16) or is not. Unlike a Reason of
    match this is about objects that are not held yet.
    """

    NONE = 0
    """It is held, or being stored."""
    SEEN = 1
    """It came before."""
    CHEAP = 2
    """Storing it costs next to nothing of computing it."""
    ASKED = 3
    """The application named it."""
    RETURNING = 4
    """Such things come back."""
    SHORT = 16
    """Computing it again takes less than fetching it."""
    COLD = 17
    """Not expected back often enough for what storing it takes."""
    THIN = 18
    """Saves less per byte than what would have to leave."""
    LARGE = 19
    """Takes more than its share of the pool."""
    NO_GAIN = 20
    """Fetching it is no faster than computing it."""


class Alone(IntEnum):
    """Alone numbers say why nothing was begun for a plan."""

    NONE = 0
    """It was."""
    NO_GAIN = 1
    """Others would not have them here sooner."""
    NO_WORKERS = 2
    """No engine of another connection takes jobs of this profile and tenant."""
    NOT_ALLOWED = 3
    """The tenant has not `parallel`: its token ids stay on this node."""
    NO_ROOM = 4
    """What others compute would not fit here."""
    BUSY = 5
    """A bound on plans is met, here or for the connection."""
    OFF = 6
    """The profile is switched off for splicing, see *report*."""
    HERE = 7
    """All rows are held or computed here already."""


class Progress(IntEnum):
    """Progress numbers say what happened to a row of a plan."""

    COMMITTED = 1
    """It is here: `acquire` leases it."""
    ABORTED = 2
    """Its worker declined, is gone, or its bytes did not come; compute it."""
    LATE = 3
    """It is not here in time; compute it."""
    PIECE = 4
    """Its first piece is here, the key of the tokens before `own begins`. The row is still open."""


NONE64 = 2**64 - 1
"""An offset that stands for no offset."""
