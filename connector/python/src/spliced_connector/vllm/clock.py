"""How long the engine's prefills take, for the daemon's prices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spliced_connector.client import Sample

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

_LEAST_TOKENS = 64
"""Shorter prefills tell more about the step than about the tokens."""
_MOST_SAMPLES = 64


class PrefillClock:
    """Times steps that compute one request's prompt and nothing else."""

    def __init__(self, pipelined: bool) -> None:
        self._pipelined = pipelined  # steps overlap: their times are not their own
        self._samples: list[Sample] = []
        self._span: tuple[int, int] | None = None
        self._began = 0.0

    def begin(self, step: SchedulerOutput, busy: bool) -> None:
        """A step is about to run; busy: the connector itself has work in it."""
        self._span = None
        if self._pipelined or busy or len(step.num_scheduled_tokens) != 1:
            return
        ((request_id, tokens),) = step.num_scheduled_tokens.items()
        if tokens < _LEAST_TOKENS:
            return
        begin = computed_before(step).get(request_id, 0)
        self._span = begin, begin + tokens
        self._began = time.perf_counter()

    def end(self) -> None:
        """The step has ended."""
        if self._span is not None and len(self._samples) < _MOST_SAMPLES:
            self._samples.append(Sample(*self._span, time.perf_counter() - self._began))
        self._span = None

    def take(self) -> tuple[Sample, ...]:
        """What was measured since the last call."""
        samples, self._samples = tuple(self._samples), []
        return samples


def computed_before(step: SchedulerOutput) -> dict[str, int]:
    """How many tokens of each scheduled request were computed before the step."""
    cached = step.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {r.req_id: r.num_computed_tokens for r in step.scheduled_new_reqs}
    return computed
