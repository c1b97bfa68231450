"""Primers of several kinds and lengths, in the words of the generator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from questions import encode, generate, lexicon

FIRST = generate.HELD_OUT + (1 << 24)
"""First of the seeds of the notes that primers are made of; no question has these seeds."""


@dataclass(frozen=True)
class Text:
    """A primer's name in tables, and its token ids."""

    name: str
    ids: tuple[int, ...]


def texts(shape: generate.Shape) -> tuple[Text, ...]:
    """Returns twenty primers for a model whose prompts have this shape, and three more that differ
    in whether they say who has an item. Most questions over several notes are about this."""
    notes = list(itertools.islice(_notes(shape), 64))
    run = list(itertools.chain.from_iterable(notes))
    opening = encode(lexicon.INSTRUCTION)
    rng = random.Random(FIRST)
    shuffled = rng.sample(run, len(run))
    words = rng.choices([i for i in range(len(lexicon.WORDS)) if i >= len(lexicon.SPECIAL)], k=1024)
    idle = list(itertools.islice(_idle(), 1024))
    handed = list(itertools.islice(_handed(), 256))
    silent = list(itertools.chain.from_iterable(itertools.islice(_notes(shape, silent=True), 16)))
    made = [
        ("the instruction and note A", opening + notes[0]),
        ("note A", notes[0]),
        ("note B", notes[1]),
        ("note C", notes[2]),
        ("notes A and B", notes[0] + notes[1]),
        ("the instruction, notes B and C", opening + notes[1] + notes[2]),
        *((f"notes, {n} tokens", run[:n]) for n in (16, 64, 128, 256, 512, 1024)),
        *((f"shuffled notes, {n} tokens", shuffled[:n]) for n in (128, 512, 1024)),
        *((f"random words, {n} tokens", words[:n]) for n in (128, 512)),
        *((f"filler sentences, {n} tokens", idle[:n]) for n in (128, 512, 1024)),
        *((f"hand-overs, {n} tokens", handed[:n]) for n in (64, 256)),
        ("notes without hand-overs, 512 tokens", silent[:512]),
    ]
    return tuple(Text(name, tuple(ids)) for name, ids in made)


def _notes(shape: generate.Shape, silent: bool = False) -> Iterator[list[int]]:
    """Yields notes of different worlds; with `silent`, they do not say who has an item."""
    for i in itertools.count():
        made = generate.prompt(FIRST + i, 2, shape)
        if silent:
            note = replace(made.notes[0], items={})
            yield encode(generate.write(note, random.Random(FIRST + i), shape))
        else:
            yield encode(made.segments()[1])


def _handed() -> Iterator[int]:
    """Yields the tokens of sentences on who has an item."""
    rng = random.Random(FIRST)
    while True:
        who, item = (rng.choice(lexicon.VALUES[kind]) for kind in (lexicon.PERSON, "item"))
        yield from encode(rng.choice(lexicon.MOVES).format(s=who, v=item))


def _idle() -> Iterator[int]:
    for sentence in generate.fillers(random.Random(FIRST)):
        yield from encode(sentence)
