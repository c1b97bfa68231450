"""Order between streams of this process and the daemon: two numbers in shared device memory.

docs/protocol.md describes both numbers under "Order on the device". Only one stream of this package
writes the client's number. After each `mark` of an engine's stream, the writing stream waits until
that stream has passed the mark. So the number ascends, whichever streams are marked.

Streams share a process's connections to the GPU (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default). If
each connection has a stream that waits, no other stream makes progress: no stream of the highest
priority, no copy, and not the write that would end the waits. On an H200 a write was executed while
7 streams waited, but not while 8 did; with one connection, it was not executed while 4 waited. So
at most `MOST_WAITING` of our streams wait, and at most half as many as there are connections. An
engine whose own streams wait for numbers in memory may still stop.
"""

from __future__ import annotations

import contextlib
import os
import threading

from spliced_connector.gpu.context import Context, refuse_capture
from spliced_connector.gpu.driver import DevicePtr, Stream

MOST_WAITING = 4
"""Maximum number of streams that may wait for the daemon at once."""

RELEASED = 2**63 - 1
"""A number that ends every wait: waits compare the signed difference of 64 bits with 0."""


def most_waiting() -> int:
    """Returns how many streams of this process may wait for the daemon at once."""
    try:
        connections = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "8"))
    except ValueError:
        connections = 8
    return max(0, min(MOST_WAITING, connections // 2))


class OrderPage:
    """The two slots with the numbers, mapped in this process. Methods raise `CudaError`.

    `mark` and `wait` raise `SplicedError(UNSUPPORTED)` for a stream that captures a graph.
    """

    def __init__(self, context: Context, client: DevicePtr, daemon: DevicePtr) -> None:
        self._context = context
        self._client, self._daemon = client, daemon
        self._lock = threading.Lock()
        self._marked = self._signal = 0
        self._closed = False
        self._rescued = 0  # number written in the daemon's place; never decreases
        # `rescue` has a separate lock, because a driver call under `_lock` may be blocked by
        # streams that wait for the rescue.
        self._rescue = threading.Lock()
        with context.current() as driver, contextlib.ExitStack() as failing:
            self._event = driver.event()
            failing.callback(driver.destroy_event, self._event)
            least, greatest = driver.priorities()
            # The rescue has a separate stream, because work on the writer's stream may have to wait
            # for a stream that waits for the daemon's slot.
            self._rescuer = driver.stream_with_priority(greatest)
            failing.callback(driver.destroy_stream, self._rescuer)
            self._writer = driver.stream_with_priority(min(greatest + 1, least))
            failing.callback(driver.destroy_stream, self._writer)
            self._undo = failing.pop_all()

    def mark(self, stream: Stream) -> int:
        """Returns a number that the client's slot reaches when the stream has passed this point."""
        with self._lock, self._context.current() as driver:
            refuse_capture(driver, stream, "a release")
            driver.record(self._event, stream)
            driver.follow(self._writer, self._event)
            self._marked += 1
            driver.write_value(self._writer, self._client, self._marked)
            return self._marked

    def next_signal(self) -> int:
        """Returns a number for the daemon to write into its slot."""
        with self._lock:
            self._signal += 1
            return self._signal

    def wait(self, stream: Stream, signal: int) -> None:
        """Makes a stream wait for a requested signal, or for the end of the connection."""
        with self._context.current() as driver:
            refuse_capture(driver, stream, "a wait for the daemon")
            if self._rescued == RELEASED:
                return
            driver.wait_value(stream, self._daemon, signal)
        if self._rescued == RELEASED:  # the rescue may have preceded the queued wait
            self.rescue()

    def rescue(self, signal: int = RELEASED) -> None:
        """Writes a number into the daemon's slot, because the daemon is gone or does not answer."""
        with self._rescue:
            self._rescued = max(self._rescued, signal)
            if self._closed:
                return
            with self._context.aside() as driver:
                driver.write_value(self._rescuer, self._daemon, self._rescued)

    def close(self) -> None:
        """Destroys streams and event, once no queued work uses the slots."""
        with self._rescue:
            self._closed = True
        with self._context.aside():
            self._undo.close()
