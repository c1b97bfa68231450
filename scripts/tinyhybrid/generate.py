"""Multi-passage questions about made-up worlds.

A prompt is a list of segments: an instruction, notes about one subject each, and
a question. Facts are drawn afresh for every prompt, so nothing can be learned by
heart: the answer is in the notes. Four kinds of question:

- one: a single note holds the answer ("what food does Ada like ?");
- two: one note names the subject of another ("what food does the friend of Ada
  like ?"); the answer names both, "Boris soup";
- latest: an item went from hand to hand, and the last note that mentions it counts;
- holder: a fact about the present holder of an item; the answer names both, as in two.

Everything follows from a seed. Seeds below HELD_OUT are for training.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lexicon import (
    COMPANY,
    FILLERS,
    HOLDER,
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
ITEMS = 6  # that people of a corpus hand round; few, so that notes of a prompt share some
KINDS = ("one", "two", "latest", "holder")
OF_KIND = {kind: tuple(r for r in RELATIONS if r.subject == kind) for kind in NAMES}


@dataclass(frozen=True)
class Shape:
    """How prompts look: words and facts per note, and the shares of the kinds of questions."""

    min_words: int = 60
    max_words: int = 120
    min_facts: int = 4
    max_facts: int = 6
    again: float = 0.25  # share of facts that are stated a second time
    linked: float = 0.6  # share of facts about subjects that name one with a note in the prompt
    people: int = 2  # minimum number of notes on people
    every: int = 2  # one more item may go round per this number of people
    hands: int = 6  # maximum number of notes with an item
    least_hands: int = 3  # and minimum, if the prompt has that number of notes
    seen: bool = True  # notes on anything say who has an item, not only those on its holders
    one: float = 0.2
    two: float = 0.2
    latest: float = 0.3
    holder: float = 0.3
    asides: int = 0  # maximum number of a note's facts on subjects without a note


# Long notes, with more of everything: 300 to 700 tokens each.
LONG = Shape(min_words=310, max_words=700, min_facts=5, max_facts=9, again=0.4, every=1, asides=4)
SHAPES = {"short": Shape(), "long": LONG}
SHAPE_FILE = "prompts.json"  # in the folder of a model: the shape of prompts that it knows


def shape_of(model: Path) -> Shape:
    """Returns the shape of a model's prompts; the default if its folder does not say."""
    path = model / SHAPE_FILE
    return Shape(**json.loads(path.read_text())) if path.exists() else Shape()


def write_shape(shape: Shape, model: Path) -> None:
    (model / SHAPE_FILE).write_text(json.dumps(asdict(shape), indent=2) + "\n")


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    kind: str
    notes: tuple[int, ...]  # the notes that the answer needs, in order of use


@dataclass
class Note:
    """The facts of one note. The field `items` maps items to their holders, as far as the note says
    who has them."""

    kind: str
    subject: str
    facts: dict[str, str] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    asides: list[tuple[Relation, str, str]] = field(default_factory=list)  # of others: who, value
    text: str = ""


@dataclass(frozen=True)
class Prompt:
    notes: tuple[Note, ...]
    questions: tuple[Question, ...]

    def segments(self) -> list[str]:
        """Returns the segments of the prompt for its first question."""
        ask = QUESTION.format(q=self.questions[0].text)
        return [INSTRUCTION, *(n.text for n in self.notes), ask]

    def record(self) -> dict[str, object]:
        """Returns one line of questions.jsonl."""
        segments, q = self.segments(), self.questions[0]
        return {
            "segments": [encode(s) for s in segments],
            "answer": encode(q.answer),
            "text": segments,
            "answer_text": q.answer,
            "kind": q.kind,
            "notes": list(q.notes),
        }

    def cut(self) -> dict[str, object]:
        """Returns one line for `spliced_connector.fidelity`. All segments but the last are between
        cuts."""
        segments = [encode(s) for s in self.segments()]
        cuts = itertools.accumulate((len(s) for s in segments[:-1]), initial=0)
        return {"ids": [token for s in segments for token in s], "cuts": list(cuts)}


