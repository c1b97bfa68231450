"""vLLM's Ling 2.5 against the walk over a model of the same weights.

Its Lightning kernels run on GPUs alone and are replaced by torch operators; all around them is the
engine's: projections, norms, the rope inside, slopes, gates, and latent attention.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from engine import vllm_kernels
from engine.ring_model import build
from engine.vllm_harness import Engine, Setup, prompt
from engine.vllm_models import BAILING, Bailing
from spliced_connector.model import Profile, Span, SpanKind
from spliced_connector.walk import Context, Naming, architecture, capture, run
from spliced_connector.walk.architectures import ring
from spliced_connector.walk.rope import turn_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

LIKE = 0.1
"""Of log-probabilities in bfloat16, which the engine rounds at other places: 0.03 to 0.06 here."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, nn.Module]]:
    """The engine, and a model with its weights and slopes."""
    vllm_kernels.replace()
    directory = tmp_path_factory.mktemp("ling")
    # The rope turns as much of a Lightning head as there is of the shared key.
    settings: dict[str, object] = {
        "architectures": ["BailingMoeV2_5ForCausalLM"],
        "head_dim": 128,
    }
    Bailing(settings, {}).save(directory)
    model = build({**BAILING, **settings}).to(torch.bfloat16)
    save_file(dict(model.state_dict()), directory / "model.safetensors", {"format": "pt"})
    engine = Engine(Setup(str(directory)))
    try:
        context = engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context
        theirs = [at for at in context.values() if hasattr(at, "tp_slope")]
        ours = [at.attention for at in model.model.layers if hasattr(at.attention, "slope")]
        for a, b in zip(ours, theirs, strict=True):
            a.slope = -b.tp_slope.flatten().float().clone()
        yield engine, model
    finally:
        engine.close()


def likeliest(engine: Engine, ids: list[int]) -> dict[int, float]:
    """The engine's twenty likeliest next tokens, and the logarithms of their probabilities."""
    from vllm import SamplingParams

    options = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    (out,) = engine.llm.generate([{"prompt_token_ids": ids}], options, use_tqdm=False)
    return {token: at.logprob for token, at in out.outputs[0].logprobs[0].items()}


def distance(engine: Engine, model: nn.Module, ids: list[int], first: int = 0) -> float:
    """The largest difference of a walk's, behind a leading segment of so many tokens."""
    arch = architecture(model, Naming(b"\x06" * 32))
    context = Context(arch, len(ids), torch.device("cpu"))
    spans = [Span(SpanKind.RECOMPUTE, first, len(ids) - first)]
    segments = {}
    if first:
        segments[0] = capture(arch, ids[:first], Profile(arch.identity).first_spec(first))
        spans.insert(0, Span(SpanKind.SEGMENT, 0, first, 0))
    h = run.splice(arch, ids, spans, segments, context)
    assert h is not None
    with torch.no_grad():
        got = arch.logits(h[-1:])[0].float().log_softmax(-1)
    return max(abs(float(got[token]) - want) for token, want in likeliest(engine, ids).items())


@pytest.mark.parametrize("n", [40, 130, 300])
def test_logits_of_a_walk(pair: tuple[Engine, nn.Module], n: int) -> None:
    ids = prompt(n, seed=n)
    assert distance(*pair, ids) < LIKE
    assert distance(*pair, ids, first=n - 20) < LIKE


def test_a_rope_that_is_left_out_shows(
    pair: tuple[Engine, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, model = pair
    monkeypatch.setattr(model.config, "linear_rope", False, raising=False)
    assert distance(engine, model, prompt(130, seed=4)) > 3 * LIKE


def test_other_slopes_show(pair: tuple[Engine, nn.Module]) -> None:
    mixers = [layer.attention for layer in pair[1].model.layers]
    slopes = [at.slope for at in mixers if hasattr(at, "slope")]
    for slope in slopes:
        slope.div_(4)
    try:
        assert distance(*pair, prompt(130, seed=5)) > 3 * LIKE
    finally:
        for slope in slopes:
            slope.mul_(4)


def test_pairs_that_are_taken_for_halves_show(
    pair: tuple[Engine, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "turn_of", lambda rotary, interleaved=False: turn_of(rotary))
    assert distance(*pair, prompt(130, seed=6)) > 3 * LIKE
