"""Mode prefix in the scheduler's process: reuse after exactly the same leading tokens.

A checkpoint after token p has all rows of [0, p) and every recurrent state after p. The scheduler's
half claims the longest checkpoint that the daemon has: it promises these tokens to the engine. The
claim is asynchronous, because in the step of a synchronous claim vLLM copies the state block before
it calls a connector. A load begins and ends in the same step.

States exist only where a step ends. So the scheduler's half moves the engine's own stop for shared
prefixes (`Request.shared_prefix_boundary`) to the next position that the daemon wants stored.

Answers are stored like prompts: decoding ends a step at every block boundary, and prefix hashes are
extended with the tokens. So the next turn of a conversation continues after the last whole block of
the answer.

Mode splice can continue at any token. For that mode the state after each prompt is stored too, and
looked up at the starts of the conversation's answers.

With speculative decoding, a step's last tokens may be rejected, but not those before the step. If a
step begins at a block boundary, the engine has kept a copy of the state there, as for its own
prefix cache. States at other boundaries in an answer are not stored.

An engine with 16-bit states rounds them at each token that it decodes. Then no state of an answer
is stored, and no state of a prompt that continues from such a state in the engine's own cache.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spliced_connector.client import (
    UNADVISED,
    Accept,
    Advice,
    Lookup,
    Match,
    Query,
    Way,
)
from spliced_connector.model import PrefixNames, answer_starts, turn_ends
from spliced_connector.serving.asking import match_and_advise
from spliced_connector.serving.cuts import CutsError
from spliced_connector.serving.decider import MOST_POSITIONS, NEXT_TOKENS, Named
from spliced_connector.serving.finding import cuts_of
from spliced_connector.serving.telling import Served
from spliced_connector.vllm.clock import PrefillClock, computed_before
from spliced_connector.vllm.plans import Blocks, LoadPlan, Outcome, PrefixPlan, SavePlan
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.support import Engine, Inert
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

_MOST_STARTS = 64
"""A state is looked up at the start of at most this number of answers of a conversation, the latest
ones."""
_MATCH_SECONDS = 0.1
"""Seconds for which the daemon's answer is reused while a request waits to be scheduled."""


@dataclass(slots=True)
class Prompt:
    """What the scheduler's half knows about the prompt of one request."""

    request: Request
    namer: PrefixNames
    names: dict[int, bytes]  # hashes by ascending position; in the answer, only of stored states
    tokens: int  # number of prompt tokens
    block: int  # tokens of a block
    found: Match = field(default_factory=Match)
    asked: float = 0.0
    """When the daemon was last asked, a time of `time.monotonic`; 0 = never."""
    held: int = 0
    """Number of leading tokens that the daemon has or will soon have."""
    wanted: list[int] | None = None
    """Positions to store, ascending; None before the daemon was asked."""
    compute: bool = False
    """Whether the daemon advises to compute the prompt, because loading is no faster."""
    lost: bool = False
    """Whether a load has failed. The engine then computes this prompt."""
    answered: int = 0
    """The last block boundary in the answer for which the daemon was asked."""
    claimed: int = 0
    """Leading tokens that the engine has with the daemon's prefix, including the engine's own; 0 =
    no prefix was claimed."""
    stored: int = 0
    """Number of checkpoints that were passed on for storing."""
    spliced: bool = False
    """Whether segments were composed into the state from which the engine continues."""
    predicted: tuple[float, ...] = ()
    """`Advice.predicted` of the daemon's advice."""
    decided: float = 0.0
    """Seconds spent on asking the daemon."""
    trouble: str = ""
    """Why the daemon did not help, as a text for the caller."""

    @property
    def before(self) -> list[int]:
        """Returns the positions at which a prefix can be reused. The last token is always computed,
        because its output is the first token of the answer."""
        return [p for p in self.names if p < self.tokens]

    @property
    def boundaries(self) -> list[int]:
        """Returns the positions of `before` where a block ends."""
        return [p for p in self.before if p % self.block == 0]


