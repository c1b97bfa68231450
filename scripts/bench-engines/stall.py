"""Times of the tokens of running requests while another request is spliced.

    bin/engines/bin/python scripts/bench-engines/stall.py --out stall.json

One engine with mode splice and its own prefix cache continuously generates for some requests.
Meanwhile new requests arrive, of alternating kinds:

    walk      a prompt with cached segments: its seams and its question are walked
    prefill   a prompt of as many tokens as the walk computes
    whole     a prompt as long as the spliced one, without cached segments
    nothing   no new request, for two steps

A token of a running request takes as long as the engine's step that produces it. Steps are timed
from the arrival of a new request to its first token, by the clock and by the processor time of all
threads. Other programs affect the processor time less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

from bench import MAX_TOKENS, random_model, start_daemon
from engines import transfer_config  # next to the demo, found by bench
from prompts import VOCABULARY, tokens

if TYPE_CHECKING:
    from vllm import LLM

KINDS = ("walk", "prefill", "whole", "nothing")
QUERY = 24


@dataclass(frozen=True)
class Step:
    """The duration of one step of the engine."""

    wall: float
    processor: float


class Stepped:
    """An engine in this process whose steps are called explicitly."""

    def __init__(self, model: Path, socket: str, others: int, stall_ms: float) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        from spliced_connector.vllm import plugin

        plugin.register()
        settings: dict[str, object] = {
            "socket": socket,
            "weights": str(model),
            "mode": "splice",
            "measured": False,
            "timeout_ms": 1000,
            "load_ms": 5000,
            "stall_ms": stall_ms,
        }
        self.llm: LLM = LLM(
            model=str(model),
            dtype="bfloat16",
            enforce_eager=True,
            skip_tokenizer_init=True,
            max_model_len=MAX_TOKENS,
            max_num_seqs=others + 1,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            kv_transfer_config=KVTransferConfig(**transfer_config(settings)),
        )
        self._engine = self.llm.llm_engine
        # The speed of this small model is not reported to the daemon. Otherwise the daemon would
        # advise to compute everything.
        half = self._engine.engine_core.engine_core.scheduler.connector.scheduler_half
        half._mode._clock.take = tuple
        self._names = 0

    def add(self, ids: Sequence[int], answer: int, cuts: Sequence[int] = ()) -> str:
        """Sends a request, and returns its name."""
        from vllm import SamplingParams

        said = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": list(cuts)}}} if cuts else None
        self._names += 1
        name = f"r{self._names}"
        sampling = SamplingParams(
            max_tokens=answer, temperature=0, ignore_eos=True, detokenize=False, extra_args=said
        )
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, sampling)
        return name

    def step(self) -> tuple[Step, dict[str, Any]]:
        """Runs one step, and returns what ended in it, by request."""
        wall, processor = time.perf_counter(), time.process_time()
        outputs = self._engine.step()
        took = Step(time.perf_counter() - wall, time.process_time() - processor)
        return took, {output.request_id: output for output in outputs if output.finished}

    def until(self, name: str) -> tuple[list[Step], dict[str, object]]:
        """Steps to the end of a request, and returns the connector's report on it."""
        steps = []
        while True:
            step, ended = self.step()
            steps.append(step)
            if name in ended:
                told = (ended[name].kv_transfer_params or {}).get("spliced", {})
                return steps, dict(told)

    def drain(self) -> None:
        """Waits until the daemon has stored everything."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        get_kv_transfer_group().worker_half.drain(30)


class Bench:
    """Sends requests of alternating kinds, and records the engine's steps by kind."""

    def __init__(self, engine: Stepped, segments: int, length: int) -> None:
        self._engine = engine
        self._segments = [tokens(f"segment {i}", length) for i in range(segments)]
        self.steps: dict[str, list[Step]] = defaultdict(list)
        self.walked: list[int] = []

    def run(self, rounds: int, others: int) -> None:
        engine, rng = self._engine, random.Random(1)
        for _ in range(3):  # until all segments are cached
            ids, cuts = self._spliced(rng, "warm")
            engine.until(engine.add(ids, 1, cuts))
            engine.drain()
        for i in range(others):
            engine.add(tokens(f"other {i}", 32), MAX_TOKENS - 64)
        for _ in range(4):
            engine.step()
        for n in range(rounds):
            kinds = list(KINDS)
            rng.shuffle(kinds)
            for kind in kinds:
                self._one(kind, n, rng)

    def _one(self, kind: str, n: int, rng: random.Random) -> None:
        engine = self._engine
        ids, cuts = self._spliced(rng, f"{kind} {n}")
        if kind == "nothing":
            self.steps[kind] += [engine.step()[0] for _ in range(2)]
            return
        if kind == "walk":
            steps, told = engine.until(engine.add(ids, 1, cuts))
            if told.get("way") != "splice" or told["captured"]:
                raise RuntimeError(f"not spliced from held segments: {told}")
            # The tokens that the engine computes after the splice are not part of the walk.
            self.walked.append(int(str(told["walked"])) + len(ids) - int(str(told["tokens"])))
        else:
            size = len(ids) if kind == "whole" else (self.walked or [len(ids) // 4])[-1]
            steps, _ = engine.until(engine.add(tokens(f"fresh {kind} {n}", size), 1))
        self.steps[kind] += steps

    def _spliced(self, rng: random.Random, name: str) -> tuple[list[int], list[int]]:
        """Returns all segments after the first in a new order, and a question."""
        first, *rest = self._segments
        parts = [first, *rng.sample(rest, len(rest))]
        ids = [token for part in parts for token in part]
        cuts = [len(parts[0]) * i for i in range(len(parts) + 1)]
        return ids + tokens(f"question {name}", QUERY), cuts


def quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": min(len(ordered) - 1, int(0.99 * len(ordered)))}
    return {name: round(ordered[i], 5) for name, i in at.items()} | {"max": round(ordered[-1], 5)}


def report(bench: Bench, model: Path) -> dict[str, object]:
    """Returns the seconds of running requests' tokens, and ratios with an acceptance limit."""
    rows = {
        kind: {
            "wall": quantiles([step.wall for step in steps]),
            "processor": quantiles([step.processor for step in steps]),
        }
        for kind, steps in bench.steps.items()
    }

    def p99(unit: str, kind: str) -> float:
        return rows[kind][unit]["p99"]

    ratios = {
        f"{unit}_p99_walk_over_{kind}": round(p99(unit, "walk") / p99(unit, kind), 3)
        for unit in ("wall", "processor")
        for kind in ("prefill", "whole")
    }
    config = json.loads((model / "config.json").read_text())
    return {
        "machine": platform.processor() or platform.machine(),
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "vocabulary": VOCABULARY,
        "computed_tokens": bench.walked[-1],
        "token_seconds": rows,
        **ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Others' token times while a walk runs.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--others", type=int, default=4, help="requests that generate meanwhile")
    parser.add_argument("--segments", type=int, default=10)
    parser.add_argument("--length", type=int, default=256, help="tokens of a segment")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--stall-ms", type=float, default=250.0)
    parser.add_argument("--out", type=Path, help="where the JSON goes; default: to be read here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spliced-stall-") as name, ExitStack() as stack:
        directory = Path(name)
        model = random_model(directory / "model", args.layers, args.hidden)
        daemon, path = start_daemon(
            directory, "-arena=1GiB", "-private=256MiB", "-prefill-speed=500"
        )
        stack.callback(daemon.close)
        bench = Bench(Stepped(model, path, args.others, args.stall_ms), args.segments, args.length)
        bench.run(args.rounds, args.others)
        text = json.dumps(report(bench, model), indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
