"""Where the turns of a conversation end in a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def turn_ends(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Returns the ascending positions of all tokens that end a turn.

    ends: the ids of the tokens that end a model's answers and, in templates, all turns. A model
    samples such a token at the end of its answer but does not compute it, so the last state of the
    answer is the state before the token.
    """
    if not ends:
        return ()
    return tuple(i for i, token in enumerate(tokens) if i and token in ends)


def answer_starts(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Returns the ascending positions at which the answers of a conversation begin. The last one is
    len(tokens), where the requested answer begins.

    The tokens from the last end of a turn to the end of the prompt show how the template asks for
    an answer. An answer begins wherever the same tokens follow another end of a turn. If the
    template writes earlier turns differently, as templates that drop reasoning do, only the last
    position is found. Without `ends` none is found.
    """
    turns = turn_ends(tokens, ends)
    if not turns:
        return ()
    asking = list(tokens[turns[-1] :])
    starts = [at + len(asking) for at in turns if list(tokens[at : at + len(asking)]) == asking]
    return tuple(starts)
