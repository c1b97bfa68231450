"""Errors of a spliced prompt's states and rows, compared with a full prefill.

    python scripts/fidelity/drift.py --prompts 60 --out docs/results/fidelity-drift.json

Errors are relative: the norm of the difference, divided by the norm of the full prefill's value.
Figures are means over prompts. At the end of the prompt, errors of states, keys and values are
reported by layer and number of notes. Errors of reused keys and values are also reported by a
token's distance from the beginning of its note. Everything is measured twice: with the model as it
is, and with the outputs of its attention layers set to zero, so that only states carry information
from before a note.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from measure import MODEL, describe, load
from questions import Question, questions
from serve import CPU, Server
from torch import Tensor
from ways import SPLICED, VARIANTS

from spliced_connector.walk import Context, prefill

COUNTS = (2, 4, 8, 12)
STEPS = 8
"""Number of steps, from the beginning of a note on, for which errors are reported separately."""
SEAM = 8
Means = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=60, help="for each number of notes")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--notes", default=",".join(map(str, COUNTS)), help="notes of a prompt")
    parser.add_argument("--step", type=int, default=8, help="tokens of a step within notes")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = tuple(int(n) for n in options.notes.split(","))
    wanted = list(questions(options.prompts * len(counts), counts, options.model))
    result: dict[str, object] = describe(options.model) | {"prompts": options.prompts}
    for name, attends in (("as it is", True), ("without attention", False)):
        server = load(options.model)
        if not isinstance(server, Server):
            raise RuntimeError("no server")
        result[name] = measured(server, wanted, attends, options.step)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def measured(
    server: Server, wanted: Sequence[Question], attends: bool, step: int
) -> dict[str, Means]:
    """Returns mean errors of a model, by layer and part. step: tokens of a step within notes."""
    torch.set_flush_denormal(True)  # denormal numbers are slow, and far below every error
    variant = next(v for v in VARIANTS if v.name == SPLICED)
    if not attends:
        silence(server)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for q in wanted:
        full, spliced = (Context(server.arch, len(q.ids), CPU) for _ in range(2))
        prefill(server.arch, list(q.ids), full)
        server.forget()
        server.splice(q, variant, spliced)
        for name, error in layers(full, spliced):
            found[f"{name}, by notes"][str(q.notes)].append(error)
        for name, at, error in distances(q, full, spliced, step):
            found[f"{name}, by distance"][at].append(error)
    return {
        name: {at: sum(errors) / len(errors) for at, errors in groups.items()}
        for name, groups in found.items()
    }


def silence(server: Server) -> None:
    """Sets the outputs of all attention layers to zero."""
    arch = server.arch
    given = arch.attention_out

    def nothing(layer: int, o: Tensor, rows: object) -> Tensor:
        return torch.zeros_like(given(layer, o, rows))  # type: ignore[arg-type]

    arch.attention_out = nothing  # type: ignore[method-assign]


def layers(full: Context, spliced: Context) -> Iterator[tuple[str, float]]:
    """Yields the errors of all states and rows after the prompt, layer by layer."""
    for i, (a, b) in enumerate(zip(full.layers, spliced.layers, strict=True)):
        if a.state is not None and b.state is not None:
            yield f"layer {i}, states", off(a.state, b.state)
        if a.k is not None and b.k is not None and a.v is not None and b.v is not None:
            yield f"layer {i}, keys", off(a.k, b.k)
            yield f"layer {i}, values", off(a.v, b.v)


def distances(
    q: Question, full: Context, spliced: Context, step: int
) -> Iterator[tuple[str, str, float]]:
    """Yields the errors of rows by their distance from the beginning of their note, in steps of
    `step` tokens. First notes are left out, since nothing precedes them."""
    for i, (a, b) in enumerate(zip(full.layers, spliced.layers, strict=True)):
        if a.k is None or b.k is None or a.v is None or b.v is None:
            continue
        for begin, end in list(pairwise(q.cuts))[1:]:
            for lo in range(begin + max(SEAM, step), min(end - SEAM, begin + STEPS * step), step):
                at = slice(lo, min(lo + step, end - SEAM))
                for name, x, y in (("keys", a.k[at], b.k[at]), ("values", a.v[at], b.v[at])):
                    yield f"layer {i}, {name}", f"{lo - begin}", off(x, y)


def off(want: Tensor, got: Tensor) -> float:
    """Returns the norm of the difference, relative to the norm of `want`."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))


if __name__ == "__main__":
    main()
