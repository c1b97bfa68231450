"""An unmodified OpenAI chat client with an engine's own server, without and with the connector.

    make demo-vllm
    make demo-sglang

Starts two servers of one model with the engine's defaults, including prefix caching and a count
of cached tokens in `usage`. One of them has the connector, which finds segments by itself. Both
get the same requests alternately: questions with documents in different orders, chats about
documents, and agents that read files, call by call. Prints for each request the time to the first
token and the number of computed tokens, including seams and segments computed in isolation; at
the end sums, conversations by turn, and some answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engines import Engine, engine_of
from models import MAX_TOKENS, make_model
from processes import Server, start_daemon
from traffic import Request, agents, chats, documents, pages, questions

ANSWER_TOKENS = 8
WAYS = ("without", "with")
SLOW = 3.0
"""From this cost of bfloat16 on, the CPU emulates it: it has neither AVX-512 nor AMX for it."""
FEW = "--layers 4 --hidden 512 --questions 2 --users 1 --tasks 1"


@dataclass(frozen=True)
class Answer:
    """Seconds to the first token, the numbers of prompt tokens and of tokens that the server
    computed for the prompt, and the answer's text."""

    seconds: float
    prompt: int
    computed: int
    text: str


def ask(server: Server, request: Request, tokens: int = ANSWER_TOKENS) -> Answer:
    """Streams one answer, with the unmodified OpenAI client."""
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=900)
    before = _again(server)
    began = time.perf_counter()
    stream = client.chat.completions.create(
        model="model",
        messages=request.messages,  # type: ignore[arg-type]
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    first, text, prompt, cached = 0.0, "", 0, 0
    for event in stream:
        if event.choices and (said := event.choices[0].delta.content):
            first = first or time.perf_counter() - began
            text += said
        if event.usage is not None:
            prompt = event.usage.prompt_tokens
            details = event.usage.prompt_tokens_details
            cached = (details.cached_tokens or 0) if details is not None else 0
    seconds = first or time.perf_counter() - began
    return Answer(seconds, prompt, prompt - cached + _again(server) - before, text)


def _again(server: Server) -> int:
    """Returns how many tokens the connector has computed so far although the engine reports them
    as cached: seams, and new segments that were captured in isolation."""
    counts = server.counts()
    return int(counts.get("walked_tokens", 0) + counts.get("captured_tokens", 0))


LIMITS = {
    "vLLM": (f"--max-model-len={MAX_TOKENS}", "--max-num-seqs=2"),
    "SGLang": (
        f"--context-length={MAX_TOKENS}",
        "--max-running-requests=2",
        "--max-total-tokens=65536",
        "--max-mamba-cache-size=64",
    ),
}
"""Settings with which two servers fit into a small machine."""


def serve(
    stack: ExitStack,
    directory: Path,
    engine: Engine,
    model: Path,
    extra: dict[str, object],
    compiled: bool,
) -> list[Server]:
    """Starts two servers: one without the connector, then one with it."""
    daemon, socket_path = start_daemon(
        directory, "-arena=2GiB", "-private=256MiB", "-staging=64MiB"
    )
    stack.callback(daemon.close)
    settings = {"socket": socket_path, "weights": str(model), "mode": "splice", **extra}
    print(f"{engine.command(None)}\n{engine.command(settings)}")
    print("" if compiled else "(and nothing is compiled, which takes longer than the requests)\n")
    servers = []
    for given in (None, settings):
        flags = LIMITS[engine.name]
        server = engine.start(directory, model, given, *flags, eager=not compiled)
        stack.callback(server.close)
        servers.append(server)
    return servers


def run(servers: list[Server], requests: list[Request]) -> list[tuple[Request, list[Answer]]]:
    """Asks both servers alternately, so that other load of the machine affects both."""
    for server in servers:
        ask(server, Request("warm", "up", [{"role": "user", "content": "Are you there? " * 60}]))
    print(f"{'':22}{'prompt':>8}   {'first token, ms':^21}   {'tokens computed':^19}")
    print(f"{'':22}{'tokens':>8}   {WAYS[0]:>9} {WAYS[1]:>11}   {WAYS[0]:>9} {WAYS[1]:>9}")
    done = []
    for i, request in enumerate(requests):
        order = (0, 1) if i % 2 else (1, 0)
        answers = [Answer(0, 0, 0, "")] * 2
        for which in order:
            answers[which] = ask(servers[which], request)
        done.append((request, answers))
        plain, ours = answers
        print(
            f"  {request.name:<20}{plain.prompt:>8}   {plain.seconds * 1000:>9.0f}"
            f" {ours.seconds * 1000:>11.0f}   {plain.computed:>9} {ours.computed:>9}",
            flush=True,
        )
    return done


def report(done: list[tuple[Request, list[Answer]]]) -> dict[str, object]:
    """Prints and returns sums by kind of traffic. The later half of each kind shows a server that
    has run for a while."""
    out: dict[str, object] = {}
    for kind in dict.fromkeys(request.kind for request, _ in done):
        rows = [answers for request, answers in done if request.kind == kind]
        late = rows[len(rows) // 2 :]
        times = [[a[i].seconds for a in rows] for i in range(2)]
        later = [median(a[i].seconds for a in late) for i in range(2)]
        prompt = sum(a[0].prompt for a in rows)
        computed = [sum(a[i].computed for a in rows) for i in range(2)]
        same = sum(a[0].text == a[1].text for a in rows)
        print(
            f"\n{kind}: {len(rows)} requests, {prompt} prompt tokens\n"
            f"  all first tokens      {sum(times[0]):.1f} s without, {sum(times[1]):.1f} s with:"
            f" {sum(times[0]) / sum(times[1]):.2f} times as fast\n"
            f"  median, later half    {later[0] * 1000:.0f} ms without, {later[1] * 1000:.0f} ms"
            f" with: {later[0] / later[1]:.2f} times as fast\n"
            f"  tokens computed       {computed[0]} without, {computed[1]} with\n"
            f"  same {ANSWER_TOKENS} tokens         {same} of {len(rows)}"
        )
        if later[0] <= later[1]:
            print("  no gain here: " + _why(computed))
        turns = by_turn(done, kind)
        out[kind] = {
            "requests": len(rows),
            "prompt_tokens": prompt,
            "seconds": [round(sum(t), 3) for t in times],
            "later_median_seconds": [round(t, 4) for t in later],
            "computed_tokens": computed,
            "same_answers": same,
            "turns": turns,
        }
        request, answers = [row for row in done if row[0].kind == kind][-1]
        for way, answer in zip(WAYS, answers, strict=True):
            print(f"  {request.name}, {way:<8} {answer.text!r}")
    return out


def _why(computed: list[int]) -> str:
    if computed[1] >= computed[0]:
        return "no fewer tokens were computed than with the engine's own cache alone"
    return "fewer tokens were computed, but finding and placing the others took longer"


def by_turn(
    done: list[tuple[Request, list[Answer]]], kind: str
) -> dict[int, dict[str, list[float]]]:
    """Prints and returns, for each turn of the conversations, medians of tokens and of seconds to
    the first token."""
    out = {}
    for turn in sorted({r.turn for r, _ in done if r.kind == kind and r.turn}):
        rows = [answers for r, answers in done if (r.kind, r.turn) == (kind, turn)]
        out[turn] = {
            "prompt": [median(a[0].prompt for a in rows)],
            "computed": [median(a[i].computed for a in rows) for i in range(2)],
            "seconds": [round(median(a[i].seconds for a in rows), 4) for i in range(2)],
        }
    if out:
        print(f"  {'turn':<8}{'prompt':>8}{'computed without, with':>25}{'ms without, with':>20}")
    for turn, row in out.items():
        computed, times = row["computed"], [s * 1000 for s in row["seconds"]]
        print(
            f"  {turn:<8}{row['prompt'][0]:>8.0f}{computed[0]:>15.0f}{computed[1]:>10.0f}"
            f"{times[0]:>12.0f}{times[1]:>8.0f}"
        )
    return out


def bfloat16_cost() -> float:
    """Returns how long a layer of bfloat16 takes on this CPU, as a multiple of float32."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        x, weight = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
        times = []
        for _ in range(3):
            began = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            times.append(time.perf_counter() - began)
        return median(times)

    return seconds(torch.bfloat16) / seconds(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine's server without us, and with us.")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--sglang", type=Path, help="the Python that has SGLang")
    parser.add_argument("--model", type=Path, help="a directory, in place of random weights")
    parser.add_argument("--layers", type=int, default=12, help="of the model with random weights")
    parser.add_argument("--hidden", type=int, default=1024, help="its width")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--users", type=int, default=3, help="who chat, four turns each")
    parser.add_argument("--tasks", type=int, default=3, help="of agents, four steps each")
    parser.add_argument("--find", default="template,chunks", help="what the server looks for")
    parser.add_argument("--compiled", action="store_true", help="without --enforce-eager")
    parser.add_argument("--out", type=Path, help="where the sums go as JSON")
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    few = args.questions <= parser.parse_args(FEW.split()).questions
    if not few and (cost := bfloat16_cost()) > SLOW:
        print(f"bfloat16 takes {cost:.0f} times as long as float32 on this CPU, so this takes long.")
        print(f"Fewer requests: make demo-{args.engine} DEMOFLAGS='{FEW}'\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="spliced-demo-") as name, ExitStack() as stack:
        directory = Path(name)
        model = args.model
        if model is None:
            model = make_model(directory / "model", pages(), args.layers, args.hidden)
            print(f"a model of random weights, {_parameters(model) / 1e6:.0f} M parameters:")
            print("times and counts are those of a trained one, answers mean nothing\n")
        extra: dict[str, object] = {
            "find": [finder for finder in args.find.split(",") if finder],
            "timeout_ms": 1000,
            "load_ms": 5000,
        }
        engine = engine_of(args.engine, args.sglang)
        servers = serve(stack, directory, engine, model, extra, args.compiled)
        pool = documents(10)
        requests = questions(pool, args.questions, 6) + chats(pool, args.users, 4)
        requests += agents(pool, args.tasks, 4)
        sums = report(run(servers, requests))
        if args.out:
            args.out.write_text(json.dumps(sums, indent=1) + "\n")


def _parameters(model: Path) -> int:
    """Returns the parameters counted in the headers of the safetensors."""
    total = 0
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for n in tensor["shape"]:
                    count *= n
                total += count
    return total


if __name__ == "__main__":
    sys.exit(main())
