"""The parameters by which a request describes its segments.

    {"spliced": {"v": 1, "cuts": [0, 612, 1180], "w": 8}}

They are in `kv_transfer_params` of a request to vLLM, and in `custom_params` of a request to
SGLang. Cuts are token positions in the prompt: a segment lies between every two neighbours, and the
query begins at the last cut.

Three more parameters are optional, each from 0 to 1. `max_error` is the largest error of a reused
segment, relative to the norm of the data that its engine had computed (see `tolerance` in
`settings`); 0 accepts only unchanged data. `refresh` is the share of the segments' tokens to
compute in context, beginning with the last segment (see `model.keep_for_reuse`). `max_loss` is the
highest loss that the request accepts: the expected share of requests whose first token differs from
that of a full prefill (see `client.losses`).
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
    """The parameters of a request are invalid. The text says why."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """A request's cuts and other parameters. cuts: ascending positions. w: tokens recomputed on
    each side of a join. found: which finders found the cuts, if the request named none. max_error:
    as in the module's docstring, None for any error. trouble: why cuts may be missing, as a text
    for the caller. refresh, max_loss: as in the module's docstring, None if the request does not
    set them. left_out: number of last segments that are computed in context, whose cuts were
    removed from cuts."""

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
    """Returns the cuts of a request, None if it has no parameters of ours. Raises CutsError.

    params: the request's parameters. tokens: number of prompt tokens. w: seam width of requests
    that set none.
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
