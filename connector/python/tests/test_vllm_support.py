"""What an engine has to be before anything is reused in it, read from configurations alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spliced_connector.model import (
    UNBOUNDED,
    Attention,
    DType,
    KeyMode,
    Kind,
    Layer,
    identity_digest,
    time_steps,
)
from spliced_connector.serving import weights as serving_weights
from spliced_connector.vllm import support as vllm_support
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.support import Engine, Inert, survey

SETTINGS = Settings(weights="ab" * 32)
MODEL = Path(__file__).resolve().parents[3] / "scripts" / "tinyhybrid" / "model"
HYBRID = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
}


class FullAttentionSpec(SimpleNamespace):
    """As the engine's."""


class MambaSpec(SimpleNamespace):
    """As the engine's."""


class MLAAttentionSpec(SimpleNamespace):
    """As the engine's."""


class SlidingWindowSpec(SimpleNamespace):
    """As the engine's."""


@dataclass
class GroupSpec:
    """As the engine's."""

    layer_names: list[str]
    kv_cache_spec: Any


def rows(**fields: Any) -> FullAttentionSpec:
    given = {"block_size": 256, "dtype": "torch.bfloat16", "sliding_window": None}
    return FullAttentionSpec(**(given | fields))


def states(**fields: Any) -> MambaSpec:
    given = {
        "block_size": 256,
        "dtypes": ("torch.bfloat16", "torch.float32"),
        "mamba_type": SimpleNamespace(name="GDN_ATTN"),
    }
    return MambaSpec(**(given | fields))


def latent(**fields: Any) -> MLAAttentionSpec:
    given = {"tokens_per_state": 1, "model_version": None}
    return MLAAttentionSpec(**(vars(rows()) | given | fields))


def caches(*groups: tuple[Any, list[str]]) -> Any:
    return SimpleNamespace(kv_cache_groups=[GroupSpec(names, spec) for spec, names in groups])


LINEAR = (states(), ["model.layers.0.linear_attn"])
FULL = (rows(), ["model.layers.1.self_attn.attn"])
CACHES = caches(LINEAR, FULL)


def config(described: dict[str, Any] = HYBRID, **fields: Any) -> Any:
    """vLLM's configuration; fields replace what a path such as parallel_config.x names."""
    made = SimpleNamespace(
        device_config=SimpleNamespace(device_type="cpu"),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            tensor_parallel_size=1,
            enable_eplb=False,
        ),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        weight_transfer_config=None,
        model_config=SimpleNamespace(
            model=str(MODEL),
            revision=None,
            code_revision=None,
            runner_type="generate",
            is_encoder_decoder=False,
            enforce_eager=True,
            max_model_len=2048,
            hf_overrides={},
            dtype="torch.bfloat16",
            quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: described),
            hf_text_config=SimpleNamespace(num_hidden_layers=2),
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto", mamba_cache_mode="align", enable_prefix_caching=True
        ),
        speculative_config=None,
        max_concurrent_batches=1,
    )
    for path, value in fields.items():
        *outer, name = path.split("__")
        target = made
        for part in outer:
            target = getattr(target, part)
        setattr(target, name, value)
    return made


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_support, "version", lambda _: "0.32.0")


def read(given: Any = None, kept: Any = CACHES, settings: Settings = SETTINGS) -> Engine:
    return survey(config() if given is None else given, kept, settings)


def test_hybrid_engine_is_read() -> None:
    engine = read()
    assert [layer.kind for layer in engine.identity.layers] == [Kind.LINEAR, Kind.FULL]
    weights = bytes.fromhex(SETTINGS.weights)
    assert engine.identity.weights == identity_digest(weights, HYBRID, "bfloat16")
    assert engine.identity.layers[0].linear.conv.dtype == DType.BF16
    assert [(g.index, g.states, g.layers) for g in engine.groups] == [
        (0, True, (0,)),
        (1, False, (1,)),
    ]
    assert (engine.cache_mode, engine.max_tokens, engine.pipelined) == ("align", 2048, False)


