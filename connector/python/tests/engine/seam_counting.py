"""What a join does to a recurrent state when tokens on it are counted twice, in float64.

A segment of n tokens of a gated delta rule is placed behind other tokens: its first W tokens are
computed again, for their outputs, and its state comes from what is stored of the segment. That may
be of the interior, behind those W tokens, or of the whole segment; with the whole one it matters
whether the W tokens move the state too. `python tests/engine/seam_counting.py` prints the table of
docs/hypic.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

W = 8
LENGTHS = (16, 32, 64, 128)
WAYS = ("sink, then interior", "whole, once", "sink, then whole", "whole, added")
HEADS, DIM = 4, 128


@dataclass(frozen=True)
class Tokens:
    """k and v [n, heads, dim], k of length one; decay and beta [n, heads]."""

    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor

    def part(self, begin: int, end: int) -> Tokens:
        return Tokens(*(x[begin:end] for x in (self.k, self.v, self.decay, self.beta)))


def tokens(n: int, half_life: float, generator: torch.Generator) -> Tokens:
    """Random ones, which forget half of a state in so many tokens."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    k = noise(n, HEADS, DIM)
    forget = torch.rand((n, HEADS), dtype=torch.float64, generator=generator) * 2 / half_life
    return Tokens(
        k / k.norm(dim=-1, keepdim=True),
        noise(n, HEADS, DIM),
        0.5**forget,
        noise(n, HEADS).sigmoid(),
    )


def moved(t: Tokens, state: Tensor, write: bool = True) -> Tensor:
    """A state [heads, dim, columns] behind the tokens, one at a time."""
    for k, v, decay, beta in zip(t.k, t.v, t.decay, t.beta, strict=True):
        state = decay[:, None, None] * state
        held = torch.einsum("hk,hkv->hv", k, state)
        change = (v - held if write else -held) * beta[:, None]
        state = state + k[:, :, None] * change[:, None]
    return state


def operator(t: Tokens) -> tuple[Tensor, Tensor]:
    """(T, S): what the tokens do to any state before them, and what they leave of none."""
    identity = torch.eye(DIM, dtype=torch.float64).expand(HEADS, DIM, DIM)
    zero = torch.zeros(HEADS, DIM, DIM, dtype=torch.float64)
    return moved(t, identity, write=False), moved(t, zero)


def errors(n: int, half_life: float, segments: int = 1, seed: int = 1) -> Mapping[str, float]:
    """How far each way's state is from that of all tokens in a row, next to its size."""
    generator = torch.Generator().manual_seed(seed)
    before = moved(
        tokens(64, half_life, generator), torch.zeros(HEADS, DIM, DIM, dtype=torch.float64)
    )
    want, got = before, dict.fromkeys(WAYS, before)
    for _ in range(segments):
        segment = tokens(n, half_life, generator)
        want = moved(segment, want)
        sink, (T, S) = segment.part(0, W), operator(segment)
        inside_T, inside_S = operator(segment.part(W, n))
        got = {
            "sink, then interior": inside_T @ moved(sink, got["sink, then interior"]) + inside_S,
            "whole, once": T @ got["whole, once"] + S,
            "sink, then whole": T @ moved(sink, got["sink, then whole"]) + S,
            "whole, added": got["whole, added"] + S,
        }
    return {way: float((state - want).norm() / want.norm()) for way, state in got.items()}


def main() -> None:
    print("| half of a state is left after | tokens | segments | " + " | ".join(WAYS) + " |")
    print("|---" * (3 + len(WAYS)) + "|")
    for half_life in (16.0, 64.0, 256.0):
        for n in LENGTHS:
            for segments in (1, 8):
                found = errors(n, half_life, segments)
                cells = " | ".join(f"{found[way]:.2g}" for way in WAYS)
                print(f"| {half_life:.0f} tokens | {n} | {segments} | {cells} |")


if __name__ == "__main__":
    main()
