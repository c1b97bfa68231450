"""How the transformers adapter computes a prompt: plainly, after a prefix, or with segments."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spliced_connector.client import (
    ANY_LOSS,
    Accept,
    Following,
    LossLimit,
    Query,
    Sample,
    ServedSegment,
    SpliceWay,
    WalkTiming,
    Way,
    beyond_max_loss,
    served_segments,
)
from spliced_connector.errors import SplicedError
from spliced_connector.hf.paged import Loan
from spliced_connector.hf.reuse import Found, Kept, Reuse
from spliced_connector.hf.turns import Turn, base_of
from spliced_connector.model import (
    NOTHING,
    Choice,
    Plan,
    Prompt,
    Span,
    SpanKind,
    all_primed,
    choose,
    make_plan,
    turn_ends,
)
from spliced_connector.serving.composing import DamagedError
from spliced_connector.walk import Context, GoneError, pieces, prefill, prefill_turn

_WATCH_SECONDS = 1.0
"""Longest time of one `watch` request, which waits for segments that other engines compute. The
reply comes sooner if one of these segments is computed or lost."""


@dataclass(frozen=True)
class Request:
    """A prompt, cut into segments, that is to be computed up to token `upto`. accept: the kinds of
    states from which the computation may continue. max_error: the largest permitted error of a
    segment; None: any."""

    ids: list[int]
    cuts: tuple[int, ...]
    prompt: Prompt
    upto: int
    accept: Accept
    block_tokens: int
    keep_all: bool
    parallel_tokens: int = 0
    """If at least this number of tokens is missing, other engines are asked to compute segments.
    0: they are never asked."""
    max_error: float | None = None
    limit: LossLimit = LossLimit()  # noqa: RUF009  (frozen)
    """The loss that is accepted. Of its `way`, only `refreshed` is set here: whether the last
    segments are computed in context. `Reuse.look_up` sets `primed`."""
    narrow: bool = False
    """Whether seams are narrower than the seams for which losses are counted."""
    counted: bool = True
    """Whether the canary counts this request's first token for the loss."""

    def positions(self, ends: Collection[int]) -> list[int]:
        """Returns where earlier requests may have saved a state: at blocks, the application's cuts,
        the end of a turn, or before the last token of the same prompt."""
        n = len(self.ids)
        named = {*range(self.block_tokens, n, self.block_tokens), *self.cuts, n - 1}
        return sorted({p for p in (*named, *turn_ends(self.ids, ends)) if 0 < p < n})


@dataclass
class Walked:
    """A context at the request's `upto`, the hidden rows that were computed last, and the cost.

    The cost in tokens: `computed` in context, `reused` from the cache, and `captured` in isolation.
    Of the reused tokens, other engines have computed `elsewhere` for this request, and `on_device`
    come from copies on the model's GPU.
    """

    context: Context
    hidden: Tensor | None
    computed: int
    reused: int = 0
    captured: int = 0
    elsewhere: int = 0
    on_device: int = 0
    trouble: str = ""
    plan: Plan | None = None
    kept: Kept | None = None
    loan: Loan | None = None
    """The leases of the segments that the context's pages read; None without pages."""
    begin: int = 0
    """Number of the reused tokens that come from a checkpoint."""
    found: Found | None = None
    segments: tuple[ServedSegment, ...] = ()
    """What became of each segment."""
    way: SpliceWay | None = None
    """The way of splicing for which the canary counts this request; None: it counts for no way."""
    loss: float | None = None
    """The loss that the daemon expects of this splice; None: unknown."""


def plainly(reuse: Reuse, request: Request, trouble: str, kept: Kept | None = None) -> Walked:
    """Computes all tokens, because of `trouble`. Segments that were captured before stay in `kept`,
    so that they are published."""
    context = Context(reuse.arch, len(request.ids), reuse.device)
    hidden = prefill(reuse.arch, request.ids[: request.upto], context)
    captured = 0 if kept is None else kept.captured
    if kept is not None:
        kept.checkpoints, kept.parent, kept.turn = [], (NOTHING, 0), None
        kept.spare = []
    return Walked(context, hidden, request.upto, captured=captured, trouble=trouble, kept=kept)


