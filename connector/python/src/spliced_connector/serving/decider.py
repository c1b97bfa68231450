"""Whether and how a request is spliced: one question to the daemon, whose answer decides."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from spliced_connector.client import (
    ANY_LOSS,
    BEYOND_MAX_LOSS,
    PRIMED_DUE,
    PRIMED_KEY,
    UNADVISED,
    Accept,
    Advice,
    Lookup,
    LossLimit,
    Match,
    Model,
    Query,
    Reason,
    SpliceWay,
    Splicing,
    seam_tokens,
    unanswered,
)
from spliced_connector.model import (
    Choice,
    Lead,
    Piece,
    PlanError,
    Prompt,
    all_primed,
    choose,
    divide,
    keep_for_reuse,
)
from spliced_connector.segments import Finder
from spliced_connector.serving.asking import match_and_advise
from spliced_connector.serving.cuts import Cuts, CutsError
from spliced_connector.serving.finding import cuts_of, held_in
from spliced_connector.serving.prices import Clock
from spliced_connector.serving.settings import ServingSettings
from spliced_connector.serving.splices import Splice, advised_splice, best_splice
from spliced_connector.serving.tally import EngineTally

log = logging.getLogger("spliced.serving")

MOST_POSITIONS = 2048
"""Prefixes that one question to the daemon can name; of a longer prompt the deepest count."""

NEXT_TOKENS = 64
"""Fewer tokens than this after the held ones are neither stored nor fetched: recomputing them takes
no longer (a guess)."""

SHORT_TOKENS = 256
"""Segments of fewer tokens in all are not worth a question to the daemon, nor a step of the engine
(a guess: some milliseconds of prefill)."""

FAIR_SEAMS = 8
"""The canary counts segments of at least this many times the length of a seam (a guess)."""


@dataclass(frozen=True, slots=True)
class Named:
    """Prefixes of a prompt by name, ascending."""

    positions: Sequence[int] = ()
    names: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """A request's segments and the prefix that the daemon has, as far as known."""

    prompt: Prompt
    held: frozenset[int]  # segments by index: the daemon has them,
    wanted: frozenset[int]  # or they are worth a capture
    prefix: int  # tokens of the daemon's longest prefix, 0 for none
    name: bytes
    spliced: bool  # it may be of a splice
    w: int
    max_error: float | None = None  # as of `Cuts`
    limit: LossLimit = LossLimit()  # noqa: RUF009  (frozen)
    """The loss that is accepted, and the way whose loss was compared with it."""
    loss: float | None = None  # that the daemon expects of that way, None if it is not known
    counted: bool = True  # the canary counts its first token for the loss
    end: int | None = None
    """Token behind which the daemon advises to take nothing over, where its answer is about these
    segments behind this prefix; None: the guess decides."""

    def choices(
        self,
        begin: int,
        elsewhere: frozenset[bytes] = frozenset(),
        own: frozenset[bytes] = frozenset(),
    ) -> tuple[Choice, ...]:
        """What becomes of each segment behind a prefix of `begin` tokens. elsewhere: keys of those
        that others compute; own: of those that this engine has to."""
        return choose(
            self.prompt,
            begin,
            [p.index in self.held or p.key in elsewhere for p in self.prompt.pieces],
            [p.index in self.wanted or p.key in own for p in self.prompt.pieces],
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What the daemon said of a request. known is None where it cannot be spliced; trouble says
    why, in words for the caller."""

    known: Known | None = None
    trouble: str = ""
    found: Match | None = None
    advice: Advice | None = None


class Decider:
    """Decides for one engine; on the thread of its scheduler."""

    def __init__(
        self,
        model: Model,
        settings: ServingSettings,
        finder: Finder,
        tally: EngineTally,
        clock: Clock,
        lead: Lead | None = None,
    ) -> None:
        """lead: the primer that segments are captured after, None for none."""
        self._lead = lead
        self._model, self._settings, self._finder = model, settings, finder
        self._tally, self._clock = tally, clock
        self._random = random.Random()
        self._logged: set[str] = set()  # reasons; they are a few constants

    def cuts(self, params: dict[str, object] | None, ids: Sequence[int]) -> Cuts | None:
        """Where the segments of a prompt lie; None where they are not worth a question.

        params: of the request, beside its prompt. Raises CutsError for what cannot be right.
        """
        seam = self._settings.seam_tokens
        held = partial(held_in, self._model, self._tally, lead=self._lead)
        try:
            cuts = cuts_of(self._finder, params, ids, seam, held)
        except CutsError as err:
            self._tally.add("bad_cuts")
            log.warning("%s", err)
            raise
        if cuts is None or not cuts.cuts:
            self._tally.add("short")
            if len(ids) >= SHORT_TOKENS and (cuts is None or not cuts.trouble):
                self._declined("no segments were found in a prompt, and none were named")
            return cuts
        cuts = self._refreshed(cuts)
        if not cuts.cuts:
            self._tally.add("refreshed_prompts")
        elif cuts.cuts[-1] - cuts.cuts[0] < SHORT_TOKENS and not cuts.found.warming:
            self._tally.add("short")
            return replace(cuts, cuts=())
        return cuts

    def _refreshed(self, cuts: Cuts) -> Cuts:
        """The cuts without those of segments that are to be computed in context."""
        share = self._settings.refresh if cuts.refresh is None else cuts.refresh
        if cuts.found.warming:
            share = 0.0
        kept = keep_for_reuse(cuts.cuts, share)
        end = kept[-1] if kept else cuts.cuts[0]
        self._tally.add("refreshed_tokens", cuts.cuts[-1] - end)
        return replace(cuts, cuts=kept, refresh=share, left_out=len(cuts.cuts) - len(kept))

    def _max_loss(self, cuts: Cuts) -> float:
        """The loss that a request accepts. One without a question has no first token to lose,
        unless it says itself what it accepts."""
        if cuts.max_loss is not None:
            return cuts.max_loss
        return ANY_LOSS if cuts.found.warming else self._settings.max_loss

    def _declined(self, why: str) -> str:
        """Logs a reason that holds for many requests once, and returns it."""
        if why not in self._logged:
            self._logged.add(why)
            log.info("requests are not spliced: %s (logged once)", why)
        return why

    def ask(self, ids: Sequence[int], cuts: Cuts, named: Named, prefixes: bool) -> Asked:
        """Asks the daemon once, which prefix and which segments it has and which it wants.

        prefixes: the caller counts missing advice.
        """
        model = self._model
        salt = model.salt
        if salt is None or not model.attached:
            self._tally.add("no_daemon")
            return Asked(trouble="no daemon")
        try:
            lead = self._lead if model.primers else None
            prompt = divide(model.profile, salt, ids, cuts.cuts, cuts.w, primer=lead)
        except PlanError as err:
            self._tally.add("bad_cuts")
            log.info("cuts that no segments can lie between: %s", err)
            return Asked(trouble="no segments can lie between these cuts")
        if not prompt.keys:
            self._tally.add("short")
            return Asked()
        # A prefix behind segments has an unknown error and an unknown loss.
        max_loss = self._max_loss(cuts)
        limited = cuts.max_error is not None or max_loss < ANY_LOSS
        accept = Accept.EXACT if limited else Accept.ANY
        refreshed = cuts.left_out > 0
        lookup = Lookup(
            named.positions, named.names, prompt.keys, accept, prompt.others, self._primed(prompt)
        )

        def query(found: Match | None) -> Query:
            pieces = [piece for piece in prompt.pieces if piece.key is not None]
            seam = sum(piece.seam_tokens for piece in pieces)
            way = SpliceWay(primed=False, refreshed=refreshed)  # the daemon sees what is primed
            if found is not None:
                used = prompt.resolved(found.near_variants(cuts.max_error)).pieces
                pieces = [piece for piece in used if piece.key is not None]
                seam = seam_tokens(pieces, found)
                way = replace(way, primed=all_primed(pieces, self._lead))
            return Query(
                ids,
                max_checkpoints=self._settings.max_checkpoints,
                segments=tuple((piece.start, piece.tokens) for piece in pieces),
                cuts=cuts.cuts,
                seam_tokens=seam,
                samples=self._clock.take(),
                limit=LossLimit(max_loss, way),
            )

        # The daemon does not know which variants are too far off for the request.
        at_once = cuts.max_error is None
        found, advice = match_and_advise(model, lookup, query, at_once)
        if found.trouble:
            # In words of ours: the client's name places and settings, and callers are strangers.
            log.info("a request is not spliced: %s", found.trouble)
            self._tally.add("no_daemon")
            return Asked(trouble="the daemon did not answer")
        prompt = prompt.resolved(found.near_variants(cuts.max_error))
        pieces = [piece for piece in prompt.pieces if piece.key is not None]
        way = SpliceWay(all_primed(pieces, self._lead), refreshed)
        limit = LossLimit(max_loss, way)
        if advice is None and not prefixes:
            self._tally.add("unadvised")
        if Reason.OFF in found.reason:
            self._tally.add("switched_off")
            return Asked(None, self._declined("splicing is switched off"), found, advice)
        # With narrower seams than those that losses are counted at, they are not known.
        seam = self._settings.seam_tokens
        loss = unanswered(limit) if advice is None or cuts.w < seam else advice.loss
        hits, left_out = found.hits, cuts.left_out
        if loss.splicing is Splicing.REFRESHED:
            last, left_out = pieces.pop(), left_out + 1
            way = replace(way, refreshed=True)
            prompt = replace(prompt, pieces=prompt.pieces[: last.index])
            hits = hits[: len(pieces)]
            self._tally.add("refreshed_tokens", cuts.cuts[-1] - last.start)
        near = found.within(cuts.max_error)[: len(pieces)]
        held = frozenset(p.index for p, hit in zip(pieces, near, strict=True) if hit)
        self._tally.add("held_segments", len(held))
        self._tally.add("missing_segments", len(pieces) - len(held))
        self._tally.add("too_far_segments", sum(hits) - len(held))
        self._tally.add("other_variant_segments", sum(found.variant))
        admitted = self._admitted(pieces, advice)
        wanted, trouble = self._wanted(cuts, pieces, admitted) - held, cuts.trouble
        if advice is None and not cuts.found.warming:
            trouble = UNADVISED
        takes = None
        if advice is not None and (held or wanted):
            takes = advice.takes(bool(wanted), self._settings.measured)
        used = [piece for piece in pieces if piece.index in held | wanted]
        judged = LossLimit(max_loss, way)
        if loss.splicing is Splicing.NONE or not self._within(judged, used):
            if advice is None:
                trouble = "the daemon did not answer"
            else:
                trouble = self._declined(BEYOND_MAX_LOSS)
                if used:
                    self._tally.add("beyond_max_loss")
            held, wanted, takes = frozenset(), frozenset(), None
        if takes == 0 and not cuts.found.warming:
            self._tally.add("not_advised")
            held, wanted = frozenset(), frozenset()
            trouble = self._declined("the daemon advises not to splice it")
        # The daemon has priced all that was found, and all that it would store.
        end = None
        if takes is not None and len(held) == sum(hits) and wanted == admitted:
            end = pieces[takes - 1].end if takes else 0
        prefix = found.prefix_tokens
        name = named.names[found.prefix_index] if prefix else b""
        spliced = found.prefix_kind == Accept.SPLICED
        known = Known(
            prompt=prompt,
            held=held,
            wanted=wanted,
            prefix=prefix,
            name=name,
            spliced=spliced,
            w=cuts.w,
            max_error=cuts.max_error,
            limit=judged,
            loss=loss.expected,
            counted=cuts.w == seam
            and cuts.max_error is None
            and not cuts.found.warming
            and left_out <= 1,
            end=end,
        )
        return Asked(known, trouble, found, advice)

    def best(
        self, known: Known, choices: Sequence[Choice], begin: int, warming: bool
    ) -> Splice | None:
        """The splice that the daemon advises; by the guess, where its answer is absent, or is about
        another prefix or other segments.

        warming: the request says itself that it is for later ones.
        """
        advised = begin == known.prefix and choices == known.choices(begin)
        if known.end is None or warming or not advised:
            splice = best_splice(known.prompt, choices, begin)
        else:
            splice = advised_splice(known.prompt, choices, begin, known.end)
        if splice is None:
            return None
        used = (*splice.pieces(Choice.HIT), *splice.pieces(Choice.ISOLATED))
        if not self._within(known.limit, used):
            return None
        way = replace(known.limit.way, primed=all_primed(used, self._lead))
        return replace(
            splice,
            max_error=known.max_error,
            way=way if known.counted else None,
            loss=known.loss if way == known.limit.way else None,
        )

    def _within(self, limit: LossLimit, used: Sequence[Piece]) -> bool:
        """Whether a splice of these segments is of the way whose loss is within the limit; any one
        is without a limit."""
        judged = all_primed(used, self._lead) == limit.way.primed
        return judged or not used or limit.max_loss >= ANY_LOSS

    def fair(self, splice: Splice, w: int) -> bool:
        """Whether the canary may judge everybody's splicing by a request.

        Seams and cuts are the caller's own words: narrow seams and tiny segments give bad answers,
        to that caller.
        """
        seam = self._settings.seam_tokens
        used = (*splice.pieces(Choice.HIT), *splice.pieces(Choice.ISOLATED))
        return w >= seam and all(piece.tokens >= FAIR_SEAMS * seam for piece in used)

    def sampled(self) -> bool:
        """Whether the canary takes this request: it must not follow a pattern of the traffic."""
        return self._random.random() < self._model.canary_share(self._settings.canary_share)

    def _primed(self, prompt: Prompt) -> bytes:
        """How the first variants of the keys were captured, as in `Lookup`."""
        flags = []
        for piece in prompt.pieces:
            if piece.key is None or piece.spec is None:
                continue
            due = self._lead is not None and self._lead.preferred(piece.start)
            flags.append(PRIMED_KEY * bool(piece.spec.primer) + PRIMED_DUE * due)
        return bytes(flags)

    def _admitted(self, pieces: list[Piece], advice: Advice | None) -> frozenset[int]:
        """The segments that the daemon would store, were they captured."""
        advised = zip(pieces, () if advice is None else advice.segments, strict=False)
        return frozenset(piece.index for piece, segment in advised if segment.publish)

    def _wanted(self, cuts: Cuts, pieces: list[Piece], admitted: frozenset[int]) -> frozenset[int]:
        """The segments that are to be captured."""
        if not self._settings.capture:
            return frozenset()
        if cuts.found.warming:
            return self._not_too_long([piece for piece in pieces if piece.start > 0])
        return self._not_too_long([piece for piece in pieces if piece.index in admitted])

    def _not_too_long(self, wanted: list[Piece]) -> frozenset[int]:
        """Those that may be captured."""
        most = self._settings.capture_tokens
        short = frozenset(piece.index for piece in wanted if piece.tokens <= most)
        if len(short) < len(wanted):
            self._tally.add("too_long_to_capture", len(wanted) - len(short))
        return short
