"""Exact prefixes of every recurrent family that vLLM can be made to run here, by vLLM itself."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from engine import vllm_kernels
from engine.vllm_harness import Engine, Setup, prompt
from engine.vllm_models import TINY, Tiny
from running import Daemon
from spliced_connector.client import Client, Options
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf.reuse import Reuse
from spliced_connector.model import (
    Conv,
    DType,
    Family,
    Identity,
    Kind,
    Layer,
    Linear,
    Profile,
    weights_digest,
)
from spliced_connector.walk import Naming

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

LIKE = 2e-3
"""Of log-probabilities in float32: what two implementations of one layer differ by."""

SHARED = prompt(3 * 128, seed=1)
FIRST = prompt(600, seed=2, prefix=SHARED)
SECOND = prompt(500, seed=3, prefix=SHARED)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    vllm_kernels.replace()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("families"), "-prefill-speed=5")
    made.start()
    yield made
    made.stop()


# By default Falcon-Mamba stands for Mamba here, and Jamba in the comparison with transformers.
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.wide] if f == "jamba" else []) for f in TINY],
)
def test_prefixes_of_a_family(
    family: str, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are those of no cache, and without the states they are others."""
    from spliced_connector.vllm.layout.states import StatePages

    model = TINY[family].save(tmp_path / "model")
    engine = Engine(Setup(model, daemon.socket, options=dict(TINY[family].options)))
    try:
        engine.wait_attached()
        session = engine.scheduler._session
        assert session is not None
        block = session.block_tokens
        alone = [engine.ask(p, cache_salt=str(i))[0] for i, p in enumerate((FIRST, SECOND))]
        assert [a.cached for a in alone] == [0, 0]
        (cold,) = engine.ask(FIRST)
        assert (cold.cached, cold.tokens) == (0, alone[0].tokens)
        assert cold.logprobs == pytest.approx(alone[0].logprobs, abs=1e-3)
        engine.settle()
        assert "inert" not in engine.counts()
        (shared,) = engine.ask(SECOND)
        assert block <= shared.cached <= len(SHARED)
        assert shared.tokens == alone[1].tokens
        engine.settle()
        (warm,) = engine.ask(FIRST)
        assert warm.cached == (len(FIRST) - 1) // block * block
        assert (warm.tokens, warm.logprobs) == (cold.tokens, cold.logprobs)
        engine.settle()
        monkeypatch.setattr(StatePages, "write", lambda *_: None)
        (wrong,) = engine.ask(FIRST)
        assert wrong.cached == warm.cached
        assert wrong.logprobs != warm.logprobs
    finally:
        engine.close()


def _slow(family: str, directory: Path) -> str:
    """A model whose time steps are as small as trained models have them: a bound of 0.001 or a
    state of another layer shows in its answers."""
    tiny = TINY[family]
    assert isinstance(tiny, Tiny)
    return replace(tiny, steps=-8.0).save(directory)


@contextlib.contextmanager
def _two_engines(path: str, daemon: Daemon) -> Iterator[tuple[Engine, SplicedTransformers, int]]:
    """vLLM and transformers at one daemon, in float32, and the tokens of a block.

    Neither reports its prefill times: prices are those of the test, whatever the machine does.
    """
    import torch
    from transformers import AutoModelForCausalLM

    engine = Engine(Setup(path, daemon.socket, options={"dtype": "float32"}))
    try:
        engine.wait_attached()
        session = engine.scheduler._session
        assert session is not None
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with closing(Client(Options(socket=daemon.socket))) as client:
            settings = HFSettings(block_tokens=session.block_tokens, keep_all=True)
            other = SplicedTransformers(model, client, Naming(weights_digest(path)), settings)
            assert client.wait_attached(10)
            with mock.patch.object(Reuse, "measured"):
                yield engine, other, session.block_tokens
    finally:
        engine.close()


