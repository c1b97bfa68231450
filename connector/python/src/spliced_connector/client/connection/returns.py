"""Requests that a connection sends on its own: releases, aborts and cancels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, cast

from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.exchange import Exchange
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.client.connection.staging import Staging
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import (
    MESSAGES,
    AbortRequest,
    AcquireReply,
    AppendReply,
    CancelRequest,
    CodesReply,
    ComposeReply,
    Header,
    LoadReply,
    Message,
    Op,
    ReleaseRequest,
    ReserveReply,
    RotateReply,
    op_name,
)
from spliced_connector.wire.numbers import MAX_IDS

_WORTH_RETRY = {Code.BUSY, Code.LATE, Code.UNAVAILABLE, Code.CANCELED}


class Return(NamedTuple):
    """How ids of leases or reservations are given back: each request has one kind and tenant."""

    op: int  # RELEASE for leases, ABORT for reservations
    tenant: int

    def request(self, ids: list[int]) -> Message:
        """Builds the request."""
        return AbortRequest(ids) if self.op == Op.ABORT else ReleaseRequest(ids)


class Pending:
    """Ids to give back later: they came late, were dropped without release, or the daemon did not
    accept them the first time.

    If they were forgotten, their memory would be unavailable to all clients for as long as the
    connection lives. Their number is limited by what the daemon grants one connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[Return, list[int]] = {}

    def add(self, how: Return, ids: list[int]) -> None:
        """Adds ids to give back later."""
        with self._lock:
            self._ids.setdefault(how, []).extend(ids)

    def take(self) -> tuple[Return, list[int]] | None:
        """Removes and returns as many ids as one request carries; None if there are none."""
        with self._lock:
            for how, ids in self._ids.items():
                now, later = ids[:MAX_IDS], ids[MAX_IDS:]
                if later:
                    self._ids[how] = later
                else:
                    del self._ids[how]
                return how, now
        return None


class Returns:
    """Gives leases and reservations back and cancels abandoned requests. Any thread may use it."""

    def __init__(
        self, exchange: Exchange, staging: Staging, tally: Tally, wake: Callable[[], bool]
    ) -> None:
        self._exchange = exchange
        self._flight = exchange.flight
        self._staging = staging
        self._tally = tally
        self._wake = wake
        self._pending = Pending()

    def now(self, how: Return, ids: list[int], timeout: float) -> list[int] | None:
        """Gives ids back and waits for the daemon's answer. Returns the code for each id, or None
        if the daemon has sent no codes.

        Ids that the daemon does not accept now are sent again later. If the daemon is gone, there
        is nothing to release.
        """
        exchange = self._exchange
        call = Call(how.op, time.monotonic() + timeout, Late(how.tenant, returns=tuple(ids)))
        try:
            exchange.start(call, how.request(ids))
            codes = list(exchange.result(call, CodesReply).codes)
        except SplicedError as err:
            if not call.left and err.code in _WORTH_RETRY:
                self.later(how, ids)
            return None
        if len(codes) != len(ids):
            exchange.garbage(f"{op_name(how.op)}: {len(codes)} rows, want {len(ids)}")
            return None
        return codes

    def later(self, how: Return, ids: list[int]) -> None:
        """Gives ids back without waiting, once requests can be sent."""
        self._pending.add(how, ids)
        self._wake()

    def send(self) -> bool:
        """Gives pending ids back and cancels abandoned requests. Returns False if some are left to
        be sent."""
        return self._give_back() and self._cancel()

    def _give_back(self) -> bool:
        while (pending := self._pending.take()) is not None:
            how, ids = pending
            late = Late(how.tenant, returns=tuple(ids))
            self._tally.add("gave_back", len(ids))
            if not self._exchange.post(how.op, late, how.request(ids)):
                self._tally.add("gave_back", -len(ids))
                self._pending.add(how, ids)
                return False
        return True

    def _cancel(self) -> bool:
        all_sent = True
        for call in self._flight.unasked():
            late = Late(call.late.tenant, cancels=call.request)
            if not self._exchange.post(Op.CANCEL, late, CancelRequest([call.request])):
                self._flight.ask_again(call.request)
                all_sent = False
        return all_sent

    def replied(self, call: Call, header: Header, body: memoryview) -> None:
        """Handles a reply without a waiting caller: frees staging, settles writes, gives ids
        back."""
        late = call.late
        if not call.own:
            self._tally.add("late_replies")
        self._staging.free(late.staged)
        if late.write is not None:
            late.write.settle()
        if late.cancels:
            self._cancelled(late, header.code)
        if late.gives_back and header.code == Code.OK:
            leases, reservations = granted(call.op, body)
            if leases:
                self.later(Return(Op.RELEASE, late.tenant), leases)
            if reservations:
                self.later(Return(Op.ABORT, late.tenant), reservations)
        if late.returns and header.code in _WORTH_RETRY:
            self.later(Return(call.op, late.tenant), list(late.returns))

    def _cancelled(self, late: Late, code: int) -> None:
        """Handles the reply to a cancel. The daemon sends it once the cancelled request can no
        longer touch its destination."""
        if code == Code.OK:
            write = self._flight.cancelled(late.cancels)
            if write is not None:
                write.settle()
        elif code in _WORTH_RETRY:
            self._flight.ask_again(late.cancels)


def granted(op: int, body: memoryview) -> tuple[list[int], list[int]]:
    """Returns the leases and reservations in a reply. If the reply cannot be read, both lists are
    empty, and what the daemon has granted ends when it expires."""
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
