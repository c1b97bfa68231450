"""Reads the prompts of a file, one JSON object a line, in one of three forms.

    {"ids": [1, 2, ...], "cuts": [0, 120, 480]}
    {"segments": ["instruction", "passage", ..., "question"]}
    {"messages": [{"role": "user", "content": "..."}], "tools": [...]}

cuts are token positions, as in a request to a server; the question follows the last cut. segments
are pieces of one text, which is tokenized as a whole. `text` may repeat that text, or be given
without segments. messages go through the chat template, together with `tools`, `documents` and
`chat_template_kwargs`. If a prompt has no cuts, the finders look for them, as in a server.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import cast

from spliced_connector.segments import Finder, Tokenizer, located
from spliced_connector.serving.cuts import CutsError, read_cuts

_FORMS: Mapping[str, frozenset[str]] = {
    "ids": frozenset({"ids", "cuts"}),
    "segments": frozenset({"segments", "text"}),
    "text": frozenset({"text"}),
    "messages": frozenset({"messages", "tools", "documents", "chat_template_kwargs"}),
}


class PromptError(ValueError):
    """A line of the file cannot be read as a prompt; the text begins with the file and the line."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt. `line` is its line of the file, from 1. `cuts` are ascending token positions, the
    last of them before the last token; () if the prompt has no segments."""

    line: int
    ids: tuple[int, ...]
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads prompts for one model. vocabulary: token ids are below it. tokenizer and finder are
    called when a prompt needs them; they may raise ValueError."""

    vocabulary: int
    tokenizer: Callable[[], Tokenizer]
    finder: Callable[[], Finder]

    def read(self, path: Path) -> Iterator[Sample]:
        """Yields the prompts of a file in order; empty lines are skipped. Raises PromptError."""
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    ids, cuts = self._parse(json.loads(line))
                except (ValueError, RecursionError) as err:  # bad JSON and text too
                    raise PromptError(f"{path}:{number}: {err}") from err
                yield Sample(number, ids, cuts)

    def _parse(self, record: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns ids and cuts. Raises ValueError."""
        if not isinstance(record, Mapping):
            raise ValueError(f"{type(record).__name__}, want an object")
        form = next((name for name in _FORMS if name in record), None)
        if form is None:
            raise ValueError("neither ids, segments, text nor messages")
        unknown = sorted(str(name) for name in record if name not in _FORMS[form])
        if unknown:
            have = ", ".join(sorted(_FORMS[form]))
            raise ValueError(f"unknown {', '.join(unknown)}: a prompt of {form} has {have}")
        if form == "ids":
            return self._of_ids(record)
        if form == "segments":
            return self._of_segments(record)
        ids = self._of_messages(record) if form == "messages" else self._of_text(record)
        return ids, self._found(ids)

    def _of_ids(self, record: Mapping[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ids = tuple(cast("Sequence[int]", _list(record, "ids")))
        for i, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < self.vocabulary:
                raise ValueError(f"ids[{i}]: {token!r}, want 0 to {self.vocabulary - 1}")
        _not_empty(ids)
        if "cuts" not in record:
            return ids, self._found(ids)
        if not (cuts := _list(record, "cuts")):
            return ids, ()
        try:
            named = read_cuts({"spliced": {"v": 1, "cuts": cuts}}, len(ids), 0)
        except CutsError as err:
            raise ValueError(str(err).removeprefix("spliced.")) from err
        return ids, named.cuts if named else ()

    def _of_segments(self, record: Mapping[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = _list(record, "segments")
        for i, piece in enumerate(pieces):
            if not isinstance(piece, str) or not piece:
                raise ValueError(f"segments[{i}]: {piece!r}, want a text")
        texts = cast("Sequence[str]", pieces)
        whole = "".join(texts)
        if record.get("text", whole) != whole:
            raise ValueError("text: it is not its segments put together")
        ids, begins = located(whole, self.tokenizer(), special=True)
        _not_empty(ids)
        if not begins:
            raise ValueError("the tokenizer does not show where tokens begin: give ids and cuts")
        # A special token has no position in the text, so the tokenizer reports 0. The maximum gives
        # a special token at the end the position of the token before it.
        places = list(accumulate(begins, max))
        edges = accumulate(len(text) for text in texts[:-1])
        cuts = sorted({0, *(bisect_left(places, edge) for edge in edges)})
        if len(texts) > 1 and cuts[-1] >= len(ids):
            raise ValueError(f"segments[{len(texts) - 1}]: the question has no token to itself")
        return tuple(ids), tuple(cuts) if len(cuts) > 1 else ()

    def _of_text(self, record: Mapping[str, object]) -> tuple[int, ...]:
        text = record["text"]
        if not isinstance(text, str):
            raise ValueError(f"text: {type(text).__name__}, want a text")
        return _not_empty(self.tokenizer().encode(text))

    def _of_messages(self, record: Mapping[str, object]) -> tuple[int, ...]:
        messages = _list(record, "messages")
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise ValueError(f"messages[{i}]: {type(message).__name__}, want an object")
        given = record.get("chat_template_kwargs", {})
        if not isinstance(given, Mapping):
            raise ValueError(f"chat_template_kwargs: {type(given).__name__}, want an object")
        variables = {name: record[name] for name in ("tools", "documents") if name in record}
        tokenizer = self.tokenizer()
        try:
            text = tokenizer.apply_chat_template(
                cast("Sequence[Mapping[str, object]]", messages),
                tokenize=False,
                **{"add_generation_prompt": True, **variables, **given},
            )
        except Exception as err:  # templates may raise anything
            raise ValueError(f"messages: the chat template refuses them: {err}") from err
        return _not_empty(tokenizer.encode(text, add_special_tokens=False))

    def _found(self, ids: Sequence[int]) -> tuple[int, ...]:
        return self.finder().find(ids).cuts


def _not_empty(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise ValueError("empty prompt")
    return tuple(ids)


def _list(record: Mapping[str, object], name: str) -> Sequence[object]:
    value = record[name]
    if not isinstance(value, list):
        raise ValueError(f"{name}: {type(value).__name__}, want a list")
    return value