def by_prefix(reuse: Reuse, request: Request) -> Walked:
    """Continues the longest saved prefix, and keeps states at positions that the daemon advises."""
    ids, upto = request.ids, request.upto
    nothing = Prompt(len(ids), ())
    positions = request.positions(reuse.ends)
    query = Query(ids, cuts=tuple(c for c in request.cuts if c))
    found = reuse.look_up(positions, nothing, request.accept, query)
    context, kept = _begin(reuse, request, found)
    begin, started = context.tokens, reuse.now()
    stops = found.saves(request.keep_all)
    base = _base(reuse, request, context, kept)
    if base is not None and stops and stops[-1] > base:
        # Later prompts find the turn's rows at positions after the base, which need no states.
        # If the rows cannot be saved, the states at these positions are saved after all.
        kept.spared = [s for s in stops if s > base and s not in request.cuts]
        stops = sorted({s for s in stops if s not in kept.spared} | {base})
    hidden = _advance(reuse, ids, context, kept, stops, upto, base)
    if begin < upto:
        reuse.measured(Sample(begin, upto, reuse.now() - started))
    return Walked(
        context,
        hidden,
        upto - begin,
        begin,
        trouble=found.match.trouble or found.unadvised,
        kept=kept,
        begin=begin,
        found=found,
    )


def by_segments(reuse: Reuse, request: Request) -> Walked:
    """Continues the longest saved prefix. After it, places segments that are cached or worth
    capturing, and computes all other tokens in context."""
    ids, prompt = request.ids, request.prompt
    positions = request.positions(reuse.ends)
    # A splice has states only before the first segment and at the end, so only these are offered.
    ends = tuple(sorted({c for c in (*request.cuts[:1], request.upto) if c}))
    query = Query(ids, block_tokens=1, cuts=ends)
    found = reuse.look_up(
        positions,
        prompt,
        request.accept,
        query,
        request.max_error,
        request.limit,
        known=not request.narrow,
    )
    prompt = found.prompt
    context, kept = _begin(reuse, request, found)
    begin, before_spliced = context.tokens, context.spliced
    _lead(reuse, request, found, context, kept)
    led = context.tokens - begin
    wanted = [False] * len(prompt.pieces)
    if not found.trouble:
        wanted = found.wanted(prompt, request.keep_all)
    there = found.held(prompt, request.max_error)
    takes = found.takes(prompt, any(wanted), request.keep_all)
    there = [one and taken for one, taken in zip(there, takes, strict=True)]
    wanted = [one and taken for one, taken in zip(wanted, takes, strict=True)]
    if found.trouble:
        there = [False] * len(there)
    chosen = choose(prompt, context.tokens, there, wanted)
    choices = _judged(reuse, request, found, chosen)
    trouble = found.trouble or found.unadvised
    if choices != chosen and not found.trouble:  # the loss of another way is known
        trouble = beyond_max_loss(None, found.limit.max_loss)
    others = None
    if request.parallel_tokens and not found.trouble:
        others = reuse.share(ids, prompt, choices, context.tokens, request.parallel_tokens)
    # Captures take long, so they come before the leases: a lease must outlive its use.
    choices, elsewhere = _together(reuse, kept, prompt, choices, others)
    taken, walked = time.monotonic(), reuse.now()
    held, pages = reuse.acquire(prompt, choices)
    loan = placement = None
    why = ""
    try:
        placement = reuse.placement(prompt, held, pages is not None, request.max_error)
        placement.own.update((piece.index, captured) for piece, captured in kept.segments)
        choices = _judged(reuse, request, found, _without_misses(choices, placement))
        plan = make_plan(prompt, context.tokens, choices)
        spans = _until(plan.spans, request.upto)
        before = context.tokens
        hidden, every = None, torch.tensor(ids, device=reuse.device)
        for walk in pieces(spans):
            hidden = placement.splice(every, walk, context, pages)
        if not placement.odd:
            reuse.measured(_timing(spans, before, reuse.now() - walked))
        loan = kept.loan = reuse.lend(held, taken, context)
    except (SplicedError, GoneError) as err:
        why = f"segments on the GPU: {err}"
    except DamagedError as err:
        why = f"a leased segment: {err}"
    finally:
        if placement is not None:
            placement.clear()
        good = reuse.release(held) if loan is None else loan.good
    if not good:
        why = why or "a lease ended before its segment was read"
    if why:
        if loan is not None:
            loan.end()
        kept.loan = loan = None
        del context  # free its memory before the prompt is computed
        reuse.computes(ids, why)
        return plainly(reuse, request, why, kept)
    reuse.count(held)
    _keep(kept, context, found.saves(request.keep_all))
    way = _way(reuse, found, choices)
    known = way == found.limit.way and any(s.segment in held for s in spans)
    return Walked(
        context,
        hidden,
        computed=led + sum(s.length for s in spans if s.kind is SpanKind.RECOMPUTE),
        reused=begin + sum(s.length for s in spans if s.segment in held),
        captured=kept.captured,
        elsewhere=sum(s.length for s in spans if s.segment in held and s.segment in elsewhere),
        trouble=trouble,
        plan=plan,
        kept=kept,
        loan=loan,
        begin=begin,
        found=found,
        segments=served_segments(
            prompt,
            found.match,
            {s.segment: (s.start, s.length) for s in spans if s.segment in held},
        ),
        way=way if request.counted and not before_spliced else None,
        loss=found.loss.expected if known else None,
    )


