"""Mode prefix where an engine rounds its rows to one byte."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from engine.vllm_harness import Engine, Setup, hybrid_model, prompt
from running import StartDaemon
from spliced_connector.vllm.layout.rows import FP8, Rounding

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.mark.parametrize("kept", sorted({*FP8.values()}, key=str))
@pytest.mark.parametrize("scale", [1.0, 0.0123, 3.7])
def test_what_is_read_is_rounded_to_the_same_bytes(kept: torch.dtype, scale: float) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(kept).to(torch.float32)
    codes = codes[torch.isfinite(numbers)]
    read = Rounding(kept, torch.bfloat16, (scale, scale)).decoded(codes, scale)
    again = (read.to(torch.float32) / scale).to(kept)
    assert torch.equal(again.view(torch.uint8), codes)


def vector_width() -> bool:
    return bool(torch.cpu._is_avx512_supported())


@pytest.mark.skipif(not vector_width(), reason="vLLM rounds rows on CPUs with AVX-512 only")
@pytest.mark.parametrize("kept", ["fp8", "fp8_e5m2"])
def test_rounded_rows_are_restored(kept: str, tmp_path: Path, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("-prefill-speed=500")
    engine = Engine(
        Setup(hybrid_model(tmp_path / "model"), daemon.socket, {}, {"kv_cache_dtype": kept})
    )
    try:
        asked = prompt(900, seed=3)
        rows = next(iter(engine.worker._mode._caches.rows.values()))  # type: ignore[union-attr]
        block = engine.scheduler._session.block_tokens  # type: ignore[union-attr]
        (cold,) = engine.ask(asked)
        engine.settle()
        rows._cache.zero_()
        (warm,) = engine.ask(asked)
        assert (cold.cached, warm.cached) == (0, 900 // block * block)
        assert (warm.tokens, warm.logprobs) == (cold.tokens, cold.logprobs)
    finally:
        engine.close()
