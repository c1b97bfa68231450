"""Held-out questions as prompts of token ids with their cuts, from the generator of the model."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TINYHYBRID = Path(__file__).resolve().parents[1] / "tinyhybrid"
sys.path.insert(0, str(TINYHYBRID))

import generate  # noqa: E402  the generator is a script, not a package
import lexicon  # noqa: E402
from lexicon import encode  # noqa: E402

FIRST_SEED = generate.HELD_OUT + (1 << 20)
"""First of the seeds that neither the training nor the model's own evaluation has used."""
FRESH = generate.HELD_OUT + (1 << 23)
"""First of the seeds for `contexts.py`, which nothing else has used."""


@dataclass(frozen=True)
class Question:
    """ids is the prompt. cuts has 0 and the ends of its segments; the query follows the last."""

    seed: int
    kind: str
    notes: int
    ids: tuple[int, ...]
    cuts: tuple[int, ...]
    answer: tuple[int, ...]


def questions(
    n: int, counts: tuple[int, ...], model: Path, first: int = FIRST_SEED
) -> Iterator[Question]:
    """Yields n questions of the shape that a model was trained for. Question i has as many notes as
    the i-th entry of `counts`, which is repeated."""
    shape = generate.shape_of(model)
    for i in range(n):
        yield question(first + i, counts[i % len(counts)], shape)


def question(seed: int, notes: int, shape: generate.Shape) -> Question:
    made = generate.prompt(seed, notes, shape)
    segments = [encode(text) for text in made.segments()]
    asked = made.questions[0]
    return Question(
        seed=seed,
        kind=asked.kind,
        notes=notes,
        ids=tuple(itertools.chain.from_iterable(segments)),
        cuts=tuple(itertools.accumulate((len(s) for s in segments[:-1]), initial=0)),
        answer=tuple(encode(asked.answer)),
    )
