"""Prompts of a file: what is read of each form, and what is said of bad lines."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from spliced_connector.fidelity.prompts import PromptError, Reader, Sample
from spliced_connector.segments import Chunker, Finder, Lengths, Template
from toy_tokenizers import WordTokenizer, chatml

WORDS = 500


def reader(tokenizer: WordTokenizer | None = None, finder: Finder | None = None) -> Reader:
    made = tokenizer or chatml()
    found = finder or Finder(template=Template.of(made), chunks=Chunker(Lengths(16, 64, 128)))
    return Reader(WORDS, lambda: made, lambda: found)


def read(path: Path, *records: object, by: Reader | None = None) -> list[Sample]:
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    path.write_text("\n".join(lines) + "\n")
    return list((by or reader()).read(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_ids_and_cuts_are_taken_as_they_are(path: Path) -> None:
    found = read(path, {"ids": [5, 6, 7, 8], "cuts": [0, 2, 3]}, "", {"ids": [1, 2], "cuts": []})
    assert found == [Sample(1, (5, 6, 7, 8), (0, 2, 3)), Sample(3, (1, 2), ())]


def test_pieces_are_tokenized_as_one_text(path: Path) -> None:
    tokenizer = chatml()
    pieces = ["Answer briefly. ", "First pass", "age here.", " Second one.", " Who?"]
    (found,) = read(path, {"segments": pieces}, by=reader(tokenizer))
    assert list(found.ids) == tokenizer.encode("".join(pieces))
    # "passage" is one token: it stays with the piece that it begins in.
    begins = [tokenizer.decode(found.ids[cut : cut + 2]) for cut in found.cuts]
    assert begins == ["Answer ", "First ", " here", " Second", " Who"]
    (same,) = read(path, {"segments": pieces, "text": "".join(pieces)}, by=reader(tokenizer))
    assert same == found


def test_special_tokens_around_a_text_move_the_cuts(path: Path) -> None:
    class Marking(WordTokenizer):
        def __call__(
            self,
            text: str,
            *,
            add_special_tokens: bool = True,
            return_offsets_mapping: bool = False,
        ) -> dict[str, list[object]]:
            plain = super().__call__(text)
            marks = [0] if add_special_tokens else []
            nowhere: list[object] = [(0, 0)] if add_special_tokens else []
            return {
                "input_ids": [*marks, *plain["input_ids"], *marks],
                "offset_mapping": [*nowhere, *plain["offset_mapping"], *nowhere],
            }

    tokenizer = chatml()
    marking = Marking(tokenizer.added, tokenizer.render)
    (plain,) = read(path, {"segments": ["a b ", "c d ", "e"]}, by=reader(tokenizer))
    (found,) = read(path, {"segments": ["a b ", "c d ", "e"]}, by=reader(marking))
    assert plain.cuts == (0, 4, 8)
    assert found.cuts == (0, 5, 9)
    assert len(found.ids) == len(plain.ids) + 2


def test_one_piece_has_no_segments(path: Path) -> None:
    (found,) = read(path, {"segments": ["Who is there?"]})
    assert found.cuts == ()


def test_messages_are_cut_by_the_finders(path: Path) -> None:
    long = " ".join(["word"] * 100)
    messages = [{"role": "system", "content": long}, {"role": "user", "content": long}]
    tokenizer = chatml()
    (found,) = read(path, {"messages": messages}, by=reader(tokenizer))
    text = tokenizer.decode(found.ids)
    assert text.endswith("<|im_start|>assistant\n")
    mark = tokenizer.ids["<|im_start|>"]
    assert set(found.cuts) > {0} | {i for i, t in enumerate(found.ids[:300]) if t == mark and i}


def test_texts_and_ids_without_cuts_are_cut_by_the_finders(path: Path) -> None:
    chunks = Finder(chunks=Chunker(Lengths(16, 64, 128)))
    ids = [i * 7 % 500 for i in range(400)]
    found = read(path, {"ids": ids}, {"text": "so " * 200}, by=reader(finder=chunks))
    assert all(len(sample.cuts) > 2 and sample.cuts[0] == 0 for sample in found)
    assert found[0].ids == tuple(ids)


BAD = [
    ("[1, 2]", "list, want an object"),
    ("{", "Expecting property name"),
    ("{}", "neither ids, segments, text nor messages"),
    ({"ids": [1], "cut": [0]}, "unknown cut: a prompt of ids has cuts, ids"),
    ({"ids": [1, 500]}, r"ids\[1\]: 500, want 0 to 499"),
    ({"ids": [True]}, r"ids\[0\]: True"),
    ({"ids": "abc"}, "ids: str, want a list"),
    ({"ids": []}, "empty prompt"),
    ({"ids": [1, 2, 3], "cuts": [0, 3]}, r"cuts\[1\]: 3, want 0 to 2"),
    ({"ids": [1, 2, 3], "cuts": [1, 1]}, r"cuts\[1\]: 1 is followed by|1 is followed by 1"),
    ({"segments": ["a", 3]}, r"segments\[1\]: 3, want a text"),
    ({"segments": []}, "empty prompt"),
    ({"segments": ["a ", "b"], "text": "a c"}, "text: it is not its segments put together"),
    ({"segments": ["pass", "age"]}, r"segments\[1\]: the question has no token to itself"),
    ({"text": 3}, "text: int, want a text"),
    ({"text": ""}, "empty prompt"),
    ({"messages": ["hello"]}, r"messages\[0\]: str, want an object"),
    ({"messages": [{"content": "x"}]}, "messages: the chat template refuses them"),
    ({"messages": [], "chat_template_kwargs": 3}, "chat_template_kwargs: int, want an object"),
]


@pytest.mark.parametrize(("line", "wrong"), BAD)
def test_a_bad_line_is_named(path: Path, line: object, wrong: str) -> None:
    with pytest.raises(PromptError, match=wrong) as raised:
        read(path, {"ids": [1]}, line)
    assert str(raised.value).startswith(f"{path}:2: ")


def test_text_in_another_encoding_is_named(path: Path) -> None:
    path.write_bytes('{"text": "ü"}'.encode("latin-1"))
    with pytest.raises(PromptError, match=r"prompts\.jsonl:1: 'utf-8' codec"):
        list(reader().read(path))


def test_a_tokenizer_is_needed_for_texts_alone(path: Path) -> None:
    def missing(what: str) -> WordTokenizer:
        raise ValueError(f"no {what}")

    bare = Reader(WORDS, partial(missing, "tokenizer"), lambda: Finder())
    assert read(path, {"ids": [1, 2, 3], "cuts": [0, 2]}, by=bare)[0].cuts == (0, 2)
    with pytest.raises(PromptError, match="1: no tokenizer"):
        read(path, {"segments": ["a ", "b"]}, by=bare)
