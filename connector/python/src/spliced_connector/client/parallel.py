"""Segments that the engines of several nodes compute for each other.

A plan assigns the segments that a prompt misses to engines, and makes the other engines begin. A
watch reports their progress. An engine with time to spare waits for jobs. Each job is a segment
that the engine computes in isolation and publishes, as if one of its own requests had missed it.

Plans send token ids to other nodes, so the daemons of both nodes must allow plans for the tenant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.flight import Call
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Progress
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING, Role, SegmentSpec, segment_key, token_bytes
from spliced_connector.wire import (
    Op,
    PlanPrimers,
    PlanReply,
    PlanRequest,
    WatchPrimersQuery,
    WatchReply,
    WatchRequest,
)
from spliced_connector.wire.numbers import (
    MAX_PLAN_ROWS,
    MAX_PRIMERS,
    MAX_PROMPT,
    MAX_WORKER_JOBS,
)

LATE_SHARE = 0.5
LATE_LEAST = 0.2
"""How long to wait for a plan beyond its expected time: LATE_SHARE times the expected time, but at
least LATE_LEAST seconds. Both constants are guesses, as is the expected time."""

_WAIT_MOST = 30.0
_ANSWERED_IN = 8 / 7  # timeout divided by wait: the daemon can use the whole wait
_MICROS_MOST = 2**32 - 1


@dataclass(frozen=True)
class Missing:
    """A segment that a prompt misses. `tokens` lists its `spec.tokens` token ids."""

    spec: SegmentSpec
    tokens: Sequence[int]


def plannable(missing: Iterable[Missing]) -> list[Missing]:
    """Returns as many leading segments as one plan may name. This engine computes the others."""
    chosen: list[Missing] = []
    room = MAX_PROMPT
    for one in missing:
        if len(chosen) == MAX_PLAN_ROWS or room < one.spec.tokens:
            break
        chosen.append(one)
        room -= one.spec.tokens
    return chosen


@dataclass(frozen=True)
class Assigned:
    """The engine that computes a segment, and in how many seconds the segment is expected here."""

    key: bytes
    worker: int
    """0 is the asking engine, other numbers are other engines of this plan."""
    own: bool
    """Whether the asking engine must compute the segment. If False and `worker` is 0, the segment
    is already on this node."""
    seconds: float


@dataclass(frozen=True)
class WorkPlan:
    """Which engine computes each segment of a prompt, in the order of the query."""

    id: int
    """0: no plan was started, and the asking engine computes all of them."""
    alone: int
    """An `Alone`: why no plan was started."""
    rows: tuple[Assigned, ...]
    own: tuple[int, ...]
    """Indices of the rows that the engine computes itself, in the order of execution."""
    seconds: float
    """Expected time until all segments are here."""
    alone_seconds: float
    """Expected time if the asking engine computes all segments."""
    combine: str
    """The node where all segments would be present earliest; empty for this node."""
    at: Attachment = field(repr=False, compare=False)
    """The connection that asked. The plan ends when this connection ends."""

    @property
    def away(self) -> frozenset[bytes]:
        """Returns the keys of the segments that other engines compute."""
        return frozenset(row.key for row in self.rows if row.worker)

    @property
    def own_keys(self) -> tuple[bytes, ...]:
        """Returns the keys of the segments that the asking engine computes."""
        return tuple(self.rows[i].key for i in self.own)


@dataclass(frozen=True)
class PlanNews:
    """Events of a plan's segments since the last watch, by key."""

    committed: frozenset[bytes] = frozenset()
    """Keys of segments that can be acquired now."""
    lost: frozenset[bytes] = frozenset()
    """Keys of segments whose workers declined, are gone or are late. The asking engine must compute
    these segments."""


@dataclass(frozen=True)
class Job:
    """A segment that another engine needs: compute it in isolation and publish it."""

    id: int
    key: bytes
    spec: SegmentSpec
    tokens: tuple[int, ...]
    """The segment's token ids; their count is `spec.tokens`."""
    begin: int
    """0: compute the whole segment. Otherwise compute the tokens from this one on: the tokens
    before it are the cached segment with key `left`. Only workers that support this get such
    jobs."""
    left: bytes
    deadline: float
    """When the result is no longer needed, a time of `time.monotonic`."""
    at: Attachment = field(repr=False, compare=False)
    """The connection that got the job. The job ends when this connection ends."""


