"""The questions are what they say: answerable from their notes, cut where segments meet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from generate import HELD_OUT, KINDS, LONG, Corpus, Prompt, held_out, prompt
from lexicon import (
    HOLDER,
    IDS,
    MOVES,
    NAMES,
    PERSON,
    RELATIONS,
    VALUES,
    VOCABULARY,
    WORDS,
    decode,
    encode,
    tokenizer_json,
)


def stated(text: str, subject: str, relation: str, value: str) -> bool:
    wordings = next(r for r in RELATIONS if r.name == relation).sentences
    return any(w.format(s=subject, v=value) in text for w in wordings)


def answers(made: Prompt, question: str) -> set[str]:
    """All answers that a reader of the text would accept, found by the words of the notes."""
    found = set()
    for note in made.notes:
        for r in RELATIONS:
            for value in WORDS:
                if not stated(note.text, note.subject, r.name, value):
                    continue
                if question == r.question.format(s=note.subject):
                    found.add(value)
                for other in made.notes:
                    if r.bridge and other.subject == value:
                        found |= across(other, question, r.bridge.format(s=note.subject))
    return found


def across(note, question: str, via: str) -> set[str]:
    return {
        f"{note.subject} {value}"
        for r in RELATIONS
        if question == r.question.format(s=via)
        for value in WORDS
        if stated(note.text, note.subject, r.name, value)
    }


def holders(made: Prompt, item: str) -> list[str]:
    """Who has an item, note by note."""
    return [
        name
        for note in made.notes
        for name in NAMES[PERSON]
        if any(m.format(s=name, v=item) in note.text for m in MOVES)
    ]


@pytest.mark.parametrize("seed", range(24))
def test_an_answer_is_the_only_one_in_the_text(seed: int) -> None:
    made = prompt(HELD_OUT + seed, 2 + seed % 7)
    q = made.questions[0]
    if q.kind in ("one", "two"):
        assert answers(made, q.text) == {q.answer}
        return
    item = next(word for word in q.text.split() if word in VALUES["item"])
    passed = holders(made, item)
    assert len(passed) >= 2
    if q.kind == "latest":
        assert passed[-1] == q.answer
        return
    (note,) = [note for note in made.notes if note.subject == passed[-1]]
    assert across(note, q.text, HOLDER.format(v=item)) == {q.answer}


def test_most_questions_need_more_than_one_note() -> None:
    kinds = [made.questions[0].kind for made in held_out(600)]
    assert set(kinds) == set(KINDS)
    assert kinds.count("latest") + kinds.count("holder") > 300
    assert kinds.count("one") < 150


def test_a_vote_among_the_notes_names_another_holder() -> None:
    asked = [m for m in held_out(600) if m.questions[0].kind == "latest" and len(m.notes) >= 4]
    right = 0
    for made in asked:
        item = next(word for word in made.questions[0].text.split() if word in VALUES["item"])
        passed = holders(made, item)
        right += max(passed, key=passed.count) == made.questions[0].answer
    assert right < 0.5 * len(asked)


def test_both_orders_of_a_chain_occur() -> None:
    chains = [q.notes for m in held_out(200) for q in m.questions if q.kind == "two"]
    assert {a < b for a, b in chains} == {True, False}


def test_notes_have_the_length_of_passages() -> None:
    lengths = [len(s) for m in held_out(100) for s in map(encode, m.segments()[1:-1])]
    assert min(lengths) >= 45
    assert max(lengths) <= 140
    assert 70 <= sum(lengths) / len(lengths) <= 110


def test_long_notes_say_more_and_stay_answerable() -> None:
    for seed in range(12):
        made = prompt(HELD_OUT + seed, 2 + seed % 7, LONG, 40)
        lengths = [len(encode(n.text)) for n in made.notes]
        assert 300 <= min(lengths) <= max(lengths) <= 800
        aside = {who for n in made.notes for _, who, _ in n.asides}
        assert not aside & {n.subject for n in made.notes}
        for q in made.questions:
            if q.kind == "one" and not aside & set(q.text.split()):
                assert answers(made, q.text) == {q.answer}
        for n in made.notes:
            assert all(stated(n.text, who, r.name, value) for r, who, value in n.asides)


def test_segments_encode_to_the_same_ids_apart_and_together() -> None:
    made = prompt(HELD_OUT, 5)
    record = made.record()
    assert [i for s in record["segments"] for i in s] == encode(" ".join(made.segments()))
    assert [decode(s) for s in record["segments"]] == made.segments()
    assert decode(record["answer"]) == made.questions[0].answer


def test_a_seed_repeats_itself_in_another_process() -> None:
    script = Path(__file__).parent.parent / "generate.py"
    run = [sys.executable, str(script), "-n", "3", "-k", "4", "--seed", "7"]
    lines = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    expected = [
        {"seed": HELD_OUT + 7 + i, **prompt(HELD_OUT + 7 + i, 4).record()} for i in range(3)
    ]
    assert [json.loads(line) for line in lines] == expected


def test_notes_of_a_corpus_come_back() -> None:
    corpus = Corpus(HELD_OUT, 128)
    seen = [s for i in range(50) for s in corpus.prompt(HELD_OUT + i, 4).segments()[1:-1]]
    assert len(set(seen)) < 0.6 * len(seen)
    assert all(seen.count(n.text) <= 50 for n in corpus.notes)


def test_the_vocabulary_is_closed() -> None:
    assert len(set(WORDS)) == len(WORDS) <= VOCABULARY
    assert json.loads(tokenizer_json())["model"]["vocab"] == IDS
