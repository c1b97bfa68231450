"""Rows of the report, one JSON object a line, and the ways a script ends."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

CANNOT_RUN = 3
"""Exit status of a script that lacks something here; the reason is on stderr."""


def holds(name: str, trouble: str = "") -> None:
    """A yes, or a no and why."""
    row = {"name": name, "value": float(not trouble), "unit": "yes", "ok": not trouble}
    _print(row | ({"note": trouble} if trouble else {}))


def at_most(name: str, value: float, unit: str, bound: float) -> None:
    """A figure that has to stay under a bound."""
    row = {"name": name, "value": value, "unit": unit, "bar": f"<= {bound:g} {unit}"}
    _print(row | {"ok": value <= bound})


def rate(name: str, value: float, limit: float, least: float = 0.0) -> None:
    """GB/s beside a limit, and the part of it that is asked for."""
    row = {"name": name, "value": value, "unit": "GB/s", "limit": limit, "ratio": value / limit}
    if least:
        row["bar"] = f">= {least:g} of limit"
    _print(row | {"ok": value >= least * limit})


def within(name: str, value: float, limit: float, unit: str, most: float = 0.0) -> None:
    """A time beside another one, and the part of that which it may take; 0 = it is not asked."""
    row = {"name": name, "value": value, "unit": unit, "limit": limit, "ratio": value / limit}
    if most:
        row["bar"] = f"<= {most:g} of limit"
    _print(row | {"ok": not most or value <= most * limit})


def figure(name: str, value: float, unit: str) -> None:
    """A figure without a bar."""
    _print({"name": name, "value": value, "unit": unit, "ok": True})


def skip(name: str, why: str) -> None:
    """What could not run here, beside others that could."""
    _print({"name": name, "skipped": True, "note": why})


def cannot_run(why: str) -> NoReturn:
    """End without a row."""
    print(why, file=sys.stderr)
    sys.exit(CANNOT_RUN)


def _print(row: dict[str, object]) -> None:
    print(json.dumps(row), flush=True)
