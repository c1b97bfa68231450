"""Mode splice in a worker: walks the joins of spliced requests on the thread that runs the model.

When a load arrives, the request's blocks are allocated and zeroed, and the engine waits until they
are filled. Most loads end in the step in which they arrive. Work that would delay running requests
for longer than the setting `stall_ms` continues in later steps: its own request waits, the others
are served. If no request runs, a step does as many rows as one of the engine's prefills. The cost
per row of a capture falls with the number of rows, and a new request waits at most as long as for a
prefill.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import torch

from spliced_connector.model import KeyMode, Piece
from spliced_connector.serving.composing import Composer
from spliced_connector.serving.job import LostError, Means, Pace
from spliced_connector.serving.modules import eager
from spliced_connector.serving.prices import Walked
from spliced_connector.serving.primers import Primers
from spliced_connector.serving.storing import Fresh, Publisher
from spliced_connector.serving.watch import Watch
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.plans import Outcome, Work, Worked
from spliced_connector.vllm.plugin import loaded
from spliced_connector.vllm.prefix import PrefixWorker
from spliced_connector.vllm.prefix_scheduler import check_prefixes
from spliced_connector.vllm.session import Session, ranks_of
from spliced_connector.vllm.splice_job import SpliceJob
from spliced_connector.vllm.splice_plans import SpliceLoad, SplicePlan
from spliced_connector.vllm.splice_scheduler import check_engine
from spliced_connector.vllm.support import Inert
from spliced_connector.vllm.tally import log
from spliced_connector.vllm.walk import walk_over
from spliced_connector.walk import (
    PREFILL_ROWS,
    Architecture,
    Captured,
    UnsupportedError,
    capture_all,
    packed,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class SpliceWorker:
    """Works on spliced requests, and on the prefixes of the other requests. Raises Inert if the
    model is unknown or the engine runs it in an unsupported way."""

    def __init__(self, session: Session, caches: Caches, config: VllmConfig) -> None:
        check_engine(session.engine)
        _check_config(config)
        self._arch = _architecture(session, config)
        self._session, self._caches = session, caches
        self._tally = session.tally
        self._jobs: dict[str, SpliceJob] = {}
        self._pace = Pace()
        self._walks: list[Walked] = []  # finished in this step
        self._others: deque[Work] = deque()  # segments that other nodes request
        self._worked: deque[Worked] = deque()  # not reported yet; any thread appends
        settings = session.settings
        self._prefix = _prefixes(session, caches)
        self._ranks = ranks_of(session.rank, session.engine.identity.tp_size)
        self.placed = _placed(session, caches, config) if settings.shared_pages else None
        """The record of shared pages that the attention backend reads. It outlives this object."""
        if self._prefix is not None:
            self._prefix.placed = self.placed
        self._publisher = Publisher(session.model, session.tally, settings.pending_mib << 20)
        self._primers = Primers(self._arch, caches.copies.device, session.primer)
        self._means = Means(
            Composer(
                self._arch,
                session.model,
                caches.copies,
                settings.compute,
                wait=settings.timeout_ms / 1000,
                tally=session.tally,
            ),
            self._publish,
            settings.load_ms / 1000,
            self._primers,
            self._ranks,
        )
        self._watch = Watch(
            self._arch,
            session.model,
            session.tally,
            settings.canary_bound,
            settings.canary_changed,
            alone=session.engine.identity.tp_size == 1,
            tells=session.rank == 0,
        )
        self.longest = 0.0
        """The longest time that running requests were delayed in one step, in seconds."""

    def shares(self, plan: object) -> bool:
        if not isinstance(plan, SplicePlan):
            return False
        loads = plan.prefix is not None and bool(plan.prefix.loads)
        working = plan.loads or plan.work or self._jobs or self._others
        return loads or bool(working) or self._watch.busy

    def load(self, plan: object) -> Outcome:
        """Works on all loads, the oldest first, until the time for a step is over. The last piece
        of work may take longer."""
        if not isinstance(plan, SplicePlan):
            return Outcome()
        for load in plan.loads:
            job = self._job(load)
            for other in self._jobs.values():
                for key, captured in other.captured.items():
                    job.take(key, captured)
            self._jobs[load.request_id] = job
            if load.pages is not None and self.placed is not None:
                self.placed.add(load.request_id, load.pages)
        exact = Outcome()
        if plan.prefix is not None and self._prefix is not None:
            exact = self._prefix.load(plan.prefix)
        done = set(plan.dropped & self._jobs.keys())
        for request_id in done:
            self._jobs.pop(request_id).close()
        if self.placed is not None:
            self.placed.forget(plan.dropped)  # also for loads that never ran
        failed: set[str] = set()
        for news in plan.news:
            if (waiting := self._jobs.get(news.request_id)) is not None:
                waiting.hear(news.came, news.lost)
        self._others += plan.work
        if any(not job.waits for job in self._jobs.values()):
            self._work(done, failed, plan.alone)
        elif self._others:
            self._help(plan.alone)
        elif self._watch.busy:
            self._watch.compare()
        self._watch.tell(again=bool(plan.loads))
        walks, self._walks = tuple(self._walks), []
        worked = tuple(self._worked.popleft() for _ in range(len(self._worked)))
        return Outcome(exact.done | done, exact.failed | failed, walks, worked)

    def save(self, plan: object) -> None:
        """Saves prefixes. Segments are never taken from the results of a step, because rows that a
        step computes depend on the tokens before the segment."""
        if isinstance(plan, SplicePlan) and self._prefix is not None:
            self._prefix.save(plan.prefix)

    def drain(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        saved = self._prefix is None or self._prefix.drain(timeout)
        return self._publisher.drain(max(0.0, until - time.monotonic())) and saved

    def stop_storing(self) -> None:
        """Drops data that is not stored yet, and stores nothing more."""
        self._publisher.close()
        if self._prefix is not None:
            self._prefix.stop_storing()

    def close(self) -> None:
        for job in self._jobs.values():
            job.close()
        self._jobs.clear()
        self.stop_storing()

    def _work(self, done: set[str], failed: set[str], alone: bool) -> None:
        began = time.monotonic()
        bound = self._session.settings.stall_ms / 1000
        until = began + (max(bound, PREFILL_ROWS * self._pace.seconds) if alone else bound)
        with eager():
            for request_id, job in [(i, j) for i, j in self._jobs.items() if not j.waits]:
                if self._run(job, until, failed):
                    done.add(request_id)
                    del self._jobs[request_id]
                if not self._ranks.all(time.monotonic() < until):
                    break
        if not alone:
            self._held_up(time.monotonic() - began)

    def _held_up(self, seconds: float) -> None:
        """Counts a delay of running requests by work of ours."""
        self.longest = max(self.longest, seconds)
        self._tally.add("stall_micros", round(seconds * 1e6))
        self._tally.add("stalls")
        if seconds > self._session.settings.stall_ms / 1000:
            self._tally.add("stalls_over_bound")

    def _run(self, job: SpliceJob, until: float, failed: set[str]) -> bool:
        """Runs a job. Returns whether it has ended, with or without success."""
        try:
            if self._watch.off:
                raise LostError("the canary has switched splicing off")
            if not job.run(self._pace, until):
                return False
            self._succeeded(job)
        except LostError as err:
            self._fail(job, failed, str(err))
        except Exception:
            # The engine's modules may raise anything. The engine then computes the request, which
            # must not fail.
            log.exception("splicing a request failed, the engine computes it")
            self._fail(job, failed, "")
        return True

    def _succeeded(self, job: SpliceJob) -> None:
        self._tally.add("loads")
        self._tally.add("loaded_tokens", job.load.splice.tokens)
        self._tally.add("walked_tokens", job.load.splice.walked)
        self._walks.append(job.walked)
        if job.load.sampled and job.context is not None:
            self._watch.offer(job.ids, job.context, job.load.splice.way)

    def _help(self, alone: bool) -> None:
        """Computes the segments that other nodes request: one batch, as the scheduler has passed
        it."""
        batch, self._others = list(self._others), deque()
        began = time.monotonic()
        try:
            if not self._ranks.all(all(self._primers.knows(work.spec) for work in batch)):
                raise LostError("a rank has read another primer than the scheduler")
            device = self._caches.copies.device
            wanted = [(torch.tensor(work.ids, device=device), work.spec) for work in batch]
            with eager():
                primers = [self._primers.of(work.spec) for work in batch]
                computed = time.monotonic()
                found = capture_all(self._arch, wanted, primers=primers)
        except Exception:
            log.exception("segments that other nodes ask for are not computed")
            self._worked += (Worked(work.id, stored=False) for work in batch)
            return
        self._tally.add("helped", len(batch))
        self._tally.add("helped_tokens", rows := sum(len(work.ids) for work in batch))
        took = time.monotonic() - computed
        for i, (work, captured) in enumerate(zip(batch, found, strict=True)):
            self._give(work, captured, *((0, 0.0) if i else (rows, took)))
        if not alone:
            self._held_up(time.monotonic() - began)

    def _give(self, work: Work, captured: Captured, rows: int, seconds: float) -> None:
        """Stores a segment that another node requested. rows, seconds: as in `Worked`."""

        def settled(held: bool) -> None:
            self._worked.append(Worked(work.id, held, rows, seconds))

        parts = self._caches.copies.to_host(packed(self._session.model.profile, captured))
        if not self._publisher.put(Fresh(work.spec, work.ids, parts, settled)):
            settled(False)

    def _fail(self, job: SpliceJob, failed: set[str], why: str) -> None:
        job.close()
        failed.add(job.load.request_id)
        if self.placed is not None:
            self.placed.forget([job.load.request_id])
        self._tally.add("load_failures")
        if why:
            log.info("request %s is computed: %s", job.load.request_id, why)

    def _job(self, load: SpliceLoad) -> SpliceJob:
        return SpliceJob(load, self._means, self._caches, self.placed)

    def _publish(self, piece: Piece, ids: tuple[int, ...], captured: Captured) -> Captured:
        """Publishes a capture, and gives it to other jobs that would capture the same segment."""
        stored = self._publisher.capture(captured, ids, self._caches.copies)
        if piece.key is not None:
            for job in self._jobs.values():
                job.take(piece.key, stored)
        return stored


def _check_config(config: VllmConfig) -> None:
    parallel = config.parallel_config
    refused = (
        (parallel.data_parallel_size > 1, "data parallel"),
        (bool(parallel.enable_expert_parallel), "expert parallel"),
        (config.lora_config is not None, "adapters"),
        (config.quant_config is not None, "quantised weights"),
        (str(config.cache_config.cache_dtype) != "auto", "a quantised cache"),
    )
    for is_so, what in refused:
        if is_so:
            raise Inert(f"mode splice does not support {what}")


def _prefixes(session: Session, caches: Caches) -> PrefixWorker | None:
    """Returns the worker of mode prefix, None if the engine has no states at block boundaries."""
    try:
        check_prefixes(session.engine)
    except Inert:
        return None
    return PrefixWorker(session, caches)


def _placed(session: Session, caches: Caches, config: VllmConfig) -> Placed | None:
    """Gives the engine's attention layers the data that they need for shared pages. Returns None if
    they do not use our backend; then vLLM's block manager is not ours either, and no request has
    shared pages."""
    from spliced_connector.vllm.pages.backend import LayerPages, SharedPagesImpl

    modules = config.compilation_config.static_forward_context
    groups = session.engine.rows
    named = [pair for group in groups for pair in zip(group.layers, group.names, strict=True)]
    found = {layer: getattr(modules[name], "impl", None) for layer, name in named}
    impls = {layer: impl for layer, impl in found.items() if isinstance(impl, SharedPagesImpl)}
    if len(groups) != 1 or len(impls) < len(found):
        log.warning("shared_pages: not for these layers, segments are copied")
        return None
    placed = Placed(loaded.batch_of(config), groups[0].block_tokens)
    for layer, impl in impls.items():
        attention = session.engine.identity.layers[layer].attention
        if trouble := impl.trouble():
            raise Inert(f"shared_pages: a layer with {trouble}")
        if attention.keys is not KeyMode.AT_ZERO:
            raise Inert("shared_pages: keys that are not stored turned to their positions")
        impl.pages = LayerPages(placed, attention.rope, caches.rows[layer].rows)
    return placed


def _architecture(session: Session, config: VllmConfig) -> Architecture:
    model = loaded.of(config)
    if not isinstance(model, torch.nn.Module):
        raise Inert(
            "mode splice found no model: the plugin 'spliced' of vllm.general_plugins did not run"
            " (VLLM_PLUGINS), or the model runner is not one it knows"
        )
    try:
        return walk_over(model, session.model.profile.share(session.rank))
    except UnsupportedError as err:
        raise Inert(f"mode splice cannot walk this model: {err}") from err
