"""What vLLM's recurrent layers and those of transformers share a name for, they compute alike.

Layers of both compute the same rows in float32 with the same weights, whose constants are spread to
the ends of what models have: time steps from 1e-4 to 4, decays from none to at once, keys of almost
no length. Where the two differ, their names have to differ as well. (Those of
Qwen3-Next and Qwen3.5 compute in bfloat16 alone on a CPU, which hides what is looked for here.)
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine import (
    vllm_harness,  # noqa: F401 sets what vLLM reads of the environment
    vllm_kernels,
)
from engine.vllm_models import TINY, Tiny
from spliced_connector.model import identity_digest, served
from spliced_connector.vllm.support import describe
from spliced_connector.walk import Naming, architecture

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

WEIGHTS = b"\x06" * 32
TOKENS = 40
LIKE, UNLIKE = 1e-4, 1e-3
"""Of the largest output: how far float32 takes two layers apart, and what other constants do."""

NORMED = {"mamba_rms_norm": True}
LIMIT = {"time_step_limit": [0.001, 0.1]}
CASES: Mapping[str, tuple[Any, Mapping[str, object], bool]] = {
    # The model, what is changed in its config.json, and whether the two compute alike.
    "nemotron_h": (TINY["nemotron_h"], {}, False),  # dt of at least 0.001 in transformers
    "nemotron_h without a bound": (TINY["nemotron_h"], {"time_step_min": 0.0}, True),
    "granite": (TINY["granite"], {}, True),
    "granite with a bound": (TINY["granite"], LIMIT, False),
    "granite in groups": (TINY["granite"], {"mamba_n_groups": 2}, False),
    "falcon_h1": (TINY["falcon_h1"], {}, True),
    "falcon_h1 with a bound": (TINY["falcon_h1"], LIMIT, False),
    "falcon_h1 normed behind its gate": (
        TINY["falcon_h1"],
        NORMED | {"mamba_norm_before_gate": False},
        True,
    ),
    "falcon_h1 normed before its gate": (
        TINY["falcon_h1"],
        NORMED | {"mamba_norm_before_gate": True},
        False,
    ),
    "mamba2": (TINY["mamba2"], {"n_groups": 1}, True),
    "mamba2 with a bound": (TINY["mamba2"], LIMIT | {"n_groups": 1}, False),
    "mamba2 in groups": (TINY["mamba2"], {}, False),
    "zamba2": (TINY["zamba2"], {}, False),
    "jamba": (TINY["jamba"], {}, True),
    "mamba": (TINY["mamba"], {}, True),
    "falcon_mamba": (TINY["falcon_mamba"], {}, True),
    "olmo_hybrid": (TINY["olmo_hybrid"], {}, True),
}


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    vllm_kernels.replace()


@pytest.fixture(autouse=True)
def _groups() -> Iterator[None]:
    """Groups of ranks are made for each model: those with experts need one more."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    yield
    cleanup_dist_env_and_memory()


@pytest.mark.parametrize("case", CASES)
def test_layers_that_share_a_name_compute_alike(case: str, tmp_path: Path) -> None:
    import transformers

    tiny, changes, alike = CASES[case]
    path = _save(tiny, changes, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config, engine = load_layers(path)
    rows = _rows(model.config.hidden_size)
    pairs = list(zip(_served(engine), _own(model), strict=True))
    errors = [_distance(_compute(m, config, rows), own(rows[None])[0]) for m, own in pairs]
    assert max(errors) < LIKE if alike else max(errors) > UNLIKE, errors

    described = describe(config)
    theirs = identity_digest(WEIGHTS, described, "float32", "float32" + served(described))
    ours = architecture(model, Naming(WEIGHTS)).identity.weights
    assert (theirs == ours) == alike


def _save(tiny: Tiny, changes: Mapping[str, object], directory: Path) -> str:
    """Writes a model whose constants are spread over what trained models have."""
    from safetensors.torch import load_file, save_file

    if "mamba_n_groups" in changes or "n_groups" in changes or "mamba_rms_norm" in changes:
        tiny = replace(tiny, settings={**tiny.settings, **changes})  # other weights
    path = Path(tiny.save(directory))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | dict(changes)))
    generator = torch.Generator().manual_seed(7)
    ends = {"dt_bias": (-9.0, 4.0), "dt_proj.bias": (-9.0, 4.0), "A_log": (-7.0, 1.5)}
    for file in path.glob("*.safetensors"):
        weights = load_file(file)
        for name, weight in weights.items():
            for part, (low, high) in ends.items():
                if name.endswith(part):
                    spread = torch.linspace(low, high, weight.numel())
                    order = torch.randperm(weight.numel(), generator=generator)
                    weights[name] = spread[order].view(weight.shape).to(weight.dtype)
        save_file(weights, file, {"format": "pt"})
    return str(path)


def _rows(hidden: int) -> Tensor:
    """Rows of usual lengths, and some that are long, almost nothing, and nothing."""
    rows = torch.randn(TOKENS, hidden, generator=torch.Generator().manual_seed(3))
    for token, scale in ((5, 5.0), (9, 1e-2), (10, 1e-3), (11, 1e-4), (20, 0.0), (30, 3.0)):
        rows[token] *= scale
    return rows


def load_layers(path: str, dtype: str = "float32") -> tuple[Any, nn.Module]:
    """The model's layers of vLLM, with its weights, and no engine around them."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    arguments = EngineArgs(
        model=path,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=dtype,
        max_model_len=512,
        enable_prefix_caching=False,
    )
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{path}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        return config, get_model(vllm_config=config)


def _served(model: nn.Module) -> list[Any]:
    from spliced_connector.vllm.layout.mixers import mixer_of

    return [module for module in model.modules() if mixer_of(module) is not None]


def _own(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "A_log")]


def _compute(module: Any, config: Any, rows: Tensor) -> Tensor:
    """The output of a whole layer of vLLM, projections and norms too."""
    from vllm.forward_context import set_forward_context

    from spliced_connector.vllm.layout.mixers import Span, metadata_of

    shapes = zip(module.get_state_shape(), module.get_state_dtype(), strict=True)
    module.kv_cache = tuple(torch.zeros(2, *shape, dtype=dtype) for shape, dtype in shapes)
    metadata = {module.prefix: metadata_of(module, config, Span(rows, 0, 1))}
    out = torch.zeros_like(rows)
    with torch.inference_mode(), set_forward_context(metadata, config, num_tokens=len(rows)):
        if "output" not in inspect.signature(module.forward).parameters:
            given: Tensor = module(rows)
            return given
        module(rows, out)
    return out


def _distance(got: Tensor, want: Tensor) -> float:
    return float((got - want.detach()).abs().max() / want.detach().abs().max())
