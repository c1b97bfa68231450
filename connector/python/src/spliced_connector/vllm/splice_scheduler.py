"""Mode splice in the scheduler's process: decides which requests are spliced, and how far."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from spliced_connector.client import Missing, plannable
from spliced_connector.model import Choice, choose
from spliced_connector.serving.cuts import Cuts, CutsError
from spliced_connector.serving.decider import NEXT_TOKENS, Decider, Known
from spliced_connector.serving.primers import lead_of
from spliced_connector.serving.splices import Splice, best_splice
from spliced_connector.serving.telling import Served
from spliced_connector.vllm.pages.plans import shareable
from spliced_connector.vllm.parallel.combiner import Alone, Combiner
from spliced_connector.vllm.parallel.jobs import Jobs, NoJobs
from spliced_connector.vllm.plans import Blocks, Outcome
from spliced_connector.vllm.plugin import cores
from spliced_connector.vllm.pool import EnginePool, make_private, make_public
from spliced_connector.vllm.prefix_scheduler import NoPrefixes, PrefixScheduler
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.splice_plans import Base, SpliceLoad, SplicePlan
from spliced_connector.vllm.splice_request import SpliceRequest
from spliced_connector.vllm.support import Engine, Inert
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from spliced_connector.vllm.pages.manager import SharedPagesManager


def check_engine(engine: Engine) -> None:
    """Raises Inert if the engine keeps its states in a way that mode splice does not support."""
    if engine.drafts:
        raise Inert("mode splice does not support speculative decoding; mode prefix does")
    if engine.states and engine.cache_mode not in ("none", "align"):
        raise Inert(
            f"mode splice needs one state per request, or states at block boundaries, the engine"
            f" keeps {engine.cache_mode!r}: start with --mamba-cache-mode align"
        )


class SpliceScheduler:
    """Decides which requests are spliced. The workers fill the claimed blocks and report back. If
    the engine has states at block boundaries, other requests are served as in mode prefix.

    Raises Inert for an engine that mode splice does not support.
    """

    def __init__(self, session: Session) -> None:
        check_engine(session.engine)
        self._session = session
        self._tally = session.tally
        self._requests: dict[str, SpliceRequest] = {}
        self._loads: list[SpliceLoad] = []
        self._dropped: set[str] = set()
        self._unsettled: set[str] = set()
        self._pool = EnginePool(session.engine)
        self._pages: SharedPagesManager | None = None
        self._prefix = _prefixes(session)
        self._clock = self._prefix.clock
        settings = session.settings
        lead = lead_of(session.primer, settings.primer_after)
        self._decider = Decider(
            session.model, settings, session.finder, self._tally, self._clock, lead
        )
        combines, works = settings.parallel.combines, settings.parallel.works
        self._combiner = Combiner(session.model, session.tally) if combines else Alone()
        self._jobs: Jobs | NoJobs = NoJobs()
        if works:
            ranks = session.engine.identity.tp_size
            primers = () if lead is None else (lead.digest,)
            self._jobs = Jobs(session.model, settings, ranks, session.tally, cores, primers=primers)

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens after the first `computed` can be filled later, and True if there
        are any. None: ask again, other nodes have not answered yet.

        The tokens belong to a splice, or to an exact prefix if the request has no segments.
        """
        entry = self._opened(request)
        if entry is None:
            return self._prefix.match(request, computed)
        entry.withdraw()
        self._share(request.request_id, None)
        if self._combiner.asking(request.request_id):
            return None, False  # other nodes answer within milliseconds; other requests run
        if (known := entry.open) is not None:
            self._offer(entry, known, computed)
        if (splice := entry.offered) is not None:
            # Shared pages may hold packed rows, whose error may exceed the limit.
            limited = splice.max_error is not None
            self._share(request.request_id, None if limited else splice)
            return splice.tokens - computed, True
        return (0, False) if entry.spliced else self._prefix.match(request, computed)

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """Claims the request's blocks: the workers fill them in this step."""
        entry = self._requests.get(request.request_id)
        if entry is None or (splice := entry.offered) is None or external == 0:
            self._prefix.allocated(request, blocks, external)
            return
        others = self._combiner.of(request.request_id, claim=True)
        hits, splice = splice.keys(Choice.HIT), splice.lost(others.lost)
        base, known = entry.base, entry.known
        if base.tokens and not base.name:
            base = replace(base, states=self._pool.hold(request, base.tokens))
        entry.claim(splice, base, (others.waiting | others.came | others.lost) & hits)
        entry.salt = request.cache_salt
        make_private(request)
        held = 0 if known is None else known.prefix
        composed = base.spliced or any(span.segment >= 0 for span in splice.spans)
        self._prefix.replaced(request.request_id, held, composed)
        self._tally.add("matched_tokens", external)
        fair = known is not None and not base.spliced and self._decider.fair(splice, known.w)
        sampled = fair and self._decider.sampled()
        ids = tuple(request.prompt_token_ids or ())
        self._unsettled.add(request.request_id)
        pages = None if self._pages is None else self._pages.plan(request.request_id)
        entry.shared = 0 if pages is None else pages.shared
        if entry.shared:
            self._tally.add("shared_tokens", entry.shared)
        away = others.waiting & hits
        load = SpliceLoad(request.request_id, ids, splice, blocks, sampled, base, away, pages)
        self._loads.append(load)

    def plan(self, step: SchedulerOutput) -> SplicePlan:
        """Returns the loads since the last step. Workers get a plan in empty steps too, because
        they may have unfinished work."""
        loads, self._loads = tuple(self._loads), []
        dropped, self._dropped = frozenset(self._dropped), set()
        prefix = self._prefix.plan(step)
        self._clock.step(step, busy=bool(self._unsettled or prefix))
        alone = step.total_num_scheduled_tokens == 0
        news = self._combiner.news()
        for item in news:
            if (entry := self._requests.get(item.request_id)) is not None:
                entry.lose_segments(item.lost)
        return SplicePlan(loads, dropped, prefix, alone, news, self._jobs.next(alone))

    def settled(self, outcome: Outcome) -> None:
        """Handles the results of the workers. The engine computes the requests that failed."""
        self._clock.end()
        self._prefix.settled(outcome)
        for request_id in self._unsettled & outcome.done:
            self._pool.release(request_id)
            if (entry := self._requests.get(request_id)) is not None:
                entry.fill()
            self._combiner.drop(request_id)
        self._jobs.settled(outcome.worked)
        for walk in outcome.walks:
            self._clock.walked(walk)
        self._unsettled -= outcome.done
        for request_id in outcome.failed:
            entry = self._requests.get(request_id)
            if entry is not None and entry.spliced:
                entry.lose()
                # No block was cached, and what the engine computes is exact.
                make_public(entry.request, entry.salt)

    def served(self, report: Served) -> Served:
        report = self._prefix.served(report)
        entry = self._requests.get(report.name)
        return report if entry is None else entry.report(report)

    def finished(self, request: Request) -> dict[str, object] | None:
        """Returns the result of the request, for its response."""
        exact = self._prefix.finished(request)
        entry = self._requests.pop(request.request_id, None)
        if entry is None:
            return exact
        self._dropped.add(request.request_id)
        self._combiner.drop(request.request_id)
        if entry.open is not None and not entry.trouble:
            self._tally.add("not_worth")
        return {"spliced": entry.summary(exact)}

    def pending(self) -> bool:
        """Returns whether the engine must be stepped without requests: to compute segments for
        other nodes."""
        return self._jobs.pending

    def bind(self, manager: KVCacheManager) -> None:
        self._pool.bind(manager)
        if self._session.settings.shared_pages:
            self._pages = _shared_pages(manager)
        self._combiner.start()
        self._jobs.start()

    def close(self) -> None:
        self._pool.release_all()
        self._combiner.close()
        self._jobs.close()

    def _share(self, request_id: str, splice: Splice | None) -> None:
        """Tells the engine's block manager which parts of a request may lie in shared pages."""
        if self._pages is not None:
            most = self._pages.bins.part_tokens
            self._pages.offer(request_id, () if splice is None else shareable(splice, most))

    def _opened(self, request: Request) -> SpliceRequest | None:
        """Returns the entry of a request that names segments or is searched for them, else None."""
        entry = self._requests.get(request.request_id)
        if entry is not None:
            return entry
        named = "spliced" in (request.kv_transfer_params or ())
        if request.cache_salt or not (named or self._session.finder.names):
            return None  # segment keys contain the tenant's salt, not a request's
        began = time.perf_counter()
        entry = self._requests[request.request_id] = self._decide(request)
        entry.decided_micros = round((time.perf_counter() - began) * 1e6)
        self._tally.add("match_micros", entry.decided_micros)
        return entry

    def _offer(self, entry: SpliceRequest, known: Known, computed: int) -> None:
        """Offers a splice that begins after the longest known prefix, if it is worth it.

        computed: tokens that the engine has; it may be another number at the next call.
        """
        if known.prefix > computed:
            base = Base(known.prefix, computed, known.name, spliced=known.spliced)
        elif computed:
            states = self._pool.states(entry.request, computed)
            if states is None:
                return
            base = Base(computed, computed, states=states)
        else:
            base = Base()
        others = self._combiner.of(entry.request.request_id)
        elsewhere = others.waiting | others.came
        choices = known.choices(base.tokens, elsewhere, others.own)
        splice = self._decider.best(known, choices, base.tokens, entry.found.warming)
        if splice is None and self._continues(base):
            context = (Choice.CONTEXT,) * len(choices)
            splice = Splice(base.tokens, base.tokens, known.prompt, context, ())
        if splice is not None:
            entry.offer(splice, base)

    def _continues(self, base: Base) -> bool:
        """Returns whether a prefix alone is worth a claim that mode prefix cannot make."""
        elsewhere = base.spliced or base.tokens % self._session.block_tokens != 0
        return bool(base.name) and elsewhere and base.tokens - base.held >= NEXT_TOKENS

    def _decide(self, request: Request) -> SpliceRequest:
        ids = request.prompt_token_ids or []
        try:
            cuts = self._decider.cuts(request.kv_transfer_params, ids)
        except CutsError as err:
            return SpliceRequest(request, trouble=str(err))
        if cuts is None:
            return SpliceRequest(request)
        if not cuts.cuts:
            return SpliceRequest(request, found=cuts.found, trouble=cuts.trouble)
        return self._ask(request, ids, cuts)

    def _ask(self, request: Request, ids: list[int], cuts: Cuts) -> SpliceRequest:
        """Asks the daemon once: which prefix and segments it has, and which segments it wants."""
        prefix = self._prefix
        asked = self._decider.ask(ids, cuts, prefix.named(request), prefixes=prefix.advised)
        if asked.found is not None:
            prefix.tell(request, asked.found, asked.advice)
        known = asked.known
        if known is not None and prefix.computes(request):
            known = replace(known, prefix=0, name=b"")
        # The error of segments that other nodes compute is unknown.
        if known is not None and not asked.trouble and cuts.max_error is None:
            self._ask_others(request.request_id, ids, known)
        asked = replace(asked, known=known)
        return SpliceRequest(request, asked, cuts.found, asked.trouble)

    def _ask_others(self, request_id: str, ids: list[int], known: Known) -> None:
        """Asks other nodes for the missing segments, if those are long and worth a splice."""
        combiner, settings, prompt = self._combiner, self._session.settings, known.prompt
        if not combiner.asks:
            return
        wanted: dict[bytes, Missing] = {}
        for piece in prompt.pieces:
            if piece.key is None or piece.spec is None or piece.index in known.held:
                continue
            if piece.start >= known.prefix and piece.tokens <= settings.capture_tokens:
                tokens = ids[piece.start : piece.end]
                wanted.setdefault(piece.key, Missing(piece.spec, tokens))
        missing = plannable(wanted.values())
        if len(missing) < 2:
            return
        if sum(one.spec.tokens for one in missing) < settings.parallel_tokens:
            return
        asked = set([*wanted][: len(missing)])
        there = [piece.index in known.held or piece.key in asked for piece in prompt.pieces]
        choices = choose(prompt, known.prefix, there, [False] * len(there))
        if best_splice(prompt, choices, known.prefix) is not None:
            combiner.ask(request_id, missing)


def _shared_pages(manager: KVCacheManager) -> SharedPagesManager | None:
    from spliced_connector.vllm.pages.manager import find_manager

    found = find_manager(manager)
    if found is None:
        log.warning(
            "shared_pages: the engine has no cache group for this connector, so segments are copied"
        )
    return found


def _prefixes(session: Session) -> PrefixScheduler | NoPrefixes:
    """Returns the scheduler of mode prefix. If the engine has no states at block boundaries,
    returns a `NoPrefixes`, which finds nothing."""
    try:
        return PrefixScheduler(session, session.settings.turns)
    except Inert as err:
        log.info("prefixes are left to the engine: %s", err)
        return NoPrefixes(session.engine.pipelined)
