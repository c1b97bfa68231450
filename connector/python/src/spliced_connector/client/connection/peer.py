"""The process on the other side, and whether it is dead."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from spliced_connector.client.connection.channel import Channel, milliseconds

_SO_PEERPIDFD = 77  # Linux 6.5; the same on x86-64 and arm64

# How long the end of a process may come after the end of its sockets: the kernel closes those
# first. A guess; it is waited for once.
_DEATH_GRACE = 0.05

# How soon after the end it has to be asked. Pages are given to others a second after our side is
# shut.
_ASKED_WITHIN = 0.5


class Peer:
    """The process that listened when we connected: the daemon, or who started it."""

    def __init__(self, channel: Channel) -> None:
        try:
            self._pidfd = channel.option(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            self._pidfd = -1  # never known to be dead
        self._lock = threading.Lock()
        self._died: bool | None = None

    def died(self, ended_at: float) -> bool:
        """Whether the process was dead when the connection ended; waits for that a little, once.

        It has to be asked soon after the end, a time of `time.monotonic`: memory that only a dead
        process could write stays as it is, and later nobody knows what happened between the two.
        """
        with self._lock:
            if self._died is None:
                soon = time.monotonic() - ended_at < _ASKED_WITHIN
                self._died = soon and self._exited()
            return self._died

    def _exited(self) -> bool:
        if self._pidfd < 0:
            return False
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(milliseconds(_DEATH_GRACE)))

    def presume_alive(self) -> None:
        """Take it to be alive at the end, whatever becomes of it, unless that is known."""
        with self._lock:
            if self._died is None:
                self._died = False

    def forget(self) -> None:
        """In a forked child, whose parent may have held the lock."""
        self._lock = threading.Lock()
        self._died = False
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self._pidfd = self._pidfd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
