"""docs/engines.md has every setting of the adapters, with its default."""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING, fields

import pytest

from running import ROOT
from spliced_connector.sglang.settings import HiCacheSettings
from spliced_connector.sglang.splice_settings import SpliceSettings
from spliced_connector.vllm.settings import Settings

ADAPTER = ROOT / "connector/python/src/spliced_connector/hf/adapter.py"


def printed(engine: str) -> dict[str, str]:
    """Returns the defaults that the page prints for an engine's settings, by name."""
    page = (ROOT / "docs/engines.md").read_text("utf-8")
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| `") and engine in cells[3]:
            names = [name.strip("`") for name in cells[1].split(", ")]
            defaults = cells[2].split(", ") if len(names) > 1 else [cells[2]]
            found |= dict(zip(names, defaults, strict=True))
    return found


@pytest.mark.parametrize(
    ("engine", "kind"), [("V", Settings), ("S", SpliceSettings), ("H", HiCacheSettings)]
)
def test_settings_of_servers_are_printed_with_their_defaults(engine: str, kind: type) -> None:
    defaults = {field.name: field.default for field in fields(kind)}
    assert printed(engine).keys() == defaults.keys()
    for name, text in printed(engine).items():
        default = defaults[name]
        if default in (MISSING, "", (), -1) or (name, default) == ("max_checkpoints", 0):
            # The page says in words what is used then.
            assert not re.fullmatch(r"`?[\w.]+`?", text.replace("none", "")), name
        else:
            shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
            assert text.strip("`") == shown, name


def test_settings_of_transformers_are_printed() -> None:
    """Read from its source, as the module imports torch."""
    tree = ast.parse(ADAPTER.read_text("utf-8"))
    (settings,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "HFSettings")
    targets = (node.target for node in settings.body if isinstance(node, ast.AnnAssign))
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    assert printed("T").keys() == names
