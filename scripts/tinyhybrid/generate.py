"""Multi-passage questions about made-up worlds.

A prompt is a list of segments: an instruction, notes about one subject each, and
a question. Facts are drawn afresh for every prompt, so nothing can be learned by
heart: the answer is in the notes. Three kinds of question:

- one: a single note holds the answer ("what food does Ada like ?");
- two: one note names the subject of another ("what food does the friend of Ada
  like ?"); the answer names both, "Boris soup";
- latest: an item went from hand to hand, and the last note that mentions it counts.

Everything follows from a seed. Seeds below HELD_OUT are for training.
"""

from __future__ import annotations

import argparse
import bisect
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from lexicon import (
    COMPANY,
    FILLERS,
    HOLDER_QUESTION,
    INSTRUCTION,
    MOVES,
    NAMES,
    PERSON,
    QUESTION,
    RELATIONS,
    TITLES,
    TOWN,
    VALUES,
    Relation,
    encode,
)

HELD_OUT = 1 << 40  # seeds from here on are never trained on
OF_KIND = {kind: tuple(r for r in RELATIONS if r.subject == kind) for kind in NAMES}


@dataclass(frozen=True)
class Shape:
    """How prompts look: words and facts per note, and the shares of what is asked."""

    min_words: int = 60
    max_words: int = 120
    min_facts: int = 4
    max_facts: int = 6
    again: float = 0.25  # share of facts that are stated a second time
    linked: float = 0.6  # share of facts about subjects that name one with a note in the prompt
    one: float = 0.4
    two: float = 0.35
    latest: float = 0.25


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    kind: str
    notes: tuple[int, ...]  # the notes that the answer needs, in order of use


@dataclass
class Note:
    """What one note says. Items are those that its subject took."""

    kind: str
    subject: str
    facts: dict[str, str] = field(default_factory=dict)
    items: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Prompt:
    notes: tuple[Note, ...]
    questions: tuple[Question, ...]

    def segments(self) -> list[str]:
        """The prompt for its first question, cut where segments meet."""
        ask = QUESTION.format(q=self.questions[0].text)
        return [INSTRUCTION, *(n.text for n in self.notes), ask]

    def record(self) -> dict[str, object]:
        """One line of questions.jsonl."""
        segments, q = self.segments(), self.questions[0]
        return {
            "segments": [encode(s) for s in segments],
            "answer": encode(q.answer),
            "text": segments,
            "answer_text": q.answer,
            "kind": q.kind,
            "notes": list(q.notes),
        }


def write(note: Note, rng: random.Random, shape: Shape) -> str:
    """The words of a note: its facts in any order and wording among sentences that say nothing."""
    lines = []
    by_name = {r.name: r for r in OF_KIND[note.kind]}
    for name, value in note.facts.items():
        wordings = rng.sample(by_name[name].sentences, 2)
        for wording in wordings[: 2 if rng.random() < shape.again else 1]:
            lines.append(wording.format(s=note.subject, v=value))
    lines += [rng.choice(MOVES).format(s=note.subject, v=item) for item in note.items]
    title = TITLES[note.kind].format(s=note.subject)
    length = len(title.split()) + sum(len(line.split()) for line in lines)
    target = rng.randint(shape.min_words, shape.max_words)
    for filler in rng.sample(FILLERS, len(FILLERS)):
        if "{" in filler:
            filler = " ".join(
                rng.choice(VALUES[w[1:-1]]) if w[0] == "{" else w for w in filler.split()
            )
        size = len(filler.split())
        if length + size > target:
            break
        lines.append(filler)
        length += size
    rng.shuffle(lines)
    return " ".join([title, *lines])


def subjects(rng: random.Random, k: int) -> list[tuple[str, str]]:
    """k different subjects, half of them people, at least one of those."""
    kinds = [PERSON, *rng.choices((PERSON, COMPANY, TOWN), (2, 1, 1), k=k - 1)]
    out: list[tuple[str, str]] = []
    for kind in NAMES:
        out += [(kind, name) for name in rng.sample(NAMES[kind], kinds.count(kind))]
    rng.shuffle(out)
    return out


def facts(rng: random.Random, shape: Shape, kind: str, subject: str, near: list[str]) -> dict:
    """Facts of one subject. near are the other subjects of the prompt, the ones to link to."""
    relations = OF_KIND[kind]
    n = min(rng.randint(shape.min_facts, shape.max_facts), len(relations))
    chosen = rng.sample(relations, n)
    if not any(r.bridge for r in chosen) and rng.random() < shape.linked:
        chosen[0] = rng.choice([r for r in relations if r.bridge])
    out = {}
    for r in chosen:
        pool = [s for s in near if s in NAMES[r.value]] if r.bridge else []
        linked = pool and rng.random() < shape.linked
        out[r.name] = rng.choice(pool if linked else [v for v in VALUES[r.value] if v != subject])
    return out