def test_latent_rows_and_convolutions_are_read() -> None:
    kimi = {
        "model_type": "kimi_linear",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "qk_rope_head_dim": 8,
        "kv_lora_rank": 16,
        "linear_num_heads": 2,
        "linear_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    }
    engine = read(config(kimi), caches(LINEAR, (latent(), FULL[1])))
    assert [layer.kind for layer in engine.identity.layers] == [Kind.LINEAR, Kind.MLA]
    lfm2 = HYBRID | {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
    }
    tails = states(dtypes=("torch.bfloat16",), mamba_type=SimpleNamespace(name="SHORT_CONV"))
    engine = read(config(lfm2), caches((tails, LINEAR[1]), FULL))
    assert [layer.kind for layer in engine.identity.layers] == [Kind.CONV, Kind.FULL]


def drafting(*names: str, method: str = "mtp", **fields: Any) -> Engine:
    """An engine with a drafter whose layers have these names."""
    model = SimpleNamespace(hf_config=SimpleNamespace(to_dict=lambda: {"model_type": method}))
    drafter = SimpleNamespace(method=method, model=method, draft_model_config=model)
    spec = rows(**({"num_kv_heads": 1, "head_size": 64} | fields))
    kept = caches(LINEAR, (spec, [*FULL[1], *names]))
    return read(config(speculative_config=drafter), kept)


@pytest.mark.parametrize(
    "name",
    [
        "mtp.layers.0.self_attn.attn",
        "draft_model.model.layers.1.self_attn.attn",
        "model.layers.2.self_attn.attn",
    ],
)
def test_rows_of_a_drafter_are_layers_behind_the_models(name: str) -> None:
    engine = drafting(name)
    assert engine.drafts
    assert engine.identity.layers[:2] == read().identity.layers
    assert engine.identity.layers[2:] == (
        Layer(Kind.FULL, Attention(1, 64, 64, DType.BF16, KeyMode.AT_ZERO)),
    )
    assert engine.groups[1].layers == (1, 2)
    assert engine.groups[1].names == (*FULL[1], name)
    assert engine.identity.adapter.startswith("drafts: mtp ")
    assert engine.identity.adapter != drafting(name, method="eagle").identity.adapter


def test_what_drafts_without_rows_changes_no_names() -> None:
    engine = drafting(method="ngram")
    assert engine.drafts
    assert engine.identity == read().identity


def test_rows_of_a_drafter_that_are_not_understood() -> None:
    with pytest.raises(Inert, match="a drafter with"):
        drafting("mtp.layers.0.self_attn.attn", dtype="torch.uint8")


def test_types_are_those_of_the_cache() -> None:
    kept = caches(
        (states(dtypes=("torch.float16", "torch.float32")), LINEAR[1]),
        (rows(dtype="torch.float32"), FULL[1]),
    )
    layers = read(kept=kept).identity.layers
    assert layers[0].linear.conv.dtype == DType.F16
    assert layers[1].attention.dtype == DType.F32


def test_rows_that_are_rounded_have_names_of_their_own() -> None:
    kept = caches(LINEAR, (rows(dtype="torch.uint8"), FULL[1]))
    found = {}
    for name in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        engine = read(config(cache_config__cache_dtype=name), kept)
        assert engine.identity.layers == read().identity.layers
        found[name] = engine.identity.weights
    assert found["fp8"] == found["fp8_e4m3"]
    assert len({read().identity.weights, *found.values()}) == 3


def test_engines_that_compute_otherwise_are_named_otherwise() -> None:
    mixer = LINEAR[1]
    narrow = caches((states(dtypes=("torch.bfloat16", "torch.bfloat16")), mixer), FULL)
    names = {
        read().identity.weights,
        read(config(HYBRID | {"rms_norm_eps": 0.5})).identity.weights,
        read(config(model_config__dtype="torch.float32")).identity.weights,
        read(kept=narrow).identity.weights,
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({}, True),
        ({"time_step_limit": (0.0, math.inf)}, True),
        ({"time_step_limit": (0.001, 0.1)}, False),
        ({"mamba_n_groups": 2}, False),
    ],
)
def test_what_vllm_computes_otherwise_is_not_shared_with_transformers(
    changes: dict[str, Any], shares: bool
) -> None:
    granite = HYBRID | {
        "model_type": "granitemoehybrid",
        "mamba_n_heads": 2,
        "mamba_d_head": 64,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        **changes,
    }
    weights = bytes.fromhex(SETTINGS.weights)
    limit: Any = granite.get("time_step_limit", UNBOUNDED)
    theirs = identity_digest(weights, granite, "bfloat16", "float32" + time_steps(granite, limit))
    assert (read(config(granite)).identity.weights == theirs) == shares


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device_config__device_type": "cuda"}, "device 'cuda'"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallel"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode context parallel"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill context parallel"),
        ({"cache_config__use_replayssm": True}, "replayed states"),
        ({"model_config__runner_type": "pooling"}, "runner 'pooling'"),
        ({"model_config__is_encoder_decoder": True}, "an encoder"),
        ({"cache_config__cache_dtype": "nvfp4"}, "a cache of nvfp4"),
        ({"load_config__load_format": "dummy"}, "load_format 'dummy'"),
        ({"load_config__load_format": "npcache"}, "load_format 'npcache'"),
        ({"parallel_config__enable_eplb": True}, "moving experts"),
        ({"model_config__code_revision": "ab12"}, "code_revision"),
        ({"model_config__model": "someone/model"}, "no directory of 'someone/model'"),
        ({"weight_transfer_config": object()}, "weight transfer"),
        ({"model_config__hf_overrides": {"rms_norm_eps": 1}}, "hf_overrides"),
        ({"model_config__quantization": "fp8"}, "quantisation 'fp8'"),
    ],
)
def test_engines_of_other_kinds_are_left_alone(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Inert, match=reason):
        read(config(**fields))


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (caches(LINEAR, (SlidingWindowSpec(block_size=1), FULL[1])), "SlidingWindowSpec"),
        (caches(LINEAR, (rows(sliding_window=128), FULL[1])), "sliding window"),
        (caches(LINEAR, (rows(dtype="torch.uint8"), FULL[1])), "element types"),
        (caches((states(dtypes=("torch.float32",) * 4), LINEAR[1]), FULL), "keep 4 tensors"),
        (caches(LINEAR, (latent(tokens_per_state=4), FULL[1])), "compresses its rows"),
        (caches(LINEAR, (rows(), ["model.layers.1.blocks.2.attn"])), "cannot determine its number"),
        (caches(LINEAR, (rows(), ["model.attn"])), "cannot determine its number"),
        (caches(LINEAR), "keeps FULL and MLA layers"),
        (caches(LINEAR, (rows(), ["model.layers.0.self_attn"])), "keeps FULL and MLA layers"),
    ],
)
def test_caches_that_are_not_understood_are_left_alone(kept: Any, reason: str) -> None:
    with pytest.raises(Inert, match=reason):
        read(kept=kept)


