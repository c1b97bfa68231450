"""Mode splice on vLLM's Ling 2.5: Lightning attention that turns its keys, and latent attention.

In float32, beside walks over the engine's modules and over a model of the same weights that shares
nothing with it. The Lightning kernels run on GPUs alone and are replaced, see `vllm_kernels`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

if importlib.util.find_spec("vllm") is not None:
    import torch
    from torch import Tensor, nn

    from engine import vllm_kernels
    from engine.ling_model import ling
    from engine.splice_requests import SEGMENT, ask, ids_of, start, warm, worker
    from engine.vllm_harness import Engine
    from running import Daemon
    from spliced_connector.model import Profile, choose, divide, make_plan
    from spliced_connector.walk import (
        Architecture,
        Context,
        Naming,
        architecture,
        capture,
        families,
        prefill,
        splice,
    )

SEAM = 8
LIKE = 2e-3
"""Of log-probabilities of all tokens."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, nn.Module]]:
    vllm_kernels.replace()
    directory = tmp_path_factory.mktemp("ling")
    model = ling(directory)
    daemon = Daemon(tmp_path_factory.mktemp("d"), "-arena=256MiB", "-prefill-speed=5")
    daemon.start()
    engine = start(str(directory), daemon.socket, options={"dtype": "float32"})
    try:
        engine.wait_attached()
        yield engine, model
    finally:
        engine.close()
        daemon.stop()


def full(arch: Architecture, ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        h = prefill(arch, ids, Context(arch, len(ids), torch.device("cpu")))
        return arch.logits(h[-1:])[0].log_softmax(-1)


def walked(arch: Architecture, order: Sequence[int]) -> Tensor:
    """Log-probabilities behind segments that were captured alone and spliced."""
    profile = Profile(arch.identity)
    ids, cuts = ids_of(order)
    cut = divide(profile, b"", ids, cuts, SEAM)
    plan = make_plan(cut, 0, choose(cut, 0, [True] * len(order), [False] * len(order)))
    with torch.inference_mode():
        segments = {}
        for piece in cut.pieces:
            assert piece.spec is not None
            segments[piece.index] = capture(arch, ids[piece.start : piece.end], piece.spec)
        h = splice(arch, ids, plan.spans, segments, Context(arch, len(ids), torch.device("cpu")))
        assert h is not None
        return arch.logits(h[-1:])[0].log_softmax(-1)


def own(model: nn.Module) -> Architecture:
    return architecture(model, Naming(b"\x07" * 32))


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_a_walk_over_its_modules_gives_its_logits(pair: tuple[Engine, nn.Module]) -> None:
    engine, model = pair
    ids, _ = ids_of([0, 1])
    reply = ask(engine, ids)
    assert reply.told.get("way") in (None, "engine")
    assert far(reply.logprobs, full(worker(engine)._arch, ids)) < LIKE
    assert far(reply.logprobs, full(own(model), ids)) < LIKE


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_a_splice_is_that_of_the_model(
    pair: tuple[Engine, nn.Module], order: Sequence[int]
) -> None:
    """In the order in which segments were captured and in another."""
    engine, model = pair
    reply = warm(engine, order)
    assert reply.told["reused"] == SEGMENT + 3 * (SEGMENT - 2 * SEAM)
    assert reply.cached == reply.told["tokens"]
    assert far(reply.logprobs, walked(own(model), order)) < LIKE
    assert far(reply.logprobs, walked(worker(engine)._arch, order)) < LIKE


def test_states_that_are_not_turned_show(
    pair: tuple[Engine, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, model = pair
    warm(engine, (0, 1, 2, 3))
    want = walked(own(model), (0, 1, 2, 3))
    monkeypatch.setattr(families, "rotate_state", lambda state, *_: state)
    assert far(warm(engine, (0, 1, 2, 3)).logprobs, want) > 30 * LIKE


def test_the_tokens_behind_a_leading_segment_are_those_of_no_cache(
    pair: tuple[Engine, nn.Module],
) -> None:
    engine, _ = pair
    ids, cuts = ids_of([4, 5, 6])
    alone = ask(engine, ids)
    for _ in range(3):
        reply = ask(engine, ids, [0, cuts[-1]])
        assert engine.worker.drain(30)
    assert reply.told["reused"] == cuts[-1]
    assert reply.tokens == alone.tokens
    assert far(reply.logprobs, alone.logprobs) < LIKE
