# Code generated from connector/wire/schema by wiregen; DO NOT EDIT.
"""Outcomes of the protocol."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The outcome of a request or of one row of a batch. A miss is an answer, not an error. Numbers
    are never reused.
    """

    OK = 0
    """Done."""
    MISS = 1
    """Not cached, or not cached in an acceptable form."""
    INVALID = 2
    """The request can never be right."""
    BUSY = 3
    """The limit of work in flight is reached, or the row did not fit into this reply."""
    FULL = 4
    """No room after eviction."""
    GONE = 5
    """The lease, reservation, slot or memory is not there any more."""
    CORRUPT = 6
    """Bytes did not match their digest."""
    UNAVAILABLE = 7
    """Starting or stopping."""
    EXISTS = 8
    """Another client has published this key or is filling it."""
    DENIED = 9
    """Tenant or peer not allowed."""
    STALE = 10
    """Epoch of another daemon start."""
    UNSUPPORTED = 11
    """Unknown operation, version or feature."""
    CANCELED = 12
    """By `cancel`, or the connection ended."""
    LATE = 13
    """The deadline passed."""
    QUOTA = 14
    """The tenant's byte quota is used up."""
