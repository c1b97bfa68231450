"""The requests of one connection that have no reply yet, and the choice of the thread that reads
replies."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from spliced_connector.client.connection.staging import Extent
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import Header, op_name

OWN_PLACES = 4
"""Places reserved for cancels and releases, so that they can be sent when callers fill the
table."""


class Write:
    """The outcome of a rotate or assemble request that writes into engine memory.

    Until it is settled, the daemon may still write to the blocks that the request names, so they
    must not be used.
    """

    def __init__(self) -> None:
        self.code: int = Code.OK
        """The outcome. The blocks hold the requested rows only if it is OK."""
        self._done = threading.Event()
        self._known = True

    def wait(self, timeout: float) -> bool:
        """Waits until the daemon can no longer touch the blocks: it has answered the request,
        acknowledged a cancel, or is gone. Returns False if that is not known within `timeout`
        seconds."""
        return self._done.wait(timeout) and self._known

    @property
    def settled(self) -> bool:
        """Returns whether the blocks may be reused."""
        return self._done.is_set() and self._known

    def settle(self, *, known: bool = True) -> None:
        """Records that the daemon no longer writes. If `known` is False: that it can never be known
        whether the daemon still writes."""
        if not self._done.is_set():
            self._known = known
            self._done.set()


@dataclass(slots=True)
class Late:
    """What to do when a reply arrives after its caller has returned."""

    tenant: int = 0
    gives_back: bool = False  # leases or reservations in the reply must be returned
    cancel: bool = False  # the daemon must be told to stop
    asked: bool = False  # a cancel was sent
    staged: list[Extent] = field(default_factory=list)  # staging that the request uses
    write: Write | None = None  # the request writes into engine memory
    # For requests without a waiting caller:
    cancels: int = 0  # the request that this one cancels
    returns: tuple[int, ...] = ()  # leases or reservations that it returns


class Call:
    """One request and its reply."""

    __slots__ = (
        "deadline", "descriptors", "late", "left", "op", "own", "reply", "request", "trouble",
        "wake",
    )  # fmt: skip

    def __init__(self, op: int, deadline: float, late: Late, *, own: bool = False) -> None:
        self.op = op
        self.deadline = deadline
        self.late = late
        self.own = own
        self.request = 0
        self.left = own  # no caller waits
        self.reply: tuple[Header, memoryview] | None = None
        self.descriptors: list[int] | None = None  # receives those of the reply; None: not wanted
        self.trouble: str | None = None  # set if the connection failed before a reply
        self.wake: threading.Lock | None = None

    @property
    def settled(self) -> bool:
        """Returns whether the caller can stop waiting."""
        return self.reply is not None or self.trouble is not None


class Flight:
    """The table of requests, bounded by `places`.

    An entry stays until its reply has arrived, even if its caller has returned, so that staging
    and destinations stay reserved as long as the daemon may use them.

    One caller at a time leads: it reads replies for all callers, so that a lone caller needs no
    thread switch. The other callers follow. A leader that steps down wakes one follower.
    """

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._own = min(OWN_PLACES, places // 2)
        self._free = places - self._own
        self._calls: dict[int, Call] = {}
        self._last = 1  # request 1 was hello
        self._ended: str | None = None
        self._led = False
        self._followers: dict[int, Call] = {}
        self._orphans = 0

    def enter(self, call: Call) -> bool:
        """Assigns a place and a request id to a call; waits for a place. Returns True if it had to
        wait.

        Raises `SplicedError`: BUSY if no place was free by the deadline, UNAVAILABLE if the
        connection has ended.
        """
        waited = False
        with self._lock:
            while self._free == 0 and self._ended is None:
                left = call.deadline - time.monotonic()
                if left <= 0:
                    raise SplicedError(Code.BUSY, f"{len(self._calls)} requests in flight")
                waited = True
                self._room.wait(left)
            if self._ended is not None:
                raise SplicedError(Code.UNAVAILABLE, self._ended)
            self._free -= 1
            self._add(call)
        return waited

    def enter_own(self, call: Call) -> bool:
        """Like `enter`, for a request without a waiting caller. Returns False if there is no
        place."""
        with self._lock:
            if self._own == 0 or self._ended is not None:
                return False
            self._own -= 1
            self._orphans += 1
            self._add(call)
            return True

    def _add(self, call: Call) -> None:
        self._last += 1
        call.request = self._last
        self._calls[call.request] = call

    def remove(self, call: Call) -> None:
        """Removes a request that was never sent."""
        with self._lock:
            if self._calls.get(call.request) is call:
                self._clear(call)

    def _clear(self, call: Call) -> None:
        del self._calls[call.request]
        if call.left:
            self._orphans -= 1
        if call.own:
            self._own += 1
        else:
            self._free += 1
            self._room.notify()

    def take(
        self, header: Header, body: memoryview, descriptors: list[int]
    ) -> tuple[Call | None, bool]:
        """Accepts a reply. Returns the call if its caller has already returned (else None), and
        whether the request is known.

        If the caller requested descriptors, they are moved from the list to the call. Raises
        `WireError` for a reply of another operation.
        """
        with self._lock:
            call = self._calls.get(header.request)
            if call is None:
                return None, False
            if call.op != header.op:
                text = f"reply to request {header.request} is for {op_name(header.op)}"
                raise WireError(f"{text}, want {op_name(call.op)}")
            self._clear(call)
            if call.left:
                return call, True
            if call.descriptors is not None:
                call.descriptors += descriptors
                descriptors.clear()
            call.reply = header, body
            self._wake(call)
            return None, True

    def _wake(self, call: Call) -> None:
        if self._followers.pop(call.request, None) is not None and call.wake is not None:
            call.wake.release()

    def lead(self) -> bool:
        """Makes the calling thread the leader. Returns False if another thread leads."""
        with self._lock:
            if self._led:
                return False
            self._led = True
            return True

    def step_down(self) -> None:
        """Ends the lead, and wakes a follower."""
        with self._lock:
            self._led = False
            self._nudge()

    def hand_on(self) -> None:
        """Wakes a follower if callers wait and no thread reads."""
        if self._followers and not self._led:
            with self._lock:
                self._nudge()

    def _nudge(self) -> None:
        if self._followers and not self._led:
            self._wake(next(iter(self._followers.values())))

    def follow(self, call: Call, seconds: float) -> None:
        """Waits until the reply has arrived, no thread reads any more, or `seconds` are over."""
        with self._lock:
            if call.settled or not self._led:
                return
            if call.wake is None:
                call.wake = threading.Lock()
                call.wake.acquire()
            self._followers[call.request] = call
        if call.wake.acquire(timeout=max(seconds, 0)):
            return
        with self._lock:
            if self._followers.pop(call.request, None) is None:
                call.wake.acquire(blocking=False)  # it was woken at the last moment

    def leave(self, call: Call) -> bool:
        """Detaches a call from its caller. Returns False if it was answered in the meantime."""
        with self._lock:
            if call.settled:
                return False
            call.left = True
            self._orphans += 1
            return True

    def end(self, why: str) -> None:
        """Refuses further requests and answers all callers with an error.

        Calls that write into engine memory keep their place: the daemon may go on writing after a
        failure of the connection, until the end of file.
        """
        with self._lock:
            self._ended = why
            for call in list(self._calls.values()):
                if call.left:
                    continue
                call.trouble = why
                if call.late.write is None:
                    self._clear(call)
                else:
                    call.left = True
                    self._orphans += 1
                self._wake(call)
            self._room.notify_all()

    def drain(self) -> list[Call]:
        """Empties the table after `end`. Returns its entries."""
        with self._lock:
            left = list(self._calls.values())
            for call in left:
                self._clear(call)
            return left

    def unasked(self) -> list[Call]:
        """Returns abandoned requests for which no cancel was sent, and marks them as cancelled."""
        with self._lock:
            found = [
                c for c in self._calls.values() if c.left and c.late.cancel and not c.late.asked
            ]
            for call in found:
                call.late.asked = True
            return found

    def ask_again(self, request: int) -> None:
        """Undoes `unasked` for one request, whose cancel must be sent again."""
        with self._lock:
            call = self._calls.get(request)
            if call is not None:
                call.late.asked = False

    def cancelled(self, request: int) -> Write | None:
        """Returns the write of a cancelled request, None if it is no longer in the table."""
        with self._lock:
            call = self._calls.get(request)
            return call.late.write if call is not None else None

    @property
    def orphans(self) -> int:
        """Returns the number of outstanding replies without a caller."""
        return self._orphans

    def writing(self) -> bool:
        """Returns whether a request without a reply may write into engine memory."""
        with self._lock:
            return any(call.late.write is not None for call in self._calls.values())
