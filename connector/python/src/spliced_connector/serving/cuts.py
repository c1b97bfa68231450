"""What a request says about its segments.

    {"spliced": {"v": 1, "cuts": [0, 612, 1180], "w": 8}}

in `kv_transfer_params` of a request to vLLM, in `custom_params` of one to SGLang. Cuts are
positions in the prompt's tokens: a segment lies between every two neighbours, and the query behind
the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spliced_connector.segments import Found

MAX_CUTS = 2048
MAX_SEAM = 4096


class CutsError(ValueError):
    """What a request says about its segments cannot be right; the text says what."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ascending positions, and tokens computed again beside a join. found: what found them, where
    the request did not name them itself."""

    cuts: tuple[int, ...]
    w: int
    found: Found = field(default_factory=Found)


def read_cuts(params: Mapping[str, object] | None, tokens: int, w: int) -> Cuts | None:
    """The cuts of a request, None where it names none.

    params: what the request says beside its prompt. tokens: of the prompt. w: for requests that
    do not say.
    """
    if params is None or "spliced" not in params:
        return None
    said = params["spliced"]
    if not isinstance(said, Mapping):
        raise CutsError(f"spliced: {type(said).__name__}, want an object")
    unknown = sorted(str(name) for name in said if name not in ("v", "cuts", "w"))
    if unknown:
        raise CutsError(f"spliced: unknown {', '.join(unknown)}")
    if said.get("v") != 1:
        raise CutsError(f"spliced.v: {said.get('v')!r}, want 1")
    cuts = said.get("cuts")
    if isinstance(cuts, str | bytes) or not isinstance(cuts, Sequence):
        raise CutsError(f"spliced.cuts: {type(cuts).__name__}, want a list of positions")
    if not 2 <= len(cuts) <= MAX_CUTS:
        raise CutsError(f"spliced.cuts: {len(cuts)} positions, want 2 to {MAX_CUTS}")
    numbers = [_whole(f"spliced.cuts[{i}]", cut, tokens - 1) for i, cut in enumerate(cuts)]
    for a, b in pairwise(numbers):
        if a >= b:
            raise CutsError(f"spliced.cuts: {a} is followed by {b}, they have to ascend")
    return Cuts(tuple(numbers), _whole("spliced.w", said.get("w", w), MAX_SEAM))


def _whole(name: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CutsError(f"{name}: {value!r}, want 0 to {most}")
    return value
