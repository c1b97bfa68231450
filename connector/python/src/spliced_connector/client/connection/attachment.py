"""One connection to one start of a daemon, with its mappings.

    attached --fail--> ended --end of file--> gone

Ended: no more requests, callers have been answered. Gone: the daemon has ended its side, which it
does when nothing there can touch our memory any more. Mappings and socket outlive both until the
last lease is released: the daemon keeps the pages for as long as we go on being able to send.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from spliced_connector.client.connection.channel import TICK, Channel, close_all
from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.debts import Debt, returning, worth_retry
from spliced_connector.client.connection.errands import Errands
from spliced_connector.client.connection.flight import Call, Flight, Late
from spliced_connector.client.connection.greeting import Greeting
from spliced_connector.client.connection.peer import Peer
from spliced_connector.client.connection.staging import Staging
from spliced_connector.client.connection.stall import Stall
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import (
    MAX_FRAME,
    MESSAGES,
    CodesReply,
    FrameKind,
    Header,
    Message,
    encode,
    op_name,
    parse_header,
)
from spliced_connector.wire.numbers import MAX_ERROR_TEXT

R = TypeVar("R", bound=Message)

log = logging.getLogger("spliced")

# What a call waits beyond its deadline when replies lie unread: a guess at how long another
# thread that reads takes for them.
_LAST_WAIT = 0.005

# Whether the daemon's process is dead has to be asked soon after the end of the connection. Pages
# are given to others a second after our side is shut.
_VERDICT_WITHIN = 0.5

_MICROSECONDS_MOST = 2**32 - 1


class Mapped(Protocol):
    """Memory of a GPU that is mapped beside the connection and ends with it."""

    def ended(self) -> None:
        """Note that the connection has ended. Does not wait."""

    def retire(self, then: Callable[[], None]) -> None:
        """Unmap once nothing uses it, and call `then`."""


class Attachment:
    """Requests and replies of one connection. All methods may be called by several threads."""

    def __init__(
        self,
        channel: Channel,
        peer: Peer,
        greeting: Greeting,
        tally: Tally,
        wake: Callable[[], bool],
    ) -> None:
        self.channel = channel
        self.epoch = greeting.epoch
        self.greeting = greeting
        self.arena = greeting.arena.view
        self.slots = greeting.slots.view
        self.staging = Staging(greeting.staging.view)
        self.flight = Flight(greeting.max_in_flight)
        self.tally = tally
        self.errands = Errands(self.flight, self.staging, tally, self._post, wake)
        self._wake = wake
        self.device: Mapped | None = None
        """What is mapped of a GPU; it stays when the connection ends."""
        self.ended = False
        self.gone = False
        self.cause = ""
        """Why it ended."""
        self._peer = peer
        self._stall = Stall()
        self._buffer = memoryview(bytearray(MAX_FRAME + 8))
        self._lock = threading.Lock()
        self._users = 1
        self._verdict = threading.Lock()
        self._ended_at = 0.0
        self._died: bool | None = None
        self._end_of_file = False
        self._broken = False
        self._dropped: deque[tuple[Debt, int]] = deque()

    # Users of the mappings.

    def retain(self) -> bool:
        """Keep mappings and socket; False when they are gone already."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Undo `retain`."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            device = self.device
        if device is None:
            self._unmap()
        else:
            device.retire(self._unmap)

    def adopt(self, device: Mapped) -> bool:
        """Have memory of a GPU told of the end, and unmapped with the rest; False after the end."""
        with self._lock:
            if self.ended:
                return False
            self.device = device
            return True

    def _unmap(self) -> None:
        self.arena = self.slots = memoryview(b"")
        self.staging.close()
        for region in (self.greeting.arena, self.greeting.slots, self.greeting.staging):
            region.close()
        # Only now: to a daemon that dropped us an open end says that somebody may still look at
        # the pages.
        self.channel.close()
        self._peer.close()

    @property
    def intact(self) -> bool:
        """Whether leased memory holds what was leased.

        Once the connection has ended the daemon may give its pages to others, unless it is dead:
        then nobody writes any more. The caller keeps the mappings.
        """
        if not self.ended:
            return True
        with self._verdict:
            if self._died is None:
                soon = time.monotonic() - self._ended_at < _VERDICT_WITHIN
                self._died = soon and self._peer.died()
            return self._died

    # The end.

    def fail(self, cause: str) -> None:
        """End the attachment for callers."""
        with self._lock:
            if self.ended:
                return
            self.cause = cause
            self._ended_at = time.monotonic()
            self.ended = True
            device = self.device
        self.flight.end(cause)
        if device is not None:
            device.ended()
        self.staging.close()
        self._wake()

    def quit(self, cause: str) -> None:
        """End it from our side. The daemon is told, gives everything of ours back and hangs up."""
        with self._verdict:
            if not self.ended:
                self._died = False  # it lives, as far as we know, and will reuse what was leased
        self.fail(cause)
        self.channel.close_write()

    def garbage(self, text: str) -> SplicedError:
        """Quit because the daemon broke the protocol: nobody knows what it holds for us now."""
        if not self.ended:
            self.tally.add("malformed")
        self.quit(text)
        return SplicedError(Code.UNAVAILABLE, text)

    @property
    def at_end(self) -> bool:
        """Whether the end of file was read."""
        return self._end_of_file

    def hang_up(self) -> bool:
        """After the end of file: settle everything that waited for it. False: not there yet."""
        if not self.flight.lead():
            return False  # whoever reads finds it
        try:
            while not self._end_of_file and self._read(0):
                pass
        finally:
            self.flight.step_down()
        if not self._end_of_file:
            return False
        self.settle_all(known=not self._broken)
        return True

    def settle_all(self, *, known: bool) -> None:
        """Let go of a connection that has ended; `known` says that the daemon has too."""
        self.fail("the daemon is gone")
        _ = self.intact  # asked now, while it can be known
        for call in self.flight.drain():
            if call.late.write is not None:
                call.late.write.settle(known=known)
        self.gone = True
        self.release()

    def forget(self) -> None:
        """Close the descriptors that a forked child has of its parent's connection."""
        self.ended = True
        self._died = False
        self.device = None  # the driver is of no use here
        self.channel.forget()
        self._peer.close()

    # Requests.

    def request(self, call: Call, message: Message, want: type[R]) -> R:
        """Send a request and wait for its reply. Raises `SplicedError`."""
        self.start(call, message)
        return self.result(call, want)

    def start(self, call: Call, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a request. After an error nothing is in flight. Raises `SplicedError`."""
        if self._stall.refuses():
            self.tally.add("stalled")
            raise SplicedError(Code.UNAVAILABLE, "the daemon has stopped answering")
        if self.flight.enter(call):
            self.tally.add("waits")
        micros = int((call.deadline - time.monotonic()) * 1e6)
        micros = max(1, min(micros, _MICROSECONDS_MOST))  # 0 would mean the daemon's default
        sent = False
        try:
            header = Header(call.op, call.request, self.epoch, call.late.tenant, micros)
            sent = self.channel.send(encode(message, header), descriptors, call.deadline)
        except ConnectionError as err:
            self.fail(f"{op_name(call.op)}: {err}")
            raise SplicedError(Code.UNAVAILABLE, self.cause) from err
        except OSError as err:
            raise SplicedError(Code.UNAVAILABLE, f"{op_name(call.op)}: {err}") from err
        finally:
            if not sent:
                self.flight.remove(call)
        if not sent:
            self._missed(call)
            raise SplicedError(Code.LATE, f"{op_name(call.op)}: the daemon takes no requests")
        self.tally.add("calls")

    def result(self, call: Call, want: type[R]) -> R:
        """Wait for the reply of a started request. Raises `SplicedError`.

        After LATE the request goes on: what it names stays aside until its reply.
        """
        try:
            self._finish(call)
        except BaseException:  # a signal, say: the request goes on
            self._abandon(call)
            raise
        if call.trouble is not None:
            raise SplicedError(Code.UNAVAILABLE, call.trouble)
        if call.reply is None:
            self._abandon(call)
            if call.reply is None:
                raise SplicedError(Code.LATE, f"{op_name(call.op)}: no reply in time")
        header, body = call.reply
        if header.code != Code.OK:
            text = str(body[:MAX_ERROR_TEXT], "utf-8", "replace")
            raise SplicedError(header.code, f"{op_name(call.op)}: {text}")
        try:
            message = MESSAGES[call.op][1].schema.decode(body)
        except WireError as err:
            raise self.garbage(str(err)) from err
        if not isinstance(message, want):
            raise TypeError(f"{op_name(call.op)} is answered with a {type(message).__name__}")
        return message

    def _finish(self, call: Call) -> None:
        """Wait until a call is settled or its time is over."""
        flight = self.flight
        extra = 0.0
        while not call.settled:
            left = call.deadline + extra - time.monotonic()
            if flight.lead():
                try:
                    self._lead(call)
                finally:
                    flight.step_down()
                break
            if left <= 0:
                if extra or not self.channel.readable():
                    break
                # Our reply may lie there and the reader have been held up.
                extra = _LAST_WAIT
                continue
            flight.follow(call, left)
        flight.hand_on()

    def _lead(self, call: Call) -> None:
        """Read until a call is settled.

        At the end of its time it still takes what has come already: after a pause of this process
        the reply may have been there all along.
        """
        while not call.settled:
            left = call.deadline - time.monotonic()
            if not self._read(max(left, 0)) and left <= 0:
                return

    def _read(self, seconds: float) -> bool:
        """Receive at most one frame and hand it to its owner. The caller leads."""
        try:
            n = self.channel.receive(self._buffer, min(seconds, TICK))
        except OSError as err:
            self._end_of_file = self._broken = True  # of no use, but not known to be gone
            self.fail(f"receive: {err}")
            return False
        if n is None:
            return False
        if n == 0:
            self._end_of_file = True
            self.fail("the daemon closed the connection")
            return False
        if self._stall.heard():
            log.info("the cache daemon answers again")
        descriptors = self.channel.take_descriptors()
        try:
            self._dispatch(bytes(self._buffer[:n]), descriptors)
        finally:
            close_all(descriptors)
        return True

    def _dispatch(self, frame: bytes, descriptors: list[int]) -> None:
        try:
            header, body = parse_header(frame)
            if header.kind != FrameKind.REPLY:
                raise WireError(f"a frame of kind {header.kind}")
            if header.epoch != self.epoch:
                raise WireError(f"reply of epoch {header.epoch:#x}, want {self.epoch:#x}")
            if header.request == 0:
                raise WireError("the daemon could not read a request")
            call, known = self.flight.take(header, body, descriptors)
        except WireError as err:
            self.garbage(str(err))
            return
        if call is not None:
            self.errands.settle(call, header, body)
        elif not known:
            self.tally.add("unknown")
        if header.code == Code.STALE:
            self.quit("the daemon does not know our epoch")

    def _missed(self, call: Call) -> None:
        self.tally.add("late")
        if self._stall.missed():
            log.warning("the cache daemon has stopped answering (%s)", op_name(call.op))

    def _abandon(self, call: Call) -> None:
        """Give a call up: what its reply sets off is done by whoever reads it."""
        if self.flight.leave(call):
            self._missed(call)
            self._wake()

    # What nobody waits for.

    def give_up(self, debt: Debt, ids: list[int], timeout: float) -> list[int] | None:
        """Return ids and wait for the daemon's answer: a code for each, None = not known.

        A daemon that does not take them is told again later; one that is gone has nothing to
        release.
        """
        if self.ended:
            return None
        call = Call(debt.op, time.monotonic() + timeout, Late(debt.tenant, returns=tuple(ids)))
        try:
            self.start(call, returning(debt.op, ids))
        except SplicedError as err:
            if worth_retry(err.code):
                self.errands.owe(debt, ids)
            return None
        try:
            answered = list(self.result(call, CodesReply).codes)
        except SplicedError as err:
            if not call.left and worth_retry(err.code):
                self.errands.owe(debt, ids)
            return None
        if len(answered) != len(ids):
            self.garbage(f"{op_name(debt.op)}: {len(answered)} rows, want {len(ids)}")
            return None
        return answered

    def drop(self, debt: Debt, lease: int) -> None:
        """Owe a lease and `release`, for a destructor.

        It may run inside of any function, so that it takes no lock.
        """
        self._dropped.append((debt, lease))
        if not self._wake():
            # Nobody serves the connection any more. A Thread would take locks.
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and all memory with it
                _thread.start_new_thread(self.collect, ())

    def collect(self) -> bool:
        """Do what `drop` has left to do; False when nobody uses the mappings any more."""
        with contextlib.suppress(IndexError):
            while True:
                debt, lease = self._dropped.popleft()
                self.errands.owe(debt, [lease])
                self.release()
        return self._users > 0

    def read_late(self) -> bool:
        """Read replies that nobody waits for. False: somebody else reads."""
        if not self.flight.lead():
            return False
        try:
            while self._read(0):
                pass
        finally:
            self.flight.step_down()
        return True

    def _post(self, op: int, late: Late, message: Message) -> bool:
        """Send a request whose reply no caller waits for. It does not block."""
        call = Call(op, 0, late, own=True)
        if not self.flight.enter_own(call):
            self.tally.add("unsent")
            return False
        sent = False
        try:
            header = Header(op, call.request, self.epoch, late.tenant)
            sent = self.channel.try_send(encode(message, header))
        except OSError as err:
            self.fail(f"{op_name(op)}: {err}")
        finally:
            if not sent:
                self.flight.remove(call)
                self.tally.add("unsent")
        return sent