def hand_round(rng: random.Random, notes: list[Note]) -> None:
    """Lets people take items: each item passes through two to four of the notes."""
    people = [n for n in notes if n.kind == PERSON]
    if len(people) < 2:
        return
    items = rng.sample(VALUES["item"], rng.randint(1, 1 + len(people) // 3))
    for item in items:
        for note in rng.sample(people, rng.randint(2, min(4, len(people)))):
            note.items += (item,)


def questions(rng: random.Random, notes: list[Note], shape: Shape, n: int) -> list[Question]:
    """Up to n different questions about the notes, kinds in the shares of the shape."""
    at = {note.subject: i for i, note in enumerate(notes)}
    by_name = {r.name: r for r in RELATIONS}
    pools: dict[str, list[Question]] = {"one": [], "two": [], "latest": []}
    for i, note in enumerate(notes):
        for name, value in note.facts.items():
            r = by_name[name]
            pools["one"].append(Question(r.question.format(s=note.subject), value, "one", (i,)))
            if r.bridge and value in at:
                pools["two"] += bridged(r, i, notes[at[value]], at[value], note.subject, by_name)
    holders = {item: i for i, note in enumerate(notes) for item in note.items}
    for item, i in holders.items():
        text = HOLDER_QUESTION.format(v=item)
        pools["latest"].append(Question(text, notes[i].subject, "latest", (i,)))
    for pool in pools.values():
        rng.shuffle(pool)
    shares = {"one": shape.one, "two": shape.two, "latest": shape.latest}
    out = []
    while len(out) < n:
        left = [kind for kind in pools if pools[kind] and shares[kind] > 0]
        if not left:
            break
        out.append(pools[rng.choices(left, [shares[kind] for kind in left])[0]].pop())
    return out


def bridged(
    first: Relation, i: int, other: Note, j: int, subject: str, by_name: dict[str, Relation]
) -> list[Question]:
    """The questions that go from note i over to note j."""
    via = first.bridge.format(s=subject)
    return [
        Question(by_name[name].question.format(s=via), f"{other.subject} {value}", "two", (i, j))
        for name, value in other.facts.items()
        if value != subject
    ]


def prompt(seed: int, k: int, shape: Shape = Shape(), n: int = 1) -> Prompt:
    """A prompt of k notes about a world of its own, with up to n questions."""
    rng = random.Random(seed)
    names = subjects(rng, k)
    notes = []
    for kind, subject in names:
        near = [other for _, other in names if other != subject]
        notes.append(Note(kind, subject, facts(rng, shape, kind, subject, near)))
    if shape.latest:
        hand_round(rng, notes)
    for note in notes:
        note.text = write(note, rng, shape)
    return Prompt(tuple(notes), tuple(questions(rng, notes, shape, n)))


class Corpus:
    """Notes written once, about one world; prompts draw them by Zipf's law, so notes come back."""

    def __init__(self, seed: int, size: int = 128, shape: Shape = Shape(), zipf: float = 1.0):
        rng = random.Random(seed)
        people = min(size // 2, len(NAMES[PERSON]))
        counts = {PERSON: people, COMPANY: size // 4, TOWN: size - people - size // 4}
        if max(counts[COMPANY] - len(NAMES[COMPANY]), counts[TOWN] - len(NAMES[TOWN])) > 0:
            raise ValueError(f"{size} notes are more than there are names for")
        names = [(kind, s) for kind, n in counts.items() for s in rng.sample(NAMES[kind], n)]
        rng.shuffle(names)
        near = [subject for _, subject in names]
        self.shape = shape
        self.notes = []
        for kind, subject in names:
            others = [s for s in near if s != subject]
            note = Note(kind, subject, facts(rng, shape, kind, subject, others))
            if kind == PERSON:
                note.items = tuple(rng.sample(VALUES["item"], rng.randint(0, 2)))
            note.text = write(note, rng, shape)
            self.notes.append(note)
        weights = [1 / (rank + 1) ** zipf for rank in range(size)]
        self.cumulative = [sum(weights[: i + 1]) for i in range(size)]
        self.at = {note.subject: i for i, note in enumerate(self.notes)}

    def _draw(self, rng: random.Random, taken: set[int]) -> int:
        while True:
            x = rng.random() * self.cumulative[-1]
            i = bisect.bisect_left(self.cumulative, x)
            if i not in taken:
                return i

    def prompt(self, seed: int, k: int) -> Prompt:
        """k notes in any order. Half of the draws follow a link, as a search for a chain would."""
        rng = random.Random(seed)
        chosen: list[int] = [self._draw(rng, set())]
        while len(chosen) < k:
            linked = [
                self.at[v]
                for i in chosen
                for v in self.notes[i].facts.values()
                if v in self.at and self.at[v] not in chosen
            ]
            if linked and rng.random() < 0.5:
                chosen.append(rng.choice(linked))
            else:
                chosen.append(self._draw(rng, set(chosen)))
        rng.shuffle(chosen)
        notes = [self.notes[i] for i in chosen]
        return Prompt(tuple(notes), tuple(questions(rng, notes, self.shape, 1)))


def held_out(n: int, counts: tuple[int, ...] = tuple(range(2, 9))) -> Iterator[Prompt]:
    """n prompts that training never saw, with one question each, the counts of notes in turn."""
    for i in range(n):
        yield prompt(HELD_OUT + i, counts[i % len(counts)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes questions, one JSON object a line.")
    parser.add_argument("-n", type=int, default=100, help="number of prompts")
    parser.add_argument("-k", default="2,3,4,5,6,7,8", help="numbers of notes, in turn")
    parser.add_argument("--seed", type=int, default=0, help="added to the held-out seeds")
    parser.add_argument("--corpus", type=int, default=0, help="notes of a fixed corpus; 0 = none")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the draws")
    args = parser.parse_args()
    counts = [int(k) for k in args.k.split(",")]
    corpus = Corpus(HELD_OUT, args.corpus, zipf=args.zipf) if args.corpus else None
    for i in range(args.n):
        seed, k = HELD_OUT + args.seed + i, counts[i % len(counts)]
        made = corpus.prompt(seed, k) if corpus else prompt(seed, k)
        print(json.dumps({"seed": seed, **made.record()}))


if __name__ == "__main__":
    main()
