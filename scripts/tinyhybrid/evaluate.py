"""Accuracy on held-out questions, with transformers: `python evaluate.py model -n 1000`.

An answer counts when greedy decoding would give all of its words and then stop.
That is checked in one pass over prompt and answer: greedy decoding gives the
answer exactly when every one of its words is the likeliest after those before.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from generate import HELD_OUT, KINDS, Prompt, prompt
from lexicon import END, encode

FIRST = HELD_OUT + (1 << 30)  # apart from the seeds that other measurements begin with


def right(net: PreTrainedModel, made: Prompt) -> bool:
    """Whether the model answers the first question of a prompt."""
    ids = encode(" ".join(made.segments()))
    answer = encode(f"{made.questions[0].answer} {END}")
    with torch.inference_mode():
        logits = net(torch.tensor([ids + answer]), use_cache=False).logits[0]
    return logits[len(ids) - 1 : -1].argmax(-1).tolist() == answer


def accuracy(net: PreTrainedModel, n: int, counts: list[int]) -> dict[str, dict[str, list[int]]]:
    """Right and asked questions, by kind and by number of notes, of n for every number."""
    table: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for k in counts:
        for i in range(n):
            made = prompt(FIRST + k * (1 << 20) + i, k)
            good = right(net, made)
            for kind in (made.questions[0].kind, "all"):
                for notes in (str(k), "all"):
                    table[kind][notes][0] += good
                    table[kind][notes][1] += 1
    return {kind: dict(row) for kind, row in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=int, default=200, help="questions for every number of notes")
    parser.add_argument("-k", default="2,4,6,8,12", help="numbers of notes")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    net = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    counts = [int(k) for k in args.k.split(",")]
    table = accuracy(net, args.n, counts)
    if args.json:
        print(json.dumps(table))
        return
    columns = [*map(str, counts), "all"]
    print("kind    " + "".join(f"{c:>8}" for c in columns))
    for kind in (*KINDS, "all"):
        row = table.get(kind, {})
        cells = [f"{row[c][0] / row[c][1]:8.1%}" if c in row else " " * 8 for c in columns]
        print(f"{kind:8}" + "".join(cells))


if __name__ == "__main__":
    main()
