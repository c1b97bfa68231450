"""Segments that requests miss and other nodes compute: the part in the scheduler's process.

Nodes negotiate a plan, which takes some milliseconds; the planned segments take as long as
prefills. So two threads talk to the daemon, and the scheduler only reads their results so far.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spliced_connector.client import Following, Missing, Model
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.plans import News
from spliced_connector.vllm.tally import log

MOST = 16
"""Maximum requests that wait for other nodes: a connection may have this many plans."""

PLAN_SECONDS = 0.5
"""Timeout of a plan, in seconds. The daemon waits half of it for other nodes."""

WATCH_SECONDS = 0.02
"""How long one round of watches over all plans waits, in seconds. The end of a request is noticed
only after a round."""


@dataclass(slots=True)
class Away:
    """The known state of the missing segments of one request, by key. planned: whether a plan
    exists, or there is no plan to wait for."""

    planned: bool = False
    waiting: frozenset[bytes] = frozenset()  # other engines compute them
    # this engine computes them: by the plan, or because they were lost
    own: frozenset[bytes] = frozenset()
    came: frozenset[bytes] = frozenset()
    lost: frozenset[bytes] = frozenset()  # part of `own`


@dataclass(slots=True)
class _Request:
    """Guarded by the combiner's lock, except `over`."""

    missing: Sequence[Missing]
    away: Away = field(default_factory=Away)
    claimed: bool = False  # whether workers must hear of segments that came or were lost
    reported: frozenset[bytes] = frozenset()  # keys of the segments that workers have heard of
    over: bool = False  # whether the segments are no longer needed


class Alone:
    """The combiner of an engine that computes all segments itself."""

    asks = False

    def start(self) -> None: ...

    def ask(self, request_id: str, missing: Sequence[Missing]) -> None: ...

    def asking(self, request_id: str) -> bool:
        return False

    def of(self, request_id: str, claim: bool = False) -> Away:
        return Away(planned=True)

    def news(self) -> tuple[News, ...]:
        return ()

    def drop(self, request_id: str) -> None: ...

    def close(self) -> None: ...


class Combiner(Alone):
    """Asks other nodes to compute missing segments. All methods are for the scheduler's thread and
    do not wait. `start` must be called first."""

    asks = True

    def __init__(self, model: Model, tally: EngineTally) -> None:
        self._model = model
        self._tally = tally
        self._lock = threading.Lock()
        self._requests: dict[str, _Request] = {}
        self._waiting = 0  # requests with an unsettled plan; guarded by the lock
        self._over = False  # requests to the daemon have ended; also guarded
        self._to_plan: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._to_watch: queue.SimpleQueue[tuple[_Request, Following] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name="spliced-plans", daemon=True)
            for work in (self._plan_all, self._watch_all)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ask(self, request_id: str, missing: Sequence[Missing]) -> None:
        """Starts to ask which engine computes which segment. Does nothing if too many requests
        wait."""
        with self._lock:
            if self._over or self._waiting >= MOST:
                self._tally.add("plans_refused")
                return
            self._waiting += 1
            request = self._requests[request_id] = _Request(missing)
        self._to_plan.put(request)

    def asking(self, request_id: str) -> bool:
        """Returns whether a request must wait because its plan is not known yet."""
        request = self._requests.get(request_id)
        return request is not None and not request.away.planned

    def of(self, request_id: str, claim: bool = False) -> Away:
        """Returns the known state of a request's segments. If nothing was asked, this engine
        computes all of them.

        claim: whether `news` reports later changes.
        """
        request = self._requests.get(request_id)
        if request is None:
            return Away(planned=True)
        with self._lock:
            now = request.away
            if claim:
                request.claimed, request.reported = True, now.came | now.lost
            return Away(now.planned, now.waiting, now.own, now.came, now.lost)

    def news(self) -> tuple[News, ...]:
        """Returns the changes since the last call, for claimed requests."""
        news = []
        with self._lock:
            for request_id, request in self._requests.items():
                away = request.away
                fresh = (away.came | away.lost) - request.reported
                if request.claimed and fresh:
                    news.append(News(request_id, fresh & away.came, fresh & away.lost))
                    request.reported |= fresh
        return tuple(news)

    def drop(self, request_id: str) -> None:
        """Ends the waits of a request. Further calls do nothing."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.over = True

    def close(self) -> None:
        """Ends all queries."""
        for request_id in list(self._requests):
            self.drop(request_id)
        self._to_plan.put(None)
        self._to_watch.put(None)

    # Run by the threads.

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("other nodes are no longer asked")
        finally:  # ends all waits for this thread
            with self._lock:
                self._over = True
                for request in self._requests.values():
                    self._lose(request)

    def _plan_all(self) -> None:
        while (request := self._to_plan.get()) is not None:
            following = None if request.over else self._planned(request)
            if following is not None:
                self._to_watch.put((request, following))
            else:
                self._settle(request)

    def _planned(self, request: _Request) -> Following | None:
        plan = self._model.plan(request.missing, wait=PLAN_SECONDS)
        self._tally.add("plans")
        if plan is None or not plan.away:
            return None
        self._tally.add("plans_shared")
        own, away = frozenset(plan.own_keys), plan.away
        held = frozenset(row.key for row in plan.rows) - own - away
        with self._lock:
            request.away = Away(True, away, own, held)
        return Following(self._model, plan)

    def _watch_all(self) -> None:
        watched: list[tuple[_Request, Following]] = []
        while True:
            try:
                while (new := self._to_watch.get(block=not watched)) is not None:
                    watched.append(new)
                return
            except queue.Empty:
                pass
            left = []
            for request, following in watched:
                self._watch(request, following, WATCH_SECONDS / len(watched))
                if following.left:
                    left.append((request, following))
                else:
                    self._settle(request)
            watched = left

    def _watch(self, request: _Request, following: Following, wait: float) -> None:
        if request.over:
            following.close()
            return
        news = following.watch(wait)
        self._tally.add("segments_came", len(news.committed))
        self._tally.add("segments_lost", len(news.lost))
        with self._lock:
            away = request.away
            away.waiting = following.left
            away.came |= news.committed
            away.lost |= news.lost
            away.own |= news.lost

    def _settle(self, request: _Request) -> None:
        with self._lock:
            self._waiting -= 1
            self._lose(request)

    def _lose(self, request: _Request) -> None:
        """Gives up waiting: this engine computes all segments that have not come."""
        away = request.away
        away.lost |= away.waiting
        away.own |= away.waiting
        away.waiting, away.planned = frozenset(), True
