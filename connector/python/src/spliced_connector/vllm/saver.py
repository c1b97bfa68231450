"""Stores checkpoints behind the engine's back: its thread only copies them out."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from spliced_connector.client import Accept, Model, NewCheckpoint
from spliced_connector.errors import Code
from spliced_connector.vllm.tally import EngineTally

_BUSY_SECONDS = 0.05
_BUSY_TRIES = 20
"""A parent that lies on disk is read before it can be extended, for a second at most."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint copied out of the engine: its parts in the order of the layout."""

    hash: bytes
    tokens: int
    parent_hash: bytes
    parent_tokens: int
    parts: tuple[memoryview, ...]


class Saver:
    """One thread that stores what it is given, in order, so that parents come first.

    The queue is bounded: what does not fit is dropped and counted.
    """

    def __init__(self, model: Model, tally: EngineTally, bound: int) -> None:
        self._model = model
        self._tally = tally
        self._bound = bound
        self._change = threading.Condition()
        self._queue: deque[Taken] = deque()
        self._working = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def full(self) -> bool:
        """Whether the next one would be dropped."""
        with self._change:
            return self._closed or len(self._queue) + self._working >= self._bound

    def put(self, taken: Taken) -> None:
        """Store it soon, or drop it."""
        with self._change:
            if self._closed or len(self._queue) + self._working >= self._bound:
                self._tally.add("save_failures")
                return
            self._queue.append(taken)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spliced-saver", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to store. False after `timeout` seconds."""
        with self._change:
            return self._change.wait_for(lambda: not (self._queue or self._working), timeout)

    def close(self) -> None:
        """Give up what is left, and wait for the thread."""
        self._stop.set()
        with self._change:
            self._closed = True
            self._tally.add("save_failures", len(self._queue))
            self._queue.clear()
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._working = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                taken = self._queue.popleft()
                self._working = True
            self._store(taken)

    def _store(self, taken: Taken) -> None:
        new = NewCheckpoint(
            taken.hash,
            taken.tokens,
            taken.parent_hash,
            taken.parent_tokens,
            Accept.EXACT,
            taken.parts,
        )
        for _ in range(_BUSY_TRIES):
            (code,) = self._model.save([new])
            if code != Code.BUSY or self._stop.wait(_BUSY_SECONDS):
                break
        if code in (Code.OK, Code.EXISTS):
            self._tally.add("saves")
            self._tally.add("saved_tokens", taken.tokens - taken.parent_tokens)
        else:
            self._tally.add("save_failures")
            self._tally.add(f"save_code_{int(code)}")
