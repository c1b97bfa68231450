"""Storing segments and checkpoints: reservation, bytes, digests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spliced_connector.client.buffers import Buffer
from spliced_connector.client.connection.checksum import CHUNK_BYTES, Digest, crc32, xxh3
from spliced_connector.client.connection.flight import Call
from spliced_connector.client.connection.returns import Return
from spliced_connector.client.connection.staging import padded
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Accept, Level
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import (
    MAX_TOKENS,
    NOTHING,
    Layout,
    SegmentSpec,
    segment_key,
    token_bytes,
)
from spliced_connector.wire import (
    CommitReply,
    CommitRequest,
    Op,
    ReservePrimers,
    ReserveReply,
    ReserveRequest,
    SaveBuffered,
    SaveRequest,
)
from spliced_connector.wire.numbers import MAX_COMMIT_ROWS

Fill: TypeAlias = Callable[[int, memoryview], None]
"""A function that writes bytes of a part into shared memory. Its arguments are an offset in the
part and a destination, which it fills with the bytes from that offset on."""

Source: TypeAlias = bytes | bytearray | memoryview | Fill
"""The bytes of a part: anything C-contiguous with a buffer, or a function that writes them."""

# One commit carries a quarter of an object, within these bounds in bytes. That is large enough to
# hide the round trip, and small enough to fill one batch while the daemon copies another.
_BATCH_LEAST = 512 << 10
_BATCH_MOST = 2 << 20
_AT_ONCE = 2  # while the daemon copies one batch the next is filled


@dataclass(frozen=True)
class NewSegment:
    """One rank's share of a segment to publish."""

    spec: SegmentSpec
    tokens: Sequence[int]
    """The segment's token ids; their count is `spec.tokens`."""
    parts: Sequence[Source]
    """One source for each part of `Profile.segment_layout(spec)`, in its order."""


@dataclass(frozen=True)
class NewCheckpoint:
    """One rank's share of a checkpoint to store."""

    hash: bytes
    """Hash of the first `tokens` tokens."""
    tokens: int
    parent_hash: bytes
    """Hash of the checkpoint that this one extends, `keys.NOTHING` for none. Only rows after the
    tokens of the extended checkpoint are stored."""
    parent_tokens: int
    kind: Accept
    parts: Sequence[Source]
    """One source for each part of `Profile.checkpoint_layout(tokens - parent_tokens)`, in its
    order, or of `edge_layout` for `Accept.ROWS`. If `buffer` is given, only sources for the parts
    of attention layers."""
    buffer: Buffer | None = None
    """For a checkpoint stored as `Accept.ROWS`: the buffer that already holds the checkpoint's rows
    of linear layers, all accepted. None: these rows are in `parts`."""


def publish(r: Registration, new: NewSegment, level: Level) -> None:
    """Publishes a segment. Raises `SplicedError`: EXISTS if another client has published or is
    filling it."""
    problem = r.enrolment.profile.spec_problem(new.spec)
    if problem is not None:
        raise SplicedError(Code.INVALID, problem)
    if new.spec.primer and not r.attachment.greeting.primers:
        raise SplicedError(Code.UNSUPPORTED, "segments after a primer")
    grant = r.attachment.greeting.grants[r.enrolment.tenant]
    key = segment_key(r.enrolment.profile, grant.salt, new.spec, new.tokens)
    layout = r.enrolment.profile.segment_layout(new.spec)
    writer = _Writer(r, layout, new.parts, level)
    ids = token_bytes(new.tokens)
    call = r.call(Op.RESERVE, r.options.transfer_timeout, gives_back=True)
    staging = r.attachment.staging
    part = staging.allocate(len(ids), call.deadline)
    call.late.staged = [part]
    staging.bytes_of(part)[:] = ids
    request = ReserveRequest(
        r.profile,
        r.rank,
        [key],
        bytes([new.spec.role]),
        [new.spec.head],
        [new.spec.tail],
        [new.spec.tokens],
        [part.offset],
        primers=ReservePrimers([new.spec.primer]) if new.spec.primer else None,
    )
    writer.write(call, request)


