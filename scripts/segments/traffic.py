"""Prompts of unmodified chat clients, made from public data sets.

A message's content is a list of adjacent texts. The server sees them as one text; a client with
hand-made cuts would name the boundaries.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Message = dict[str, object]

MARK = "<|file_sep|>"
"""A separator that is one token in the vocabulary."""

_ASSISTANT = "Answer the question from the passages. Say so when they do not tell. Be short."


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival. marked: whether hand-made cuts are at special tokens, which are
    separators or belong to the chat template. ways: the finders to try."""

    name: str
    about: str
    marked: bool
    ways: tuple[str, ...]
    prompts: Callable[[Path], Iterator[list[Message]]]


def read(data: Path, name: str) -> str:
    """Returns the text of a file of the data directory. Raises OSError if it is missing."""
    path = data / f"{name}.zst"
    if not path.exists():
        return (data / name).read_text()
    return subprocess.run(["zstd", "-dc", path], capture_output=True, text=True, check=True).stdout


def rows(data: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in read(data, name).splitlines()]


def said(role: str, *texts: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def asked(passages: Sequence[str], question: str, style: str) -> list[Message]:
    """Returns one question with its passages, joined in a style."""
    if style == "marks":
        texts = [part for text in passages for part in (MARK, text)] + [MARK]
    elif style == "numbered":
        texts = [part for i, text in enumerate(passages, 1) for part in (f"[{i}] ", text, "\n\n")]
    else:
        texts = [part for text in passages for part in (text, "\n\n")]
    return [said("system", _ASSISTANT), said("user", *texts, f"Question: {question}")]


def musique(style: str, requests: int = 300) -> Callable[[Path], Iterator[list[Message]]]:
    """Makes prompts with ten passages per question, drawn by Zipf's law. A passage has some 415
    words, without paragraphs."""

    def prompts(data: Path) -> Iterator[list[Message]]:
        questions = rows(data, "musique150.jsonl")
        passages = list(dict.fromkeys(p for q in questions for p in q["ctxs"]))  # type: ignore[attr-defined]
        orders = read(data, "rag_musique_zipf1.csv").splitlines()[:requests]
        for i, line in enumerate(orders):
            chosen = [passages[int(at)] for at in line.split(",")[:-1]]
            yield asked(chosen, str(questions[i % len(questions)]["question"]), style)

    return prompts


def xquad(style: str, requests: int = 600) -> Callable[[Path], Iterator[list[Message]]]:
    """Makes prompts with eight paragraphs per question, as from a retriever: four of the question's
    article, and four random ones."""

    def prompts(data: Path) -> Iterator[list[Message]]:
        articles = json.loads(read(data, "xquad.en.json"))["data"]
        paragraphs = [[p["context"] for p in article["paragraphs"]] for article in articles]
        asks = [
            (i, str(qa["question"]))
            for i, article in enumerate(articles)
            for p in article["paragraphs"]
            for qa in p["qas"]
        ]
        rng = random.Random(1)
        for i, question in rng.sample(asks, requests):
            own = rng.sample(paragraphs[i], 4)
            others = [rng.choice(rng.choice(paragraphs)) for _ in range(4)]
            chosen = [*own, *others]
            rng.shuffle(chosen)
            yield asked(chosen, question, style)

    return prompts


def natural(style: str, requests: int = 250) -> Callable[[Path], Iterator[list[Message]]]:
    """Makes prompts with eight pieces of Wikipedia pages, of some 2,500 characters each, as a text
    splitter makes them."""

    def prompts(data: Path) -> Iterator[list[Message]]:
        pages = rows(data, "leval_natural_question.jsonl")
        pieces = [_pieces(str(page["input"]), 2500) for page in pages]
        rng = random.Random(2)
        for _ in range(requests):
            i = min(int(rng.paretovariate(0.7)) - 1, len(pages) - 1)
            chosen = rng.sample(pieces[i], min(6, len(pieces[i])))
            chosen += [rng.choice(rng.choice(pieces)) for _ in range(8 - len(chosen))]
            question = rng.choice(list(pages[i]["instructions"]))  # type: ignore[call-overload]
            yield asked(chosen, question, style)

    return prompts


def _pieces(text: str, most: int) -> list[str]:
    """Returns runs of HTML blocks of at most `most` characters, cut between words if a block is
    longer. Runs of 400 characters or fewer are dropped."""
    out = [""]
    for block in re.split(r"(?=<(?:P|H\d|Table|Ul)>)", text):
        if len(out[-1]) + len(block) > most and out[-1]:
            out.append("")
        out[-1] += block
        while len(out[-1]) > most:
            cut = out[-1].rfind(" ", 0, most) + 1 or most
            out[-1:] = [out[-1][:cut], out[-1][cut:]]
    return [piece.strip() for piece in out if len(piece) > 400]


def agents(
    shown: int | None, sessions: int = 8, turns: int = 16
) -> Callable[[Path], Iterator[list[Message]]]:
    """Makes prompts of an agent that solves issues, call by call. shown: how many results stay in
    the prompt, None for all. A line replaces older results, as agents do to limit the length."""

    def prompts(data: Path) -> Iterator[list[Message]]:
        roles = {"s": "system", "u": "user", "a": "assistant"}
        for session in rows(data, "swe_mini_traj.jsonl")[:sessions]:
            messages = [(roles[role], text) for role, text in session["msgs"]]  # type: ignore[attr-defined]
            calls = [i for i, (role, _) in enumerate(messages) if role == "assistant"][:turns]
            for call in calls:
                results = [i for i in range(2, call) if messages[i][0] == "user"]
                old = set(results[:-shown] if shown else ())
                yield [
                    said(role, "(result left out)" if i in old else text)
                    for i, (role, text) in enumerate(messages[:call])
                ]

    return prompts


def chats(data: Path) -> Iterator[list[Message]]:
    """Yields prompts of users who talk about a few documents. A line of the system prompt names the
    user, and the client sends only the last six turns. Both end an exact prefix early."""
    talks = rows(data, "leval_quality.jsonl") + rows(data, "leval_natural_question.jsonl")
    rng = random.Random(3)
    for user in range(30):
        talk = talks[min(int(rng.paretovariate(0.7)) - 1, len(talks) - 1)]
        document = str(talk["input"])[:24_000]
        pairs = list(zip(talk["instructions"], talk["outputs"], strict=True))  # type: ignore[call-overload]
        rng.shuffle(pairs)
        spoken: list[Message] = []
        for question, answer in pairs[:8]:
            spoken.append(said("user", str(question)))
            system = f"You help user {user} with a document. Be short.", f"\n\n{document}"
            yield [said("system", *system), *spoken[-11:]]
            spoken.append(said("assistant", f"{answer}. {_elaborate(rng)}"))


def _elaborate(rng: random.Random) -> str:
    words = "the document tells this where it first speaks of who was there and what they did"
    return " ".join(rng.choice(words.split()) for _ in range(90)) + "."


TRAFFIC = (
    Traffic("MuSiQue", "10 passages behind separators", True, ("separators",), musique("marks")),
    Traffic("XQuAD", "8 paragraphs behind separators", True, ("separators",), xquad("marks")),
    Traffic(
        "Natural Questions",
        "8 pieces of pages behind separators",
        True,
        ("separators",),
        natural("marks"),
    ),
    Traffic(
        "agents", "SWE sessions, all results", True, ("template", "chunks", "known"), agents(None)
    ),
    Traffic(
        "agents, results dropped",
        "SWE sessions, the last 5 results",
        True,
        ("template", "chunks", "known"),
        agents(5),
    ),
    Traffic(
        "MuSiQue", "10 passages, a blank line between", False, ("chunks", "known"), musique("plain")
    ),
    Traffic("MuSiQue", "10 passages with numbers", False, ("chunks", "known"), musique("numbered")),
    Traffic(
        "XQuAD", "8 paragraphs, a blank line between", False, ("chunks", "known"), xquad("plain")
    ),
    Traffic(
        "Natural Questions",
        "8 pieces, a blank line between",
        False,
        ("chunks", "known"),
        natural("plain"),
    ),
    Traffic(
        "chats", "a document behind the user's name, 6 turns", False, ("chunks", "known"), chats
    ),
)
