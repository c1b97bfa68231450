"""An unmodified OpenAI chat client in front of vLLM's own server, without us and with us.

    make demo-vllm

Starts two servers of one model with vLLM's defaults, prefix caching among them, and a count of
cached tokens in `usage`. One of them has the connector, which looks for segments by itself. Both
get the same requests in turn: questions that bring documents in an order of their own, and agents
that read files, call by call. Prints for each request the time to the first token and the prompt
tokens that were not computed, and in the end sums and some answers.
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

from models import MAX_TOKENS, make_model
from processes import Server, connector_flag, start_daemon, start_server
from traffic import Request, agents, documents, pages, questions

COUNTS = "--enable-prompt-tokens-details"
ANSWER_TOKENS = 8
WAYS = ("without", "with")


@dataclass(frozen=True)
class Answer:
    """What a client sees: seconds to the first token, prompt tokens, those of them that the server
    says it did not compute, and the text."""

    seconds: float
    prompt: int
    cached: int
    text: str


def ask(server: Server, request: Request, tokens: int = ANSWER_TOKENS) -> Answer:
    """One streamed answer, by the OpenAI client as it is."""
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=900)
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
    return Answer(first or time.perf_counter() - began, prompt, cached, text)


def serve(
    stack: ExitStack, directory: Path, model: Path, extra: dict[str, object], compiled: bool
) -> list[Server]:
    """The server without us, and the one with us."""
    daemon, socket_path = start_daemon(
        directory, "-arena=2GiB", "-private=256MiB", "-staging=64MiB"
    )
    stack.callback(daemon.close)
    flag = connector_flag(socket_path, model, "splice", **extra)
    print(f"vllm serve MODEL {COUNTS}\nvllm serve MODEL {COUNTS} --kv-transfer-config '{flag}'")
    print("" if compiled else "(and --enforce-eager: compiling takes longer than the requests)\n")
    common = [COUNTS, f"--max-model-len={MAX_TOKENS}", "--max-num-seqs=2"]
    servers = []
    for flags in (common, [*common, f"--kv-transfer-config={flag}"]):
        server = start_server(directory, model, *flags, eager=not compiled)
        stack.callback(server.close)
        servers.append(server)
    return servers


def run(servers: list[Server], requests: list[Request]) -> list[tuple[Request, list[Answer]]]:
    """Both in turn, so that what else the machine does falls on both."""
    for server in servers:
        ask(server, Request("warm", "up", [{"role": "user", "content": "Are you there? " * 60}]))
    print(f"{'':22}{'prompt':>8}   {'first token, ms':^21}   {'not computed':^19}")
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
            f" {ours.seconds * 1000:>11.0f}   {plain.cached:>9} {ours.cached:>9}",
            flush=True,
        )
    return done


def report(done: list[tuple[Request, list[Answer]]]) -> dict[str, object]:
    """Sums by kind of traffic; the later half of each is what a server that has run for a while
    does."""
    out: dict[str, object] = {}
    for kind in ("rag", "agent"):
        rows = [answers for request, answers in done if request.kind == kind]
        late = rows[len(rows) // 2 :]
        times = [[a[i].seconds for a in rows] for i in range(2)]
        later = [median(a[i].seconds for a in late) for i in range(2)]
        prompt = sum(a[0].prompt for a in rows)
        cached = [sum(a[i].cached for a in rows) / prompt for i in range(2)]
        same = sum(a[0].text == a[1].text for a in rows)
        print(
            f"\n{kind}: {len(rows)} requests, {prompt} prompt tokens\n"
            f"  all first tokens      {sum(times[0]):.1f} s without, {sum(times[1]):.1f} s with:"
            f" {sum(times[0]) / sum(times[1]):.2f} times as fast\n"
            f"  median, later half    {later[0] * 1000:.0f} ms without, {later[1] * 1000:.0f} ms"
            f" with: {later[0] / later[1]:.2f} times as fast\n"
            f"  not computed          {cached[0]:.0%} without, {cached[1]:.0%} with\n"
            f"  same {ANSWER_TOKENS} tokens         {same} of {len(rows)}"
        )
        out[kind] = {
            "requests": len(rows),
            "prompt_tokens": prompt,
            "seconds": [round(sum(t), 3) for t in times],
            "later_median_seconds": [round(t, 4) for t in later],
            "cached_share": [round(share, 3) for share in cached],
            "same_answers": same,
        }
        request, answers = [row for row in done if row[0].kind == kind][-1]
        for way, answer in zip(WAYS, answers, strict=True):
            print(f"  {request.name}, {way:<8} {answer.text!r}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's server without us and with us.")
    parser.add_argument("--model", type=Path, help="a directory, in place of random weights")
    parser.add_argument("--layers", type=int, default=12, help="of the model with random weights")
    parser.add_argument("--hidden", type=int, default=1024, help="its width")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=3, help="of agents, four steps each")
    parser.add_argument("--find", default="template,chunks", help="what the server looks for")
    parser.add_argument("--compiled", action="store_true", help="without --enforce-eager")
    parser.add_argument("--out", type=Path, help="where the sums go as JSON")
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
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
        servers = serve(stack, directory, model, extra, args.compiled)
        pool = documents(10)
        requests = questions(pool, args.questions, 6) + agents(pool, args.tasks, 4)
        sums = report(run(servers, requests))
        if args.out:
            args.out.write_text(json.dumps(sums, indent=1) + "\n")


def _parameters(model: Path) -> int:
    """Counted in the headers of the safetensors."""
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
