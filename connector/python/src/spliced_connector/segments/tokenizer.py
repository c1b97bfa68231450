"""The interface of a tokenizer that finders need: a part of the interface in transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """A tokenizer of a chat model."""

    def __len__(self) -> int:
        """Returns a number above all token ids."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def get_added_vocab(self) -> dict[str, int]:
        """Returns the added tokens, which a tokenizer finds first and so never merges."""

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, object]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: object,
    ) -> str:
        """Returns the text of a conversation, for tokenize=False."""

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False
    ) -> Mapping[str, Sequence[object]]:
        """Returns `input_ids`, and `offset_mapping`: the characters [begin, end) of each token.
        Tokenizers written in Python return no `offset_mapping`, or raise NotImplementedError."""
