"""Decides whether and how a request is spliced, with one request to the daemon."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from spliced_connector.client import (
    ANY_LOSS,
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
    Way,
    beyond_max_loss,
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
"""The most prefixes in one request to the daemon. If a prompt has more, the longest are sent."""

NEXT_TOKENS = 64
"""If a checkpoint would add fewer tokens than this to the prefix that is available already, it is
neither stored nor fetched: computing these tokens takes no longer (a guess)."""

SHORT_TOKENS = 256
"""If a prompt's segments have fewer tokens than this in all, they are not worth a request to the
daemon and a step of the engine (a guess: some milliseconds of prefill)."""

FAIR_SEAMS = 8
"""The canary judges only segments of at least this many times the seam width (a guess)."""


@dataclass(frozen=True, slots=True)
class Named:
    """Prefixes of a prompt: ascending positions, and the hash of the tokens before each."""

    positions: Sequence[int] = ()
    names: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """The known state of a request: its segments, and the longest prefix that the daemon has."""

    prompt: Prompt
    held: frozenset[int]  # indices of segments that the daemon has
    wanted: frozenset[int]  # indices of segments worth a capture
    prefix: int  # tokens of the daemon's longest prefix, 0 for none
    name: bytes
    spliced: bool  # the prefix may come from a splice
    w: int
    max_error: float | None = None  # as in `Cuts`
    limit: LossLimit = LossLimit()  # noqa: RUF009  (frozen)
    """The loss that the request accepts, and the way of splicing whose loss was compared with
    it."""
    loss: float | None = None  # the expected loss of that way, None if not known
    counted: bool = True  # the canary may count this request for the loss
    end: int | None = None
    """The daemon advises to reuse no segment that ends after this token. None: there is no advice
    for exactly these segments and this prefix, so a guess decides."""

    def choices(
        self,
        begin: int,
        elsewhere: frozenset[bytes] = frozenset(),
        own: frozenset[bytes] = frozenset(),
    ) -> tuple[Choice, ...]:
        """Returns how to treat each segment after a prefix of `begin` tokens. elsewhere: keys of
        segments that other engines compute. own: keys of segments that this engine must compute."""
        return choose(
            self.prompt,
            begin,
            [p.index in self.held or p.key in elsewhere for p in self.prompt.pieces],
            [p.index in self.wanted or p.key in own for p in self.prompt.pieces],
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """The daemon's answers about a request. known is None if the request cannot be spliced. trouble
    is a text for the caller that says why."""

    known: Known | None = None
    trouble: str = ""
    found: Match | None = None
    advice: Advice | None = None


class Decider:
    """Decides for one engine. Only the thread of its scheduler may use it."""

    def __init__(
        self,
        model: Model,
        settings: ServingSettings,
        finder: Finder,
        tally: EngineTally,
        clock: Clock,
        lead: Lead | None = None,
    ) -> None:
        """lead: the primer after which segments are captured, None for none."""
        self._lead = lead
        self._model, self._settings, self._finder = model, settings, finder
        self._tally, self._clock = tally, clock
        self._random = random.Random()
        self._logged: set[str] = set()  # reasons, of which there are only a few

    def cuts(self, params: dict[str, object] | None, ids: Sequence[int]) -> Cuts | None:
        """Returns the cuts of a prompt. None, or no cuts: do not ask the daemon about the prompt.

        params: the request's parameters. Raises CutsError for invalid ones.
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
        """Returns the cuts without the last segments, which `refresh` computes in context."""
        share = self._settings.refresh if cuts.refresh is None else cuts.refresh
        if cuts.found.warming:
            share = 0.0
        kept = keep_for_reuse(cuts.cuts, share)
        end = kept[-1] if kept else cuts.cuts[0]
        self._tally.add("refreshed_tokens", cuts.cuts[-1] - end)
        return replace(cuts, cuts=kept, refresh=share, left_out=len(cuts.cuts) - len(kept))

    def _max_loss(self, cuts: Cuts) -> float:
        """Returns the loss that a request accepts. A request that only stores segments has no
        answer to get wrong, so it accepts any loss unless it sets one."""
        if cuts.max_loss is not None:
            return cuts.max_loss
        return ANY_LOSS if cuts.found.warming else self._settings.max_loss

    def _declined(self, why: str, kind: str = "") -> str:
        """Logs a reason once, because it holds for many requests, and returns it.

        kind: constant name of the reason, if its text differs between requests.
        """
        if (kind or why) not in self._logged:
            self._logged.add(kind or why)
            log.info("requests are not spliced: %s (logged once)", why)
        return why

    def ask(self, ids: Sequence[int], cuts: Cuts, named: Named, prefixes: bool) -> Asked:
        """Asks the daemon once which prefix and segments it has, and which it would store.

        prefixes: whether the caller counts missing advice itself.
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
        # A prefix that contains spliced segments has an unknown error and an unknown loss.
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
            way = SpliceWay(primed=False, refreshed=refreshed)  # the daemon finds `primed` itself
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

        # With max_error the daemon cannot do the lookup, as it does not know that bound.
        at_once = cuts.max_error is None
        found, advice = match_and_advise(model, lookup, query, at_once)
        if found.trouble:
            # The caller gets a fixed text, because the client's text names paths and settings.
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
        # Losses are counted at the configured seam width; with narrower seams they are unknown.
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
                known_loss = loss.expected if loss.splicing is Splicing.NONE else None
                trouble = self._declined(beyond_max_loss(known_loss, max_loss), "max_loss")
                if used:
                    self._tally.add("beyond_max_loss")
            held, wanted, takes = frozenset(), frozenset(), None
        if takes == 0 and not cuts.found.warming:
            self._tally.add("not_advised")
            held, wanted = frozenset(), frozenset()
            computing = advice is not None and advice.way == Way.RECOMPUTE
            better = "computing" if computing else "a prefix"
            trouble = self._declined(f"the daemon advises not to splice it: {better} is faster")
        # The advised number of segments is valid only if all hits and all admitted segments are
        # used: the daemon's estimate includes them.
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
        """Returns the splice that the daemon advises. If there is no advice, or it is about another
        prefix or other segments, a guess decides. None: do not splice.

        warming: whether the purpose of the request is to store segments for later requests.
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
        """Returns whether a splice of these segments is of the way whose loss was compared with the
        limit. Without a limit, every splice is accepted."""
        judged = all_primed(used, self._lead) == limit.way.primed
        return judged or not used or limit.max_loss >= ANY_LOSS

    def fair(self, splice: Splice, w: int) -> bool:
        """Returns whether the canary may judge splicing in general by this request.

        Callers choose seams and cuts. Narrow seams and tiny segments give that caller bad answers,
        but say nothing about other requests.
        """
        seam = self._settings.seam_tokens
        used = (*splice.pieces(Choice.HIT), *splice.pieces(Choice.ISOLATED))
        return w >= seam and all(piece.tokens >= FAIR_SEAMS * seam for piece in used)

    def sampled(self) -> bool:
        """Returns whether the canary takes this request. The choice is random, so that it does not
        follow a pattern of the traffic."""
        return self._random.random() < self._model.canary_share(self._settings.canary_share)

    def _primed(self, prompt: Prompt) -> bytes:
        """Returns `Lookup.primed` for a prompt: the bits of each of its keys."""
        flags = []
        for piece in prompt.pieces:
            if piece.key is None or piece.spec is None:
                continue
            due = self._lead is not None and self._lead.preferred(piece.start)
            flags.append(PRIMED_KEY * bool(piece.spec.primer) + PRIMED_DUE * due)
        return bytes(flags)

    def _admitted(self, pieces: list[Piece], advice: Advice | None) -> frozenset[int]:
        """Returns the indices of the segments that the daemon would store if they were captured."""
        advised = zip(pieces, () if advice is None else advice.segments, strict=False)
        return frozenset(piece.index for piece, segment in advised if segment.publish)

    def _wanted(self, cuts: Cuts, pieces: list[Piece], admitted: frozenset[int]) -> frozenset[int]:
        """Returns the indices of the segments to capture."""
        if not self._settings.capture:
            return frozenset()
        if cuts.found.warming:
            return self._not_too_long([piece for piece in pieces if piece.start > 0])
        return self._not_too_long([piece for piece in pieces if piece.index in admitted])

    def _not_too_long(self, wanted: list[Piece]) -> frozenset[int]:
        """Returns the indices of the segments that are short enough to capture."""
        most = self._settings.capture_tokens
        short = frozenset(piece.index for piece in wanted if piece.tokens <= most)
        if len(short) < len(wanted):
            self._tally.add("too_long_to_capture", len(wanted) - len(short))
        return short
