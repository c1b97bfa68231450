"""Rows of the report, one JSON object per line, and the ways in which a script ends."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

CANNOT_RUN = 3
"""Exit status of a script whose requirements are missing here; the reason is on stderr."""


def holds(name: str, trouble: str = "") -> None:
    """Adds a success, or a failure and its reason."""
    row = {"name": name, "value": float(not trouble), "unit": "yes", "ok": not trouble}
    _print(row | ({"note": trouble} if trouble else {}))


def at_most(name: str, value: float, unit: str, bound: float) -> None:
    """Adds a figure that has to stay within a bound."""
    row = {"name": name, "value": value, "unit": unit, "bar": f"<= {bound:g} {unit}"}
    _print(row | {"ok": value <= bound})


def rate(name: str, value: float, limit: float, least: float = 0.0) -> None:
    """Adds a rate and its limit in GB/s. least: the required share of the limit; 0: none."""
    row = {"name": name, "value": value, "unit": "GB/s", "limit": limit, "ratio": value / limit}
    if least:
        row["bar"] = f">= {least:g} of limit"
    _print(row | {"ok": value >= least * limit})


def within(name: str, value: float, limit: float, unit: str, most: float = 0.0) -> None:
    """Adds a value and a reference value, `limit`. most: their largest permitted ratio; 0: any."""
    row = {"name": name, "value": value, "unit": unit, "limit": limit, "ratio": value / limit}
    if most:
        row["bar"] = f"<= {most:g} of limit"
    _print(row | {"ok": not most or value <= most * limit})


def figure(name: str, value: float, unit: str) -> None:
    """Adds a figure without a bound."""
    _print({"name": name, "value": value, "unit": unit, "ok": True})


def skip(name: str, why: str) -> None:
    """Adds a row for a check that could not run here, while others could."""
    _print({"name": name, "skipped": True, "note": why})


def cannot_run(why: str) -> NoReturn:
    """Ends the script without a row; the reason goes to stderr."""
    print(why, file=sys.stderr)
    sys.exit(CANNOT_RUN)


def left() -> float:
    """Returns the seconds until the script is stopped; infinite if it is not."""
    return float(os.environ.get("GPU_CHECK_UNTIL", math.inf)) - time.time()


def watch(say: Callable[[str], None], early: float = 1.0) -> None:
    """Reports where the main thread is, and ends the process, `early` seconds before the
    limit."""
    if math.isinf(left()):
        return

    def over() -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        # Without frames of the importer, which hide the importing modules.
        stack = [
            at for at in traceback.extract_stack(frame) if not at.filename.startswith("<frozen")
        ]
        say(" < ".join(f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in stack[:-9:-1]))
        os._exit(0)

    timer = threading.Timer(max(0.1, left() - early), over)
    timer.daemon = True
    timer.start()


def _print(row: dict[str, object]) -> None:
    print(json.dumps(row), flush=True)