def save(r: Registration, new: NewCheckpoint, level: Level) -> None:
    """Stores a checkpoint. Raises `SplicedError`; BUSY also while its parent is read from disk."""
    rows = new.tokens - new.parent_tokens
    if not 0 <= new.parent_tokens < new.tokens <= MAX_TOKENS:
        text = f"save: {new.tokens} tokens after parent_tokens of {new.parent_tokens}"
        raise SplicedError(Code.INVALID, text)
    if (new.parent_tokens == 0) != (new.parent_hash == NOTHING) or new.kind not in (1, 2, 4):
        raise SplicedError(Code.INVALID, f"parent of {new.parent_tokens} tokens, kind {new.kind}")
    if new.hash == NOTHING:
        missing = (
            "" if r.enrolment.block_tokens else ": the model is registered without block_tokens"
        )
        raise SplicedError(Code.INVALID, f"save: hash names no prefix{missing}")
    profile, layout = r.enrolment.profile, r.enrolment.profile.checkpoint_layout
    if new.kind == Accept.ROWS:
        if not r.attachment.greeting.rows or not profile.keeps_rows:
            raise SplicedError(Code.UNSUPPORTED, "checkpoints as rows")
        layout = profile.edge_layout
    copied: frozenset[int] = frozenset()
    buffered = None
    if new.buffer is not None:
        if not r.attachment.greeting.buffered or new.kind != Accept.ROWS:
            raise SplicedError(Code.UNSUPPORTED, f"kind {new.kind} cannot be saved from a buffer")
        copied = frozenset(profile.linear_layers)
        buffered = SaveBuffered(new.buffer.lease_on(r.attachment))
    writer = _Writer(r, layout(rows), new.parts, level, copied)
    call = r.call(Op.SAVE, r.options.transfer_timeout, gives_back=True)
    request = SaveRequest(
        r.profile,
        r.rank,
        int(new.kind),
        [new.hash],
        [new.tokens],
        [new.parent_hash],
        buffered=buffered,
    )
    writer.write(call, request)


@dataclass
class _Batch:
    """Chunks of one commit."""

    parts: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    room: int = 0


