"""The cuts of a chat request, for clients that have the server's tokenizer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

from spliced_connector.segments.finder import MOST_CUTS, Finder
from spliced_connector.segments.template import Template, TemplateError
from spliced_connector.segments.tokenizer import Tokenizer

SHORTEST_CHARS = 64
"""Texts of fewer characters are no separate segments (some 16 tokens: two seams of 8)."""

_MOST_PARTS = 16
"""Maximum number of tokens of one character (UTF-8 has at most 4 bytes for it) with the spaces
around it."""


def cuts(
    messages: Sequence[Mapping[str, object]],
    tokenizer: Tokenizer,
    *,
    least: int = 64,
    **variables: object,
) -> list[int]:
    """Returns positions for `kv_transfer_params={"spliced": {"v": 1, "cuts": ...}}` of a chat
    request.

    A segment is a message, a tool result, a document, or one text of a message whose content is a
    list: [{"type": "text", "text": passage}, ...]. variables go to the template, as in
    the server: `tools`, `documents`, entries of `chat_template_kwargs`;
    `add_generation_prompt` is true by default.

    The whole prompt is tokenized, then cut. A token that covers the end of one text and the
    beginning of the next belongs to the first text. A server accepts at most `MOST_CUTS` cuts. For
    a prompt with more, the longest segments are used: they save the most, and remain the longest
    while a chat grows. Returns an empty list if no cut is worthwhile. Raises errors of the
    template.

    If the tokenizer reports no offsets (because it is written in Python), tokens are decoded one by
    one. If their texts do not add up to the prompt, only the template's marks are cuts.
    """
    text, texts = _render(messages, tokenizer, {"add_generation_prompt": True, **variables})
    ids, begins = located(text, tokenizer)
    edges = set(_template_cuts(ids, tokenizer, least))
    for begin, end in _places(text, texts) if begins else ():
        edges |= {bisect_left(begins, begin), bisect_left(begins, end)}
    edges = {edge for edge in edges if 0 < edge < len(ids)}
    return _longest([0, *sorted(edges)]) if edges else []


def _longest(edges: list[int]) -> list[int]:
    """Returns the edges of the longest segments, as many as a server accepts, and always the first
    edge."""
    if len(edges) <= MOST_CUTS:
        return edges
    kept = {edges[0]}
    for begin, end in sorted(pairwise(edges), key=lambda at: at[0] - at[1]):
        new = {begin, end} - kept
        if len(kept) + len(new) > MOST_CUTS:
            break
        kept |= new
    return sorted(kept)


def located(
    text: str, tokenizer: Tokenizer, *, special: bool = False
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns a text's token ids, and for each token the index of the character where it begins.
    The indices are empty if they cannot be determined.

    special: whether to include the special tokens that the tokenizer puts around a text. Their
    index is 0.
    """
    try:
        coded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    except NotImplementedError:
        coded = tokenizer(text, add_special_tokens=special)
    ids = cast("Sequence[int]", coded["input_ids"])
    if "offset_mapping" not in coded:
        return ids, _shown_at(text, ids, tokenizer)
    spans = cast("Sequence[tuple[int, int]]", coded["offset_mapping"])
    return ids, [begin for begin, _ in spans]


def _shown_at(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Returns the character where each token begins, found by decoding the tokens. Empty if they
    decode to another text.

    A character can consist of several tokens; all of them then begin where the character does. The
    decoded text of a token may lack the spaces around it.
    """
    begins: list[int] = []
    at, pending = 0, 0
    for i in range(1, len(ids) + 1):
        begins.append(at)
        shown = tokenizer.decode(ids[pending:i])
        many = i - pending >= _MOST_PARTS
        if (not shown or shown.endswith("\ufffd")) and not many:
            continue
        while at < len(text) and text[at].isspace() and not text.startswith(shown, at):
            at += 1
        if text.startswith(shown, at):
            at, pending = at + len(shown), i
        elif many:
            return []
        else:
            at = begins[pending]
    return begins


def _template_cuts(ids: Sequence[int], tokenizer: Tokenizer, least: int) -> tuple[int, ...]:
    try:
        finder = Finder(template=Template.of(tokenizer), least=least, most=len(ids) + 1)
    except TemplateError:
        return ()  # no cuts at marks; the texts of messages are found anyway
    return finder.find(ids).cuts


def _render(
    messages: Sequence[Mapping[str, object]], tokenizer: Tokenizer, variables: Mapping[str, object]
) -> tuple[str, list[str]]:
    """Returns the prompt's text, and the texts of its messages.

    A message may have a list of texts. As servers do, this function passes the list to a template
    that iterates over lists; for other templates it joins the texts with line ends.
    """
    texts = [text for message in messages for text in _texts(message.get("content"))]
    if not _goes_through_lists(tokenizer):
        messages = [_joined(message) for message in messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, **variables)  # type: ignore[arg-type]
    return text, texts


def _goes_through_lists(tokenizer: Tokenizer) -> bool:
    """Returns whether the template renders a list with one text like the text itself."""
    conversations = [
        [{"role": "user", "content": content}]
        for content in ("Placeholder", [{"type": "text", "text": "Placeholder"}])
    ]
    try:
        text, listed = (tokenizer.apply_chat_template(one, tokenize=False) for one in conversations)
    except Exception:  # templates may raise anything
        return False
    return text == listed


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]


def _joined(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    if isinstance(content, str) or not isinstance(content, Sequence):
        return message
    return {**message, "content": "\n".join(_texts(content))}


def _places(prompt: str, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields the characters [begin, end) of the texts in a prompt, in order. Short texts, and texts
    that the template has left out, are skipped. Templates strip texts."""
    at = 0
    for text in texts:
        text = text.strip()
        if len(text) < SHORTEST_CHARS:
            continue
        begin = prompt.find(text, at)
        if begin >= 0:
            at = begin + len(text)
            yield begin, at
