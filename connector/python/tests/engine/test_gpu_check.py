"""The script of the GPU check that runs two engines at a daemon, on the driver without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_cuda import FakeCuda
from running import ROOT, StartDaemon
from spliced_connector.gpu import load, uuid_text

pytestmark = pytest.mark.engine

SCRIPTS = ROOT / "scripts" / "gpu-check"
TIMES = ("ms",)  # of a CPU: they mean nothing


def run(
    socket: str, cuda: FakeCuda, model: str, seconds: float | None = None
) -> dict[str, dict[str, object]]:
    """Its rows by name; seconds: after which it would be stopped."""
    _, uuid = load(cuda.path).devices()[0]
    command = [
        sys.executable, str(SCRIPTS / "engines.py"), "--small", "--socket", socket,
        "--library", cuda.path, "--device", uuid_text(uuid), "--model", model,
    ]  # fmt: skip
    path = Path(__file__).parents[2] / "src"
    env = {**os.environ, "GPU_CHECK_TORCH": "cpu", "PYTHONPATH": str(path)}
    if seconds is not None:
        env["GPU_CHECK_UNTIL"] = str(time.time() + seconds)
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=env)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    names = [row["name"] for row in found]
    assert len(names) == len(set(names)), names
    return {str(row["name"]): row for row in found}


@pytest.mark.parametrize(
    "model",
    ["random", pytest.param("tinyhybrid", marks=pytest.mark.wide)],  # the latter also has answers
)
def test_two_engines_reuse_from_the_gpu_what_one_has_computed(
    model: str, start_gpu_daemon: StartDaemon, cuda: FakeCuda
) -> None:
    daemon = start_gpu_daemon("-hbm-public=64MiB", "-hbm-private=64MiB", "-arena=64MiB")
    path = model if model == "random" else str(ROOT / "scripts" / model / "model")
    rows = run(daemon.socket, cuda, path)
    assert len(rows) >= 15
    for name, row in rows.items():
        assert row["ok"] or row["unit"] in TIMES, (name, row)
        if row["unit"] == "of spread":  # of logits in float32; the bar is for a GPU's bfloat16
            assert isinstance(row["value"], float) and row["value"] <= 1e-4, (name, row)
    for kind in ("segment", "checkpoint"):
        hits = daemon.gpus("spliced_hbm_leases_total", kind=kind, result="hit")
        assert hits > 0, f"no {kind} was read from the GPU"
    assert daemon.gpus("spliced_hbm_promotions_total", result="done") > 0


def test_without_memory_of_a_gpu_the_script_says_so_and_ends(
    start_gpu_daemon: StartDaemon, start_daemon: StartDaemon, cuda: FakeCuda
) -> None:
    start_gpu_daemon()  # for its environment
    rows = run(start_daemon().socket, cuda, "random")
    said = [row for row in rows.values() if row["unit"] == "yes"]
    assert len(said) == 2
    for row in said:
        assert not row["ok"] and "shares none" in str(row["note"])


def test_a_script_that_is_too_slow_says_where_it_stands(
    start_gpu_daemon: StartDaemon, cuda: FakeCuda
) -> None:
    rows = run(start_gpu_daemon().socket, cuda, "random", seconds=4)
    late = [row for name, row in rows.items() if name.endswith("in time")]
    assert late, list(rows)
    for row in late:
        assert not row["ok"] and "stopped at" in str(row["note"]) and ".py:" in str(row["note"])
