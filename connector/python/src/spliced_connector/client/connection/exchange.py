"""Requests and replies of one connection. Any calling thread may read the replies."""

from __future__ import annotations

import logging
import time
from enum import Enum, auto
from typing import Protocol, TypeVar

from spliced_connector.client.connection.channel import TICK, Channel, close_all
from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.flight import Call, Flight, Late
from spliced_connector.client.connection.stall import Stall
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import (
    MAX_FRAME,
    MESSAGES,
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

# Seconds that a call waits beyond its deadline if replies are queued. A guess at how long another
# thread takes to read them.
_LAST_WAIT = 0.005

_MICROSECONDS_MOST = 2**32 - 1


class Reading(Enum):
    """The result of a read."""

    OPEN = auto()
    END_OF_FILE = auto()
    """The daemon has closed its side."""
    BROKEN = auto()
    """Nothing more can be read, but the daemon may still be alive."""


class Owner(Protocol):
    """The owner of an exchange."""

    def end(self, cause: str) -> None:
        """Ends a connection that cannot be used any more."""

    def hang_up(self, cause: str) -> None:
        """Ends a connection and closes our side, so that the daemon ends it too."""

    def garbage(self, text: str) -> SplicedError:
        """Hangs up on a daemon that broke the protocol. Returns the error for callers."""

    def abandoned(self) -> None:
        """Handles a caller that returned before its reply: the request may need a cancel."""

    def unclaimed(self, call: Call, header: Header, body: memoryview) -> None:
        """Handles a reply without a waiting caller."""


class Exchange:
    """The requests and replies of one connection. All methods may be called concurrently.

    One thread at a time reads replies, for all others too: see `Flight`.
    """

    def __init__(
        self, channel: Channel, epoch: int, max_in_flight: int, tally: Tally, owner: Owner
    ) -> None:
        self.flight = Flight(max_in_flight)
        self.reading = Reading.OPEN
        self._channel = channel
        self._epoch = epoch
        self._tally = tally
        self._owner = owner
        self.stall = Stall()
        self._buffer = memoryview(bytearray(MAX_FRAME + 8))

    def garbage(self, text: str) -> SplicedError:
        """Hangs up on a daemon that broke the protocol. Returns the error for callers."""
        return self._owner.garbage(text)

    @property
    def at_end(self) -> bool:
        """Returns whether everything has been read."""
        return self.reading is not Reading.OPEN

    # Called by callers.

    def request(self, call: Call, message: Message, want: type[R]) -> R:
        """Sends a request and waits for its reply. Raises `SplicedError`."""
        self.start(call, message)
        return self.result(call, want)

    def start(self, call: Call, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a request, and does not wait. Raises `SplicedError`; then nothing is in flight."""
        if self.stall.refuses():
            self._tally.add("stalled")
            raise SplicedError(Code.UNAVAILABLE, "the daemon has stopped answering")
        if self.flight.enter(call):
            self._tally.add("waits")
        micros = int((call.deadline - time.monotonic()) * 1e6)
        micros = max(1, min(micros, _MICROSECONDS_MOST))  # 0 would mean the daemon's default
        sent = False
        try:
            header = Header(call.op, call.request, self._epoch, call.late.tenant, micros)
            sent = self._channel.send(encode(message, header), descriptors, call.deadline)
        except ConnectionError as err:
            cause = f"{op_name(call.op)}: {err}"
            self._owner.end(cause)
            raise SplicedError(Code.UNAVAILABLE, cause) from err
        except OSError as err:
            raise SplicedError(Code.UNAVAILABLE, f"{op_name(call.op)}: {err}") from err
        finally:
            if not sent:
                self.flight.remove(call)
        if not sent:
            self._missed(call)
            raise SplicedError(
                Code.LATE, f"{op_name(call.op)}: the daemon is not accepting requests"
            )
        self._tally.add("calls")

    def result(self, call: Call, want: type[R]) -> R:
        """Waits for the reply of a started request. Raises `SplicedError`.

        If the error is LATE, the request stays in flight: resources that it names stay reserved
        until the reply arrives.
        """
        try:
            self._finish(call)
        except BaseException:  # such as a signal: the request stays in flight
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
            raise TypeError(f"reply to {op_name(call.op)} is a {type(message).__name__}")
        return message

    def _finish(self, call: Call) -> None:
        """Waits until a call is settled or its deadline has passed."""
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
                if extra or not self._channel.readable():
                    break
                # The reply may already be queued, while the thread that reads is delayed.
                extra = _LAST_WAIT
                continue
            flight.follow(call, left)
        flight.hand_on()

    def _lead(self, call: Call) -> None:
        """Reads until a call is settled.

        At the deadline it still reads frames that have already arrived: if this process was paused,
        the reply may have been there in time.
        """
        while not call.settled:
            left = call.deadline - time.monotonic()
            if not self._read(max(left, 0)) and left <= 0:
                return

    def _missed(self, call: Call) -> None:
        self._tally.add("late")
        if self.stall.missed():
            log.warning("the cache daemon has stopped answering (%s)", op_name(call.op))

    def _abandon(self, call: Call) -> None:
        """Detaches a call whose caller returns before the reply. The thread that reads the reply
        handles it."""
        if self.flight.leave(call):
            self._missed(call)
            self._owner.abandoned()

    # Called by the client's thread.

    def post(self, op: int, late: Late, message: Message) -> bool:
        """Sends a request without a waiting caller, without blocking.

        Returns False if the request cannot be sent now.
        """
        call = Call(op, 0, late, own=True)
        if not self.flight.enter_own(call):
            self._tally.add("unsent")
            return False
        sent = False
        try:
            header = Header(op, call.request, self._epoch, late.tenant)
            sent = self._channel.try_send(encode(message, header))
        except OSError as err:
            self._owner.end(f"{op_name(op)}: {err}")
        finally:
            if not sent:
                self.flight.remove(call)
                self._tally.add("unsent")
        return sent

    def read_late(self) -> bool:
        """Reads replies without a waiting caller. Returns False if another thread reads."""
        if not self.flight.lead():
            return False
        try:
            while self._read(0):
                pass
        finally:
            self.flight.step_down()
        return True

    def read_to_end(self) -> bool:
        """Reads to the end of the connection. Returns False if another thread reads, or if the end
        has not arrived yet."""
        if not self.flight.lead():
            return False
        try:
            while not self.at_end and self._read(0):
                pass
        finally:
            self.flight.step_down()
        return self.at_end

    # Called by the thread that reads.

    def _read(self, seconds: float) -> bool:
        """Receives at most one frame and delivers it. Returns False if there is none. For the
        leading thread only."""
        try:
            n = self._channel.receive(self._buffer, min(seconds, TICK))
        except OSError as err:
            self.reading = Reading.BROKEN
            self._owner.end(f"receive: {err}")
            return False
        if n is None:
            return False
        if n == 0:
            self.reading = Reading.END_OF_FILE
            self._owner.end("the daemon closed the connection")
            return False
        if self.stall.heard():
            log.info("the cache daemon answers again")
        descriptors = self._channel.take_descriptors()
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
            if header.epoch != self._epoch:
                raise WireError(f"reply of epoch {header.epoch:#x}, want {self._epoch:#x}")
            if header.request == 0:
                raise WireError("the daemon could not read a request")
            call, known = self.flight.take(header, body, descriptors)
        except WireError as err:
            self.garbage(str(err))
            return
        if call is not None:
            self._owner.unclaimed(call, header, body)
        elif not known:
            self._tally.add("unknown")
        if header.code == Code.STALE:
            self._owner.hang_up("the daemon has another boot epoch")
