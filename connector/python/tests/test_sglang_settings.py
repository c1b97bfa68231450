"""Settings of SGLang's storage tier, which need neither torch nor the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spliced_connector.model import DType
from spliced_connector.sglang.settings import HiCacheSettings

OF_THE_ENGINE = {
    "backend_name": "spliced",
    "module_path": "spliced_connector.sglang",
    "class_name": "SplicedHiCache",
    "interface_v1": 1,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rope_theta": 10000.0,
}


def test_the_engines_own_fields_are_left_to_it() -> None:
    settings = HiCacheSettings.read({**OF_THE_ENGINE, "load_ms": 20}, "/models/m")
    assert settings == HiCacheSettings("/models/m", "/models/m", load_ms=20.0)
    assert HiCacheSettings.read({"model": "/other"}, "/models/m").model == "/other"


def test_everything_that_is_wrong_is_said_at_once() -> None:
    given = {"tiemout_ms": 5, "load_ms": 0, "token": 3, "exists_ms": True}
    with pytest.raises(ValueError, match="extra-config") as wrong:
        HiCacheSettings.read(given, None)
    text = str(wrong.value)
    for part in ("tiemout_ms: unknown", "load_ms: 0, want 1", "token: 3, want str", "model: miss"):
        assert part in text
    assert "exists_ms: True, want float" in text


def test_an_identity_needs_config_and_weights(tmp_path: Path) -> None:
    settings = HiCacheSettings.read({"weights": "ab" * 32}, str(tmp_path))
    assert settings.digest() == b"\xab" * 32
    with pytest.raises(ValueError, match="No such file"):
        settings.identity(settings.digest(), 1, DType.BF16)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert settings.identity(settings.digest(), 2, DType.BF16).tp_size == 2
    assert settings.identity(settings.digest(), 1, DType.F16).layers[0].attention.dtype == DType.F16
    before = settings.identity(settings.digest(), 1, DType.BF16)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "rms_norm_eps": 1e-3}))
    assert settings.identity(settings.digest(), 1, DType.BF16) != before
    (tmp_path / "config.json").write_text('{"model_type": "unheard of"}')
    with pytest.raises(ValueError, match="unheard of"):
        settings.identity(settings.digest(), 1, DType.BF16)
    with pytest.raises(ValueError, match="no safetensors"):
        HiCacheSettings.read({}, str(tmp_path)).digest()
