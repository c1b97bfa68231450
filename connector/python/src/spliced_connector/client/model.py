"""The requests that an engine sends to the daemon for one model and tenant."""

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

# After one of these codes the remaining objects of a batch are not sent: they would fail too.
_HOPELESS = {Code.UNAVAILABLE, Code.LATE, Code.STALE, Code.DENIED, Code.UNSUPPORTED}

_LOST = {Code.UNAVAILABLE, Code.LATE, Code.STALE, Code.CANCELED}  # the daemon has not answered

_QUIET = {Code.MISS, Code.EXISTS, Code.UNAVAILABLE, Code.LATE}  # not failures, or counted elsewhere


class Model:
    """A profile registered for one tenant and rank. It stays usable across restarts of the daemon.

    If the daemon fails, a method raises nothing and returns the same as for a miss. Several threads
    may call all methods at once. Each call has a timeout.
    """

    def __init__(self, keeper: Keeper, enrolment: Enrolment, owner: object) -> None:
        self._keeper = keeper
        self._enrolment = enrolment
        self._owner = owner  # keeps the client alive
        self._options = keeper.options
        self._deaf: Attachment | None = None  # the daemon there lacks `Op.SERVED`
        self._canary_share: float | None = None
        self._offline: Losses = {}
        self._offline_sent_to: Attachment | None = None  # received `_offline`

    @property
    def profile(self) -> Profile:
        """The profile that the model was made from."""
        return self._enrolment.profile

    @property
    def block_tokens(self) -> int:
        """Tokens per block in the hashes of prefixes."""
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
        """Whether the daemon can save rows of a buffer as a checkpoint; False before the first
        registration at a daemon."""
        r = self._enrolment.registration
        if r is None:
            return False
        greeting = r.attachment.greeting
        return greeting.rows and greeting.buffered

    @property
    def primers(self) -> bool:
        """Whether the daemon supports segments that were captured after a primer; False before the
        first registration at a daemon. Without this support such segments are not published, and
        lookups of them miss."""
        r = self._enrolment.registration
        return r is not None and r.attachment.greeting.primers

    @property
    def looks_up(self) -> bool:
        """Whether an `advise` request may include the lookup of the prompt (`Query.lookup`)."""
        r = self._enrolment.registration
        return r is not None and r.attachment.greeting.lookup

    @property
    def silent(self) -> bool:
        """Whether a call got no answer in time and the daemon has sent nothing since."""
        r = self._enrolment.registration
        return r is not None and r.exchange.stall.silent

    @property
    def refused(self) -> str:
        """Why the daemon refuses the profile, empty when it does not."""
        return self._enrolment.refusal

    @property
    def trouble(self) -> str:
        """Why calls fail now; empty if they do not. Either no daemon is attached, or it has not
        registered the profile, for example because the connection has too many profiles."""
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
        """Wait at most `timeout` seconds until calls can be answered or the daemon has refused the
        profile. Returns `attached`.

        An engine need not wait: until then its calls return misses.
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
        """The key of a segment for this model and tenant; None while `salt` is None.

        Raises `ProfileError` for tokens that do not fit the spec.
        """
        salt = self.salt
        return None if salt is None else segment_key(self.profile, salt, spec, tokens)

    def prefix_hashes(
        self, tokens: Sequence[int], positions: Sequence[int], block_tokens: int | None = None
    ) -> list[bytes] | None:
        """Hashes of the tokens before each position. Positions ascend. None while `salt` is None.

        `block_tokens` None means the model's.
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
        """Look up a prompt. `prefixes[i]` is the hash of its first `positions[i]` tokens; positions
        ascend.

        With `known` the daemon also searches the prompt for cached segments (`Match.known`). A
        segment may be cached in two variants, captured after a primer or without one. `others` is
        empty, or has for each key the key of the segment's other variant (`NOTHING` if there is
        none). The other variant is looked up where the key misses (`Match.variant`).

        After any failure everything is a miss, and `Match.trouble` says why.
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

        With `all`, either all keys are leased or none. `wait` is the timeout in seconds, which
        includes reads from disk and fetches from other nodes; None is `Options.timeout`. `life` is
        the lifetime of the leases in seconds, 0 is the daemon's setting. The daemon refuses a
        lifetime above its max-lease-ttl, and then all keys miss.
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
        """Like `acquire`, for copies of the segments in GPU memory.

        Segments that are cached but not on the GPU are copied there. With `fetch` this call waits
        for the copy; without it they are misses for now. Without GPU memory all are misses
        (`Client.device_state` says why).
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
        """Lease the checkpoint of the prefix with this hash. None: no checkpoint of a kind in
        `accept` is cached."""
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
        """Like `load`, for a copy in GPU memory."""
        seconds = self._options.timeout if wait is None else wait
        return self._ask(
            lambda r: leasing.load_device(r, hash, accept, seconds, digests=digests),
            lambda _: None,
        )

    def publish(
        self, segments: Sequence[NewSegment], level: Level = Level.DEFAULT
    ) -> list[Code | int]:
        """Publish segments. Returns a code for each; EXISTS means that another client has published
        the segment or is publishing it.

        Each message has the timeout `Options.transfer_timeout`. If the daemon does not answer, or
        refuses a segment for a reason that holds for all segments, the remaining segments are not
        sent and get the same code.
        """
        return self._store(segments, lambda r, new: storing.publish(r, new, level))

    def save(
        self, checkpoints: Sequence[NewCheckpoint], level: Level = Level.DEFAULT
    ) -> list[Code | int]:
        """Save checkpoints. Returns codes, and stops early, as `publish` does."""
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
        """Logs why objects were not stored, and how full the daemon's pools are, at most once per
        `keeper.WRONG_SECONDS`."""
        if not self._keeper.full_due():
            return
        usage = self._ask(
            lambda r: pools(figures(r.attachment, self._options.timeout)), lambda _: ""
        )
        why = "the tenant is over its quota" if code is Code.QUOTA else "the daemon is full"
        log.warning("segments or checkpoints were not stored: %s%s", why, usage and f" ({usage})")

    def advise(self, query: Query) -> Advice | None:
        """Ask how to serve a prompt and what of it to store. None: use nothing and store nothing
        new."""

        def ask(r: Registration) -> Advice:
            attached = r.attachment
            if self._offline and attached.greeting.losses and self._offline_sent_to is not attached:
                self._report_offline(r)
            return advising.advise(r, query)

        advice = self._ask(ask, lambda _: None)
        self._keeper.tally.add("unadvised" if advice is None else "advised")
        return advice

    def _report_offline(self, r: Registration) -> None:
        """Reports the losses that were measured offline. If the daemon refuses them, this is logged
        and not tried again at this daemon. Raises SplicedError if it does not answer; the next
        `advise` tries again."""
        try:
            self._report(r, ReportRequest(r.profile), self._offline, offline=True)
        except SplicedError as err:
            if err.code in _LOST:
                raise
            self._keeper.tally.add("refused")
            log.warning("the daemon refused the losses measured offline: %s", err)
        self._offline_sent_to = r.attachment

    def measured_offline(self, losses: Losses) -> None:
        """Sets the losses that were measured before anything was served. They are reported to each
        daemon before its first advice, and replace offline losses that were reported to it
        earlier."""
        self._offline, self._offline_sent_to = losses, None

    def compose(
        self,
        plan: Plan,
        layer: int = ALL_LAYERS,
        origin: Origin = Origin(),  # noqa: B008
        into: Slot | None = None,
        wait: float | None = None,
    ) -> Slot | None:
        """Compose the states of a plan with n computed spans. Returns a slot that is laid out by
        `Profile.states_layout(layer, n)`: for each requested layer the F32 state before each
        computed span, then the final state.

        If the last span has no input, the final state is the state before that span. `into` is an
        earlier slot to overwrite; after a failure its contents may be lost, and it can only be
        released. `wait` is the timeout in seconds, None is `Options.transfer_timeout`.
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
        """Returns a slot with the keys and values of a plan's segments, with keys rotated to their
        positions in the prompt. It is laid out by `Profile.rows_layout(layer, rows)`. Inputs of
        spans are ignored. `into` and `wait` are as in `compose`."""
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
        """Compose and rotate for all layers. Only the last span of the plan may be computed.

        The slot is laid out by `Profile.checkpoint_layout(rows)`. `into` and `wait` are as in
        `compose`.
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
        """Like `rotate`, or `assemble` with `states`, but writes keys and values into the engine's
        memory. `blocks` is the engine's block table for the tokens [0, plan.end).

        The rows are valid only if `Placed.code` is OK. Until `Placed.settled` the daemon may still
        write to the blocks. With `states`, `Placed.slot` has the states and convolution tails, laid
        out by `Profile.checkpoint_layout(0)`.
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
        """Open a buffer for at most `capacity` rows, of the tokens from position `begin` on.

        `origin` names the states before these tokens: a checkpoint of `begin` tokens, a slot that
        begins with `Profile.checkpoint_layout(0)` (it is copied), or zero states. `origin` can be
        released afterwards.
        """
        return self._ask(lambda r: buffers.open_buffer(r, origin, begin, capacity), lambda _: None)

    def append(self, buffer: Buffer, n: int, rows: bytes | bytearray | memoryview) -> Code | int:
        """Add the rows of the next n tokens as drafts, laid out by `Profile.buffer_layout(n)`.

        Returns FULL if the buffer has no room for n more rows. After FULL, INVALID, BUSY or QUOTA
        the buffer is unchanged; after any other failure it can only be released.
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
        """Like `append`, for one path of a tree of drafts, from its root down.

        `parents[i]` is the number of the earlier draft that draft i follows, or -1 if it follows
        the buffer's end. `path` lists the drafts of the path. `rows` has the rows of all drafts;
        only those of the path are sent, because each row of a buffer must follow the one before it.
        Returns INVALID if `path` is not a path of the tree.
        """
        add = partial(buffers.append_path, buffer=buffer, parents=parents, path=path, rows=rows)
        return self._ask(partial(_done, add), _code)

    def accept(self, buffer: Buffer, n: int) -> Code | int:
        """Keep the first n drafts and drop the others. Failures are as in `append`."""
        return self._ask(partial(_done, partial(buffers.accept, buffer=buffer, n=n)), _code)

    def replay(
        self, buffer: Buffer, token: int, flush: bool = False, into: Slot | None = None
    ) -> Slot | None:
        """Returns a slot with the states and convolution tails after prompt tokens [0, token), laid
        out by `Profile.checkpoint_layout(0)`. They are bit-identical to those of decoding one token
        at a time. The position `token` is from `buffer.begin` to `buffer.accepted`.

        With `flush` the rows before `token` become part of the buffer's base state and leave the
        buffer. A failed call with `flush` affects the buffer as a failed `append` does.
        """
        return self._ask(
            lambda r: buffers.replay(r, buffer, token, into, flush=flush), lambda _: None
        )

    def replay_rows(
        self, checkpoint: Checkpoint, token: int, into: Slot | None = None
    ) -> Slot | None:
        """Like `replay`, for a checkpoint that is kept as rows. `token` is a position from
        `checkpoint.states` to `checkpoint.tokens`."""
        return self._ask(lambda r: buffers.replay_rows(r, checkpoint, token, into), lambda _: None)

    def plan(
        self,
        missing: Sequence[Missing],
        queued: float = 0.0,
        within: float = 0.0,
        wait: float | None = None,
    ) -> WorkPlan | None:
        """Ask which engines compute the segments that a prompt misses, and have the other engines
        begin. They may be on other nodes. None means the same as a plan with id 0: this engine
        computes all of them.

        `queued` is the number of seconds of other work that this engine does first. A segment that
        does not arrive on this node within `within` seconds is late; 0 is the daemon's setting. No
        segment may be named twice.
        """
        seconds = self._options.timeout if wait is None else wait
        return self._ask(
            lambda r: parallel.plan(r, missing, queued, within, seconds), lambda _: None
        )

    def watch(self, plan: WorkPlan, wait: float, end: bool = False) -> PlanNews | None:
        """Wait at most `wait` seconds for news of a plan; None: the plan is over.

        Only one watch of a client may wait at a time, for all its plans together. `end` withdraws
        the segments that other engines still compute. `Following` adds a time limit.
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
        """Wait at most `wait` seconds for jobs: segments that other engines need. None: the call
        failed or the daemon does not support jobs. The caller counts as a worker until it has no
        job and has not called for some seconds.

        `most` is the largest number of jobs that the worker may have at once, including those it
        has. It will not do the `declined` jobs. `queued` is the number of seconds of other work
        that it does first. With `end` it stops being a worker. `primers` are the digests of the
        primers that it has, at most 16; it gets no segment that needs another primer. A job is done
        when its segment is held in all ranks, no matter which client of the node published it. Only
        one call may wait at a time.
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
        """Report the results of a canary, which recomputes a sample of spliced requests, since the
        last report. It has recomputed `compared` reuses; `failed` of them differed by more than
        `bound`. `worst` is the largest difference. `losses` are counted for each way of splicing.

        `off` switches splicing off for the profile. Returns whether it is off, None if unknown.
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
        """Returns the share of spliced requests that a canary recomputes: the share that an
        operator has set at the daemon, as of the last answer to `served`. If none is set, returns
        `own`."""
        share = self._canary_share
        return own if share is None else share

    def served(self, report: Served) -> int | None:
        """Report how a prompt was served, after its first token. Returns the number under which the
        daemon lists the request; None if it was not reported. A daemon that is too old for these
        reports counts each as an error, so it gets only one per attachment."""

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
        """Call `work` with the registration. Counts a failure, and returns the result of
        `failed`."""
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
    """Returns `out` if nothing is missing. Otherwise releases all leases and returns only None."""
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
