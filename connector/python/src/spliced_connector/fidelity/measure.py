"""Serves one prompt in each way, and measures how likely the full prefill's answer is in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from spliced_connector.fidelity.loading import Loaded
from spliced_connector.fidelity.prompts import Sample
from spliced_connector.fidelity.ways import FULL, Kind, Measured, Reading, Way
from spliced_connector.model import (
    Piece,
    Profile,
    Prompt,
    Role,
    Span,
    SpanKind,
    choose,
    divide,
    keep_for_reuse,
    make_plan,
)
from spliced_connector.walk import (
    PREFILL_ROWS,
    Captured,
    Context,
    Primer,
    capture_all,
    pieces,
    prefill,
    splice,
)

_Segments = Mapping[int, Captured]


@dataclass(frozen=True)
class Meter:
    """Measures prompts with one model.

    seam: tokens recomputed on each side of a join. answer: maximum tokens of an answer; it ends
    with a token that ends answers. primers: the primers by the names in `Way.primer`. Segments with
    fewer than primer_after tokens before them are captured without a primer.
    """

    model: Loaded
    seam: int
    answer: int
    primers: Mapping[str, Primer]
    primer_after: int
    profile: Profile = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", Profile(self.model.arch.identity))

    def unusable(self, sample: Sample) -> str:
        """Returns why a prompt cannot be measured, "" if it can."""
        longest, needed = self.model.longest, len(sample.ids) + self.answer
        if longest and needed > longest:
            return f"longer than the model's {longest} tokens"
        if not sample.cuts:
            return "no segments"
        if not _reusable(self._divide(sample)):
            return f"no segment is longer than its seams of {self.seam} tokens"
        return ""

    def measure(self, sample: Sample, ways: Sequence[Way]) -> Measured:
        """Serves a usable prompt in each way. Neighboring ways with the same primer share their
        captured segments. Raises ValueError for a way whose logits are not finite."""
        with torch.no_grad():
            prompt = self._divide(sample)
            ids = torch.tensor(sample.ids, device=self.model.device)
            whole = self._context(ids)
            row = self._walk(ids, [_computed(0, len(ids))], {}, whole)
            behind = whole.snapshot()
            answer = self._greedy(ids, row, whole)
            readings = {FULL: self._read(ids, answer, row, behind, len(ids))}
            for way in ways:
                if way.kind is Kind.PREFIX:
                    readings[way] = self._after_prefix(ids, sample, answer)
            splices = [way for way in ways if way.kind is Kind.SPLICE]
            alone = self._captured(prompt, ids, None)
            for primer, some in groupby(splices, key=lambda way: way.primer):
                segments = alone
                if primer:
                    segments = alone | self._captured(prompt, ids, self.primers[primer])
                served: dict[Prompt, Reading] = {}  # several shares may reuse the same segments
                for way in some:
                    reused = self._divide(sample, way.refresh)
                    if reused not in served:
                        served[reused] = self._spliced(ids, reused, segments, answer)
                    readings[way] = served[reused]
        for way, reading in readings.items():
            if not all(map(_finite, reading.log_p)):
                raise ValueError(f"line {sample.line}: logits of {way.name!r} are not finite")
        return Measured(
            line=sample.line,
            tokens=len(sample.ids),
            segments=len(_reusable(prompt)),
            primed=len(self._primed(prompt)),
            answer=tuple(answer.tolist()),
            readings=readings,
        )

    def _divide(self, sample: Sample, refresh: float = 0.0) -> Prompt:
        """Divides a prompt into the segments to reuse, as an engine does."""
        cuts = keep_for_reuse(sample.cuts, refresh)
        return divide(self.profile, b"", sample.ids, cuts, self.seam)

    def _context(self, ids: Tensor) -> Context:
        return Context(self.model.arch, len(ids) + self.answer, self.model.device)

    def _primed(self, prompt: Prompt) -> list[Piece]:
        """Returns the segments that are captured after a primer."""
        return [
            piece
            for piece in _reusable(prompt)
            if piece.start >= self.primer_after and piece.spec and piece.spec.role is Role.MID
        ]

    def _captured(self, prompt: Prompt, ids: Tensor, primer: Primer | None) -> dict[int, Captured]:
        """Captures all segments in isolation; or, with a primer, only those captured after it."""
        found: dict[int, Captured] = {}
        for some in _batches(_reusable(prompt) if primer is None else self._primed(prompt)):
            wanted = [(ids[p.start : p.end], p.spec) for p in some if p.spec is not None]
            made = capture_all(self.model.arch, wanted, primers=[primer] * len(wanted))
            found |= {piece.index: captured for piece, captured in zip(some, made, strict=True)}
        return found

    def _after_prefix(self, ids: Tensor, sample: Sample, answer: Tensor) -> Reading:
        """Serves a prompt from the state before its second segment, or before its first segment if
        the prompt does not begin with a segment."""
        context = self._context(ids)
        at = next(cut for cut in sample.cuts if cut)
        self._walk(ids, [_computed(0, at)], {}, context)
        row = self._walk(ids, [_computed(at, len(ids))], {}, context)
        return self._read(ids, answer, row, context, len(ids) - at)

    def _spliced(self, ids: Tensor, prompt: Prompt, segments: _Segments, answer: Tensor) -> Reading:
        """Serves a prompt from its segments."""
        context = self._context(ids)
        reused = [piece.spec is not None for piece in prompt.pieces]
        plan = make_plan(prompt, 0, choose(prompt, 0, reused, [False] * len(reused)))
        row = self._walk(ids, plan.spans, segments, context)
        return self._read(ids, answer, row, context, plan.recomputed_tokens)

    def _walk(
        self, ids: Tensor, spans: Sequence[Span], segments: _Segments, context: Context
    ) -> Tensor:
        """Fills a context; returns the hidden row [1, width] of the last token."""
        rows = None
        for walk in pieces(spans):
            used = {s.segment: segments[s.segment] for s in walk if s.segment >= 0}
            rows = splice(self.model.arch, ids, walk, used, context)
        if rows is None:
            raise RuntimeError("a plan ends with a segment")
        return rows[-1:]

    def _greedy(self, ids: Tensor, row: Tensor, context: Context) -> Tensor:
        """Returns the model's greedy answer after a context, up to a token that ends it."""
        every = ids
        while True:
            token = self.model.arch.logits(row)[0].argmax()
            every = torch.cat((every, token[None].to(every)))
            if len(every) - len(ids) == self.answer or int(token) in self.model.ends:
                return every[len(ids) :]
            row = prefill(self.model.arch, every, context)

    def _read(
        self, ids: Tensor, answer: Tensor, row: Tensor, context: Context, computed: int
    ) -> Reading:
        """Reads a given answer after a context, with all its tokens in one walk. Every way reads
        it like this, so that the walk's rounding is the same."""
        if len(answer) > 1:
            row = torch.cat((row, prefill(self.model.arch, torch.cat((ids, answer[:-1])), context)))
        log_p = torch.log_softmax(self.model.arch.logits(row).double(), -1)
        return Reading(
            log_p=tuple(log_p.gather(1, answer[:, None])[:, 0].tolist()),
            top=tuple(log_p.argmax(-1).tolist()),
            computed=computed,
        )


def _reusable(prompt: Prompt) -> list[Piece]:
    return [piece for piece in prompt.pieces if piece.spec is not None]


def _batches(wanted: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Groups segments that pass the layers together, which bounds the memory of a layer."""
    some: list[Piece] = []
    for piece in wanted:
        if some and sum(p.tokens for p in some) + piece.tokens > PREFILL_ROWS:
            yield some
            some = []
        some.append(piece)
    if some:
        yield some


def _computed(begin: int, end: int) -> Span:
    return Span(SpanKind.RECOMPUTE, begin, end - begin)


def _finite(x: float) -> bool:
    return x - x == 0
