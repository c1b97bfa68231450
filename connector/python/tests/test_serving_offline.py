"""What the command `fidelity` writes, as an engine's setting reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spliced_connector.client import LossCounts, SpliceWay
from spliced_connector.fidelity.intervals import share
from spliced_connector.fidelity.report import Figures, Settings, document
from spliced_connector.fidelity.ways import ways_of
from spliced_connector.model import primer_digest
from spliced_connector.serving.offline import read_losses

WEIGHTS = bytes(range(32))
PRIMER, OTHER = (1, 2, 3), (4, 5)
SAME = {"full prefill": 1.0, "prefix reuse": 1.0, "spliced, no primer": 0.86}


def weights() -> bytes:
    return WEIGHTS


def unread() -> bytes:
    raise AssertionError("an engine without the setting reads its weights for it")


def written() -> Any:
    """Of 300 prompts, in all ways."""
    rows = []
    for i, way in enumerate(ways_of(["default", "/texts/other.txt"], (0.3, 0.01))):
        equal = round(300 * SAME.get(way.name, 0.9 + i / 100))
        first = share([j < equal for j in range(300)])
        rows.append(Figures(way, 300, first, 1.0, first, None, 0.1, ()))
    about = {
        "weights": WEIGHTS.hex(),
        "seam_tokens": 8,
        "primer_after": 128,
        "primers": {
            "default": {"tokens": 3, "digest": primer_digest(PRIMER).hex()},
            "/texts/other.txt": {"tokens": 2, "digest": primer_digest(OTHER).hex()},
        },
    }
    return document(about, rows, Settings(), [], [])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(written()))
    return path


def test_the_ways_of_the_engines_own_primer_are_counted(path: Path) -> None:
    """Of refreshed ways the one with the last segment in context."""
    alone = {
        SpliceWay(): LossCounts(300, 42),
        SpliceWay(refreshed=True): LossCounts(300, 300 - round(300 * 0.94)),
    }
    assert read_losses(str(path), weights, (), 8, 999) == alone
    assert read_losses(str(path), weights, (9, 9), 8, 999) == alone, "its primer was not measured"
    primed = read_losses(str(path), weights, OTHER, 8, 128)
    assert primed == alone | {
        SpliceWay(primed=True): LossCounts(300, 300 - round(300 * 0.98)),
        SpliceWay(primed=True, refreshed=True): LossCounts(300, 0),
    }
    assert read_losses("", unread, OTHER, 8, 128) == {}


@pytest.mark.parametrize(
    ("seams", "after", "text"),
    [(16, 128, "at seam_tokens 8, the engine has 16"), (8, 64, "at primer_after 128")],
)
def test_figures_of_other_settings_are_refused(
    path: Path, seams: int, after: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        read_losses(str(path), weights, PRIMER, seams, after)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.pop("ways"), "was not written by this command"),
        (lambda d: d["ways"][2].pop("prompts"), "was not written by this command"),
        (lambda d: d["ways"][2].update(prompts=-1), "of -1 first tokens"),
        (lambda d: d["ways"][2].update(prompts=True), "of True first tokens"),
        (lambda d: d["ways"][2].update(prompts=2**32), "of 4294967296 first tokens"),
        (lambda d: d.pop("weights"), "measure again with this version"),
        (lambda d: d.update(weights="ab" * 32), "measured on another model: weights abababababab"),
        (lambda d: d["ways"][2]["first"].update(value=1.5), "1.5 of 300 first tokens"),
        (lambda d: d.update(ways=d["ways"][:2]), "no way of splicing was measured"),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    path: Path, change: Callable[[Any], object], text: str
) -> None:
    document = written()
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=text):
        read_losses(str(path), weights, (), 8, 128)
    for written_over in ("[1", "[" * 100_000):
        path.write_text(written_over)
        with pytest.raises(ValueError, match="fidelity: "):
            read_losses(str(path), weights, (), 8, 128)
    with pytest.raises(ValueError, match="No such file"):
        read_losses(f"{path}.gone", weights, (), 8, 128)


def test_larger_shares_than_the_last_segment_count_for_no_way(path: Path) -> None:
    document = written()
    for row in document["ways"]:
        if row["way"]["refresh"]:
            row["way"]["refresh_share"] = 0.02
    path.write_text(json.dumps(document))
    assert list(read_losses(str(path), weights, (), 8, 128)) == [SpliceWay()]
