"""Mode splice in the scheduler's process: which requests are taken over, and how much of them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spliced_connector.client import Match, Query, Reason
from spliced_connector.model import Choice, Piece, PlanError, Prompt, choose, divide
from spliced_connector.segments import Found
from spliced_connector.vllm.clock import PrefillClock
from spliced_connector.vllm.finding import cuts_of
from spliced_connector.vllm.plans import Blocks, Outcome
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.splice_plans import (
    Cuts,
    CutsError,
    Splice,
    SpliceLoad,
    SplicePlan,
    best_splice,
)
from spliced_connector.vllm.support import Engine, Inert
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

SHORT_TOKENS = 256
"""Segments of fewer tokens in all are not worth a question to the daemon, nor a step of the engine
(a guess: some milliseconds of prefill)."""

FAIR_SEAMS = 8
"""A segment that the canary counts is so many times as long as a seam (a guess)."""


def check_engine(engine: Engine) -> None:
    """Raises Inert where a splice would not be right, or could be taken for something exact."""
    if engine.prefix_caching:
        raise Inert(
            "mode splice and the engine's prefix caching exclude each other, because spliced"
            " blocks would be cached as exact ones: start with --no-enable-prefix-caching"
        )
    if engine.states and engine.cache_mode != "none":
        raise Inert(
            f"mode splice needs one state per request, the engine keeps {engine.cache_mode!r}"
        )
    if engine.identity.tp_size > 1:
        raise Inert("mode splice runs with one tensor-parallel rank")
    if not engine.eager:
        raise Inert("mode splice runs the model's modules itself: start with --enforce-eager")


@dataclass(slots=True)
class _Tracked:
    """A request that named cuts, or that some were looked for in."""

    splice: Splice | None = None
    fair: bool = False  # may the canary judge splicing by it
    way: str = "engine"
    claimed: bool = False
    trouble: str = ""
    found: Found = field(default_factory=Found)
    decided_micros: int = 0  # what the decision took of the scheduler's time


class SpliceScheduler:
    """One match for each request, answered once; what becomes of a claim, the workers say.

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
        self._clock = PrefillClock(session.engine.pipelined)
        # Which requests the canary takes must not follow a pattern of the traffic.
        self._random = random.Random()

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Tokens [0, n) of a request that has segments, filled later; 0 for others."""
        named = "spliced" in (request.kv_transfer_params or ())
        if request.cache_salt or not (named or self._session.finder.names):
            return 0, False  # keys know the tenant's salt, not a request's
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            began = time.perf_counter()
            tracked = self._decide(request)
            self._requests[request.request_id] = tracked
            tracked.decided_micros = round((time.perf_counter() - began) * 1e6)
            self._tally.add("match_micros", tracked.decided_micros)
        if tracked.splice is None or tracked.claimed or computed > 0:
            return 0, False
        return tracked.splice.tokens, True

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """Claims the request's blocks for this step's workers."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.splice is None or tracked.claimed or external == 0:
            return
        tracked.claimed, tracked.way = True, "splice"
        self._tally.add("matched_tokens", external)
        sampled = tracked.fair and self._random.random() < self._session.settings.canary_share
        ids = tuple(request.prompt_token_ids or ())
        self._unsettled.add(request.request_id)
        self._loads.append(SpliceLoad(request.request_id, ids, tracked.splice, blocks, sampled))

    def plan(self, step: SchedulerOutput) -> SplicePlan:
        """The loads since the last step. Workers are called with it on empty steps too, as work
        may be left over."""
        loads, self._loads = tuple(self._loads), []
        dropped, self._dropped = frozenset(self._dropped), set()
        self._clock.begin(step, busy=bool(self._unsettled))
        return SplicePlan(loads, dropped)

    def settled(self, outcome: Outcome) -> None:
        """A failed claim is the engine's from here on."""
        self._clock.end()
        self._unsettled -= outcome.done
        for request_id in outcome.failed:
            tracked = self._requests.get(request_id)
            if tracked is not None:
                tracked.way, tracked.trouble = "recomputed", "segments were lost after the match"

    def finished(self, request: Request) -> dict[str, object] | None:
        """What became of the request, for its response."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return None
        self._dropped.add(request.request_id)
        told: dict[str, object] = {"way": tracked.way, "decided_micros": tracked.decided_micros}
        if tracked.splice is not None and tracked.way == "splice":
            told["tokens"] = tracked.splice.tokens
            told["walked"] = tracked.splice.walked
            told["reused"] = tracked.splice.reused
            told["captured"] = len(tracked.splice.pieces(Choice.ISOLATED))
        if tracked.found.by:
            told["found"] = dict(tracked.found.by)
        if tracked.trouble:
            told["trouble"] = tracked.trouble
        return {"spliced": told}

    def pending(self) -> bool:
        """Nothing is left over when no request is."""
        return False

    def _decide(self, request: Request) -> _Tracked:
        ids = request.prompt_token_ids or []
        try:
            cuts = cuts_of(
                self._session.finder,
                request.kv_transfer_params,
                ids,
                self._session.settings.seam_tokens,
            )
        except CutsError as err:
            self._tally.add("bad_cuts")
            log.warning("request %s: %s", request.request_id, err)
            return _Tracked(trouble=str(err))
        if cuts is None:
            self._tally.add("short")
            return _Tracked()
        if cuts.cuts[-1] - cuts.cuts[0] < SHORT_TOKENS and not cuts.found.warming:
            self._tally.add("short")
            return _Tracked(found=cuts.found)
        tracked = self._ask(ids, cuts)
        tracked.found = cuts.found
        return tracked

    def _ask(self, ids: list[int], cuts: Cuts) -> _Tracked:
        """Asks the daemon which segments it has, and which it wants."""
        model = self._session.model
        salt = model.salt
        if salt is None or not model.attached:
            self._tally.add("no_daemon")
            return _Tracked(trouble="no daemon")
        try:
            prompt = divide(model.profile, salt, ids, cuts.cuts, cuts.w)
        except PlanError as err:
            self._tally.add("bad_cuts")
            log.info("cuts that no segments can lie between: %s", err)
            return _Tracked(trouble="no segments can lie between these cuts")
        named = [piece for piece in prompt.pieces if piece.key is not None]
        if not named:
            self._tally.add("short")
            return _Tracked()
        found = model.match(keys=prompt.keys)
        if found.trouble:
            # In words of ours: the client's name places and settings, and callers are strangers.
            log.info("a request is not spliced: %s", found.trouble)
            self._tally.add("no_daemon")
            return _Tracked(trouble="the daemon did not answer")
        if Reason.OFF in found.reason:
            self._tally.add("switched_off")
            return _Tracked(trouble="splicing is switched off")
        held = {piece.index for piece, hit in zip(named, found.hits, strict=True) if hit}
        wanted = self._wanted(ids, cuts, prompt, named, found) - held
        self._tally.add("held_segments", len(held))
        self._tally.add("missing_segments", len(named) - len(held))
        choices = choose(
            prompt,
            0,
            [piece.index in held for piece in prompt.pieces],
            [piece.index in wanted for piece in prompt.pieces],
        )
        splice = best_splice(prompt, choices)
        if splice is None:
            self._tally.add("not_worth")
        return _Tracked(splice, splice is not None and self._fair(splice, cuts.w))

    def _fair(self, splice: Splice, w: int) -> bool:
        """Whether the canary may judge everybody's splicing by a request.

        Seams and cuts are the caller's own words: narrow seams and tiny segments give bad answers,
        to that caller.
        """
        seam = self._session.settings.seam_tokens
        used = (*splice.pieces(Choice.HIT), *splice.pieces(Choice.ISOLATED))
        return w >= seam and all(piece.tokens >= FAIR_SEAMS * seam for piece in used)

    def _wanted(
        self, ids: list[int], cuts: Cuts, prompt: Prompt, named: list[Piece], found: Match
    ) -> set[int]:
        """The segments that the daemon would store, were they captured."""
        if not self._session.settings.capture:
            return set()
        if cuts.found.warming:
            return self._not_too_long([piece for piece in named if piece.start > 0])
        advice = self._session.model.advise(
            Query(
                ids,
                match=found,
                segments=tuple((piece.start, piece.tokens) for piece in named),
                cuts=cuts.cuts,
                seam_tokens=2 * cuts.w * len(prompt.pieces),
                samples=self._clock.take(),
            )
        )
        if advice is None:
            self._tally.add("unadvised")
            return set()
        told = zip(named, advice.segments, strict=False)
        return self._not_too_long([piece for piece, segment in told if segment.publish])

    def _not_too_long(self, wanted: list[Piece]) -> set[int]:
        """Those that may be captured."""
        most = self._session.settings.capture_tokens
        short = {piece.index for piece in wanted if piece.tokens <= most}
        if len(short) < len(wanted):
            self._tally.add("too_long_to_capture", len(wanted) - len(short))
        return short
