"""Segments that a server finds, and cuts that a client computes. No torch, no real tokenizer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

import spliced_connector
from spliced_connector.segments import (
    MOST_CUTS,
    Chunker,
    Finder,
    Found,
    Labels,
    Lengths,
    Separators,
    Template,
    TemplateError,
    breaks_of,
)
from spliced_connector.segments.breaks import Break
from spliced_connector.segments.chunks import minima
from spliced_connector.serving.cuts import read_cuts
from toy_templates import STYLES, Style
from toy_tokenizers import (
    WordTokenizer,
    brackets,
    chatml,
    documents,
    llama3,
    names,
    plain,
)

VOCABULARY = 50_000
LENGTHS = Lengths(32, 128, 512)


def tokens(n: int, seed: int) -> list[int]:
    return [random.Random(f"{seed} {i}").randrange(VOCABULARY) for i in range(n)]


def words(n: int, seed: int) -> str:
    return " ".join(f"w{token}" for token in tokens(n, seed))


# Chunks.


@pytest.mark.parametrize("seed", range(20))
def test_minima_are_those_of_a_plain_search(seed: int) -> None:
    """Dense and sparse places, many equal ranks and few, rising and falling ones."""
    rng = random.Random(seed)
    n = rng.randrange(1, 200)
    places = sorted(rng.sample(range(rng.choice([n, 5 * n])), n))
    ranks = [rng.randrange(rng.choice([1, 3, 1000])) for _ in places]
    if seed % 4 == 0:
        ranks.sort(reverse=seed % 8 == 0)
    distance = rng.randrange(1, 40)
    want = [
        place
        for i, place in enumerate(places)
        if all(
            ranks[i] < ranks[j] or (ranks[i] == ranks[j] and i <= j)
            for j in range(n)
            if abs(places[j] - place) <= distance
        )
    ]
    assert minima(places, ranks, distance) == want


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 512, 513, 1024, 5000])
def test_chunks_keep_their_lengths(n: int) -> None:
    cuts = Chunker(LENGTHS).cuts(tokens(n + 20, 1), 10, 10 + n)
    lengths = [b - a for a, b in pairwise([10, *cuts, 10 + n])]
    assert all(32 <= length <= 512 for length in lengths) or (n < 32 and lengths == [n])
    assert bool(cuts) == (n > 512)


def test_chunks_are_as_long_on_average_as_was_asked() -> None:
    cuts = Chunker(LENGTHS).cuts(tokens(40_000, 2), 0, 40_000)
    assert 110 <= 40_000 / len(cuts) <= 160


def test_one_token_repeated_is_cut_at_the_longest_length() -> None:
    """No place is better than another, and the time stays in proportion."""
    assert Chunker(LENGTHS).cuts([7] * 2000, 0, 2000) == [32, 544, 1056, 1568]


def test_a_passage_has_the_same_cuts_wherever_it_stands() -> None:
    passage = tokens(4000, 3)
    chunker = Chunker(LENGTHS)
    found = []
    for seed, front in ((4, 700), (5, 1111), (6, 64)):
        ids = tokens(front, seed) + passage + tokens(300, seed + 10)
        cuts = chunker.cuts(ids, 0, len(ids))
        found.append([cut - front for cut in cuts])
    inside = [{cut for cut in cuts if 256 <= cut < 4000 - 256} for cuts in found]
    assert inside[0] == inside[1] == inside[2]
    assert len(inside[0]) > 20


@pytest.mark.parametrize("seed", range(5))
def test_an_edit_moves_only_its_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    ids = tokens(8000, 20 + seed)
    at = rng.randrange(2000, 6000)
    edited = ids[:at] + tokens(rng.randrange(40), 50) + ids[at + rng.randrange(1, 40) :]
    moved = len(edited) - len(ids)
    chunker = Chunker(LENGTHS)
    before = chunker.cuts(ids, 0, len(ids))
    behind = chunker.cuts(edited, 0, len(edited))
    assert [c for c in before if c < at - 128] == [c for c in behind if c < at - 128]
    assert [c + moved for c in before if c > at + 256] == [
        c for c in behind if c > at + 256 + moved
    ]


def test_cuts_lie_where_the_text_pauses() -> None:
    """Paragraphs wherever they end, lines and sentences only in what is long."""
    breaks = {1: Break.PARAGRAPH, 2: Break.LINE, 3: Break.SENTENCE}
    chunker = Chunker(LENGTHS, breaks)

    def text(n: int, end: int, seed: int) -> list[int]:
        return [token + 10 for token in tokens(n - 1, seed)] + [end]

    short = text(100, 1, 1) + text(60, 2, 2) + text(80, 1, 3) + text(90, 3, 4) + text(70, 1, 5)
    assert chunker.cuts(short, 0, len(short)) == [100, 240]
    lines = [token for i in range(50) for token in text(20, 2 + i % 2, i)]
    cuts = chunker.cuts(lines, 0, len(lines))
    assert cuts
    assert all(lines[cut - 1] == 2 for cut in cuts)
    sentences = [token for i in range(50) for token in text(20, 3, i)]
    cuts = chunker.cuts(sentences, 0, len(sentences))
    assert cuts
    assert all(sentences[cut - 1] == 3 for cut in cuts)


@pytest.mark.parametrize(
    "style", ["[{}] ", "Document {}: ", "Document [{}](", '<source id="{}">', "{}. ", "- {}) ", ""]
)
def test_a_numbered_passage_is_the_same_under_another_number(style: str) -> None:
    tokenizer = WordTokenizer(("\n\n",), lambda *_: "")
    passages = [words(90, seed) for seed in range(14)]

    def prompt(order: Sequence[int]) -> list[int]:
        shown = [style.format(n) + passages[i] for n, i in enumerate(order, 1)]
        return tokenizer.encode("\n\n".join(["Read this.", *shown, "Who was it?"]))

    one, other = prompt(range(12)), prompt([12, 5, 3, 13, *range(6, 12)])
    chunker = Chunker(LENGTHS, breaks_of(tokenizer), Labels.of(tokenizer))
    cut = [[0, *chunker.cuts(ids, 0, len(ids))] for ids in (one, other)]
    found = [
        {tuple(ids[a:b]) for a, b in pairwise(at)}
        for ids, at in zip((one, other), cut, strict=True)
    ]
    whole = " ".join(tokenizer.decode(part) for part in found[0] & found[1])
    assert all(passages[i] in whole for i in (3, 5, *range(6, 12)))


def test_what_only_looks_like_a_label_is_none() -> None:
    tokenizer = WordTokenizer((), lambda *_: "")
    texts = ["In 1998 the", "1998 was", "one two three four five six seven 8)", "[a]", "(b) 3", ""]
    ids = [tokenizer.encode(text) for text in [*texts, "[12]: x"]]
    labels = Labels.of(tokenizer)
    assert [labels.end(one, 0) for one in ids] == [0] * len(texts) + [3]


def test_chunks_of_impossible_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks of 64 to 32 tokens, 48 on average"):
        Lengths(64, 48, 32)


def test_a_vocabulary_knows_its_breaks() -> None:
    tokenizer = WordTokenizer(
        (".\n\n", "\n", " \n\n \t", "。", "v1.", "word", "a\nb"), lambda *_: ""
    )
    kinds = [breaks_of(tokenizer).get(i, Break.NOTHING) for i in range(len(tokenizer))]
    want = [Break.PARAGRAPH, Break.LINE, Break.PARAGRAPH, Break.SENTENCE, Break.SENTENCE]
    assert kinds == [*want, Break.NOTHING, Break.NOTHING]


# Separators.


def test_separators_are_found_and_the_longest_wins() -> None:
    separators = Separators([[5], [5, 6], [5, 6, 7], [9, 9]])
    assert separators.find([1, 5, 2, 5, 6, 5, 6, 7, 9, 9, 9, 5, 6]) == [
        (1, 2), (3, 5), (5, 8), (8, 10), (11, 13),
    ]  # fmt: skip


def test_a_separator_has_to_be_a_token_of_its_own() -> None:
    tokenizer = chatml()
    assert Separators.of(["<|sep|>", [3, 4]], tokenizer).find([6, 3, 4]) == [(0, 1), (1, 3)]
    with pytest.raises(ValueError, match="'# #': no token of its own"):
        Separators.of(["# #"], tokenizer)
    with pytest.raises(ValueError, match="there is no tokenizer"):
        Separators.of(["<|sep|>"], None)
    with pytest.raises(ValueError, match="empty separator"):
        Separators([[]])
    with pytest.raises(ValueError, match="no separators"):
        Separators([])


def test_segments_between_separators_are_named_without_them() -> None:
    finder = Finder(Separators([[0]]), chunks=Chunker(LENGTHS))
    a, b, question = tokens(700, 1), tokens(100, 2), tokens(30, 3)
    found = finder.find([0, *a, 0, *b, 0, *question])
    assert found.cuts == (0, 1, 701, 702, 802, 803)
    assert found.by == (("separators", 5),)
    assert not found.warming, "a question follows"


@pytest.mark.parametrize(
    ("ids", "warming"),
    [
        ([0, 5, 5, 5, 0], True),
        ([0, 5, 0, 6, 0], True),
        ([5, 5, 0], False),
        ([0, 5, 5], False),
        ([0], False),
        ([5, 0, 5, 0], False),
    ],
)
def test_a_prompt_of_segments_alone_warms(ids: list[int], warming: bool) -> None:
    assert Finder(Separators([[0]])).find(ids).warming == warming


# Templates.


def marks(tokenizer: WordTokenizer) -> tuple[set[str], set[str]]:
    template = Template.of(tokenizer)
    name = {number: word for word, number in tokenizer.get_added_vocab().items()}
    return {name[i] for i in template.begins}, {name[i] for i in template.ends}


@pytest.mark.parametrize(
    ("tokenizer", "begins", "ends"),
    [
        (chatml(), {"<|im_start|>", "<tool_call>", "<tool_response>"}, set()),
        (llama3(), {"<|start_header_id|>"}, set()),
        (brackets(), {"[INST]"}, {"[/INST]"}),
        (names(), {"<User>", "<Assistant>"}, set()),
        (documents(), {"<|start_of_role|>"}, set()),
    ],
    ids=["chatml", "llama3", "brackets", "names", "documents"],
)
def test_marks_are_learnt_from_the_template(
    tokenizer: WordTokenizer, begins: set[str], ends: set[str]
) -> None:
    assert marks(tokenizer) == (begins, ends)


@pytest.mark.parametrize("style", STYLES, ids=[style.name for style in STYLES])
def test_marks_are_learnt_whatever_a_template_shows_around_a_conversation(style: Style) -> None:
    """Instructions with marks of calls, default systems, ends that only some messages have."""
    assert marks(style.tokenizer()) == (style.begins, style.ends)


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (plain(), "no added tokens between messages"),
        (WordTokenizer((), lambda *_: "x"), "no added tokens"),
        (WordTokenizer(("<s>",), lambda *_: "x"), "renders no conversation"),
    ],
)
def test_a_template_without_marks_says_so(tokenizer: WordTokenizer, text: str) -> None:
    with pytest.raises(TemplateError, match=text):
        Template.of(tokenizer)


def said(tokenizer: WordTokenizer, *contents: str) -> list[int]:
    roles = ("system", "user", "assistant", "tool", "tool")
    talk = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text)


def segments(ids: Sequence[int], found: Found) -> set[tuple[int, ...]]:
    return {tuple(ids[a:b]) for a, b in pairwise(found.cuts)}


def test_a_tool_result_is_the_same_segment_behind_anything() -> None:
    tokenizer = chatml()
    finder = Finder(template=Template.of(tokenizer))
    result = words(150, 1)
    first = said(tokenizer, words(80, 2), "Look it up.", "Yes.", result, words(90, 9))
    other = said(tokenizer, words(99, 3), words(70, 4), "I do.", result, words(95, 8))
    common = segments(first, finder.find(first)) & segments(other, finder.find(other))
    assert len(common) == 1
    assert result in tokenizer.decode(common.pop())


def test_short_messages_are_no_segments_of_their_own() -> None:
    tokenizer = chatml()
    finder = Finder(template=Template.of(tokenizer))
    ids = said(tokenizer, "Be short.", "Hello there.", "Hi!", "none")
    assert finder.find(ids) == Found()
    ids = said(tokenizer, "Be short.", "Hello there.", words(100, 1), "none")
    cuts = finder.find(ids).cuts
    assert len(cuts) == 3
    assert cuts[2] - cuts[1] >= 200


# All together.


def test_what_stands_further_up_wins() -> None:
    """Between separators nothing else cuts but the template; chunks fill what is left."""
    tokenizer = chatml()
    passage, long = words(1500, 1), words(1500, 2)
    text = f"<|im_start|>user\n<|sep|>{passage}<|sep|>{long}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text)
    finder = Finder(Separators.of(["<|sep|>"], tokenizer), Template.of(tokenizer), Chunker(LENGTHS))
    assert finder.names == ("separators", "template", "chunks")
    found = finder.find(ids)
    by = dict(found.by)
    assert by["separators"] == 4
    assert by["template"] == 1
    assert by["chunks"] > 5
    assert tuple(tokenizer.encode(passage)) in segments(ids, found)
    assert dict(finder.find(ids, ["separators"]).by) == {"separators": 4}
    assert dict(finder.find(ids, ["chunks"]).by)["chunks"] > by["chunks"]
    assert finder.find(ids, []) == Found()


def test_cuts_are_bounded_and_leave_a_question() -> None:
    finder = Finder(Separators([[0]]), chunks=Chunker(Lengths(1, 2, 4)), most=100)
    rng = random.Random(1)
    for n in (1, 2, 3, 50, 1000):
        ids = [rng.randrange(4) for _ in range(n)]
        cuts = finder.find(ids).cuts
        assert len(cuts) <= 100
        assert len(cuts) != 1
        assert all(a < b for a, b in pairwise(cuts))
        assert not cuts or (cuts[0] == 0 and cuts[-1] < n)


# Clients.


def test_a_client_names_messages_and_the_texts_of_a_list() -> None:
    tokenizer = chatml()
    passages = [words(100, i) for i in range(3)]
    content = [{"type": "text", "text": text} for text in (*passages, "Which one?")]
    system: dict[str, object] = {"role": "system", "content": words(90, 9)}
    messages: list[dict[str, object]] = [system, {"role": "user", "content": content}]
    cuts = spliced_connector.cuts(messages, tokenizer)
    joined = "\n".join([*passages, "Which one?"])
    sent: list[dict[str, object]] = [system, {"role": "user", "content": joined}]
    text = tokenizer.apply_chat_template(sent, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    pieces = {tokenizer.decode(ids[a:b]) for a, b in pairwise(cuts)}
    assert set(passages) <= pieces
    assert cuts[0] == 0
    assert cuts[-1] < len(ids)


def test_a_client_whose_template_has_no_marks_names_its_texts() -> None:
    tokenizer = plain()
    messages = [{"role": "user", "content": words(100, 1)}, {"role": "user", "content": "And?"}]
    cuts = spliced_connector.cuts(messages, tokenizer)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    assert words(100, 1) in {tokenizer.decode(ids[a:b]) for a, b in pairwise(cuts)}


def test_a_client_with_nothing_to_name_names_nothing() -> None:
    assert spliced_connector.cuts([{"role": "user", "content": "Hi."}], chatml()) == []


def long_chat(n: int, longest: int) -> list[dict[str, object]]:
    """Messages of 30 words, every tenth of the first `longest` ones of 60."""
    lengths = [60 if i % 10 == 0 and i < longest else 30 for i in range(n)]
    return [
        {
            "role": "assistant" if i % 2 else "user",
            "content": " ".join(f"w{i}at{j}" for j in range(length)),
        }
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("n", [600, 682, 683, 700, 3000])
def test_a_client_names_no_more_cuts_than_a_server_takes(n: int) -> None:
    tokenizer = chatml()
    messages = long_chat(n, n)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    cuts = spliced_connector.cuts(messages, tokenizer)
    read = read_cuts({"spliced": {"v": 1, "cuts": cuts}}, len(ids), 8)
    assert read is not None
    assert read.cuts == tuple(cuts)
    assert cuts[0] == 0
    if n > 683:
        assert len(cuts) >= MOST_CUTS - 1
    parts = {tuple(ids[a:b]) for a, b in pairwise(cuts)}
    longest = {tuple(tokenizer.encode(str(m["content"]))) for m in messages[:n:10]}
    assert longest <= parts


def test_the_segments_of_a_chat_that_has_grown_are_those_of_before() -> None:
    tokenizer = chatml()
    pieces = []
    for n in (2000, 2002):
        messages = long_chat(n, 2000)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text)
        found = spliced_connector.cuts(messages, tokenizer)
        pieces.append({tuple(ids[a:b]) for a, b in pairwise(found)})
    assert len(pieces[0] & pieces[1]) >= len(pieces[0]) - 4


@dataclass
class PythonTokenizer(WordTokenizer):
    """Says nothing of where its tokens lie; words that are no ASCII are tokens by the byte, and
    spaces before a word are not shown."""

    raises: bool = False
    mute: bool = False

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False
    ) -> Mapping[str, Sequence[object]]:
        if return_offsets_mapping and self.raises:
            raise NotImplementedError
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for found in self._words.finditer(text):
            one = found[0]
            ids += [-1 - b for b in one.encode()] if not one.isascii() else [self._id(one)]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        words = list(self.ids)
        shown = b"".join(bytes([-1 - i]) if i < 0 else words[i].encode() for i in token_ids).decode(
            errors="replace"
        )
        return "?" if self.mute else shown.lstrip(" ")


@pytest.mark.parametrize("raises", [False, True])
def test_a_client_cuts_by_a_tokenizer_that_does_not_say_where_its_tokens_lie(raises: bool) -> None:
    plain = chatml()
    tokenizer = PythonTokenizer(plain.added, plain.render, raises=raises)
    passages = [f"第{i}段。" + words(90, i) + " \ufffd \ufffd\ufffd é" for i in range(3)]
    passages[1] = words(100, 1)
    content = [{"type": "text", "text": text} for text in (*passages, "Which one?")]
    messages: list[dict[str, object]] = [
        {"role": "system", "content": words(90, 9)},
        {"role": "user", "content": content},
    ]
    cuts = spliced_connector.cuts(messages, tokenizer)
    joined = "\n".join([*passages, "Which one?"])
    sent: list[dict[str, object]] = [messages[0], {"role": "user", "content": joined}]
    text = tokenizer.apply_chat_template(sent, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    parts = {tokenizer.decode(ids[a:b]) for a, b in pairwise(cuts)}
    assert {words(90, 9), *passages} <= parts


def test_a_client_cuts_at_marks_where_tokens_do_not_show_the_text() -> None:
    plain = chatml()
    tokenizer = PythonTokenizer(plain.added, plain.render, mute=True)
    messages: list[dict[str, object]] = [
        {"role": role, "content": words(90, i)} for i, role in enumerate(("system", "user"))
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    starts = [i for i, token in enumerate(ids) if token == tokenizer.ids["<|im_start|>"]]
    assert spliced_connector.cuts(messages, tokenizer) == starts


def test_what_is_held_stays_whole() -> None:
    """Boundaries of other finders count up to its edges, and those inside of it do not."""
    ids = [1, 0, *([1] * 98), 0, *([1] * 99), 0, *([1] * 100)]
    finder = Finder(Separators([[0]]), known=True)
    held = [(50, 150), (150, 170)]
    found = finder.find(ids, held=held)
    assert found.cuts == (0, 1, 2, 50, 150, 170, 200, 201)
    assert dict(found.by) == {"known": 3, "separators": 4}
    assert finder.find(ids, held=[(0, 100)]).cuts == (0, 100, 101, 200, 201)
    assert finder.find(ids).cuts == (0, 1, 2, 100, 101, 200, 201)
    chunked = Finder(chunks=Chunker(Lengths(16, 32, 64)), known=True).find(ids, held=held)
    assert set(chunked.cuts) & set(range(51, 150)) == set()