def write(note: Note, rng: random.Random, shape: Shape) -> str:
    """Returns the text of a note: its facts, in any order and wording, among sentences that say
    nothing."""
    lines = []
    by_name = {r.name: r for r in OF_KIND[note.kind]}
    for name, value in note.facts.items():
        wordings = rng.sample(by_name[name].sentences, 2)
        for wording in wordings[: 2 if rng.random() < shape.again else 1]:
            lines.append(wording.format(s=note.subject, v=value))
    lines += [rng.choice(MOVES).format(s=who, v=item) for item, who in note.items.items()]
    lines += [rng.choice(r.sentences).format(s=who, v=value) for r, who, value in note.asides]
    title = TITLES[note.kind].format(s=note.subject)
    length = len(title.split()) + sum(len(line.split()) for line in lines)
    target = rng.randint(shape.min_words, shape.max_words)
    for filler in fillers(rng):
        size = len(filler.split())
        if length + size > target:
            break
        lines.append(filler)
        length += size
    rng.shuffle(lines)
    return " ".join([title, *lines])


def fillers(rng: random.Random) -> Iterator[str]:
    """Yields sentences that say nothing. Each comes once before any comes again."""
    while True:
        for filler in rng.sample(FILLERS, len(FILLERS)):
            if "{" in filler:
                filler = " ".join(
                    rng.choice(VALUES[w[1:-1]]) if w[0] == "{" else w for w in filler.split()
                )
            yield filler


def subjects(rng: random.Random, k: int, people: int) -> list[tuple[str, str]]:
    """Returns k different subjects: `people` people, and others of which about half are people."""
    people = min(k, people)
    kinds = [PERSON] * people + rng.choices((PERSON, COMPANY, TOWN), (2, 1, 1), k=k - people)
    out: list[tuple[str, str]] = []
    for kind in NAMES:
        out += [(kind, name) for name in rng.sample(NAMES[kind], kinds.count(kind))]
    rng.shuffle(out)
    return out


def facts(rng: random.Random, shape: Shape, kind: str, subject: str, near: list[str]) -> dict:
    """Returns facts of one subject. near: other subjects of the prompt, which facts may name."""
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


