"""Segments that other nodes request from this engine: the part in the scheduler's process.

A thread asks the daemon for jobs, and reports jobs that are declined. The scheduler passes jobs to
the workers, which compute and publish the segments like captures of their own requests. An engine
without requests spends all its time on jobs, a busy engine a share of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spliced_connector.client import Job, Model
from spliced_connector.serving.prices import Line
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.plans import Work, Worked
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.tally import log

MOST = 4
"""Maximum jobs at a time: those of the running batch, and of the next one."""

ROWS = 2048
"""Maximum rows of one batch: as many as a prefill has. A single job may have more."""

WATCH_SECONDS = 1.0
BUSY_SECONDS = 0.05
"""Seconds that one watch waits: WATCH_SECONDS without jobs, BUSY_SECONDS with jobs, because
declined jobs are reported only after a watch has ended."""

PAUSE_SECONDS = 0.5
"""Seconds to wait after a watch without an answer."""

BUSY_FOR = 1.0
"""Seconds for which an engine counts as busy after a step with requests."""


@dataclass(slots=True)
class _Running:
    """A job that the workers have."""

    job: Job
    ranks: int  # ranks that have not stored their share


class Loop(Protocol):
    """The loop that steps the engine. Any thread may call it."""

    @property
    def running(self) -> bool:
        """Whether this loop steps an engine without requests."""
        ...

    def wake(self) -> None:
        """Makes a sleeping engine check `Jobs.pending`."""
        ...


class NoJobs:
    """The jobs of an engine that computes nothing for other nodes."""

    pending = False

    def start(self) -> None: ...

    def next(self, alone: bool) -> tuple[Work, ...]:
        return ()

    def settled(self, worked: Iterable[Worked]) -> None: ...

    def close(self) -> None: ...


class Jobs:
    """The jobs of one engine. All methods are for the scheduler's thread and do not wait. `start`
    must be called first."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        ranks: int,
        tally: EngineTally,
        loop: Loop,
        clock: Callable[[], float] = time.monotonic,
        primers: Sequence[bytes] = (),
    ) -> None:
        """primers: digests of the primers that the workers have."""
        self._primers = tuple(primers)
        self._model = model
        self._ranks = ranks
        self._tally = tally
        self._loop = loop
        self._clock = clock
        self._stall = settings.stall_ms / 1000
        self._most_tokens = settings.capture_tokens
        self._share = settings.parallel_share
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._queue: deque[Job] = deque()
        self._running: dict[int, _Running] = {}
        self._declined: list[Job] = []  # not reported yet
        # Used by the scheduler's thread:
        self._line = Line()  # seconds by rows
        self._last = 0.0  # seconds of the last batch
        self._credit = 0.0  # seconds that a busy engine may spend on jobs
        self._now = clock()
        self._busy_until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spliced-jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def pending(self) -> bool:
        """Whether the engine must continue stepping because of jobs."""
        return bool(self._queue or self._running)

    def next(self, alone: bool) -> tuple[Work, ...]:
        """Returns the next batch of work for the workers; nothing while they have a batch.

        alone: whether the step computes no tokens of requests.
        """
        now = self._clock()
        gained, self._now = (now - self._now) * self._share, now
        self._credit = min(self._stall, self._credit + gained)
        if not alone:
            self._busy_until = now + BUSY_FOR
        if self._running or not self._queue:
            return ()
        with self._lock:
            self._drop_late(now)
            batch = self._batch(ROWS, one=True) if alone else self._batch(self._rows(), one=False)
            self._running = {job.id: _Running(job, self._ranks) for job in batch}
        if batch and not alone:
            self._credit = 0.0
        return tuple(Work(job.id, job.spec, job.tokens) for job in batch)

    def settled(self, worked: Iterable[Worked]) -> None:
        """Handles the outcome of jobs on the ranks."""
        for one in worked:
            if one.rows:
                self._line.learn(one.rows, one.seconds)
                self._last = one.seconds
            with self._lock:
                running = self._running.get(one.id)
                if running is None:
                    continue
                running.ranks -= 1
                if one.stored and running.ranks:
                    continue
                del self._running[one.id]
                if not one.stored:
                    self._declined.append(running.job)
            self._tally.add("jobs_done" if one.stored else "jobs_failed")

    def close(self) -> None:
        """Ends the requests for jobs. Unfinished jobs end with the connection."""
        self._stop.set()
        with self._lock:
            self._queue.clear()
            self._running.clear()

    def _batch(self, rows: float, one: bool) -> list[Job]:
        """Returns the next jobs, with at most `rows` rows in all. one: whether to return at least
        one job, even if it has more rows."""
        batch: list[Job] = []
        while self._queue:
            tokens = self._queue[0].spec.tokens
            if tokens > rows and (batch or not one):
                break
            batch.append(self._queue.popleft())
            rows -= tokens
        return batch

    def _rows(self) -> float:
        """Returns how many rows a busy engine has time for; 0 before the time per row is known."""
        fit = self._line.fit()
        if fit is None:
            return 0.0
        fixed, each = fit
        return max(0.0, (self._credit - fixed) / each) if each > 0 else 0.0

    def _drop_late(self, now: float) -> None:
        late = [job for job in self._queue if job.deadline <= now]
        for job in late:
            self._queue.remove(job)
        self._declined += late
        self._tally.add("jobs_late", len(late))

    # Run by the thread.

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                answered = self._watch()
            except Exception:
                log.exception("no longer computing for other nodes")
                return
            if not answered:
                self._stop.wait(PAUSE_SECONDS)

    def _watch(self) -> bool:
        with self._lock:
            declined, self._declined = self._declined, []
        self._tally.add("jobs_declined", len(declined))
        most, queued = self._offer()
        wait = BUSY_SECONDS if self.pending else WATCH_SECONDS
        news = self._model.jobs(most, wait, declined, queued, primers=self._primers)
        if news is None:  # without a watch this engine is no worker and has no jobs
            with self._lock:
                self._queue.clear()
            return False
        with self._lock:
            self._queue = deque(job for job in self._queue if job.id not in news.withdrawn)
            for job in () if self._stop.is_set() else news.jobs:
                (self._queue if self._takes(job) else self._declined).append(job)
        self._tally.add("jobs", len(news.jobs))
        if self._queue:
            self._loop.wake()
        return True

    def _offer(self) -> tuple[int, float]:
        """Returns how many jobs to take at once, and in how many seconds the first one can start. A
        busy engine needs that long until its share of time suffices for a batch."""
        if self._clock() >= self._busy_until:
            return MOST if self._loop.running else 0, 0.0
        if not self._share or self._line.fit() is None:
            return 0, 0.0
        return MOST, self._last / self._share

    def _takes(self, job: Job) -> bool:
        wrong = self._model.profile.spec_problem(job.spec) or job.begin
        known = job.spec.primer in (b"", *self._primers)
        return not wrong and known and job.spec.tokens <= self._most_tokens
