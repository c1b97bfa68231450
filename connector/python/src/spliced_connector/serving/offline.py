"""What `python -m spliced_connector.fidelity --json` has measured, as counts of losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from spliced_connector.client import LossCounts, Losses, SpliceWay
from spliced_connector.model import primer_digest

_SPLICED = "spliced"
"""The kind of ways that splice; of `fidelity.ways.Kind`."""


def read_losses(path: str, primer: tuple[int, ...], seam_tokens: int, primer_after: int) -> Losses:
    """The counts of the ways that an engine may splice in; none without a path.

    primer: token ids of the engine's, none for no primer. Raises ValueError for a file that cannot
    be read, or that was measured with other seams or another place of the same primer.
    """
    if not path:
        return {}
    try:
        return _losses(json.loads(Path(path).read_text("utf-8")), primer, seam_tokens, primer_after)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise ValueError(f"fidelity: {err}") from err
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"fidelity: {path} is not what the command writes ({err!r})") from err


def _losses(
    said: object, primer: tuple[int, ...], seam_tokens: int, primer_after: int
) -> dict[SpliceWay, LossCounts]:
    document = cast("dict[str, object]", said)
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
    rows = cast("list[dict[str, dict[str, object]]]", document["ways"])
    # Of several shares the smallest counts for all: the others lose less.
    for row in sorted(rows, key=lambda one: cast(float, one["way"]["refresh_share"])):
        about = row["way"]
        if about["kind"] != _SPLICED or (about["primer"] and about["primer"] not in ours):
            continue
        n, same = cast(int, row["prompts"]), cast(float, row["first"]["value"])
        if not isinstance(n, int) or n < 0 or not 0 <= same <= 1:
            raise ValueError(f"fidelity: {same} of {n} first tokens")
        way = SpliceWay(bool(about["primer"]), bool(about["refresh"]))
        found.setdefault(way, LossCounts(n, n - round(same * n)))
    if not found:
        raise ValueError("fidelity: no way of splicing was measured")
    return found
