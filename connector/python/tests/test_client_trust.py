"""Who is believed to be the daemon."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spliced_connector.client import Client, Options
from spliced_connector.client.connection.channel import connect
from spliced_connector.client.connection.trust import UID_ENV, _owner, _StrangerError, check
from spliced_connector.errors import Code, SplicedError

MALLORY = 1001

Serve = Callable[[Path], "Impostor"]


class Impostor:
    """Listens where the daemon should, and keeps what it is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.got = b""
        self.came = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.got += connection.recv(1 << 16)
                self.came.set()

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts impostors; all are stopped at the end."""
    started = []

    def start(path: Path) -> Impostor:
        started.append(Impostor(path))
        return started[-1]

    yield start
    for impostor in started:
        impostor.stop()


@pytest.fixture(autouse=True)
def nothing_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UID_ENV, raising=False)


def directory(path: Path, mode: int, uid: int = -1) -> Path:
    path.mkdir()
    if uid >= 0:
        if os.geteuid() != 0:
            pytest.skip("only root can give directories away")
        os.chown(path, uid, -1)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("above", "mode", "uid", "wrong"),
    [
        (0o700, 0o700, -1, ""),
        (0o755, 0o2750, MALLORY, ""),  # root made it his
        (0o755, 0o3770, -1, ""),
        (0o1777, 0o700, -1, ""),
        (0o755, 0o2770, -1, "could have replaced files in .*/a/b"),
        (0o2777, 0o2750, -1, "could have replaced files in .*/a "),
        (0o1777, 0o755, MALLORY, "/a/b is owned by user 1001"),
    ],
)
def test_paths_that_others_could_have_replaced(
    tmp_path: Path, above: int, mode: int, uid: int, wrong: str
) -> None:
    a = directory(tmp_path / "a", 0o700)
    b = directory(a / "b", mode, uid)
    a.chmod(above)
    for path in (b / "s", tmp_path / "link" / "s", tmp_path / "link" / ".." / "b" / "s"):
        if not (tmp_path / "link").is_symlink():
            (tmp_path / "link").symlink_to("a/b")
        if wrong:
            with pytest.raises(_StrangerError, match=wrong):
                _owner(str(path), os.geteuid())
        else:
            assert _owner(str(path), os.geteuid()) == (os.geteuid() if uid < 0 else uid)


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(_StrangerError, match="symbolic links"):
        _owner(str(tmp_path / "a" / "s"), os.geteuid())


def test_an_expected_user_alone_is_believed(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, open_ = directory(tmp_path / "own", 0o700), directory(tmp_path / "open", 0o777)
    uid = os.geteuid()
    for at, expected, wrong in (
        (own, None, ""),
        (own, uid, ""),
        (own, uid + 1, f"expected user {uid + 1}"),
        (open_, uid, ""),
        (open_, None, f"set {UID_ENV} to the user id that spliced runs as"),
    ):
        path = at / f"s{expected}"
        channel = connect(str(serve(path).path), 1.0)
        if not wrong:
            check(channel, str(path), expected)
        else:
            with pytest.raises(SplicedError, match=re.escape(wrong)) as caught:
                check(channel, str(path), expected)
            assert caught.value.code is Code.DENIED
            assert "\n" not in caught.value.text
        if expected is None:
            monkeypatch.setenv(UID_ENV, str(uid))
            check(channel, str(path), None)
            for nonsense in ("x", "-1", "²", str(2**32)):
                monkeypatch.setenv(UID_ENV, nonsense)
                with pytest.raises(SplicedError, match="not a user id"):
                    check(channel, str(path), None)
            monkeypatch.delenv(UID_ENV)
        channel.close()


def test_a_stranger_gets_no_token(tmp_path: Path, serve: Serve) -> None:
    stranger = serve(directory(tmp_path / "open", 0o777) / "s")
    tenants = (("default", "a secret token"),)
    with contextlib.closing(Client(Options(socket=str(stranger.path), tenants=tenants))) as client:
        assert stranger.came.wait(10.0)
        assert not client.attached
    assert stranger.got == b""
    # The same client does say it to whom it believes: the check above can fail.
    friend = serve(directory(tmp_path / "own", 0o700) / "s")
    with contextlib.closing(Client(Options(socket=str(friend.path), tenants=tenants))):
        assert friend.came.wait(10.0)
    assert b"a secret token" in friend.got
