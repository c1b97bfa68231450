"""Bytes of keys and values of resident requests in transformers, copied and read in place.

    make build && bin/engines/bin/python scripts/pages/measure.py --out pages-transformers.json

The list of requests is the same as in scripts/lab/pages: 300 requests, each with 11 of XQuAD's 240
passages, a system prompt of 48 tokens and 32 tokens of output. The last c requests are resident.
The list has only lengths: tokens are random, and the model has Qwen3.5's layers and random weights.
The measurement counts the memory of tensors: own rows of all resident requests, and each segment in
the daemon's memory once. Decoding with copies and in place is timed alternately.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "demo-engines"))
sys.path.insert(0, str(ROOT / "connector" / "python" / "src"))

import torch
from measure_model import VOCABULARY, model, write
from processes import start_daemon
from torch import Tensor
from transformers import PreTrainedModel

from spliced_connector.client import Client, Options
from spliced_connector.hf import HFSettings, Prefilled, SplicedTransformers
from spliced_connector.hf.paged import held_bytes
from spliced_connector.walk import Naming

SYSTEM, OUTPUT = 48, 32
SIMULATED = {75: 3.15, 300: 7.84}
"""Ratios of bytes with copies to bytes with pages, by number of requests, as simulated for rule b
(window of 8, packed) of docs/policies.md."""


def numbers(name: str) -> Iterator[list[int]]:
    for line in (ROOT / "scripts" / "lab" / "pages" / "xquad" / name).read_text().splitlines():
        if words := line.partition("#")[0].split():
            yield [int(w) for w in words]


def text(seed: int, n: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def prompts() -> list[tuple[list[int], list[int]]]:
    """Returns token ids and cuts."""
    lengths = [row[0] for row in numbers("lengths.txt")]
    passages = [text(i + 1, n) for i, n in enumerate(lengths)]
    out = []
    for i, (question, *chosen) in enumerate(numbers("uniform.txt")):
        ids, cuts = text(9999, SYSTEM), [0, SYSTEM]
        for p in chosen:
            ids = ids + passages[p]
            cuts.append(len(ids))
        out.append((ids + text(10_000 + i, question), cuts))
    return out


def forward(m: PreTrainedModel, ids: list[int], done: Prefilled) -> Tensor:
    with torch.no_grad():
        return m(torch.tensor([ids]), past_key_values=done.cache, use_cache=True).logits[0, -1]


def peak(engine: SplicedTransformers, list_: list[tuple[list[int], list[int]]], c: int) -> int:
    most, residents = 0, deque[Prefilled]()
    for i, (ids, cuts) in enumerate(list_):
        if len(residents) == c:
            residents.popleft().release()
        done = engine.prefill(ids, cuts, "splice")
        forward(engine.model, text(20_000 + i, OUTPUT), done)
        residents.append(done)
        if len(residents) == c or i == len(list_) - 1:
            most = max(most, held_bytes(done.cache for done in residents))
    while residents:
        if not residents.popleft().release():
            raise SystemExit("a lease ended early")
    return most


def decode(engines: dict[str, SplicedTransformers], rounds: int) -> tuple[dict[str, float], float]:
    """Returns median seconds per token, measured alternately, and the difference of logits in
    units of their spread."""
    ids, cuts = prompts()[0]
    next(iter(engines.values())).prefill(ids, cuts, "splice")
    sides = {name: e.prefill(ids, cuts, "splice") for name, e in engines.items()}
    a, b = (done.logits for done in sides.values())
    apart = float((a - b).abs().max() / a.std())
    times: dict[str, list[float]] = {name: [] for name in sides}
    for at in range(rounds + 1):
        for name, done in list(sides.items())[:: 1 if at % 2 else -1]:
            begin = time.perf_counter()
            for token in range(8):
                forward(engines[name].model, [token], done)
            if at:
                times[name].append((time.perf_counter() - begin) / 8)
    return {name: statistics.median(t) for name, t in times.items()}, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resident", default="75,300", help="concurrent requests")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    list_ = prompts()[: options.requests]
    rows = []

    def row(name: str, value: float, unit: str, limit: float | None = None) -> None:
        ratio = None if limit is None else round(value / limit, 4)
        rows.append(
            {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "limit": limit, "ratio": ratio}
        )
        print(f"{name:50} {value:10.4g} {unit:6} {limit or '-':>8} {ratio or '-':>8}", flush=True)

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        daemon, socket = start_daemon(directory, "-arena=1GiB", "-private=16MiB")
        stack.callback(daemon.close)

        def both(wide: bool = False) -> dict[str, SplicedTransformers]:
            made = {}
            for name, in_place in (("copies", False), ("in place", True)):
                client = Client(Options(socket=socket, name=name, timeout=20.0))
                stack.callback(client.close)
                client.wait_attached(20.0)
                settings = HFSettings(keep_all=True, in_place=in_place, tail_tokens=0)
                naming = Naming(bytes([1 + wide]) * 32)
                made[name] = SplicedTransformers(model(wide), client, naming, settings)
            return made

        engines = both()
        for ids, cuts in list_:
            engines["copies"].prefill(ids, cuts, "splice")  # all segments are cached
        for c in (int(n) for n in options.resident.split(",")):
            copies, shared = (peak(e, list_, c) for e in engines.values())
            row(f"copies, {c} requests", copies / 2**20, "MiB")
            row(f"in place, {c} requests", shared / 2**20, "MiB")
            row(f"copies over in place, {c} requests", copies / shared, "x", SIMULATED.get(c))
        for what, pair in (("", engines), (", heads of 128", both(wide=True))):
            seconds, apart = decode(pair, options.rounds)
            row(f"logits beside copies, of their spread{what}", apart, "")
            limit = seconds["copies"] * 1e3
            row(f"a token in place, of copies{what}", seconds["in place"] * 1e3, "ms", limit)
    if options.out:
        write(options.out, rows)


if __name__ == "__main__":
    main()
