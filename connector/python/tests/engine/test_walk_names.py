"""Which models a walk is found for, how they are named, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from engine.hybrids import qwen35
from engine.walk_models import TINY
from spliced_connector.model import (
    DEFAULT_TOLERANCE,
    UNBOUNDED,
    DType,
    Family,
    Profile,
    from_config,
    identity_digest,
    time_steps,
)
from spliced_connector.model.config_models import known_types
from spliced_connector.walk import Naming, UnsupportedError, architecture
from spliced_connector.walk.registry import ARCHITECTURES, REFUSED

pytestmark = pytest.mark.engine

WEIGHTS = b"\x02" * 32
NEWER = {
    "inkling2",
    "inkling2_text",
    "jev",
    "lfm3",
    "lfm3_vl",
    "minicpm_ocr",
    "nemo_speechlm",
    "nemotron3_5_transcribe_word_timestamp",
}
"""Types of transformers 5.23, which the release that is pinned may lack."""


@pytest.mark.parametrize("name", sorted(TINY))
def test_identities_are_those_that_every_adapter_reads_from_the_config(name: str) -> None:
    model = TINY[name].build()
    identity = architecture(model, Naming(weights=WEIGHTS)).identity
    profile = Profile(identity)
    assert profile.linear_layers or profile.attention_layers
    config = model.config.to_dict()
    applied = {
        tuple(m.time_step_limit) for m in model.modules() if hasattr(m, "time_step_limit")
    } or {UNBOUNDED}
    state = "float32" + time_steps(config, applied.pop())
    slopes = {i: at.linear.slopes for i, at in enumerate(identity.layers)}
    want = from_config(
        config,
        identity_digest(WEIGHTS, config, "float32", state),
        kv=DType.F32,
        conv=DType.F32,
        slopes=lambda layer, _: slopes[layer],
        tolerance=DEFAULT_TOLERANCE,
    )
    for i, (ours, theirs) in enumerate(zip(identity.layers, want.layers, strict=True)):
        assert ours == theirs, f"layer {i}"
    assert profile.fingerprint == Profile(want).fingerprint


def test_every_tiny_model_and_every_registered_type_meet() -> None:
    types = {tiny.model_type for tiny in TINY.values()}
    elsewhere = {"qwen3_next", "qwen3_5_text", "bailing_moe_linear"}  # have tests of their own
    assert types == set(ARCHITECTURES) - elsewhere


def test_every_type_with_a_walk_has_a_reader_of_its_config() -> None:
    assert set(ARCHITECTURES) <= known_types()


def test_naming_goes_into_the_identity() -> None:
    naming = Naming(WEIGHTS, "m", "lora", "words", state=DType.BF16, transition=DType.BF16)
    identity = architecture(TINY["olmo"].build(), naming).identity
    assert (identity.model, identity.adapter, identity.tokenizer) == ("m", "lora", "words")
    linear = identity.layers[0].linear
    assert (linear.state_dtype, linear.transition_dtype) == (DType.BF16, DType.BF16)
    assert (linear.conv.dtype, identity.layers[1].attention.dtype) == (DType.F32, DType.F32)
    exact = architecture(TINY["olmo"].build(), replace(naming, tolerance=0.0)).identity
    assert exact == replace(identity, tolerance=0.0) != identity


def test_settings_of_the_config_and_the_type_are_named_with_the_weights() -> None:
    model = TINY["granite"].build()
    weights = [architecture(model, Naming(WEIGHTS)).identity.weights]
    model.config.rms_norm_eps = 0.5
    weights.append(architecture(model, Naming(WEIGHTS)).identity.weights)
    weights.append(architecture(model.double(), Naming(WEIGHTS)).identity.weights)
    assert len({WEIGHTS, *weights}) == 4


def test_rows_of_a_narrow_model_are_stored_narrow() -> None:
    model = TINY["granite"].build().to(torch.bfloat16)
    arch = architecture(model, Naming(WEIGHTS))
    assert arch.dtype == torch.bfloat16
    linear = arch.identity.layers[0].linear
    assert (linear.conv.dtype, linear.state_dtype) == (DType.BF16, DType.F32)


def test_bounds_that_the_layers_apply_are_named() -> None:
    """Whatever the config has: another release of transformers may apply others."""
    names = set()
    for limit in ((0.0, math.inf), (0.001, math.inf), (0.01, math.inf)):
        model = _change("nemotron", _bound(*[limit] * 9))
        names.add(architecture(model, Naming(WEIGHTS)).identity.weights)
    plain = TINY["nemotron"].build()
    assert len(names) == 3
    assert architecture(plain, Naming(WEIGHTS)).identity.weights in names


def test_lightning_names_the_rates_of_its_modules() -> None:
    model = TINY["minimax"].build()
    layers = architecture(model, Naming(WEIGHTS)).identity.layers
    rates = [at.linear.slopes for at in layers if at.linear.family == Family.LIGHTNING]
    assert len(set(rates)) == len(rates) == 2, "rates differ by layer"
    assert rates[0] == tuple(model.model.layers[1].self_attn.slope_rate.flatten().tolist())


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_has_no_walk_is_refused_by_name(kind: str) -> None:
    assert kind in transformers.CONFIG_MAPPING or kind in NEWER
    model = nn.Module()
    model.config = SimpleNamespace(model_type=kind)
    with pytest.raises(UnsupportedError, match=f"^{kind}: "):
        architecture(model, Naming(WEIGHTS))


def test_a_type_that_nobody_knows_is_refused() -> None:
    model = nn.Module()
    model.config = SimpleNamespace(model_type="perceptron")
    with pytest.raises(UnsupportedError, match="'perceptron' is not known"):
        architecture(model, Naming(WEIGHTS))
    with pytest.raises(UnsupportedError, match="Module has no config"):
        architecture(nn.Module(), Naming(WEIGHTS))


def _types_that_keep_states() -> set[str]:
    """Types of transformers whose model files file states or call the model stateful, and types
    that wrap a text model of such a type."""
    keeps = re.compile(
        r"update_recurrent_state|update_conv_state|linear_cache|recurrent_state|_is_stateful = True"
    )
    models = Path(transformers.__file__).parent / "models"
    files = [p for p in models.glob("*/modeling_*.py") if keeps.search(p.read_text("utf-8"))]
    assert len(files) > 10
    stateful = {p.parent.name for p in files}
    classes = {kind: transformers.CONFIG_MAPPING[kind] for kind in transformers.CONFIG_MAPPING}
    types = {k for k, cls in classes.items() if cls.__module__.split(".")[-2] in stateful}
    for kind, cls in classes.items():
        if "text_config" not in cls.sub_configs:
            continue
        # Of a package that is not here, or without defaults that are valid.
        with suppress(ImportError, ValueError, StrictDataclassError):
            text = getattr(cls(), "text_config", None)
            if getattr(text, "model_type", None) in types:
                types.add(kind)
    return {kind for kind in types if not kind.endswith(("_vision", "_audio"))}


def test_every_type_of_transformers_that_keeps_states_is_registered_or_refused() -> None:
    """A new hybrid class has to be looked at when transformers is updated, not met at run time."""
    assert _types_that_keep_states() - {*ARCHITECTURES, *REFUSED} == set()
    assert not set(ARCHITECTURES) & set(REFUSED)


@pytest.mark.parametrize(
    ("title", "types"), [("## Model classes", ARCHITECTURES), ("### Refused by name", REFUSED)]
)
def test_every_type_is_in_a_row_of_the_page(title: str, types: Mapping[str, str]) -> None:
    page = (Path(__file__).parents[4] / "docs/engines.md").read_text("utf-8")
    section = re.split(r"^#+ ", page.split(f"\n{title}\n")[1], maxsplit=1, flags=re.M)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    rows = {kind for cell in cells for kind in re.findall(r"`(\w+)`", cell)}
    assert set(types) - rows == set()
    assert rows & {*ARCHITECTURES, *REFUSED} == set(types), "a row in the wrong table"


def _change(name: str, change: Callable[[nn.Module], None]) -> nn.Module:
    model = TINY[name].build()
    change(model)
    return model


def _set(**settings: object) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, value in settings.items():
            setattr(model.config, name, value)

    return change


def _bound(*limits: object) -> Callable[[nn.Module], None]:
    """Of the first Mamba2 layers."""

    def change(model: nn.Module) -> None:
        mixers = [m for m in model.modules() if hasattr(m, "time_step_limit")]
        for mixer, limit in zip(mixers, limits, strict=False):
            mixer.time_step_limit = limit

    return change


def _rope(**parameters: object) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        model.config.rope_parameters = {**model.config.rope_parameters, **parameters}

    return change


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("qwen2", _set(layer_types=["full_attention", "sliding_attention"]), "a sliding window"),
        ("mistral", _set(sliding_window=32), "a sliding window"),
        ("llama", _rope(rope_type="yarn"), "rope scaling 'yarn' is not supported"),
        ("llama", _rope(partial_rotary_factor=0.5), "turns 12 dimensions, its config says 6"),
        ("granite", _set(hidden_act="gelu"), "hidden_act is 'gelu', want silu"),
        ("granite", _set(mamba_d_state=None), "mamba_d_state is None"),
        ("minimax", _set(layer_types=["full_attention"] * 3 + ["mystery"]), "'mystery'"),
        ("bamba", _bound(None, None), "time_step_limit is None"),
        ("bamba", _bound((0.0, 1.0), (0.01, 1.5)), "bound their time steps differently"),
    ],
)
def test_settings_without_arithmetic_here_are_refused(
    name: str, change: Callable[[nn.Module], None], text: str
) -> None:
    with pytest.raises(UnsupportedError, match=text):
        architecture(_change(name, change), Naming(WEIGHTS))


def test_gated_attention_turns_what_its_config_says() -> None:
    model = qwen35()
    _rope(partial_rotary_factor=1.0)(model)
    with pytest.raises(UnsupportedError, match="turns 8 dimensions, its config says 16"):
        architecture(model, Naming(WEIGHTS))
