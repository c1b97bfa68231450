"""The process on the other side, and whether it is dead."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from spliced_connector.client.connection.channel import Channel, milliseconds

_SO_PEERPIDFD = 77  # Linux 6.5; the same on x86-64 and arm64

# How long the end of a process may come after the end of its sockets: the kernel closes those
# first. A guess; it is waited for once.
_DEATH_GRACE = 0.05


class Peer:
    """The process that listened when we connected: the daemon, or who started it."""

    def __init__(self, channel: Channel) -> None:
        try:
            self._pidfd = channel.option(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            self._pidfd = -1  # never known to be dead

    def died(self) -> bool:
        """Whether the process is dead; waits for it a little.

        Asked at the end of a connection: memory that only a dead process could write stays as it
        is. Asked later it would say nothing of what happened between the two.
        """
        if self._pidfd < 0:
            return False
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(milliseconds(_DEATH_GRACE)))

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self._pidfd = self._pidfd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
