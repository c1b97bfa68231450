"""Settings of a client."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from spliced_connector.wire.numbers import UUID_BYTES, ShareWay

MAX_NAME_BYTES = 256
MAX_TOKEN_BYTES = 1024
MAX_TENANTS = 64

_MAX_SECONDS = 3600.0


@dataclass(frozen=True)
class DeviceOptions:
    """The GPU whose memory to attach, and the driver to use."""

    library: str = "libcuda.so.1"
    """The CUDA driver."""

    uuid: bytes = b""
    """16 bytes that name the engine's GPU. Empty: the only GPU that is visible."""

    ways: ShareWay = ShareWay.DESCRIPTOR | ShareWay.HANDLE
    """How the daemon may share its GPU memory."""

    private_bytes: int = 0
    """Requested size of the memory for results and inputs; 0 is the daemon's default."""

    attach_timeout: float = 10.0
    """Timeout of the daemon's answer, in seconds. Only a separate thread waits for it, so it may
    be long."""

    context: int = 0
    """The CUcontext to map into. 0: the GPU's primary context, which torch uses."""

    def wrong(self) -> list[str]:
        """Returns invalid settings."""
        wrong = []
        if len(self.uuid) not in (0, UUID_BYTES):
            wrong.append(f"uuid of {len(self.uuid)} bytes, want {UUID_BYTES}")
        if not self.ways or self.ways & ~(ShareWay.DESCRIPTOR | ShareWay.HANDLE):
            wrong.append(f"ways {int(self.ways)}")
        if not 0 <= self.private_bytes < 2**63:
            wrong.append(f"private_bytes {self.private_bytes}")
        if not 0 < self.attach_timeout <= _MAX_SECONDS:
            wrong.append(f"attach_timeout {self.attach_timeout}")
        return wrong


@dataclass(frozen=True)
class Options:
    """Settings of a client; the defaults are usable.

    Each timeout is in seconds and limits one call, from its start to its return. A tick of the
    kernel's timer (4 ms at most) may be added.
    """

    socket: str = ""
    """Path of the daemon's socket. Empty: `default_socket()`, evaluated again at each attempt."""

    daemon_uid: int | None = None
    """User id of the daemon; sockets of other users are not used. None: the value of
    $SPLICED_DAEMON_UID. If that variable is not set, root and the owner of the socket's directory
    are trusted, provided that no other user could have put the socket there. Otherwise no user is
    trusted, as in a volume that containers of a pod share."""

    name: str = ""
    """Name and version of the engine, shown to people. Empty: "python"."""

    tenants: tuple[tuple[str, str], ...] = (("", ""),)
    """Names and tokens of this client's tenants. The empty name is the daemon's default tenant."""

    timeout: float = 0.05
    """Timeout of match, acquire, load (unless a call sets its own), release, advise and report."""

    attach_timeout: float = 1.0
    """Timeout of one attempt to connect, and of registering one model."""

    transfer_timeout: float = 2.0
    """Timeout of each message of publish, save, compose, rotate and assemble."""

    staging_bytes: int = 0
    """Requested size of the memory that publish writes to; 0 is the daemon's default."""

    slot_bytes: int = 0
    """Requested size of the memory for results of compose and rotate; 0 is the daemon's default."""

    device: DeviceOptions | None = None
    """The GPU whose memory to attach if the daemon lends some. None: attach no GPU memory."""

    def __post_init__(self) -> None:
        """Raises ValueError with all invalid settings."""
        wrong = list(self._wrong())
        if wrong:
            raise ValueError("; ".join(wrong))

    def _wrong(self) -> list[str]:
        wrong = []
        if len(self.name.encode()) > MAX_NAME_BYTES:
            wrong.append(f"name has {len(self.name.encode())} bytes, at most {MAX_NAME_BYTES}")
        if not 1 <= len(self.tenants) <= MAX_TENANTS:
            wrong.append(f"{len(self.tenants)} tenants, want 1 to {MAX_TENANTS}")
        for name, token in self.tenants:
            if len(name.encode()) > MAX_NAME_BYTES or len(token.encode()) > MAX_TOKEN_BYTES:
                wrong.append(f"name or token of tenant {name[:32]!r} is too long")
        if len({name for name, _ in self.tenants}) != len(self.tenants):
            wrong.append("a tenant is listed twice")
        for what in ("timeout", "attach_timeout", "transfer_timeout"):
            seconds = getattr(self, what)
            if not 0 < seconds <= _MAX_SECONDS:
                wrong.append(f"{what} {seconds}, want above 0 to {_MAX_SECONDS:g} seconds")
        for what in ("staging_bytes", "slot_bytes"):
            if not 0 <= getattr(self, what) < 2**63:
                wrong.append(f"{what} {getattr(self, what)}")
        if self.daemon_uid is not None and not 0 <= self.daemon_uid < 2**32:
            wrong.append(f"daemon_uid {self.daemon_uid}")
        if self.device is not None:
            wrong += self.device.wrong()
        return wrong


def default_socket() -> str:
    """Returns the path of the daemon's socket to use if none is configured.

    It is $SPLICED_SOCKET. If that is not set, it is spliced.sock in the first of /run/spliced,
    /run/user/UID/spliced and /tmp/spliced-UID that has this file, or in /run/spliced if none has
    it. /tmp/spliced-UID counts only if it belongs to our user, because others may write to /tmp.
    """
    chosen = os.environ.get("SPLICED_SOCKET")
    if chosen:
        return chosen
    uid = os.getuid()
    candidates = [Path("/run/spliced"), Path(f"/run/user/{uid}/spliced")]
    shared = Path(f"/tmp/spliced-{uid}")
    try:
        status = shared.lstat()
        if status.st_uid == uid and stat.S_ISDIR(status.st_mode):
            candidates.append(shared)
    except OSError:
        pass
    paths = [directory / "spliced.sock" for directory in candidates]
    return str(next((path for path in paths if _exists(path)), paths[0]))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
