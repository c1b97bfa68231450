"""Many requests to one vLLM while its daemon is killed, stalled and restarted.

    PYTHONPATH=src:tests ../../bin/engines/bin/python -m engine.faults --requests 5000 --ranks 2

The engine keeps its own prefix cache. What may not be: an error, an answer of an exact prefix that
is not the one without a cache, a splice that answers otherwise than the same splice did before the
faults began, which in turn is the one that the library walks in the engine's process.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.chaos import Chaos
from engine.vllm_harness import Answer, Engine, Setup, hybrid_model, prompt
from running import Daemon

SEGMENT, SEGMENTS, QUERY = 160, 6, 12
PICKED = 3
TOKENS = 2
EXACT = "exact"
NEAR = 0.15
"""Log-probabilities of a walk and of the engine, in bf16."""


@dataclass
class Report:
    """What came of it."""

    mode: str
    ranks: int
    requests: int = 0
    seconds: float = 0.0
    ways: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A prompt, and its cuts in mode splice."""

    ids: tuple[int, ...]
    cuts: tuple[int, ...] = ()


def prompts(mode: str) -> list[Asked]:
    """What is asked, over and over: prompts with prefixes in common, or segments in any order."""
    if mode == "prefix":
        shared = prompt(300, seed=1)
        return [
            Asked(tuple(prompt(320 + 37 * i, 50 + i, shared[: 300 * (i % 2)]))) for i in range(12)
        ]
    parts = [prompt(SEGMENT, seed=100 + i) for i in range(SEGMENTS)]
    pick, out = random.Random(1), []
    for i in range(12):
        order = pick.sample(range(SEGMENTS), PICKED)
        ids = [token for part in order for token in parts[part]] + prompt(QUERY, seed=30 + i)
        out.append(Asked(tuple(ids), tuple(SEGMENT * k for k in range(PICKED + 1))))
    return out


def ask(engine: Engine, asked: Asked, salt: str = "") -> Answer:
    fields: dict[str, object] = {"cache_salt": salt} if salt else {}
    (answer,) = engine.ask(asked.ids, tokens=TOKENS, cuts=asked.cuts, **fields)
    return answer


def way(answer: Answer) -> str:
    """How it was computed, as far as the answer depends on it: a segment that was captured just now
    is the one that others find later, one that was left out is computed in its context."""
    told = answer.told
    if told.get("way") != "splice":
        return EXACT
    return f"{told['walked']} rows walked behind {told.get('prefix', 0)}"


def walked(_worker: object, ids: Sequence[int], cuts: Sequence[int]) -> list[float]:
    """In every rank: log-probabilities behind the prompt, spliced by the library alone."""
    import torch
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from spliced_connector.model import Choice, divide, make_plan
    from spliced_connector.walk import Context, capture, rounded, splice

    mode = get_kv_transfer_group().worker_half._mode
    profile, arch = mode._session.model.profile, mode._arch
    cut_up = divide(profile, b"", list(ids), list(cuts), 8)
    choices = [Choice.HIT if piece.spec else Choice.CONTEXT for piece in cut_up.pieces]
    plan = make_plan(cut_up, 0, choices)
    line = torch.tensor(ids)
    with torch.inference_mode():
        segments = {
            piece.index: rounded(profile, capture(arch, line[piece.start : piece.end], piece.spec))
            for piece in cut_up.pieces
            if piece.spec is not None
        }
        hidden = splice(arch, line, plan.spans, segments, Context(arch, len(ids), line.device))
        if hidden is None:
            raise RuntimeError("a plan without rows at its end")
        said = arch.logits(hidden[-1:])
        found: list[float] = [] if said is None else said[0].float().log_softmax(-1).tolist()
        return found


