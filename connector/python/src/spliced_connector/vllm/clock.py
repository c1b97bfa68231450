"""Times those steps of vLLM that only compute a prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spliced_connector.serving.prices import Clock

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class PrefillClock(Clock):
    """Times steps that compute tokens of one request only."""

    def __init__(self, pipelined: bool) -> None:
        super().__init__()
        self._pipelined = pipelined  # steps overlap, so their times cannot be separated

    def step(self, step: SchedulerOutput, busy: bool) -> None:
        """Called before each step. busy: the connector also works in the step."""
        if self._pipelined or busy or len(step.num_scheduled_tokens) != 1:
            self.begin(None)
            return
        ((request_id, tokens),) = step.num_scheduled_tokens.items()
        begin = computed_before(step).get(request_id, 0)
        self.begin((begin, begin + tokens))


def computed_before(step: SchedulerOutput) -> dict[str, int]:
    """Returns how many tokens of each scheduled request were computed before the step."""
    cached = step.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {r.req_id: r.num_computed_tokens for r in step.scheduled_new_reqs}
    return computed
