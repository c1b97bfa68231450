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

# How many seconds a process may take to end after its sockets were closed, which the kernel does
# first (a guess). `died` waits this long, once.
_DEATH_GRACE = 0.05

# How many seconds after the end of the connection `died` must be called. The daemon reuses pages a
# second after our side is shut.
_ASKED_WITHIN = 0.5


class Peer:
    """The process that listened when we connected: the daemon, or its parent."""

    def __init__(self, channel: Channel) -> None:
        try:
            self._pidfd = channel.option(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            self._pidfd = -1  # its death can never be detected
        self._lock = threading.Lock()
        self._died: bool | None = None

    def died(self, ended_at: float) -> bool:
        """Returns whether the process was dead when the connection ended. The first call waits
        briefly for the process to end.

        If True, memory that only this process could write is unchanged since the connection ended.

        `ended_at` is the time at which the connection ended, by `time.monotonic`. If the first call
        comes more than `_ASKED_WITHIN` seconds later, the answer is False: it is then unknown what
        the process wrote before it died.
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
        """Makes `died` return False whatever happens later, unless the death is already known."""
        with self._lock:
            if self._died is None:
                self._died = False

    def forget(self) -> None:
        """Resets the object in a forked child: its parent may have held the lock."""
        self._lock = threading.Lock()
        self._died = False
        self.close()

    def close(self) -> None:
        """Closes the descriptor."""
        descriptor, self._pidfd = self._pidfd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
