"""One SOCK_SEQPACKET connection, with bounded waits."""

from __future__ import annotations

import array
import contextlib
import math
import os
import select
import socket
import struct
import time

from spliced_connector.errors import Code, SplicedError

TICK = 0.02
"""Longest single wait of a receive, in seconds."""

_CREDENTIALS = struct.Struct("iII")  # process, user and group id
_MAX_DESCRIPTORS = 8
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def connect(path: str, timeout: float) -> Channel:
    """Connects to the socket at `path`. Raises `SplicedError(UNAVAILABLE)`.

    If the socket's backlog is full, the call waits for at most `timeout` seconds.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        # The connect of a unix socket honours the send timeout. The timeout of the socket object
        # would make it fail at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(TICK))
        sock.connect(path)
    except (OSError, ValueError) as err:
        sock.close()
        raise SplicedError(Code.UNAVAILABLE, f"connect {path}: {err}") from err
    return Channel(sock)


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))


class Channel:
    """A connected socket. One thread may receive at a time; any may send.

    The owner must keep `close` from running concurrently with other methods: the descriptor could
    then belong to another file.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ready = select.poll()
        self._ready.register(sock, select.POLLIN)
        self._room = 0  # for descriptors
        self._came: list[int] = []

    def carry(self, most: int) -> None:
        """Accepts up to `most` descriptors with each message from now on."""
        self._room = socket.CMSG_SPACE(4 * most)

    def take_descriptors(self) -> list[int]:
        """Returns the descriptors of the last message of `receive`; the caller owns them."""
        came, self._came = self._came, []
        return came

    def fileno(self) -> int:
        """Returns the descriptor, -1 after close."""
        return self._sock.fileno()

    def try_send(self, frame: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        """Sends a message. Returns False if there is no room. Raises OSError if the peer is
        gone."""
        try:
            if descriptors:
                rights = array.array("i", descriptors).tobytes()
                control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                self._sock.sendmsg([frame], control, _SEND_FLAGS)
            else:
                self._sock.send(frame, _SEND_FLAGS)
        except BlockingIOError:
            return False
        return True

    def send(self, frame: bytes, descriptors: tuple[int, ...], deadline: float) -> bool:
        """Like `try_send`, but waits for room until the deadline, a time of `time.monotonic`."""
        while not self.try_send(frame, descriptors):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            room = select.poll()
            room.register(self._sock, select.POLLOUT)
            room.poll(milliseconds(min(left, TICK)))
        return True

    def receive(self, buffer: memoryview, seconds: float) -> int | None:
        """Receives a message within `seconds`. Returns its size, 0 at the end of the connection,
        None if no message has arrived in time.

        The kernel drops descriptors of the message unless `carry` allows them. Bytes that do not
        fit `buffer` are lost. Raises OSError for other failures.
        """
        if 0 < seconds < TICK and not self._ready.poll(milliseconds(seconds)):
            return None
        flags = 0 if seconds >= TICK else socket.MSG_DONTWAIT
        try:
            return self._receive(buffer, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The daemon closed without having read everything. Messages that it sent earlier are
            # queued after this error, which is reported once.
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                return self._receive(buffer, socket.MSG_DONTWAIT)
            return 0

    def _receive(self, buffer: memoryview, flags: int) -> int:
        if not self._room:
            return self._sock.recv_into(buffer, 0, flags)
        flags |= socket.MSG_CMSG_CLOEXEC
        n, control, got, _ = self._sock.recvmsg_into([buffer], self._room, flags)
        if control:
            self._came += _descriptors(control)
            if got & socket.MSG_CTRUNC:
                close_all(self.take_descriptors())
                raise OSError("descriptors truncated")
        return n

    def receive_descriptors(self, size: int, seconds: float) -> tuple[bytes, list[int]] | None:
        """Receives a message with its descriptors, all close-on-exec.

        Returns None if no message has arrived in time. After an OSError all descriptors are closed.
        """
        if not self._ready.poll(milliseconds(seconds)):
            return None
        room = socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            frame, control, got, _ = self._sock.recvmsg(size, room, flags)
        except BlockingIOError:
            return None
        descriptors = _descriptors(control)
        if got & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            close_all(descriptors)
            raise OSError("message truncated")
        return frame, descriptors

    def readable(self) -> bool:
        """Returns whether a message or the end of the connection is queued. Another thread may read
        it first."""
        ready = select.poll()
        ready.register(self._sock, select.POLLIN)
        return bool(ready.poll(0))

    def option(self, level: int, name: int) -> int:
        """Returns a socket option. Raises OSError if the kernel does not have it."""
        return self._sock.getsockopt(level, name)

    def peer_uid(self) -> int:
        """Returns the user id of the listening process. Raises OSError."""
        credentials = self._sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        uid: int = _CREDENTIALS.unpack(credentials)[1]
        return uid

    def close_write(self) -> None:
        """Signals the daemon that no more messages will come."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        close_all(self.take_descriptors())

    def forget(self) -> None:
        """Closes a forked child's descriptor. Its parent's connection stays open."""
        self._sock.close()


def _descriptors(control: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return descriptors.tolist()


def milliseconds(seconds: float) -> int:
    """Converts seconds to milliseconds for poll, rounded up: a wait of 0 ms would make the caller
    spin."""
    return max(math.ceil(seconds * 1000), 0)


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors that are not needed."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