class _Writer:
    """Copies one object into staging and commits it, batch by batch."""

    def __init__(
        self,
        r: Registration,
        layout: Layout,
        sources: Sequence[Source],
        level: Level,
        copied: Collection[int] = (),
    ) -> None:
        """copied: layers whose parts are not sent, because the daemon copies them from a buffer.
        Raises `SplicedError(INVALID)` for parts that do not fit the layout."""
        self._r = r
        self._layout = layout
        self._level = level
        self._digest = _digest(r)
        sent = [i for i, part in enumerate(layout.parts) if part.layer not in copied]
        if len(sources) != len(sent):
            raise SplicedError(Code.INVALID, f"{len(sources)} parts, want {len(sent)}")
        self._sources = {
            i: _flat(source, layout.parts[i].nbytes, i)
            for i, source in zip(sent, sources, strict=True)
        }
        self._reservation = 0

    def write(self, call: Call, request: ReserveRequest | SaveRequest) -> None:
        """Reserves, fills and commits. After any error nothing stays reserved."""
        self._reserve(call, request)
        done = False
        try:
            self._commit_all()
            done = True
        finally:
            if not done:  # also when a source raises
                self._abort()

    def _reserve(self, call: Call, request: ReserveRequest | SaveRequest) -> None:
        r = self._r
        try:
            reply = r.exchange.request(call, request, ReserveReply)
        finally:
            r.free_staging(call)
        if len(reply.codes) != 1:
            raise r.exchange.garbage(f"reserve: {len(reply.codes)} rows, want 1")
        if reply.codes[0] != Code.OK:
            text = "reserve: one of keys, roles, heads, tails, tokens, token ids"
            if isinstance(request, SaveRequest):
                text = "save: one of hash, kind, tokens, parent_hash, parent_tokens"
            invalid = reply.codes[0] == Code.INVALID
            raise SplicedError(reply.codes[0], text if invalid else text.partition(":")[0])
        self._reservation = reply.reservations[0]
        if reply.bytes[0] != self._layout.nbytes:
            self._abort()
            text = f"the daemon has {reply.bytes[0]} bytes, this client {self._layout.nbytes}"
            raise SplicedError(Code.INVALID, text)

    def _abort(self) -> None:
        r = self._r
        how = Return(Op.ABORT, r.tenant)
        r.attachment.give_back(how, [self._reservation], r.options.timeout)

    def _commit_all(self) -> None:
        flying: deque[tuple[Call, int]] = deque()
        try:
            for batch in self._batches():
                # While a batch is in flight, the next one must not wait for staging: the batch in
                # flight may occupy it, and only this thread frees it.
                call = self._fill(batch, wait=not flying)
                while call is None:
                    self._await(*flying.popleft())
                    call = self._fill(batch, wait=not flying)
                flying.append((call, len(batch.parts)))
                if len(flying) == _AT_ONCE:
                    self._await(*flying.popleft())
            while flying:
                self._await(*flying.popleft())
        finally:
            for left in flying:
                self._drain(*left)

    def _drain(self, call: Call, rows: int) -> None:
        """Waits for a commit whose outcome no longer matters, because an abort follows."""
        try:
            self._await(call, rows)
        except SplicedError:
            return

    def _batches(self) -> list[_Batch]:
        staging = len(self._r.attachment.staging.region)
        most = min(max(self._layout.nbytes // 4, _BATCH_LEAST), _BATCH_MOST)
        # Two batches are in flight at once, and other writers need room too.
        most = min(most, max(staging // 4, CHUNK_BYTES))
        batches = [_Batch()]
        for i in self._sources:
            part = self._layout.parts[i]
            for at in range(0, part.nbytes, CHUNK_BYTES):
                size = min(part.nbytes - at, CHUNK_BYTES)
                batch = batches[-1]
                full = batch.room + padded(size) > most or len(batch.parts) >= MAX_COMMIT_ROWS
                if batch.parts and full:
                    batch = _Batch()
                    batches.append(batch)
                batch.parts.append(i)
                batch.chunks.append(at // CHUNK_BYTES)
                batch.sizes.append(size)
                batch.room += padded(size)
        return [batch for batch in batches if batch.parts]

    def _fill(self, batch: _Batch, *, wait: bool) -> Call | None:
        """Writes a batch into staging and sends its commit. Returns None if there is no room
        now."""
        r = self._r
        staging = r.attachment.staging
        seconds = r.options.transfer_timeout
        if wait:
            room = staging.allocate(batch.room, time.monotonic() + seconds)
        else:
            free = staging.try_allocate(batch.room)
            if free is None:
                return None
            room = free
        memory = staging.bytes_of(room)
        offsets = []
        digests = []
        try:
            at = 0
            for part, chunk, size in zip(batch.parts, batch.chunks, batch.sizes, strict=True):
                target = memory[at : at + size]
                self._copy(part, chunk * CHUNK_BYTES, target)
                digests.append(self._digest(target))
                offsets.append(room.offset + at)
                at += padded(size)
        except BaseException:
            staging.free([room])
            raise
        n = len(batch.parts)
        request = CommitRequest(
            int(self._level),
            [self._reservation] * n,
            batch.parts,
            batch.chunks,
            [1] * n,
            offsets,
            digests,
        )
        # The timeout starts here, so that time spent in a source does not count against the daemon.
        call = r.call(Op.COMMIT, seconds, cancel=True)
        call.late.staged = [room]
        try:
            r.exchange.start(call, request)
        except SplicedError:
            r.free_staging(call)
            raise
        return call

    def _copy(self, part: int, offset: int, target: memoryview) -> None:
        source = self._sources[part]
        if callable(source):
            source(offset, target)
        else:
            target[:] = source[offset : offset + len(target)]

    def _await(self, call: Call, rows: int) -> None:
        """Waits for a commit. Raises `SplicedError` unless every row is OK."""
        r = self._r
        try:
            reply = r.exchange.result(call, CommitReply)
        finally:
            r.free_staging(call)
        if len(reply.codes) != rows:
            raise r.exchange.garbage(f"commit: {len(reply.codes)} rows, want {rows}")
        for row, code in enumerate(reply.codes):
            if code != Code.OK:
                raise SplicedError(code, f"commit: row {row}")


def _digest(r: Registration) -> Digest:
    """Returns the digest function of this connection. Raises `SplicedError(UNSUPPORTED)`."""
    if r.attachment.greeting.crc32:
        return crc32
    digest = xxh3()
    if digest is None:
        text = "the daemon takes XXH3 digests only, and xxhash is not installed"
        raise SplicedError(Code.UNSUPPORTED, text)
    return digest


def _flat(source: Source, nbytes: int, i: int) -> memoryview | Fill:
    """Returns the bytes of a part in one dimension. Raises `SplicedError(INVALID)`."""
    if callable(source):
        return source
    try:
        flat = memoryview(source).cast("B")
    except (TypeError, ValueError) as err:
        raise SplicedError(Code.INVALID, f"part {i}: {err}") from err
    if flat.nbytes != nbytes:
        raise SplicedError(Code.INVALID, f"part {i} has {flat.nbytes} bytes, want {nbytes}")
    return flat
