"""A worker's record of shared pages: which requests have them, and which bins are filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from spliced_connector.vllm.pages.plans import PagePlan, Run


class Placed:
    """The record that the connector writes at the start of a step and the attention backend reads
    during the step. Both run on the thread that runs the model."""

    def __init__(self, batch: Callable[[], Sequence[str]], block_tokens: int) -> None:
        """batch: returns the ids of the step's requests in the engine's order. block_tokens: tokens
        of one of the engine's blocks."""
        self.batch = batch
        self.block_tokens = block_tokens
        self._plans: dict[str, PagePlan] = {}
        self._filled: dict[int, tuple[int, set[int]]] = {}  # by block: generation, offsets

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, request_id: str, plan: PagePlan) -> None:
        """Makes the request's attention follow the plan from now on."""
        self._plans[request_id] = plan

    def plan(self, request_id: str) -> PagePlan | None:
        """Returns a request's plan, None if it has no shared pages."""
        return self._plans.get(request_id)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Removes requests that have released their blocks or never got any."""
        for request_id in request_ids:
            self._plans.pop(request_id, None)

    def plans(self, requests: int) -> Mapping[int, PagePlan]:
        """Returns the plans of the step's first `requests` requests, by their index in the
        batch."""
        if not self._plans:
            return {}
        batch = self.batch()[:requests]
        return {i: self._plans[name] for i, name in enumerate(batch) if name in self._plans}

    def is_filled(self, run: Run) -> bool:
        """Returns whether the run's rows were written since the block became this bin."""
        generation, offsets = self._filled.get(run.block, (0, ()))
        return generation == run.generation and run.offset in offsets

    def fill(self, run: Run) -> None:
        """Records that the run's rows are written and valid."""
        generation, offsets = self._filled.get(run.block, (0, set()))
        if generation != run.generation:
            offsets = set()
        offsets.add(run.offset)
        self._filled[run.block] = run.generation, offsets
