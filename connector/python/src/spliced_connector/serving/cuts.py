"""What a request says about its segments.

    {"spliced": {"v": 1, "cuts": [0, 612, 1180], "w": 8}}

in `kv_transfer_params` of a request to vLLM, in `custom_params` of one to SGLang. Cuts are
positions in the prompt's tokens: a segment lies between every two neighbours, and the query behind
the last.

`max_error` beside them is the most that what is reused of a segment may be off from what its engine
had computed, relative to its norm (see tolerance in `settings`); 0 takes only what is as it was.
`refresh` is the share of the segments' tokens that is computed in context all the same, from the
last segment on; 0 to 1 (see `model.keep_for_reuse`). `max_loss` is the expected share of requests
with another first token than a full prefill that the request accepts; 0 to 1 (see `client.losses`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from spliced_connector.segments import MOST_CUTS, Found

MAX_CUTS = MOST_CUTS
MAX_SEAM = 4096


class CutsError(ValueError):
    """What a request says about its segments cannot be right; the text says what."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ascending positions, and tokens computed again beside a join. found: what found them, where
    the request did not name them itself. max_error: of a segment that is reused, None for any.
    trouble: why some may be missing, in words for the caller. refresh: the share that is computed
    in context, max_loss: the loss that is accepted, each None where the request does not say.
    left_out: segments at the end whose cuts are not here, as they are computed in context."""

    cuts: tuple[int, ...]
    w: int
    found: Found = field(default_factory=Found)
    max_error: float | None = None
    trouble: str = ""
    refresh: float | None = None
    max_loss: float | None = None
    left_out: int = 0


_SHARES = ("max_error", "refresh", "max_loss")
_NAMES = ("v", "cuts", "w", *_SHARES)


def read_cuts(params: Mapping[str, object] | None, tokens: int, w: int) -> Cuts | None:
    """The cuts of a request, None where it names none.

    params: what the request says beside its prompt. tokens: of the prompt. w: for requests that
    do not say.
    """
    if params is None or "spliced" not in params:
        return None
    options = params["spliced"]
    if not isinstance(options, Mapping):
        raise CutsError(f"spliced: {type(options).__name__}, want an object")
    unknown = sorted(str(name) for name in options if name not in _NAMES)
    if unknown:
        raise CutsError(f"spliced: unknown {', '.join(unknown)}")
    if options.get("v") != 1:
        raise CutsError(f"spliced.v: {options.get('v')!r}, want 1")
    cuts = options.get("cuts")
    if isinstance(cuts, str | bytes) or not isinstance(cuts, Sequence):
        raise CutsError(f"spliced.cuts: {type(cuts).__name__}, want a list of positions")
    if not 2 <= len(cuts) <= MAX_CUTS:
        raise CutsError(f"spliced.cuts: {len(cuts)} positions, want 2 to {MAX_CUTS}")
    numbers = [_whole(f"spliced.cuts[{i}]", cut, tokens - 1) for i, cut in enumerate(cuts)]
    for a, b in pairwise(numbers):
        if a >= b:
            raise CutsError(f"spliced.cuts: {a} is followed by {b}, they have to ascend")
    seam = _whole("spliced.w", options.get("w", w), MAX_SEAM)
    most, refresh, loss = (_share(name, options.get(name)) for name in _SHARES)
    return Cuts(tuple(numbers), seam, max_error=most, refresh=refresh, max_loss=loss)


def _share(name: str, value: object) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= cast(float, value) <= 1:
        raise CutsError(f"spliced.{name}: {value!r}, want 0 to 1")
    return float(cast(float, value))


def _whole(name: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CutsError(f"{name}: {value!r}, want 0 to {most}")
    return value
