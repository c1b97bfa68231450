"""Decides which prefixes and segments an SGLang request reuses, and what is stored of it.

A prefix is all rows of the first p tokens and every recurrent state after them. States are
available where a forward pass of the engine ends: at the ends of prompts and answers, and where the
plugin ends a chunk of a prompt because the daemon wants the state there. Segments have the same
names in every adapter. Prefixes are named in steps of `STEP` tokens, so that engines of SGLang
share them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from spliced_connector.client import (
    UNADVISED,
    Accept,
    Advice,
    Lookup,
    Match,
    Model,
    Query,
    Way,
)
from spliced_connector.model import Choice, PrefixNames, Prompt, answer_starts, turn_ends
from spliced_connector.segments import Found
from spliced_connector.serving.asking import match_and_advise
from spliced_connector.serving.cuts import Cuts, CutsError
from spliced_connector.serving.decider import (
    MOST_POSITIONS,
    NEXT_TOKENS,
    Decider,
    Known,
    Named,
)
from spliced_connector.serving.prices import Clock
from spliced_connector.serving.settings import Mode
from spliced_connector.serving.splices import Splice
from spliced_connector.serving.tally import EngineTally
from spliced_connector.sglang.job import Base, SlotJob
from spliced_connector.sglang.splice_settings import SpliceSettings

log = logging.getLogger("spliced.sglang")

STEP = 128
"""Number of tokens between two prefixes that have names. Prefixes where turns begin and end have
names as well. More names would cost time in every request and save next to nothing."""

_MOST_TURNS = 64
"""Number of a conversation's latest turns where prefixes have names and are looked up."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the daemon can give a request beyond the tokens that the engine's tree has."""

    splice: Splice
    base: Base

    @property
    def composed(self) -> bool:
        """Whether the offer contains segments. Its rows must then not join the engine's tree."""
        return self.base.spliced or any(span.segment >= 0 for span in self.splice.spans)


@dataclass(slots=True)
class Tracked:
    """One request."""

    ids: tuple[int, ...]  # of the prompt
    names: dict[int, bytes] = field(default_factory=dict)  # of prefixes by tokens, ascending
    namer: PrefixNames | None = None  # names prefixes that end in the answer
    known: Known | None = None  # None if the request has no segments
    found: Match = field(default_factory=Match)  # of prefixes
    compute: bool = False  # fetching the prefix is no faster than computing
    held: int = 0  # leading tokens that the daemon has, or is about to have
    wanted: list[int] = field(default_factory=list)  # positions to store, ascending
    cuts: Found = field(default_factory=Found)
    trouble: str = ""
    decided_micros: int = 0  # time of the scheduler's thread for the decision
    offer: Offer | None = None
    job: SlotJob | None = None
    lost: bool = False  # a job has failed, so the engine computes the request
    way: str = "engine"
    claimed: Offer | None = None  # what the engine continued from
    spliced: bool = False  # the request computes tokens that follow spliced segments
    rounded: bool = False  # it began at a state that decoding had rounded
    stored: int = 0  # number of checkpoints that were queued for storing
    asked: Match | None = None  # of segments
    predicted: tuple[float, ...] = ()  # seconds by way
    arrived: float = 0.0  # time.perf_counter() when it was opened
    begin: int = 0  # tokens of the engine's tree in front of what was claimed
    placed: int = 0  # end of what was claimed, in whole pages
    waited: float = 0.0  # seconds until the claimed tokens were in place
    served: bool = False  # reported to the daemon

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def computed(self) -> bool:
        """Whether the daemon has nothing for this request, whatever the engine's tree has."""
        nothing = self.compute or not self.found.prefix_tokens
        return self.lost or (self.known is None and nothing)

    def told(self) -> dict[str, object]:
        """Returns the outcome of the request, for its response."""
        summary: dict[str, object] = {"way": self.way, "decided_micros": self.decided_micros}
        if self.claimed is not None:
            splice = self.claimed.splice
            summary["tokens"] = splice.tokens
            if self.way == "splice":
                summary["walked"], summary["reused"] = splice.walked, splice.reused
                summary["captured"] = len(splice.pieces(Choice.ISOLATED))
                if splice.loss is not None:
                    summary["expected_loss"] = splice.loss
                if splice.begin:
                    summary["prefix"] = splice.begin
        if self.stored:
            summary["stored"] = self.stored
        if self.cuts.by:
            summary["found"] = dict(self.cuts.by)
        if self.claimed is None and self.trouble:
            summary["trouble"] = self.trouble
        return summary


