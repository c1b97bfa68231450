"""Buffers: rows of recent tokens that the daemon keeps next to a state. First come the rows of
accepted tokens, then those of drafts."""

from __future__ import annotations

from collections.abc import Sequence

from spliced_connector.client.compute import Origin, encode_origin, result_slot, run_into
from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.lease import Checkpoint, Held, Slot
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Accept
from spliced_connector.errors import Code, SplicedError
from spliced_connector.wire import (
    AcceptRequest,
    AppendReply,
    AppendRequest,
    ComposeReply,
    Op,
    ReplayRequest,
)

_MOST = 2**31 - 1

_UNCHANGED = {Code.INVALID, Code.BUSY, Code.FULL, Code.QUOTA}


class Buffer(Held):
    """The rows of the tokens after a state. A buffer ends with its release or with the connection.

    For one thread at a time.
    """

    def __init__(self, held: tuple[Attachment, int, int, float], begin: int) -> None:
        super().__init__(*held)
        self.begin = self.accepted = self.end = begin
        """Prompt positions: `begin` is at the first row, `accepted` is after the last accepted row,
        `end` is after the last draft."""
        self.lost = False
        """A failed request may have changed the buffer, so it can only be released."""

    def lease_on(self, attachment: Attachment) -> int:
        if self.lost:
            raise SplicedError(Code.GONE, f"buffer {self._lease}: a call may have changed it")
        return super().lease_on(attachment)

    def settle(self, err: SplicedError) -> None:
        """Records that a request has failed. The buffer is lost, except for codes in
        `_UNCHANGED`."""
        self.lost = self.lost or err.code not in _UNCHANGED


def open_buffer(r: Registration, origin: Origin, begin: int, capacity: int) -> Buffer:
    """Opens a buffer without rows. Raises `SplicedError`."""
    if not 0 <= begin <= _MOST or not 1 <= capacity <= _MOST:
        raise SplicedError(Code.INVALID, f"buffer of {capacity} rows from token {begin}")
    _, base, offset = encode_origin(r, origin)
    if origin.slot is not None and offset != origin.slot.offset:
        raise SplicedError(Code.INVALID, "a buffer must begin at the start of a slot")
    request = AppendRequest(r.profile, r.rank, 0, base, begin, capacity)
    call = r.call(Op.APPEND, r.options.transfer_timeout, gives_back=True, cancel=True)
    reply = r.exchange.request(call, request, AppendReply)
    if reply.buffer == 0:
        raise r.exchange.garbage("append: buffer 0")
    _check(r, reply, AppendReply(reply.buffer, begin, begin, begin))
    return Buffer((r.attachment, r.tenant, reply.buffer, r.options.timeout), begin)


def append(r: Registration, buffer: Buffer, n: int, rows: bytes | bytearray | memoryview) -> None:
    """Adds the rows of the next n tokens as drafts. Raises `SplicedError`."""
    _send(r, buffer, n, [_flat(r, n, rows)])


def append_path(
    r: Registration,
    buffer: Buffer,
    parents: Sequence[int],
    path: Sequence[int],
    rows: bytes | bytearray | memoryview,
) -> None:
    """Adds the rows of one path of a tree of drafts, from its root down. Raises `SplicedError`."""
    flat = _flat(r, len(parents), rows)
    _check_path(parents, path)
    pieces: list[memoryview] = []
    sent = 0
    whole, some = (r.enrolment.profile.buffer_layout(n) for n in (len(parents), len(path)))
    for part, target in zip(whole.parts, some.parts, strict=True):
        pieces.append(memoryview(bytes(target.offset - sent)))
        row = part.nbytes // len(parents)
        pieces += [flat[part.offset + i * row :][:row] for i in path]
        sent = target.offset + target.nbytes
    pieces.append(memoryview(bytes(some.nbytes - sent)))
    _send(r, buffer, len(path), pieces)


def _flat(r: Registration, n: int, rows: bytes | bytearray | memoryview) -> memoryview:
    """Returns the rows of n tokens as bytes."""
    try:
        flat = memoryview(rows).cast("B")
    except (TypeError, ValueError) as err:
        raise SplicedError(Code.INVALID, f"rows: {err}") from err
    want = r.enrolment.profile.buffer_layout(n).nbytes
    if not 1 <= n <= _MOST or flat.nbytes != want:
        raise SplicedError(Code.INVALID, f"{n} rows in {flat.nbytes} bytes, want {want}")
    return flat


