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


def answer_starts(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Ascending positions at which the answers of a conversation began, the one that is asked for
    last: len(tokens).

    The prompt's own end shows how a template asks for an answer: what stands behind the last end of
    a turn. It is looked for behind the others. A template that asks in other words than those it
    keeps, as those that leave reasoning out, shows the last one only; no `ends` show none.
    """
    turns = turn_ends(tokens, ends)
    if not turns:
        return ()
    asking = list(tokens[turns[-1] :])
    starts = [at + len(asking) for at in turns if list(tokens[at : at + len(asking)]) == asking]
    return tuple(starts)