@dataclass(frozen=True)
class JobNews:
    """New jobs, in the order of execution, and ids of earlier jobs that are no longer needed."""

    jobs: tuple[Job, ...] = ()
    withdrawn: frozenset[int] = frozenset()


def plan(
    r: Registration, missing: Sequence[Missing], queued: float, within: float, wait: float
) -> WorkPlan:
    """Asks which engine computes what. Raises `SplicedError`."""
    salt = r.attachment.greeting.grants[r.enrolment.tenant].salt
    ids = [one.tokens for one in missing]
    if not 1 <= len(missing) <= MAX_PLAN_ROWS or sum(map(len, ids)) > MAX_PROMPT:
        text = f"plan: {len(missing)} segments of {sum(map(len, ids))} tokens"
        raise SplicedError(Code.INVALID, text)
    primers = [one.spec.primer or NOTHING for one in missing]
    primed = any(one.spec.primer for one in missing)
    if primed and not r.attachment.greeting.primers:
        raise SplicedError(Code.UNSUPPORTED, "plan: segments after a primer")
    keys = [segment_key(r.enrolment.profile, salt, one.spec, one.tokens) for one in missing]
    call = r.call(Op.PLAN, wait, cancel=True)
    offset = _stage(r, call, b"".join(token_bytes(tokens) for tokens in ids))
    request = PlanRequest(
        profile=r.profile,
        queued_micros=_micros(queued),
        within_ms=math.ceil(within * 1e3),
        token_off=offset,
        keys=keys,
        roles=bytes(one.spec.role for one in missing),
        heads=[one.spec.head for one in missing],
        tails=[one.spec.tail for one in missing],
        tokens=[one.spec.tokens for one in missing],
        primers=PlanPrimers(primers) if primed else None,
    )
    try:
        reply = r.exchange.request(call, request, PlanReply)
    finally:
        r.free_staging(call)
    return _planned(r, reply, keys, [one.spec.tokens for one in missing])


def _planned(
    r: Registration, reply: PlanReply, keys: Sequence[bytes], tokens: Sequence[int]
) -> WorkPlan:
    """Checks and converts a reply. A wrong reply could make an engine wait for a segment that no
    engine computes."""
    own = tuple(reply.own_rows)
    whole = all(
        row < len(keys) and (begin, end) == (0, tokens[row])
        for row, begin, end in zip(own, reply.own_begins, reply.own_ends, strict=True)
    )
    if len(reply.workers) != len(keys) or len(set(own)) != len(own) or not whole:
        text = f"plan: {len(reply.workers)} rows for {len(keys)} segments, own ones {own[:8]}"
        raise r.exchange.garbage(text)
    if any(reply.workers[row] for row in own) or (not reply.plan and any(reply.workers)):
        raise r.exchange.garbage(f"plan: workers {list(reply.workers)[:8]}, own rows {own[:8]}")
    rows = tuple(
        Assigned(key, worker, i in own, micros / 1e6)
        for i, (key, worker, micros) in enumerate(
            zip(keys, reply.workers, reply.row_micros, strict=True)
        )
    )
    return WorkPlan(
        reply.plan,
        reply.alone,
        rows,
        own,
        reply.micros / 1e6,
        reply.alone_micros / 1e6,
        reply.combine,
        r.attachment,
    )


def watch(r: Registration, plan: WorkPlan, wait: float, *, end: bool = False) -> PlanNews:
    """Waits for events of a plan. Raises `SplicedError`."""
    if plan.at is not r.attachment:
        raise SplicedError(Code.UNAVAILABLE, "watch: the plan's connection has ended")
    call, wait_ms = _long(r, wait)
    request = WatchRequest(profile=r.profile, wait_ms=wait_ms, plan=plan.id, end=int(end))
    reply = r.exchange.request(call, request, WatchReply)
    if any(row >= len(plan.rows) for row in reply.rows):
        raise r.exchange.garbage(f"watch: rows {list(reply.rows)[:8]} of {len(plan.rows)}")
    progress = dict(zip([plan.rows[row].key for row in reply.rows], reply.progress, strict=True))
    return PlanNews(
        frozenset(key for key, what in progress.items() if what == Progress.COMMITTED),
        frozenset(
            key for key, what in progress.items() if what in (Progress.ABORTED, Progress.LATE)
        ),
    )