def run(mode: str, requests: int, ranks: int = 1, seconds: float = 1e9, seed: int = 1) -> Report:
    """Asks until either bound is met."""
    report = Report(mode, ranks)
    with tempfile.TemporaryDirectory(prefix="spliced-faults-") as name:
        directory = Path(name)
        daemon = Daemon(directory, "-prefill-speed=500", disk=True)
        daemon.start()
        try:
            engine = Engine(_setup(mode, ranks, directory, daemon))
            try:
                _ask_all(engine, daemon, report, (requests, seconds, seed))
            finally:
                engine.close()
        finally:
            daemon.stop()
    return report


def _setup(mode: str, ranks: int, directory: Path, daemon: Daemon) -> Setup:
    connector: dict[str, object] = {"mode": mode, "timeout_ms": 100.0, "load_ms": 500.0}
    if mode == "splice":
        connector |= {"measured": False, "stall_ms": 10_000.0, "canary_share": 0.0}
    options: dict[str, object] = {"enable_prefix_caching": True}
    if ranks > 1:
        options |= {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    return Setup(hybrid_model(directory / "model", heads=ranks), daemon.socket, connector, options)


def _ask_all(
    engine: Engine, daemon: Daemon, report: Report, bounds: tuple[int, float, int]
) -> None:
    requests, seconds, seed = bounds
    asked = prompts(report.mode)
    right = _right(engine, asked, report)
    pick = random.Random(seed)
    chaos = Chaos(daemon, seed, report.faults)
    began = time.monotonic()
    with chaos.running():
        while report.requests < requests and time.monotonic() - began < seconds:
            i = pick.randrange(len(asked))
            if pick.random() < 0.5:
                engine.llm.reset_prefix_cache()  # else the daemon is seldom asked
            answer = ask(engine, asked[i])
            report.requests += 1
            kind = way(answer)
            known = (i, kind) in right
            # A splice that begins behind a prefix, or of fewer segments, is another one: the first
            # of its kind is what the later ones are compared with.
            want = right.setdefault((i, kind), answer.tokens)
            if kind == EXACT:
                report.ways["prefix" if answer.cached else "computed"] += 1
            else:
                report.ways["spliced" if known else "spliced in a new way"] += 1
            if answer.tokens != want:
                report.wrong.append(f"prompt {i}, {kind}: {answer.tokens}, want {want}")
    report.seconds = round(time.monotonic() - began, 1)
    report.counts = engine.scheduler.tally.snapshot()
    if chaos.failed is not None:
        raise chaos.failed


def _right(
    engine: Engine, asked: Sequence[Asked], report: Report
) -> dict[tuple[int, str], list[int]]:
    """The answers before anything happens, by prompt and way."""
    right: dict[tuple[int, str], list[int]] = {}
    for i, one in enumerate(asked):
        alone = ask(engine, Asked(one.ids), salt=f"alone {i}")
        right[i, EXACT] = alone.tokens
    if report.mode == "prefix":
        return right
    for _ in range(4):  # until all is held
        for one in asked:
            ask(engine, one)
            engine.settle()
    for i, one in enumerate(asked):
        answer = ask(engine, one)
        if way(answer) == EXACT or answer.told["captured"]:
            raise RuntimeError(f"prompt {i} is not spliced: {answer.told}")
        right[i, way(answer)] = answer.tokens
        by_walk = next(filter(None, engine.llm.collective_rpc(walked, args=(one.ids, one.cuts))))
        if abs(by_walk[answer.tokens[0]] - answer.logprobs[0]) > NEAR:
            report.wrong.append(f"prompt {i}: not the splice of the library")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=5000, help="of each mode")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each mode, at most")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mode", choices=("prefix", "splice", "both"), default="both")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    from spliced_connector.vllm import plugin

    plugin.register()  # as its entry point does, also in the processes of ranks
    failed = False
    for mode in ("prefix", "splice") if args.mode == "both" else (args.mode,):
        report = run(mode, args.requests, args.ranks, args.seconds, args.seed)
        print(json.dumps(vars(report)), flush=True)
        failed = failed or bool(report.wrong)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
