"""Time to the first token of MuSiQue requests in vLLM or SGLang, without and with reuse.

    bin/engines/bin/python scripts/bench-engines/bench.py --out bench.json

Four servers of one random model run at once and are asked alternately, so that other load of the
machine affects all of them alike:

    plain    the engine with its own prefix caching, no connector
    splice   mode splice, missing segments are captured
    primed   as splice, but segments are captured after a primer of 512 tokens
    frugal   mode splice, capture off

Every request of the data set is asked twice: first as it is (cold), and later with its passages in
another order and another query (warm). Figures are medians over the requests. Time to first token
is measured with an answer of one token. The server's processor time until the answer is shown as
well, because other load affects it less. If a server still publishes after an answer, that time
counts for the next request.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from prompts import PASSAGES, VOCABULARY, Corpus, Request, fresh, read_corpus, request, tokens

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo-engines"))

from engines import Engine, engine_of
from models import MAX_TOKENS, write_weights
from processes import Server, start_daemon


@dataclass(frozen=True)
class Servers:
    plain: Server
    splice: Server
    primed: Server
    frugal: Server


def random_model(directory: Path, layers: int, hidden: int) -> Path:
    """Writes random weights, and a tokenizer with one word per token; see `write_weights`."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    write_weights(directory, VOCABULARY, layers, hidden)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    return directory


PRIMER_TOKENS = 512
REFRESH = 0.15
# Room for the rows and states of all requests of a round, if states are stored at every block.
CACHE_GIB = "2"


FLAGS: dict[str, tuple[str, ...]] = {
    "vLLM": (f"--max-model-len={MAX_TOKENS}", "--max-num-seqs=2", "--max-num-batched-tokens=2048"),
    "SGLang": (
        f"--context-length={MAX_TOKENS}",
        "--max-running-requests=2",
        "--chunked-prefill-size=2048",
        "--max-total-tokens=131072",
        "--max-mamba-cache-size=64",
    ),
}
CACHING = {"vLLM": ("--enable-prefix-caching", "--no-enable-prefix-caching"), "SGLang": ("", "")}
"""Flags that switch the engine's own prefix caching on, and flags that switch it off. With caching,
vLLM stores states at block boundaries, SGLang at the end of a prompt or of its answer."""


def start(stack: ExitStack, directory: Path, engine: Engine, model: Path) -> Servers:
    daemon, socket_path = start_daemon(
        directory, "-arena=3GiB", "-private=256MiB", "-staging=128MiB"
    )
    stack.callback(daemon.close)
    made = []
    for mode in ("plain", "splice", "primed", "frugal"):
        settings: dict[str, object] | None = None
        caching = CACHING[engine.name][mode != "plain"]
        if mode != "plain":
            settings = {"socket": socket_path, "weights": str(model), "mode": "splice"}
            settings |= {"capture": mode != "frugal", "timeout_ms": 1000, "load_ms": 5000}
            if mode == "primed":
                settings["primer"] = tokens("primer", PRIMER_TOKENS)
        flags = [flag for flag in (*FLAGS[engine.name], caching) if flag]
        server = engine.start(directory, model, settings, *flags)
        stack.callback(server.close)
        made.append(server)
    return Servers(*made)


class Bench:
    """Sends requests and records their seconds by row of the result."""

    def __init__(self, servers: Servers, corpus: Corpus) -> None:
        self._servers, self._corpus = servers, corpus
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.told: dict[str, list[dict[str, object]]] = defaultdict(list)
        self.prompt_tokens: list[int] = []

    def run(self, rounds: int) -> None:
        s = self._servers
        for server in (s.plain, s.splice, s.primed, s.frugal):
            for i in range(2):
                server.ask(tokens(f"warm up {i}", 700), tokens=2)
        draws = self._corpus.draws[:rounds]
        for n, (passages, query) in enumerate(draws):
            self._first(n, passages, query)
        for n, (passages, query) in enumerate(draws):
            self._again(n, passages, query)
            self._short(n)

    def _first(self, n: int, passages: tuple[int, ...], query: int) -> None:
        """Measures the cold rows, in rotating order, on new passages."""
        s, corpus = self._servers, self._corpus
        rows = [
            ("no cache", s.plain, False),
            ("no cache, connector there", s.frugal, False),
            ("spliced cold, capture off", s.frugal, True),
            ("spliced cold, capture on", s.splice, True),
            ("spliced cold, primed captures", s.primed, True),
        ]
        random.Random(n).shuffle(rows)
        for row, server, with_cuts in rows:
            asked = fresh(corpus, passages, query, f"{row} {n}")
            self._ask(row, server, asked, with_cuts)
        seen = request(corpus, passages, query, f"first {n}")
        s.plain.one_token(seen.ids, None)
        for _ in range(2):  # the daemon may require a second occurrence of a segment
            for server in (s.splice, s.primed):
                server.one_token(seen.ids, seen.cuts)

    def _again(self, n: int, passages: tuple[int, ...], query: int) -> None:
        """Measures the warm rows."""
        s = self._servers
        rng = random.Random(1000 + n)
        order = rng.sample(passages, PASSAGES)
        asked = request(self._corpus, order, query, f"again {n}")
        self.prompt_tokens.append(len(asked.ids))
        # The row with refresh has another query than the row without refresh, which may have
        # stored the state of the whole prompt.
        other = request(self._corpus, order, query, f"refresh {n}")
        rows = [
            ("prefix caching", s.plain, asked, 0.0),
            ("spliced warm", s.splice, asked, 0.0),
            ("spliced warm, primed captures", s.primed, asked, 0.0),
            ("spliced warm, refresh 0.15", s.splice, other, REFRESH),
        ]
        rng.shuffle(rows)
        for row, server, prompt, refresh in rows:
            self._ask(row, server, prompt, server is not s.plain, refresh)

    def _short(self, n: int) -> None:
        """Measures a prompt too short to be worth reuse, with and without cuts."""
        asked = Request(tokens(f"short {n}", 200), [0, 80, 180])
        other = Request(tokens(f"short too {n}", 200), [0, 80, 180])
        server = self._servers.splice
        self._ask("short prompt", server, other, False)
        self._ask("short prompt with cuts", server, asked, True)

    def _ask(
        self, row: str, server: Server, asked: Request, with_cuts: bool, refresh: float = 0.0
    ) -> None:
        before = server.process.cpu_seconds()
        took, told = server.one_token(asked.ids, asked.cuts if with_cuts else None, refresh)
        self.seconds[row].append(took)
        self.cpu[row].append(server.process.cpu_seconds() - before)
        if told:
            self.told[row].append(told)


