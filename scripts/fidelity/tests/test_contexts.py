"""Ways of `contexts.py` that must give what a full prefill gives, and others that must not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contexts import PROMPT, ROWS, TUPLES, USUAL, Asked, Contexts, Way  # noqa: E402
from distances import measured  # noqa: E402
from measure import MODEL, in_contexts  # noqa: E402
from primers import texts  # noqa: E402
from questions import generate, lexicon, question  # noqa: E402
from serve import CPU  # noqa: E402
from ways import FULL, SPLICED  # noqa: E402

from spliced_connector.walk import Context, prefill  # noqa: E402


@pytest.fixture(scope="module")
def asked(model: Path) -> Asked:
    contexts = in_contexts(model, "oracles")
    assert isinstance(contexts, Contexts)
    return Asked(contexts, question(11, 3, generate.shape_of(model)))


@pytest.fixture(scope="module")
def full(asked: Asked) -> torch.Tensor:
    context = Context(asked.contexts.arch, len(asked.ids), CPU)
    return asked.read(prefill(asked.contexts.arch, asked.ids, context))


@pytest.mark.parametrize(
    "way",
    [
        Way("captured after the prompt", PROMPT, first=True),
        Way("all parts exact", exact=ROWS + TUPLES),
        Way("all in context", USUAL, context="asked", share=1.0),
    ],
    ids=lambda w: w.name,
)
def test_what_is_exact_gives_the_full_prefill(asked: Asked, full: torch.Tensor, way: Way) -> None:
    assert float((asked.answered(way) - full).abs().max()) <= 1e-3


@pytest.mark.parametrize(
    "way",
    [
        Way("alone"),
        Way("primed", USUAL),
        Way("exact rows", exact=ROWS),
        Way("exact tuples", exact=TUPLES),
        Way("one layer", exact=ROWS + TUPLES, layer=3),
        Way("last note", context="last"),
    ],
    ids=lambda w: w.name,
)
def test_what_is_not_exact_does_not(asked: Asked, full: torch.Tensor, way: Way) -> None:
    assert float((asked.answered(way) - full).abs().max()) > 1e-2


def test_the_questions_attention_is_a_share_of_rows_heads_and_layers(asked: Asked) -> None:
    layers = [i for i, d in enumerate(asked.contexts.arch.identity.layers) if d.kind.attends]
    most = len(layers) * 4 * (len(asked.q.ids) - asked.q.cuts[-1])
    assert 0.2 * most < float(asked.attention.sum()) < most
    assert len(asked.attention) == 3


def test_as_many_notes_are_in_context_as_come_nearest_to_the_share() -> None:
    way = Way("", context="asked", share=0.3)
    assert [way.notes_in_context(_cuts(n)) for n in (2, 3, 4, 5, 6, 12)] == [1, 1, 1, 2, 2, 4]
    assert replace(way, share=0.0).notes_in_context(_cuts(6)) == 1
    assert Way("").notes_in_context(_cuts(6)) == 0


def test_as_many_last_notes_are_in_context_as_an_engine_refreshes() -> None:
    way = Way("", context="last", share=0.15)
    assert [way.notes_in_context(_cuts(n)) for n in (2, 6, 7, 12)] == [1, 1, 2, 2]


def _cuts(notes: int) -> tuple[int, ...]:
    """Cuts of a prompt with an instruction of 15 tokens and notes of 100."""
    return (0, *(15 + 100 * i for i in range(notes + 1)))


def test_primers_have_the_lengths_that_they_are_named_by() -> None:
    found = {p.name: p.ids for p in texts(generate.shape_of(MODEL))}
    assert len(found) == 23
    for name, ids in found.items():
        if "tokens" in name:
            assert len(ids) == int(name.split()[-2])
    assert sorted(found["shuffled notes, 128 tokens"]) != sorted(found["notes, 128 tokens"])
    assert len(set(found["random words, 512 tokens"])) > 200
    items = set(lexicon.encode(" ".join(set(lexicon.VALUES["item"]) - {"ring"})))
    assert items & set(found["notes, 256 tokens"])
    assert items & set(found["hand-overs, 64 tokens"])
    assert not items & set(found["notes without hand-overs, 512 tokens"])


def test_half_of_the_distance_removed_is_told_as_half() -> None:
    row = {
        "answers": {
            FULL: [True, 1, [-1.0, -2.0], 0.0],
            SPLICED: [False, 2, [-1.4, -2.2], 0.1],
            "better": [True, 1, [-1.2, -1.9], 0.1],
        }
    }
    found = measured([row] * 9, "better")
    assert found["distance"]["value"] == pytest.approx(0.15)  # type: ignore[index]
    assert found["removed"]["value"] == pytest.approx(0.5)  # type: ignore[index]
    assert found["agreement gained"]["value"] == 1.0  # type: ignore[index]
