"""Measures the errors of small forms of transitions and end-states, and the bytes they take.

    python scripts/fidelity/tuples.py --segments 200 --model scripts/tinyhybrid/model

Prints tables: the errors of each form, the ranks, the forms that "packed" chooses, and the bytes of
notes whose middle can be computed in context. The segments are notes of held-out questions; each of
their heads counts once.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from captures import captures
from forms import (
    PACKED,
    WIDTHS,
    beside,
    centred,
    decayed,
    floats,
    norm_bound,
    rows,
    states,
    transitions,
)
from questions import Question
from serve import Server
from torch import Tensor
from variants import kept
from ways import TOLERANCES, Variant

from spliced_connector.model import Identity, Kind, Linear, Transition, divide
from spliced_connector.walk import Captured

SEAM = 8
NOTES = 2
"""Number of notes that are taken of each question. With more, the notes would come from fewer
prompts."""
LITTLE = 0.01
SHARES = (0.5, 0.95, 0.99)


def heads(segments: Sequence[Captured]) -> tuple[Tensor, Tensor]:
    """Returns the transitions [n, dk, dk] ([n] if they are numbers) and the end-states [n, dk, dv]
    of all heads of segments."""
    layers = [
        (layer.transition, layer.state)
        for segment in segments
        for layer in segment.layers
        if layer.transition is not None and layer.state is not None
    ]
    return torch.cat([t for t, _ in layers]), torch.cat([s for _, s in layers])


def some(server: object, questions: Sequence[Question], segments: int) -> list[Captured]:
    """Returns the given number of segments of questions."""
    if not isinstance(server, Server):
        raise TypeError("no server of a model")
    way, found = Variant("", seam=SEAM), []
    for q in questions[: -(-segments // NOTES)]:
        prompt = divide(server.profile, b"", q.ids, q.cuts, SEAM)
        found += [server.segment(q, prompt, i, way) for i in range(1, 1 + NOTES)]
        server.forget()
    return found


def stretches(server: object, questions: Sequence[Question], segments: int) -> Iterator[str]:
    """Yields a table of the bytes of notes, relative to whole packed notes. The notes are stored in
    such a way that a reuse can leave out the 15 % of tokens in their middle. Keys and values in 16
    bits are included."""
    if not isinstance(server, Server):
        raise TypeError("no server of a model")
    taken: dict[str, float] = defaultdict(float)
    for q in questions[: -(-segments // NOTES)]:
        prompt = divide(server.profile, b"", q.ids, q.cuts, SEAM)
        for piece in prompt.pieces[1 : 1 + NOTES]:
            if piece.spec is None:
                raise ValueError("a note is too short to be kept")
            n = piece.spec.tokens
            a, b = round(0.425 * n), round(0.575 * n)
            parts = {
                "whole": piece.spec,
                "before": replace(piece.spec, tail=n - a),
                "middle": replace(piece.spec, head=a, tail=n - b),
                "after": replace(piece.spec, head=b),
            }
            found = captures(server.arch, q.ids[piece.start : piece.end], list(parts.values()))
            for name, spec in parts.items():
                taken[name] += _packed_bytes(found[spec])
            taken["rows"] += _row_bytes(server.arch.identity) * (b - a)
            layers = found[piece.spec].layers
            taken["keys"] += sum(2 * x.numel() for y in layers for x in (y.k, y.v) if x is not None)
    whole = taken["whole"] + taken["keys"]
    yield _head(["form", "bytes next to a whole note"])
    for form, names in (
        ("three tuples", ("before", "middle", "after", "keys")),
        ("two tuples, rows of the middle", ("before", "after", "rows", "keys")),
    ):
        yield f"| {form} | {sum(taken[name] for name in names) / whole:.2f} |"


def _packed_bytes(segment: Captured) -> float:
    t, s = heads([segment])
    return _weight(Variant("", stored=PACKED, tau=TOLERANCES[-1]), t, s) * _plain(t, s)


def _plain(t: Tensor, s: Tensor) -> int:
    """Returns the bytes of T in fp16 and S in fp32. A T of one number per head has 32 bits."""
    return (4 if t.dim() == 1 else 2) * t.numel() + 4 * s.numel()


def _row_bytes(identity: Identity) -> int:
    """Returns the bytes of one token's k, v and beta in 16 bits and decay in 32 bits; k counts once
    per key head. If T is one number per head, there is no beta."""
    return sum(
        2 * (d.key_heads * d.key_dim + d.value_heads * d.value_dim)
        + d.value_heads * (4 if _is_number(d) else 6)
        for d in (layer.linear for layer in identity.layers if layer.kind is Kind.LINEAR)
    )


def _is_number(d: Linear) -> bool:
    return d.family.transition is Transition.SCALAR


def rows_weight(identity: Identity, segments: Sequence[Captured]) -> float:
    """Returns the bytes of all tokens' rows, relative to T in fp16 and S in fp32. Both could be
    computed from the rows."""
    plain = sum(
        d.value_heads * ((4 if _is_number(d) else 2 * d.key_dim**2) + 4 * d.key_dim * d.value_dim)
        for d in (layer.linear for layer in identity.layers if layer.kind is Kind.LINEAR)
    )
    tokens = sum(s.spec.interior[1] for s in segments)
    return _row_bytes(identity) * tokens / (plain * len(segments))


def weights(ways: Sequence[Variant], t: Tensor, s: Tensor) -> dict[str, float]:
    """Returns the bytes of T and S in each way, relative to T in fp16 and S in fp32."""
    return {v.name: _weight(v, t, s) for v in ways if v.seam is not None}


def _weight(variant: Variant, t: Tensor, s: Tensor) -> float:
    return sum(int(k.sizes.sum()) for k in kept(variant, t, s)) / _plain(t, s)


def errors(t: Tensor, s: Tensor) -> Iterator[str]:
    """Yields a table of the errors of each form. Relative errors omit transitions near zero."""
    yield _head(["error", *(f"{100 * x:g} %" for x in SHARES), "most"])
    spectral, size, norms = (_norm(t), torch.linalg.matrix_norm(t), torch.linalg.matrix_norm(s))
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
    wrong = beside(t, floats).matrices - t
    lost = torch.linalg.matrix_norm(floats(s).matrices - s) / norms
    yield _row("fp8, T, spectral", _norm(wrong))
    yield _row("fp8, S, Frobenius, relative", lost)


def ranks(t: Tensor, s: Tensor) -> Iterator[str]:
    """Yields a table of ranks, relative to the largest possible rank. For T it counts singular
    values above tau, also after g times the identity is subtracted, in heads with a norm above tau.
    For S it counts the singular values that must be kept so that at most a share tau of the norm is
    missing."""
    yield _head(["rank, beside its most", *(f"{100 * x:g} %" for x in SHARES), "most"])
    alone, centre = torch.linalg.svdvals(t), torch.linalg.svdvals(t - decayed(t))
    beyond = torch.linalg.svdvals(s).square().flip(-1).cumsum(-1).flip(-1)
    for tau in TOLERANCES:
        live = alone[:, 0] > tau
        yield _row(f"T at {tau}", (alone[live] > tau).float().mean(-1))
        yield _row(f"T at {tau}, g taken off", (centre[live] > tau).float().mean(-1))
        yield _row(f"S at {tau}", (beyond > tau**2 * beyond[:, :1]).float().mean(-1))


def choices(t: Tensor, s: Tensor) -> Iterator[str]:
    """Yields a table of the forms that "packed" chooses, in shares of heads."""
    sizes = [0] + [int(centred(t[:1], b).sizes) for b in WIDTHS[:-1]] + [2 * t[0].numel()]
    names = ["zero", *(f"T int{b}" for b in WIDTHS[:-1]), "T fp16"]
    wide = [int(rows(s[:1], b).sizes) for b in WIDTHS] + [4 * s[0].numel()]
    names += [*(f"S int{b}" for b in WIDTHS), "S fp32", "S low rank"]
    yield _head(["tau, %", *names, "bytes"])
    for tau in TOLERANCES:
        taken = transitions(PACKED, t, tau).sizes, states(PACKED, s, tau).sizes
        cells = [(taken[0] == x) for x in sizes] + [(taken[1] == x) for x in wide]
        cells.append(taken[1] < min(wide))
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
    segments = some(server, asked, options.segments)
    t, s = heads(segments)
    if t.dim() == 1:
        parser.error(f"{options.model}: its transitions are numbers, which have no smaller form")
    print(f"{len(t)} heads of {options.segments} segments\n")
    more = stretches(server, asked, options.segments)
    for table in (errors(t, s), ranks(t, s), choices(t, s), more):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
