"""The chunked scan against a loop over tokens in float64, for every family."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spliced_connector.model import Rope
from spliced_connector.walk import Steps, families

pytestmark = pytest.mark.engine


def make_steps(kind: str, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Steps:
    """Two key heads, four value heads, dk != dv; decays from almost none to very strong."""
    g = torch.Generator().manual_seed(seed)
    hk, hv, dk, dv = 2, 4, 16, 24
    if kind == "mamba1":
        hk, hv, dk, dv = 1, 6, 4, 1
    q, k = (torch.randn(n, hk, dk, generator=g, dtype=torch.float64) for _ in "qk")
    v = torch.randn(n, hv, dv, generator=g, dtype=torch.float64)
    rate = torch.logspace(-3, 0.7, hv, dtype=torch.float64)
    decay = -rate * torch.rand(n, hv, generator=g, dtype=torch.float64)
    beta = skip = erase = None
    if kind in ("gdn", "kda"):
        k = k / k.norm(dim=-1, keepdim=True)
        beta = 2 * torch.rand(n, hv, generator=g, dtype=torch.float64)
    if kind == "gdn2":
        k = k / k.norm(dim=-1, keepdim=True)
        gates = torch.rand(n, hv, dk, generator=g, dtype=torch.float64)
        erase = 2 * gates * k.repeat_interleave(hv // hk, 1)
        v = v * torch.rand(n, hv, dv, generator=g, dtype=torch.float64)
    if kind in ("kda", "gla", "mamba1", "gdn2"):
        decay = decay[..., None] * torch.rand(n, hv, dk, generator=g, dtype=torch.float64)
    if kind == "mamba1":
        skip = torch.randn(n, hv, dv, generator=g, dtype=torch.float64)
    rest = [None if x is None else x.to(dtype) for x in (beta, skip, erase)]
    return Steps(q.to(dtype), k.to(dtype), v.to(dtype), decay.to(dtype), *rest)


def loop(steps: Steps, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token after another in float64."""
    state = state.double().clone()
    q, k, v, decay = (x.double() for x in (steps.q, steps.k, steps.v, steps.decay))
    repeat = v.shape[1] // k.shape[1]
    out = []
    for t in range(v.shape[0]):
        qt, kt = q[t].repeat_interleave(repeat, 0), k[t].repeat_interleave(repeat, 0)
        g = decay[t].exp()
        state = state * (g[:, None, None] if g.dim() == 1 else g[:, :, None])
        new = v[t]
        if steps.beta is not None:
            read = torch.einsum("hk,hkv->hv", kt, state)
            new = steps.beta[t].double()[:, None] * (v[t] - read)
        if steps.erase is not None:
            new = v[t] - torch.einsum("hk,hkv->hv", steps.erase[t].double(), state)
        state = state + kt[:, :, None] * new[:, None, :]
        o = torch.einsum("hk,hkv->hv", qt, state)
        out.append(o if steps.skip is None else o + steps.skip[t])
    return torch.stack(out), state


def rows(steps: Steps, lo: int, hi: int) -> Steps:
    parts = (steps.q, steps.k, steps.v, steps.decay, steps.beta, steps.skip, steps.erase)
    return Steps(*[None if x is None else x[lo:hi] for x in parts])


def worst(a: Tensor, b: Tensor) -> float:
    return float(
        ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1)).item()
    )


FAMILIES = ["gdn", "kda", "gdn2", "mamba2", "gla", "mamba1"]


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("n", [1, 3, 16, 64, 65, 150])
def test_scan_equals_the_loop(kind: str, n: int) -> None:
    steps = make_steps(kind, n)
    start = torch.randn_like(families.zero_state(steps))
    want_o, want_s = loop(steps, start)
    o, s = families.recur(steps, start)
    assert worst(o, want_o) < 2e-6
    assert worst(s, want_s) < 2e-6


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_run_is_its_transition_and_end_state(kind: str) -> None:
    steps = make_steps(kind, 100, dtype=torch.float64)
    start = torch.randn_like(families.zero_state(steps))
    whole = loop(steps, start)[1]
    parts = [rows(steps, 0, 37), rows(steps, 37, 100)]
    for pieces in ([steps], parts):
        state = start
        for p in pieces:
            state = families.compose(families.transition(p), families.end_state(p), state)
        assert worst(state, whole) < 1e-12


