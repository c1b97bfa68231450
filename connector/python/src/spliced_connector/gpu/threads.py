"""Threads for driver calls that may take long, so that neither the engine nor the client's keeper
thread waits for them."""

from __future__ import annotations

import _thread
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable

from spliced_connector.errors import SplicedError

log = logging.getLogger("spliced")

Job = Callable[[], None]


class DeviceThread:
    """A thread that runs jobs one after the other. Jobs queued after its end run on other threads.

    The caller of `do` may be a destructor that interrupts any function, so `do` takes no lock.
    """

    def __init__(self) -> None:
        # SimpleQueue.put is reentrant: a destructor that interrupts a put may call put as well.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="spliced", daemon=True)
        self._thread.start()

    def do(self, job: Job) -> None:
        """Queues a job."""
        self._jobs.put(job)
        # The thread sets `_ended` before it looks for jobs the last time.
        if self._ended:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and with it all memory
                _thread.start_new_thread(self._drain, ())

    def close(self, timeout: float) -> bool:
        """Waits for queued jobs. Returns False if that takes longer."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _guarded(job)
        self._ended = True
        self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _guarded(job)


class DeviceThreads:
    """The threads of one client."""

    def __init__(self) -> None:
        self.order = DeviceThread()
        """The thread that attaches, and notifies the daemon of points that streams have passed. It
        may wait for the daemon, but never for a stream: a stream that itself waits for the daemon
        would never finish."""
        self.waits = DeviceThread()
        """The thread that waits for streams, and does the work that must follow theirs."""

    def close(self, timeout: float) -> None:
        """Waits up to `timeout` for queued jobs."""
        until = time.monotonic() + timeout
        self.order.close(timeout)
        self.waits.close(max(0.0, until - time.monotonic()))


def _guarded(job: Job) -> None:
    try:
        job()
    except SplicedError as err:
        log.warning("memory of the GPU: %s", err)
    except Exception:  # the next job must run in any case
        log.exception("memory of the GPU")
