"""A daemon that says what a test tells it to."""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from client_samples import PATIENCE
from spliced_connector.errors import Code
from spliced_connector.wire import (
    MAX_FRAME,
    CodesReply,
    FrameKind,
    Header,
    HelloReply,
    HelloRequest,
    Message,
    Op,
    ProfileReply,
    ProfileRequest,
    Refusal,
    ReleaseRequest,
    decode,
    encode,
)

EPOCH = 0xE70C
SIZE = 1 << 20

_ADD_SEALS, _SEAL_SHRINK = 1033, 2


@dataclass
class Request:
    """A request that has arrived, to be answered now or later."""

    header: Header
    message: Message | Refusal
    _sock: socket.socket

    def reply(self, message: Message, **changes: int) -> None:
        """Answer it; `changes` are of the header."""
        self.raw(encode(message, self._header(**changes)))

    def refuse(self, code: Code, text: str = "") -> None:
        """Answer it with a code."""
        self.raw(encode(Refusal(code, text), self._header()))

    def _header(self, **changes: int) -> Header:
        header = replace(self.header, deadline=0, kind=FrameKind.REPLY)
        if header.op != Op.HELLO:
            header = replace(header, epoch=EPOCH)
        return replace(header, **changes)

    def raw(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send any bytes."""
        rights = array.array("i", descriptors).tobytes()
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        with contextlib.suppress(OSError):
            self._sock.sendmsg([frame], control)

    def lend(self, message: Message, descriptors: Sequence[int]) -> None:
        """Answer it with descriptors."""
        self.raw(encode(message, self._header()), descriptors)

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


Handler = Callable[[Request], None]


class FakeDaemon:
    """Answers hello, profile and release; everything else goes to `on` or is ignored.

    Every request is put into `seen`, and into `all` by kind. With `linger` set, connections end
    on this side only after that.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "fake.sock")
        self.regions = [_memfd() for _ in range(3)]
        self.hello = HelloReply(
            version=1,
            boot_epoch=EPOCH,
            arena_bytes=SIZE,
            slot_bytes=SIZE,
            staging_bytes=SIZE,
            max_frame=MAX_FRAME,
            max_in_flight=8,
            server="fake",
            tenant_ids=[1],
            tenant_salts=[b"salt"],
        )
        self.seen: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.all: dict[int, list[Request]] = {}
        self.linger: threading.Event | None = None
        self._handlers: dict[int, Handler] = {
            Op.HELLO: self._greet,
            Op.PROFILE: self._register,
            Op.RELEASE: _release,
        }
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.socket)
        self._listener.listen()
        self._work(self._accept)

    def on(self, op: Op, handler: Handler) -> None:
        """Have a kind of requests handled."""
        self._handlers[op] = handler

    def next(self, op: Op, timeout: float = PATIENCE) -> Request:
        """The next request of a kind; others before it are passed over."""
        while True:
            request = self.seen.get(timeout=timeout)
            if request.header.op == op:
                return request

    def close(self) -> None:
        """End it, and every connection."""
        for sock in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in [self._listener, *self._connections]:
            sock.close()
        for descriptor in self.regions:
            os.close(descriptor)

    def _work(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._connections.append(sock)
                self._work(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                frame, descriptors, _, _ = socket.recv_fds(sock, MAX_FRAME, 4)
                for descriptor in descriptors:
                    os.close(descriptor)
                if not frame:
                    break
                header, message = decode(frame)
                request = Request(header, message, sock)
                self.all.setdefault(header.op, []).append(request)
                self.seen.put(request)
                self._handlers.get(header.op, _ignore)(request)
        if self.linger is not None:
            self.linger.wait(20)
        sock.close()  # nothing of the connection runs any more

    def _greet(self, request: Request) -> None:
        if not isinstance(request.message, HelloRequest):
            raise TypeError("hello of another kind")
        self.greet(request)

    def greet(self, request: Request, descriptors: int = 3) -> None:
        """Answer a hello."""
        frame = encode(self.hello, request._header())
        rights = array.array("i", self.regions[:descriptors]).tobytes()
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        request._sock.sendmsg([frame], control)

    def _register(self, request: Request) -> None:
        if isinstance(request.message, ProfileRequest):
            request.reply(ProfileReply(7, 0, fingerprint(request.message)))


def fingerprint(request: ProfileRequest) -> bytes:
    """What the daemon would compute."""
    return hashlib.sha256(request.identity).digest()


def _release(request: Request) -> None:
    if isinstance(request.message, ReleaseRequest):
        request.reply(CodesReply([Code.OK] * len(request.message.leases)))


def _ignore(_: Request) -> None:
    pass


def _memfd() -> int:
    descriptor = os.memfd_create("fake", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
    return descriptor
