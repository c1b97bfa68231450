"""Stores checkpoints and segments in the background, on separate threads.

The engine's thread only starts copies from its device. The threads here wait for these copies and
send them to the daemon.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spliced_connector.client import Accept, Model, NewCheckpoint, NewSegment
from spliced_connector.errors import Code
from spliced_connector.model import SegmentSpec
from spliced_connector.serving.tally import EngineTally
from spliced_connector.walk import Captured, Copies, ToHost, by_layer, bytes_of, packed

_BUSY_SECONDS = 0.05
_BUSY_TRIES = 20
"""How often to try again after BUSY, every _BUSY_SECONDS: a parent on disk must be read first."""


class Leaving(Protocol):
    """An object being copied from the engine."""

    @property
    def parts(self) -> ToHost: ...


T = TypeVar("T", bound=Leaving)


class Storing(ABC, Generic[T]):
    """One thread that stores objects in order.

    While `bound` bytes or more wait or are being stored, further objects are dropped and counted as
    `failures`. The first `put` starts the thread.
    """

    thread_name: str
    failures: str

    def __init__(self, model: Model, tally: EngineTally, bound: int) -> None:
        self._model = model
        self._tally = tally
        self._bound = bound
        self._change = threading.Condition()
        self._queue: deque[T] = deque()
        self._bytes = 0  # waiting and being stored
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _store(self, new: T) -> None:
        """Stores one object, and counts the outcome."""

    @property
    def full(self) -> bool:
        """Whether the next object would be dropped."""
        with self._change:
            return self._full()

    def _full(self) -> bool:
        return self._stop.is_set() or self._bytes >= self._bound

    def put(self, new: T) -> bool:
        """Queues an object, whose bytes must not change any more. Returns False if it is
        dropped."""
        with self._change:
            if self._full():
                self._tally.add(self.failures)
                return False
            self._queue.append(new)
            self._bytes += new.parts.nbytes
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self.thread_name, daemon=True
                )
                self._thread.start()
            self._change.notify_all()
        return True

    def drain(self, timeout: float) -> bool:
        """Waits until all is stored. Returns False after `timeout` seconds."""
        with self._change:
            return self._change.wait_for(lambda: not self._bytes, timeout)

    def close(self) -> None:
        """Drops waiting objects, and waits for the thread."""
        with self._change:
            self._stop.set()
            self._tally.add(self.failures, len(self._queue))
            self._bytes -= sum(new.parts.nbytes for new in self._queue)
            self._queue.clear()
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        stored = 0
        while True:
            with self._change:
                self._bytes -= stored
                self._change.notify_all()
                self._change.wait_for(lambda: self._queue or self._stop.is_set())
                if not self._queue:
                    return
                new = self._queue.popleft()
            self._store(new)
            stored = new.parts.nbytes


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint being copied from the engine: its parts in the order of the layout."""

    hash: bytes
    tokens: int
    parent_hash: bytes
    parent_tokens: int
    parts: ToHost
    kind: Accept = Accept.EXACT


@dataclass(frozen=True, slots=True)
class Fresh:
    """A captured segment being copied from the engine. settled: a function that is called on
    another thread, with True if the daemon has the segment now, else False."""

    spec: SegmentSpec
    ids: tuple[int, ...]
    parts: ToHost
    settled: Callable[[bool], None] | None = None


class Saver(Storing[Taken]):
    """Saves checkpoints. They are saved in order, so parents come first."""

    thread_name = "spliced-saver"
    failures = "save_failures"

    def _store(self, new: Taken) -> None:
        parts = tuple(bytes_of(x) for x in new.parts.arrived())
        checkpoint = NewCheckpoint(
            new.hash, new.tokens, new.parent_hash, new.parent_tokens, new.kind, parts
        )
        for _ in range(_BUSY_TRIES):
            (code,) = self._model.save([checkpoint])
            if code != Code.BUSY or self._stop.wait(_BUSY_SECONDS):
                break
        if code in (Code.OK, Code.EXISTS):
            self._tally.add("saves")
            self._tally.add("saved_tokens", new.tokens - new.parent_tokens)
        else:
            self._tally.add("save_failures")
            self._tally.add(f"save_code_{int(code)}")


class Publisher(Storing[Fresh]):
    """Publishes captured segments."""

    thread_name = "spliced-publisher"
    failures = "publish_failures"

    def capture(self, captured: Captured, ids: tuple[int, ...], copies: Copies) -> Captured:
        """Queues a fresh capture for publishing. Returns it as it will be read back, so that this
        request and later ones that reuse the segment give the same answer, up to the tolerance.

        ids: token ids of the segment. copies: copies from the engine's device.
        """
        profile = self._model.profile
        parts = packed(profile, captured)
        self._tally.add("captures")
        self._tally.add("captured_tokens", len(ids))
        self.put(Fresh(captured.spec, ids, copies.to_host(parts)))
        layout = profile.segment_layout(captured.spec)
        return Captured(captured.spec, by_layer(len(captured.layers), layout, parts))

    def _store(self, new: Fresh) -> None:
        parts = [bytes_of(x) for x in new.parts.arrived()]
        (code,) = self._model.publish([NewSegment(new.spec, new.ids, parts)])
        held = code in (Code.OK, Code.EXISTS)
        self._tally.add("published" if held else "publish_failures")
        if new.settled is not None:
            new.settled(held)
