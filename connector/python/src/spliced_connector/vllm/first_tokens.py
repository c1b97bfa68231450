"""Detects a request's first token, in the scheduler's process.

The scheduler sees steps, not tokens. If a step has computed the end of a request's prompt, the
request has its first token when the next step is planned, or one step later if steps are planned
ahead. If the request ends earlier, it had its first token then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spliced_connector.vllm.clock import computed_before

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


@dataclass(slots=True)
class Started:
    """A request that the engine has started."""

    request: Request
    held: int = 0
    """Number of leading tokens in the engine's own cache, as of its last query."""
    steps: int = 0
    """Steps planned since the end of the prompt was computed."""
    first: float = 0.0
    """Seconds from the request's arrival to its first token; 0 before the first token."""


class FirstTokens:
    """Detects first tokens in one engine. pipelined: whether the engine plans a step before the
    previous step has ended."""

    def __init__(self, pipelined: bool) -> None:
        self._wait = 1 if pipelined else 0
        self._started: dict[str, Started] = {}  # requests whose prompt has not ended
        self._due: dict[str, Started] = {}  # requests whose prompt has ended, not reported yet
        self._ended: set[str] = set()  # requests whose prompt has ended, reported or not

    def matched(self, request: Request, computed: int) -> None:
        """Called when the engine asks for tokens after the first `computed`."""
        if request.request_id not in self._ended:  # a preempted request asks again
            self._started.setdefault(request.request_id, Started(request)).held = computed

    def plan(self, step: SchedulerOutput) -> list[Started]:
        """Returns the requests whose first token was computed since the last call."""
        for one in self._due.values():
            one.steps += 1
        came = [self._has(one) for one in self._due.values() if one.steps > self._wait]
        for one in came:
            del self._due[one.request.request_id]
        computed = computed_before(step) if self._started else {}
        for request_id in [name for name in self._started if name in computed]:
            end = computed[request_id] + step.num_scheduled_tokens.get(request_id, 0)
            if end >= len(self._started[request_id].request.prompt_token_ids or ()):
                self._due[request_id] = self._started.pop(request_id)
                self._ended.add(request_id)
        return came

    def finished(self, request: Request) -> Started | None:
        """Handles the end of a request. Returns the request if it had its first token and was not
        returned before."""
        self._started.pop(request.request_id, None)
        self._ended.discard(request.request_id)
        one = self._due.pop(request.request_id, None)
        return self._has(one) if one is not None and request.num_output_tokens else None

    @staticmethod
    def _has(one: Started) -> Started:
        one.first = max(1e-6, time.time() - one.request.arrival_time)
        return one
