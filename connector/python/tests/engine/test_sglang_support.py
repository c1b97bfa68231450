"""Which engines of SGLang the connector does something for, and what it takes them for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if not find_spec("sglang"):
    pytest.skip("SGLang is not installed: `make test-sglang`", allow_module_level=True)

from spliced_connector.model import weights_digest
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.weights import model_directory, named_weights
from spliced_connector.sglang.splice_settings import SpliceSettings
from spliced_connector.sglang.support import loading_of, survey

pytestmark = pytest.mark.engine

MODEL = Path(__file__).resolve().parents[4] / "scripts" / "tinyhybrid" / "model"
SETTINGS = SpliceSettings(weights=str(MODEL))


def engine(hybrid: bool = True, page: int = 1, swa: bool = False, **changed: object) -> Any:
    """An engine that is started as it has to be, but for what was changed."""
    args: dict[str, object] = {
        "device": "cpu",
        "model_path": str(MODEL),
        "revision": None,
        "download_dir": None,
        "kv_cache_dtype": "auto",
        "mamba_radix_cache_strategy": "no_buffer",
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "enable_dp_attention": False,
        "enable_lora": False,
        "speculative_algorithm": None,
        "disaggregation_mode": "null",
        "enable_hierarchical_cache": False,
        "load_format": "auto",
        "json_model_override_args": "{}",
        "quantization": None,
    }
    return SimpleNamespace(
        server_args=SimpleNamespace(**args | changed),
        is_hybrid_ssm=hybrid,
        is_hybrid_swa=swa,
        params=SimpleNamespace(page_size=page),
    )


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (engine(device="cuda"), "device 'cuda' was never tested"),
        (engine(tp_size=2), "^tensor parallel"),
        (engine(pp_size=2), "^pipeline parallel"),
        (engine(dp_size=2), "^data parallel"),
        (engine(enable_dp_attention=True), "^data parallel"),
        (engine(swa=True), "^a sliding window"),
        (engine(enable_lora=True), "^adapters"),
        (engine(speculative_algorithm="EAGLE"), "^speculative decoding"),
        (engine(disaggregation_mode="prefill"), "^prefill apart from decoding"),
        (engine(kv_cache_dtype="fp8_e5m2"), "^a cache of fp8_e5m2"),
        (engine(enable_hierarchical_cache=True), "^HiCache"),
        (engine(mamba_radix_cache_strategy="extra_buffer"), "start with --mamba-radix"),
        (engine(load_format="dummy"), "^load_format 'dummy'"),
        (engine(load_format="npcache"), "^load_format 'npcache'"),
        (engine(load_format="mistral"), "than safetensors: none in"),
        (engine(json_model_override_args='{"rope_theta": 1}'), "^json_model_override_args"),
        (engine(quantization="fp8"), "^quantisation 'fp8'"),
        (engine(page=16), "^pages of 16 tokens"),
    ],
)
def test_engines_that_are_not_known_are_left_alone(context: Any, why: str) -> None:
    with pytest.raises(Inert, match=why):
        survey(context, SETTINGS)


def hub(directory: Path) -> Path:
    """The cache of a hub that a model was downloaded to, by the layout of huggingface_hub."""
    model = directory / "models--maker--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("ab12")
    (model / "snapshots").mkdir()
    (model / "snapshots" / "ab12").symlink_to(MODEL)
    return directory


def test_a_model_of_a_hub_is_where_it_was_downloaded(tmp_path: Path) -> None:
    loading = loading_of(
        engine(model_path="maker/tiny", download_dir=str(hub(tmp_path))).server_args
    )
    found = model_directory(loading)
    assert Path(found).samefile(MODEL)
    settings = SpliceSettings.parse("", found)
    assert named_weights(settings, loading) == weights_digest(str(MODEL))
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"others")
    with pytest.raises(Inert, match="not those of"):
        named_weights(SpliceSettings(weights=str(other)), loading)


def test_a_model_that_is_nowhere_is_said_to_be_missing(tmp_path: Path) -> None:
    loading = loading_of(
        engine(model_path="maker/other", download_dir=str(hub(tmp_path))).server_args
    )
    assert model_directory(loading) == "maker/other"
    with pytest.raises(Inert, match="no directory of 'maker/other'"):
        named_weights(SpliceSettings.parse("", "maker/other"), loading)
    with pytest.raises(Inert, match="no directory of 'maker/other'"):
        named_weights(SETTINGS, loading)
    missing = loading_of(engine(model_path=str(tmp_path / "none")).server_args)
    assert model_directory(missing) == str(tmp_path / "none")
