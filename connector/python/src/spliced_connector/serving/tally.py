"""What a connector has done inside an engine, counted by name."""

from __future__ import annotations

import threading
from collections import Counter


class EngineTally:
    """Counts of one half of the connector; any thread may add.

    matched_tokens       tokens claimed for requests
    loads, loaded_tokens loads that ended well, and the tokens that they filled into blocks
    load_failures        loads that did not: the engine computes these tokens
    load_micros          how long the engine stood still for loads, both kinds
    saves, saved_tokens  checkpoints stored, and the rows that were new in them
    save_failures        checkpoints refused or dropped; save_code_N: refused with code N
    save_micros          how long the engine stood still for copies of what is to be stored
    rounded_states       states that were wanted and not stored, as decoding has rounded them
    unanswered           questions for prefixes that the daemon did not answer in time
    not_worth_it         prompts whose prefix is stored and takes longer to fetch than to compute
    untold               prompts whose outcome was not reported to the daemon
    unadvised            prompts without advice: nothing of them is stored
    beyond_max_loss      requests with something to splice that are not spliced since no way is
                         known to be within their max_loss
    composed_engine, composed_daemon   walks with held segments, by who put these in place
    composed_refused     walks that the daemon failed, and that the engine did then
    composed_unasked     walks that it should do and could not be asked for
    shared_tokens        of spliced requests: tokens that lie in shared pages
    plans, plans_shared  requests for which others were asked, and those that they helped with
    plans_refused        requests that were not asked for, as too many waited
    segments_came, segments_lost   what others were to compute, and did or did not
    jobs                 segments that others wanted of this engine: jobs_done were published,
                         jobs_failed not, jobs_late expired; jobs_declined are all not done
    helped, helped_tokens          segments computed for others, of each rank
    untouched            requests of kinds that are never reused, or of too few tokens
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
