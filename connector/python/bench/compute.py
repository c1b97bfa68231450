"""Compares placing segments by torch in the engine with placing them by the daemon's kernels.

    bin/engines/bin/python connector/python/bench/compute.py --out docs/results/compute.json

Run it in the repository's root; it uses `bin/spliced`. The models are transformers' classes with
random weights: three linear layers and one attention layer. Their states and rows have the shapes
of the named models. Everything else is narrow, so that segments take most of a walk's time.

A prompt has cached segments and a question of 32 tokens. The measured time is the walk over the
prompt, including reading the segments. Results are medians over interleaved trials: of elapsed
time, and of processor time of both processes. Other work on the machine affects processor time
less. Both processes have one thread. Plan "front": the prompt begins with one segment, and the
daemon gets one `assemble` request. Plan "seams": four segments, with 8 tokens recomputed on either
side of a join; the daemon gets one request for rows, and one request for states per linear layer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "connector/python/src"))

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor  # noqa: E402

from spliced_connector.client import Client, Options  # noqa: E402
from spliced_connector.hf import HFSettings, SplicedTransformers  # noqa: E402
from spliced_connector.serving.composing import Placement  # noqa: E402
from spliced_connector.walk import Naming  # noqa: E402

SEGMENTS, QUESTION, VOCABULARY = 4, 32, 512
PLANS = {"front": 1, "seams": SEGMENTS}
WAYS = ("engine", "daemon")

BODY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1 << 16,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Shape:
    """A class of transformers, and settings that give its states the shapes of a real model."""

    config: str
    model: str
    settings: dict[str, Any]


def gated_delta(value_heads: int) -> Shape:
    """Returns the shape of Qwen's layers: three linear layers, then one that attends."""
    return Shape(
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {
            "num_hidden_layers": 4,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
            },
        },
    )


SHAPES = {
    "gated delta, 32 heads of 128 x 128 (Qwen3-Next)": gated_delta(32),
    "gated delta, 16 heads of 128 x 128 (Qwen3.5-0.8B)": gated_delta(16),
    "Mamba2, 128 heads of 128 x 64 (Bamba-9B)": Shape(
        "BambaConfig",
        "BambaForCausalLM",
        {
            "num_hidden_layers": 4,
            "attn_layer_indices": [3],
            "num_key_value_heads": 4,
            "hidden_size": 64,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_expand": 128,
        },
    ),
}


def build(shape: Shape) -> transformers.PreTrainedModel:
    """Builds a model with random weights. Decays are slow enough that transitions matter."""
    torch.manual_seed(1)
    config = getattr(transformers, shape.config)(**{**BODY, **shape.settings})
    model = getattr(transformers, shape.model)(config).to(torch.bfloat16).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.copy_(torch.log(0.02 + 0.5 * torch.rand(p.shape, generator=noise)))
            elif name.endswith("dt_bias"):
                p.copy_(torch.randn(p.shape, generator=noise) - 2)
    return model


