"""Segments captured after nothing, a primer, their left neighbour, or the whole prompt before them.

The same questions are answered from the same splice, w = 8, of segments that are captured in
different ways. The distance of each way from the full prefill is measured on the tokens of the
right answer, which are read in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from primers import Text, texts
from questions import Question, generate
from serve import CPU, Server
from torch import Tensor
from ways import FULL, SPLICED

from spliced_connector.model import (
    Choice,
    Kind,
    Plan,
    Prompt,
    divide,
    keep_for_reuse,
    make_plan,
)
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    Primer,
    SegmentLayer,
    capture_all,
    make_primer,
    prefill,
)
from spliced_connector.walk.rows import SplicedRows
from spliced_connector.walk.run import Walk

SEAM = 8
NEIGHBOUR = "after its left neighbour"
PROMPT = "after everything before it"
USUAL = "notes, 512 tokens"
"""The primer with which `oracles` measures primed captures."""
SETTINGS = ("note A", "notes, 1024 tokens")
"""Primers that are measured on many questions, with and without `refresh`."""
FIRST_TOO = (
    "note A",
    "notes, 128 tokens",
    USUAL,
    "shuffled notes, 512 tokens",
    "filler sentences, 512 tokens",
)
"""Primers after which the first note is captured as well, in further ways of `primed`."""
ROWS, TUPLES = ("k", "v"), ("transition", "state", "conv")
Row = dict[str, object]


@dataclass(frozen=True)
class Way:
    """How a question's notes come into its prompt.

    after: what notes are captured after: a primer's name, NEIGHBOUR or PROMPT; None for nothing.
    first: whether the first note is captured after it as well; otherwise it is captured alone.
    exact: parts that are taken from captures after the whole prompt before the note, in all layers
    or only in `layer`. context: which notes are computed in context: "last", "asked" (the notes
    with most of the question's attention) or "random"; "" for none. share: the share of the notes
    that is computed in context, rounded to whole notes; for "last", counted as an engine counts for
    `refresh`. 0 means one note.
    """

    name: str
    after: str | None = None
    first: bool = False
    exact: tuple[str, ...] = ()
    layer: int | None = None
    context: str = ""
    share: float = 0.0

    def notes_in_context(self, cuts: Sequence[int]) -> int:
        """Returns how many notes of a prompt with these cuts are computed in context."""
        if not self.share:
            return int(bool(self.context))
        if self.context == "last":
            return len(cuts) - len(keep_for_reuse(cuts, self.share))
        return round(self.share * (len(cuts) - 2))


def primed(primers: Sequence[Text]) -> tuple[Way, ...]:
    """Returns ways that differ in what notes are captured after, for `measure.py --captures`."""
    return (
        Way(SPLICED),
        Way(NEIGHBOUR, NEIGHBOUR, first=True),
        *(Way(p.name, p.name) for p in primers),
        *(Way(f"{name}, first too", name, first=True) for name in FIRST_TOO),
    )


def served() -> tuple[Way, ...]:
    """Returns ways that an operator can set, for `measure.py --settings`."""
    return (
        Way(SPLICED),
        Way("refresh 0.15", context="last", share=0.15),
        *(
            way
            for name in SETTINGS
            for way in (
                Way(name, name),
                Way(f"{name}, refresh 0.15", name, context="last", share=0.15),
            )
        ),
    )


def oracles(arch: Architecture) -> tuple[Way, ...]:
    """Returns ways that show which part of a capture, and which note, causes the distance, for
    `measure.py --oracles`."""
    kinds = [
        (i, "T and S" if kind == Kind.LINEAR else "K and V")
        for i, kind in enumerate(arch.layers)
        if kind != Kind.NONE
    ]
    out = [Way(SPLICED), Way(USUAL, USUAL), Way(PROMPT, PROMPT, first=True)]
    for base, after in (("alone", None), ("primed", USUAL)):
        out += [
            Way(f"{base}, exact K and V", after, exact=ROWS),
            Way(f"{base}, exact T and S", after, exact=TUPLES),
        ]
        out += [
            Way(f"{base}, exact {what} of layer {i}", after, exact=ROWS + TUPLES, layer=i)
            for i, what in kinds
        ]
        out += [
            Way(f"{base}, {which} note in context", after, context=which)
            for which in ("last", "asked", "random")
        ]
        out += [
            Way(f"{base}, refresh {share:.2f}", after, context="asked", share=share)
            for share in (0.15, 0.30)
        ]
    return tuple(out)


class Contexts:
    """A model, its primers, and the ways in which questions are answered."""

    def __init__(self, server: Server, shape: generate.Shape, section: str) -> None:
        # Heads that forget fast leave numbers below 1e-38. A processor takes several times as long
        # for these numbers as for others.
        torch.set_flush_denormal(True)
        self.arch, self.profile = server.arch, server.profile
        primers = texts(shape)
        self.ways = {
            "captures": lambda: primed(primers),
            "settings": served,
            "oracles": lambda: oracles(self.arch),
        }[section]()
        used = {w.after for w in self.ways}
        self.primers = {p.name: make_primer(self.arch, p.ids) for p in primers if p.name in used}

    def row(self, q: Question) -> Row:
        """Returns the question's answers in every way."""
        asked = Asked(self, q)
        context = Context(self.arch, len(asked.ids), CPU)
        full = asked.read(prefill(self.arch, asked.ids, context))
        answers = {FULL: asked.told(full, full)}
        for way in self.ways:
            answers[way.name] = asked.told(asked.answered(way), full)
        return {
            "seed": q.seed,
            "kind": q.kind,
            "notes": q.notes,
            "tokens": len(q.ids),
            "answers": answers,
        }


class Asked:
    """One question. `ids` is its prompt, followed by the right answer without the last token."""

    def __init__(self, contexts: Contexts, q: Question) -> None:
        self.contexts, self.q = contexts, q
        self.ids = list(q.ids + q.answer[:-1])
        self._captured: dict[tuple[int, str | None], Captured] = {}

    @cached_property
    def prompt(self) -> Prompt:
        return divide(self.contexts.profile, b"", self.ids, self.q.cuts, SEAM)

    def plan(self, computed: Sequence[int] = ()) -> Plan:
        """Returns a plan that reuses all pieces except those in `computed`."""
        pieces = range(len(self.prompt.pieces))
        choices = [Choice.CONTEXT if i in computed else Choice.HIT for i in pieces]
        return make_plan(self.prompt, 0, choices)

    def answered(self, way: Way) -> Tensor:
        """Returns log-probabilities at the answer's tokens, [answer, vocabulary]."""
        segments = self._segments(way)
        notes = len(segments) - 1
        order = self._order(way.context, notes)
        plan = self.plan([1 + i for i in order[: way.notes_in_context(self.q.cuts)]])
        return self.read(self._walk(plan, segments, 0).last())

    def _order(self, which: str, notes: int) -> list[int]:
        """Returns the numbers of notes in the order in which they are to be computed in context."""
        if which == "asked":
            return self.attention.argsort(descending=True).tolist()
        if which == "random":
            order = torch.randperm(notes, generator=torch.Generator().manual_seed(self.q.seed))
            return order.tolist()
        return list(range(notes))[::-1]

    @cached_property
    def attention(self) -> Tensor:
        """The question's attention to each note after a splice of primed captures."""
        asking = len(self.q.ids) - self.q.cuts[-1]
        walk = self._walk(self.plan(), self._segments(Way("", USUAL)), asking)
        walk.last()
        inside = [walk.seen[p.start : p.end].sum() for p in self.prompt.pieces[1:]]
        return torch.stack(inside)

    def _walk(self, plan: Plan, segments: Mapping[int, Captured], asking: int) -> _Watching:
        context = Context(self.contexts.arch, len(self.ids), CPU)
        used = {s.segment: segments[s.segment] for s in plan.spans if s.segment >= 0}
        rows = SplicedRows(self.contexts.arch, torch.tensor(self.ids), plan.spans, used, 0)
        return _Watching(self.contexts.arch, rows, context, asking)

    def _segments(self, way: Way) -> dict[int, Captured]:
        pieces = range(len(self.prompt.pieces))
        names = [self._name(way, i) for i in pieces]
        self._capture([(i, name) for i, name in enumerate(names)])
        found = {i: self._captured[i, name] for i, name in enumerate(names)}
        if way.exact:
            self._capture([(i, PROMPT) for i in pieces if i])
            for i in pieces[1:]:
                found[i] = _mixed(found[i], self._captured[i, PROMPT], way)
        return found

    def _name(self, way: Way, piece: int) -> str | None:
        """Returns what a piece is captured after. The instruction, piece 0, begins the prompt, so
        it is captured after nothing."""
        return None if piece == 0 or (piece == 1 and not way.first) else way.after

    def _capture(self, wanted: Sequence[tuple[int, str | None]]) -> None:
        """Captures all missing segments in one batch."""
        missing = [at for at in wanted if at not in self._captured]
        if not missing:
            return
        segments = []
        for i, _ in missing:
            piece = self.prompt.pieces[i]
            if piece.spec is None:
                raise ValueError(f"segment {i} is too short to be kept")
            segments.append((self.ids[piece.start : piece.end], piece.spec))
        primers = [self._primer(i, name) for i, name in missing]
        found = capture_all(self.contexts.arch, segments, None, primers)
        self._captured |= dict(zip(missing, found, strict=True))

    def _primer(self, piece: int, name: str | None) -> Primer | None:
        if name is None:
            return None
        if name not in (NEIGHBOUR, PROMPT):
            return self.contexts.primers[name]
        left = self.prompt.pieces[piece - 1]
        begin = left.start if name == NEIGHBOUR else 0
        return make_primer(self.contexts.arch, self.ids[begin : left.end])

    def read(self, rows: Tensor) -> Tensor:
        """Returns log-probabilities after the last rows, one row for each token of the answer."""
        logits = self.contexts.arch.logits(rows[-len(self.q.answer) :])
        return torch.log_softmax(logits.float(), -1)

    def told(self, found: Tensor, full: Tensor) -> list[object]:
        """Returns whether the answer is right, its first token, log p of the right answer's tokens,
        and the mean Kullback-Leibler divergence KL(full || found) at these tokens, in nats."""
        best = found.argmax(-1).tolist()
        right = torch.tensor(self.q.answer)[:, None]
        apart = (full.exp() * (full - found)).sum(-1).mean()
        each = [round(x, 6) for x in found.gather(1, right)[:, 0].tolist()]
        return [best == list(self.q.answer), best[0], each, round(float(apart), 7)]


class _Watching(Walk):
    """A splice that records what the first `asking` rows of its last span attend to. `seen`
    [prompt] has the attention to each position, summed over attention layers, heads and rows."""

    def __init__(self, arch: Architecture, rows: SplicedRows, context: Context, asking: int):
        super().__init__(arch, rows, context, None)
        context.reserve(rows.end)
        self.seen = torch.zeros(rows.end)
        self._asking = asking

    def last(self) -> Tensor:
        """Runs the splice. Returns the hidden rows of the last span."""
        with torch.no_grad():
            h = self.run()
        if h is None:
            raise RuntimeError("a plan ends after its question")
        return h[h.shape[0] - self.rows.spans[-1].length :]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self._asking:
            return super().attend(layer, q, k, v)
        first = self.rows.count - self.rows.spans[-1].length
        ask = q[first : first + self._asking].double()
        keys = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = torch.einsum("nhd,mhd->nhm", ask, keys) * self.arch.scale(layer)
        place = self.rows.spans[-1].start + torch.arange(len(ask))
        scores.masked_fill_(torch.arange(len(k)) > place[:, None, None], -torch.inf)
        self.seen += scores.softmax(-1).sum((0, 1)).float()
        return super().attend(layer, q, k, v)


def _mixed(segment: Captured, exact: Captured, way: Way) -> Captured:
    """Returns a segment with some parts replaced by those of another capture of its tokens."""
    layers: list[SegmentLayer] = []
    for i, (layer, other) in enumerate(zip(segment.layers, exact.layers, strict=True)):
        if way.layer in (None, i):
            layer = replace(layer, **{name: getattr(other, name) for name in way.exact})
        layers.append(layer)
    return Captured(segment.spec, tuple(layers))
