"""One pass for several specs against one pass for each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from captures import captures  # noqa: E402
from measure import load  # noqa: E402
from questions import question  # noqa: E402
from serve import Server  # noqa: E402
import generate  # noqa: E402

from spliced_connector.model import divide  # noqa: E402
from spliced_connector.walk import capture  # noqa: E402


def test_one_pass_keeps_what_a_pass_for_each_spec_keeps(model: Path) -> None:
    server = load(model)
    assert isinstance(server, Server)
    q = question(7, 2, generate.shape_of(model))
    ids = list(q.ids[q.cuts[1] : q.cuts[2]])
    specs = []
    for seam, tail in ((0, None), (8, None), (16, None), (8, 0), (0, 8)):
        piece = divide(server.profile, b"", q.ids, q.cuts, seam, tail).pieces[1]
        assert piece.spec is not None and piece.end - piece.start == len(ids)
        specs.append(piece.spec)
    assert len(set(specs)) == len(specs)
    found = captures(server.arch, ids, specs)
    for spec in specs:
        for a, b in zip(found[spec].layers, capture(server.arch, ids, spec).layers, strict=True):
            for field in ("transition", "state", "conv", "k", "v"):
                x, y = getattr(a, field), getattr(b, field)
                assert (x is None) == (y is None)
                if x is not None:
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
