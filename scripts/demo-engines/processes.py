"""The daemon and an engine's server as processes of a demo or a bench, and requests over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# vLLM's own switches for a processor without a compiler, on few cores.
#
# vLLM reserves one core in a server without a connector. With a connector it reserves two, if there
# are more than two cores. Bound to all cores, all servers have the same number of threads.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_WAIT_POLICY": "PASSIVE",
}


class Process:
    """A process that is started, waited for, and ended with all its children."""

    def __init__(self, name: str, command: Sequence[str], log: Path, **environment: str) -> None:
        self._name, self._log = name, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=ENVIRONMENT | os.environ | environment,
                start_new_session=True,
            )

    def wait_for(self, port_or_path: int | str, seconds: float) -> None:
        """Waits until the process accepts connections. Raises RuntimeError, with the end of its
        log, if it ends or takes longer."""
        until = time.monotonic() + seconds
        while not _listens(port_or_path):
            if self._process.poll() is not None or time.monotonic() > until:
                tail = self._log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self._name} did not start:\n{tail}")
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        """Returns the processor time used so far by the process and its children."""
        import psutil  # a dependency of vLLM

        own = psutil.Process(self._process.pid)
        times = [p.cpu_times() for p in (own, *own.children(recursive=True))]
        return sum(t.user + t.system for t in times)

    def close(self) -> None:
        """Ends the process and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def _listens(where: int | str) -> bool:
    if isinstance(where, str):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(where) == 0
    try:
        connection = http.client.HTTPConnection("127.0.0.1", where, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def start_daemon(directory: Path, *flags: str) -> tuple[Process, str]:
    """Starts a daemon with a socket in the directory."""
    path = str(directory / "spliced.sock")
    command = [
        str(ROOT / "bin" / "spliced"),
        f"-socket={path}",
        f"-admin-socket={directory / 'admin.sock'}",
        "-http=off",
        "-log-level=warn",
        *flags,
    ]
    daemon = Process("spliced", command, directory / "spliced.log")
    daemon.wait_for(path, 30)
    return daemon, path


def free_port() -> int:
    """Returns a port that is not in use at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Answer:
    """The result: seconds to the first token, and all tokens' text."""

    ttft: float
    text: str


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: Process
    port: int
    counter: str = "vllm"

    def ask(self, ids: Sequence[int], cuts: Sequence[int] | None = None, tokens: int = 8) -> Answer:
        """Streams one greedy completion. cuts: the ends of the prompt's segments."""
        began = time.perf_counter()
        return _read(self._post(ids, cuts, tokens, stream=True), began)

    def one_token(
        self, ids: Sequence[int], cuts: Sequence[int] | None, refresh: float = 0.0
    ) -> tuple[float, dict[str, object]]:
        """Returns the seconds of an answer of one token, and the connector's report on the
        request, which vLLM's streams do not include."""
        began = time.perf_counter()
        reply = json.loads(self._post(ids, cuts, 1, stream=False, refresh=refresh).read())
        took = time.perf_counter() - began
        return took, dict((reply.get("kv_transfer_params") or {}).get("spliced", {}))

    def _timed(self, body: dict[str, object]) -> tuple[float, dict[str, Any]]:
        """Returns the seconds of an answer by SGLang's own API, and the answer."""
        began = time.perf_counter()
        reply: dict[str, Any] = json.loads(self._send("/generate", body).read())
        return time.perf_counter() - began, reply

    def counts(self) -> dict[str, float]:
        """Returns the connector's counters so far, by name; empty without a connector."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        pattern = rf'^{self.counter}:spliced_total\{{.*what="(\w+)".*\}} (\S+)$'
        rows = re.findall(pattern, text, re.MULTILINE)
        return {name: float(value) for name, value in rows}

    def _post(
        self,
        ids: Sequence[int],
        cuts: Sequence[int] | None,
        tokens: int,
        *,
        stream: bool,
        refresh: float = 0.0,
    ) -> http.client.HTTPResponse:
        body: dict[str, object] = {
            "model": "model",
            "prompt": list(ids),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": stream,
        }
        if cuts is not None:
            body["kv_transfer_params"] = {"spliced": parameters(cuts, refresh)}
        return self._send("/v1/completions", body)

    def _send(self, path: str, body: dict[str, object]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"HTTP {reply.status}: {reply.read(2000).decode(errors='replace')}")
        return reply

    def close(self) -> None:
        self.process.close()


def parameters(cuts: Sequence[int], refresh: float) -> dict[str, object]:
    """Returns a request's parameters for the connector; refresh 0 leaves it to the settings."""
    said: dict[str, object] = {"v": 1, "cuts": list(cuts)}
    return said | {"refresh": refresh} if refresh else said


def _read(reply: http.client.HTTPResponse, began: float) -> Answer:
    """Reads an answer of server-sent events: a JSON object for each token, then the word DONE.
    began: when the request was sent, by time.perf_counter."""
    first, text = 0.0, ""
    for line in reply:
        data = line.decode().strip().removeprefix("data: ")
        if not data or data == "[DONE]":
            continue
        event = json.loads(data)
        first = first or time.perf_counter() - began
        for choice in event.get("choices", ()):
            text += choice.get("text", "")
    return Answer(first, text)