def _check_path(parents: Sequence[int], path: Sequence[int]) -> None:
    """Checks that each draft comes after its parent, and that the path goes from parent to
    child."""
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise SplicedError(Code.INVALID, f"draft {i} cannot follow draft {parent}")
    if not path:
        raise SplicedError(Code.INVALID, "empty path of drafts")
    last = -1
    for draft in path:
        if not 0 <= draft < len(parents) or parents[draft] != last:
            text = f"draft {draft} does not follow draft {last} of {len(parents)}"
            raise SplicedError(Code.INVALID, text)
        last = draft


def _send(r: Registration, buffer: Buffer, n: int, pieces: Sequence[memoryview]) -> None:
    """Adds n rows, given as consecutive pieces."""
    lease = buffer.lease_on(r.attachment)
    call = r.call(Op.APPEND, r.options.transfer_timeout, cancel=True)
    staging = r.attachment.staging
    room = staging.allocate(sum(p.nbytes for p in pieces), call.deadline)
    call.late.staged = [room]
    target, at = staging.bytes_of(room), 0
    for piece in pieces:
        target[at : at + piece.nbytes] = piece
        at += piece.nbytes
    request = AppendRequest(r.profile, r.rank, lease, 0, buffer.end, 0, n, room.offset)
    try:
        reply = r.exchange.request(call, request, AppendReply)
    except SplicedError as err:
        buffer.settle(err)
        raise
    finally:
        r.free_staging(call)
    _take(r, buffer, reply, AppendReply(lease, buffer.begin, buffer.accepted, buffer.end + n))


def accept(r: Registration, buffer: Buffer, n: int) -> None:
    """Keeps the first n drafts and drops the others. Raises `SplicedError`."""
    if not 0 <= n <= _MOST:
        raise SplicedError(Code.INVALID, f"{n} drafts")
    lease = buffer.lease_on(r.attachment)
    call = r.call(Op.ACCEPT, r.options.timeout)
    request = AcceptRequest(r.profile, r.rank, lease, n)
    try:
        reply = r.exchange.request(call, request, AppendReply)
    except SplicedError as err:
        buffer.settle(err)
        raise
    end = buffer.accepted + n
    _take(r, buffer, reply, AppendReply(lease, buffer.begin, end, end))


def replay(
    r: Registration, buffer: Buffer, token: int, into: Slot | None, *, flush: bool
) -> Slot | None:
    """Returns the states after prompt tokens [0, token), which must all be accepted. Raises
    `SplicedError`."""
    if not buffer.begin <= token <= buffer.accepted:
        text = f"token {token} of a buffer of [{buffer.begin}, {buffer.accepted})"
        raise SplicedError(Code.INVALID, f"replay to {text}")
    lease = buffer.lease_on(r.attachment)
    target = 0 if into is None else into.lease_on(r.attachment)
    request = ReplayRequest(r.profile, r.rank, lease, token, int(flush), target)
    try:
        reply: ComposeReply = run_into(r, Op.REPLAY, request, into)
    except SplicedError as err:
        if flush:
            buffer.settle(err)
        raise
    if flush:
        buffer.begin = token
    return result_slot(r, reply.lease, reply.off, reply.bytes, 0, into)


def replay_rows(
    r: Registration, checkpoint: Checkpoint, token: int, into: Slot | None
) -> Slot | None:
    """Returns the states after prompt tokens [0, token), computed from a checkpoint that is stored
    as rows. Raises `SplicedError`."""
    if checkpoint.kind != Accept.ROWS or not checkpoint.states <= token <= checkpoint.tokens:
        text = f"token {token} of [{checkpoint.states}, {checkpoint.tokens}] kept as rows"
        raise SplicedError(Code.INVALID, f"replay to {text}")
    lease = checkpoint.lease_on(r.attachment)
    target = 0 if into is None else into.lease_on(r.attachment)
    request = ReplayRequest(r.profile, r.rank, lease, token, 0, target)
    reply: ComposeReply = run_into(r, Op.REPLAY, request, into)
    return result_slot(r, reply.lease, reply.off, reply.bytes, 0, into)


def _take(r: Registration, buffer: Buffer, reply: AppendReply, want: AppendReply) -> None:
    """Stores the positions that a reply reports."""
    try:
        _check(r, reply, want)
    except SplicedError as err:
        buffer.settle(err)
        raise
    buffer.accepted, buffer.end = reply.accepted, reply.end


def _check(r: Registration, reply: AppendReply, want: AppendReply) -> None:
    """Checks that a reply reports the positions that follow from the request."""
    if reply != want or reply.end > _MOST:
        raise r.exchange.garbage(f"a buffer as {reply}, want {want}")