@pytest.mark.parametrize("kind", ["gdn", "kda"])
def test_gates_per_channel_that_are_equal_are_the_gate_of_a_head(kind: str) -> None:
    """Gated DeltaNet-2 is KDA where both gates are one number, and GDN where the decay is too."""
    steps = make_steps(kind, 150, dtype=torch.float64)
    assert steps.beta is not None
    keys = steps.k.repeat_interleave(2, 1)
    beta, decay = steps.beta[..., None], steps.decay
    if kind == "gdn":
        decay = decay[..., None].expand_as(keys)
    same = Steps(steps.q, steps.k, beta * steps.v, decay, erase=beta * keys)
    start = torch.randn_like(families.zero_state(steps))
    for got, want in zip(families.recur(same, start), families.recur(steps, start), strict=True):
        assert worst(got, want) < 1e-12
    assert worst(families.transition(same), families.transition(steps)) < 1e-12
    assert worst(families.end_state(same), families.end_state(steps)) < 1e-12


def test_transitions_multiply_later_ones_on_the_left() -> None:
    steps = make_steps("gdn", 90, dtype=torch.float64)
    a, b = (families.transition(rows(steps, *r)) for r in ((0, 40), (40, 90)))
    assert worst(b @ a, families.transition(steps)) < 1e-12
    assert worst(a @ b, families.transition(steps)) > 1e-2


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("lengths", [(8, 16, 1, 16, 130), (130, 16, 16, 5, 9), (16, 16), (4,)])
def test_short_runs_may_be_passed_by_their_tuples(kind: str, lengths: tuple[int, ...]) -> None:
    """Who moves states elsewhere, by T and S, hands back the states in between."""
    steps = make_steps(kind, sum(lengths), dtype=torch.float64)
    chunk = families.chunk_length(steps)
    start = torch.randn_like(families.zero_state(steps))
    runs = families.Runs(lengths, chunk, start.device)
    want, got = (families.Scan(steps, runs) for _ in range(2))
    states = [start]
    for run in range(len(lengths)):
        states.append(want.advance(run, states[-1]))
    short = [run for run in range(len(lengths)) if got.short(run)]
    assert short == [run for run, n in enumerate(lengths) if n <= chunk]
    together = range(short[0], short[-1] + 1)
    assert list(together) == short
    transitions, ends = got.tuples(together)
    for run, t, s in zip(together, transitions, ends, strict=True):
        begin = sum(lengths[:run])
        alone = rows(steps, begin, begin + lengths[run])
        assert t.shape == families.transition(alone).shape
        assert worst(t, families.transition(alone)) < 1e-12
        assert worst(s, families.end_state(alone)) < 1e-12
        assert worst(families.compose(t, s, states[run]), states[run + 1]) < 1e-12
    got.moved_over(together, torch.stack(states[short[0] : short[-1] + 1]))
    for run in range(len(lengths)):
        if run not in short:
            got.advance(run, states[run])
    assert worst(got.outputs(), want.outputs()) < 1e-12


@pytest.mark.parametrize("kind", FAMILIES)
def test_runs_are_independent_and_states_may_come_from_anywhere(kind: str) -> None:
    lengths = [7, 130, 1, 64, 16]
    steps = make_steps(kind, sum(lengths))
    size = families.chunk_length(steps)
    scan = families.Scan(steps, families.Runs(lengths, size, steps.v.device))
    want, at = [], 0
    for run, n in enumerate(lengths):
        start = torch.randn_like(families.zero_state(steps))
        o, end = loop(rows(steps, at, at + n), start)
        assert worst(scan.advance(run, start), end) < 2e-6
        want.append(o)
        at += n
    assert worst(scan.outputs(), torch.cat(want)) < 2e-6


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_transition_of_a_run_is_that_of_its_rows(kind: str) -> None:
    steps = make_steps(kind, 100, dtype=torch.float64)
    size = families.chunk_length(steps)
    scan = families.Scan(steps, families.Runs([20, 80], size, steps.v.device))
    alone = rows(steps, 20, 100)
    assert worst(scan.transition(1), families.transition(alone)) < 1e-12
    start = torch.randn_like(families.zero_state(steps))
    end = scan.advance(1, start)
    assert worst(end, loop(alone, start)[1]) < 1e-12
    found = families.written(scan.transition(1), start, end)
    assert worst(found, families.end_state(alone)) < 1e-12


