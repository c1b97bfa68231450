"""The two engines whose servers a demo or a bench starts on a CPU, as users do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from processes import ROOT, Process, Server, free_port, parameters

_SECONDS = 900
"""Longest time for a server to load its model and warm up."""


class Engine(Protocol):
    """Starts servers of one engine. settings: those of the connector; None for a server without
    it. Servers print nothing; their logs stay in the directory."""

    name: str

    def command(self, settings: dict[str, object] | None) -> str:
        """Returns the command that a user would type, without the model."""
        ...

    def start(
        self,
        directory: Path,
        model: Path,
        settings: dict[str, object] | None,
        *flags: str,
        eager: bool = True,
    ) -> Server:
        """Starts a server and waits until it is ready. flags: further flags of the engine. eager:
        nothing is compiled, because on few cores compiling takes longer than a demo."""
        ...


@dataclass(frozen=True)
class VLLM:
    name: str = "vLLM"

    def command(self, settings: dict[str, object] | None) -> str:
        return " ".join(["vllm serve MODEL", *self._flags(settings)])

    def start(
        self,
        directory: Path,
        model: Path,
        settings: dict[str, object] | None,
        *flags: str,
        eager: bool = True,
    ) -> Server:
        port = free_port()
        # `vllm serve` of the CPU wheel looks for a package of another name, and exits.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += [f"--model={model}", f"--port={port}", "--host=127.0.0.1", "--dtype=bfloat16"]
        command += ["--served-model-name=model", *self._flags(settings), *flags]
        environment = {}
        if eager:
            command.append("--enforce-eager")
            environment["TORCH_COMPILE_DISABLE"] = "1"
        process = Process("vLLM", command, directory / f"vllm-{port}.log", **environment)
        return _ready(Server(process, port))

    @staticmethod
    def _flags(settings: dict[str, object] | None) -> list[str]:
        counts = "--enable-prompt-tokens-details"
        if settings is None:
            return [counts]
        return [counts, f"--kv-transfer-config={json.dumps(transfer_config(settings))}"]


def transfer_config(settings: dict[str, object]) -> dict[str, object]:
    """Returns vLLM's `kv_transfer_config` for the connector."""
    return {
        "kv_connector": "SplicedConnector",
        "kv_connector_module_path": "spliced_connector.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings,
    }


# Settings for SGLang on a CPU without its own kernels, see docs/engines.md.
_SGLANG_ON_A_CPU = (
    "--device=cpu",
    "--dtype=bfloat16",
    "--attention-backend=torch_native",
    "--mamba-radix-cache-strategy=no_buffer",
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
    "--mem-fraction-static=0.2",
    "--sleep-on-idle",
    "--enable-metrics",
)


@dataclass(frozen=True)
class SGLang:
    """SGLang on a CPU. In all servers, the tests' kernels in torch replace the kernels that a CPU
    lacks."""

    python: Path
    name: str = "SGLang"

    def command(self, settings: dict[str, object] | None) -> str:
        words = ["python -m sglang.launch_server --model-path MODEL", *self._flags(settings)]
        if settings is not None:
            words.insert(0, f"SPLICED_SGLANG='{json.dumps(settings)}'")
        return " ".join(words)

    def start(
        self,
        directory: Path,
        model: Path,
        settings: dict[str, object] | None,
        *flags: str,
        eager: bool = True,
    ) -> Server:
        port = free_port()
        command = [str(self.python), "-m", "sglang.launch_server", f"--model-path={model}"]
        command += [f"--port={port}", "--host=127.0.0.1", "--served-model-name=model"]
        command += [*_SGLANG_ON_A_CPU, *self._flags(settings), *flags]
        environment = {
            "PYTHONPATH": os.pathsep.join([str(_stand_ins(directory)), str(_TESTS)]),
            "TRITON_INTERPRET": "1",  # for the kernels that are not replaced
            "SPLICED_SGLANG": json.dumps(settings or {}),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        process = Process("SGLang", command, directory / f"sglang-{port}.log", **environment)
        return _ready(SGLangServer(process, port, "sglang"))

    @staticmethod
    def _flags(settings: dict[str, object] | None) -> list[str]:
        counts = "--enable-cache-report"
        return [counts] if settings is None else [counts, "--radix-cache-backend=spliced"]


_TESTS = ROOT / "connector" / "python" / "tests" / "engine"


def _stand_ins(directory: Path) -> Path:
    """Makes SGLang load the tests' kernels as a plugin."""
    info = directory / "site" / "sglang_kernels-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-kernels\nVersion: 0\n")
    entry = "[sglang.srt.plugins]\nkernels = sglang_kernels:replace\n"
    (info / "entry_points.txt").write_text(entry)
    return info.parent


class SGLangServer(Server):
    """A server of SGLang, whose own API has the outcome of requests in `meta_info`."""

    def one_token(
        self, ids: Sequence[int], cuts: Sequence[int] | None, refresh: float = 0.0
    ) -> tuple[float, dict[str, object]]:
        sampling: dict[str, object] = {"max_new_tokens": 1, "temperature": 0}
        if cuts is not None:
            sampling["custom_params"] = {"spliced": parameters(cuts, refresh)}
        took, reply = self._timed({"input_ids": list(ids), "sampling_params": sampling})
        return took, dict((reply["meta_info"].get("spliced") or [{}])[0])


def _ready(server: Server) -> Server:
    try:
        server.process.wait_for(server.port, _SECONDS)
    except BaseException:
        server.close()
        raise
    return server


def engine_of(name: str, sglang_python: Path | None) -> Engine:
    """Returns an engine by its name on the command line."""
    if name == "vllm":
        return VLLM()
    return SGLang(sglang_python or Path(sys.executable))
