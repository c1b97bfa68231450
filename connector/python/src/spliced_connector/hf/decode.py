"""Greedy decoding with drafts: guessed tokens are verified several at a time.

transformers' own assisted generation removes rejected tokens from a cache, which recurrent states
do not allow. Here rejected tokens are never added to the states (`walk.decoding.drafts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor
from transformers import GenerationConfig

from spliced_connector.walk import Architecture, Context, Drafts, verify

Drafter = Callable[[Sequence[int]], Sequence[int]]
"""A function that guesses the tokens after the given tokens; any number of tokens, or none. A
number that is no token of the model ends the guess."""


@dataclass(frozen=True)
class PromptLookup:
    """Guesses by repetition: finds the last tokens at an earlier place, and guesses that the same
    tokens follow.

    It takes the longest match of up to `longest` tokens, the latest if there are several. It
    guesses the `most` tokens after the match.
    """

    most: int = 4
    longest: int = 3

    def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        back = list(reversed(tokens))
        longest, best, begin, at = min(self.longest, len(back) - 1), 0, 0, 0
        while best < longest:
            try:
                at = back.index(back[0], at + 1)  # much quicker than to look at each token
            except ValueError:
                break
            n = 1
            while n < longest and at + n < len(back) and back[n] == back[at + n]:
                n += 1
            if n > best:
                best, begin = n, at
        return back[max(begin - self.most, 0) : begin][::-1]


@dataclass
class Decoded:
    """An answer, and its cost: the number of walks, of guessed drafts, and of right drafts."""

    tokens: list[int]
    walks: int = 0
    guessed: int = 0
    right: int = 0


def decode(
    arch: Architecture,
    context: Context,
    ids: Sequence[int],
    logits: Tensor,
    drafter: Drafter,
    most: int,
    ends: frozenset[int],
    before: Callable[[], None] = lambda: None,
    accepted: Callable[[Drafts, int], None] = lambda _drafts, _n: None,
) -> Decoded:
    """Returns at most `most` greedy tokens after ids, up to and with the first token in ends.

    The context has all tokens of ids; logits [vocabulary] are from its last token. On return, the
    context has all tokens of the answer but the last. The function `before` is called before each
    walk. The function `accepted` is called with the drafts of each walk and the number of accepted
    drafts, before these are added to the context.
    """
    out = Decoded([])
    line, following = list(ids), int(logits.argmax())
    while len(out.tokens) < most:
        out.tokens.append(following)
        line.append(following)
        if following in ends or len(out.tokens) == most:
            break
        known = takewhile(lambda t: 0 <= t < len(logits), drafter(line))
        drafts = list(known)[: most - len(out.tokens) - 1]
        before()
        done = verify(arch, [*line, *drafts], context)
        best = arch.logits(done.hidden).argmax(-1).tolist()
        right = 0
        while right < len(drafts) and drafts[right] == best[right]:
            right += 1
            if drafts[right - 1] in ends:
                break
        ended = right > 0 and drafts[right - 1] in ends
        new = 1 + right - ended  # the last token of an answer moves no state
        accepted(done, new)
        done.accept(new)
        out.walks += 1
        out.guessed += len(drafts)
        out.right += right
        out.tokens += drafts[:right]
        line += drafts[:right]
        if ended:
            break
        following = int(best[right])
    return out


_PLAIN: Mapping[str, object] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "max_time": None,
    "token_healing": False,
    "min_length": 0,
    "min_new_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "constraints": None,
    "stop_strings": None,
    "watermarking_config": None,
    "return_dict_in_generate": False,
}
"""Options of a generation under which the greedy token is chosen unchanged."""


def not_greedy(config: GenerationConfig | None, options: Mapping[str, object]) -> str:
    """Returns the option of a generation that `decode` does not support; empty if there is none."""
    for name in options:
        if name not in _PLAIN and name not in ("max_new_tokens", "eos_token_id"):
            return name
    for name, plain in _PLAIN.items():
        value = options.get(name, getattr(config, name, None))
        if value is not None and value != plain:
            return name
    return ""
