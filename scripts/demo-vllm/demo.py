"""A RAG request to vLLM's own server: cold, prefix-cached and spliced.

    make demo-vllm

Starts the daemon and, one after the other, two servers of the same model: one in mode prefix, one
in mode splice. The first question is asked cold and again, so that its prefix is cached. The
second question needs the same notes in another order: no prefix helps it. Prints the time to the
first token of each, and the answers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tinyhybrid"))

from generate import Corpus, Prompt, encode
from models import trained_or_random
from processes import Answer, Server, connector_flag, start_daemon, start_server

NOTES = 8
REPEATS = 3

SPLICE_FLAG = "--no-enable-prefix-caching"
SERVER = "python -m vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class Request:
    """Token ids, and where its notes begin and end: the last part is the question."""

    ids: list[int]
    cuts: list[int]
    question: str
    answer: str

    @classmethod
    def of(cls, prompt: Prompt) -> Request:
        ids: list[int] = []
        cuts = [0]
        parts = prompt.segments()
        # The instruction and the first note are one segment: too short alone to be worth keeping.
        for i, part in enumerate(parts):
            ids += encode(part)
            if 0 < i < len(parts) - 1:
                cuts.append(len(ids))
        asked = prompt.questions[0]
        return cls(ids, cuts, asked.text, asked.answer)


def two_requests(seed: int) -> tuple[Request, Request]:
    """The same notes in two orders, with two questions."""
    corpus = Corpus(1 << 40, 64)
    first = corpus.prompt(seed, NOTES)
    n = len(first.notes)
    turned = (*first.notes[n // 2 :], *first.notes[: n // 2])
    # The instruction belongs to the first segment: the note behind it stays where it is.
    turned = (first.notes[0], *(note for note in turned if note is not first.notes[0]))
    for other in range(seed + 1, seed + 2000):
        asked = corpus.prompt(other, NOTES)
        needed = {asked.notes[i].subject for i in asked.questions[0].notes}
        if needed <= {note.subject for note in turned}:
            return Request.of(first), Request.of(Prompt(turned, asked.questions))
    return Request.of(first), Request.of(Prompt(turned, first.questions))


def median(answers: list[Answer]) -> Answer:
    return sorted(answers, key=lambda answer: answer.ttft)[len(answers) // 2]


def row(name: str, answer: Answer, request: Request) -> None:
    text = answer.text.strip().split(".")[0][:40]
    print(f"  {name:<34}{answer.ttft * 1000:>8.0f} ms   {text!r} (right: {request.answer!r})")


def warm_up(server: Server, vocabulary: int) -> None:
    """A server's first requests load what later ones have: they are nobody's measure."""
    for i in range(2):
        server.ask([(7 * j + i) % vocabulary for j in range(300)], tokens=2)


def prefix_part(server: Server, first: Request, second: Request) -> tuple[float, float]:
    row("cold", server.ask(first.ids), first)
    again = median([server.ask(first.ids) for _ in range(REPEATS)])
    row("the same again, prefix-cached", again, first)
    other = server.ask(second.ids)
    row("its notes in another order", other, second)
    return again.ttft, other.ttft


def splice_part(server: Server, first: Request, second: Request) -> float:
    row("cold, notes captured", server.ask(first.ids, first.cuts), first)
    for request in (first, second):
        server.ask(request.ids, request.cuts)
    spliced = median([server.ask(second.ids, second.cuts) for _ in range(REPEATS)])
    row("in another order, spliced", spliced, second)
    _, told = server.one_token(second.ids, second.cuts)
    print(f"  the connector says: {told}")
    return spliced.ttft


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's server with and without splicing.")
    parser.add_argument(
        "--model", type=Path, help="a directory; default: the trained one, or random"
    )
    parser.add_argument("--seed", type=int, default=1 << 41, help="of the question")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spliced-demo-") as name:
        run(Path(name), args.model, args.seed)


def run(directory: Path, chosen: Path | None, seed: int) -> None:
    model = chosen or trained_or_random(directory)
    first, second = two_requests(seed)
    print(f"model {model.name}, prompts of {len(first.ids)} and {len(second.ids)} tokens")
    print(f"question 1: {first.question}\nquestion 2: {second.question}\n")
    daemon, socket_path = start_daemon(directory, "-arena=1GiB", "-private=512MiB")
    try:
        flag = connector_flag(socket_path, model, "prefix", timeout_ms=500)
        print(f"{SERVER} ... --kv-transfer-config '{flag}'")
        server = start_server(directory, model, f"--kv-transfer-config={flag}")
        try:
            warm_up(server, 512)
            _, other = prefix_part(server, first, second)
        finally:
            server.close()
        flag = connector_flag(socket_path, model, "splice", timeout_ms=500)
        print(f"\n{SERVER} ... {SPLICE_FLAG} --kv-transfer-config '{flag}'")
        server = start_server(directory, model, SPLICE_FLAG, f"--kv-transfer-config={flag}")
        try:
            warm_up(server, 512)
            spliced = splice_part(server, first, second)
        finally:
            server.close()
    finally:
        daemon.close()
    print(f"\nnotes in another order: first token {other / spliced:.2f} times sooner when spliced")


if __name__ == "__main__":
    main()
