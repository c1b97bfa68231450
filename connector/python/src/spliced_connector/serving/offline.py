"""Reads the losses that `python -m spliced_connector.fidelity --json` has measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

from spliced_connector.client import LossCounts, Losses, SpliceWay
from spliced_connector.model import LAST_SEGMENT, primer_digest

_SPLICED = "spliced"
"""The value of `fidelity.ways.Kind` for ways that splice."""

_MOST = 2**32 - 1
"""The largest count that a report to the daemon can hold."""


def read_losses(
    path: str,
    weights: Callable[[], bytes],
    primer: tuple[int, ...],
    seam_tokens: int,
    primer_after: int,
) -> Losses:
    """Returns the counts of all ways in which the engine may splice. Empty if `path` is empty.

    weights: returns the digest of the engine's weights; called only if there is a path, because it
    may read all weights. primer: token ids of the engine's primer, empty without one. Raises
    ValueError for a file that cannot be read, or that was measured on another model, with another
    seam width, or with another `primer_after` of the same primer.
    """
    if not path:
        return {}
    try:
        document = json.loads(Path(path).read_text("utf-8"))
        _check_model(document, weights())
        return _losses(document, primer, seam_tokens, primer_after)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as err:
        raise ValueError(f"fidelity: {err}") from err
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"fidelity: {path} was not written by this command ({err!r})") from err


def _check_model(content: object, weights: bytes) -> None:
    measured = cast("dict[str, object]", content).get("weights")
    if measured is None:
        raise ValueError("fidelity: measured on an unknown model, measure again with this version")
    if measured != weights.hex():
        raise ValueError(
            f"fidelity: measured on another model: weights {str(measured)[:12]}, the engine has"
            f" {weights.hex()[:12]}"
        )


def _losses(
    content: object, primer: tuple[int, ...], seam_tokens: int, primer_after: int
) -> dict[SpliceWay, LossCounts]:
    document = cast("dict[str, object]", content)
    if (seams := document["seam_tokens"]) != seam_tokens:
        raise ValueError(f"fidelity: measured at seam_tokens {seams}, the engine has {seam_tokens}")
    digest = primer_digest(primer).hex() if primer else ""
    primers = cast("dict[str, dict[str, object]]", document["primers"])
    ours = {name for name, about in primers.items() if about["digest"] == digest}
    if ours and (after := document["primer_after"]) != primer_after:
        raise ValueError(
            f"fidelity: measured at primer_after {after}, the engine has {primer_after}"
        )
    found: dict[SpliceWay, LossCounts] = {}
    for row in cast("list[dict[str, dict[str, object]]]", document["ways"]):
        about = row["way"]
        if about["kind"] != _SPLICED or (about["primer"] and about["primer"] not in ours):
            continue
        if cast(float, about["refresh_share"]) > LAST_SEGMENT:
            continue  # more is refreshed than the daemon advises, so the loss is too small
        n, same = cast(int, row["prompts"]), cast(float, row["first"]["value"])
        if type(n) is not int or not 0 <= n <= _MOST or not 0 <= same <= 1:
            raise ValueError(f"fidelity: {same} of {n} first tokens")
        way = SpliceWay(bool(about["primer"]), bool(about["refresh"]))
        found.setdefault(way, LossCounts(n, n - round(same * n)))
    if not found:
        raise ValueError("fidelity: no way of splicing was measured")
    return found