def _way(reuse: Reuse, found: Found, choices: Sequence[Choice]) -> SpliceWay:
    """Returns the way of splicing that these choices amount to. Losses are counted by way."""
    pairs = zip(found.prompt.pieces, choices, strict=True)
    used = [piece for piece, choice in pairs if choice in (Choice.HIT, Choice.ISOLATED)]
    return replace(found.limit.way, primed=all_primed(used, reuse.lead))


def _judged(
    reuse: Reuse, request: Request, found: Found, choices: tuple[Choice, ...]
) -> tuple[Choice, ...]:
    """Returns the choices. If the loss is limited, and the daemon has estimated the loss of another
    way of splicing than these choices, returns choices without any segment."""
    if request.limit.max_loss >= ANY_LOSS or _way(reuse, found, choices) == found.limit.way:
        return choices
    return tuple(
        Choice.CONTEXT if choice in (Choice.HIT, Choice.ISOLATED) else choice for choice in choices
    )


def _together(
    reuse: Reuse,
    kept: Kept,
    prompt: Prompt,
    choices: tuple[Choice, ...],
    others: Following | None,
) -> tuple[tuple[Choice, ...], frozenset[int]]:
    """Captures the chosen segments, and segments that other engines were to compute but did not.
    Returns the choices after that, and the indices of segments that other engines have computed."""
    if others is None:
        reuse.capture(kept, prompt, choices)
        return choices, frozenset()
    own, away = frozenset(others.plan.own_keys), others.plan.away
    planned = {row.key for row in others.plan.rows}
    choices = tuple(
        (Choice.ISOLATED if piece.key in own else Choice.HIT) if piece.key in planned else choice
        for piece, choice in zip(prompt.pieces, choices, strict=True)
    )
    try:
        reuse.capture(kept, prompt, choices)
        while others.left:
            lost = others.watch(_WATCH_SECONDS).lost
            late = [piece.index for piece in prompt.pieces if piece.key in lost]
            choices = tuple(Choice.ISOLATED if i in late else c for i, c in enumerate(choices))
            only = [c if i in late else Choice.CONTEXT for i, c in enumerate(choices)]
            reuse.capture(kept, prompt, only)
            away -= lost
    finally:
        others.close()
    return choices, frozenset(piece.index for piece in prompt.pieces if piece.key in away)


def _without_misses(choices: tuple[Choice, ...], segments: Container[int]) -> tuple[Choice, ...]:
    """Returns choices in which hits that could not be leased are computed in context.

    If there is such a hit, captured segments are computed in context as well, because the daemon
    may have switched splicing off meanwhile. The captured segments are then only published.
    """
    lost = {i for i, c in enumerate(choices) if c is Choice.HIT and i not in segments}
    if not lost:
        return choices
    return tuple(
        Choice.CONTEXT if i in lost or choice is Choice.ISOLATED else choice
        for i, choice in enumerate(choices)
    )


