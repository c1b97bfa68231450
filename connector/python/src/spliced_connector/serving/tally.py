"""Counts by name of what a connector has done inside an engine."""

from __future__ import annotations

import threading
from collections import Counter


class EngineTally:
    """Counts of one half of the connector; any thread may add.

    matched_tokens       tokens that were promised to the engine for requests
    loads, loaded_tokens loads that succeeded, and the tokens that they filled into blocks
    load_failures        loads that failed: the engine computes these tokens
    load_micros          how long the engine stood still for loads, also those that failed
    saves, saved_tokens  checkpoints that were stored, and the new rows in them
    save_failures        checkpoints that were refused or dropped; save_code_N: refused with code N
    save_micros          how long the engine stood still to copy data that is to be stored
    rounded_states       states that were wanted but not stored, because decoding has rounded them
    unanswered           lookups of prefixes that the daemon did not answer in time
    not_worth_it         prompts whose stored prefix takes longer to fetch than to compute
    untold               prompts whose outcome was not reported to the daemon
    unadvised            prompts without advice: nothing of them is stored
    beyond_max_loss      requests that are not spliced, though they could be, because no way is
                         known to be within their max_loss
    composed_engine, composed_daemon   walks with cached segments, by who placed the segments
    composed_refused     walks that failed in the daemon; the engine did them instead
    composed_unasked     walks that the daemon should do, but could not be asked for
    shared_tokens        tokens of spliced requests that lie in shared pages
    plans, plans_shared  requests for which other nodes were asked, and requests that they helped
    plans_refused        requests for which no node was asked, because too many requests waited
    segments_came, segments_lost   segments that other nodes should compute, and did or did not
    jobs                 segments that other nodes requested from this engine. jobs_done were
                         published, jobs_failed were not, jobs_late expired; jobs_declined
                         counts all that were not done
    helped, helped_tokens          segments computed for other nodes, on each rank
    untouched            requests of kinds that are never reused, or with too few tokens
    inert                1 if this half does nothing
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def snapshot(self) -> dict[str, int]:
        """All counts that are not 0."""
        with self._lock:
            return dict(self._counts)

    def news(self) -> dict[str, int]:
        """What was counted since the last call."""
        with self._lock:
            fresh = self._counts - self._reported
            self._reported = self._counts.copy()
        return dict(fresh)
