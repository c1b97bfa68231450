"""Client traffic: questions with documents, chats about documents, and agents that read files.

The documents are sections of this project's pages. The clients are plain users of the OpenAI chat
API, without knowledge of segments.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SYSTEM = (
    "You answer questions about a cache daemon for language models. Use the documents that are"
    " given, quote the settings that you name, and say so when they do not tell. Be short."
)
_AGENT = (
    "You are an agent that reads the pages of a project to solve a task. Call read_page with the"
    " name of a page; when you have read enough, answer in one sentence."
)

Message = dict[str, object]


@dataclass(frozen=True)
class Document:
    title: str
    text: str


@dataclass(frozen=True)
class Request:
    """One call of the API. kind: rag, chat or agent. name: identifies the call in a table. turn:
    the number of the turn in its conversation, from 1; 0 if the call belongs to no conversation."""

    kind: str
    name: str
    messages: list[Message]
    turn: int = 0


def pages() -> list[str]:
    """Returns all text, for a tokenizer."""
    return [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]


def documents(count: int, least: int = 1500, most: int = 3500) -> list[Document]:
    """Returns sections of the pages, of `least` to `most` characters each (longer ones are cut),
    in a seeded order."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        for part in re.split(r"\n(?=##+ )", path.read_text()):
            title, _, text = part.strip().partition("\n")
            if len(text) >= least:
                cut = text.rfind("\n", 0, most) if len(text) > most else len(text)
                found.append(Document(f"{path.stem}: {title.strip('# ')}", text[:cut].strip()))
    random.Random(1).shuffle(found)
    return found[:count]


def questions(pool: Sequence[Document], requests: int, each: int) -> list[Request]:
    """Simulates a retriever: every question has `each` documents of the pool, in varying order."""
    rng = random.Random(2)
    out = []
    for i in range(requests):
        chosen = rng.sample(list(pool), each)
        given = "\n\n".join(f"## {d.title}\n\n{d.text}" for d in chosen)
        asked = f"\n\nQuestion {i + 1}: what follows from “{rng.choice(chosen).title}” for a user?"
        messages: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": given + asked},
        ]
        out.append(Request("rag", f"question {i + 1}", messages))
    return out


def chats(pool: Sequence[Document], users: int, turns: int) -> list[Request]:
    """Simulates users who each talk about three documents, some of them shared with other
    users."""
    rng = random.Random(4)
    out = []
    for user in range(users):
        chosen = rng.sample(list(pool), 3)
        given = "\n\n".join(f"## {d.title}\n\n{d.text}" for d in chosen)
        messages: list[Message] = [{"role": "system", "content": f"{_SYSTEM}\n\n{given}"}]
        for turn in range(1, turns + 1):
            document = rng.choice(chosen)
            sentences = document.text.split(". ")
            asked = f"User {user + 1} asks: what does “{document.title}” mean for me?"
            messages.append({"role": "user", "content": asked})
            out.append(Request("chat", f"user {user + 1}, turn {turn}", list(messages), turn))
            said = ". ".join(rng.sample(sentences, min(4, len(sentences))))
            messages.append({"role": "assistant", "content": said})
    return out


def agents(pool: Sequence[Document], tasks: int, steps: int) -> list[Request]:
    """Simulates tasks: conversations that grow with each page read. Tasks share pages."""
    rng = random.Random(3)
    out = []
    for task in range(tasks):
        chosen = rng.sample(list(pool), steps)
        messages: list[Message] = [
            {"role": "system", "content": _AGENT},
            {"role": "user", "content": f"Task {task + 1}: compare {chosen[0].title} to the rest."},
        ]
        for step, page in enumerate(chosen):
            call = {
                "id": f"call-{task}-{step}",
                "type": "function",
                "function": {"name": "read_page", "arguments": json.dumps({"page": page.title})},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": page.text})
            name = f"task {task + 1}, step {step + 1}"
            out.append(Request("agent", name, list(messages), step + 1))
    return out
