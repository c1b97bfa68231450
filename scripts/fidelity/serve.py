"""Answers questions in each way of `ways.py`, with the walk that the engine adapters use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from captures import captures
from places import placed
from questions import Question
from variants import apply
from ways import FULL, PREFIX, Variant

from spliced_connector.model import Choice, Prompt, Span, SpanKind, choose, divide, make_plan
from spliced_connector.model import Profile, SegmentSpec
from spliced_connector.walk import Architecture, Captured
from spliced_connector.walk import Context
from spliced_connector.walk import capture, prefill, splice

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Answer:
    """tokens are the greedy continuation; surprise is -log p of the right first token, in nats."""

    tokens: tuple[int, ...]
    surprise: float


class Server:
    """Serves one model. Segments of the current question are captured once for all ways."""

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        self.profile = Profile(arch.identity)
        self._captured: dict[tuple[int, int, SegmentSpec], Captured] = {}
        self._whole: dict[int, Captured] = {}

    def answers(self, question: Question, variants: tuple[Variant, ...]) -> Mapping[str, Answer]:
        """Returns one answer per variant."""
        self.forget()
        self._capture(question, variants)
        return {v.name: self.answer(question, v) for v in variants}

    def _capture(self, question: Question, variants: tuple[Variant, ...]) -> None:
        """Captures the pieces that variants need. Each text is computed once for all its specs."""
        wanted: dict[tuple[int, int], dict[SegmentSpec, None]] = {}
        for variant in variants:
            if variant.seam is None:
                continue
            for piece in self._divide(placed(question, variant.cuts), variant).pieces:
                if piece.spec is not None:
                    wanted.setdefault((piece.start, piece.end), {})[piece.spec] = None
        for (start, end), specs in wanted.items():
            found = captures(self.arch, question.ids[start:end], list(specs))
            self._captured |= {(start, end, spec): c for spec, c in found.items()}

    def _divide(self, q: Question, variant: Variant) -> Prompt:
        if variant.seam is None:
            raise ValueError(f"{variant.name} has no seams")
        return divide(self.profile, b"", q.ids, q.cuts, variant.seam, variant.tail)

    def forget(self) -> None:
        """Drops the segments of the current question."""
        self._captured.clear()
        self._whole.clear()

    def answer(self, question: Question, variant: Variant) -> Answer:
        context = Context(self.arch, len(question.ids) + len(question.answer), CPU)
        if variant.name == PREFIX:
            prefill(self.arch, list(question.ids[: question.cuts[1]]), context)
        if variant.name in (FULL, PREFIX):
            rows: torch.Tensor | None = prefill(self.arch, list(question.ids), context)
        elif variant.bare:
            rows = self._lay(question, variant, context)
        else:
            rows = self.splice(question, variant, context)
        if rows is None:
            raise RuntimeError("a plan ends behind its question")
        return self._continue(question, rows, context)

    def splice(self, q: Question, variant: Variant, context: Context) -> torch.Tensor | None:
        """Fills an empty context with a question's prompt. Returns the last span's hidden rows."""
        q = placed(q, variant.cuts)
        prompt = self._divide(q, variant)
        kept = [p.spec is not None for p in prompt.pieces]
        choices = choose(prompt, 0, kept, [False] * len(kept))
        plan = make_plan(prompt, 0, choices)
        segments = {
            i: self.segment(q, prompt, i, variant)
            for i, choice in enumerate(choices)
            if choice is Choice.HIT
        }
        return splice(self.arch, list(q.ids), plan.spans, segments, context)

    def _lay(self, q: Question, variant: Variant, context: Context) -> torch.Tensor | None:
        """Places whole segments one after the other, and computes nothing at their joins."""
        spans, segments = [], {}
        for i, (start, end) in enumerate(pairwise(q.cuts)):
            spans.append(Span(SpanKind.SEGMENT, start, end - start, i))
            segments[i] = apply(variant, self._capture_whole(q, i), None)
        spans.append(Span(SpanKind.RECOMPUTE, q.cuts[-1], len(q.ids) - q.cuts[-1]))
        return splice(self.arch, list(q.ids), spans, segments, context)

    def _capture_whole(self, q: Question, i: int) -> Captured:
        if i not in self._whole:
            ids = list(q.ids[q.cuts[i] : q.cuts[i + 1]])
            self._whole[i] = capture(self.arch, ids, self.profile.first_spec(len(ids)))
        return self._whole[i]

    def segment(self, q: Question, prompt: Prompt, i: int, variant: Variant) -> Captured:
        """Returns a piece of the prompt, captured in isolation, in the form of a variant."""
        piece = prompt.pieces[i]
        if piece.spec is None or variant.seam is None:
            raise ValueError(f"segment {i} is too short to be kept")
        ids = list(q.ids[piece.start : piece.end])
        at = (piece.start, piece.end, piece.spec)
        if at not in self._captured:
            self._captured[at] = capture(self.arch, ids, piece.spec)
        whole = self._capture_whole(q, i) if variant.whole else None
        return apply(variant, self._captured[at], whole)

    def _continue(self, q: Question, rows: torch.Tensor, context: Context) -> Answer:
        """Decodes greedily as many tokens as the right answer has."""
        ids, out, surprise = list(q.ids), [], 0.0
        for i, right in enumerate(q.answer):
            logits = self.arch.logits(rows[-1:])[0].float()
            if i == 0:
                surprise = -float(torch.log_softmax(logits, -1)[right])
            out.append(int(logits.argmax()))
            if i + 1 < len(q.answer):
                ids.append(out[-1])
                rows = prefill(self.arch, ids, context)
        return Answer(tuple(out), surprise)
