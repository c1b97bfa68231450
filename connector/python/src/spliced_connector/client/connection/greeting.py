"""What a daemon grants a connection."""

from __future__ import annotations

from dataclasses import dataclass

from spliced_connector.client.connection.region import Region


@dataclass(frozen=True)
class Grant:
    """The daemon's number and salt of a tenant of the connection."""

    tenant: int
    salt: bytes


@dataclass(frozen=True)
class Greeting:
    """What the daemon has granted with hello."""

    epoch: int
    server: str
    grants: tuple[Grant, ...]
    max_in_flight: int
    crc32: bool  # digests of commits are CRC-32
    device: bool  # memory of a GPU can be attached
    known: bool  # segments are found by the tokens of a prompt
    rows: bool  # checkpoints can be kept as rows
    packed: bool  # profiles may have a tolerance
    buffered: bool  # rows can be saved out of a buffer
    splices: bool  # walk times are learned, and advice includes the extent of a splice
    primers: bool  # segments are named by the primer they were captured after
    losses: bool  # losses of splices are kept, and requests say which they accept
    lookup: bool  # advice may come with a match
    arena: Region
    slots: Region
    staging: Region
