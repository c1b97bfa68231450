"""Separators: token sequences that an application puts around its segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spliced_connector.segments.tokenizer import Tokenizer


class Separators:
    """Finds separators among token ids. A longer one takes precedence over a shorter one at the
    same position."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """Raises ValueError for an empty sequence, and for no sequences."""
        self._by_first: dict[int, list[tuple[int, ...]]] = {}
        for sequence in sequences:
            if not sequence:
                raise ValueError("empty separator")
            self._by_first.setdefault(sequence[0], []).append(tuple(sequence))
        if not self._by_first:
            raise ValueError("no separators")
        for same in self._by_first.values():
            same.sort(key=len, reverse=True)

    @classmethod
    def of(cls, entries: Iterable[str | Sequence[int]], tokenizer: Tokenizer | None) -> Separators:
        """Returns separators from settings: strings, or sequences of token ids.

        A string must be a single token that was added to the vocabulary. Any other string raises
        ValueError, because its first and last tokens depend on the text next to it.
        """
        return cls([_token(one, tokenizer) if isinstance(one, str) else one for one in entries])

    def find(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the tokens [begin, end) of each separator, in order, without overlaps."""
        spans: list[tuple[int, int]] = []
        end = 0
        for i in [i for i, token in enumerate(ids) if token in self._by_first]:
            if i < end:
                continue
            for sequence in self._by_first[ids[i]]:
                if len(sequence) == 1 or tuple(ids[i : i + len(sequence)]) == sequence:
                    end = i + len(sequence)
                    spans.append((i, end))
                    break
        return spans


def _token(text: str, tokenizer: Tokenizer | None) -> tuple[int]:
    if tokenizer is None:
        raise ValueError(f"separator {text!r}: there is no tokenizer: give its token ids")
    token = tokenizer.get_added_vocab().get(text)
    if token is None:
        raise ValueError(
            f"separator {text!r}: no token of its own in this vocabulary; add it to the"
            " tokenizer, or give a sequence of token ids"
        )
    return (token,)