def test_both_halves_name_a_model_alike_that_vllm_wrote_to() -> None:
    """Falcon-H1 is given the share of a head that turns when it is loaded."""
    falcon = HYBRID | {
        "model_type": "falcon_h1",
        "num_hidden_layers": 1,
        "mamba_n_heads": 2,
        "mamba_d_head": 64,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
    }
    kept = caches((states(), ["model.layers.1.mamba"]), (rows(), ["model.layers.0.self_attn.attn"]))
    written: dict[str, float]
    names = set()
    for written in ({}, {"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.5}):
        rope = {"rope_type": "default", "rope_theta": 1e11, **written}
        names.add(read(config(falcon | {"rope_parameters": rope}), kept).identity)
    assert len(names) == 2


def test_architectures_without_a_description_are_left_alone() -> None:
    with pytest.raises(Inert, match="mystery"):
        read(config({"model_type": "mystery", "num_hidden_layers": 2}))


def test_other_releases_are_tried_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_support, "version", lambda _: "0.33.0")
    with pytest.raises(Inert, match=r"0\.33\.0 was never tested"):
        read()
    tried = Settings(weights=SETTINGS.weights, untested=True)
    assert read(settings=tried).version == "0.33.0"
    assert read(config(device_config__device_type="cuda"), settings=tried)


def test_a_tolerance_is_part_of_the_name() -> None:
    settings = Settings(weights=SETTINGS.weights, tolerance=0.02)
    assert read(settings=settings).identity == replace(read().identity, tolerance=0.02)


def test_weights_that_cannot_be_read_end_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weights"):
        read(settings=Settings(weights=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    itself = config(model_config__model=str(tmp_path))
    one = read(itself, settings=Settings(weights=str(tmp_path))).identity.weights
    assert len(one) == 32
    assert one != bytes.fromhex(SETTINGS.weights)


def weights(directory: Path, content: bytes) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors").write_bytes(content)
    return str(directory)


def test_weights_that_are_replaced_get_another_name(tmp_path: Path) -> None:
    settings = Settings(weights=weights(tmp_path / "m", b"weights"))
    itself = config(model_config__model=settings.weights)
    before = read(itself, settings=settings).identity.weights
    assert read(itself, settings=settings).identity.weights == before
    aside = tmp_path / "aside"
    aside.write_bytes(b"WEIGHTS")
    aside.replace(tmp_path / "m" / "model.safetensors")
    replaced = read(itself, settings=settings).identity.weights
    (tmp_path / "m" / "more.safetensors").write_bytes(b"")
    assert len({before, replaced, read(itself, settings=settings).identity.weights}) == 3


def test_both_halves_of_a_process_read_the_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def digest(source: str, cache: str, names: list[str]) -> bytes:
        reads.append(source)
        return bytes(32)

    monkeypatch.setattr(serving_weights, "weights_digest", digest)
    settings = Settings(weights=weights(tmp_path / "m", b"weights"))
    itself = config(model_config__model=settings.weights)
    read(itself, settings=settings)
    read(itself, settings=settings)
    assert reads == [settings.weights]


def test_an_engine_with_other_weights_than_the_settings_name(tmp_path: Path) -> None:
    settings = Settings(weights=weights(tmp_path / "m", b"weights"))
    plain = read(config(model_config__model=settings.weights), settings=settings).identity.weights
    same = config(model_config__model=weights(tmp_path / "copy", b"weights"))
    assert read(same, settings=settings).identity.weights == plain
    mistral = config(model_config__model=weights(tmp_path / "mistral", b"weights"))
    (tmp_path / "mistral" / "consolidated.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(Inert, match="not those of"):
        read(mistral, settings=settings)
    itself = config(model_config__model=str(tmp_path / "copy" / ".." / "m"))
    assert read(itself, settings=settings).identity.weights == plain
    other = config(model_config__model=weights(tmp_path / "other", b"WEIGHTS"))
    with pytest.raises(Inert, match="not those of"):
        read(other, settings=settings)
    empty = config(model_config__model=str(tmp_path))
    with pytest.raises(Inert, match="than safetensors: none in"):
        read(empty, settings=settings)
