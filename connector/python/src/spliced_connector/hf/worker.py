"""Computes segments that other engines need, on an engine of transformers with time to spare."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spliced_connector.client import Job, NewSegment
from spliced_connector.errors import Code
from spliced_connector.hf.reuse import Reuse
from spliced_connector.walk import capture, pack

log = logging.getLogger("spliced")

_PAUSE_SECONDS = 0.5
"""Maximum pause after a request without an answer, so that a loop of steps does not spin."""


class Worker:
    """Computes one segment at a time, on the thread that calls `step`, and publishes it.

        with engine.worker() as worker:
            while nothing_else_to_do():
                worker.step(wait=1.0)

    A caller that makes no step for 5 seconds is not a worker until its next step. Must not run
    concurrently with other work of the same engine on another thread.
    """

    def __init__(self, serving: Callable[[], Reuse | None]) -> None:
        """serving: the engine's current reuse; nothing is computed while it is None."""
        self._serving = serving
        self._closed = False
        self._declined: list[Job] = []  # declined jobs that are not reported yet

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, wait: float = 0.0) -> int:
        """Waits at most `wait` seconds for a requested segment, and computes it.

        Returns how many segments were published. Failures of the daemon are not raised: it returns
        0, perhaps before `wait` has passed.
        """
        reuse = self._reuse()
        declined, self._declined = self._declined, []
        news = (
            None
            if reuse is None
            else reuse.model.jobs(1, wait, declined, primers=reuse.primers.digests)
        )
        if news is None:
            time.sleep(min(wait, _PAUSE_SECONDS))
            return 0
        done = 0
        for job in news.jobs:
            # The reuse may have ended during the wait.
            if (reuse := self._reuse()) is not None and self._compute(reuse, job):
                done += 1
            else:
                self._declined.append(job)
        return done

    def close(self) -> None:
        """Takes no more jobs, and reports declined jobs."""
        reuse, self._closed = self._reuse(), True
        if reuse is not None:
            reuse.model.jobs(0, 0.0, self._declined, end=True)

    def _reuse(self) -> Reuse | None:
        return None if self._closed else self._serving()

    def _compute(self, reuse: Reuse, job: Job) -> bool:
        if job.begin or reuse.profile.spec_problem(job.spec) or time.monotonic() > job.deadline:
            return False
        if not reuse.primers.knows(job.spec):
            return False
        try:
            primer = reuse.primers.of(job.spec)
            captured = capture(reuse.arch, job.tokens, job.spec, reuse.device, primer)
        except Exception:
            # If the model fails on another engine's tokens, this process must go on.
            log.exception("a segment of %d tokens is not computed", job.spec.tokens)
            return False
        new = NewSegment(job.spec, job.tokens, pack(reuse.profile, captured))
        (code,) = reuse.model.publish([new])
        return code in (Code.OK, Code.EXISTS)