def jobs(
    r: Registration,
    most: int,
    wait: float,
    declined: Collection[Job],
    queued: float,
    *,
    end: bool = False,
    primers: Collection[bytes] = (),
) -> JobNews:
    """Waits for jobs. Raises `SplicedError`."""
    if len(primers) > MAX_PRIMERS or any(len(digest) != len(NOTHING) for digest in primers):
        text = f"watch: {len(primers)} digests of primers, at most {MAX_PRIMERS}"
        raise SplicedError(Code.INVALID, text)
    if not 0 <= most <= MAX_WORKER_JOBS:
        raise SplicedError(Code.INVALID, f"watch: {most} jobs at once, at most {MAX_WORKER_JOBS}")
    call, wait_ms = _long(r, wait)
    request = WatchRequest(
        profile=r.profile,
        wait_ms=wait_ms,
        end=int(end),
        jobs=most,
        queued_micros=_micros(queued),
        declined=[job.id for job in declined if job.at is r.attachment][:MAX_WORKER_JOBS],
        primers=WatchPrimersQuery(list(primers))
        if primers and r.attachment.greeting.primers
        else None,
    )
    reply = r.exchange.request(call, request, WatchReply)
    now = time.monotonic()
    after = [NOTHING] * len(reply.jobs) if reply.primers is None else reply.primers.ids
    new, at = [], 0
    for i, (job, n) in enumerate(zip(reply.jobs, reply.tokens, strict=True)):
        try:
            primer = b"" if after[i] == NOTHING else bytes(after[i])
            spec = SegmentSpec(Role(reply.roles[i]), reply.heads[i], reply.tails[i], n, primer)
        except ValueError as err:
            raise r.exchange.garbage(f"watch: {err}") from err
        ids = tuple(reply.ids[at : at + n])
        begin, deadline = reply.begins[i], now + reply.micros[i] / 1e6
        new.append(
            Job(
                job, bytes(reply.keys[i]), spec, ids, begin, bytes(reply.lefts[i]), deadline,
                r.attachment,
            )
        )  # fmt: skip
        at += n
    return JobNews(tuple(new), frozenset(reply.withdrawn))


def _stage(r: Registration, call: Call, ids: bytes) -> int:
    """Copies token ids into the call's staging. Returns their offset."""
    staging = r.attachment.staging
    part = staging.allocate(len(ids), call.deadline)
    call.late.staged = [part]
    staging.bytes_of(part)[:] = ids
    return part.offset


def _long(r: Registration, wait: float) -> tuple[Call, int]:
    """Returns a call that the daemon should answer within `wait` seconds, and the wait in ms."""
    wait = min(max(wait, 0.0), _WAIT_MOST)
    call = r.call(Op.WATCH, wait * _ANSWERED_IN + r.options.timeout, cancel=True)
    return call, math.ceil(wait * 1e3)


def _micros(seconds: float) -> int:
    return min(max(int(seconds * 1e6), 0), _MICROS_MOST)


class Watches(Protocol):
    """An object that sends requests about a plan: the client's `Model`."""

    def watch(self, plan: WorkPlan, wait: float, end: bool = False) -> PlanNews | None: ...


class Following:
    """Follows the segments of a plan that other engines compute.

    Each segment arrives or counts as lost within the plan's expected time plus a margin. If the
    daemon is gone, all segments without an event count as lost. For one thread at a time.
    """

    def __init__(self, model: Watches, plan: WorkPlan) -> None:
        self.plan = plan
        self.left = plan.away if plan.id else frozenset()
        """Keys of the segments without an event so far."""
        self._model = model
        self._until = time.monotonic() + plan.seconds + max(LATE_LEAST, LATE_SHARE * plan.seconds)

    def watch(self, wait: float) -> PlanNews:
        """Waits at most `wait` seconds for an event."""
        if not self.left:
            return PlanNews()
        time_left = self._until - time.monotonic()
        over = time_left <= 0
        news = self._model.watch(self.plan, max(0.0, min(wait, time_left)), end=over)
        came = self.left & news.committed if news is not None else frozenset()
        lost = self.left - came if over or news is None else (self.left & news.lost) - came
        self.left -= came | lost
        return PlanNews(came, lost)

    def close(self) -> None:
        """Withdraws the segments that other engines still compute."""
        if self.left:
            self.left = frozenset()
            self._model.watch(self.plan, 0.0, end=True)