@pytest.mark.parametrize("kind", FAMILIES)
def test_states_within_a_run_are_those_of_its_first_rows(kind: str) -> None:
    steps = make_steps(kind, 80, seed=5)
    scan = families.Scan(
        steps, families.Runs([7, 73], families.chunk_length(steps), steps.v.device)
    )
    begin = torch.randn(
        families.zero_state(steps).shape, generator=torch.Generator().manual_seed(1)
    )
    with pytest.raises(RuntimeError):
        scan.behind(1, 1)
    scan.advance(0, begin)
    scan.advance(1, begin)
    for run, lo, counts in ((0, 0, range(1, 8)), (1, 7, (1, 15, 16, 17, 63, 64, 65, 73))):
        for n in counts:
            _, want = loop(rows(steps, lo, lo + n), begin)
            assert worst(scan.behind(run, n), want) <= 1e-5


def test_outputs_of_a_run_that_was_not_advanced_are_refused() -> None:
    steps = make_steps("gdn", 20)
    scan = families.Scan(steps, families.Runs([10, 10], 64, steps.v.device))
    scan.advance(0, families.zero_state(steps))
    with pytest.raises(RuntimeError):
        scan.outputs()


def test_strong_decays_do_not_overflow_and_keep_neighbours_exact() -> None:
    steps = make_steps("gdn", 64)
    decay = torch.full_like(steps.decay, -1e-4)
    decay[:32] = -50.0
    steps = Steps(steps.q, steps.k, steps.v, decay, steps.beta)
    o, s = families.recur(steps)
    want_o, want_s = loop(steps, families.zero_state(steps))
    assert worst(o, want_o) < 2e-6
    assert worst(s, want_s) < 2e-6


@pytest.mark.parametrize("kind", ["gdn", "mamba2", "gla"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_composition_reads_stored_types(kind: str, dtype: torch.dtype) -> None:
    steps = make_steps(kind, 50)
    t, s = families.transition(steps), families.end_state(steps)
    before = torch.randn_like(s)
    want = families.compose(t.to(dtype).float(), s.to(dtype).float(), before)
    got = families.compose(t.to(dtype), s.to(dtype), before)
    assert got.dtype == torch.float32
    assert torch.equal(got, want)


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_turn_by_the_distance_in_complex_planes(interleaved: bool) -> None:
    rope = Rope(dims=12, theta=10000.0, interleaved=interleaved)
    x = torch.randn(9, 2, 16, dtype=torch.float64)
    distance = torch.tensor([0, 1, 5, 100, 1000, 6000, -3, 17, 2])
    got = families.rotate(x, distance, rope)
    for j in range(6):
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + 6)
        for i in range(9):
            angle = float(distance[i]) * 10000.0 ** (-2 * j / 12)
            plane = torch.complex(x[i, :, a], x[i, :, b]) * complex(
                math.cos(angle), math.sin(angle)
            )
            assert torch.allclose(got[i, :, a], plane.real, atol=1e-6)
            assert torch.allclose(got[i, :, b], plane.imag, atol=1e-6)
    assert torch.equal(got[..., 12:], x[..., 12:])
    assert torch.equal(families.rotate(x, distance, Rope()), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_turned_keys_keep_their_type(dtype: torch.dtype) -> None:
    rope = Rope(dims=8, theta=100.0)
    x = torch.randn(3, 2, 8).to(dtype)
    once = families.rotate(x, torch.tensor([4, 4, 4]), rope)
    assert once.dtype == dtype
    want = families.rotate(x.double(), torch.tensor([4, 4, 4]), rope)
    assert worst(once, want) < {torch.float32: 1e-6, torch.float16: 1e-3}.get(dtype, 8e-3)


def test_a_state_of_turned_keys_turns_as_a_whole() -> None:
    rope = Rope(dims=16, theta=1000.0)
    steps = make_steps("mamba2", 40, dtype=torch.float64)
    turned = families.rotate(steps.k, torch.full((40,), 9), rope)
    want = families.end_state(Steps(steps.q, turned, steps.v, steps.decay))
    assert worst(families.rotate_state(families.end_state(steps), 9, rope), want) < 1e-6


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("decay", [0.0, 1e-5])
def test_the_end_state_of_rows_follows_from_the_states_around_them(kind: str, decay: float) -> None:
    """After 1,024 rows that hardly decay: S by the difference is S from zero, to 1e-5."""
    before, after = make_steps(kind, 1024, 1), make_steps(kind, 48, 2)
    before, after = (replace(x, decay=torch.full_like(x.decay, -decay)) for x in (before, after))
    state = families.recur(before)[1]
    scan = families.Scan(after, families.Runs([48], families.chunk_length(after), state.device))
    transition, behind = scan.transition(0), scan.advance(0, state.clone())
    got = families.written(transition, state, behind)
    want = loop(after, families.zero_state(after))[1]
    assert float((got - want).norm() / want.norm()) <= 1e-5
