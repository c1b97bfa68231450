"""One connection to one start of a daemon, with its mappings. `Stage` describes its life.

Requests go through `exchange`. A reader of mapped memory is a user from `retain` to `release`: the
mappings and the socket stay after the end of the connection until the last user has left.
"""

from __future__ import annotations

import _thread
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from spliced_connector.client.connection.channel import Channel
from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.exchange import Exchange, Reading
from spliced_connector.client.connection.flight import Call
from spliced_connector.client.connection.greeting import Greeting
from spliced_connector.client.connection.life import Event, Life, Stage
from spliced_connector.client.connection.peer import Peer
from spliced_connector.client.connection.returns import Return, Returns
from spliced_connector.client.connection.staging import Staging
from spliced_connector.errors import Code, SplicedError
from spliced_connector.wire import Header


class Mapped(Protocol):
    """GPU memory that is mapped along with the connection and ends with it."""

    def ended(self) -> None:
        """Handles the end of the connection. Does not wait."""

    def retire(self, then: Callable[[], None]) -> None:
        """Unmaps the memory once it is unused, and calls `then`."""


class Attachment:
    """A connection with its mappings. Methods may be called concurrently, except those that only
    the client's thread calls."""

    def __init__(
        self,
        channel: Channel,
        peer: Peer,
        greeting: Greeting,
        tally: Tally,
        wake: Callable[[], bool],
    ) -> None:
        """`wake` makes the client's thread serve this attachment. It returns False if the thread
        has ended, and takes no lock."""
        self.channel = channel
        self.greeting = greeting
        self.epoch = greeting.epoch
        self.tally = tally
        self.arena = greeting.arena.view
        self.slots = greeting.slots.view
        self.staging = Staging(greeting.staging.view)
        self.exchange = Exchange(channel, greeting.epoch, greeting.max_in_flight, tally, self)
        self.returns = Returns(self.exchange, self.staging, tally, wake)
        self.parted = False
        """Whether the daemon has closed its side, so that it no longer touches our memory."""
        self.device: Mapped | None = None
        """The mapped GPU memory. It stays when the connection ends."""
        self._life = Life()
        self._peer = peer
        self._wake = wake
        self._dropped: deque[tuple[Return, int]] = deque()

    # The stage.

    def _move(self, event: Event, cause: str = "") -> None:
        """Applies an event, and does what the new stage requires."""
        stage = self._life.transition(event, cause)
        if stage is Stage.ENDED:
            self.exchange.flight.end(cause)
            if self.device is not None:
                self.device.ended()
            self.staging.close()
            self._wake()
        elif stage is Stage.GONE:
            self.release()
        elif stage is Stage.UNUSED:
            if self.device is None:
                self._unmap()
            else:
                self.device.retire(self._unmap)

    @property
    def ended(self) -> bool:
        """Returns whether no more requests are sent."""
        return self._life.stage >= Stage.ENDED

    @property
    def gone(self) -> bool:
        """Returns whether no more replies are awaited."""
        return self._life.stage >= Stage.GONE

    @property
    def cause(self) -> str:
        """Returns why the connection ended."""
        return self._life.cause

    @property
    def intact(self) -> bool:
        """Returns whether leased memory is unchanged.

        After the end of the connection a living daemon may reuse leased pages. If the daemon is
        dead, there is no writer any more. The caller must be a user of the mappings.
        """
        return not self.ended or self._peer.died(self._life.ended_at)

    def end(self, cause: str) -> None:
        """Ends the connection for callers: their requests fail."""
        self._move(Event.END, cause)

    def hang_up(self, cause: str) -> None:
        """Ends the connection from our side. The daemon then reclaims all our resources and
        closes."""
        if not self.ended:
            self._peer.presume_alive()  # a live daemon will reuse leased memory
        self.end(cause)
        self.channel.close_write()

    def garbage(self, text: str) -> SplicedError:
        """Hangs up because the daemon broke the protocol, after which it is unknown which leases
        the daemon has granted."""
        if not self.ended:
            self.tally.add("malformed")
        self.hang_up(text)
        return SplicedError(Code.UNAVAILABLE, text)

    # Users of the mappings.

    def retain(self) -> bool:
        """Adds a user: mappings and socket stay until `release`. Returns False if they are gone."""
        return self._life.enter()

    def release(self) -> None:
        """Removes a user. The last one unmaps."""
        if self._life.leave():
            self._move(Event.LEAVE)

    def map_device(self, device: Mapped) -> bool:
        """Adds GPU memory that ends with the connection and is unmapped with the other mappings.
        Returns False if the connection has already ended."""

        def keep() -> None:
            self.device = device

        return self._life.while_attached(keep)

    def _unmap(self) -> None:
        self.arena = self.slots = memoryview(b"")
        self.staging.close()
        for region in (self.greeting.arena, self.greeting.slots, self.greeting.staging):
            region.close()
        # Not earlier: if the daemon has dropped us, our open side tells it that leased pages may
        # still be in use.
        self.channel.close()
        self._peer.close()

    # Returns.

    def give_back(self, how: Return, ids: list[int], timeout: float) -> list[int] | None:
        """Gives leases or reservations back to the daemon. Returns the daemon's code for each, or
        None if the codes are unknown."""
        return None if self.ended else self.returns.now(how, ids, timeout)

    def drop(self, how: Return, lease: int) -> None:
        """Gives a lease back and removes a user, for a destructor.

        A destructor may run inside any function, so this takes no lock and leaves the work to the
        client's thread.
        """
        self._dropped.append((how, lease))
        if not self._wake():
            # The client's thread has ended. A `threading.Thread` would take locks to start.
            with contextlib.suppress(RuntimeError):  # raised when the interpreter is ending
                _thread.start_new_thread(self.collect, ())

    def collect(self) -> bool:
        """Does the work that `drop` has deferred. Returns False if the mappings have no user
        left."""
        with contextlib.suppress(IndexError):
            while True:
                how, lease = self._dropped.popleft()
                self.returns.later(how, [lease])
                self.release()
        return self._life.used

    def abandoned(self) -> None:
        """Handles a caller that returned before its reply: the request may need a cancel."""
        self._wake()

    def unclaimed(self, call: Call, header: Header, body: memoryview) -> None:
        """Handles a reply without a waiting caller."""
        self.returns.replied(call, header, body)

    # Called by the client's thread.

    def finish(self) -> bool:
        """Reads to the end of file, then settles the connection. Returns False if the end has not
        arrived yet."""
        if not self.exchange.read_to_end():
            return False
        self.settle(known=self.exchange.reading is Reading.END_OF_FILE)
        return True

    def settle(self, *, known: bool) -> None:
        """Drops a connection that has ended. `known`: the daemon has closed its side."""
        self.end("the daemon is gone")
        self.parted = known
        _ = self.intact  # evaluated now, while the answer can be known
        for call in self.exchange.flight.drain():
            if call.late.write is not None:
                call.late.write.settle(known=known)
        self._move(Event.SETTLE)

    def forget(self) -> None:
        """Closes the descriptors that a forked child has inherited from its parent's connection."""
        self._life.forget()
        self.device = None  # the driver cannot be used here
        self.channel.forget()
        self._peer.forget()