class Requests:
    """Decides for the requests of one engine, on its scheduler's thread."""

    def __init__(
        self,
        model: Model,
        settings: SpliceSettings,
        decider: Decider,
        tally: EngineTally,
        clock: Clock,
    ) -> None:
        self._model, self._settings, self._tally = model, settings, tally
        self._decider, self._clock = decider, clock

    def open(
        self, ids: Sequence[int], said: dict[str, object] | None, stops: Collection[int]
    ) -> Tracked:
        """Asks the daemon about a new request, once.

        said: the request's own parameters for the connector. stops: the ids that end turns.
        """
        began = time.perf_counter()
        tracked = Tracked(tuple(ids), arrived=began)
        self._decide(tracked, said, stops)
        tracked.decided_micros = round((time.perf_counter() - began) * 1e6)
        self._tally.add("match_micros", tracked.decided_micros)
        return tracked

    def offer(self, tracked: Tracked, held: int, most: int) -> Offer | None:
        """Returns what the daemon has beyond the first `held` tokens, which the engine's tree has,
        up to token `most`. Returns None if it has nothing, or if that is not worth it."""
        # If a request was preempted, the tree may have a part of its answer, too.
        if tracked.lost or held >= tracked.tokens:
            return None
        known = tracked.known
        offer = None if known is None else self._spliced(tracked, known, held)
        if offer is None and not tracked.compute:
            offer = self._continued(tracked, held)
        return offer if offer is not None and held < offer.splice.tokens <= most else None

    def answered(self, tracked: Tracked, ids: Sequence[int]) -> bool:
        """Reports a prompt and its answer. Returns whether the daemon wants the last state."""
        advice = self._model.advise(
            Query(
                tokens=ids,
                output=len(ids) - tracked.tokens,
                block_tokens=1,  # only the last token has a state, at any position
                max_checkpoints=1,
                match=Match(tracked.held),
                cuts=(len(ids),),
            )
        )
        if advice is None:
            self._tally.add("unadvised")
            return False
        return any(c.save and c.tokens == len(ids) for c in advice.checkpoints)

    def _decide(
        self, tracked: Tracked, said: dict[str, object] | None, stops: Collection[int]
    ) -> None:
        if not tracked.ids:
            return
        salt = self._model.salt
        if salt is None or not self._model.attached:
            self._tally.add("no_daemon")
            tracked.trouble = "no daemon"
            return
        cuts: Cuts | None = None
        if self._settings.mode is Mode.SPLICE:
            try:
                cuts = self._decider.cuts(said, tracked.ids)
            except CutsError as err:
                tracked.trouble = str(err)
        ends = turn_ends(tracked.ids, stops)
        starts = answer_starts(tracked.ids, stops)
        self._name(tracked, salt, {*ends[-_MOST_TURNS:], *starts[-_MOST_TURNS:]}, cuts)
        tracked.trouble = tracked.trouble if cuts is None else cuts.trouble
        if cuts is not None and cuts.cuts:
            self._ask_for_segments(tracked, cuts)
        else:
            self._ask_for_prefix(tracked, ends)
        tracked.cuts = tracked.cuts if cuts is None else cuts.found

    def _name(self, tracked: Tracked, salt: bytes, turns: set[int], cuts: Cuts | None) -> None:
        n = tracked.tokens
        positions = {*range(STEP, n + 1, STEP), *turns, n}
        if cuts is not None:
            positions |= set(cuts.cuts[:1])
        ascending = sorted(p for p in positions if 0 < p <= n)[-MOST_POSITIONS:]
        tracked.namer = PrefixNames(self._model.profile, salt, STEP)
        names = tracked.namer.name(tracked.ids, ascending)
        tracked.names = dict(zip(ascending, names, strict=True))

    def _before(self, tracked: Tracked) -> Named:
        """Returns the prefixes that can be reused: the engine computes at least the last token."""
        positions = [p for p in tracked.names if p < tracked.tokens]
        return Named(positions, [tracked.names[p] for p in positions])

    def _ask_for_segments(self, tracked: Tracked, cuts: Cuts) -> None:
        asked = self._decider.ask(tracked.ids, cuts, self._before(tracked), prefixes=False)
        tracked.known, tracked.trouble = asked.known, asked.trouble or tracked.trouble
        tracked.asked = asked.found
        if asked.found is not None:
            self._follow(tracked, asked.found, asked.advice)

    def _ask_for_prefix(self, tracked: Tracked, ends: Sequence[int]) -> None:
        named = self._before(tracked)
        query = Query(
            tokens=tracked.ids,
            block_tokens=STEP,
            max_checkpoints=self._settings.max_checkpoints,
            # The state after the first turn serves other conversations, because the user's own
            # words begin there. The state after the last turn serves the next turn.
            cuts=tuple(sorted({*ends[:1], *ends[-1:]})),
            samples=self._clock.take(),
        )
        lookup = Lookup(named.positions, named.names)
        found, advice = match_and_advise(self._model, lookup, lambda _: query)
        if found.trouble:
            self._tally.add("unanswered")
            tracked.trouble = tracked.trouble or "the daemon did not answer"
        if advice is None:
            self._tally.add("unadvised")
            tracked.trouble = tracked.trouble or UNADVISED
        self._follow(tracked, found, advice)

    def _follow(self, tracked: Tracked, found: Match, advice: Advice | None) -> None:
        tracked.found = found
        if found.prefix_kind == Accept.EXACT:  # new checkpoints extend only exact ones
            tracked.held = found.prefix_tokens
        if advice is None:
            return
        tracked.predicted = advice.predicted
        wanted = {c.tokens for c in advice.checkpoints if c.save and c.tokens in tracked.names}
        n = tracked.tokens
        if self._settings.turns and n - tracked.held >= NEXT_TOKENS:
            wanted.add(n)
        if n in wanted and advice.seen_tokens >= n and self._stored(tracked):
            wanted.remove(n)
        tracked.wanted = sorted(p for p in wanted if p > tracked.held)
        tracked.compute = advice.way == Way.RECOMPUTE
        if tracked.compute and found.prefix_tokens:
            self._tally.add("not_worth_it")
            tracked.trouble = tracked.trouble or "computing it is no slower than fetching it"

    def _stored(self, tracked: Tracked) -> bool:
        """Returns whether the daemon has the state after the prompt. The match omits this state,
        because the prompt cannot use it. So without this check, every repetition of the prompt
        would store it again."""
        n = tracked.tokens
        found = self._model.match([n], [tracked.names[n]], (), Accept.ANY)
        return found.prefix_tokens == n

    def _spliced(self, tracked: Tracked, known: Known, held: int) -> Offer | None:
        base = Base(held)
        if known.prefix > held and not tracked.compute:
            base = Base(known.prefix, known.name, known.spliced)
        choices = known.choices(base.tokens)
        warming = tracked.cuts.warming
        splice = self._decider.best(known, choices, base.tokens, warming)
        if splice is not None:
            return Offer(splice, base)
        if not base.name or base.tokens - held < NEXT_TOKENS:
            return None
        through = (Choice.CONTEXT,) * len(choices)
        return Offer(Splice(base.tokens, base.tokens, known.prompt, through, ()), base)

    def _continued(self, tracked: Tracked, held: int) -> Offer | None:
        """Returns an offer of the daemon's exact prefix alone; None if there is none to offer."""
        tokens, exact = tracked.found.prefix_tokens, tracked.found.prefix_kind == Accept.EXACT
        if not exact or tokens - held < NEXT_TOKENS:
            return None
        prompt = Prompt(tracked.tokens, ())
        return Offer(Splice(tokens, tokens, prompt, (), ()), Base(tokens, tracked.names[tokens]))
