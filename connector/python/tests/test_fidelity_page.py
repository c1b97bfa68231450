"""The tables and plots of docs/fidelity.md are those of the results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_shows_the_results(tmp_path: Path) -> None:
    page = tmp_path / "fidelity.md"
    shutil.copy(ROOT / "docs" / page.name, page)
    script = ROOT / "scripts" / "fidelity" / "report.py"
    subprocess.run([sys.executable, "-B", script, ROOT / "docs" / "results", page], check=True)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["fidelity-bytes.svg", "fidelity.md", "fidelity.svg"]
    for name in written:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), name
    assert page.read_text().count("<!-- fidelity: ") > 15
