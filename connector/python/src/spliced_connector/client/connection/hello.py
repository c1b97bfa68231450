"""The beginning of a connection: the client says who it is, and the daemon shares its memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from spliced_connector.client.connection import trust
from spliced_connector.client.connection.attachment import Attachment
from spliced_connector.client.connection.channel import TICK, Channel, close_all, connect
from spliced_connector.client.connection.checksum import xxh3
from spliced_connector.client.connection.counters import Tally
from spliced_connector.client.connection.greeting import Grant, Greeting
from spliced_connector.client.connection.options import Options, default_socket
from spliced_connector.client.connection.peer import Peer
from spliced_connector.client.connection.region import Region
from spliced_connector.errors import Code, SplicedError, WireError
from spliced_connector.wire import (
    HELLO_DESCRIPTORS,
    MAX_FRAME,
    VERSION,
    Feature,
    FrameKind,
    Header,
    HelloReply,
    HelloRequest,
    Op,
    Refusal,
    decode,
    encode,
)
from spliced_connector.wire.numbers import ATTACH_DESCRIPTORS, MAX_CHUNKS

_IN_FLIGHT_MOST = 256  # even if the daemon allows more
_KNOWN = Feature.PROMPT | Feature.KNOWN


def attach(
    options: Options, tally: Tally, wake: Callable[[], bool], closed: Callable[[], bool]
) -> Attachment:
    """Connects, sends hello and maps the memory in the reply, within `options.attach_timeout`.

    `closed` is called repeatedly; True ends the attempt. Raises `SplicedError`.
    """
    path = options.socket or default_socket()
    deadline = time.monotonic() + options.attach_timeout
    channel = connect(path, options.attach_timeout)
    try:
        trust.check(channel, path, options.daemon_uid)  # before hello, which contains tokens
    except BaseException:
        channel.close()
        raise
    peer = Peer(channel)
    descriptors: list[int] = []
    try:
        frame, descriptors = _ask(channel, options, deadline, closed)
        reply = _read_reply(frame)
        greeting = _greet(reply, descriptors, options)
        if greeting.device:
            channel.carry(ATTACH_DESCRIPTORS + MAX_CHUNKS)
        return Attachment(channel, peer, greeting, tally, wake)
    except SplicedError as err:
        channel.close()
        peer.close()
        raise SplicedError(err.code, f"{path}: {err.text}") from err
    finally:
        close_all(descriptors)  # the mappings keep the memory


def _ask(
    channel: Channel, options: Options, deadline: float, closed: Callable[[], bool]
) -> tuple[bytes, list[int]]:
    features = 0 if xxh3() is not None else int(Feature.CRC32_DIGESTS)
    features |= _KNOWN | Feature.ESTIMATES | Feature.ROWS | Feature.PACKED
    features |= Feature.BUFFERED | Feature.SPLICES | Feature.PRIMERS | Feature.LOSSES
    features |= Feature.LOOKUP
    if options.device is not None:
        features |= Feature.DEVICE
    request = HelloRequest(
        min_version=VERSION,
        max_version=VERSION,
        features=features,
        staging_bytes=options.staging_bytes,
        slot_bytes=options.slot_bytes,
        client=options.name or "python",
        tenant_names=[name for name, _ in options.tenants],
        tenant_tokens=[token for _, token in options.tenants],
    )
    micros = max(1, int((deadline - time.monotonic()) * 1e6))
    frame = encode(request, Header(Op.HELLO, 1, deadline=min(micros, 2**32 - 1)))
    with contextlib.suppress(OSError):  # a daemon that refused us has already sent its reason
        channel.send(frame, (), deadline)
    while (left := deadline - time.monotonic()) > 0 and not closed():
        try:
            got = channel.receive_descriptors(MAX_FRAME + 8, min(left, TICK))
        except OSError as err:
            raise SplicedError(Code.UNAVAILABLE, f"hello: {err}") from err
        if got is not None:
            return got
    raise SplicedError(Code.LATE, "hello: no reply in time")


def _read_reply(frame: bytes) -> HelloReply:
    if not frame:
        raise SplicedError(Code.UNAVAILABLE, "hello: the daemon closed the connection")
    try:
        header, message = decode(frame)
    except WireError as err:
        raise SplicedError(Code.UNSUPPORTED, f"hello: {err.text}") from err
    if isinstance(message, Refusal):  # a daemon may refuse before it reads our hello
        raise SplicedError(message.code, f"hello: {message.text}")
    if header.kind != FrameKind.REPLY or header.request != 1 or not isinstance(message, HelloReply):
        raise SplicedError(Code.UNSUPPORTED, "hello: the reply is to another request")
    return message


def _greet(reply: HelloReply, descriptors: list[int], options: Options) -> Greeting:
    """Checks the reply and maps the regions."""
    if reply.version != VERSION:
        raise SplicedError(Code.UNSUPPORTED, f"hello: version {reply.version}")
    if len(descriptors) != HELLO_DESCRIPTORS:
        text = f"hello: {len(descriptors)} descriptors, want {HELLO_DESCRIPTORS}"
        raise SplicedError(Code.UNSUPPORTED, text)
    if len(reply.tenant_ids) != len(options.tenants):
        text = f"hello: {len(reply.tenant_ids)} tenants, want {len(options.tenants)}"
        raise SplicedError(Code.UNSUPPORTED, text)
    if reply.boot_epoch == 0 or reply.max_in_flight == 0:
        text = f"hello: epoch {reply.boot_epoch}, {reply.max_in_flight} in flight"
        raise SplicedError(Code.UNSUPPORTED, text)
    sizes = (reply.arena_bytes, reply.slot_bytes, reply.staging_bytes)
    regions: list[Region] = []
    try:
        for i, (descriptor, nbytes) in enumerate(zip(descriptors, sizes, strict=True)):
            if nbytes == 0 or nbytes > os.fstat(descriptor).st_size:
                raise ValueError(f"region {i} of {nbytes} bytes")
            regions.append(Region(descriptor, nbytes, writable=i == HELLO_DESCRIPTORS - 1))
    except (OSError, ValueError, OverflowError) as err:
        for region in regions:
            region.close()
        raise SplicedError(Code.UNSUPPORTED, f"hello: {err}") from err
    grants = zip(reply.tenant_ids, reply.tenant_salts, strict=True)
    return Greeting(
        epoch=reply.boot_epoch,
        server=reply.server,
        grants=tuple(Grant(tenant, bytes(salt)) for tenant, salt in grants),
        max_in_flight=min(reply.max_in_flight, _IN_FLIGHT_MOST),
        crc32=bool(reply.features & Feature.CRC32_DIGESTS),
        device=options.device is not None and bool(reply.features & Feature.DEVICE),
        known=reply.features & _KNOWN == _KNOWN,
        rows=bool(reply.features & Feature.ROWS),
        packed=bool(reply.features & Feature.PACKED),
        buffered=bool(reply.features & Feature.BUFFERED),
        splices=bool(reply.features & Feature.SPLICES),
        primers=bool(reply.features & Feature.PRIMERS),
        losses=bool(reply.features & Feature.LOSSES),
        lookup=bool(reply.features & Feature.LOOKUP),
        arena=regions[0],
        slots=regions[1],
        staging=regions[2],
    )
