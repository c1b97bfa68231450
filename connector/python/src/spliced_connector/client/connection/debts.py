"""Leases and reservations that the daemon still has to be told are ours no longer."""

from __future__ import annotations

import threading
from typing import NamedTuple, cast

from spliced_connector.errors import Code, WireError
from spliced_connector.wire import (
    MESSAGES,
    AbortRequest,
    AcquireReply,
    AppendReply,
    ComposeReply,
    LoadReply,
    Message,
    Op,
    ReleaseRequest,
    ReserveReply,
    RotateReply,
)
from spliced_connector.wire.numbers import MAX_IDS


class Debt(NamedTuple):
    """Whom ids are owed to, and how they are returned."""

    op: int  # RELEASE or ABORT
    tenant: int


class Debts:
    """What came late, was dropped without release, or was not taken by the daemon.

    What is not returned would be lost to everybody for as long as the connection lives. The size
    is bounded by what the daemon grants one connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[Debt, list[int]] = {}

    def add(self, debt: Debt, ids: list[int]) -> None:
        """Owe ids."""
        with self._lock:
            self._due.setdefault(debt, []).extend(ids)

    def take(self) -> tuple[Debt, list[int]] | None:
        """Remove as many ids as one request carries."""
        with self._lock:
            for debt, ids in self._due.items():
                now, later = ids[:MAX_IDS], ids[MAX_IDS:]
                if later:
                    self._due[debt] = later
                else:
                    del self._due[debt]
                return debt, now
        return None

    @property
    def none(self) -> bool:
        """Whether nothing is owed."""
        return not self._due


def returning(op: int, ids: list[int]) -> Message:
    """The request that gives ids back."""
    return AbortRequest(ids) if op == Op.ABORT else ReleaseRequest(ids)


_WORTH = {Code.BUSY, Code.LATE, Code.UNAVAILABLE, Code.CANCELED}


def worth_retry(code: int) -> bool:
    """Whether a request that failed like this may succeed later."""
    return code in _WORTH


def granted(op: int, body: memoryview) -> tuple[list[int], list[int]]:
    """Leases and reservations in a reply; one that cannot be read is left to its time-out."""
    try:
        reply = MESSAGES[op][1].schema.decode(body)
    except WireError:
        return [], []
    match op:
        case Op.ACQUIRE | Op.ACQUIRE_DEVICE:
            rows = cast(AcquireReply, reply)
            return _with_code(rows.codes, rows.leases), []
        case Op.RESERVE | Op.SAVE:
            reserved = cast(ReserveReply, reply)
            return [], _with_code(reserved.codes, reserved.reservations)
        case Op.APPEND:
            return [cast(AppendReply, reply).buffer], []
        case Op.LOAD | Op.LOAD_DEVICE | Op.COMPOSE | Op.REPLAY | Op.ROTATE | Op.ASSEMBLE:
            lease = cast(LoadReply | ComposeReply | RotateReply, reply).lease
            return [lease] if lease else [], []
    return [], []


def _with_code(codes: object, ids: object) -> list[int]:
    rows = zip(cast(list[int], codes), cast(list[int], ids), strict=True)
    return [i for code, i in rows if code == Code.OK]
