"""Leases of device memory that end when a stream has passed a point.

A release has these stages, with the requests "order" and "release" to the daemon on the arrows:

    MARKED --order--> TOLD                 the daemon sees on its page when the stream has passed
    MARKED --order refused, or no page--> WAITED --release--> TOLD   we wait on the host instead

If the daemon is gone, a release is TOLD without a request.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.flight import Call, Late
from spliced_connector.client.connection.returns import Return
from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    Context,
    CudaError,
    DeviceThreads,
    Event,
    OrderPage,
    Stream,
    most_waiting,
    refuse_capture,
)
from spliced_connector.wire import CodesReply, Op, OrderRequest
from spliced_connector.wire.numbers import MAX_IDS

_PAUSE = 0.05  # between attempts to reach a daemon that does not accept requests, in seconds

_ASK_AGAIN = {Code.LATE, Code.BUSY, Code.CANCELED, Code.UNAVAILABLE}


class Passing:
    """Leases that the daemon takes back when a stream has passed a point."""

    def __init__(self, tenant: int, leases: Sequence[int], after: int, signal: int) -> None:
        self.tenant = tenant
        self.leases = leases
        self.after = after
        self.signal = signal
        """The number that the daemon writes into its slot of the order page when it has taken the
        leases back. 0: it writes none."""
        self.event: Event | None = None
        self._done = threading.Event()
        self._good: tuple[bool, ...] = (False,) * len(leases)

    def wait(self, timeout: float) -> bool:
        """Waits until the daemon has answered, or is gone. Returns False after `timeout`
        seconds."""
        return self._done.wait(timeout)

    @property
    def good(self) -> tuple[bool, ...]:
        """For each lease whether its bytes were valid until the stream had passed the point. All
        are False until the answer is known."""
        return self._good

    def answer(self, good: Sequence[bool]) -> None:
        """Sets the outcome."""
        self._good = tuple(good)
        self._done.set()


class _RefusedError(Exception):
    """The daemon accepts no order request for these leases, and never will."""


class DeviceReleases:
    """The releases of one connection. Any thread may use this object."""

    def __init__(
        self,
        attachment: Attachment,
        context: Context,
        threads: DeviceThreads,
        order: OrderPage | None,
        timeout: float,
    ) -> None:
        """`timeout`: seconds for one attempt to notify the daemon."""
        self._attachment = attachment
        self._context = context
        self._order = order
        self._thread = threads.order
        self._waiter = threads.waits
        self._timeout = timeout
        self._ended = threading.Event()
        self._marked: deque[Passing] = deque()
        self._dropped: deque[tuple[int, int]] = deque()
        self._waits: list[tuple[Stream, Passing]] = []
        self._waits_lock = threading.Lock()
        self._most_waiting = most_waiting()

    def after(self, stream: Stream, tenant: int, leases: Sequence[int], *, signal: bool) -> Passing:
        """Releases leases once a stream has passed this point. The call does not wait.

        The caller is a user of the mappings once per lease; the release of a lease ends that use.
        Raises `CudaError`, and `SplicedError(UNSUPPORTED)` for a stream that captures a graph.
        """
        order = self._order
        if order is None:
            passing = Passing(tenant, leases, 0, 0)
            with self._context.current() as driver:
                refuse_capture(driver, stream, "a release")
                passing.event = driver.event()
                driver.record(passing.event, stream)
        else:
            number = order.next_signal() if signal else 0
            passing = Passing(tenant, leases, order.mark(stream), number)
        self._marked.append(passing)
        self._thread.do(self._notify)
        return passing

    def wait(self, stream: Stream, passing: Passing) -> None:
        """See `DeviceMemory.wait`."""
        if self._order is None:
            with self._context.current() as driver:
                refuse_capture(driver, stream, "a wait for the daemon")
            passing.wait(self._timeout)
        elif passing.signal == 0:
            raise SplicedError(Code.INVALID, "a wait for no signal")
        elif self._may_wait(stream, passing):
            self._order.wait(stream, passing.signal)
        else:
            while not (passing.wait(self._timeout) or self._ended.is_set()):
                pass

    def _may_wait(self, stream: Stream, passing: Passing) -> bool:
        """Returns whether the stream itself may wait; otherwise the host has to."""
        with self._waits_lock:
            self._waits = [wait for wait in self._waits if not wait[1].wait(0)]
            if len({stream, *(other for other, _ in self._waits)}) > self._most_waiting:
                return False
            self._waits.append((stream, passing))
            return True

    def drop(self, tenant: int, lease: int) -> None:
        """Releases a lease that was dropped, after all queued work. Takes no lock."""
        self._dropped.append((tenant, lease))
        self._waiter.do(self._release_dropped)

    def ended(self) -> None:
        """Ends the waits of streams for a daemon that is gone. The call itself does not wait."""
        self._ended.set()
        if self._order is not None:
            # In this thread: our other threads may be waiting for the very streams that wait.
            with contextlib.suppress(CudaError):
                self._order.rescue()

    # Run by the thread that notifies the daemon. It waits for no stream.

    def _notify(self) -> None:
        """Notifies the daemon of all points that were marked since the last call."""
        waiting: list[Passing] = []
        with contextlib.suppress(IndexError):
            while True:
                waiting.append(self._marked.popleft())
        while waiting:
            n = _together(waiting)
            batch, waiting = waiting[:n], waiting[n:]
            if self._order is None:
                self._waiter.do(partial(self._release_after, batch))
                continue
            try:
                good = self._send_order(self._order, batch)
            except _RefusedError:
                self._waiter.do(partial(self._release_after, batch))
            except SplicedError:
                self._answer(batch, [False] * _leases(batch))
            else:
                self._answer(batch, good)

    def _send_order(self, order: OrderPage, batch: list[Passing]) -> list[bool]:
        """Repeats an order request until the stream has passed all points of the batch or the
        connection has ended. Returns whether each lease was valid.

        Raises `_RefusedError` if the daemon will never accept the request, and `SplicedError`.
        """
        # The last release need not have the highest mark: two threads may mark A, B and queue B, A.
        after = max(passing.after for passing in batch)
        signal = batch[-1].signal
        ids = [lease for passing in batch for lease in passing.leases]
        exchange = self._attachment.exchange
        request = OrderRequest(after, signal, ids)
        while not self._attachment.ended:
            call = Call(Op.ORDER, time.monotonic() + self._timeout, Late(batch[0].tenant))
            try:
                exchange.start(call, request)
                # If the stream has not passed by the first deadline, the daemon replies LATE. Wait
                # longer than that deadline, so that this reply is received.
                call.deadline += self._timeout
                codes = exchange.result(call, CodesReply).codes
            except SplicedError as err:
                refused = err.code not in _ASK_AGAIN
                # Streams must not wait indefinitely for a daemon that does not answer, or will not
                # write the signal. The answer LATE only means that our stream has not passed yet.
                if signal and (refused or call.reply is None):
                    with contextlib.suppress(CudaError):
                        order.rescue(signal)
                if refused:
                    raise _RefusedError from err
                self._ended.wait(_PAUSE)
                continue
            if len(codes) != len(ids):
                raise exchange.garbage(f"order: {len(codes)} rows, want {len(ids)}")
            return [code == Code.OK for code in codes]
        return [self._attachment.intact] * len(ids)

    # Run by the thread that waits for streams.

    def _release_after(self, batch: list[Passing]) -> None:
        """Waits on the host until the streams have passed, then releases the leases."""
        ids = [lease for passing in batch for lease in passing.leases]
        good = [False] * len(ids)
        try:
            self._wait_passed(batch)
            how = Return(Op.RELEASE, batch[0].tenant)
            codes = self._attachment.give_back(how, ids, self._timeout)
            if codes is not None:
                good = [code == Code.OK for code in codes]
            elif self._attachment.ended:
                good = [self._attachment.intact] * len(ids)
        except SplicedError:
            pass  # it is unknown what the streams have read
        self._answer(batch, good)

    def _wait_passed(self, batch: list[Passing]) -> None:
        with self._context.aside() as driver:
            for passing in batch:
                if passing.event is None:
                    driver.synchronize_all()
                    continue
                driver.wait_event(passing.event)
                driver.destroy_event(passing.event)

    def _release_dropped(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                tenant, lease = self._dropped.popleft()
                with contextlib.suppress(CudaError), self._context.aside() as driver:
                    driver.synchronize_all()
                self._attachment.drop(Return(Op.RELEASE, tenant), lease)

    # Run by both threads.

    def _answer(self, batch: list[Passing], good: Sequence[bool]) -> None:
        self._attachment.tally.add("doubtful", good.count(False))
        at = 0
        for passing in batch:
            n = len(passing.leases)
            passing.answer(good[at : at + n])
            at += n
            for _ in range(n):
                self._attachment.release()


def _leases(batch: Sequence[Passing]) -> int:
    return sum(len(passing.leases) for passing in batch)


def _together(waiting: Sequence[Passing]) -> int:
    """Returns how many of the first releases go into one request.

    A release with a signal is the last one of its request: its stream may wait for that signal
    before it reaches points that were marked later.
    """
    n, ids = 1, len(waiting[0].leases)
    while n < len(waiting) and not waiting[n - 1].signal:
        ids += len(waiting[n].leases)
        if waiting[n].tenant != waiting[0].tenant or ids > MAX_IDS:
            break
        n += 1
    return n