@pytest.mark.parametrize("family", ["nemotron_h", "jamba", "olmo_hybrid"])
def test_transformers_uses_the_same_states(family: str, daemon: Daemon, tmp_path: Path) -> None:
    """Neither states nor tails nor keys may lie otherwise than another implementation has them."""
    path = _slow(family, tmp_path / "model")
    if family == "nemotron_h":  # with the bound of published models the two share nothing
        config = Path(path) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"time_step_min": 0.0}))
    with _two_engines(path, daemon) as (engine, other, block):
        theirs, ours = prompt(block + 100, seed=30), prompt(block + 100, seed=31)
        (right,) = engine.ask(theirs, tokens=1, cache_salt="not shared")
        assert other.prefill(theirs, mode="prefix").reused == 0
        engine.settle()
        (answer,) = engine.ask(theirs, tokens=1)
        assert answer.cached == block
        assert answer.logprobs == pytest.approx(right.logprobs, abs=LIKE)

        (first,) = engine.ask(ours, tokens=1)
        assert first.cached == 0
        engine.settle()
        reused = other.prefill(ours, mode="prefix")
        assert reused.reused == block
        told = reused.logits.float().log_softmax(-1).flatten()[first.tokens[0]]
        assert float(told) == pytest.approx(first.logprobs[0], abs=LIKE)


def test_engines_that_bound_time_steps_differently_share_nothing(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = _slow("nemotron_h", tmp_path / "model")
    with _two_engines(path, daemon) as (engine, other, block):
        theirs, ours = prompt(block + 100, seed=40), prompt(block + 100, seed=41)
        assert other.prefill(theirs, mode="prefix").reused == 0
        assert other.prefill(theirs, mode="prefix").reused == block
        engine.settle()
        assert engine.ask(theirs, tokens=1)[0].cached == 0
        (first,) = engine.ask(ours, tokens=1)
        engine.settle()
        assert engine.ask(ours, tokens=1)[0].cached == block
        own = other.prefill(ours, mode="prefix")
        assert own.reused == 0
        told = own.logits.float().log_softmax(-1).flatten()[first.tokens[0]]
        assert abs(float(told) - first.logprobs[0]) > LIKE


def test_states_of_kimi_linear_are_found(tmp_path: Path) -> None:
    """In a layer of its own: vLLM has no MLA of Kimi for a CPU."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn import KimiGatedDeltaNetAttention
    from vllm.transformers_utils.configs.kimi_linear import KimiLinearConfig

    from spliced_connector.vllm.layout.states import StateOrder, find_states

    heads, dim, kernel = 2, 64, 4
    linear = Linear(
        Family.KDA,
        heads,
        heads,
        dim,
        dim,
        DType.F32,
        DType.F16,
        Conv(kernel, (heads * dim,) * 3, DType.F32),
    )
    profile = Profile(Identity("m", b"w" * 32, (Layer(Kind.LINEAR, linear=linear),)))
    tiny = TINY["bailing_3"]
    engine = Engine(Setup(tiny.save(tmp_path / "model"), options=dict(tiny.options)))
    try:
        config = engine.llm.llm_engine.vllm_config
        kimi = KimiLinearConfig(
            hidden_size=128,
            linear_attn_config={
                "num_heads": heads,
                "head_dim": dim,
                "short_conv_kernel_size": kernel,
                "kda_layers": [1],
                "full_attn_layers": [],
            },
        )
        with set_current_vllm_config(config):
            layer = KimiGatedDeltaNetAttention(kimi, config, prefix="model.layers.9.self_attn")
        torch.manual_seed(0)
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        shapes = zip(layer.get_state_shape(), layer.get_state_dtype(), strict=True)
        layer.kv_cache = tuple(torch.zeros(3, *shape, dtype=dtype) for shape, dtype in shapes)
        assert find_states(layer, profile, 0, config) == StateOrder(False, False)
        assert not any(cache.any() for cache in layer.kv_cache)
    finally:
        engine.close()
