"""Where the turns of a conversation end in a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def turn_ends(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Ascending positions in front of every token that ends a turn.

    ends: the ids at which the model ends its answers, and templates all turns. A model's state at
    the end of an answer is that in front of such a token: it was sampled, and never computed.
    """
    if not ends:
        return ()
    return tuple(i for i, token in enumerate(tokens) if i and token in ends)
