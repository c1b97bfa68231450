"""Where the turns of a conversation end in a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def turn_ends(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Returns ascending positions before every token that ends a turn.

    ends: the ids at which the model ends its answers, and templates all turns. A model's state at
    the end of an answer is the state before such a token, which was sampled but never computed.
    """
    if not ends:
        return ()
    return tuple(i for i, token in enumerate(tokens) if i and token in ends)


def answer_starts(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Returns ascending positions at which the answers of a conversation began; the last one is
    the requested answer: len(tokens).

    The end of the prompt shows how a template asks for an answer: the tokens after the last end
    of a turn. They are searched after the other ends. A template that asks in other words than it
    keeps for earlier turns, such as one that drops reasoning, only shows the last answer; without
    `ends` none is found.
    """
    turns = turn_ends(tokens, ends)
    if not turns:
        return ()
    asking = list(tokens[turns[-1] :])
    starts = [at + len(asking) for at in turns if list(tokens[at : at + len(asking)]) == asking]
    return tuple(starts)
