"""vLLM with shared pages compared with copies: blocks in use, and the time of a decoding step.

    cd connector/python && PYTHONPATH=src:tests ../../bin/engines/bin/python \\
        bench/vllm_pages_engine.py --requests 24

It runs one engine on a CPU, with the model of scripts/tinyhybrid, and a daemon. The given number of
requests run at once. Each request has 11 of 15 segments of 200 tokens. Rounds with copies and with
shared pages alternate. Only steps in which all requests run are timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.splice_requests import scheduler, start
from engine.vllm_harness import Engine, prompt
from running import Daemon
from spliced_connector.vllm.pages.manager import find_manager

MODEL = Path(__file__).resolve().parents[3] / "scripts/tinyhybrid/model"
SEGMENTS = [prompt(200, seed=100 + i) for i in range(15)]
PICKED = 11


def request_of(number: int) -> tuple[list[int], list[int]]:
    """Returns a prompt and its cuts."""
    ids, cuts = list[int](), [0]
    for i in range(PICKED):
        ids += SEGMENTS[(number * 7 + i * 3) % len(SEGMENTS)]
        cuts.append(len(ids))
    return ids + prompt(12, seed=99), cuts


def blocks(engine: Engine) -> int:
    """Returns the number of different blocks that hold rows of requests."""
    pages = find_manager(engine.core.scheduler.kv_cache_manager)
    if pages is None:
        raise RuntimeError("no shared pages")
    own = {block.block_id for row in pages.req_to_blocks.values() for block in row}
    return len(own | {run.block for held in pages._held.values() for run in held.plan.runs})


def run(engine: Engine, name: str, requests: int, tokens: int) -> tuple[float, int]:
    """Returns the median milliseconds of a step, and the most blocks."""
    from vllm import SamplingParams

    llm: Any = engine.llm.llm_engine
    for i in range(requests):
        ids, cuts = request_of(i)
        extra = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": cuts}}}
        sampling = SamplingParams(
            max_tokens=tokens, detokenize=False, temperature=0, ignore_eos=True, extra_args=extra
        )
        llm.add_request(f"{name} {i}", {"prompt_token_ids": ids}, sampling)
    times, most, left = list[float](), 0, requests
    while left:
        began = time.perf_counter()
        outputs = llm.step()
        if len(engine.core.scheduler.running) == requests:
            times.append(1000 * (time.perf_counter() - began))
        most = max(most, blocks(engine))
        left -= sum(output.finished for output in outputs)
    return statistics.median(times[2:]), most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), "-arena=512MiB", "-prefill-speed=500")
        daemon.start()
        options: dict[str, object] = {"max_num_seqs": given.requests, "max_model_len": 4096}
        engine = start(str(MODEL), daemon.socket, options=options, shared_pages=True)
        engine.wait_attached()
        for i in range(3):
            run(engine, f"warm {i}", given.requests, 8)
            engine.worker.drain(60)
        half = scheduler(engine)
        pages, ratios = half._pages, []
        for i in range(given.rounds):
            half._pages = None
            copied, many = run(engine, f"copies {i}", given.requests, 24)
            half._pages = pages
            shared, few = run(engine, f"shared {i}", given.requests, 24)
            ratios.append(copied / shared)
            print(f"copies {copied:.1f} ms, {many} blocks; shared {shared:.1f} ms, {few} blocks")
        print(f"decoding with shared pages: {statistics.median(ratios):.2f}x")
        engine.close()
        daemon.stop()


if __name__ == "__main__":
    main()
