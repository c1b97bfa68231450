"""The exchange of data between requests of the transformers adapter and the daemon.

Trouble with the daemon never changes a result: missing data is computed. Data that was read from
leased memory counts only if the lease was still valid when it was released. Otherwise the prompt is
computed from its first token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from spliced_connector.client import (
    UNADVISED,
    Accept,
    Advice,
    CaptureTiming,
    DeviceSegment,
    Following,
    LossAdvice,
    LossLimit,
    Match,
    Missing,
    Model,
    NewCheckpoint,
    NewSegment,
    Query,
    Reason,
    Sample,
    Segment,
    Served,
    ServedSegment,
    Splicing,
    WalkTiming,
    Way,
    beyond_max_loss,
    plannable,
    release_all,
    seam_tokens,
    served_bytes,
    unanswered,
    way_of,
)
from spliced_connector.errors import Code, SplicedError
from spliced_connector.hf.device import Lent, Placing, Reader, Registered, Remote
from spliced_connector.hf.paged import LIFE, Loan
from spliced_connector.hf.turns import Turn, Turns, most_rows
from spliced_connector.model import NOTHING, Choice, Lead, Piece, Prompt, all_primed
from spliced_connector.serving.composing import Composer, Placement
from spliced_connector.serving.primers import Primers, lead_of
from spliced_connector.serving.settings import Compute, ServingSettings
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    Copies,
    Pages,
    capture,
    checkpoint_parts,
    pack,
    restore,
    restore_turn,
    rounded,
)

log = logging.getLogger("spliced")

Leased = Segment | DeviceSegment

_PLAN_SECONDS = 0.5
"""Longest wait for the daemon's plan of which engine computes which segment. The daemon waits for
other nodes at most half of this time."""


class UnreliableError(Exception):
    """The daemon cannot be used for a prompt: the prompt must be computed."""


@dataclass(frozen=True)
class Found:
    """The daemon's answers about a prompt. hashes: the names of the prompt's prefixes, one for each
    position of the match. prompt: the prompt with the keys of the variants of segments that the
    daemon has."""

    hashes: list[bytes]
    match: Match
    advice: Advice | None
    prompt: Prompt = Prompt(0, ())  # noqa: RUF009  (frozen)
    loss: LossAdvice = LossAdvice()  # noqa: RUF009  (frozen)
    limit: LossLimit = LossLimit()  # noqa: RUF009  (frozen)
    """The loss that is accepted, and the way of splicing for which `loss` was estimated."""

    def way(self, everything: bool) -> Way:
        """Returns how the daemon advises to serve the prompt; SPLICE without advice, or if
        everything that is cached is to be used."""
        advised = None if self.advice is None or everything else self.advice.way
        return Way.SPLICE if advised is None else Way(advised)

    @property
    def trouble(self) -> str:
        """Why segments may be neither spliced nor captured; empty if they may."""
        if Reason.OFF in self.match.reason:
            return "the profile is switched off for splicing"
        if not self.match.trouble and self.loss.splicing is Splicing.NONE:
            if self.advice is None:
                return "the daemon did not answer"
            return beyond_max_loss(self.loss.expected, self.limit.max_loss)
        return self.match.trouble

    @property
    def unadvised(self) -> str:
        """Why nothing of the prompt is stored; empty if the daemon has given advice."""
        return UNADVISED if self.advice is None else ""

    def held(self, prompt: Prompt, max_error: float | None) -> list[bool]:
        """Returns for each segment whether the cache has it with at most this error."""
        hits = iter(self.match.within(max_error))  # one more if the prompt omits the last segment
        return [p.key is not None and next(hits) for p in prompt.pieces]

    def wanted(self, prompt: Prompt, everything: bool) -> list[bool]:
        """Returns for each segment whether it is worth capturing if it is missing."""
        advised = iter(() if self.advice is None else self.advice.segments)
        out = []
        for p in prompt.pieces:
            one = next(advised, None) if p.key is not None else None
            out.append(p.key is not None and (everything or (one is not None and one.publish)))
        return out

    def takes(self, prompt: Prompt, wanted: bool, everything: bool) -> list[bool]:
        """Returns for each segment whether the splice that the daemon advises uses it; True for all
        without advice. wanted: whether some segments are to be captured."""
        most = None if self.advice is None or everything else self.advice.takes(wanted)
        if most is None:
            return [True] * len(prompt.pieces)
        named = [p.index for p in prompt.pieces if p.key is not None]
        return [p.index in named[:most] for p in prompt.pieces]

    def saves(self, everything: bool) -> list[int]:
        """Returns the positions that are worth a checkpoint, in ascending order."""
        named = () if self.advice is None else self.advice.checkpoints
        return sorted(c.tokens for c in named if c.save or everything)


@dataclass
class Kept:
    """What a request has computed and other requests can use, until it is stored."""

    ids: list[int]
    accept: Accept = Accept.EXACT
    """The kinds of states from which the request continues. It keeps only states of these kinds."""
    loan: Loan | None = None
    """The leases under which rows of checkpoints are read, if these rows are in pages."""
    segments: list[tuple[Piece, Captured]] = field(default_factory=list)
    checkpoints: list[Context] = field(default_factory=list)
    parent: tuple[bytes, int] = (NOTHING, 0)
    turn: Turn | None = None
    """Rows of the end of the prompt and of the answer."""
    spared: list[int] = field(default_factory=list)
    """Positions that the daemon wants, but at which no checkpoint is needed if the rows of `turn`
    are saved."""
    spare: list[Context] = field(default_factory=list)
    """The states at the positions of `spared`."""

    def keeps(self, context: Context) -> bool:
        """Whether a state is of a kind that the request itself would continue from."""
        return bool(self.accept & (Accept.SPLICED if context.spliced else Accept.EXACT))

    @property
    def held(self) -> int:
        """Number of leading tokens whose state is stored or about to be stored."""
        return self.checkpoints[-1].tokens if self.checkpoints else self.parent[1]

    @property
    def captured(self) -> int:
        """Number of tokens of the captured segments."""
        return sum(piece.tokens for piece, _ in self.segments)


class Reuse:
    """The exchange of one model with the daemon."""

    def __init__(
        self,
        arch: Architecture,
        model: Model,
        device: torch.device,
        ends: Collection[int] = (),
        lent: Lent | None = None,
        in_place: bool = False,
        resume: bool = False,
        compute: Compute = Compute.ENGINE,
        registered: Registered | None = None,
        primer: tuple[int, ...] = (),
        primer_after: int = ServingSettings.primer_after,
    ) -> None:
        """ends: the tokens that end an answer. lent: the daemon's memory on the model's GPU, None
        if it is not used. in_place: attention reads the rows of segments in place. resume: rows of
        turns are stored, and prompts continue from them. compute: who places leased segments.
        registered: memory of the model's GPU into which the daemon may place segments on that GPU.
        primer: token ids of the passage after which segments are captured if primer_after tokens
        precede them."""
        self.primers = Primers(arch, device, primer)
        self._lead = lead_of(primer, primer_after)
        on_device = registered is not None
        self.composer = Composer(arch, model, Copies(device), compute, on_device=on_device)
        self._registered = registered
        self.in_place = in_place
        self._refused = False
        self._logged = ""
        self.lent = lent
        self.ends = frozenset(ends)
        self.arch = arch
        self.model = model
        self.profile = model.profile
        self.device = device
        self.attends = bool(self.profile.attention_layers)
        # Rows are replayed in host memory. If copies of states on the GPU are used, which is
        # quicker, no rows are stored.
        rows = most_rows(self.profile) if resume and not (lent and lent.wanted) else 0
        self.turns = Turns(arch, model, rows)
        self._samples: list[Sample | WalkTiming | CaptureTiming] = []

    @property
    def lead(self) -> Lead | None:
        """How prompts name the primer; None without a primer, or if the daemon knows no primers."""
        return self._lead if self.model.primers else None

    @property
    def written_state(self) -> str:
        """Why the daemon cannot write rows into memory of the model's GPU; empty if it can."""
        if self._registered is None:
            return self.composer.never or "the model is on a CPU"
        return self._registered.trouble or self.model.memory_trouble

    @property
    def device_tokens(self) -> int:
        """Number of tokens taken from copies on the model's GPU so far."""
        return 0 if self.lent is None else self.lent.tokens

    def look_up(
        self,
        positions: Sequence[int],
        prompt: Prompt,
        accept: Accept,
        query: Query,
        max_error: float | None = None,
        limit: LossLimit | None = None,
        known: bool = True,
    ) -> Found:
        """Asks the daemon for a match and for advice. Raises `UnreliableError` if no daemon has
        ever answered.

        query: the query for advice, without the fields that the match determines. max_error, limit:
        as in `Request`; limit is None if no segments are named. known: whether losses are counted
        at seams as wide as the prompt's. If the daemon advises to compute the last segment in
        context, the prompt in the result omits that segment.
        """
        hashes = self.model.prefix_hashes(query.tokens, positions)
        if hashes is None:
            raise UnreliableError(self.model.trouble or "no daemon was attached")
        match = self.model.match(
            positions, hashes, prompt.keys, self._kinds(accept), others=prompt.others
        )
        prompt = prompt.resolved(match.near_variants(max_error))
        named = [p for p in prompt.pieces if p.key is not None]
        match, hashes = self._within_turn(query.tokens, match, hashes, accept)
        samples, self._samples = tuple(self._samples), []
        if limit is not None:
            limit = replace(limit, way=replace(limit.way, primed=all_primed(named, self.lead)))
        advice = self.model.advise(
            replace(
                query,
                match=match,
                segments=tuple((p.start, p.tokens) for p in named),
                seam_tokens=seam_tokens(named, match),
                samples=samples,
                limit=limit,
            )
        )
        asked = limit or LossLimit()
        loss = unanswered(asked) if advice is None or not known else advice.loss
        if loss.splicing is Splicing.REFRESHED:
            prompt = replace(prompt, pieces=prompt.pieces[: named[-1].index])
            asked = replace(asked, way=replace(asked.way, refreshed=True))
        return Found(hashes, match, advice, prompt, loss, asked)

    def _kinds(self, accept: Accept) -> Accept:
        """Returns the kinds of checkpoints from which a request continues."""
        rows = self.turns.most > 0 and bool(accept & Accept.EXACT)
        return accept | Accept.ROWS if rows else accept

    def _within_turn(
        self, ids: Sequence[int], match: Match, hashes: list[bytes], accept: Accept
    ) -> tuple[Match, list[bytes]]:
        """Looks for a longer prefix that ends inside a stored turn. It looks at every token after
        the found prefix, up to the next block. Returns the match of the longer prefix and all
        hashes, or the arguments if there is none."""
        begin, block = match.prefix_tokens, self.model.block_tokens
        if begin == 0 or not self._kinds(accept) & Accept.ROWS:
            return match, hashes
        positions = range(begin + 1, min(begin + min(block, self.turns.most), len(ids)))
        more = self.model.prefix_hashes(ids, positions) if positions else None
        if not more:
            return match, hashes
        found = self.model.match(positions, more, (), Accept.ROWS)
        if found.prefix_tokens <= begin:
            return match, hashes
        longer = replace(
            match,
            prefix_tokens=found.prefix_tokens,
            prefix_index=len(hashes) + found.prefix_index,
            prefix_kind=found.prefix_kind,
            prefix_tier=found.prefix_tier,
            prefix_states=found.prefix_states,
        )
        return longer, [*hashes, *more]

    def share(
        self, ids: list[int], prompt: Prompt, choices: Sequence[Choice], begin: int, least: int
    ) -> Following | None:
        """Asks other engines to compute some of the missing segments. Returns None if fewer than
        two segments or fewer than `least` tokens are missing, or if the daemon assigns no segment
        to another engine. begin: the number of tokens that the context has already."""
        wanted: dict[bytes, Missing] = {}
        for piece, choice in zip(prompt.pieces, choices, strict=True):
            if choice is Choice.HIT or piece.start < begin:
                continue
            if piece.spec is None or piece.key is None:
                continue
            wanted.setdefault(piece.key, Missing(piece.spec, ids[piece.start : piece.end]))
        missing = plannable(wanted.values())
        if len(missing) < 2 or sum(one.spec.tokens for one in missing) < least:
            return None
        plan = self.model.plan(missing, wait=_PLAN_SECONDS)
        return Following(self.model, plan) if plan is not None and plan.away else None

    def served(
        self,
        ids: list[int],
        prefix: int,
        found: Found | None,
        segments: tuple[ServedSegment, ...],
        began: float,
        loss: float | None = None,
    ) -> None:
        """Reports to the daemon how a prompt was served. prefix: reused tokens of a checkpoint.
        began: start, by `time.perf_counter()`. loss: the loss that was expected of the splice."""
        match = Match() if found is None else found.match
        advice = None if found is None else found.advice
        self.model.served(
            Served(
                way=way_of(prefix, sum(row.reused for row in segments)),
                tokens=len(ids),
                prefix=prefix,
                prefix_tier=match.prefix_tier,
                prefix_reason=match.prefix_reason,
                segments=segments,
                read_bytes=served_bytes(self.profile, prefix, segments),
                first=time.perf_counter() - began,
                predicted=() if advice is None else advice.predicted,
                loss=loss,
            )
        )

    def told(self, ids: list[int], prompt_tokens: int, held: int) -> bool:
        """Reports a prompt and the computed part of its answer. Returns whether the state after
        them is worth a checkpoint. held: number of leading tokens whose state is stored."""
        advice = self.model.advise(
            Query(
                tokens=ids,
                output=len(ids) - prompt_tokens,
                block_tokens=1,  # only the last token has a state, at any position
                max_checkpoints=1,
                match=Match(held),
                cuts=(len(ids),),
            )
        )
        named = () if advice is None else advice.checkpoints
        return any(c.save and c.tokens == len(ids) for c in named)

    def computes(self, ids: Sequence[int], why: str) -> None:
        """Logs why a prompt is computed without reuse; only once while the reason is the same."""
        if why != self._logged:
            log.warning("prompt of %d tokens computed without reuse: %s", len(ids), why)
        self._logged = why

    def now(self) -> float:
        """Waits until the model's device has done its queued work. Returns a clock in seconds."""
        return self.composer.now()

    def measured(self, sample: Sample | WalkTiming | CaptureTiming) -> None:
        """Remembers how long a prefill, a walk or a capture took. The next `look_up` reports it."""
        self._samples = [*self._samples, sample][-64:]

    def load(self, found: Found, ids: list[int], accept: Accept, way: Way) -> Context | None:
        """Returns the context after the longest saved prefix, None for a miss. If the prefix ends
        in rows of a turn and the daemon advises it, the rows are replayed. Otherwise the context
        comes from the last checkpoint with states in this prefix."""
        match, prefix = found.match, b""
        if match.prefix_tokens == 0:
            return None
        if match.prefix_kind != Accept.ROWS:
            prefix = found.hashes[match.prefix_index]
            return self._load_whole(prefix, match.prefix_tokens, len(ids), accept)
        if way is not Way.PREFIX:
            context = self._replayed(found, len(ids))
            if context is not None:
                return context
        if (name := self.name(ids, match.prefix_states)) == NOTHING:
            return None
        return self._load_whole(name, match.prefix_states, len(ids), accept)

    def name(self, ids: Sequence[int], tokens: int) -> bytes:
        """Returns the hash of the first `tokens` tokens; NOTHING if tokens is 0."""
        names = self.model.prefix_hashes(ids, [tokens]) if tokens else None
        return names[0] if names else NOTHING

    def _replayed(self, found: Found, room: int) -> Context | None:
        """Returns the context after a token inside a stored turn; None if that fails."""
        match = found.match
        held = self.model.load(found.hashes[match.prefix_index], Accept.ROWS)
        if held is None:
            return None
        context, slot = None, None
        try:
            if held.tokens != match.prefix_tokens:
                raise ValueError(f"the match was of {match.prefix_tokens}")
            slot = self.model.replay_rows(held, held.tokens)
            if slot is not None:
                states = slot.view()
                context = restore_turn(self.arch, self.profile, held, states, room, self.device)
        except (SplicedError, ValueError) as err:
            log.warning("turn of %d tokens not resumed: %s", held.tokens, err)
            context = None
        good = held.release() and (slot is None or slot.release())
        return context if good else None

    def _load_whole(self, prefix: bytes, tokens: int, room: int, accept: Accept) -> Context | None:
        """Returns the context after a checkpoint that has states; None if that fails."""
        if self.lent is not None and (there := self.lent.load(prefix, accept, room, tokens)):
            return there
        held = self.model.load(prefix, accept)
        if held is None:
            return None
        try:
            if held.tokens != tokens:
                raise ValueError(f"the match was of {tokens}")
            context = restore(self.arch, self.profile, held, room, self.device)
            context.spliced = held.kind == Accept.SPLICED
        except (SplicedError, ValueError) as err:
            log.warning("checkpoint of %d tokens not used: %s", held.tokens, err)
            context = None
        return context if held.release() else None

    def acquire(
        self, prompt: Prompt, choices: Sequence[Choice]
    ) -> tuple[dict[int, Leased], Pages | None]:
        """Leases the segments that are chosen as hits. Returns the leases by segment index, without
        misses; copies on the model's GPU are preferred. Also returns pages if the segments' rows
        are to be read in place; the leases then last for `LIFE` seconds."""
        wanted = {
            p.index: p.key
            for p, c in zip(prompt.pieces, choices, strict=True)
            if c is Choice.HIT and p.key is not None
        }
        lasting = self.in_place and not self._refused and self._reads()
        if lasting and (held := self._leased(wanted, LIFE)):
            return held, self._pages(held)
        held = self._leased(wanted, 0.0)
        # The daemon grants no leases of this length. Do not ask it twice for every prompt.
        self._refused |= lasting and bool(held)
        return held, None

    def _reads(self) -> bool:
        """Whether attention can read rows in leased memory."""
        on_device = self.lent is not None and self.lent.reads and self.lent.memory() is not None
        return on_device or self.device.type == "cpu"

    def _leased(self, wanted: dict[int, bytes], life: float) -> dict[int, Leased]:
        held: dict[int, Leased] = {}
        if self.lent is not None:
            held |= _found(wanted, self.lent.acquire(list(wanted.values()), life))
        rest = {i: key for i, key in wanted.items() if i not in held}
        if rest:
            held |= _found(rest, self.model.acquire(list(rest.values()), life=life))
        return held

    def _pages(self, held: dict[int, Leased]) -> Pages | None:
        """Returns pages if all leased rows are in memory of the model's device; else None."""
        there = list(_on_device(held).values())
        if not there:
            return Pages(self.device) if self.device.type == "cpu" else None
        if self.lent is None or len(there) < len(held):
            return None
        reader = self.lent.reader(there)
        return None if reader is None else Pages(self.device, reader)

    def placement(
        self, prompt: Prompt, held: dict[int, Leased], in_place: bool, max_error: float | None
    ) -> Placement:
        """Returns the placement of leased segments, by the daemon or by this process. A segment
        that cannot be read, or has a larger error than max_error, is omitted."""
        out = Placement(self.composer, self.placing(held), self._remote(held), in_place=in_place)
        for index, segment in held.items():
            spec = prompt.pieces[index].spec
            try:
                if spec is None:
                    continue
                if max_error is not None and not segment.layout.within(max_error):
                    continue
                if isinstance(segment, Segment):
                    out.lease(index, spec, segment)
                elif self.lent is not None:
                    out.own[index] = self.lent.captured(spec, segment, in_place)
            except (SplicedError, ValueError) as err:
                log.warning("segment %s not used: %s", segment.key.hex()[:16], err)
        return out

    def placing(self, held: dict[int, Leased]) -> Placing | None:
        """Returns the placer of leased segments on the GPU; None if there are none."""
        there = _on_device(held)
        return None if self.lent is None else self.lent.placing(there)

    def _remote(self, held: dict[int, Leased]) -> Remote | None:
        """Returns the object by which the daemon places leased segments on the GPU; None if it
        cannot."""
        there = _on_device(held)
        if self.lent is None or self._registered is None or not there:
            return None
        return Remote(self.lent, self.model, self._registered, there)

    def release(self, held: dict[int, Leased], reader: Reader | None = None) -> bool:
        """Ends the leases. Returns whether all their bytes were valid until now. reader: the object
        that has read their rows on the GPU."""
        good = all(release_all([s for s in held.values() if isinstance(s, Segment)]))
        if self.lent is not None:
            stream = None if reader is None else reader.last
            good &= self.lent.release(list(_on_device(held).values()), stream)
        return good

    def count(self, held: dict[int, Leased]) -> None:
        """Counts the tokens of leased segments whose bytes were valid."""
        if self.lent is not None:
            self.lent.tokens += sum(s.tokens for s in _on_device(held).values())

    def lend(self, held: dict[int, Leased], taken: float, context: Context) -> Loan | None:
        """Returns a loan, which keeps leases as long as a context's pages are read; None if the
        context has no pages."""
        paged = [at.pages for at in context.layers if at.pages is not None]
        if not paged:
            return None
        reader = paged[0].pages.reader
        on_device = reader if isinstance(reader, Reader) else None
        loan = Loan(list(held.values()), taken, lambda: self.release(held, on_device))
        loan.reads(paged)
        return loan

    def capture(self, kept: Kept, prompt: Prompt, choices: Sequence[Choice]) -> None:
        """Captures the segments that are chosen as ISOLATED, into `kept`.

        Their tensors have the stored types, so that this prompt uses the values that later prompts
        will read, up to the tolerance.
        """
        if Choice.ISOLATED not in choices:
            return
        by_key: dict[bytes, Captured] = {}
        chosen = zip(prompt.pieces, choices, strict=True)
        alone = [p.spec for p, c in chosen if c is Choice.ISOLATED and p.spec is not None]
        primers = {spec.primer: self.primers.of(spec) for spec in alone}
        tokens, began = 0, self.now()
        for piece, choice in zip(prompt.pieces, choices, strict=True):
            if choice is not Choice.ISOLATED or piece.spec is None or piece.key is None:
                continue
            if piece.key not in by_key:
                ids = kept.ids[piece.start : piece.end]
                primer = primers[piece.spec.primer]
                captured = capture(self.arch, ids, piece.spec, self.device, primer)
                by_key[piece.key] = rounded(self.profile, captured)
                tokens += piece.tokens
            kept.segments.append((piece, by_key[piece.key]))
        if tokens:
            self.measured(CaptureTiming(tokens, self.now() - began))

    def store(self, kept: Kept) -> list[Code | int]:
        """Publishes captured segments and saves checkpoints. Returns the outcome of each."""
        new: dict[bytes, NewSegment] = {}
        for piece, captured in kept.segments:
            if piece.key is not None and piece.key not in new:
                tokens = kept.ids[piece.start : piece.end]
                new[piece.key] = NewSegment(captured.spec, tokens, pack(self.profile, captured))
        codes = self.model.publish(list(new.values())) if new else []
        codes += self._save(kept, [])
        turn, readable = kept.turn, kept.loan is None or kept.loan.readable
        rows: list[Code | int] = []
        if turn is not None and turn.state is None and readable:
            rows = self._save_turn(turn, kept.ids)
        if kept.spare and not (rows and all(code in _HELD for code in rows)):
            codes += self._save(kept, kept.spare)
        return codes + rows

    def _save_turn(self, turn: Turn, ids: Sequence[int]) -> list[Code | int]:
        """Keeps the rows of a turn. A failure costs only these rows."""
        try:
            return self.turns.save(turn, ids)
        except (SplicedError, ValueError) as err:
            log.warning("rows of a turn are not kept: %s", err)
            return []

    def _save(self, kept: Kept, spare: Sequence[Context]) -> list[Code | int]:
        """Saves the kept checkpoints. If `spare` is given, saves only these, each with the kept or
        spare checkpoint before it as its parent."""
        every = sorted([*kept.checkpoints, *spare], key=lambda context: context.tokens)
        positions = [c.tokens for c in every]
        hashes = self.model.prefix_hashes(kept.ids, positions) if positions else None
        if not hashes:
            return []
        parent, behind = kept.parent
        new = []
        for digest, context in zip(hashes, every, strict=True):
            if not spare or any(context is one for one in spare):
                parts = checkpoint_parts(self.profile, context, behind)
                kind = Accept.SPLICED if context.spliced else Accept.EXACT
                new.append(NewCheckpoint(digest, context.tokens, parent, behind, kind, parts))
            parent, behind = digest, context.tokens
        if kept.loan is not None and not kept.loan.readable:
            log.warning("%d checkpoints were not stored: a lease had ended", len(new))
            return []
        return self.model.save(new)


_HELD = {Code.OK, Code.EXISTS}


def _found(
    wanted: dict[int, bytes], held: Sequence[Segment | None] | Sequence[DeviceSegment | None]
) -> dict[int, Leased]:
    return {i: s for i, s in zip(wanted, held, strict=True) if s is not None}


def _on_device(held: dict[int, Leased]) -> dict[int, DeviceSegment]:
    return {i: s for i, s in held.items() if isinstance(s, DeviceSegment)}
