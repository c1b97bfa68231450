"""What small forms do to transitions and end-states, and the bytes they take.

    python scripts/fidelity/tuples.py --segments 200 --model scripts/tinyhybrid/model

Prints tables: the errors of each form, the share of transitions that may be zero, the forms that
"packed" takes. The segments are notes of held-out questions; each of their heads counts once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from forms import PACKED, WIDTHS, centred, norm_bound, ranked, rows, states, transitions
from questions import Question
from serve import Server
from torch import Tensor
from variants import kept
from ways import TOLERANCES, Variant

from spliced_connector.model import divide

SEAM = 8
NOTES = 2
"""Notes of a question that are looked at: more would be of one prompt."""
LITTLE = 0.01
SHARES = (0.5, 0.95, 0.99)


def heads(server: object, questions: Sequence[Question], segments: int) -> tuple[Tensor, Tensor]:
    """Transitions [n, dk, dk] and end-states [n, dk, dv] of the heads of so many segments."""
    both = list(zip(*_layers(server, questions, segments), strict=True))
    return torch.cat(both[0]), torch.cat(both[1])


def _layers(
    server: object, questions: Sequence[Question], segments: int
) -> Iterator[tuple[Tensor, Tensor]]:
    if not isinstance(server, Server):
        raise TypeError("no server of a model")
    for q in questions[: -(-segments // NOTES)]:
        prompt = divide(server.profile, b"", q.ids, q.cuts, SEAM)
        for i in range(1, 1 + NOTES):
            for layer in server.segment(q, prompt, i, Variant("", seam=SEAM)).layers:
                if layer.transition is not None and layer.state is not None:
                    yield layer.transition, layer.state


def weights(ways: Sequence[Variant], t: Tensor, s: Tensor) -> dict[str, float]:
    """Bytes of tuples in each way beside those of T in fp16 and S in fp32."""
    return {v.name: _weight(v, t, s) for v in ways if v.seam is not None}


def _weight(variant: Variant, t: Tensor, s: Tensor) -> float:
    plain = 2 * t.numel() + 4 * s.numel()
    return sum(int(k.sizes.sum()) for k in kept(variant, t, s)) / plain


def errors(t: Tensor, s: Tensor) -> Iterator[str]:
    """Relative errors are those of transitions that are not next to nothing."""
    yield _head(["error", *(f"{100 * x:g} %" for x in SHARES), "most"])
    spectral, size, norms = _norm(t), torch.linalg.matrix_norm(t), torch.linalg.matrix_norm(s)
    much = spectral > LITTLE
    for bits in WIDTHS:
        wrong = centred(t, bits).matrices - t
        norm, frobenius = _norm(wrong), torch.linalg.matrix_norm(wrong)
        lost = torch.linalg.matrix_norm(rows(s, bits).matrices - s) / norms
        yield _row(f"int{bits}, T, spectral", norm)
        yield _row(f"int{bits}, T, spectral, g not taken", _norm(rows(t, bits).matrices - t))
        yield _row(f"int{bits}, T, spectral, relative", (norm / spectral)[much])
        yield _row(f"int{bits}, T, Frobenius, relative", (frobenius / size)[much])
        yield _row(f"int{bits}, T, bound beside the norm", (norm_bound(wrong) / norm)[much])
        yield _row(f"int{bits}, S, Frobenius, relative", lost)
    lost = torch.linalg.matrix_norm(ranked(s).matrices - s) / norms
    yield _row("low rank, S, Frobenius, relative", lost)


def choices(t: Tensor, s: Tensor) -> Iterator[str]:
    """What "packed" takes, in shares of heads."""
    sizes = [0] + [int(centred(t[:1], b).sizes) for b in WIDTHS[:-1]] + [2 * t[0].numel()]
    names = ["zero", *(f"T int{b}" for b in WIDTHS[:-1]), "T fp16"]
    wide = [int(rows(s[:1], b).sizes) for b in WIDTHS] + [4 * s[0].numel()]
    names += [*(f"S int{b}" for b in WIDTHS), "S fp32"]
    yield _head(["tau, %", *names, "bytes"])
    for tau in TOLERANCES:
        taken = transitions(PACKED, t, tau).sizes, states(PACKED, s, tau).sizes
        cells = [(taken[0] == x) for x in sizes] + [(taken[1] == x) for x in wide]
        weight = _weight(Variant("", stored=PACKED, tau=tau), t, s)
        shares = [*(float(c.float().mean()) for c in cells), weight]
        yield f"| {tau} | " + " | ".join(f"{100 * x:.1f}" for x in shares) + " |"


def _norm(m: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(m, 2)


def _row(name: str, x: Tensor) -> str:
    at = [*torch.quantile(x, torch.tensor(SHARES)).tolist(), float(x.max())]
    return f"| {name} | " + " | ".join(f"{v:.2g}" for v in at) + " |"


def _head(columns: Sequence[str]) -> str:
    return "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)


def main() -> None:
    from measure import COUNTS, MODEL, load
    from questions import questions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    server = load(options.model)
    asked = list(questions(options.segments, COUNTS, options.model))
    t, s = heads(server, asked, options.segments)
    print(f"{len(t)} heads of {options.segments} segments\n")
    for table in (errors(t, s), choices(t, s)):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
