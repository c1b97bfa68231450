"""What decoding leaves of a recurrent state in 16 bits, by vLLM's own layers.

The same rows are computed at once, cut as chunked prefills are, and token by token behind a prompt.
A state in bfloat16 is rounded once by a cut, by decoding at each token: then it is farther off than
a cut and than the kernel for one token, so it is not stored (`serving.rounded`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import vllm_kernels
from engine.test_vllm_mixers import load_layers
from engine.vllm_harness import hybrid_model
from engine.vllm_models import TINY, Tiny

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

PROMPT, CHUNK = 128, 64
ANSWERS = (16, 64)
FAMILIES = ("qwen3_5", "mamba2", "jamba", "bailing_2.5")
LIKE = 0.006
"""Relative, of states: up to 0.004 where a kernel computes in bfloat16 or two cuts round to it."""
TIMES = 2
"""As far off as that: 2.6 times and more."""


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    vllm_kernels.replace()


@pytest.fixture(autouse=True)
def _groups() -> Iterator[None]:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    yield
    cleanup_dist_env_and_memory()


def layer_of(family: str, directory: Path) -> tuple[Any, Any]:
    """The engine's configuration and a recurrent layer, whose steps are as small as trained models
    have them."""
    from vllm.model_executor.layers.mamba.ops.ssu_dispatch import initialize_mamba_ssu_backend

    from spliced_connector.vllm.layout.mixers import mixer_of

    if family == "qwen3_5":
        path, dtype = hybrid_model(directory), "bfloat16"
    else:
        tiny = TINY[family]
        path = (replace(tiny, steps=-8.0) if isinstance(tiny, Tiny) else tiny).save(directory)
        dtype = "float32"
    config, model = load_layers(path, dtype)
    module = next(m for m in model.modules() if mixer_of(m) is not None)
    group = SimpleNamespace(kv_cache_spec=module.get_kv_cache_spec(config))
    initialize_mamba_ssu_backend(config.mamba_config, SimpleNamespace(kv_cache_groups=[group]))
    if family == "qwen3_5":
        module.A_log.data.copy_(torch.linspace(-7, 0, module.A_log.numel()))
    return config, module


def left(module: Any, config: Any, kept: torch.dtype, rows: Tensor, ends: Sequence[int]) -> Tensor:
    """The state behind rows that are computed up to each of these ends."""
    from spliced_connector.vllm.layout.mixers import Span, run

    *tails, (shape, _) = zip(module.get_state_shape(), module.get_state_dtype(), strict=True)
    caches = [torch.zeros(2, *size, dtype=dtype) for size, dtype in tails]
    caches.append(torch.zeros(2, *shape, dtype=kept))
    for begin, end in pairwise((0, *ends)):
        run(module, config, tuple(caches), Span(rows[begin:end], begin, 1))
    return caches[-1][1].double()


def errors(module: Any, config: Any, kept: torch.dtype, answer: int) -> tuple[float, float]:
    """How far from that of one prefill are the states of a prefill in chunks, and of decoding."""
    end = PROMPT + answer
    conv = module.get_state_shape()[0] if len(module.get_state_shape()) > 1 else None
    width = 3 * module.tp_heads * module.head_dim if conv is None else max(conv)
    dtype = module.get_state_dtype()[0]
    rows = torch.randn(end, width, generator=torch.Generator().manual_seed(5)).to(dtype)
    whole = left(module, config, kept, rows, [end])
    cut = left(module, config, kept, rows, [*range(CHUNK, end, CHUNK), end])
    decoded = left(module, config, kept, rows, [PROMPT, *range(PROMPT + 1, end + 1)])
    assert whole.norm() > 0
    off = [float((x - whole).norm() / whole.norm()) for x in (cut, decoded)]
    return off[0], off[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_rounds_more_than_any_cut_of_a_prefill(family: str, tmp_path: Path) -> None:
    config, module = layer_of(family, tmp_path / "model")
    for answer in ANSWERS:
        wide = errors(module, config, torch.float32, answer)
        cut, decoded = errors(module, config, torch.bfloat16, answer)
        print(family, answer, "float32", wide, "bfloat16", cut, decoded)
        assert max(*wide, cut) < LIKE
        assert decoded > TIMES * max(*wide, cut)
