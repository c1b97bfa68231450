"""Segments that other engines want, computed by an engine of transformers that has time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spliced_connector.client import Job, NewSegment
from spliced_connector.errors import Code
from spliced_connector.hf.reuse import Reuse
from spliced_connector.walk import capture, pack

log = logging.getLogger("spliced")

_PAUSE_SECONDS = 0.5
"""Behind a question that nobody answered, at most: a loop of steps must not spin."""

_ASK_SECONDS = 1.0
"""Between two questions while a segment is computed."""


class Worker:
    """Computes one segment at a time, on the thread that calls `step`, and publishes it.

        with engine.worker() as worker:
            while nothing_else_to_do():
                worker.step(wait=1.0)

    Between two steps, also without a job, no more than 5 seconds may lie: who asks later is no
    worker any more, and becomes one again. Not beside other work of the same engine on another
    thread.
    """

    def __init__(self, serving: Callable[[], Reuse | None]) -> None:
        """serving: what the engine reuses with now; nothing is computed where it is None."""
        self._serving = serving
        self._closed = False
        self._jobs: deque[Job] = deque()
        self._declined: list[Job] = []  # and not told yet

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, wait: float = 0.0) -> int:
        """Wait at most so many seconds for a segment that is wanted, and compute it.

        How many were published. Trouble of the daemon is none, 0 after some of the time.
        """
        reuse = self._reuse()
        if reuse is None or not self._ask(reuse, 0.0 if self._jobs else wait):
            time.sleep(min(wait, _PAUSE_SECONDS))
            return 0
        if not self._jobs:
            return 0
        reuse = self._reuse()  # a wait is behind us
        if reuse is None:
            return 0
        job = self._jobs.popleft()
        with self._asking(reuse):
            done = self._compute(reuse, job)
        if not done:
            self._declined.append(job)
        return int(done)

    def close(self) -> None:
        """Take no more. What was declined is told."""
        reuse, self._closed = self._reuse(), True
        if reuse is not None:
            reuse.model.jobs(0, 0.0, self._declined, end=True)

    def _reuse(self) -> Reuse | None:
        return None if self._closed else self._serving()

    def _ask(self, reuse: Reuse, wait: float) -> bool:
        declined, self._declined = self._declined, []
        news = reuse.model.jobs(1, wait, declined)
        if news is None:  # who does not ask has no jobs
            self._jobs.clear()
            return False
        left = [job for job in self._jobs if job.id not in news.withdrawn]
        self._jobs = deque((*left, *news.jobs))
        return True

    @contextmanager
    def _asking(self, reuse: Reuse) -> Iterator[None]:
        """Stays a worker while a segment is computed, which may take longer than one may be
        silent."""
        over = threading.Event()

        def ask() -> None:
            while not over.wait(_ASK_SECONDS):
                self._ask(reuse, 0.0)

        thread = threading.Thread(target=ask, name="spliced-worker", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _compute(self, reuse: Reuse, job: Job) -> bool:
        if job.begin or reuse.profile.spec_problem(job.spec) or time.monotonic() > job.deadline:
            return False
        try:
            captured = capture(reuse.arch, job.tokens, job.spec, reuse.device)
        except Exception:
            # Whatever the model raises at tokens of others must not end its owner.
            log.exception("a segment of %d tokens is not computed", job.spec.tokens)
            return False
        new = NewSegment(job.spec, job.tokens, pack(reuse.profile, captured))
        (code,) = reuse.model.publish([new])
        return code in (Code.OK, Code.EXISTS)
