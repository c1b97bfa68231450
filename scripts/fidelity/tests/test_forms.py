"""Small forms keep what they promise, in the bytes they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from forms import (  # noqa: E402
    beside,
    centred,
    eight_bits,
    floats,
    norm_bound,
    rows,
    states,
    transitions,
)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_rows_are_whole_numbers_of_their_bits() -> None:
    m = some(3, 8, 16)
    kept = rows(m, 4)
    scale = m.abs().amax(-1, keepdim=True) / 7
    assert ((kept.matrices - m).abs() <= scale / 2 * 1.0001).all()
    assert all(len(row.unique()) <= 15 for row in kept.matrices.flatten(0, 1))
    assert kept.sizes.tolist() == [8 * 16 // 2 + 4 * 8] * 3


def test_keys_are_kept_in_8_bits_where_that_is_near_enough() -> None:
    x = some(5, 2, 64)
    kept = eight_bits(x, 0.02)
    assert 0 < float((kept.matrices - x).norm() / x.norm()) <= 0.02
    assert kept.matrices.shape == x.shape
    assert kept.sizes.tolist() == [5 * 2 * (64 + 4)]
    kept = eight_bits(x, 0.002)
    assert torch.equal(kept.matrices, x)
    assert kept.sizes.tolist() == [2 * x.numel()]


def test_rows_of_nothing_stay_nothing() -> None:
    assert not rows(torch.zeros(1, 4, 4), 8).matrices.any()


def test_multiples_of_the_identity_are_exact() -> None:
    t = 0.75 * torch.eye(8).expand(2, 8, 8)
    kept = centred(t, 4)
    assert (kept.matrices == t).all()
    assert kept.sizes.tolist() == [8 * 8 // 2 + 4 * 8 + 4] * 2


def test_states_of_low_rank_take_the_bytes_of_their_rank() -> None:
    s = (some(4, 32, 3) * torch.tensor([1, 0.3, 0.1])) @ some(4, 3, 32)
    s[0] = some(32, 32)
    kept = states("packed", s, 0.02)
    error = torch.linalg.matrix_norm(kept.matrices - s) / torch.linalg.matrix_norm(s)
    assert (error <= 0.02).all()
    assert kept.sizes[0] == states("whole", s, 0.02).sizes[0] == 32 * (32 + 4)
    assert all(3 * (32 + 32 + 4) <= size <= 5 * (32 + 32 + 4) for size in kept.sizes[1:].tolist())


def test_transitions_of_few_tokens_are_of_low_rank() -> None:
    k = torch.nn.functional.normalize(some(2, 3, 32), dim=-1)
    t = 0.9 * torch.eye(32) - 0.3 * k.mT @ k
    kept = transitions("ranked", t, 0.02)
    assert (torch.linalg.matrix_norm(kept.matrices - t, 2) <= 0.02).all()
    assert kept.sizes.tolist() == [3 * (32 + 32 + 8) + 4] * 2
    full = transitions("ranked", some(2, 32, 32) / 8, 0.02)
    assert (full.sizes == transitions("packed", some(2, 32, 32) / 8, 0.02).sizes).all()


def test_floats_are_off_by_a_sixteenth_at_most() -> None:
    m = some(3, 8, 16)
    kept = floats(m)
    assert ((kept.matrices - m).abs() <= m.abs() / 16 * 1.0001 + m.abs().amax() * 2**-17).all()
    assert kept.sizes.tolist() == [8 * 16 + 4 * 8] * 3
    assert (beside(0.5 * torch.eye(8).expand(1, 8, 8), floats).matrices == 0.5 * torch.eye(8)).all()


def test_bound_is_never_below_the_norm() -> None:
    m = some(50, 16, 16)
    assert (norm_bound(m) >= torch.linalg.matrix_norm(m, 2)).all()


@pytest.mark.parametrize("tau", [0.1, 0.01, 0.001])
def test_packed_stays_within_tau(tau: float) -> None:
    t = torch.cat([some(4, 16, 16) / 16, torch.zeros(1, 16, 16)])
    kept = transitions("packed", t, tau)
    assert (torch.linalg.matrix_norm(kept.matrices - t, 2) <= tau).all()
    assert kept.sizes[-1] == 0
    s = some(4, 16, 16)
    error = torch.linalg.matrix_norm(states("packed", s, tau).matrices - s)
    assert (error <= tau * torch.linalg.matrix_norm(s)).all()


def test_packed_takes_less_the_more_it_may_lose() -> None:
    s = some(4, 16, 16)
    sizes = [int(states("packed", s, tau).sizes.sum()) for tau in (0.0, 1e-3, 1e-2, 1e-1)]
    assert sizes[0] == 4 * 4 * 16 * 16
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("form", ["packed", "int8", "float16"])
def test_transitions_that_are_numbers_stay_as_they_are(form: str) -> None:
    t = torch.tensor([0.5, 0.001, 0.0])
    kept = transitions(form, t, 0.02)
    assert torch.equal(kept.matrices, t)
    assert kept.sizes.tolist() == [4] * 3
