"""One connection to one start of a daemon, with its mappings: see `Stage` for its life.

Requests go through `exchange`. Who looks at mapped memory is a user from `retain` to `release`:
mappings and socket outlive the end of the connection until the last user leaves.
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
    """Memory of a GPU that is mapped beside the connection and ends with it."""

    def ended(self) -> None:
        """Note that the connection has ended. Does not wait."""

    def retire(self, then: Callable[[], None]) -> None:
        """Unmap once nothing uses it, and call `then`."""


class Attachment:
    """All methods may be called by several threads, but for those of the client's thread."""

    def __init__(
        self,
        channel: Channel,
        peer: Peer,
        greeting: Greeting,
        tally: Tally,
        wake: Callable[[], bool],
    ) -> None:
        """`wake` has the client's thread serve this; False when it has ended. Takes no lock."""
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
        """Whether the daemon has ended its side: nothing there touches memory of ours any more."""
        self.device: Mapped | None = None
        """What is mapped of a GPU; it stays when the connection ends."""
        self._life = Life()
        self._peer = peer
        self._wake = wake
        self._dropped: deque[tuple[Return, int]] = deque()

    # The stage.

    def _move(self, event: Event, cause: str = "") -> None:
        """Apply an event, and do what belongs to the stage that it leads to."""
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
        """Whether no more requests are sent."""
        return self._life.stage >= Stage.ENDED

    @property
    def gone(self) -> bool:
        """Whether nothing is waited for any more."""
        return self._life.stage >= Stage.GONE

    @property
    def cause(self) -> str:
        """Why it ended."""
        return self._life.cause

    @property
    def intact(self) -> bool:
        """Whether leased memory holds what was leased.

        Once the connection has ended the daemon may give its pages to others, unless it is dead:
        then nobody writes any more. The caller is a user of the mappings.
        """
        return not self.ended or self._peer.died(self._life.ended_at)

    def end(self, cause: str) -> None:
        """End it for callers."""
        self._move(Event.END, cause)

    def hang_up(self, cause: str) -> None:
        """End it from our side. The daemon is told, gives everything of ours back and closes."""
        if not self.ended:
            self._peer.presume_alive()  # and that it will reuse what was leased
        self.end(cause)
        self.channel.close_write()

    def garbage(self, text: str) -> SplicedError:
        """Hang up because the daemon broke the protocol: nobody knows what it holds for us now."""
        if not self.ended:
            self.tally.add("malformed")
        self.hang_up(text)
        return SplicedError(Code.UNAVAILABLE, text)

    # Users of the mappings.

    def retain(self) -> bool:
        """Become a user: mappings and socket stay. False when they are gone already."""
        return self._life.enter()

    def release(self) -> None:
        """Stop being a user. The last one unmaps."""
        if self._life.leave():
            self._move(Event.LEAVE)

    def map_device(self, device: Mapped) -> bool:
        """Have memory of a GPU told of the end, and unmapped with the rest; False after the end."""

        def keep() -> None:
            self.device = device

        return self._life.while_attached(keep)

    def _unmap(self) -> None:
        self.arena = self.slots = memoryview(b"")
        self.staging.close()
        for region in (self.greeting.arena, self.greeting.slots, self.greeting.staging):
            region.close()
        # Only now: to a daemon that dropped us an open end says that somebody may still look at
        # the pages.
        self.channel.close()
        self._peer.close()

    # What is given back.

    def give_back(self, how: Return, ids: list[int], timeout: float) -> list[int] | None:
        """Give leases or reservations back: a code for each, None = not known."""
        return None if self.ended else self.returns.now(how, ids, timeout)

    def drop(self, how: Return, lease: int) -> None:
        """Give a lease back and stop being a user, for a destructor.

        It may run inside of any function, so that it takes no lock: the client's thread does the
        rest.
        """
        self._dropped.append((how, lease))
        if not self._wake():
            # The thread has ended. A `Thread` would take locks.
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and all memory with it
                _thread.start_new_thread(self.collect, ())

    def collect(self) -> bool:
        """Do what `drop` has left to do; False when nobody uses the mappings any more."""
        with contextlib.suppress(IndexError):
            while True:
                how, lease = self._dropped.popleft()
                self.returns.later(how, [lease])
                self.release()
        return self._life.used

    def abandoned(self) -> None:
        """A caller has left before its reply: the request may be to be cancelled."""
        self._wake()

    def unclaimed(self, call: Call, header: Header, body: memoryview) -> None:
        """A reply has come that no caller waits for."""
        self.returns.replied(call, header, body)

    # Of the client's thread.

    def finish(self) -> bool:
        """At the end of file, settle what waited for it. False: it was not read yet."""
        if not self.exchange.read_to_end():
            return False
        self.settle(known=self.exchange.reading is Reading.END_OF_FILE)
        return True

    def settle(self, *, known: bool) -> None:
        """Let go of a connection that has ended; `known` says that the daemon has too."""
        self.end("the daemon is gone")
        self.parted = known
        _ = self.intact  # asked now, while it can be known
        for call in self.exchange.flight.drain():
            if call.late.write is not None:
                call.late.write.settle(known=known)
        self._move(Event.SETTLE)

    def forget(self) -> None:
        """Close the descriptors that a forked child has of its parent's connection."""
        self._life.forget()
        self.device = None  # the driver is of no use here
        self.channel.forget()
        self._peer.forget()
