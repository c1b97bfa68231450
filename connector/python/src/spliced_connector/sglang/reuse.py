"""The exchange of one engine with the daemon: jobs in slices of time, and what is stored.

All work runs on the thread of SGLang's scheduler, which also runs the model. Between two batches
there is one slice of work. It takes `stall_ms` while requests run, and at least as long as a
prefill of `PREFILL_ROWS` rows while none runs. A request whose segments are not in place yet is
skipped; other requests are served meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from spliced_connector import __version__
from spliced_connector.client import Accept, Client, Model
from spliced_connector.model import Identity, Kind, Piece
from spliced_connector.segments import Finder
from spliced_connector.serving.composing import Composer
from spliced_connector.serving.decider import Decider
from spliced_connector.serving.job import LostError, Means, Pace
from spliced_connector.serving.modules import eager
from spliced_connector.serving.parameters import Parameters
from spliced_connector.serving.prices import Clock
from spliced_connector.serving.primers import Primers, lead_of
from spliced_connector.serving.rounded import Rounded
from spliced_connector.serving.storing import Publisher, Saver, Taken
from spliced_connector.serving.tally import EngineTally
from spliced_connector.serving.telling import Served, Teller
from spliced_connector.serving.watch import Watch
from spliced_connector.sglang.job import Prefix, SlotJob
from spliced_connector.sglang.metrics import Counts
from spliced_connector.sglang.requests import STEP, Offer, Requests, Tracked, log
from spliced_connector.sglang.slots import Slots
from spliced_connector.sglang.splice_settings import SpliceSettings
from spliced_connector.sglang.support import Engine
from spliced_connector.walk import (
    PREFILL_ROWS,
    Architecture,
    Captured,
    part_tensors,
)

_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Bare:
    """The attributes of an architecture that a context needs, for a model that is never walked."""

    identity: Identity
    dtype: torch.dtype

    @property
    def layers(self) -> tuple[Kind, ...]:
        return tuple(layer.kind for layer in self.identity.layers)


class ChangedError(Exception):
    """The engine has other weights than at the start."""


class Reuse:
    """The exchange that the module describes; it owns the client. Methods raise ChangedError before
    they reuse or store anything with changed weights."""

    def __init__(
        self,
        engine: Engine,
        settings: SpliceSettings,
        client: Client,
        arch: Architecture | None,
        slots: Slots,
        finder: Finder,
        weights: Parameters,
        primer: tuple[int, ...] = (),
        counted: bool = False,
    ) -> None:
        """arch: the walk over the model; None in mode prefix. primer: the token ids after which
        segments are captured. counted: whether SGLang exports metrics."""
        self.weights = weights
        """Watches the engine's weights, whose values at the start name all objects."""
        self.engine, self.settings, self.slots = engine, settings, slots
        self.rounded = Rounded() if engine.rounds else None
        """Rounded states in the engine's tree; None in an engine that rounds none."""
        self.tally = EngineTally()
        self.clock = Clock()
        self._client = client
        self.model: Model = client.model(
            engine.identity,
            tenant=settings.tenant,
            block_tokens=STEP,
            connector=f"sglang {__version__}",
            engine=f"sglang {engine.version}",
        )
        lead = lead_of(primer, settings.primer_after)
        self._decider = Decider(self.model, settings, finder, self.tally, self.clock, lead)
        self._requests = Requests(self.model, settings, self._decider, self.tally, self.clock)
        self._tracked: dict[str, Tracked] = {}
        self._pace = Pace()
        bound = settings.pending_mib << 20
        self._publisher = Publisher(self.model, self.tally, bound)
        self._saver = Saver(self.model, self.tally, bound)
        self._teller = Teller(self.model, self.tally)
        walked = arch or cast(Architecture, Bare(engine.identity, self._dtype()))
        patience = settings.load_ms / 1000
        composer = Composer(
            walked,
            self.model,
            slots.copies,
            settings.compute,
            wait=settings.timeout_ms / 1000,
            tally=self.tally,
        )
        primers = Primers(walked, composer.copies.device, primer)
        self._means = Means(composer, self._publish, patience, primers)
        self._watch: Watch | None = None
        if arch is not None:
            self._watch = Watch(
                arch, self.model, self.tally, settings.canary_bound, settings.canary_changed
            )
        self._counts = Counts(self.tally) if counted else None
        self._until = 0.0  # monotonic: the end of this step's slice
        self._fresh = True  # nothing was done in this step

    def step(self, alone: bool) -> None:
        """Begins a slice of work, before the scheduler plans a batch. alone: no request runs."""
        bound = self.settings.stall_ms / 1000
        if alone:
            bound = max(bound, PREFILL_ROWS * self._pace.seconds)
        self._until, self._fresh = time.monotonic() + bound, True
        if self._watch is not None:
            if self._watch.busy and not any(t.job for t in self._tracked.values()):
                self._check_weights()
                self._watch.compare()
            self._watch.tell(again=False)
        if self._counts is not None:
            self._counts.update()

    def open(
        self, rid: str, ids: Sequence[int], said: dict[str, object] | None, stops: Collection[int]
    ) -> Tracked:
        """Returns the request. Asks the daemon about it if it is new."""
        tracked = self._tracked.get(rid)
        if tracked is None:
            tracked = self._tracked[rid] = self._requests.open(ids, said, stops)
        return tracked

    def of(self, rid: str) -> Tracked | None:
        """Returns the request; None if it was not opened."""
        return self._tracked.get(rid)

    def offer(self, tracked: Tracked, held: int, most: int) -> Offer | None:
        """See `Requests.offer`. An offer on which a job works remains as long as the engine's tree
        has fewer tokens than the offer."""
        job, page = tracked.job, self.engine.page_tokens
        if job is not None and job.fresh and not job.base.name and job.base.tokens != held:
            self._drop_job(tracked)  # the tree has grown, or shrunk
            job = None
        if job is None:
            tracked.offer = self._requests.offer(tracked, held, most)
        elif not held < job.splice.tokens <= most:
            self._drop_job(tracked)
        found = tracked.offer
        return found if found is not None and found.splice.tokens // page * page > held else None

    def ready(self, tracked: Tracked, prefix: Prefix | None) -> bool:
        """Works on a request's offer within this step's slice. Returns whether the work has ended:
        the offer is ready to be written, or is lost.

        prefix: the prefix of the request that the tree has now.
        """
        offer = tracked.offer
        if offer is None:
            return True
        self._check_weights()
        if tracked.job is None:
            tracked.job = self._job(tracked, offer)
        job = tracked.job
        job.prefix = prefix
        if not self._fresh and time.monotonic() >= self._until:
            return False
        self._fresh = False
        began = time.monotonic()
        try:
            if self._watch is not None and self._watch.off and offer.splice.spans:
                self._watch.tell(again=True)
                raise LostError("the canary has switched splicing off")
            with eager():
                done = job.run(self._pace, self._until)
        except LostError as err:
            self._lose(tracked, str(err))
            return True
        except Exception:
            # The engine's modules may raise anything. The request must not fail: it is computed.
            log.exception("splicing a request failed, the engine computes it")
            self._lose(tracked, "")
            return True
        finally:
            self._held_up(time.monotonic() - began)
        return done

    def write(self, tracked: Tracked, into: Tensor, begin: int, state: int | None) -> None:
        """Writes the result of a job, from token `begin` on, into the request's own slots `into`,
        and its states into the slot `state`."""
        job, offer = tracked.job, tracked.offer
        if job is None or offer is None or job.context is None:
            raise LostError("nothing was made")
        self._check_weights()
        with eager():
            job.write(into, begin, state)
        tracked.claimed, tracked.offer, tracked.job = offer, None, None
        tracked.spliced = offer.composed
        tracked.way = "splice" if offer.composed else "prefix"
        tracked.begin, tracked.placed = begin, begin + len(into)
        tracked.waited = time.perf_counter() - tracked.arrived - tracked.decided_micros / 1e6
        tracked.held = offer.base.tokens if offer.base.name else 0
        if not offer.composed:
            tracked.held = max(tracked.held, tracked.found.prefix_tokens)
        tracked.wanted = [p for p in tracked.wanted if p > offer.splice.tokens]
        self._turn(tracked)
        self.tally.add("loads")
        self.tally.add("loaded_tokens", len(into))
        self.tally.add("walked_tokens", offer.splice.walked)
        if offer.splice.spans:
            self.clock.walked(job.walked)
        if job.sampled and self._watch is not None:
            self._watch.offer(job.ids, job.context, offer.splice.way)
        job.close()

    def next_stop(self, tracked: Tracked, computed: int) -> int:
        """Returns the next position in the prompt where the daemon wants a state; 0 for none."""
        if not self.engine.states:
            return 0  # rows stay in place, so they can be stored at the prompt's end
        return next((p for p in tracked.wanted if computed < p < tracked.tokens), 0)

    def reached(
        self,
        tracked: Tracked,
        ids: Sequence[int],
        at: int,
        row: Callable[[], tuple[Tensor, int | None]],
    ) -> None:
        """Stores wanted checkpoints of a request that has rows [0, at) and the states after them.

        ids: the tokens of the prompt and its answer. If `at` is beyond the prompt, the request has
        ended. row: returns the slots of the request's rows and the slot of its states.
        """
        due = self._due(tracked, ids, at)
        if not due:
            return
        self._check_weights()
        began = time.perf_counter()
        slots, state = row()
        for tokens in due:
            self._save(tracked, tokens, slots, state)
        self.tally.add("save_micros", round((time.perf_counter() - began) * 1e6))

    def served(self, tracked: Tracked, rid: str, cached: int, first: float, trace: str) -> None:
        """Reports the first token, `first` seconds after the request's arrival.

        cached: tokens that were not computed, including the daemon's. trace: a traceparent.
        """
        tracked.served = True
        claimed, known = tracked.claimed, tracked.known
        engine, prefix = min(cached, tracked.tokens - 1), 0
        if claimed is not None:
            named = claimed.base.tokens if claimed.base.name else 0
            engine, prefix = tracked.begin, max(0, min(named, tracked.placed) - tracked.begin)
        self._teller.tell(
            Served(
                rid,
                tracked.tokens,
                engine,
                prefix=prefix,
                placed=tracked.placed,
                prompt=None if known is None else known.prompt,
                splice=None if claimed is None else claimed.splice,
                found=tracked.found,
                asked=tracked.asked,
                predicted=tracked.predicted,
                decided=tracked.decided_micros / 1e6,
                waited=max(0.0, tracked.waited),
                first=first,
                trace=trace,
            )
        )

    def released(self, tracked: Tracked) -> None:
        """Resets a request that was preempted: the engine has freed its tokens, and serves it again
        later."""
        if tracked.spliced:
            tracked.held = 0  # exact checkpoints do not extend stored checkpoints of a splice
        tracked.claimed, tracked.spliced, tracked.way = None, False, "engine"

    def drop(self, rid: str) -> None:
        """Forgets a request that has ended."""
        tracked = self._tracked.pop(rid, None)
        if tracked is not None:
            self._drop_job(tracked)

    def _check_weights(self) -> None:
        if why := self.weights.changed():
            raise ChangedError(f"its weights have changed ({why}): restart it")

    def close(self) -> None:
        """Stores what is queued, for at most `_CLOSE_SECONDS`, and closes the client."""
        for rid in list(self._tracked):
            self.drop(rid)
        until = time.monotonic() + _CLOSE_SECONDS
        for storing in (self._publisher, self._saver):
            storing.drain(max(0.0, until - time.monotonic()))
            storing.close()
        self._teller.close()
        self._client.close()
        if self._counts is not None:
            self._counts.update_now()
        log.info("spliced ends: %s", self.tally.snapshot())

    def _dtype(self) -> torch.dtype:
        return next(iter(self.slots.rows.values())).keys.dtype

    def _job(self, tracked: Tracked, offer: Offer) -> SlotJob:
        fair = bool(offer.splice.spans) and not offer.base.spliced and tracked.known is not None
        fair = fair and self._decider.fair(offer.splice, tracked.known.w if tracked.known else 0)
        sampled = fair and self._decider.sampled()
        job = SlotJob(offer.splice, tracked.ids, self._means, self.slots, offer.base, sampled)
        for other in self._tracked.values():
            for key, captured in (other.job.captured if other.job else {}).items():
                job.take(key, captured)
        self.tally.add("matched_tokens", offer.splice.tokens - offer.splice.begin)
        return job

    def _lose(self, tracked: Tracked, why: str) -> None:
        self._drop_job(tracked)
        tracked.lost, tracked.way, tracked.held = True, "recomputed", 0
        tracked.trouble = "segments or prefix were lost after the match"
        self.tally.add("load_failures")
        if why:
            log.info("a request is computed: %s", why)

    def _drop_job(self, tracked: Tracked) -> None:
        job, tracked.job, tracked.offer = tracked.job, None, None
        if job is not None:
            job.close()

    def _held_up(self, seconds: float) -> None:
        self.tally.add("stall_micros", round(seconds * 1e6))
        self.tally.add("stalls")
        if time.monotonic() > self._until:
            self.tally.add("stalls_over_bound")

    def _turn(self, tracked: Tracked) -> None:
        """Adds the end of the prompt, where the next turn continues, to the wanted positions."""
        if self.settings.turns and tracked.tokens not in tracked.wanted:
            tracked.wanted.append(tracked.tokens)

    def _due(self, tracked: Tracked, ids: Sequence[int], at: int) -> list[int]:
        """Returns the positions to store now, when `at` tokens are computed. The engine has rows of
        all these tokens, but states only after the last token."""
        if at > tracked.tokens:
            return [at] if self._ended(tracked, ids, at) else []
        due = [p for p in tracked.wanted if p == at or (p < at and not self.engine.states)]
        tracked.wanted = [p for p in tracked.wanted if p > at]
        if tracked.rounded and not tracked.spliced:
            return []  # states of a spliced request are stored, as approximations
        return [p for p in due if p > tracked.held]

    def _ended(self, tracked: Tracked, ids: Sequence[int], at: int) -> bool:
        """Returns whether the state after an answer is to be stored. If so, records its name."""
        if not self.settings.answers or tracked.namer is None or at - tracked.held < 1:
            return False
        if not self._requests.answered(tracked, ids[:at]):
            return False
        if self.engine.rounds and not tracked.spliced:
            self.tally.add("rounded_states")
            return False
        tracked.names[at] = tracked.namer.name(ids, [at])[0]
        return True

    def _save(self, tracked: Tracked, tokens: int, slots: Tensor, state: int | None) -> None:
        parts: list[Tensor] = []
        new = slots[tracked.held : tokens]
        for layer in range(len(self.engine.identity.layers)):
            if layer in self.slots.states and state is not None:
                parts += self.slots.states[layer].read(state)
            elif layer in self.slots.rows:
                parts += self.slots.rows[layer].read(new)
        layout = self.model.profile.checkpoint_layout(tokens - tracked.held)
        leaving = self.slots.copies.to_host(part_tensors(layout, parts))
        parent = tracked.names[tracked.held] if tracked.held else bytes(32)
        kind = Accept.SPLICED if tracked.spliced else Accept.EXACT
        taken = Taken(tracked.names[tokens], tokens, parent, tracked.held, leaving, kind)
        if self._saver.put(taken):
            tracked.held = tokens
            tracked.stored += 1

    def _publish(self, piece: Piece, ids: tuple[int, ...], captured: Captured) -> Captured:
        """Stores a captured segment, and gives it to other jobs that need the same segment."""
        stored = self._publisher.capture(captured, ids, self.slots.copies)
        if piece.key is not None:
            for other in self._tracked.values():
                if other.job is not None:
                    other.job.take(piece.key, stored)
        return stored
