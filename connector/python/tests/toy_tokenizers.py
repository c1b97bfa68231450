"""Tokenizers of a few words, with the chat templates of several kinds of model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Messages = Sequence[Mapping[str, object]]
Render = Callable[[Messages, Mapping[str, object]], str]

_CONTENT = "content"


@dataclass
class WordTokenizer:
    """One token for each run of letters and each other character; ids as they come."""

    added: tuple[str, ...]
    render: Render
    ids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for token in self.added:
            self._id(token)
        marks = "|".join(re.escape(t) for t in sorted(self.added, key=len, reverse=True))
        self._words = re.compile((f"{marks}|" if marks else "") + r"\w+|\s|[^\w\s]")

    def __len__(self) -> int:
        return len(self.ids)

    def _id(self, word: str) -> int:
        return self.ids.setdefault(word, len(self.ids))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self._id(found[0]) for found in self._words.finditer(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        words = list(self.ids)
        return "".join(words[i] for i in token_ids)

    def get_added_vocab(self) -> dict[str, int]:
        return {token: self.ids[token] for token in self.added}

    def apply_chat_template(
        self,
        conversation: Messages,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: object,
    ) -> str:
        given = {"add_generation_prompt": add_generation_prompt, **variables}
        return self.render(conversation, given)

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False
    ) -> Mapping[str, Sequence[object]]:
        found = list(self._words.finditer(text))
        return {
            "input_ids": [self._id(one[0]) for one in found],
            "offset_mapping": [one.span() for one in found],
        }


def _calls(message: Mapping[str, object]) -> list[Mapping[str, object]]:
    calls = message.get("tool_calls")
    return list(calls) if isinstance(calls, Sequence) else []


def _chatml(messages: Messages, given: Mapping[str, object]) -> str:
    out, before = "", ""
    for message in messages:
        role = str(message["role"])
        body = str(message[_CONTENT])
        for call in _calls(message):
            body += f"\n<tool_call>\n{call['function']}\n</tool_call>"
        if role == "tool":
            body = f"<tool_response>\n{body}\n</tool_response>"
        if role == "tool" and before == "tool":
            out = out.removesuffix("<|im_end|>\n") + f"\n{body}<|im_end|>\n"
        else:
            shown = "user" if role == "tool" else role
            out += f"<|im_start|>{shown}\n{body}<|im_end|>\n"
        before = role
    return out + ("<|im_start|>assistant\n" if given["add_generation_prompt"] else "")


def _llama3(messages: Messages, given: Mapping[str, object]) -> str:
    out = "<|begin_of_text|>"
    for message in messages:
        out += f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n"
        out += f"{str(message[_CONTENT]).strip()}<|eot_id|>"
    if given["add_generation_prompt"]:
        out += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    return out


def _brackets(messages: Messages, given: Mapping[str, object]) -> str:
    """Users in brackets, nothing before an assistant; systems and tools are refused."""
    out = "<s>"
    for message in messages:
        if message["role"] == "user":
            out += f"[INST] {message[_CONTENT]} [/INST]"
        elif message["role"] == "assistant":
            out += f" {message[_CONTENT]}</s>"
        else:
            raise ValueError("roles must alternate")
    return out


def _names(messages: Messages, given: Mapping[str, object]) -> str:
    """A token for each speaker, and nothing behind what users say."""
    out = "<s>" + "".join(str(m[_CONTENT]) for m in messages if m["role"] == "system")
    for message in messages:
        if message["role"] == "user":
            out += f"<User>{message[_CONTENT]}"
        elif message["role"] == "assistant":
            out += f"<Assistant>{message[_CONTENT]}</s>"
    return out + ("<Assistant>" if given["add_generation_prompt"] else "")


def _documents(messages: Messages, given: Mapping[str, object]) -> str:
    """A template for retrieval: documents before what is said."""
    out = ""
    documents = given.get("documents")
    if isinstance(documents, Sequence):
        for i, document in enumerate(documents):
            out += f"<|start_of_role|>document {i}<|end_of_role|>\n{document['text']}<|end|>\n"
    for message in messages:
        out += f"<|start_of_role|>{message['role']}<|end_of_role|>{message[_CONTENT]}<|end|>\n"
    ask = given["add_generation_prompt"]
    return out + ("<|start_of_role|>assistant<|end_of_role|>" if ask else "")


def _plain(messages: Messages, given: Mapping[str, object]) -> str:
    out = "".join(f"### {m['role']}:\n{m[_CONTENT]}\n\n" for m in messages)
    return out + ("### assistant:\n" if given["add_generation_prompt"] else "")


def chatml() -> WordTokenizer:
    words = (
        "<|im_start|> <|im_end|> <tool_call> </tool_call> <tool_response> </tool_response> <|sep|>"
    )
    return WordTokenizer(tuple(words.split()), _chatml)


def llama3() -> WordTokenizer:
    words = "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>"
    return WordTokenizer(tuple(words.split()), _llama3)


def brackets() -> WordTokenizer:
    return WordTokenizer(("<s>", "</s>", "[INST]", "[/INST]"), _brackets)


def names() -> WordTokenizer:
    return WordTokenizer(("<s>", "</s>", "<User>", "<Assistant>"), _names)


def documents() -> WordTokenizer:
    return WordTokenizer(("<|start_of_role|>", "<|end_of_role|>", "<|end|>"), _documents)


def plain() -> WordTokenizer:
    return WordTokenizer(("<s>",), _plain)
