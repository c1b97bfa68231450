"""Time per token of greedy decoding in transformers, without drafts and with drafts verified.

    make build && bin/engines/bin/python scripts/decode/measure.py --out decode-transformers.json

It measures these ways alternately: the model's own steps over a cache, as in its `generate`; the
walk without drafts; drafts that are all right, n at a time; drafts that are all wrong; and each
draft decoded separately with a copy of all states. An engine that updates states at every token
needs such copies to roll back drafts. Times include the model's head. The model has Qwen3.5's
layers with heads of 128, and random weights.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "connector" / "python" / "src"))
sys.path.insert(0, str(ROOT / "scripts" / "pages"))

import torch
from measure_model import model, write
from transformers.cache_utils import Cache

from spliced_connector.hf.cache import filled
from spliced_connector.walk import Context, Naming, architecture, prefill, verify

PROMPT, TOKENS = 400, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    m = model(wide=True)
    arch = architecture(m, Naming(b"\x01" * 32))
    ids = [
        int(t)
        for t in torch.randint(
            0, 256, (PROMPT,), generator=torch.Generator().manual_seed(1)
        )
    ]
    line = m.generate(torch.tensor([ids]), max_new_tokens=TOKENS + 16, do_sample=False)[
        0
    ].tolist()

    def behind() -> Context:
        context = Context(arch, len(line), m.device)
        prefill(arch, line[:PROMPT], context)
        return context

    def step(context: Context, drafts: int, accepted: int) -> None:
        done = verify(arch, line[: context.tokens + 1 + drafts], context)
        arch.logits(done.hidden)
        done.accept(accepted)

    def alone(context: Context) -> None:
        while context.tokens < PROMPT + TOKENS:
            step(context, 0, 1)

    caches: list[Cache] = []

    def own(context: Context) -> None:
        cache = caches.pop()
        for at in range(PROMPT, PROMPT + TOKENS):
            m(torch.tensor([line[at : at + 1]]), past_key_values=cache, use_cache=True)

    def right(n: int) -> Callable[[Context], None]:
        def run(context: Context) -> None:
            while context.tokens < PROMPT + TOKENS:
                step(context, n, 1 + n)

        return run

    def wrong(n: int) -> Callable[[Context], None]:
        def run(context: Context) -> None:
            while context.tokens < PROMPT + TOKENS:
                step(context, n, 1)

        return run

    def states(n: int) -> Callable[[Context], None]:
        """Decodes the last token and n drafts one by one, with a copy of the states for each."""

        def run(context: Context) -> None:
            while context.tokens < PROMPT + TOKENS:
                kept = []
                for _ in range(1 + n):
                    step(context, 0, 1)
                    kept.append(
                        [a.state.clone() for a in context.layers if a.state is not None]
                    )

        return run

    ways: dict[str, Callable[[Context], None]] = {
        "the model's own": own,
        "no drafts": alone,
    }
    for n in (1, 3, 7):
        ways[f"{n} drafts, right"] = right(n)
        ways[f"{n} drafts, wrong"] = wrong(n)
        ways[f"{n} drafts, a state each"] = states(n)
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for at in range(options.rounds + 1):
            for name, run in list(ways.items())[:: 1 if at % 2 else -1]:
                context = behind()
                caches[:] = [filled(m, arch, context)]  # not timed
                begin = time.perf_counter()
                run(context)
                if at:
                    times[name].append((time.perf_counter() - begin) / TOKENS * 1e3)
    base = statistics.median(times["the model's own"])
    rows = [
        {
            "name": name,
            "ms_per_token": round(statistics.median(t), 3),
            "times_as_fast": round(base / statistics.median(t), 3),
        }
        for name, t in times.items()
    ]
    for row in rows:
        print(f"{row['name']:30} {row['ms_per_token']:8} ms {row['times_as_fast']:8}x")
    if options.out:
        write(options.out, rows)


if __name__ == "__main__":
    main()
