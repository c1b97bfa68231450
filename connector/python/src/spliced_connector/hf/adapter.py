"""Reuse of segments and prefixes in transformers.

    engine = SplicedTransformers(model, client, Naming(weights_digest(directory)))
    first = engine.prefill(ids, cuts, mode="splice")      # logits of the last token, a Cache
    text = engine.generate(ids, cuts, mode="splice", max_new_tokens=32)

`cuts` are the boundaries of the prompt's segments; the query follows the last cut. Mode `prefix`
continues from saved states, and gives the same results as without a cache. Mode `splice` places
captured segments and recomputes the seams. Mode `none` is the model's own forward. If the daemon
is absent, slow or gone, a request waits for a bounded time. Then the prompt is computed, and
`Prefilled.trouble` says why.

`generate` keeps the state after its answer, so that the next turn of the conversation continues
from it. It keeps no state if the model's single-token steps leave other states than its prefill;
both are compared once. Only requests with accept=Accept.ANY keep spliced states and continue from
them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from spliced_connector.client import ANY_LOSS, Accept, Client, LossLimit, SpliceWay
from spliced_connector.errors import ProfileError
from spliced_connector.hf.cache import filled, read_back
from spliced_connector.hf.canary import Watch
from spliced_connector.hf.decode import Decoded, Drafter, decode, not_greedy
from spliced_connector.hf.device import Lent, Registered
from spliced_connector.hf.forward import CACHE_NAMES, cache_name, step
from spliced_connector.hf.modes import Request, Walked, by_prefix, by_segments, plainly
from spliced_connector.hf.paged import NAME, Loan, why_not
from spliced_connector.hf.reuse import Kept, Reuse, UnreliableError
from spliced_connector.hf.steps import unlike_prefill
from spliced_connector.hf.turns import Drafted, Reading, with_answer
from spliced_connector.hf.weights import Weights
from spliced_connector.hf.worker import Worker
from spliced_connector.model import Plan, PlanError, Profile, divide, keep_for_reuse
from spliced_connector.serving.composing import Composed
from spliced_connector.serving.offline import read_losses
from spliced_connector.serving.primers import primer_ids
from spliced_connector.serving.settings import Compute, ServingSettings
from spliced_connector.walk import (
    Architecture,
    Context,
    GoneError,
    Naming,
    UnsupportedError,
    architecture,
    prefill,
)

log = logging.getLogger("spliced")

Mode = Literal["none", "prefix", "splice"]

_LINES = ("num_beams", "num_return_sequences")
"""Options of `generate` that, if they are above 1, make it decode several sequences at once."""

_OTHER_CACHES = (
    *CACHE_NAMES,
    "cache_implementation",
    "assistant_model",
    "prompt_lookup_num_tokens",
)
"""Options of `generate` that pass a cache, or require one from which tokens can be removed."""


@dataclass(frozen=True)
class HFSettings:
    """How the adapter reuses states. The defaults are usable.

    seam_tokens: w, the tokens recomputed on either side of a join. tail_tokens: the tokens
    recomputed on the left side; None: w. 0 recomputes only what follows a join, as MEPIC does.
    block_tokens: checkpoints are at multiples of it, and after answers.
    keep_all: ignores the daemon's advice, to warm a cache. Every missing segment is captured, every
    position that the daemon names is saved, and everything that is cached is used.
    canary_share: the share of spliced prompts that is computed again after its answer.
    canary_changed: the share of changed first tokens that ends splicing; 0: no limit.
    canary_bound: the error of logits, relative to their spread, beyond which a comparison fails.
    Several failures end splicing.
    parallel: engines of other nodes may compute missing segments, if the tenant is allowed to and
    at least two segments and parallel_tokens tokens are missing.
    device_is_host_memory: the driver's device memory is memory of this process, as with the
    simulated driver of our tests, so a model on the CPU can use it. Copies on the model's GPU are
    used if the client has memory there (`Options.device`).
    resume: rows of the last turn's tokens are stored, in at most the bytes of one state. If a
    template rewrites the turn, the next prompt continues at the exact token where it differs.
    Applies to exact states in mode `prefix`, if no memory of a GPU is used.
    in_place: attention reads spliced segments in the daemon's memory, so that all requests of a
    process share one copy. A request then holds leases as long as its cache. It pays if many
    concurrent requests share segments.
    compute: who places leased segments: "engine" (this process), "daemon" (its kernels), or "auto"
    (the one that was quicker in five walks). On a GPU, the daemon writes the rows of prompts into
    at most registered_mib of memory, which is allocated for them and registered with the daemon.
    primer: token ids of a neutral passage. Segments with at least primer_after tokens before them
    in the prompt are captured after it.
    refresh: the share of the tokens of a prompt's segments that is always computed in context,
    beginning with the last segment (`keep_for_reuse`).
    max_loss, fidelity: as in `ServingSettings`.
    """

    seam_tokens: int = 8
    tail_tokens: int | None = None
    block_tokens: int = 16
    tenant: str = ""
    keep_all: bool = False
    canary_share: float = 0.0
    canary_bound: float = 0.25
    canary_changed: float = 0.1
    parallel: bool = False
    parallel_tokens: int = 1024
    device_is_host_memory: bool = False
    in_place: bool = False
    resume: bool = True
    compute: Literal["auto", "daemon", "engine"] = "engine"
    registered_mib: int = 512
    primer: tuple[int, ...] = ()
    primer_after: int = ServingSettings.primer_after
    refresh: float = 0.0
    max_loss: float = ANY_LOSS
    fidelity: str = ""

    def __post_init__(self) -> None:
        _check_loss(self.max_loss)


@dataclass(frozen=True)
class Terms:
    """What a request accepts: arguments of `SplicedTransformers.prefill`."""

    accept: Accept
    max_error: float | None
    max_loss: float | None

    def __post_init__(self) -> None:
        if self.max_loss is not None:
            _check_loss(self.max_loss)


def _check_loss(most: object) -> None:
    number = isinstance(most, int | float) and not isinstance(most, bool)
    if not number or not 0 <= cast(float, most) <= ANY_LOSS:
        raise PlanError(f"max_loss: {most!r}, want 0 to 1")


@dataclass
class Prefilled:
    """The result of a prefill, and its cost.

    `logits` [vocabulary] are the last token's. `cache` has `tokens` tokens; continue it by
    `SplicedTransformers.advance`, which passes positions. Tokens of the prompt are `computed` in
    context, `reused` from the daemon, or belong to segments that were captured first (`captured`
    counts all tokens of these segments). Of the reused tokens, engines of other nodes have computed
    `elsewhere` for this prompt, and `on_device` come from copies on the model's GPU.
    `approximate`: a segment was placed after other tokens. `trouble`: why the daemon was not used.
    `expected_loss`: the daemon's estimate for the splice, None if unknown.
    """

    logits: Tensor
    cache: Cache
    computed: int
    reused: int = 0
    captured: int = 0
    elsewhere: int = 0
    on_device: int = 0
    approximate: bool = False
    trouble: str = ""
    expected_loss: float | None = None
    plan: Plan | None = None
    walked: Walked | None = None
    loan: Loan | None = None
    tokens: int = 0

    @property
    def good(self) -> bool:
        """Whether all leased data that decoding has read was valid. Check this after a step; if it
        is False, compute the prompt again."""
        return self.loan is None or self.loan.good

    def release(self) -> bool:
        """Ends the leases of a cache that reads in place; the cache must not be used afterwards.
        Returns whether all data that was read was valid. Dropping the cache ends them as well."""
        return self.loan is None or self.loan.end()


class SplicedTransformers:
    """A causal language model of transformers that reuses states through the daemon.

    A model that is not supported is served without reuse in every mode; `inert` says why. Before
    each request, and before its results are stored, every byte of the weights is compared with the
    weights that were named. Once they differ, nothing is shared any more. Only one thread at a time
    may use this object. The model must stay in evaluation mode.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        client: Client,
        naming: Naming,
        settings: HFSettings = HFSettings(),
    ) -> None:
        self.model = model
        self.settings = settings
        self.inert = ""
        self.drafted: Decoded | None = None
        """Answer and cost of the last `generate` with a drafter; None if no drafter was used."""
        self._reuse: Reuse | None = None
        self._unlike: str | None = None
        try:
            arch = architecture(model, naming)
            self._weights = Weights(model)
            filled(model, arch, Context(arch, 0, model.device))
            profile = Profile(arch.identity)
            registered = self._registered(profile, client, model.device)
            spliced = client.model(
                profile,
                settings.tenant,
                block_tokens=settings.block_tokens,
                connector="transformers",
                engine=type(model).__name__,
                memory=None if registered is None else registered.memory,
            )
            on_host = settings.device_is_host_memory
            lent = Lent(arch, client, spliced, model.device, is_host_memory=on_host)
            in_place = settings.in_place and self._reads_pages(arch)
            embedded = model.get_input_embeddings().weight.shape[0]
            primer = primer_ids(settings.primer, None, arch.identity, embedded)
            seams, after = settings.seam_tokens, settings.primer_after
            losses = read_losses(settings.fidelity, lambda: naming.weights, primer, seams, after)
            spliced.measured_offline(losses)
            self._reuse = Reuse(
                arch,
                spliced,
                model.device,
                _answer_ends(model),
                lent,
                in_place,
                settings.resume,
                Compute(settings.compute),
                registered,
                primer,
                settings.primer_after,
            )
            self._watch = Watch(
                arch,
                spliced,
                settings.canary_share,
                settings.canary_bound,
                settings.canary_changed,
            )
        except (UnsupportedError, ProfileError) as err:
            self.inert = str(err)
            log.warning("%s is served without reuse: %s", type(model).__name__, err)

    def _registered(
        self, profile: Profile, client: Client, device: torch.device
    ) -> Registered | None:
        """Returns GPU memory into which the daemon may write rows; None if the engine is to place
        segments, or the model is not on a GPU."""
        settings = self.settings
        on_host = settings.device_is_host_memory
        if Compute(settings.compute) is Compute.ENGINE or not (on_host or device.type == "cuda"):
            return None
        return Registered(
            profile,
            client.options.device,
            device,
            settings.block_tokens,
            settings.registered_mib << 20,
            is_host_memory=on_host,
        )

    def _reads_pages(self, arch: Architecture) -> bool:
        """Makes the model attend over pages, if it can. Returns whether it does."""
        why = why_not(self.model, arch)
        if why:
            log.warning("segments of %s are copied: %s", type(self.model).__name__, why)
        else:
            self.model.set_attn_implementation(NAME)
        return not why

    def prefill(
        self,
        ids: Sequence[int] | Tensor,
        cuts: Sequence[int] = (),
        mode: Mode = "none",
        *,
        keep: bool = True,
        accept: Accept = Accept.EXACT,
        max_error: float | None = None,
        max_loss: float | None = None,
    ) -> Prefilled:
        """Computes a prompt. Raises `PlanError` for cuts, or a max_loss, that can never be valid.

        max_error: the largest error of a reused segment against its capture, relative to the norm
        (see tolerance in `Naming`); 0 accepts only unchanged segments, None any error. max_loss:
        the loss of accuracy that is accepted from a splice; None: as in the settings. Captured
        segments and checkpoints are stored before the return. With keep=False, `store` stores them,
        so that the first token need not wait.
        """
        tokens, terms = _plain(ids), Terms(accept, max_error, max_loss)
        reuse = self._serving()
        if mode == "none" or reuse is None:
            return self._own(tokens)
        with torch.no_grad():
            walked = self._walk(reuse, tokens, cuts, mode, len(tokens), terms)
            if walked.hidden is None:
                raise RuntimeError("no row of the prompt was computed")
            logits = reuse.arch.logits(walked.hidden[-1:])[0]
        out = self._prefilled(reuse, walked, logits)
        if keep:
            self.store(out)
        return out

    def advance(self, done: Prefilled, ids: Sequence[int] | Tensor) -> Tensor:
        """Computes the tokens that follow a prefill, one at a time, into its cache.

        Returns the logits [vocabulary] of the last token. Use it for a few tokens, such as sampled
        ones; for a longer text, a `prefill` of all tokens in mode "prefix" is quicker. Raises
        `UnsupportedError` if the library's steps differ from a prefill (`steps_differ`), and
        `GoneError` if rows that are read in place are gone.
        """
        if why := self.steps_differ:
            raise UnsupportedError(f"{why}: prefill the tokens with those before them")
        line = torch.tensor(_plain(ids), device=self.model.device)
        logits = done.logits
        with torch.no_grad():
            for token in line.split(1):
                logits = step(self.model, done.cache, token, done.tokens)
                done.tokens += 1
        return logits

    @property
    def steps_differ(self) -> str:
        """Why the model's single-token steps leave other states than a prefill; empty if they do
        not. The first access compares them, by a few dozen steps."""
        if self._unlike is None:
            self._unlike = (
                "" if self._reuse is None else unlike_prefill(self.model, self._reuse.arch)
            )
            if self._unlike:
                name = type(self.model).__name__
                log.warning("states after answers of %s are not kept: %s", name, self._unlike)
        return self._unlike

    def generate(
        self,
        ids: Sequence[int] | Tensor,
        cuts: Sequence[int] = (),
        mode: Mode = "none",
        *,
        accept: Accept = Accept.EXACT,
        max_error: float | None = None,
        max_loss: float | None = None,
        drafter: Drafter | None = None,
        **options: object,
    ) -> Tensor:
        """Calls the model's own `generate` after a reused prompt, with its options. Returns [1,
        tokens].

        The model computes the prompt's last token, so that its logits are processed like all
        others. In some cases the model's `generate` computes the whole prompt: a model without
        attention accepts no cache, and beams, several answers and options with other caches cannot
        continue one.

        With a drafter, the answer is decoded greedily, several tokens at a time if guesses are
        right. It has the same tokens up to rounding; `drafted` has the counts. If an option would
        choose other tokens, the drafter is not used.
        """
        tokens, terms = _plain(ids), Terms(accept, max_error, max_loss)
        if drafter is not None:
            answer = self._drafted(tokens, cuts, mode, terms, drafter, options)
            if answer is not None:
                return torch.tensor([tokens + answer.tokens], device=self.model.device)
        line = torch.tensor([tokens], device=self.model.device)
        mask = torch.ones_like(line)

        def plain() -> Tensor:
            return cast(Tensor, self.model.generate(line, attention_mask=mask, **options))

        reuse = self._serving()
        usable = reuse is not None and reuse.attends and len(tokens) > 1
        if mode == "none" or reuse is None or not usable or self._branches(options):
            return plain()
        with torch.no_grad():
            walked = self._walk(reuse, tokens, cuts, mode, len(tokens) - 1, terms)
            cache = filled(self.model, reuse.arch, walked.context, walked.loan)
        out, turn = None, None if walked.kept is None else walked.kept.turn
        room = 0 if turn is None else turn.base + reuse.turns.most - turn.rows.end
        reading = Reading(reuse.arch, room)
        try:
            handed: dict[str, object] = {cache_name(self.model): cache}
            with reading:
                out = self.model.generate(line, attention_mask=mask, **handed, **options)
        except GoneError as err:
            log.warning("answer of %d tokens computed again: %s", len(tokens), str(err))
        if out is None:
            if walked.loan is not None:
                walked.loan.end()
            del walked, cache  # free their memory before the answer is computed again
            return plain()
        if walked.kept is not None and self._serving() is not None:
            answered = _plain(getattr(out, "sequences", out))
            self._keep_answer(reuse, walked, walked.kept, cache, answered, reading)
            reuse.store(walked.kept)
        if self._serving() is not None:
            self._watch.look(tokens, walked.context, walked.way)
        if walked.loan is not None and not walked.loan.end():
            log.warning("answer of %d tokens computed again: a lease ended early", len(tokens))
            return plain()
        return cast(Tensor, out)

    def _drafted(
        self,
        tokens: list[int],
        cuts: Sequence[int],
        mode: Mode,
        terms: Terms,
        drafter: Drafter,
        options: Mapping[str, object],
    ) -> Decoded | None:
        """Returns an answer that was decoded with drafts; None if that is not possible."""
        self.drafted, reuse, config = None, self._serving(), self.model.generation_config
        given = options.get("max_new_tokens", getattr(config, "max_new_tokens", None))
        why = not_greedy(config, options) if isinstance(given, int) else "max_new_tokens"
        if reuse is None or why or not isinstance(given, int):
            log.warning("decoded without drafts: %s", self.inert if reuse is None else why)
            return None
        ends = options.get("eos_token_id")
        named = [ends] if isinstance(ends, int) else cast("list[int] | None", ends)
        stop = reuse.ends if named is None else frozenset(named)
        with torch.no_grad():
            if mode == "none":
                context = Context(reuse.arch, len(tokens) + given, reuse.device)
                walked = Walked(context, prefill(reuse.arch, tokens, context), len(tokens))
            else:
                walked = self._walk(reuse, tokens, cuts, mode, len(tokens), terms)
            if walked.hidden is None:
                return None
            logits = reuse.arch.logits(walked.hidden[-1:])[0]
            before, context = walked.context.snapshot(), walked.context
            extend = (lambda: None) if walked.loan is None else walked.loan.extend
            turn = None if walked.kept is None else walked.kept.turn
            rows = Drafted(turn, reuse.turns.most)
            try:
                out = decode(
                    reuse.arch, context, tokens, logits, drafter, given, stop, extend, rows.accepted
                )
            except GoneError as err:
                log.warning("answer of %d tokens computed again: %s", len(tokens), err)
                return None
        if walked.kept is not None and self._serving() is not None:
            if self._keep_state(reuse, walked.kept, context, tokens + out.tokens):
                whole = rows.turn(context)
                walked.kept.turn = None if whole is None else replace(whole, state=None)
            reuse.store(walked.kept)
        if self._serving() is not None:
            self._watch.look([*tokens, *out.tokens[:1]], before)
        if walked.loan is not None and not walked.loan.end():
            log.warning("answer of %d tokens computed again: a lease ended early", len(tokens))
            return None
        self.drafted = out
        return out

    @property
    def device_state(self) -> str:
        """Why the daemon's copies on the model's GPU are not used; empty if they are."""
        reuse = self._serving()
        return self.inert if reuse is None or reuse.lent is None else reuse.lent.why()

    @property
    def written_state(self) -> str:
        """Why the daemon cannot write rows into memory of the model's GPU; empty if it can."""
        reuse = self._serving()
        return self.inert if reuse is None else reuse.written_state

    @property
    def composed(self) -> Composed:
        """How often the daemon has placed leased segments, and how often this process has."""
        return Composed() if self._reuse is None else self._reuse.composer.count

    def worker(self) -> Worker:
        """Returns a worker that computes segments for engines of other nodes. The caller calls its
        `step`."""
        return Worker(self._serving)

    def store(self, done: Prefilled) -> list[int]:
        """Publishes the segments that a prefill has captured and saves its checkpoints. Then the
        canary may compare the prompt. Further calls for the same prefill do nothing.

        Returns a code of the protocol for each object. Failures of the daemon are not raised.
        """
        walked, done.walked = done.walked, None
        if walked is None or walked.kept is None or (reuse := self._serving()) is None:
            return []
        made = walked.kept.segments or walked.kept.checkpoints or walked.kept.turn
        codes = reuse.store(walked.kept) if made else []
        following = int(done.logits.argmax())
        self._watch.look([*walked.kept.ids, following], walked.context)
        return codes

    def _keep_answer(
        self,
        reuse: Reuse,
        walked: Walked,
        kept: Kept,
        cache: Cache,
        answered: list[int],
        reading: Reading,
    ) -> None:
        """Adds the state after an answer, and the answer's rows, to the objects to store, if they
        are worth storing. The answer's last token was sampled but never computed."""
        after = walked.context.snapshot()
        if not kept.keeps(after) or self.steps_differ:
            return
        try:
            read_back(self.model, reuse.arch, cache, after)
        except Exception:
            # The cache may be in any form, but the answer is complete and must not be lost.
            log.exception("the state after an answer was not kept")
            return
        if self._keep_state(reuse, kept, after, answered) and kept.turn is not None:
            before = walked.context
            kept.turn = with_answer(reuse.arch, kept.turn, before, after, answered, reading)

    def _keep_state(self, reuse: Reuse, kept: Kept, after: Context, answered: list[int]) -> bool:
        """Adds the context after an answer to the checkpoints to store, if it is worth a
        checkpoint. Returns whether it was added."""
        prompt_tokens = len(kept.ids)
        if not kept.keeps(after) or not prompt_tokens < after.tokens < len(answered):
            return False
        kept.ids = answered[: after.tokens]
        if reuse.told(kept.ids, prompt_tokens, kept.held) or self.settings.keep_all:
            if kept.turn is not None and kept.turn.state is not None:
                kept.checkpoints.append(kept.turn.state)
                kept.turn.state = None
            kept.checkpoints.append(after)
            return True
        return False

    def _serving(self) -> Reuse | None:
        """Returns this model's `Reuse`; None if it has none, or once its weights have changed."""
        if self._reuse is not None and (why := self._weights.changed()):
            self._reuse, self.inert = None, f"{why}: load the model again to share its states"
            log.warning("%s is served without reuse: %s", type(self.model).__name__, self.inert)
        return self._reuse

    def _branches(self, options: Mapping[str, object]) -> bool:
        """Whether a generation needs a cache of several sequences, or of another kind than ours."""
        given = options.get("generation_config") or self.model.generation_config
        if any((options.get(n) or getattr(given, n, None) or 1) != 1 for n in _LINES):
            return True
        return any(options.get(n) or getattr(given, n, None) for n in _OTHER_CACHES)

    def _own(self, tokens: list[int]) -> Prefilled:
        """Computes a prompt by the model's own forward."""
        with torch.no_grad():
            line = torch.tensor([tokens], device=self.model.device)
            out = self.model(line, use_cache=True, logits_to_keep=1)
        trouble = f"inert: {self.inert}" if self.inert else ""
        cache = getattr(out, cache_name(self.model))
        return Prefilled(out.logits[0, -1], cache, len(tokens), trouble=trouble, tokens=len(tokens))

    def _prefilled(self, reuse: Reuse, walked: Walked, logits: Tensor) -> Prefilled:
        context = walked.context
        return Prefilled(
            logits=logits,
            cache=filled(self.model, reuse.arch, context, walked.loan),
            computed=walked.computed,
            reused=walked.reused,
            captured=walked.captured,
            elsewhere=walked.elsewhere,
            on_device=walked.on_device,
            approximate=context.spliced,
            trouble=walked.trouble,
            expected_loss=walked.loss,
            plan=walked.plan,
            walked=walked,
            loan=walked.loan,
            tokens=context.tokens,
        )

    def _walk(
        self,
        reuse: Reuse,
        ids: list[int],
        cuts: Sequence[int],
        mode: Mode,
        upto: int,
        terms: Terms,
    ) -> Walked:
        """Returns a context after the first `upto` tokens. If reuse fails, computes all of them."""
        settings, max_error = self.settings, terms.max_error
        max_loss = settings.max_loss if terms.max_loss is None else terms.max_loss
        kept = keep_for_reuse(cuts, settings.refresh) if mode == "splice" else cuts
        cuts, left_out = kept, len(cuts) - len(kept)
        seam = settings.seam_tokens
        tail = seam if settings.tail_tokens is None else settings.tail_tokens
        # Checked even without a daemon: wrong cuts are always the caller's error.
        prompt = divide(
            reuse.profile,
            reuse.model.salt or b"",
            ids,
            cuts,
            self.settings.seam_tokens,
            self.settings.tail_tokens,
            reuse.lead,
        )
        # Segments that other engines compute have unknown errors.
        parallel = settings.parallel and max_error is None
        # A saved prefix that contains segments has an unknown error and an unknown loss.
        limited = max_error is not None or max_loss < ANY_LOSS
        request = Request(
            ids,
            tuple(cuts),
            prompt,
            upto,
            terms.accept & ~Accept.SPLICED if limited else terms.accept,
            settings.block_tokens,
            settings.keep_all,
            settings.parallel_tokens if parallel else 0,
            max_error,
            LossLimit(max_loss, SpliceWay(refreshed=left_out > 0)),
            narrow=tail < seam,
            counted=tail == seam and max_error is None and left_out <= 1,
        )
        before, began = reuse.device_tokens, time.perf_counter()
        try:
            if mode == "prefix":
                walked = by_prefix(reuse, request)
            elif self._watch.off:
                walked = plainly(reuse, request, "the canary has switched splicing off")
            else:
                walked = by_segments(reuse, request)
            walked.on_device = reuse.device_tokens - before
        except UnreliableError as err:
            why = str(err)  # the error itself, if logged, would keep leased memory mapped
            reuse.computes(ids, why)
            walked = plainly(reuse, request, why)
        reuse.served(ids, walked.begin, walked.found, walked.segments, began, walked.loss)
        return walked


def _answer_ends(model: PreTrainedModel) -> list[int]:
    """Returns the tokens at which the model ends its answers."""
    config = model.generation_config
    named = None if config is None else config.eos_token_id
    return [named] if isinstance(named, int) else list(named or ())


def _plain(ids: Sequence[int] | Tensor) -> list[int]:
    """Returns the token ids of one prompt; unpacks a batch of one. Raises ValueError if empty."""
    if isinstance(ids, Tensor):
        ids = cast("list[int]", ids.reshape(-1).tolist())
    if not ids:
        raise ValueError("empty prompt")
    return list(ids)