class Daemon:
    """A process of bin/spliced."""

    def __init__(self, directory: str) -> None:
        self.socket = f"{directory}/s.sock"
        self._process = subprocess.Popen(
            [
                str(ROOT / "bin/spliced"),
                f"-socket={self.socket}",
                f"-admin-socket={directory}/a.sock",
                "-http=off",
                "-arena=4GiB",
                "-private=64MiB",
                "-log-level=warn",
            ],
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        until = time.monotonic() + 30
        while not Path(self.socket).exists() and time.monotonic() < until:
            time.sleep(0.02)

    def seconds(self) -> float:
        """Returns the processor time of its threads so far."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Timed:
    """Sums the time of walks."""

    def __init__(self) -> None:
        self.seconds = self.spent = 0.0
        self.daemon: Daemon | None = None
        self._splice = Placement.splice

    def __call__(self, placement: Placement, *given: Any) -> Tensor | None:
        began, spent = time.perf_counter(), self._spent()
        try:
            return self._splice(placement, *given)
        finally:
            self.seconds += time.perf_counter() - began
            self.spent += self._spent() - spent

    def _spent(self) -> float:
        return time.process_time() + (0.0 if self.daemon is None else self.daemon.seconds())


def measure(
    engines: dict[str, SplicedTransformers],
    walks: Timed,
    plan: str,
    length: int,
    trials: int,
) -> dict[str, Any]:
    """Measures walks of one prompt, alternately with torch and with the daemon's kernels."""
    tokens = PLANS[plan] * length
    total = tokens + QUESTION
    seed = torch.Generator().manual_seed(length + PLANS[plan])  # no two prompts begin alike
    ids = torch.randint(3, VOCABULARY, (total,), generator=seed)
    cuts = list(range(0, tokens + 1, length))
    engines["engine"].prefill(ids, cuts, "splice")
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    logits: dict[str, Tensor] = {}
    for trial in range(trials + 1):
        for way in WAYS if trial % 2 else WAYS[::-1]:
            walks.seconds = walks.spent = 0.0
            done = engines[way].prefill(ids, cuts, "splice", keep=False)
            if done.reused < tokens * 0.8 or done.trouble:
                raise RuntimeError(f"{done.reused} of {total} tokens reused: {done.trouble}")
            logits[way] = done.logits.float()
            if trial:  # the first trial only touches the memory
                wall[way].append(1e3 * walks.seconds)
                spent[way].append(1e3 * walks.spent)
    count = engines["daemon"].composed
    if count.refused or count.engine or engines["engine"].composed.daemon:
        raise RuntimeError(f"walks were not done as they were to be: {count}")
    off = (logits["daemon"] - logits["engine"]).norm() / logits["engine"].norm()
    return {
        "plan": plan,
        "segment_tokens": length,
        "reused_tokens": done.reused,
        "walk_ms": {way: round(statistics.median(wall[way]), 2) for way in WAYS},
        "walk_ms_all": {way: [round(x, 2) for x in wall[way]] for way in WAYS},
        "walk_cpu_ms": {way: round(statistics.median(spent[way]), 2) for way in WAYS},
        "walk_cpu_ms_all": {way: [round(x, 2) for x in spent[way]] for way in WAYS},
        "logits_off": float(off),
    }


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trials", type=int, default=11)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--tolerances", type=float, nargs="+", default=[0.02])
    parser.add_argument("--shapes", type=int, nargs="+", default=list(range(len(SHAPES))))
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    walks = Timed()
    Placement.splice = lambda self, *them: walks(self, *them)  # type: ignore[method-assign]
    rows: list[dict[str, Any]] = []
    chosen = [list(SHAPES)[i] for i in args.shapes]
    for name in chosen:
        model = build(SHAPES[name])
        for tolerance in args.tolerances:
            with tempfile.TemporaryDirectory() as directory:
                daemon = walks.daemon = Daemon(directory)
                try:
                    client = Client(
                        Options(socket=daemon.socket, timeout=10.0, transfer_timeout=60.0)
                    )
                    naming = Naming(b"\x01" * 32, tolerance=tolerance)
                    engines = {
                        way: SplicedTransformers(
                            model,
                            client,
                            naming,
                            HFSettings(keep_all=True, compute=way),  # type: ignore[arg-type]
                        )
                        for way in WAYS
                    }
                    for plan in PLANS:
                        for length in args.lengths:
                            row = measure(engines, walks, plan, length, args.trials)
                            rows.append({"shape": name, "tolerance": tolerance, **row})
                            told = {k: v for k, v in rows[-1].items() if "all" not in k}
                            print(json.dumps(told), flush=True)
                            write(args.out, args.trials, rows)
                    client.close()
                finally:
                    daemon.stop()


def write(path: Path | None, trials: int, rows: list[dict[str, Any]]) -> None:
    """Writes the results so far."""
    if path is None:
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": machine(),
        "threads": 1,
        "trials": trials,
        "rows": rows,
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = json.dumps({**found, "rows": []}, indent=1)
    path.write_text(text.replace("[]", f"[\n{lines}\n ]") + "\n")


def machine() -> str:
    """Returns the processor model and the number of processors."""
    info = Path("/proc/cpuinfo").read_text()
    named = next(line for line in info.splitlines() if line.startswith("model name"))
    flags = "AVX-512" if "avx512f" in info else "AVX2"
    return f"{os.cpu_count()} of {named.partition(':')[2].strip()}, {flags}"


if __name__ == "__main__":
    main(sys.argv[1:])