PRIMED_ROWS = {
    "spliced cold, primed captures": "spliced cold, capture on",
    "spliced warm, primed captures": "spliced warm",
}


def _ratios(
    found: Mapping[str, Sequence[float]], rows: Mapping[str, str]
) -> dict[str, list[float]]:
    """Returns each row's figures divided by another row's figures, pair by pair."""
    return {
        row: [a / b for a, b in zip(found[row], found[other], strict=True)]
        for row, other in rows.items()
    }


def report(bench: Bench, corpus: Corpus, model: Path) -> dict[str, object]:
    """Returns medians, and the ratios for which there are acceptance limits."""
    medians = {row: statistics.median(times) for row, times in bench.seconds.items()}
    cold = [
        b / a - 1
        for a, b in zip(
            bench.seconds["no cache, connector there"],
            bench.seconds["spliced cold, capture off"],
            strict=True,
        )
    ]
    short = [
        b - a
        for a, b in zip(
            bench.seconds["short prompt"], bench.seconds["short prompt with cuts"], strict=True
        )
    ]
    return {
        "requests": corpus.source,
        "rounds": len(bench.prompt_tokens),
        "prompt_tokens": statistics.median(bench.prompt_tokens),
        "model": json.loads((model / "config.json").read_text()),
        "machine": platform.processor() or platform.machine(),
        "median_seconds": {row: round(value, 4) for row, value in medians.items()},
        "median_cpu_seconds": {
            row: round(statistics.median(times), 3) for row, times in bench.cpu.items()
        },
        "seconds": {row: [round(t, 4) for t in ts] for row, ts in bench.seconds.items()},
        "warm_over_prefix_caching": round(medians["prefix caching"] / medians["spliced warm"], 3),
        "warm_over_no_cache": round(medians["no cache"] / medians["spliced warm"], 3),
        "primed_over_alone": {
            row: round(statistics.median(pairs), 4)
            for row, pairs in _ratios(bench.cpu, PRIMED_ROWS).items()
        },
        "primed_over_alone_seconds": {
            row: round(statistics.median(pairs), 4)
            for row, pairs in _ratios(bench.seconds, PRIMED_ROWS).items()
        },
        "refresh_over_no_cache": round(
            medians["spliced warm, refresh 0.15"] / medians["no cache"], 4
        ),
        "cold_capture_off_slower": round(statistics.median(cold), 4),
        "short_slower_seconds": round(statistics.median(short), 5),
        "decision_micros": {
            row: statistics.median(float(str(t["decided_micros"])) for t in told)
            for row, told in bench.told.items()
        },
        "told": {row: told[-1] for row, told in bench.told.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="TTFT in an engine with and without splicing.")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--sglang", type=Path, help="the Python that has SGLang")
    parser.add_argument("--rounds", type=int, default=6, help="requests of the data set")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--model", type=Path, help="a directory, in place of random weights")
    parser.add_argument("--out", type=Path, help="where the JSON goes; default: to be read here")
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CACHE_GIB)
    with tempfile.TemporaryDirectory(prefix="spliced-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        model = args.model or random_model(directory / "model", args.layers, args.hidden)
        corpus = read_corpus(args.rounds)
        engine = engine_of(args.engine, args.sglang)
        bench = Bench(start(stack, directory, engine, model), corpus)
        bench.run(args.rounds)
        text = json.dumps(report(bench, corpus, model), indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
