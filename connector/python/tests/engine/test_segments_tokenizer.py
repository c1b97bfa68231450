"""Cuts on the tokens of a real tokenizer: nothing depends on what it merges across a boundary."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from engine.real_tokenizer import MISSING, SEPARATOR, real_tokenizer
from spliced_connector import cuts
from spliced_connector.segments import (
    Chunker,
    Finder,
    Lengths,
    Separators,
    Template,
    breaks_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = [pytest.mark.engine, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

SYLLABLES = [
    "ba",
    "ler",
    "un",
    "tion",
    "é",
    "ström",
    "42",
    "-",
    "\n",
    ". ",
    "的",
    "ing",
    "q",
    "\n\n",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return real_tokenizer()


@pytest.fixture(scope="module")
def finder(tokenizer: PreTrainedTokenizerFast) -> Finder:
    return Finder(
        Separators.of([SEPARATOR], tokenizer),
        Template.of(tokenizer),
        Chunker(Lengths(), breaks_of(tokenizer)),
    )


def text_of(seed: int, syllables: int) -> str:
    """Words of many tokens and few, without spaces at its ends, so that what is beside merges."""
    rng = random.Random(seed)
    return "x" + "".join(rng.choice([*SYLLABLES, " "]) for _ in range(syllables)) + "x"


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def segments(ids: Sequence[int], at: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return (tuple(ids[a:b]) for a, b in pairwise(at))


def test_the_vocabulary_is_the_real_one(tokenizer: PreTrainedTokenizerFast) -> None:
    """The ids that the package's own page names."""
    ids = ids_of(tokenizer, "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ")
    assert ids[:12] == [9419, 0, 220, 97169, 97621, 6115, 16, 478, 220, 16, 283, 220]
    assert ids_of(tokenizer, "<|im_start|><think></think>") == [248045, 248068, 248069]


def test_texts_do_merge_across_their_boundary(tokenizer: PreTrainedTokenizerFast) -> None:
    """Else the tests below would prove nothing."""
    merged = 0
    for seed in range(50):
        left, right = text_of(seed, 30), text_of(seed + 100, 30)
        apart = ids_of(tokenizer, left) + ids_of(tokenizer, right)
        merged += ids_of(tokenizer, left + right) != apart
    assert merged > 20


def test_marks_of_the_family_are_learnt(tokenizer: PreTrainedTokenizerFast) -> None:
    template = Template.of(tokenizer)
    names = set(tokenizer.convert_ids_to_tokens(sorted(template.begins)))
    assert names == {"<|im_start|>", "<tool_call>", "<tool_response>"}
    assert not template.ends


@pytest.mark.parametrize("seed", range(20))
def test_between_separators_a_text_has_the_same_tokens_beside_anything(
    tokenizer: PreTrainedTokenizerFast, finder: Finder, seed: int
) -> None:
    text = text_of(seed, 120)
    alone = ids_of(tokenizer, f"{SEPARATOR}{text}{SEPARATOR}")
    assert finder.find(alone).warming
    prompt = f"{text_of(seed + 50, 40)}{SEPARATOR}{text}{SEPARATOR}{text_of(seed + 60, 40)}"
    inside = ids_of(tokenizer, prompt)
    warm = set(segments(alone, finder.find(alone).cuts)) - {(alone[0],)}
    assert len(warm) == 1
    assert warm <= set(segments(inside, finder.find(inside).cuts))


@pytest.mark.parametrize("seed", range(10))
def test_a_client_cuts_the_prompt_as_it_is_tokenised_whole(
    tokenizer: PreTrainedTokenizerFast, seed: int
) -> None:
    """Texts of a list stand side by side and merge: the tokens are those of the server, every cut
    lies between two of them, and the token that covers both texts stays with the former."""
    texts = [text_of(100 * seed + i, 150) for i in range(4)]
    content = [{"type": "text", "text": text} for text in texts]
    messages = [{"role": "user", "content": content}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "".join(texts) in prompt
    ids = ids_of(tokenizer, prompt)
    at = cuts(messages, tokenizer)
    assert at[0] == 0
    assert 5 <= len(at) <= 8
    assert [token for part in segments(ids, [*at, len(ids)]) for token in part] == ids
    place = prompt.index(texts[0])
    for text in texts[:-1]:
        place += len(text)
        lengths = [len(tokenizer.decode(ids[:cut])) for cut in at]
        assert min(length for length in lengths if length >= place) - place <= 12


def test_a_client_cuts_by_a_tokenizer_written_in_python() -> None:
    """Those of transformers say nothing of where their tokens lie; this one's tokens are bytes."""
    from transformers import ByT5Tokenizer

    slow = ByT5Tokenizer(extra_special_tokens=["<|im_start|>", "<|im_end|>"])
    slow.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    passages = [f"Strömung, 的, passage {i}: " + text_of(i, 40) for i in range(3)]
    messages = [{"role": "user", "content": passage} for passage in passages]
    prompt = slow.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = slow(prompt, add_special_tokens=False)["input_ids"]
    parts = {slow.decode(part) for part in segments(ids, cuts(messages, slow))}
    assert set(passages) <= parts


def test_an_agents_results_are_the_same_segments_in_another_session(
    tokenizer: PreTrainedTokenizerFast, finder: Finder
) -> None:
    result = text_of(1, 300)

    def session(seed: int) -> list[int]:
        call = {"id": "c", "type": "function", "function": {"name": "cat", "arguments": {}}}
        talk = [
            {"role": "system", "content": text_of(seed, 100)},
            {"role": "user", "content": text_of(seed + 1, 20)},
            {"role": "assistant", "content": "", "tool_calls": [call, call]},
            {"role": "tool", "content": text_of(seed + 2, 200)},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": text_of(seed + 3, 200)},
        ]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        return ids_of(tokenizer, text)

    one, other = session(10), session(20)
    common = set(segments(one, finder.find(one, ["template"]).cuts))
    common &= set(segments(other, finder.find(other, ["template"]).cuts))
    assert any(result in tokenizer.decode(part) for part in common)


def test_a_passage_is_found_without_marks_and_beside_anything(
    tokenizer: PreTrainedTokenizerFast, finder: Finder
) -> None:
    passages = [text_of(i, 250).replace("\n\n", " ") for i in range(6)]

    def prompt(order: Sequence[int]) -> list[int]:
        shown = "\n\n".join(passages[i] for i in order)
        said = [{"role": "user", "content": f"Answer from these.\n\n{shown}\n\nWho was it?"}]
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return ids_of(tokenizer, text)

    one, other = prompt([0, 1, 2, 3]), prompt([4, 3, 1, 5])
    common = set(segments(one, finder.find(one).cuts))
    common &= set(segments(other, finder.find(other).cuts))
    shared = sum(map(len, common))
    assert shared >= 0.85 * sum(len(ids_of(tokenizer, passages[i])) for i in (1, 3))


def test_finding_takes_a_time_in_proportion(
    tokenizer: PreTrainedTokenizerFast, finder: Finder
) -> None:
    """No measurement: a hundred times of what it takes would still pass."""
    ids = ids_of(tokenizer, text_of(7, 40_000))
    began = time.process_time()
    assert finder.find(ids).cuts
    assert time.process_time() - began < 20e-3 * len(ids) / 1000