def _begin(reuse: Reuse, request: Request, found: Found) -> tuple[Context, Kept]:
    """Returns the context after the longest saved prefix, or an empty context."""
    kept = Kept(request.ids, request.accept)
    way = found.way(request.keep_all)
    if way is Way.RECOMPUTE:
        return Context(reuse.arch, len(request.ids), reuse.device), kept
    context = reuse.load(found, request.ids, request.accept, way)
    if context is None or context.tokens > request.upto:
        return Context(reuse.arch, len(request.ids), reuse.device), kept
    # New checkpoints extend the last checkpoint that has states, not the nodes of a turn, which
    # have rows of single tokens.
    states = min(context.tokens, found.match.prefix_states)
    name = (
        found.hashes[found.match.prefix_index]
        if states == found.match.prefix_tokens
        else reuse.name(request.ids, states)
    )
    kept.parent = (name, states)
    return context, kept


def _lead(reuse: Reuse, request: Request, found: Found, context: Context, kept: Kept) -> None:
    """Computes the tokens before the first segment, if their state is worth a checkpoint."""
    first = request.cuts[0] if request.cuts else 0
    if context.tokens < first <= request.upto and first in found.saves(request.keep_all):
        _advance(reuse, request.ids, context, kept, [first], first)


def _base(reuse: Reuse, request: Request, context: Context, kept: Kept) -> int | None:
    """Returns the token at which the rows of the last turn begin; None if no rows are kept."""
    if context.spliced or not reuse.turns.most or not reuse.model.keeps_turns:
        return None
    return base_of(
        request.ids,
        request.upto,
        context.tokens,
        kept.parent[1] == context.tokens,
        reuse.ends,
        request.block_tokens,
        reuse.turns.most,
    )


def _advance(
    reuse: Reuse,
    ids: list[int],
    context: Context,
    kept: Kept,
    stops: Sequence[int],
    upto: int,
    base: int | None = None,
) -> Tensor | None:
    """Computes the tokens up to `upto`. Keeps a copy of the state at every stop on the way, and the
    rows of the tokens after `base`. Returns the hidden rows that were computed last."""
    hidden, rows, state = None, None, None
    at = {*stops, *kept.spared, upto} if base is None else {*stops, *kept.spared, base, upto}
    for stop in sorted(s for s in at if context.tokens < s <= upto):
        if base is not None and context.tokens >= base:
            hidden, more = prefill_turn(reuse.arch, ids[:stop], context)
            rows = more if rows is None else rows.joined(more)
        else:
            hidden = prefill(reuse.arch, ids[:stop], context)
        _keep(kept, context, stops)
        if context.tokens in kept.spared and kept.keeps(context):
            kept.spare.append(context.snapshot())
        if context.tokens == base and base not in stops:
            state = context.snapshot()
    if base is not None and rows is not None:
        kept.turn = Turn(base, rows, context.snapshot(), state)
    return hidden


def _keep(kept: Kept, context: Context, wanted: Sequence[int]) -> None:
    """Keeps a copy of the context's state, if its position is wanted and not stored yet."""
    if kept.held < context.tokens in wanted and kept.keeps(context):
        kept.checkpoints.append(context.snapshot())


def _timing(spans: Sequence[Span], begin: int, seconds: float) -> Sample | WalkTiming:
    """Returns a measurement for the daemon: of a walk over spans after `begin` tokens that took
    `seconds`, or of a prefill if no segment was placed."""
    placed = sum(s.length for s in spans if s.kind is SpanKind.SEGMENT)
    rows = sum(s.length for s in spans) - placed
    if not placed:
        return Sample(begin, begin + rows, seconds)
    return WalkTiming(rows, placed, seconds)


def _until(spans: Sequence[Span], upto: int) -> list[Span]:
    """Returns the spans without the tokens from `upto` on."""
    out = [s for s in spans if s.start < upto]
    if out and out[-1].end > upto:
        last = out[-1]
        out[-1] = Span(last.kind, last.start, upto - last.start, last.segment)
    return out
