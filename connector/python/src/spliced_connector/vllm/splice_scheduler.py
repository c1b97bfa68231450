"""Mode splice in the scheduler's process: which requests are taken over, and how much of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from spliced_connector.client import Missing, plannable
from spliced_connector.model import Choice, choose
from spliced_connector.segments import Found
from spliced_connector.serving.cuts import Cuts, CutsError
from spliced_connector.serving.decider import NEXT_TOKENS, Asked, Decider, Known, Named
from spliced_connector.serving.primers import lead_of
from spliced_connector.serving.splices import Splice, best_splice
from spliced_connector.serving.telling import Served
from spliced_connector.vllm.clock import PrefillClock
from spliced_connector.vllm.pages.plans import shareable
from spliced_connector.vllm.parallel.combiner import Away, Combiner
from spliced_connector.vllm.parallel.jobs import Jobs
from spliced_connector.vllm.plans import Blocks, News, Outcome
from spliced_connector.vllm.plugin import cores
from spliced_connector.vllm.pool import EnginePool, make_private, make_public
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.splice_plans import Base, SpliceLoad, SplicePlan
from spliced_connector.vllm.support import Engine, Inert
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from spliced_connector.vllm.pages.manager import SharedPagesManager


def check_engine(engine: Engine) -> None:
    """Raises Inert where the engine keeps states in a way that a splice has no place in."""
    if engine.drafts:
        raise Inert("mode splice does not support speculative decoding; mode prefix does")
    if engine.states and engine.cache_mode not in ("none", "align"):
        raise Inert(
            f"mode splice needs one state per request, or states at block boundaries, the engine"
            f" keeps {engine.cache_mode!r}: start with --mamba-cache-mode align"
        )


@dataclass(slots=True)
class _Tracked:
    """A request that named cuts, or that some were looked for in."""

    request: Request
    known: Known | None = None
    offered: Splice | None = None  # by the last match, which may be followed by another
    base: Base = Base()  # noqa: RUF009  (frozen)
    splice: Splice | None = None  # what was claimed
    salt: str | None = None  # the request's own
    way: str = "engine"
    shared: int = 0  # tokens that lie in bins
    private: bool = False  # its blocks are cached under private names
    trouble: str = ""
    elsewhere: frozenset[bytes] = frozenset()  # keys that other nodes were asked for
    found: Found = field(default_factory=Found)
    decided_micros: int = 0  # what the decision took of the scheduler's time
    asked: Asked = field(default_factory=Asked)
    claimed: float = 0.0  # time.monotonic() when it was
    waited: float = 0.0  # seconds from then until all was in place


class SpliceScheduler:
    """Decides what is spliced; what becomes of a claim, the workers say. Requests that are not
    spliced get what mode prefix has for them, where the engine has states at block boundaries.

    Raises Inert for engines that mode splice does not fit.
    """

    def __init__(self, session: Session) -> None:
        check_engine(session.engine)
        self._session = session
        self._tally = session.tally
        self._requests: dict[str, _Tracked] = {}
        self._loads: list[SpliceLoad] = []
        self._dropped: set[str] = set()
        self._unsettled: set[str] = set()
        self._pool = EnginePool(session.engine)
        self._pages: SharedPagesManager | None = None
        self._prefix = _prefixes(session)
        self._clock = self._prefix.clock if self._prefix else PrefillClock(session.engine.pipelined)
        settings = session.settings
        lead = lead_of(session.primer, settings.primer_after)
        self._decider = Decider(
            session.model, settings, session.finder, self._tally, self._clock, lead
        )
        self._combiner: Combiner | None = None
        if settings.parallel.combines:
            self._combiner = Combiner(session.model, session.tally)
        self._jobs: Jobs | None = None
        if settings.parallel.works:
            ranks = session.engine.identity.tp_size
            primers = () if lead is None else (lead.digest,)
            self._jobs = Jobs(session.model, settings, ranks, session.tally, cores, primers=primers)

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Tokens after the first `computed` that are filled later, of a request that has segments;
        for others, of an exact prefix."""
        tracked = self._tracked(request)
        if tracked is None:
            return self._exact(request, computed)
        tracked.offered = None
        self._share(request.request_id, None)
        if self._combiner is not None and self._combiner.asking(request.request_id):
            return None, False  # in some milliseconds; others are served meanwhile
        if tracked.known is not None and tracked.splice is None:
            self._offer(tracked, tracked.known, request, computed)
        if tracked.offered is not None:
            # What lies in bins may have come from packed rows.
            limited = tracked.offered.max_error is not None
            self._share(request.request_id, None if limited else tracked.offered)
            return tracked.offered.tokens - computed, True
        return (0, False) if tracked.private else self._exact(request, computed)

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """Claims the request's blocks for this step's workers."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.offered is None or external == 0:
            if self._prefix is not None:
                self._prefix.allocated(request, blocks, external)
            return
        splice, tracked.offered = tracked.offered, None
        away: frozenset[bytes] = frozenset()
        if self._combiner is not None:
            others = self._combiner.of(request.request_id, claim=True)
            hits, splice = splice.keys(Choice.HIT), splice.lost(others.lost)
            away = others.waiting & hits
            tracked.elsewhere = (others.waiting | others.came | others.lost) & hits
        known, base = tracked.known, tracked.base
        tracked.splice, tracked.way, tracked.trouble = splice, "splice", ""
        if base.tokens and not base.name:
            base = replace(base, states=self._pool.hold(request, base.tokens))
        tracked.salt, tracked.private = request.cache_salt, True
        tracked.claimed = time.monotonic()
        make_private(request)
        if self._prefix is not None:
            held = 0 if known is None else known.prefix
            composed = base.spliced or any(span.segment >= 0 for span in splice.spans)
            self._prefix.replaced(request.request_id, held, composed)
        self._tally.add("matched_tokens", external)
        fair = known is not None and not base.spliced and self._decider.fair(splice, known.w)
        sampled = fair and self._decider.sampled()
        ids = tuple(request.prompt_token_ids or ())
        self._unsettled.add(request.request_id)
        pages = None if self._pages is None else self._pages.plan(request.request_id)
        tracked.shared = 0 if pages is None else pages.shared
        if tracked.shared:
            self._tally.add("shared_tokens", tracked.shared)
        load = SpliceLoad(request.request_id, ids, splice, blocks, sampled, base, away, pages)
        self._loads.append(load)

    def plan(self, step: SchedulerOutput) -> SplicePlan:
        """The loads since the last step. Workers are called with it on empty steps too, as work
        may be left over."""
        loads, self._loads = tuple(self._loads), []
        dropped, self._dropped = frozenset(self._dropped), set()
        prefix = None if self._prefix is None else self._prefix.plan(step)
        self._clock.step(step, busy=bool(self._unsettled or prefix))
        alone = step.total_num_scheduled_tokens == 0
        news = () if self._combiner is None else self._combiner.news()
        for one in news:
            self._hear(one)
        work = () if self._jobs is None else self._jobs.next(alone)
        return SplicePlan(loads, dropped, prefix, alone, news, work)

    def _hear(self, news: News) -> None:
        tracked = self._requests.get(news.request_id)
        if tracked is not None and tracked.splice is not None:
            tracked.splice = tracked.splice.lost(news.lost)

    def settled(self, outcome: Outcome) -> None:
        """A failed claim is the engine's from here on."""
        self._clock.end()
        if self._prefix is not None:
            self._prefix.settled(outcome)
        for request_id in self._unsettled & outcome.done:
            self._pool.release(request_id)
            if (one := self._requests.get(request_id)) is not None:
                one.waited = time.monotonic() - one.claimed
            if self._combiner is not None:
                self._combiner.drop(request_id)
        if self._jobs is not None:
            self._jobs.settled(outcome.worked)
        for walk in outcome.walks:
            self._clock.walked(walk)
        self._unsettled -= outcome.done
        for request_id in outcome.failed:
            tracked = self._requests.get(request_id)
            if tracked is not None and tracked.private:
                tracked.way, tracked.trouble = "recomputed", "segments were lost after the match"
                # Nothing of it was filed, and what the engine computes is exact.
                make_public(tracked.request, tracked.salt)
                tracked.private = False

    def served(self, report: Served) -> Served:
        if self._prefix is not None:
            report = self._prefix.served(report)
        tracked = self._requests.get(report.name)
        if tracked is None:
            return report
        asked, known = tracked.asked, tracked.known
        report = replace(
            report,
            prompt=None if known is None else known.prompt,
            found=report.found if asked.found is None else asked.found,
            asked=asked.found,
            predicted=report.predicted if asked.advice is None else asked.advice.predicted,
            decided=report.decided + tracked.decided_micros / 1e6,
        )
        if tracked.splice is None or tracked.way != "splice":
            return report
        base = tracked.base
        engine = base.held if base.name else base.tokens
        return replace(
            report,
            engine=engine,
            prefix=base.tokens - engine,
            placed=tracked.splice.tokens,
            splice=tracked.splice,
            waited=tracked.waited,
        )

    def finished(self, request: Request) -> dict[str, object] | None:
        """What became of the request, for its response."""
        exact = None if self._prefix is None else self._prefix.finished(request)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return exact
        self._dropped.add(request.request_id)
        if self._combiner is not None:
            self._combiner.drop(request.request_id)
        if tracked.known is not None and tracked.splice is None and not tracked.trouble:
            self._tally.add("not_worth")
        summary: dict[str, object] = {"way": tracked.way, "decided_micros": tracked.decided_micros}
        if tracked.splice is not None and tracked.way == "splice":
            summary["tokens"] = tracked.splice.tokens
            summary["walked"] = tracked.splice.walked
            summary["reused"] = tracked.splice.reused
            summary["captured"] = len(tracked.splice.pieces(Choice.ISOLATED))
            if tracked.splice.loss is not None:
                summary["expected_loss"] = tracked.splice.loss
            if tracked.shared:
                summary["shared"] = tracked.shared
            if tracked.elsewhere:
                came = tracked.elsewhere & tracked.splice.keys(Choice.HIT)
                summary["elsewhere"], summary["late"] = len(came), len(tracked.elsewhere - came)
            if tracked.splice.begin:
                summary["prefix"] = tracked.splice.begin
            stored = 0 if exact is None else cast("dict[str, int]", exact["spliced"])["stored"]
            if stored:
                summary["stored"] = stored
        elif exact is not None and tracked.way == "engine":
            summary |= cast("dict[str, object]", exact["spliced"])
        if tracked.found.by:
            summary["found"] = dict(tracked.found.by)
        if tracked.trouble:
            summary["trouble"] = tracked.trouble
        return {"spliced": summary}

    def pending(self) -> bool:
        """Nothing is left over when no request is, but what other nodes ask for."""
        return self._jobs is not None and self._jobs.pending

    def bind(self, manager: KVCacheManager) -> None:
        self._pool.bind(manager)
        if self._session.settings.shared_pages:
            self._pages = _shared_pages(manager)
        if self._combiner is not None:
            self._combiner.start()
        if self._jobs is not None:
            self._jobs.start()

    def close(self) -> None:
        self._pool.release_all()
        if self._combiner is not None:
            self._combiner.close()
        if self._jobs is not None:
            self._jobs.close()

    def _share(self, request_id: str, splice: Splice | None) -> None:
        """Offers the engine's block manager what of a request may lie in bins."""
        if self._pages is not None:
            most = self._pages.bins.part_tokens
            self._pages.offer(request_id, () if splice is None else shareable(splice, most))

    def _exact(self, request: Request, computed: int) -> tuple[int | None, bool]:
        return (0, False) if self._prefix is None else self._prefix.match(request, computed)

    def _tracked(self, request: Request) -> _Tracked | None:
        """What is decided of a request that has segments, None for others."""
        tracked = self._requests.get(request.request_id)
        if tracked is not None:
            return tracked
        named = "spliced" in (request.kv_transfer_params or ())
        if request.cache_salt or not (named or self._session.finder.names):
            return None  # keys know the tenant's salt, not a request's
        began = time.perf_counter()
        tracked = self._decide(request)
        self._requests[request.request_id] = tracked
        tracked.decided_micros = round((time.perf_counter() - began) * 1e6)
        self._tally.add("match_micros", tracked.decided_micros)
        return tracked

    def _offer(self, tracked: _Tracked, known: Known, request: Request, computed: int) -> None:
        """Looks for a splice that begins behind the longest prefix that is in place.

        Asked again, an engine may have more of it, or less.
        """
        if known.prefix > computed:
            base = Base(known.prefix, computed, known.name, spliced=known.spliced)
        elif computed:
            states = self._pool.states(request, computed)
            if states is None:
                return
            base = Base(computed, computed, states=states)
        else:
            base = Base()
        prompt, combiner = known.prompt, self._combiner
        others = Away() if combiner is None else combiner.of(request.request_id)
        elsewhere = others.waiting | others.came
        choices = known.choices(base.tokens, elsewhere, others.own)
        warming = tracked.found.warming
        splice = self._decider.best(known, choices, base.tokens, warming)
        if splice is None and self._continues(base):
            splice = Splice(base.tokens, base.tokens, prompt, (Choice.CONTEXT,) * len(choices), ())
        tracked.offered, tracked.base = splice, base

    def _continues(self, base: Base) -> bool:
        """Whether a prefix is worth a separate claim, which mode prefix cannot make."""
        elsewhere = base.spliced or base.tokens % self._session.block_tokens != 0
        return bool(base.name) and elsewhere and base.tokens - base.held >= NEXT_TOKENS

    def _decide(self, request: Request) -> _Tracked:
        ids = request.prompt_token_ids or []
        try:
            cuts = self._decider.cuts(request.kv_transfer_params, ids)
        except CutsError as err:
            return _Tracked(request, trouble=str(err))
        if cuts is None:
            return _Tracked(request)
        if cuts.cuts:
            tracked = self._ask(request, ids, cuts)
        else:
            tracked = _Tracked(request, trouble=cuts.trouble)
        tracked.found = cuts.found
        return tracked

    def _ask(self, request: Request, ids: list[int], cuts: Cuts) -> _Tracked:
        """Asks the daemon once, which prefix and which segments it has and which it wants."""
        whole = None if self._prefix is None else self._prefix.open(request)
        before = [] if whole is None else whole.before
        named = Named(before, [] if whole is None else [whole.names[p] for p in before])
        asked = self._decider.ask(ids, cuts, named, prefixes=self._prefix is not None)
        if self._prefix is not None and whole is not None and asked.found is not None:
            self._prefix.tell(whole, asked.found, asked.advice)
        known = asked.known
        if known is not None and (whole is None or whole.compute):
            known = replace(known, prefix=0, name=b"")
        # The error of segments from others is unknown.
        if known is not None and not asked.trouble and cuts.max_error is None:
            self._ask_others(request.request_id, ids, known)
        return _Tracked(request, known, trouble=asked.trouble, asked=asked)

    def _ask_others(self, request_id: str, ids: list[int], known: Known) -> None:
        """Asks others to compute the missing segments, if they are long and worth a splice."""
        combiner, settings, prompt = self._combiner, self._session.settings, known.prompt
        if combiner is None:
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


def _prefixes(session: Session) -> PrefixScheduler | None:
    """What mode prefix does, None where the engine has no states at block boundaries."""
    try:
        return PrefixScheduler(session, session.settings.turns)
    except Inert as err:
        log.info("prefixes are left to the engine: %s", err)
        return None
