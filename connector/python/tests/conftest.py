"""Fixtures that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running import Daemon

StartDaemon = Callable[..., Daemon]


@pytest.fixture
def start_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartDaemon]:
    """Starts daemons: `start_daemon(*flags, disk=False)`. All are stopped at the end."""
    running: list[Daemon] = []

    def start(*settings: str, disk: bool = False) -> Daemon:
        directory: Path = tmp_path_factory.mktemp("d")
        daemon = Daemon(directory, *settings, disk=disk)
        daemon.start()
        running.append(daemon)
        return daemon

    yield start
    for daemon in running:
        daemon.stop()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A running daemon with a small arena, three tenants and no disk."""
    return start_daemon()
