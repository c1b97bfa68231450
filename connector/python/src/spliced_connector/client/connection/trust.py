"""Whether the process that answers on a socket may be taken for the daemon.

A client checks this before it sends a token or uses an answer: a process that replaced the daemon's
socket would get the tokens and could send any answer. If only root, the client and the owner of the
socket's directory can change parts of the path, that owner and root are trusted. Otherwise, as in a
volume that the containers of a pod share, only the user id that the client was configured to expect
is trusted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from spliced_connector.client.connection.channel import Channel
from spliced_connector.errors import Code, SplicedError

UID_ENV = "SPLICED_DAEMON_UID"
"""Environment variable with the user id of the daemon."""

_MOST_LINKS = 40  # the kernel's own limit


class _StrangerError(Exception):
    """The peer may not be the daemon. The text says why, such as a file that others could have
    replaced."""


def check(channel: Channel, path: str, expected: int | None) -> None:
    """Raises `SplicedError(DENIED)`, with a text of one line, unless the peer may be the daemon.

    `expected` is the only trusted user id. None stands for the user id in `UID_ENV`. If that
    variable is not set, root and the owner of the socket's directory are trusted (`_owner`).
    """
    try:
        uid = _peer_uid(channel)
        if expected is None:
            expected = _from_environment()
        if expected is not None:
            if uid != expected:
                raise _StrangerError(f"expected user {expected} ({UID_ENV})")
            return
        own = os.geteuid()
        try:
            owner = _owner(path, own)
            if uid not in (0, owner, own):
                raise _StrangerError(f"the directory is user {owner}'s")
        except (OSError, _StrangerError) as err:
            remedy = f"set {UID_ENV} to the user id that spliced runs as"
            raise _StrangerError(f"{err}; {remedy}") from err
    except _StrangerError as err:
        text = f"{path}: served by user {uid}, which is not known to be the daemon's: {err}"
        raise SplicedError(Code.DENIED, text) from err


def _peer_uid(channel: Channel) -> int:
    try:
        return channel.peer_uid()
    except OSError as err:
        raise SplicedError(Code.UNAVAILABLE, f"cannot identify the server: {err}") from err


def _from_environment() -> int | None:
    text = os.environ.get(UID_ENV, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**32):
        raise _StrangerError(f"{UID_ENV} is {text!r}, not a user id")
    return int(text)


def _owner(path: str, own: int) -> int:
    """Returns the owner of the directory of `path`.

    Raises `_StrangerError` if a user other than root, `own` and that owner could have replaced a
    part of the path, OSError if it cannot be examined.
    """
    walk = _Walk(own)
    walk.to(path)
    owner = walk.steps[-1][1].st_uid
    for directory, status in walk.steps:
        if status.st_uid not in (0, own, owner):
            text = f"user {status.st_uid} could have replaced files in {directory}"
            raise _StrangerError(text)
    return owner


@dataclass
class _Walk:
    """Visits the directories that the kernel visits for a path, including those of symbolic
    links."""

    own: int
    steps: list[tuple[str, os.stat_result]] = field(default_factory=list)

    def to(self, path: str) -> None:
        """Walks from "/" to the directory of `path`."""
        if not path.startswith("/"):
            path = f"{os.getcwd()}/{path}"  # not normalised: x/.. may lead elsewhere through a link
        todo = path[: path.rindex("/")].split("/")
        links = 0
        self._enter("/")
        while todo:
            name = todo.pop(0)
            if name in ("", "."):
                continue
            at = self.steps[-1][0]
            if name == "..":
                self._enter(os.path.dirname(at))
                continue
            goal = self._next(os.path.join(at, name))
            if goal is None:
                continue
            links += 1
            if links > _MOST_LINKS:
                raise _StrangerError(f"{path}: more than {_MOST_LINKS} symbolic links")
            todo = goal.split("/") + todo
            if goal.startswith("/"):
                self._enter("/")

    def _next(self, path: str) -> str | None:
        """Resolves an entry of the last directory. Returns the target if it is a link."""
        inside, status = self.steps[-1]
        entry = os.lstat(path)
        if _shared(status) and entry.st_uid not in (0, self.own, status.st_uid):
            text = f"{path} is owned by user {entry.st_uid}, in {inside}, which others may write to"
            raise _StrangerError(text)
        if stat.S_ISLNK(entry.st_mode):
            return os.readlink(path)
        self._enter(path)
        return None

    def _enter(self, directory: str) -> None:
        status = os.lstat(directory)
        if _shared(status) and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            text = f"others could have replaced files in {directory} (mode 0{mode:o})"
            raise _StrangerError(text)
        self.steps.append((directory, status))


def _shared(status: os.stat_result) -> bool:
    """Returns whether users other than the owner may write to a directory with this status.

    The group bits are the maximum that an access list grants.
    """
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