class NoPrefixes:
    """Takes the place of a `PrefixScheduler` in mode splice, for an engine that has no recurrent
    states at block boundaries: no prefix is found, and none is stored."""

    advised = False

    def __init__(self, pipelined: bool) -> None:
        self.clock = PrefillClock(pipelined)

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        return 0, False

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None: ...

    def plan(self, step: SchedulerOutput) -> PrefixPlan | None:
        return None

    def settled(self, outcome: Outcome) -> None: ...

    def served(self, report: Served) -> Served:
        return report

    def finished(self, request: Request) -> dict[str, object] | None:
        return None

    def replaced(self, request_id: str, held: int, spliced: bool) -> None: ...

    def named(self, request: Request) -> Named:
        return Named()

    def computes(self, request: Request) -> bool:
        return True

    def tell(self, request: Request, found: Match, advice: Advice | None) -> None: ...


class PrefixScheduler:
    """Finds prefixes and decides where to store new ones. Raises Inert for an engine that has no
    recurrent states at block boundaries."""

    advised = True  # requests without advice are counted here

    def __init__(self, session: Session, turns: bool = False) -> None:
        """turns: also store the states after prompts, and look states up where answers begin."""
        check_prefixes(session.engine)
        self._session = session
        self._turns = turns
        self._prompts: dict[str, Prompt] = {}
        self._loads: list[LoadPlan] = []
        self.clock = PrefillClock(session.engine.pipelined)

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns the tokens of the longest stored prefix beyond the engine's own."""
        prompt = self.open(request)
        if prompt is None:
            return 0, False
        if not prompt.lost:
            self._ask(prompt)
        tokens = prompt.found.prefix_tokens
        claims = not prompt.lost and not prompt.compute and tokens > computed
        # After a prefix that ends inside a block, the engine would cache blocks whose states were
        # never written.
        exact = prompt.found.prefix_kind == Accept.EXACT
        claims = claims and exact and tokens % prompt.block == 0
        self._steer(prompt, tokens if claims else computed)
        return (tokens - computed, True) if claims else (0, False)

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        prompt = self._prompts.get(request.request_id)
        if external == 0 or prompt is None:
            return
        prompt.claimed = tokens = prompt.found.prefix_tokens
        if self._session.rounding is not None:
            self._session.rounding.replaced(request.request_id)
        self._session.tally.add("matched_tokens", external)
        self._loads.append(
            LoadPlan(request.request_id, prompt.names[tokens], tokens, tokens - external, blocks)
        )

    def plan(self, step: SchedulerOutput) -> PrefixPlan | None:
        """Returns the claimed loads, and the checkpoints that the step will reach."""
        loads, self._loads = tuple(self._loads), []
        computed = computed_before(step)
        saves: list[SavePlan] = []
        for request_id, tokens in step.num_scheduled_tokens.items():
            prompt = self._prompts.get(request_id)
            if prompt is None:
                continue
            begin, end = computed[request_id], computed[request_id] + tokens
            kept = self._kept(prompt, begin, end)
            if prompt.wanted and self._rounded(prompt, 0):
                prompt.wanted = []
            if end >= prompt.tokens:
                saves += self._answer(prompt, kept, step)
            if prompt.wanted:
                saves += self._saves(prompt, end, kept, step)
                self._steer(prompt, end)
        self.clock.step(step, busy=bool(loads or saves))
        return PrefixPlan(loads, tuple(saves)) if loads or saves else None

    def settled(self, outcome: Outcome) -> None:
        self.clock.end()
        for request_id in outcome.failed:
            if self._session.rounding is not None:
                self._session.rounding.lost(request_id)
            prompt = self._prompts.get(request_id)
            if prompt is not None:
                # A prefix that could not be loaded cannot be the parent of a checkpoint either.
                prompt.lost, prompt.held, prompt.claimed = True, 0, 0
                prompt.spliced = False

    def served(self, report: Served) -> Served:
        prompt = self._prompts.get(report.name)
        if prompt is None:
            return report
        return replace(
            report,
            prefix=max(0, prompt.claimed - report.engine),
            found=prompt.found,
            predicted=prompt.predicted,
            decided=prompt.decided,
        )

    def finished(self, request: Request) -> dict[str, object] | None:
        """Handles the end of a request. If the answer has reached a block boundary, the daemon
        records it, to learn which requests return. Returns the outcome of the request for its
        response."""
        prompt = self._prompts.pop(request.request_id, None)
        if prompt is None:
            return None
        if prompt.answered:
            self._advises_save(prompt, list(request.all_token_ids), record=True)
        summary: dict[str, object] = {"way": "prefix", "tokens": prompt.claimed}
        if not prompt.claimed:
            summary = {"way": "recomputed" if prompt.lost else "engine"}
            summary |= {"trouble": prompt.trouble} if prompt.trouble else {}
        return {"spliced": {**summary, "stored": prompt.stored}}

    def pending(self) -> bool:
        return False

    def bind(self, manager: KVCacheManager) -> None:
        """Does nothing: each call of `match` says what the engine has of a prompt."""

    def close(self) -> None:
        """Does nothing: no blocks are pinned."""

    def replaced(self, request_id: str, held: int, spliced: bool) -> None:
        """Records that the engine's state of a request was replaced.

        held: how many leading tokens the daemon has. spliced: whether segments were composed into
        the state.
        """
        prompt = self._prompts.get(request_id)
        if prompt is None:
            return
        prompt.held, prompt.claimed, prompt.spliced = held, 0, spliced
        if self._session.rounding is not None and not spliced:
            self._session.rounding.replaced(request_id)
        prompt.wanted = self._next(prompt)

    def open(self, request: Request) -> Prompt | None:
        """Returns the prompt of a request, with the hashes of its prefixes. None before a daemon
        was attached, because the hashes depend on its salt."""
        known = self._prompts.get(request.request_id)
        return self._open(request) if known is None else known

    def named(self, request: Request) -> Named:
        """Returns the prefixes of a request that can be reused."""
        prompt = self.open(request)
        if prompt is None:
            return Named()
        before = prompt.before
        return Named(before, [prompt.names[p] for p in before])

    def computes(self, request: Request) -> bool:
        """Returns whether the engine computes the prefix of a request itself."""
        prompt = self.open(request)
        return prompt is None or prompt.compute

    def tell(self, request: Request, found: Match, advice: Advice | None) -> None:
        """Records the daemon's answer, if it was asked about prefixes and segments in one request.

        found: the result of the lookup of the positions that `named` returned.
        """
        prompt = self.open(request)
        if prompt is None:
            return
        prompt.asked = time.monotonic()
        prompt.found = found
        if found.prefix_kind == Accept.EXACT:  # checkpoints only extend exact ones
            prompt.held = max(prompt.held, found.prefix_tokens)
        self._follow(prompt, advice)

    def _open(self, request: Request) -> Prompt | None:
        salt = self._session.model.salt
        if salt is None:
            return None
        ids, step = request.prompt_token_ids, self._session.block_tokens
        positions: Sequence[int] = range(step, len(ids) + 1, step)[-MOST_POSITIONS:]
        if self._turns:
            starts = answer_starts(ids, _stops(request))[-_MOST_STARTS:]
            positions = sorted({*positions, *starts})
        namer = PrefixNames(self._session.model.profile, _salted(salt, request.cache_salt), step)
        names = dict(zip(positions, namer.name(ids, positions), strict=True))
        prompt = Prompt(request, namer, names, len(ids), step)
        self._prompts[request.request_id] = prompt
        return prompt

    def _ask(self, prompt: Prompt) -> None:
        """Asks the daemon which prefix it has, and the first time also what to store."""
        if not prompt.names:
            return  # shorter than a block, at least until its answer has grown
        now = time.monotonic()
        if prompt.asked and now - prompt.asked < _MATCH_SECONDS:
            return
        prompt.asked = now
        before, began, model = prompt.boundaries, time.perf_counter(), self._session.model
        lookup = Lookup(before, [prompt.names[p] for p in before])
        advice: Advice | None = None
        if prompt.wanted is None:
            prompt.found, advice = match_and_advise(model, lookup, lambda _: self._query(prompt))
        else:
            prompt.found = model.match(lookup.positions, lookup.prefixes)
        if prompt.found.trouble:
            self._session.tally.add("unanswered")
            prompt.trouble = "the daemon did not answer"
        prompt.held = max(prompt.held, prompt.found.prefix_tokens)
        if prompt.wanted is None:
            self._follow(prompt, advice)
        prompt.decided += time.perf_counter() - began
        prompt.wanted = [p for p in prompt.wanted or () if p > prompt.held]

    def _query(self, prompt: Prompt) -> Query:
        session = self._session
        return Query(
            tokens=prompt.request.prompt_token_ids,
            block_tokens=session.block_tokens,
            max_checkpoints=session.settings.max_checkpoints,
            cuts=self._boundaries(prompt.request),
            samples=self.clock.take(),
        )

    def _follow(self, prompt: Prompt, advice: Advice | None) -> None:
        if advice is None:
            self._session.tally.add("unadvised")
            prompt.trouble = prompt.trouble or UNADVISED
            return
        prompt.predicted = advice.predicted
        advised = {c.tokens for c in advice.checkpoints if c.save and c.tokens in prompt.names}
        prompt.wanted = sorted({p for p in advised if p > prompt.held}.union(self._next(prompt)))
        end = prompt.tokens
        if end in prompt.wanted and advice.seen_tokens >= end and self._stored(prompt, end):
            prompt.wanted.remove(end)
        prompt.compute = advice.way == Way.RECOMPUTE
        if prompt.compute and prompt.found.prefix_tokens:
            self._session.tally.add("not_worth_it")

    def _stored(self, prompt: Prompt, at: int) -> bool:
        """Returns whether the daemon has the state at position `at`, the end of the prompt. The
        prompt's lookup does not include that position, because the last token must be computed.
        Without this check, every repetition of the prompt would store the state again."""
        accept = Accept.ANY if self._turns else Accept.EXACT
        return self._session.model.match([at], [prompt.names[at]], (), accept).prefix_tokens == at

    def _next(self, prompt: Prompt) -> list[int]:
        """Returns the position where the next turn will continue, if a state there is worth
        storing."""
        at = prompt.tokens
        worth = self._turns and at in prompt.names and at - prompt.held >= NEXT_TOKENS
        return [at] if worth else []

    def _boundaries(self, request: Request) -> tuple[int, ...]:
        """Returns the positions where prompts may diverge: the cuts that the application names,
        else the first and the last boundary of the template or of a turn.

        After the first boundary the user's own text begins, so a state there serves other
        conversations. After the last one the answer begins, so a state there serves the next turn.
        """
        ids = request.prompt_token_ids
        try:
            named = cuts_of(self._session.finder, request.kv_transfer_params, ids, 0)
        except CutsError as err:
            self._session.tally.add("bad_cuts")
            log.warning("request %s: %s", request.request_id, err)
            named = None
        if named is not None and not named.found.cuts:
            return tuple(cut for cut in named.cuts if cut)
        if named is not None and "chunks" not in dict(named.found.by):  # chunks are no boundaries
            ends = tuple(cut for cut in named.cuts if cut)
        else:
            ends = turn_ends(ids, _stops(request))
        return tuple(sorted({*ends[:1], *ends[-1:]}))

    def _kept(self, prompt: Prompt, begin: int, end: int) -> Sequence[int]:
        """Returns the positions at which the step leaves everything that is needed to continue."""
        engine, known = self._session.engine, len(prompt.request.all_token_ids)
        if not engine.drafts:
            return begin, end
        if end <= prompt.tokens:
            return (end,)
        if begin >= known:  # assumes that all drafts of the previous step were accepted
            return ()
        return (begin if engine.states else begin - begin % self._session.block_tokens,)

    def _answer(self, prompt: Prompt, kept: Sequence[int], step: SchedulerOutput) -> list[SavePlan]:
        """Returns a save of the answer up to a block boundary at which the step begins or ends.

        An engine that plans a step before it knows the previous step's token learns the last token
        before a boundary one step late. At that time the state at the boundary is still unchanged.
        """
        block, ids = self._session.block_tokens, prompt.request.all_token_ids
        for at in kept:
            if at % block or at <= max(prompt.tokens, prompt.answered) or at > len(ids):
                continue
            prompt.answered = at
            if self._rounded(prompt, at):
                self._session.tally.add("rounded_states")
                continue
            if self._advises_save(prompt, list(ids[:at]), record=False):
                prompt.names[at] = prompt.namer.name(ids, [at])[0]
                return self._save(prompt, [at], step)
        return []

    def _rounded(self, prompt: Prompt, end: int) -> bool:
        """Returns whether decoding has rounded the state after the first `end` tokens. False for a
        spliced request, whose states are stored as approximations anyway."""
        rounding = self._session.rounding
        if rounding is None or prompt.spliced:
            return False
        return end > prompt.tokens or rounding.behind(prompt.request.request_id)

    def _advises_save(self, prompt: Prompt, ids: list[int], record: bool) -> bool:
        """Returns whether the daemon wants the state after `ids`: a prompt and a part of its
        answer."""
        advice = self._session.model.advise(
            Query(
                tokens=ids,
                output=len(ids) - prompt.tokens,
                record=record,
                block_tokens=self._session.block_tokens,
                max_checkpoints=1,
                match=Match(prompt.held),
            )
        )
        if advice is None:
            self._session.tally.add("unadvised")
            return False
        return any(c.save and c.tokens == len(ids) for c in advice.checkpoints)

    def _saves(
        self, prompt: Prompt, end: int, kept: Sequence[int], step: SchedulerOutput
    ) -> list[SavePlan]:
        """Returns the checkpoints to save after the step. Rows of all tokens remain in the engine,
        but the state only of the last token."""
        wanted, rows_only = prompt.wanted or [], not self._session.engine.states
        reached = [p for p in wanted if p in kept[-1:] or (p < end and rows_only)]
        prompt.wanted = [p for p in wanted if p > end]
        return self._save(prompt, reached, step)

    def _save(self, prompt: Prompt, reached: list[int], step: SchedulerOutput) -> list[SavePlan]:
        """Returns the saves of these positions, each the parent of the next. Empty if the blocks
        are gone."""
        state = step.kv_connector_block_state
        blocks = state.get_block_ids(prompt.request.request_id) if reached and state else None
        if blocks is None:
            return []
        table = tuple(tuple(row) for row in blocks)
        saves = []
        for tokens in reached:
            parent = prompt.names[prompt.held] if prompt.held else bytes(32)
            saves.append(
                SavePlan(
                    prompt.request.request_id,
                    prompt.names[tokens],
                    tokens,
                    parent,
                    prompt.held,
                    table,
                    prompt.spliced,
                )
            )
            prompt.held = tokens
        prompt.stored += len(saves)
        return saves

    def _steer(self, prompt: Prompt, computed: int) -> None:
        """Makes the next step end where a state is wanted, unless the engine already stops before
        that."""
        if not self._session.engine.states or not prompt.wanted:
            return
        target = next((p for p in prompt.wanted if p > computed and p % prompt.block == 0), 0)
        engines = getattr(prompt.request, "shared_prefix_boundary", None)
        if target and engines is not None and not computed < engines < target:
            prompt.request.shared_prefix_boundary = target


def check_prefixes(engine: Engine) -> None:
    """Raises Inert if the engine has no states at block boundaries."""
    if not engine.states:
        return
    if engine.cache_mode != "align":
        raise Inert(
            f"mode prefix needs recurrent states at block boundaries, the engine keeps"
            f" {engine.cache_mode!r}: start with --enable-prefix-caching --mamba-cache-mode align"
        )
    sizes = {group.block_tokens for group in engine.groups}
    if len(sizes) > 1:
        raise Inert(f"cache groups have blocks of {sorted(sizes)} tokens")


def _stops(request: Request) -> Collection[int]:
    """Returns the ids that end a turn."""
    sampling = request.sampling_params
    return () if sampling is None else sampling.all_stop_token_ids


def _salted(salt: bytes, request_salt: str | None) -> bytes:
    """Returns a salt that also depends on the request's cache salt. Without one, returns `salt`."""
    if request_salt is None:
        return salt
    return salt + b"\0request" + hashlib.sha256(request_salt.encode()).digest()
