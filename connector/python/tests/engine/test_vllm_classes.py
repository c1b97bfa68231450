"""docs/engines.md says of every class that keeps states what was run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from engine.vllm_registry import stateful_classes

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

PAGE = Path(__file__).resolve().parents[4] / "docs" / "engines.md"
TABLE = "### Classes that keep states"


def rows() -> list[tuple[list[str], str, str]]:
    """Classes of each row of the table, and what became of the two modes."""
    _, _, behind = PAGE.read_text().partition(TABLE)
    section = behind.partition("\n### ")[0].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if line.startswith("| `"):
            found.append((names, cells[1], cells[2]))
    return found


def test_every_class_that_keeps_states_is_in_one_row() -> None:
    told = sorted(name for names, _, _ in rows() for name in names)
    assert told == sorted(stateful_classes())


def test_every_row_says_what_was_run() -> None:
    for names, prefix, splice in rows():
        for said in (prefix, splice):
            assert re.match(r"(ran|read|refused: \w)", said), (names, said)
