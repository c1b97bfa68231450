"""The examples, against a server of vLLM over HTTP."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.vllm_harness import CONNECTOR, SOURCE
from running import ROOT, Daemon, reserved_ports

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("openai") is None, reason="openai is not installed"
    ),
]

EXAMPLES = ROOT / "connector" / "python" / "examples"
MODEL = ROOT / "scripts" / "tinyhybrid" / "model"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE)}


def connector(socket_path: str) -> str:
    """Finders on; whatever is held is used, as this machine's pace is not the test's subject."""
    extra = {
        "socket": socket_path,
        "weights": str(MODEL),
        "mode": "splice",
        "measured": False,
        "find": ["known", "chunks"],
        "chunk_least": 32,
        "chunk_mean": 64,
        "chunk_most": 128,
        "timeout_ms": 5000.0,
        "stall_ms": 10_000.0,
    }
    said = {
        "kv_connector": "SplicedConnector",
        "kv_connector_module_path": CONNECTOR,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return json.dumps(said)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("d")
    daemon = Daemon(directory, "-arena=256MiB", "-prefill-speed=5")
    daemon.start()
    (port,) = reserved_ports(1)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [f"--model={MODEL}", f"--port={port}", "--host=127.0.0.1", "--dtype=bfloat16"]
    command += [
        "--enable-prompt-tokens-details",
        f"--kv-transfer-config={connector(daemon.socket)}",
    ]
    log = directory / "vllm.log"
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=ENVIRONMENT, cwd=directory)
    try:
        wait_for(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=60)
        daemon.stop()


def wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + 1800
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"vLLM does not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


def run(name: str, url: str, **environment: str) -> list[dict[str, Any]]:
    """What an example was told by the connector, by request."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, url],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    answers = [text for what, _, text in lines if what == "answer"]
    assert len(answers) == 2
    assert all(answers)
    return [ast.literal_eval(text) for what, _, text in lines if what == "the connector"]


def run_until_spliced(url: str, **environment: str) -> list[dict[str, Any]]:
    """What the connector reports of a chat that is repeated until nothing is captured any more,
    four times at most."""
    told: list[dict[str, Any]] = []
    for _ in range(4):
        told += run("openai_chat.py", url, **environment)
        if told[-1]["way"] == "splice" and told[-1]["captured"] == 0:
            break
    return told


def test_an_openai_client_reuses_documents_in_another_order(url: str) -> None:
    told = run_until_spliced(url)
    assert told[0]["found"]
    assert any(one["captured"] for one in told if one["way"] == "splice")
    last = told[-1]
    assert last["way"] == "splice"
    assert last["reused"] > 256
    assert last["captured"] == 0


def test_an_openai_client_names_its_cuts(url: str) -> None:
    told = run_until_spliced(url, TOKENIZER=str(MODEL))
    assert all("found" not in one and "trouble" not in one for one in told)
    assert told[-1]["way"] == "splice"
    assert told[-1]["reused"] > 256


def test_a_filter_of_open_webui_picks_the_finders(url: str) -> None:
    spec = importlib.util.spec_from_file_location("its_filter", EXAMPLES / "open_webui_filter.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for find, named in (("chunks", {"chunks"}), ("", set())):
        its = module.Filter()
        its.valves.find = find
        body = its.inlet(json.loads((EXAMPLES / "chat.json").read_text()) | {"model": str(MODEL)})
        request = urllib.request.Request(
            f"{url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            told = json.load(reply)["kv_transfer_params"]["spliced"]
        assert set(told.get("found", ())) == named


@pytest.mark.parametrize("name", ["langchain_rag.py", "llamaindex_rag.py"])
def test_examples_of_packages_that_are_not_here_compile(name: str) -> None:
    """Their packages ask for other releases of openai than vLLM does."""
    compile((EXAMPLES / name).read_text(), name, "exec")
