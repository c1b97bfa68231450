"""What an engine asks of the daemon for one model and tenant."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from spliced_connector.client import acquire as leasing
from spliced_connector.client import advise as advising
from spliced_connector.client import buffers, compute, parallel
from spliced_connector.client import match as matching
from spliced_connector.client import publish as storing
from spliced_connector.client import served as serving
from spliced_connector.client.advise import Advice, Query
from spliced_connector.client.buffers import Buffer
from spliced_connector.client.compute import Origin, Placed, Plan
from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.stats import figures, pools
from spliced_connector.client.device_lease import DeviceCheckpoint, DeviceSegment
from spliced_connector.client.keeper import Keeper
from spliced_connector.client.known import KnownQuery
from spliced_connector.client.lease import Checkpoint, Held, Segment, Slot, release_all
from spliced_connector.client.losses import Losses, report_section
from spliced_connector.client.match import Match, misses
from spliced_connector.client.parallel import Job, JobNews, Missing, PlanNews, WorkPlan
from spliced_connector.client.publish import NewCheckpoint, NewSegment
from spliced_connector.client.registration import Enrolment, Registration
from spliced_connector.client.served import Served
from spliced_connector.client.terms import Accept, Level
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import ALL_LAYERS, Profile, SegmentSpec, prefix_hashes, segment_key
from spliced_connector.wire import Op, ReportReply, ReportRequest

log = logging.getLogger("spliced")

T = TypeVar("T")
N = TypeVar("N")
H = TypeVar("H", bound=Held)

# After one of these the daemon is not asked for the rest of a batch: each would cost its time.
_HOPELESS = {Code.UNAVAILABLE, Code.LATE, Code.STALE, Code.DENIED, Code.UNSUPPORTED}

_LOST = {Code.UNAVAILABLE, Code.LATE, Code.STALE, Code.CANCELED}  # the daemon has not answered

_QUIET = {Code.MISS, Code.EXISTS, Code.UNAVAILABLE, Code.LATE}  # answers, or counted elsewhere


class Model:
    """A profile registered for one tenant and rank. It stays good across restarts of the daemon.

    Trouble of the daemon is never raised: it reads as a miss. All methods may be called by
    several threads at once, and each ends within its time-out.
    """

    def __init__(self, keeper: Keeper, enrolment: Enrolment, owner: object) -> None:
        self._keeper = keeper
        self._enrolment = enrolment
        self._owner = owner  # keeps the client alive
        self._options = keeper.options
        self._deaf: Attachment | None = None  # to a daemon that does not know `Op.SERVED`
        self._canary_share: float | None = None
        self._offline: Losses = {}
        self._offline_sent_to: Attachment | None = None  # of them

    @property
    def profile(self) -> Profile:
        """What the model was made of."""
        return self._enrolment.profile

    @property
    def block_tokens(self) -> int:
        """Tokens of the blocks that prefixes are named by."""
        return self._enrolment.block_tokens

    @property
    def rank(self) -> int:
        """The tensor-parallel rank."""
        return self._enrolment.rank

    @property
    def salt(self) -> bytes | None:
        """The tenant's salt, which goes into keys; None until a daemon was attached once."""
        return self._enrolment.salt

    @property
    def attached(self) -> bool:
        """Whether calls can be answered now."""
        r = self._enrolment.registration
        return r is not None and not r.attachment.ended and not self._keeper.inert

    @property
    def keeps_turns(self) -> bool:
        """Whether the daemon keeps rows of a buffer as checkpoints; False while none is there."""
        r = self._enrolment.registration
        if r is None:
            return False
        greeting = r.attachment.greeting
        return greeting.rows and greeting.buffered

    @property
    def primers(self) -> bool:
        """Whether the daemon knows segments that were captured after a primer; False while none is
        there. Without it they are not published, and every lookup of one misses."""
        r = self._enrolment.registration
        return r is not None and r.attachment.greeting.primers

    @property
    def looks_up(self) -> bool:
        """Whether the daemon can look a prompt up before it advises, `Query.lookup`."""
        r = self._enrolment.registration
        return r is not None and r.attachment.greeting.lookup

    @property
    def silent(self) -> bool:
        """Whether a call was not answered in time and the daemon was not heard of since."""
        r = self._enrolment.registration
        return r is not None and r.exchange.stall.silent

    @property
    def refused(self) -> str:
        """Why the daemon refuses the profile, empty when it does not."""
        return self._enrolment.refusal

    @property
    def trouble(self) -> str:
        """Why calls are not answered now, empty when they are: there is no daemon, or it has not
        registered the profile, such as one of a connection that has as many as it may."""
        if self.attached:
            return ""
        return self._keeper.why or self._enrolment.trouble or "the profile is not registered yet"

    @property
    def memory_trouble(self) -> str:
        """Why the daemon cannot write into the engine's memory now, empty when it can."""
        r = self._enrolment.registration
        if r is None or not self.attached:
            return self.trouble
        if r.memory:
            return ""
        return self._enrolment.memory_trouble or "the engine's memory is not registered yet"

    def wait_attached(self, timeout: float) -> bool:
        """Wait until calls can be answered, or the daemon has refused the profile.

        An engine just calls and takes misses.
        """
        if self._keeper.inert:
            return False
        with self._keeper.changed:
            self._keeper.changed.wait_for(lambda: self._decided, timeout)
        return self.attached

    @property
    def _decided(self) -> bool:
        return self.attached or bool(self.refused) or self._keeper.closing

    def segment_key(self, spec: SegmentSpec, tokens: Sequence[int]) -> bytes | None:
        """The name of a segment of this model and tenant; None without a salt.

        Raises `ProfileError` for tokens that do not fit the spec.
        """
        salt = self.salt
        return None if salt is None else segment_key(self.profile, salt, spec, tokens)

    def prefix_hashes(
        self, tokens: Sequence[int], positions: Sequence[int], block_tokens: int | None = None
    ) -> list[bytes] | None:
        """Names of the leading tokens at each of the ascending positions; None without a salt.

        `block_tokens` is the model's unless given.
        """
        salt = self.salt
        if salt is None:
            return None
        block = self._enrolment.block_tokens if block_tokens is None else block_tokens
        return prefix_hashes(self.profile, salt, block, tokens, positions)

    def match(
        self,
        positions: Sequence[int] = (),
        prefixes: Sequence[bytes] = (),
        keys: Sequence[bytes] = (),
        accept: Accept = Accept.EXACT,
        known: KnownQuery | None = None,
        others: Sequence[bytes] = (),
    ) -> Match:
        """Look up a prompt: prefix hash i covers `positions[i]` tokens, which ascend.

        `known` also asks which held segments the prompt contains (`Match.known`). `others` is
        empty, or has for each key the key of the segment's other variant, after a primer or without
        one. It is looked up where the key misses (`Match.variant`); `NOTHING` = there is none.

        All misses when anything is wrong; `Match.trouble` says what.
        """
        return self._ask(
            lambda r: matching.match(r, positions, prefixes, keys, accept, known, others),
            lambda err: misses(len(keys), str(err)),
        )

    def acquire(
        self,
        keys: Sequence[bytes],
        all: bool = False,
        wait: float | None = None,
        digests: bool = False,
        life: float = 0.0,
    ) -> list[Segment | None]:
        """Lease segments, one for each key; None is a miss.

        With `all` every key is leased or none. `wait` bounds the wait for what
        lies on disk or is fetched from another node. `life`: seconds that the leases are good for,
        0 as the daemon is set; more than its max-lease-ttl is refused, and so a miss.
        """
        seconds = self._options.timeout if wait is None else wait
        none: list[Segment | None] = [None] * len(keys)
        out = self._ask(
            lambda r: leasing.acquire(
                r,
                keys,
                seconds,
                together=all,
                digests=digests,
                life=life,
            ),
            lambda _: none,
        )
        return _every(out) if all else out

    def acquire_device(
        self,
        keys: Sequence[bytes],
        all: bool = False,
        fetch: bool = True,
        wait: float | None = None,
        digests: bool = False,
        life: float = 0.0,
    ) -> list[DeviceSegment | None]:
        """Lease copies of segments on the GPU, as `acquire`.

        Segments that are held but not on the GPU are copied there: with `fetch` this call waits for
        the copy, without it they are a miss now. Without GPU memory all are a miss
        (`Client.device_state`).
        """
        seconds = self._options.timeout if wait is None else wait
        none: list[DeviceSegment | None] = [None] * len(keys)
        out = self._ask(
            lambda r: leasing.acquire_device(
                r, keys, seconds, together=all, fetch=fetch, digests=digests, life=life
            ),
            lambda _: none,
        )
        return _every(out) if all else out

    def load(
        self,
        hash: bytes,
        accept: Accept = Accept.EXACT,
        wait: float | None = None,
        digests: bool = False,
    ) -> Checkpoint | None:
        """Lease the checkpoint of a prefix; None when there is none of an accepted kind."""
        seconds = self._options.timeout if wait is None else wait
        return self._ask(
            lambda r: leasing.load(r, hash, accept, seconds, digests=digests), lambda _: None
        )

    def load_device(
        self,
        hash: bytes,
        accept: Accept = Accept.EXACT,
        wait: float | None = None,
        digests: bool = False,
    ) -> DeviceCheckpoint | None:
        """`load` of a copy on the GPU."""
        seconds = self._options.timeout if wait is None else wait
        return self._ask(
            lambda r: leasing.load_device(r, hash, accept, seconds, digests=digests),
            lambda _: None,
        )

    def publish(
        self, segments: Sequence[NewSegment], level: Level = Level.DEFAULT
    ) -> list[Code | int]:
        """Publish segments; for each its outcome. EXISTS means that nothing is to be done.

        Each message is bounded by `Options.transfer_timeout`. Once the daemon does not answer the
        rest is not tried.
        """
        return self._store(segments, lambda r, new: storing.publish(r, new, level))

    def save(
        self, checkpoints: Sequence[NewCheckpoint], level: Level = Level.DEFAULT
    ) -> list[Code | int]:
        """Keep checkpoints, as `publish`."""
        return self._store(checkpoints, lambda r, new: storing.save(r, new, level))

    def _store(
        self, new: Sequence[N], store: Callable[[Registration, N], None]
    ) -> list[Code | int]:
        codes: list[Code | int] = []
        for one in new:
            if codes and codes[-1] in _HOPELESS:
                codes.append(codes[-1])
                continue
            codes.append(self._ask(partial(_stored, store, one), _code))
        tally = self._keeper.tally
        published = codes.count(Code.OK)
        tally.add("published", published)
        tally.add("unpublished", len(codes) - published)
        if refused := {Code.FULL, Code.QUOTA}.intersection(codes):
            self._log_full(min(refused))
        return codes

    def _log_full(self, code: Code) -> None:
        """Logs why nothing is stored, with the daemon's own figures, one in `WRONG_SECONDS`."""
        if not self._keeper.full_due():
            return
        usage = self._ask(
            lambda r: pools(figures(r.attachment, self._options.timeout)), lambda _: ""
        )
        why = "the tenant is over its quota" if code is Code.QUOTA else "the daemon is full"
        log.warning("segments or checkpoints were not stored: %s%s", why, usage and f" ({usage})")

    def advise(self, query: Query) -> Advice | None:
        """What to use for a prompt and what to store of it; None: use and store nothing."""

        def ask(r: Registration) -> Advice:
            attached = r.attachment
            if self._offline and attached.greeting.losses and self._offline_sent_to is not attached:
                self._report_offline(r)
            return advising.advise(r, query)

        advice = self._ask(ask, lambda _: None)
        self._keeper.tally.add("unadvised" if advice is None else "advised")
        return advice

    def _report_offline(self, r: Registration) -> None:
        """A refusal is logged once for each daemon. Raises SplicedError without an answer: the next
        advice tries again."""
        try:
            self._report(r, ReportRequest(r.profile), self._offline, offline=True)
        except SplicedError as err:
            if err.code in _LOST:
                raise
            self._keeper.tally.add("refused")
            log.warning("the daemon refused the losses measured offline: %s", err)
        self._offline_sent_to = r.attachment

    def measured_offline(self, losses: Losses) -> None:
        """Losses that were measured before anything was served. Each daemon is told before its
        first advice, and takes them in the place of what it was told before."""
        self._offline, self._offline_sent_to = losses, None

    def compose(
        self,
        plan: Plan,
        layer: int = ALL_LAYERS,
        origin: Origin = Origin(),  # noqa: B008
        into: Slot | None = None,
        wait: float | None = None,
    ) -> Slot | None:
        """The states by `Profile.states_layout(layer, computed spans)`: for each asked layer the
        F32 state before each computed span, then the final one.

        A last span without input ends the walk: the final state is the one before it. `into` is a
        slot to write into; after a failure it may hold nothing, and can only be released. `wait`
        bounds the wait for the answer, None as `Options.transfer_timeout` does.
        """
        return self._ask(
            lambda r: compute.compose(r, plan, layer, origin, into, wait), lambda _: None
        )

    def rotate(
        self,
        plan: Plan,
        layer: int = ALL_LAYERS,
        into: Slot | None = None,
        wait: float | None = None,
    ) -> Slot | None:
        """Keys and values of a plan's segments at their places in the prompt, packed into a slot
        by `Profile.rows_layout(layer, rows)`. Inputs of the spans are not looked at. `wait` is as
        in `compose`."""
        origin = Origin()
        return self._ask(
            lambda r: compute.rotate(r, Op.ROTATE, plan, layer, origin, into, wait), lambda _: None
        )

    def assemble(
        self,
        plan: Plan,
        origin: Origin = Origin(),  # noqa: B008
        into: Slot | None = None,
        wait: float | None = None,
    ) -> Slot | None:
        """Compose and rotate of all layers, for plans whose only computed span is the last.

        The slot is laid out by `Profile.checkpoint_layout(rows)`. `wait` is as in `compose`.
        """
        return self._ask(
            lambda r: compute.rotate(r, Op.ASSEMBLE, plan, ALL_LAYERS, origin, into, wait),
            lambda _: None,
        )

    def place(
        self,
        plan: Plan,
        blocks: Sequence[int],
        layer: int = ALL_LAYERS,
        origin: Origin = Origin(),  # noqa: B008
        states: bool = False,
    ) -> Placed:
        """Rotate, or with `states` assemble, into the engine's memory by its block table of the
        tokens [0, plan.end).

        The rows count when `Placed.code` is OK. Until that is settled the daemon may be
        writing to the blocks. With `states` `Placed.slot` has the states and convolution tails, by
        `Profile.checkpoint_layout(0)`.
        """
        return self._ask(
            lambda r: compute.place(r, plan, blocks, layer, origin, states), _not_written
        )

    def open_buffer(
        self,
        begin: int,
        capacity: int,
        origin: Origin = Origin(),  # noqa: B008
    ) -> Buffer | None:
        """A buffer for at most `capacity` rows of the tokens from `begin` on.

        They move on what `origin` names: a checkpoint of `begin` tokens, a slot that begins with
        `Profile.checkpoint_layout(0)`, which is copied, or zero states. That may be released then.
        """
        return self._ask(lambda r: buffers.open_buffer(r, origin, begin, capacity), lambda _: None)

    def append(self, buffer: Buffer, n: int, rows: bytes | bytearray | memoryview) -> Code | int:
        """Add the rows of the next n tokens as drafts, laid out by `Profile.buffer_layout(n)`.

        FULL when they do not fit beside those there. After that, INVALID, BUSY and QUOTA the
        buffer is as before; after any other failure it can only be released.
        """
        return self._ask(
            partial(_done, partial(buffers.append, buffer=buffer, n=n, rows=rows)), _code
        )

    def append_path(
        self,
        buffer: Buffer,
        parents: Sequence[int],
        path: Sequence[int],
        rows: bytes | bytearray | memoryview,
    ) -> Code | int:
        """Add the rows of one path of a tree of drafts, from its root down, as `append` does.

        `parents` has for each draft the number of an earlier one, or -1 for the buffer's end;
        `rows` are the rows of all drafts. The other branches are not sent: the daemon cannot use a
        token that follows none. INVALID when `path` is not a path of the tree.
        """
        add = partial(buffers.append_path, buffer=buffer, parents=parents, path=path, rows=rows)
        return self._ask(partial(_done, add), _code)

    def accept(self, buffer: Buffer, n: int) -> Code | int:
        """Keep the first n drafts and drop the others. Failures are as in `append`."""
        return self._ask(partial(_done, partial(buffers.accept, buffer=buffer, n=n)), _code)

    def replay(
        self, buffer: Buffer, token: int, flush: bool = False, into: Slot | None = None
    ) -> Slot | None:
        """States and convolution tails behind an accepted token, by
        `Profile.checkpoint_layout(0)`: what decoding token by token gives, to the bit.

        With `flush` the rows before `token` become part of the base and leave the buffer; one
        that fails is as in `append`.
        """
        return self._ask(
            lambda r: buffers.replay(r, buffer, token, into, flush=flush), lambda _: None
        )

    def replay_rows(
        self, checkpoint: Checkpoint, token: int, into: Slot | None = None
    ) -> Slot | None:
        """States and convolution tails behind any token of a checkpoint that is kept as rows, from
        where its states end, by `Profile.checkpoint_layout(0)`: as `replay`."""
        return self._ask(lambda r: buffers.replay_rows(r, checkpoint, token, into), lambda _: None)

    def plan(
        self,
        missing: Sequence[Missing],
        queued: float = 0.0,
        within: float = 0.0,
        wait: float | None = None,
    ) -> WorkPlan | None:
        """Ask which engines, of other nodes too, compute the segments that a prompt misses, and
        have the others begin. None: the engine computes them, as with a plan of id 0.

        `queued` is seconds of other work that this engine does first; what is not here `within`
        seconds is late, 0 as the daemon is set. No two segments may be equal.
        """
        seconds = self._options.timeout if wait is None else wait
        return self._ask(
            lambda r: parallel.plan(r, missing, queued, within, seconds), lambda _: None
        )

    def watch(self, plan: WorkPlan, wait: float, end: bool = False) -> PlanNews | None:
        """Wait at most `wait` seconds for news of a plan; None: the plan is over.

        A client may have one waiting watch at a time, over all its plans. `end` abandons what
        others still compute. `Following` is this with a bound.
        """
        return self._ask(lambda r: parallel.watch(r, plan, wait, end=end), lambda _: None)

    def jobs(
        self,
        most: int,
        wait: float,
        declined: Collection[Job] = (),
        queued: float = 0.0,
        end: bool = False,
        primers: Collection[bytes] = (),
    ) -> JobNews | None:
        """Wait at most `wait` seconds for segments that other engines want; None if the daemon does
        not support this. The caller is a worker until it has no job and has not called for some
        seconds.

        `most` jobs at once, those included that it has. `declined` are not done; `queued` is
        seconds of other work that comes first; with `end` it is a worker no more. `primers` are
        digests of those that it has, at most 16: it gets no segment after another one. A job is
        done when its segment is held in all ranks, no matter which client of the node published
        it. One call may wait at a time.
        """
        return self._ask(
            lambda r: parallel.jobs(r, most, wait, declined, queued, end=end, primers=primers),
            lambda _: None,
        )

    def report(
        self,
        compared: int,
        failed: int,
        worst: float,
        bound: float,
        off: bool = False,
        text: str = "",
        losses: Losses | None = None,
    ) -> bool | None:
        """Report a canary's results since the last report: of the `compared` reuses that were
        recomputed, `failed` exceeded `bound`, by up to `worst`; and the losses by way.

        `off` switches the profile off for splicing. True when it is off, None when not known.
        """

        def tell(r: Registration) -> bool | None:
            request = ReportRequest(
                r.profile,
                compared,
                failed,
                math.inf if math.isnan(worst) else worst,
                bound,
                int(off),
                text,
            )
            return self._report(r, request, losses or {})

        return self._ask(tell, lambda _: None)

    def _report(
        self, r: Registration, request: ReportRequest, losses: Losses, offline: bool = False
    ) -> bool:
        if losses and r.attachment.greeting.losses:
            request = replace(request, losses=report_section(losses, offline))
        call = r.call(Op.REPORT, self._options.timeout)
        return bool(r.exchange.request(call, request, ReportReply).off)

    def canary_share(self, own: float) -> float:
        """What share of spliced requests a canary computes again: what an operator has told the
        daemon, as of the last answer to `served`, else an engine's own."""
        share = self._canary_share
        return own if share is None else share

    def served(self, report: Served) -> int | None:
        """Report how a prompt was served, after its first token. Returns the number under which the
        daemon lists it; None if it was not reported. A daemon too old to know the request gets
        it once at each attachment, as it counts every one as an error."""

        def tell(r: Registration) -> int | None:
            if self._deaf is r.attachment:
                return None
            try:
                number, self._canary_share = serving.served(r, report)
                return number
            except SplicedError as err:
                if err.code == Code.UNSUPPORTED:
                    self._deaf = r.attachment
                raise

        return self._ask(tell, lambda _: None)

    def _ask(self, work: Callable[[Registration], T], failed: Callable[[SplicedError], T]) -> T:
        """Do something with the registration; trouble is counted and reads as a failure."""
        keeper = self._keeper
        if keeper.inert:
            keeper.tally.add("inert")
            return failed(SplicedError(Code.UNAVAILABLE, "a forked child has no connection"))
        r = self._enrolment.registration
        if r is None or r.attachment.ended or not r.attachment.retain():
            keeper.tally.add("unavailable")
            return failed(SplicedError(Code.UNAVAILABLE, self.trouble))
        try:
            return work(r)
        except SplicedError as err:
            self._count(err)
            return failed(err)
        finally:
            r.attachment.release()

    def _count(self, err: SplicedError) -> None:
        if err.code == Code.INVALID:
            self._keeper.tally.add("invalid")
            self._keeper.log_wrong(str(err))
        elif err.code not in _QUIET:
            self._keeper.tally.add("refused")


def _every(out: list[H | None]) -> list[H | None]:
    """All, or none of them: what was leased is given back."""
    if None not in out:
        return out
    release_all(out)
    return [None] * len(out)


def _stored(store: Callable[[Registration, N], None], new: N, r: Registration) -> Code | int:
    store(r, new)
    return Code.OK


def _done(work: Callable[[Registration], None], r: Registration) -> Code | int:
    work(r)
    return Code.OK


def _code(err: SplicedError) -> Code | int:
    """A `Code`, or the number that a newer daemon sent."""
    try:
        return Code(err.code)
    except ValueError:
        return err.code


def _not_written(err: SplicedError) -> Placed:
    placed = Placed()
    placed.code = err.code
    placed.settle()
    return placed
