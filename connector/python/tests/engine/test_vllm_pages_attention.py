"""Attention over shared rows beside a softmax over keys that were turned to their places."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

if find_spec("torch"):
    import torch
    from torch import Tensor

    from spliced_connector.model import Rope
    from spliced_connector.vllm.caches import _Elements
    from spliced_connector.vllm.pages import attention
    from spliced_connector.vllm.pages.attention import Query, attend, attend_each
    from spliced_connector.walk import Turns, angles, turn

HEADS, KV, DIM = 6, 2, 32


def naive(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, own: Tensor, scale: float) -> Tensor:
    """q [m, H, d] at positions `own`; k, v [n, KV, d] at `positions`: one row after another."""
    out = torch.empty(len(q), HEADS, v.shape[2], dtype=torch.float64)
    for i in range(len(q)):
        seen = positions <= own[i]
        for head in range(HEADS):
            kv = head // (HEADS // KV)
            scores = (k[seen, kv].double() @ q[i, head].double()) * scale
            out[i, head] = scores.softmax(0) @ v[seen, kv].double()
    return out


ROPES = (
    {"dims": 32, "theta": 10_000.0},
    {"dims": 8, "theta": 1e6},
    {"dims": 16, "theta": 10_000.0, "interleaved": True},
    {"dims": 0, "theta": 0.0},
)


@pytest.mark.parametrize("given", ROPES, ids=["whole", "partial", "interleaved", "none"])
@pytest.mark.parametrize("queries", [1, 5, 200])
def test_turned_queries_see_what_turned_keys_would_show(
    given: dict[str, float], queries: int
) -> None:
    torch.manual_seed(queries)
    rope = Rope(**given)  # type: ignore[arg-type]
    runs, private = [(40, 90, 37), (96, 160, 90), (160, 230, 160)], 320
    total = private + queries

    def turned(x: Tensor, by: Tensor) -> Tensor:
        if rope.dims == 0:
            return x
        cos, sin = angles(rope, by)
        return turn(x, cos[:, None], sin[:, None], rope.interleaved)

    k, v = (torch.randn(total, KV, DIM) for _ in range(2))
    q = torch.randn(queries, HEADS, DIM)
    everywhere = torch.arange(total)
    placed = turned(k, everywhere)
    shared = torch.cat([torch.arange(a, b) for a, b, _ in runs])
    own = everywhere[~torch.isin(everywhere, shared)]
    stored = [turned(k[a:b], torch.arange(a, b) - by) for a, b, by in runs]
    at = everywhere[-queries:]
    got = attend(
        turned(q, at),
        [(i, (stored[i], v[a:b])) for i, (a, b, _) in enumerate(runs)],
        [(placed[part], v[part]) for part in own.split(100)],
        Turns.back(rope, [by for _, _, by in runs]),
        DIM**-0.5,
    )
    want = naive(turned(q, at), placed, v, everywhere, at, DIM**-0.5)
    torch.testing.assert_close(got.double(), want, atol=3e-5, rtol=1e-4)


def test_slices_of_queries_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    rope = Rope(dims=32, theta=10_000.0)
    k, v = (torch.randn(150, KV, DIM) for _ in range(2))
    q, turns = torch.randn(70, HEADS, DIM), Turns.back(rope, [11, 90])
    shared = [(0, (k[:20], v[:20])), (1, (k[20:40], v[20:40])), (1, (k[40:60], v[40:60]))]
    own = [(k[60:], v[60:])]
    whole = attend(q, shared, own, turns, 0.2)
    monkeypatch.setattr(attention, "QUERY_ROWS", 16)
    torch.testing.assert_close(attend(q, shared, own, turns, 0.2), whole)


@pytest.mark.parametrize("given", ROPES, ids=["whole", "partial", "interleaved", "none"])
def test_several_requests_have_the_answers_that_each_has_alone(given: dict[str, float]) -> None:
    torch.manual_seed(3)
    rope = Rope(**given)  # type: ignore[arg-type]
    memory = [(torch.randn(64, KV, DIM), torch.randn(64, KV, DIM)) for _ in range(5)]

    def rows(block: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        return memory[block][0][begin:end], memory[block][1][begin:end]

    runs = {"a": [(0, 0, 40), (1, 3, 64)], "b": [(1, 3, 64), (0, 0, 40), (0, 48, 60)], "c": []}
    turns = {"a": [10, 70], "b": [8, 80, 130], "c": list[int]()}
    own = {"a": [(2, 0, 64), (3, 0, 9)], "b": [(4, 0, 1)], "c": [(2, 0, 64), (4, 5, 6)]}
    queries, want = [], []
    for name in runs:
        q = torch.randn(HEADS, DIM)
        back = Turns.back(rope, turns[name])
        spans = [*enumerate(runs[name]), *((-1, span) for span in own[name])]
        queries.append(Query(q, spans, back))
        shared = [(i, rows(*span)) for i, span in enumerate(runs[name])]
        want.append(attend(q[None], shared, [rows(*span) for span in own[name]], back, 0.3)[0])
    for one, other in zip(attend_each(queries, rows, 0.3), want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("packed", [False, True], ids=["strided", "packed"])
def test_rows_of_a_block_are_those_of_all_of_it(packed: bool) -> None:
    """Some CPUs keep keys in an order that no strides describe."""
    torch.manual_seed(4)
    cache = torch.randn(3, 16 * KV * DIM)
    offsets = torch.arange(16 * KV * DIM)
    if packed:
        offsets = offsets[torch.randperm(len(offsets))]
    elements = _Elements(cache, 0, offsets.view(16, KV, DIM))
    assert elements.is_strided != packed
    whole = elements.read(torch.tensor([2])).view(16, KV, DIM)
    assert torch.equal(elements.rows(2, 5, 13), whole[5:13])
