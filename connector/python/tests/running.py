"""A daemon that a test runs."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

TENANTS = """\
tenants:
  - name: default
  - name: blue
    token: blue-token
    salt: blue-salt
  - name: small
    salt: small-salt
    quota: 64KiB
"""


def wait_stopped(pids: Iterable[int]) -> None:
    """Returns when every thread of the processes has stopped or ended.

    On a busy machine some run on for milliseconds after SIGSTOP was sent.
    """
    for pid in pids:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            while stat.exists() and stat.read_text().rpartition(") ")[2][0] not in "TZX":
                time.sleep(0.001)


def binary() -> Path:
    """The program to run: SPLICED_BIN, or bin/spliced, which is built where it is missing."""
    chosen = os.environ.get("SPLICED_BIN")
    if chosen:
        return Path(chosen)
    path = ROOT / "bin" / "spliced"
    if not path.exists():
        if shutil.which("go") is None:
            raise FileNotFoundError(f"{path}: run `make build`")
        subprocess.run(["make", "build"], cwd=ROOT, check=True)
    return path


class Daemon:
    """A process of `spliced` in a directory of its own."""

    def __init__(
        self, directory: Path, *settings: str, disk: bool = False, tenants: str = TENANTS
    ) -> None:
        self.directory = directory
        self.socket = str(directory / "s.sock")
        config = directory / "spliced.yaml"
        config.write_text(tenants)
        self._command = [
            str(binary()),
            f"-config={config}",
            f"-socket={self.socket}",
            f"-admin-socket={directory / 'admin.sock'}",
            "-http=off",
            "-arena=32MiB",
            "-private=32MiB",
            "-staging=4MiB",
            "-slots=8MiB",
            "-connection-memory=2GiB",
            "-log-level=warn",
            *settings,
        ]
        if disk:
            self._command += [
                f"-disk={directory / 'disk'}",
                "-disk-size=256MiB",
                "-disk-private=256MiB",
                "-disk-slab=32MiB",
                "-disk-reserve=0B",
            ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running().pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the daemon is not running")
        return self._process

    def start(self, timeout: float = 20.0) -> None:
        """Start it and wait until it takes connections."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + timeout
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the daemon does not start:\n{self.log()}")
            time.sleep(0.005)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
            return True

    def kill(self) -> None:
        """End it with SIGKILL."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout=20)
        finally:
            process.kill()  # nothing to one that has ended
            process.wait()

    def pause(self) -> None:
        """Stall it."""
        self._running().send_signal(signal.SIGSTOP)
        wait_stopped([self.pid])

    def resume(self) -> None:
        """End a stall."""
        self._running().send_signal(signal.SIGCONT)

    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "log").read_text()

    def metrics(self) -> dict[str, float]:
        """What it counts, by metric name with labels, from its admin socket."""
        body = self._get("/metrics")
        rows = (line.rpartition(" ") for line in body.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, _, value in rows}

    def request(self, **want: object) -> dict[str, Any]:
        """How it was told that a request was served, the last one with these fields, or fields
        that these functions take: that comes behind an answer. Its tokens add up."""
        end = time.monotonic() + 20.0
        while True:
            listed = json.loads(self._get("/api/v1/requests?limit=1000"))["items"]
            fits = (
                one["id"]
                for one in listed
                if all(v(one[k]) if callable(v) else one[k] == v for k, v in want.items())
            )
            if (found := next(fits, None)) is not None:
                break
            assert time.monotonic() < end, f"nobody told of {want}, but of {listed[:5]}"
            time.sleep(0.02)
        told: dict[str, Any] = json.loads(self._get(f"/api/v1/requests/{found}"))
        sources = ("engine", "prefix", "reused", "computed")
        assert told["prompt_tokens"] == sum(told[f"{source}_tokens"] for source in sources)
        spans = told["spans"]
        assert [span["begin"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
        assert spans[-1]["end"] == told["prompt_tokens"]
        return told

    def last_request(self) -> dict[str, Any]:
        """The one that it was told of last."""
        told: dict[str, Any] = json.loads(self._get("/api/v1/requests?limit=1"))["items"][0]
        return told

    def configure(self, **change: object) -> None:
        """Change its configuration, as an operator does."""
        body = json.dumps(change)
        head = "If-Match: *\r\nContent-Type: application/merge-patch+json"
        head += f"\r\nContent-Length: {len(body)}"
        self._ask(f"PATCH /api/v1/config HTTP/1.0\r\nHost: localhost\r\n{head}\r\n\r\n{body}")

    def checkpoints(self) -> list[dict[str, Any]]:
        """What it has of them, those that are being stored among it: they are in no tier."""
        listed: list[dict[str, Any]] = json.loads(self._get("/api/v1/checkpoints?limit=1000"))[
            "items"
        ]
        return listed

    def segments(self) -> list[dict[str, Any]]:
        """All that are listed."""
        listed: list[dict[str, Any]] = json.loads(self._get("/api/v1/segments?limit=1000"))["items"]
        return listed

    def canaries(self) -> list[dict[str, Any]]:
        """What canaries reported."""
        listed: list[dict[str, Any]] = json.loads(self._get("/api/v1/canaries"))["items"]
        return listed

    def forget_checkpoints(self) -> None:
        """Remove all, as an operator does; those that are being stored once they are whole."""
        end = time.monotonic() + 20.0
        while True:
            removed = json.loads(
                self._ask("DELETE /api/v1/checkpoints?all=true HTTP/1.0\r\nHost: localhost\r\n\r\n")
            )
            if not removed["busy"]:
                return
            assert time.monotonic() < end, f"some stay: {removed}"
            time.sleep(0.02)

    def _get(self, path: str) -> str:
        return self._ask(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")

    def _ask(self, request: str) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(10)
            admin.connect(str(self.directory / "admin.sock"))
            admin.sendall(request.encode())
            answer = b"".join(iter(lambda: admin.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")), head
        return body.decode()

    def gpus(self, metric: str, **labels: str) -> float:
        """The sum of a metric over all GPUs, where it has these labels besides."""
        want = [f'{name}="{value}"' for name, value in labels.items()]
        return sum(
            value
            for name, value in self.metrics().items()
            if name.startswith(metric + "{") and all(label in name for label in want)
        )


def cluster(directory: Path, *settings: str, nodes: int = 2, parallel: bool = True) -> list[Daemon]:
    """Daemons of one cluster, none of them started. parallel: the default tenant's token ids may
    cross between nodes; those of others stay."""
    keyring = directory / "keyring"
    keyring.write_bytes(base64.b64encode(bytes(range(32))))
    keyring.chmod(0o600)
    names = [chr(ord("a") + i) for i in range(nodes)]
    gossip = [f"127.0.0.1:{port}" for port in reserved_ports(nodes)]
    tenants = TENANTS.replace("default", "default\n    parallel: true") if parallel else TENANTS
    made = []
    for i, name in enumerate(names):
        (directory / name).mkdir()
        made.append(
            Daemon(
                directory / name,
                f"-cluster-seeds={','.join(gossip)}",
                "-cluster-name=test",
                f"-cluster-node={name}",
                f"-cluster-bind={gossip[i]}",
                "-cluster-peer-bind=127.0.0.1:0",
                f"-cluster-keyring={keyring}",
                *settings,
                tenants=tenants,
            )
        )
    return made


def _reserve(n: int) -> dict[int, socket.socket]:
    """Ports of 127.0.0.1 that nobody else is given before these sockets are closed: api/loopback
    has the rules, and knows what is reserved here by the same names."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(10240, low))
    random.shuffle(candidates)
    ports: dict[int, socket.socket] = {}
    while len(ports) < n:
        port = candidates.pop()
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0spliced-port-{port}")
            held.listen(1)
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(type=kind) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        ports[port] = held
    return ports


# All at once, as tests count descriptors; more than those that one test runs daemons at.
_RESERVED = _reserve(24)
_turns = itertools.cycle(_RESERVED)


def reserved_ports(n: int) -> list[int]:
    """Ports that are this process's, the longest unused ones."""
    return list(itertools.islice(_turns, n))


StartDaemon = Callable[..., Daemon]
"""Of the fixture `start_daemon`: flags, and `disk`."""

StartCluster = Callable[..., list[Daemon]]
"""Of the fixture `start_cluster`: flags, `nodes` and `parallel`."""
