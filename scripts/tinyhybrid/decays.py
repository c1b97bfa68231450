"""How much of a state outlives a note, head by head: `python decays.py model`.

Held-out notes are computed in isolation, in float32. For every head of a linear layer it
prints the mean logarithm of the decay per token, the decay over a whole note, and the
spectral norm of the note's transition T. T also contains what the note's writes remove from
the state. Figures are medians over notes, and the shares of notes whose T is nearly zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from generate import HELD_OUT, prompt, shape_of
from lexicon import encode
from mamba2 import Mamba2, load
from model import CHUNK, DeltaNet, Model, chunked, transitions

FIRST = HELD_OUT + (1 << 31)  # apart from the seeds that other measurements begin with
NOTES = 4  # of a prompt
NOTHING = (0.005, 0.02)


@dataclass(frozen=True)
class Heads:
    """What a note does to the states of one layer's heads."""

    logs: Tensor  # [H, n] logarithms of the decays of its tokens
    transition: Tensor  # [H, dk, dk]; [H, 1, 1] where it is a number, Mamba2's


def heads(net: Model, ids: list[int]) -> Iterator[Heads]:
    """Yields the heads of every linear layer, for one note."""
    x = net.model.embed_tokens(torch.tensor([ids]))
    for layer in net.model.layers:
        if not layer.full:
            yield of_layer(layer.mixer, layer.input_layernorm(x))
        x = layer(x, net.compute)


def of_layer(layer: DeltaNet | Mamba2, x: Tensor) -> Heads:
    """Returns the heads of one layer for its input x. Padding neither decays nor writes."""
    if isinstance(layer, Mamba2):
        _, _, _, g, _, _ = layer.prepare(x)
        logs = g[0].transpose(0, 1)
        return Heads(logs, logs.sum(-1).exp()[:, None, None])
    pad = -x.shape[1] % CHUNK
    q, k, v, g, beta = layer.prepare(x)
    wide = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
    _, w, _, ends, kept, _ = chunked(*wide, F.pad(g, (0, pad)), F.pad(beta, (0, pad)), CHUNK)
    moves = transitions(w, ends, kept)[0]
    total = moves[:, 0]
    for i in range(1, moves.shape[1]):
        total = moves[:, i] @ total
    return Heads(g[0], total)


def notes(model: Path, n: int) -> Iterator[list[int]]:
    """Yields token ids of held-out notes in the shape that the model was trained for."""
    shape = shape_of(model)
    for i in range(n):
        made = prompt(FIRST + i // NOTES, NOTES, shape)
        yield encode(made.notes[i % NOTES].text)


def rows(net: Model, several: list[list[int]]) -> Iterator[str]:
    """Yields a line for every head of every linear layer."""
    layers = [i for i, layer in enumerate(net.model.layers) if not layer.full]
    with torch.inference_mode():
        of_notes = [list(heads(net, ids)) for ids in several]
    for at, layer in enumerate(layers):
        of_layer = [of_note[at] for of_note in of_notes]
        norms = torch.stack([torch.linalg.matrix_norm(h.transition, 2) for h in of_layer])
        kept = torch.stack([h.logs.sum(-1).exp() for h in of_layer])
        mean = torch.cat([h.logs for h in of_layer], -1).mean(-1)
        for head in range(norms.shape[1]):
            norm = norms[:, head]
            cells = [
                f"{layer:5} {head:4} {mean[head]:12.5f} {-1 / mean[head]:8.1f}",
                f"{kept[:, head].median():9.2g} {norm.median():9.2g} {norm.max():9.2g}",
                *(f"{(norm <= most).float().mean():9.1%}" for most in NOTHING),
            ]
            yield " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=int, default=40, help="notes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    several = list(notes(args.model, args.n))
    print(f"{args.n} notes of {min(map(len, several))} to {max(map(len, several))} tokens")
    below = " ".join(f"{f'|T|<={most:g}':>9}" for most in NOTHING)
    print(f"layer head log decay/token  tokens  over note   |T|     |T| max {below}")
    for line in rows(load(args.model), several):
        print(line)


if __name__ == "__main__":
    main()