def hand_round(rng: random.Random, notes: list[Note], shape: Shape) -> None:
    """Lets people take items: each item passes through two notes or more."""
    people = [n for n in notes if n.kind == PERSON]
    if len(people) < 2:
        return
    items = rng.sample(VALUES["item"], rng.randint(1, 1 + len(people) // shape.every))
    for item in items:
        if shape.seen:
            seen(rng, notes, people, item, shape)
            continue
        for note in rng.sample(people, rng.randint(2, min(shape.hands, len(people)))):
            note.items[item] = note.subject


def digress(rng: random.Random, notes: list[Note], shape: Shape) -> None:
    """Lets notes state facts on subjects that have no note, one fact on each."""
    taken = {note.subject for note in notes}
    others = [(kind, s) for kind, names in NAMES.items() for s in names if s not in taken]
    rng.shuffle(others)
    for note in notes:
        for _ in range(rng.randint(0, shape.asides)):
            kind, who = others.pop()
            r = rng.choice(OF_KIND[kind])
            note.asides.append((r, who, rng.choice([v for v in VALUES[r.value] if v != who])))


def seen(
    rng: random.Random, notes: list[Note], people: list[Note], item: str, shape: Shape
) -> None:
    """Lets notes of all kinds say who has an item. The holder rarely changes before the last of
    these notes, and usually changes there."""
    most = min(shape.hands, len(notes))
    times = rng.randint(min(shape.least_hands, most), most)
    mentions = sorted(rng.sample(range(len(notes)), times))
    holder = rng.choice(people).subject
    for i in mentions:
        if rng.random() < (0.75 if i == mentions[-1] else 0.2):
            holder = rng.choice([n.subject for n in people if n.subject != holder])
        notes[i].items[item] = holder


def questions(rng: random.Random, notes: list[Note], shape: Shape, n: int) -> list[Question]:
    """Returns up to n different questions about the notes, with kinds in the shape's shares."""
    at = {note.subject: i for i, note in enumerate(notes)}
    by_name = {r.name: r for r in RELATIONS}
    pools: dict[str, list[Question]] = {kind: [] for kind in KINDS}
    for i, note in enumerate(notes):
        for name, value in note.facts.items():
            r = by_name[name]
            pools["one"].append(Question(r.question.format(s=note.subject), value, "one", (i,)))
            if r.bridge and value in at:
                j = at[value]
                pools["two"] += told(notes[j], r.bridge.format(s=note.subject), "two", (i, j))
        for r, who, value in note.asides:
            pools["one"].append(Question(r.question.format(s=who), value, "one", (i,)))
    holders = {item: i for i, note in enumerate(notes) for item in note.items}
    for item, i in holders.items():
        text = HOLDER_QUESTION.format(v=item)
        who = notes[i].items[item]
        pools["latest"].append(Question(text, who, "latest", (i,)))
        if who in at:
            pools["holder"] += told(notes[at[who]], HOLDER.format(v=item), "holder", (i, at[who]))
    shares = {kind: getattr(shape, kind) for kind in KINDS if getattr(shape, kind) > 0}
    for kind in shares:
        rng.shuffle(pools[kind])
    out = []
    while len(out) < n:
        left = [kind for kind in shares if pools[kind]]
        if not left:
            break
        out.append(pools[rng.choices(left, [shares[kind] for kind in left])[0]].pop())
    return out


def told(note: Note, via: str, kind: str, used: tuple[int, ...]) -> list[Question]:
    """Returns questions about a note's subject that refer to it as `via` instead of by its name.
    Facts whose value is in `via` are not asked."""
    by_name = {r.name: r for r in OF_KIND[note.kind]}
    return [
        Question(by_name[name].question.format(s=via), f"{note.subject} {value}", kind, used)
        for name, value in note.facts.items()
        if value not in via.split()
    ]


def prompt(seed: int, k: int, shape: Shape = Shape(), n: int = 1) -> Prompt:
    """Returns a prompt of k notes about a separate world, with up to n questions."""
    rng = random.Random(seed)
    names = subjects(rng, k, shape.people)
    notes = []
    for kind, subject in names:
        near = [other for _, other in names if other != subject]
        notes.append(Note(kind, subject, facts(rng, shape, kind, subject, near)))
    hand_round(rng, notes, shape)
    if shape.asides:
        digress(rng, notes, shape)
    for note in notes:
        note.text = write(note, rng, shape)
    return Prompt(tuple(notes), tuple(questions(rng, notes, shape, n)))


OF_CORPUS = Shape(one=0.4, two=0.35, latest=0.25, holder=0.0)


class Corpus:
    """Notes about one world, written once. Prompts draw them by Zipf's law, so notes recur.

    A note is the same in every prompt. So it cannot know who has an item after other notes, and
    only notes on an item's holders mention the item.
    """

    def __init__(self, seed: int, size: int = 128, shape: Shape = OF_CORPUS, zipf: float = 1.0):
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
                for item in rng.sample(VALUES["item"][:ITEMS], rng.randint(0, 2)):
                    note.items[item] = subject
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
        """Returns a prompt of k notes in any order. Half of the draws follow a link between notes,
        as a search for a chain of facts would."""
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
    """Yields n prompts that training never saw, with one question each. Prompt i has as many notes
    as the i-th entry of `counts`, which is repeated."""
    for i in range(n):
        yield prompt(HELD_OUT + i, counts[i % len(counts)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes questions, one JSON object a line.")
    parser.add_argument("-n", type=int, default=100, help="number of prompts")
    parser.add_argument("-k", default="2,3,4,5,6,7,8", help="numbers of notes, in turn")
    parser.add_argument("--seed", type=int, default=0, help="added to the held-out seeds")
    parser.add_argument("--shape", choices=SHAPES, default="short", help="length of the notes")
    parser.add_argument("--corpus", type=int, default=0, help="notes of a fixed corpus; 0 = none")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the draws")
    parser.add_argument("--cuts", action="store_true", help="prompts alone: token ids and cuts")
    args = parser.parse_args()
    counts = [int(k) for k in args.k.split(",")]
    corpus = Corpus(HELD_OUT, args.corpus, zipf=args.zipf) if args.corpus else None
    for i in range(args.n):
        seed, k = HELD_OUT + args.seed + i, counts[i % len(counts)]
        made = corpus.prompt(seed, k) if corpus else prompt(seed, k, SHAPES[args.shape])
        print(json.dumps(made.cut() if args.cuts else {"seed": seed, **made.record()}))


if __name__ == "__main__":
    main()
