"""Accuracy on held-out questions, with transformers: `python evaluate.py model -n 1000`.

An answer counts when greedy decoding would give all of its words and then stop.
That is checked in one pass over prompt and answer: greedy decoding gives the
answer exactly when every one of its words is the likeliest after the words before it.
Prompts have the shape that the model was trained for, which its folder says.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from generate import HELD_OUT, KINDS, SHAPES, Prompt, Shape, prompt, shape_of
from lexicon import END, encode

FIRST = HELD_OUT + (1 << 30)  # apart from the seeds that other measurements begin with


def right(net: PreTrainedModel, several: list[Prompt]) -> list[bool]:
    """Returns for each prompt whether the model answers its first question.

    All prompts are one batch, padded after the answers. No word attends to later words.
    """
    asked = [encode(" ".join(made.segments())) for made in several]
    answers = [encode(f"{made.questions[0].answer} {END}") for made in several]
    rows = [torch.tensor(ids + answer) for ids, answer in zip(asked, answers, strict=True)]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(net.device)
    with torch.inference_mode():
        likeliest = net(batch, use_cache=False).logits.argmax(-1).tolist()
    return [
        row[len(ids) - 1 : len(ids) - 1 + len(answer)] == answer
        for row, ids, answer in zip(likeliest, asked, answers, strict=True)
    ]


def accuracy(
    net: PreTrainedModel, n: int, counts: list[int], shape: Shape = Shape(), batch: int = 1
) -> dict[str, dict[str, list[int]]]:
    """Returns the numbers of right and of asked questions, by kind and by number of notes. n
    questions are asked for every number of notes in `counts`."""
    table: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for k in counts:
        made = [prompt(FIRST + k * (1 << 20) + i, k, shape) for i in range(n)]
        good = [g for i in range(0, n, batch) for g in right(net, made[i : i + batch])]
        for one, well in zip(made, good, strict=True):
            for kind in (one.questions[0].kind, "all"):
                for notes in (str(k), "all"):
                    table[kind][notes][0] += well
                    table[kind][notes][1] += 1
    return {kind: dict(row) for kind, row in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=int, default=200, help="questions for every number of notes")
    parser.add_argument("-k", default="2,4,6,8,12", help="numbers of notes")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="prompts at once; default: 1, 20 on a GPU")
    parser.add_argument("--shape", choices=SHAPES, help="of prompts; default: the model's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    net = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    net.to(args.device)
    counts = [int(k) for k in args.k.split(",")]
    shape = SHAPES[args.shape] if args.shape else shape_of(args.model)
    batch = args.batch or (1 if args.device == "cpu" else 20)
    table = accuracy(net, args.n, counts, shape, batch)
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
