"""Requests of one connection that have no reply yet, and who reads the replies."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from spliced_connector.client.connection.staging import Extent
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import Header, op_name

OWN_PLACES = 4
"""Places kept from callers, so that cancels and releases get through when callers fill all."""


class Write:
    """A rotate or assemble into engine memory.

    Until it is settled the daemon may be writing: the blocks it named must stay out of use.
    """

    def __init__(self) -> None:
        self.code: int = Code.OK
        """Outcome: only after OK do the blocks hold what was asked for."""
        self._done = threading.Event()
        self._known = True

    def wait(self, timeout: float) -> bool:
        """Wait until the daemon cannot touch the blocks any more; False when that is not known.

        It answered the request, acknowledged a cancel, or is gone.
        """
        return self._done.wait(timeout) and self._known

    @property
    def settled(self) -> bool:
        """Whether the blocks may be used for something else."""
        return self._done.is_set() and self._known

    def settle(self, *, known: bool = True) -> None:
        """Say that nobody writes any more, or that this cannot become known."""
        if not self._done.is_set():
            self._known = known
            self._done.set()


@dataclass(slots=True)
class Late:
    """What has to happen when a reply comes after its caller has left."""

    tenant: int = 0
    gives_back: bool = False  # leases or reservations in the reply are to be returned
    cancel: bool = False  # the daemon is to be told to stop
    asked: bool = False  # it has been told
    staged: list[Extent] = field(default_factory=list)  # staging that the request names
    write: Write | None = None  # the request writes into engine memory
    # Of requests that no caller waits for:
    cancels: int = 0  # the request that this one cancels
    returns: tuple[int, ...] = ()  # leases or reservations that it gives back


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
        self.descriptors: list[int] | None = None  # wanted with the reply, or come with it
        self.trouble: str | None = None  # the connection failed instead
        self.wake: threading.Lock | None = None

    @property
    def settled(self) -> bool:
        """Whether the caller needs to wait no longer."""
        return self.reply is not None or self.trouble is not None


class Flight:
    """The table of requests, bounded by `places`.

    An entry lives until its reply came, also when its caller has left: only so can staging and
    destinations be kept aside for as long as the daemon may use them.

    One caller at a time leads: it reads for all, so that a lone caller pays for no change of
    threads. The others follow; whoever steps down wakes one of them.
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
        """Give a call its place and request id; waits for one. True if it had to wait.

        Raises `SplicedError`: BUSY for no place in time, or why the connection has ended.
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
        """`enter` for a request that nobody waits for: False when there is no place."""
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
        """Take back a request that was never sent."""
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
        """Accept a reply: a call whose caller has left, and whether the request is known.

        A caller who wants the descriptors has taken them out of the list then. Raises `WireError`
        for a reply to something else.
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
        """Become the one who reads, if nobody is."""
        with self._lock:
            if self._led:
                return False
            self._led = True
            return True

    def step_down(self) -> None:
        """Stop reading."""
        with self._lock:
            self._led = False
            self._nudge()

    def hand_on(self) -> None:
        """See that somebody reads while others wait."""
        if self._followers and not self._led:
            with self._lock:
                self._nudge()

    def _nudge(self) -> None:
        if self._followers and not self._led:
            self._wake(next(iter(self._followers.values())))

    def follow(self, call: Call, seconds: float) -> None:
        """Wait until a reply is there, nobody reads, or the time is over."""
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
        """Make a call nobody's. False: it has been answered after all."""
        with self._lock:
            if call.settled:
                return False
            call.left = True
            self._orphans += 1
            return True

    def end(self, why: str) -> None:
        """Refuse requests from now on and answer all callers.

        Calls that write into engine memory keep their place: a dead connection says nothing of
        the writes, only the end of file does.
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
        """Empty the table after `end`; what was left in it."""
        with self._lock:
            left = list(self._calls.values())
            for call in left:
                self._clear(call)
            return left

    def unasked(self) -> list[Call]:
        """Abandoned requests that the daemon has not been asked to stop; marks them as asked."""
        with self._lock:
            found = [
                c for c in self._calls.values() if c.left and c.late.cancel and not c.late.asked
            ]
            for call in found:
                call.late.asked = True
            return found

    def ask_again(self, request: int) -> None:
        """Undo `unasked` for one request."""
        with self._lock:
            call = self._calls.get(request)
            if call is not None:
                call.late.asked = False

    def cancelled(self, request: int) -> Write | None:
        """What waits for the end of a request that has been cancelled."""
        with self._lock:
            call = self._calls.get(request)
            return call.late.write if call is not None else None

    @property
    def orphans(self) -> int:
        """Replies that nobody waits for."""
        return self._orphans

    def writing(self) -> bool:
        """Whether a request without a reply may write into engine memory."""
        with self._lock:
            return any(call.late.write is not None for call in self._calls.values())
