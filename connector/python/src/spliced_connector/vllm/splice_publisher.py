"""Publishes captured segments from a thread of its own: the daemon copies and hashes them."""

from __future__ import annotations

import threading
from collections import deque

from spliced_connector.client import Model, NewSegment
from spliced_connector.errors import Code
from spliced_connector.vllm.tally import EngineTally


class Publisher:
    """Stores segments in order. What does not fit into the queue is dropped, and counted."""

    def __init__(self, model: Model, tally: EngineTally, bound: int) -> None:
        self._model, self._tally, self._bound = model, tally, bound
        self._change = threading.Condition()
        self._queue: deque[NewSegment] = deque()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, new: NewSegment) -> None:
        """Its parts must not change any more."""
        with self._change:
            if self._closed or len(self._queue) >= self._bound:
                self._tally.add("publish_failures")
                return
            self._queue.append(new)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="spliced-publisher", daemon=True
                )
                self._thread.start()
            self._change.notify_all()

    def drain(self, timeout: float) -> bool:
        """Waits until all is stored or given up. False after `timeout` seconds."""
        with self._change:
            return self._change.wait_for(lambda: not (self._queue or self._busy), timeout)

    def close(self) -> None:
        """Gives up what waits, and waits for the thread."""
        with self._change:
            self._closed = True
            self._tally.add("publish_failures", len(self._queue))
            self._queue.clear()
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                new = self._queue.popleft()
                self._busy = True
            (code,) = self._model.publish([new])
            if code in (Code.OK, Code.EXISTS):
                self._tally.add("published")
            else:
                self._tally.add("publish_failures")
