"""Leasing segments and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spliced_connector.client.connection.staging import Extent
from spliced_connector.client.device_lease import DeviceCheckpoint, DeviceSegment, HeldAt
from spliced_connector.client.device_memory import DeviceMemory, device_of
from spliced_connector.client.extents import present, runs
from spliced_connector.client.lease import Checkpoint, Held, Segment, Stored, release_all
from spliced_connector.client.match import known_kinds
from spliced_connector.client.registration import Registration
from spliced_connector.client.terms import Accept
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import MAX_TOKENS, Layout
from spliced_connector.wire import (
    AcquireDeviceRequest,
    AcquireReply,
    AcquireRequest,
    LoadDeviceRequest,
    LoadReply,
    LoadRequest,
    Op,
)
from spliced_connector.wire.numbers import MAX_KEYS

H = TypeVar("H", bound=Held)


def acquire(
    r: Registration,
    keys: Sequence[bytes],
    wait: float,
    *,
    together: bool = False,
    digests: bool = False,
    life: float = 0.0,
) -> list[Segment | None]:
    """Leases segments. The list has one entry per key, None for a segment that is not available.
    Raises `SplicedError`."""
    if together and len(keys) > MAX_KEYS:
        raise SplicedError(Code.INVALID, f"acquire: {len(keys)} keys")
    flags = int(digests), int(together)

    def ask(now: list[bytes]) -> AcquireReply:
        request = AcquireRequest(r.profile, r.rank, int(life * 1000), 0, *flags, now)
        call = r.call(Op.ACQUIRE, wait, gives_back=True)
        return r.exchange.request(call, request, AcquireReply)

    def make(held: HeldAt, key: bytes, row: _Row) -> Segment:
        return Segment(held, key, row.rows, row.stored)

    return _lease(r, keys, ask, len(r.attachment.arena), make)


def acquire_device(
    r: Registration,
    keys: Sequence[bytes],
    wait: float,
    *,
    together: bool = False,
    fetch: bool = True,
    digests: bool = False,
    life: float = 0.0,
) -> list[DeviceSegment | None]:
    """Like `acquire`, for copies in GPU memory. With `fetch`, the request waits until the daemon
    has made missing copies."""
    device = memory_of(r)
    if together and len(keys) > MAX_KEYS:
        raise SplicedError(Code.INVALID, f"acquire: {len(keys)} keys")
    flags = int(digests), int(together), int(fetch)

    def ask(now: list[bytes]) -> AcquireReply:
        request = AcquireDeviceRequest(r.profile, r.rank, int(life * 1000), *flags, now)
        call = r.call(Op.ACQUIRE_DEVICE, wait, gives_back=True)
        return r.exchange.request(call, request, AcquireReply)

    def make(held: HeldAt, key: bytes, row: _Row) -> DeviceSegment:
        return DeviceSegment(held, device, key, row.rows, row.stored)

    return _lease(r, keys, ask, device.arena.nbytes, make)


def memory_of(r: Registration) -> DeviceMemory:
    """Returns memory of the GPU. Raises `SplicedError(UNAVAILABLE)` if none is attached."""
    device = device_of(r.attachment)
    if device is None:
        raise SplicedError(Code.UNAVAILABLE, "no GPU memory is attached")
    return device


@dataclass(frozen=True)
class _Row:
    """The part of a reply that concerns one segment."""

    rows: tuple[int, int]
    stored: Stored


def _lease(
    r: Registration,
    keys: Sequence[bytes],
    ask: Callable[[list[bytes]], AcquireReply],
    arena: int,
    make: Callable[[HeldAt, bytes, _Row], H],
) -> list[H | None]:
    """Repeats the request until the daemon has answered for every key."""
    out: list[H | None] = [None] * len(keys)
    todo = list(range(len(keys)))
    try:
        while todo:
            now, rest = todo[:MAX_KEYS], todo[MAX_KEYS:]
            reply = ask([keys[i] for i in now])
            if len(reply.codes) != len(now):
                raise r.exchange.garbage(f"acquire: {len(reply.codes)} rows, want {len(now)}")
            todo = _rows(r, reply, keys, now, out, arena, make) + rest
    except SplicedError:
        release_all(out)
        raise
    return out


def _rows(
    r: Registration,
    reply: AcquireReply,
    keys: Sequence[bytes],
    now: list[int],
    out: list[H | None],
    arena: int,
    make: Callable[[HeldAt, bytes, _Row], H],
) -> list[int]:
    """Converts the rows of a reply, one per key, into segments. Returns the indices of the keys to
    ask for again.

    The daemon answers "busy" also for keys that found no room in the reply. That may be the cause
    if at least one key of the same reply got another answer.
    """
    again = []
    extent = digest = how = 0
    for row, i in enumerate(now):
        ends = (
            extent + reply.extent_count[row],
            digest + reply.digest_count[row],
            how + (reply.packed.count[row] if reply.packed is not None else 0),
        )
        code = reply.codes[row]
        if code == Code.OK:
            extents = slice(extent, ends[0])
            digests = slice(digest, ends[1])
            packed = b"" if reply.packed is None else bytes(reply.packed.layout[how : ends[2]])
            try:
                found = _segment(r, reply, row, arena, extents, digests, packed)
            except ValueError as err:
                raise r.exchange.garbage(f"acquire: {err}") from err
            held = (r.attachment, r.tenant, reply.leases[row], r.options.timeout)
            out[i] = make(held, keys[i], found)
        elif code == Code.BUSY:
            again.append(i)
        extent, digest, how = ends
    return again if len(again) < len(now) else []  # if all are busy, not for lack of room


def _segment(
    r: Registration,
    reply: AcquireReply,
    row: int,
    arena: int,
    extents: slice,
    digests: slice,
    packed: bytes,
) -> _Row:
    """Checks and converts one row of a reply. Raises ValueError."""
    tokens = reply.tokens[row]
    if not 1 <= tokens <= MAX_TOKENS:
        raise ValueError(f"a segment of {tokens} tokens")
    layout = r.enrolment.profile.packed_layout(tokens, packed)
    nbytes = reply.bytes[row]
    if layout.nbytes != nbytes:
        raise ValueError(f"a segment of {nbytes} bytes, want {layout.nbytes} for {tokens} tokens")
    where = runs(reply.extent_off[extents], reply.extent_len[extents], nbytes, arena)
    stored = Stored(layout, where, reply.digest[digests])
    return _Row((reply.begins[row], tokens), stored)


def load(
    r: Registration, prefix: bytes, accept: Accept, wait: float, *, digests: bool = False
) -> Checkpoint:
    """Leases the checkpoint of a prefix. Raises `SplicedError`, MISS if there is none."""
    accept = known_kinds(r, accept)
    request = LoadRequest(r.profile, r.rank, 0, accept, int(digests), prefix)
    reply = r.exchange.request(r.call(Op.LOAD, wait, gives_back=True), request, LoadReply)
    held, kind, nodes, stored = _chain(r, reply, accept, len(r.attachment.arena))
    return Checkpoint(held, kind, nodes, stored, _kinds(reply))


def load_device(
    r: Registration, prefix: bytes, accept: Accept, wait: float, *, digests: bool = False
) -> DeviceCheckpoint:
    """Like `load`, for a copy in GPU memory. If there is no copy yet, the daemon makes one. Kind
    `Accept.ROWS` is not accepted, because a copy on the GPU must have states."""
    device = memory_of(r)
    accept &= ~Accept.ROWS
    request = LoadDeviceRequest(r.profile, r.rank, 0, accept, int(digests), prefix)
    call = r.call(Op.LOAD_DEVICE, wait, gives_back=True)
    reply = r.exchange.request(call, request, LoadReply)
    held, kind, nodes, stored = _chain(r, reply, accept, device.arena.nbytes)
    return DeviceCheckpoint(held, device, kind, nodes, stored)


def _chain(
    r: Registration, reply: LoadReply, accept: Accept, arena: int
) -> tuple[HeldAt, Accept, tuple[tuple[int, int], ...], list[Stored]]:
    """Checks and converts a reply to load: the arguments that make a checkpoint."""
    try:
        nodes, stored = _nodes(r, reply, arena)
    except ValueError as err:
        raise r.exchange.garbage(f"load: {err}") from err
    kind = Accept(reply.kind & (Accept.ANY | Accept.ROWS))
    if not kind & accept or _kinds(reply)[-1] != reply.kind:
        raise r.exchange.garbage(f"load: a checkpoint of kind {reply.kind}, want {accept!r}")
    held = (r.attachment, r.tenant, reply.lease, r.options.timeout)
    return held, kind, tuple(nodes), stored


def _kinds(reply: LoadReply) -> bytes:
    """Returns the kind of each node, an `Accept`."""
    if reply.rows is None:  # all have states
        return bytes([reply.kind] * len(reply.node_begin))
    return bytes(reply.rows.kinds)


def _nodes(
    r: Registration, reply: LoadReply, arena: int
) -> tuple[list[tuple[int, int]], list[Stored]]:
    """Checks the nodes of a checkpoint, which are its consecutive token ranges. Together they must
    cover [0, reply.tokens), and each must have the size of its layout.

    Raises ValueError.
    """
    nodes: list[tuple[int, int]] = []
    stored = []
    at = extent = digest = 0
    last = len(reply.node_begin) - 1
    profile, kinds = r.enrolment.profile, _kinds(reply)
    for i, (begin, end) in enumerate(zip(reply.node_begin, reply.node_end, strict=True)):
        if begin != at or not begin < end <= MAX_TOKENS:
            raise ValueError(f"node {i} covers [{begin}, {end}), want it to begin at {at}")
        rows = kinds[i] == Accept.ROWS
        layout = (profile.edge_layout if rows else profile.checkpoint_layout)(end - begin)
        extents = slice(extent, extent + reply.extent_count[i])
        digests = slice(digest, digest + reply.digest_count[i])
        # A node of rows needs the states of the node before it.
        holes = i < last and not rows and kinds[i + 1] != Accept.ROWS
        offsets, lengths = reply.extent_off[extents], reply.extent_len[extents]
        where = runs(offsets, lengths, layout.nbytes, arena, holes=holes)
        _check_rows(layout, where)
        nodes.append((begin, end))
        stored.append(Stored(layout, where, reply.digest[digests]))
        at, extent, digest = end, extents.stop, digests.stop
    if at != reply.tokens or at == 0:
        raise ValueError(f"nodes cover {at} tokens, want {reply.tokens}")
    return nodes, stored


def _check_rows(layout: Layout, where: list[Extent]) -> None:
    """Refuses a node if some of its attention rows are not in memory."""
    for part in layout.parts:
        if part.kind in ("K", "V") and not present(where, part.offset, part.nbytes):
            raise ValueError(f"{part.kind} of layer {part.layer} is not in memory")
