"""Requests that a connection makes on its own: cancels, and giving back what nobody wants."""

from __future__ import annotations

from collections.abc import Callable

from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.debts import Debt, Debts, granted, returning, worth_retry
from spliced_connector.client.connection.flight import Call, Flight, Late
from spliced_connector.client.connection.staging import Staging
from spliced_connector.errors import Code
from spliced_connector.wire import CancelRequest, Header, Message, Op

Post = Callable[[int, Late, Message], bool]
"""Sends a request whose reply no caller waits for; False when that is not possible now."""


class Errands:
    """What is left to do for calls that were given up. Usable by several threads."""

    def __init__(
        self, flight: Flight, staging: Staging, tally: Tally, post: Post, wake: Callable[[], bool]
    ) -> None:
        self._flight = flight
        self._staging = staging
        self._tally = tally
        self._post = post
        self._wake = wake
        self._debts = Debts()

    def owe(self, debt: Debt, ids: list[int]) -> None:
        """Return ids without waiting, now or when there is room."""
        self._debts.add(debt, ids)
        self._wake()

    def tend(self) -> bool:
        """Send what is owed and cancel what was given up; False when something is left."""
        return self._pay() and self._ask_to_stop()

    def _pay(self) -> bool:
        while (due := self._debts.take()) is not None:
            debt, ids = due
            late = Late(debt.tenant, returns=tuple(ids))
            if not self._post(debt.op, late, returning(debt.op, ids)):
                self._debts.add(debt, ids)
                return False
            self._tally.add("gave_back", len(ids))
        return True

    def _ask_to_stop(self) -> bool:
        every = True
        for call in self._flight.unasked():
            late = Late(call.late.tenant, cancels=call.request)
            if not self._post(Op.CANCEL, late, CancelRequest([call.request])):
                self._flight.ask_again(call.request)
                every = False
        return every

    def settle(self, call: Call, header: Header, body: memoryview) -> None:
        """Do what the reply to an abandoned request sets off."""
        late = call.late
        if not call.own:
            self._tally.add("late_replies")
        self._staging.free(late.staged)
        if late.write is not None:
            late.write.settle()
        if late.cancels:
            self._settle_cancel(late, header.code)
        if late.gives_back and header.code == Code.OK:
            leases, reservations = granted(call.op, body)
            if leases:
                self.owe(Debt(Op.RELEASE, late.tenant), leases)
            if reservations:
                self.owe(Debt(Op.ABORT, late.tenant), reservations)
        if late.returns and header.code != Code.OK and worth_retry(header.code):
            self.owe(Debt(call.op, late.tenant), list(late.returns))

    def _settle_cancel(self, late: Late, code: int) -> None:
        """The daemon answers it when the request cannot touch its destination any more."""
        if code == Code.OK:
            write = self._flight.cancelled(late.cancels)
            if write is not None:
                write.settle()
        elif worth_retry(code):
            self._flight.ask_again(late.cancels)
