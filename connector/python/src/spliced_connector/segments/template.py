"""Boundaries of a chat template: where messages, tool calls, tool results and documents begin.

The marks of models are not listed here but learned. The template renders conversations of
placeholders. The text between two placeholders is a joint. Tokens of a joint that were added to the
vocabulary (in ChatML `<|im_end|>` and `<|im_start|>`) are its marks. A joint ends one part and
begins the next. Marks that also follow a whole conversation are ends. The first mark after the ends
is a beginning, and the cut is before it. If a joint has only ends (Mistral's `[/INST]`), the cut is
after the last mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from spliced_connector.segments.tokenizer import Tokenizer

_Message = Mapping[str, object]

_NAMES = [f"Placeholder{i}Text" for i in range(12)]
_PLACEHOLDER = re.compile("|".join(f"{name}(?![0-9])" for name in _NAMES))


class TemplateError(ValueError):
    """The template of a tokenizer has no usable marks. The text says why."""


@dataclass(frozen=True, slots=True)
class Template:
    """The marks of a template. Cuts lie before each token of `begins` and after each of `ends`."""

    begins: frozenset[int]
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Template:
        """Learns the marks of a tokenizer's template. Raises TemplateError."""
        added = tokenizer.get_added_vocab()
        if not added:
            raise TemplateError("the vocabulary has no added tokens")
        mark = re.compile("|".join(re.escape(t) for t in sorted(added, key=len, reverse=True)))
        texts = [_render(tokenizer, one) for one in _CONVERSATIONS]
        if not any(texts):
            raise TemplateError("there is no chat template, or it renders no conversation")
        begins, ends = _learn(mark, texts)
        if not begins and not ends:
            raise TemplateError("the chat template puts no added tokens between messages")
        return cls(
            frozenset(added[one] for one in begins), frozenset(added[one] for one in ends - begins)
        )

    def find(self, ids: Sequence[int]) -> list[int]:
        """Returns the ascending positions at which parts of the prompt begin, except 0."""
        begins, marks = self.begins, self.begins | self.ends
        at = [i if token in begins else i + 1 for i, token in enumerate(ids) if token in marks]
        return [i for i in at if 0 < i < len(ids)]


def _learn(mark: re.Pattern[str], texts: Sequence[str | None]) -> tuple[set[str], set[str]]:
    """Returns the marks that begin a part, and the marks that only end one.

    Plain conversations are analyzed first, because messages begin with the same marks in the other
    conversations. A joint of these may contain ends that no conversation ends with, such as the end
    of a system message. If a joint does not begin with a known end, its first mark that is known as
    a beginning is taken as its beginning.
    """
    begins: set[str] = set()
    ends: set[str] = set()
    closing: set[str] = set()
    known: set[str] = set()
    for some in (texts[:_PLAIN], texts[_PLAIN:]):
        split = [[mark.findall(part) for part in _PLACEHOLDER.split(text)] for text in some if text]
        for parts in split:
            closing |= _closing(parts) - known
        for parts in split:
            known.update(parts[0][-1:])  # the mark right before the first text
            for joint in filter(None, parts[1:-1]):
                fresh = [one for one in joint if one not in closing]
                if not fresh:
                    ends.add(joint[-1])
                    continue
                opening = fresh[0]
                if joint[0] not in closing:
                    opening = next((one for one in fresh if one in known), opening)
                begins.add(opening)
                closing.update(fresh[: fresh.index(opening)])
        known |= begins
    return begins, ends


def _closing(parts: Sequence[Sequence[str]]) -> set[str]:
    """Returns the marks after a conversation that are ends.

    If a joint begins with all marks after the conversation, all of them are ends. Otherwise only
    the marks before the first beginning are ends, because some templates end with instructions or
    with the beginning of an answer. Beginnings are known from the text in front of the
    conversation: its marks up to the first mark after the conversation, which is certainly an end.
    Later marks of that text prove nothing: instructions for tools show the marks of calls, and
    system messages have their own end.
    """
    first, *joints, last = parts
    if any(len(joint) > len(last) and joint[: len(last)] == last for joint in joints):
        return set(last)
    opening = set(takewhile(lambda one: one not in last[:1], first))
    return set(takewhile(lambda one: one not in opening, last))


@dataclass(frozen=True, slots=True)
class _Conversation:
    messages: Sequence[_Message]
    variables: Mapping[str, object]


def _says(role: str, text: int, **more: object) -> _Message:
    return {"role": role, "content": _NAMES[text], **more}


def _calls(*names: int) -> _Message:
    """Returns a message with calls of one tool, with placeholders as arguments."""
    calls = [
        {
            "id": f"call{name:05}",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": _NAMES[name]}},
        }
        for name in names
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(name: int, call: int) -> _Message:
    return _says("tool", name, tool_call_id=f"call{call:05}", name="look")


_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "description": "Where."}},
            "required": ["at"],
        },
    },
}
_TALK = [_says("user", 0), _says("assistant", 1), _says("user", 2), _says("assistant", 3)]
_WORK = [_says("user", 0), _calls(1, 2), _result(3, 1), _result(4, 2)]
_DOCUMENTS = [
    {"doc_id": str(i), "title": "Title", "text": _NAMES[i], "contents": _NAMES[i]} for i in (5, 6)
]
_CONVERSATIONS = [
    _Conversation([_says("user", 0)], {}),
    _Conversation(_TALK, {}),
    _Conversation([_says("system", 9), *_TALK], {}),
    _Conversation(_WORK[:2], {"tools": [_TOOL]}),
    _Conversation(_WORK, {"tools": [_TOOL]}),
    _Conversation([*_WORK, _says("assistant", 5), _says("user", 6)], {"tools": [_TOOL]}),
    _Conversation([_says("user", 0)], {"documents": _DOCUMENTS}),
]
"""Conversations to render. Those that a template refuses are skipped: not every model supports
system messages, tools or documents."""
_PLAIN = 2
"""Number of leading conversations that are plain: without system message, tools and documents."""


def _render(tokenizer: Tokenizer, conversation: _Conversation) -> str | None:
    """Returns the text of a conversation. None: the template refuses it or omits its end."""
    try:
        text = tokenizer.apply_chat_template(
            conversation.messages,
            tokenize=False,
            **conversation.variables,  # type: ignore[arg-type]
        )
    except Exception:  # templates may raise anything
        return None
    shown = _PLACEHOLDER.findall(text) if isinstance(text, str) else []
    return text if shown[-1:] == _PLACEHOLDER.findall(str(conversation.messages[-1]))[-1:] else None
