"""Errors of chains stay within what is stated of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chains import LENGTHS, chains  # noqa: E402
from ways import Variant  # noqa: E402

from spliced_connector.model import Role, SegmentSpec  # noqa: E402
from spliced_connector.walk import Captured  # noqa: E402
from spliced_connector.walk.base import SegmentLayer  # noqa: E402

SPEC = SegmentSpec(Role.MID, 0, 0, 8)


def some(n: int, forgets: float) -> list[Captured]:
    rng = torch.Generator().manual_seed(3)
    out = []
    for _ in range(n):
        k = torch.nn.functional.normalize(torch.randn(2, 8, 16, generator=rng), dim=-1)
        t = forgets * (torch.eye(16) - 0.5 * k.mT @ k / 2)
        s = torch.randn(2, 16, 16, generator=rng)
        out.append(Captured(SPEC, (SegmentLayer(t, s), SegmentLayer())))
    return out


def numbers(n: int) -> list[Captured]:
    """Segments whose transitions are one number a head."""
    return [
        Captured(s.spec, (replace(s.layers[0], transition=torch.tensor([0.9, 0.2])),))
        for s in some(n, 1.0)
    ]


@pytest.mark.parametrize("forgets", [1.0, 0.9, 0.01])
def test_errors_are_within_their_bound(forgets: float) -> None:
    ways = [Variant(str(tau), stored="packed", tau=tau) for tau in (0.002, 0.02)]
    found = chains([Variant("exact", stored="float32"), *ways], some(80, forgets))
    assert all(row["most"] < 1e-6 for row in found["exact"].values())
    for way in ("0.002", "0.02"):
        assert list(found[way]) == [str(n) for n in LENGTHS]
        for row in found[way].values():
            assert 0 < row["mean"] <= row["most"] <= 0.5
            assert row["mean"] <= row["bound"]
    assert found["0.002"]["40"]["mean"] < found["0.02"]["40"]["mean"]


def test_transitions_that_are_numbers_add_no_error() -> None:
    ways = [Variant(name, stored=name, tau=0.02) for name in ("float32", "packed")]
    found = chains(ways, numbers(10))
    assert all(row["most"] < 1e-6 for row in found["float32"].values())
    assert all(0 < row["mean"] <= row["bound"] <= 0.1 for row in found["packed"].values())
