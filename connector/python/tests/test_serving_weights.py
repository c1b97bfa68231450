"""The digest names the files that an engine has loaded, or nothing is shared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from spliced_connector.model import weights_digest
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.settings import ServingSettings
from spliced_connector.serving.weights import Loading, model_directory, named_weights

ALL = ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors")


def directory(path: Path, *names: str, index: tuple[str, ...] = ()) -> Path:
    """Files that differ by name, and what an index lists."""
    path.mkdir()
    for name in names:
        (path / name).write_bytes(name.encode())
    if index:
        listed = {"weight_map": {f"layer.{i}": name for i, name in enumerate(index)}}
        prefix = "consolidated" if index[0].startswith("consolidated") else "model"
        (path / f"{prefix}.safetensors.index.json").write_text(json.dumps(listed))
    return path


def named(weights: Path | str, model: Path | str, load_format: str = "auto", **more: Any) -> bytes:
    settings = ServingSettings(weights=str(weights))
    return named_weights(settings, Loading(str(model), load_format, **more))


@pytest.mark.parametrize(
    "load_format", ["npcache", "pt", "gguf", "bitsandbytes", "sharded_state", "dummy", "private"]
)
@pytest.mark.parametrize("digest", [False, True])
def test_other_load_formats_are_refused(tmp_path: Path, load_format: str, digest: bool) -> None:
    model = directory(tmp_path / "m", "model.safetensors", "pytorch_model.bin")
    with pytest.raises(Inert, match=f"load_format '{load_format}' is not supported"):
        named("ab" * 32 if digest else model, model, load_format)


@pytest.mark.parametrize("load_format", ["auto", "hf", "safetensors", "fastsafetensors"])
def test_safetensors_come_before_other_files(tmp_path: Path, load_format: str) -> None:
    model = directory(tmp_path / "m", "model.safetensors", "pytorch_model.bin", "model.pt")
    assert named(model, model, load_format) == weights_digest(model)


def test_a_fallback_to_other_files_is_refused(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", "pytorch_model.bin")
    weights = directory(tmp_path / "w", "model.safetensors")
    for given in (weights, "ab" * 32):
        with pytest.raises(Inert, match="than safetensors: none in"):
            named(given, model)


@pytest.mark.parametrize(
    ("load_format", "auto_is_mistral", "loaded"),
    [
        ("auto", True, ALL[2:]),
        ("auto", False, ALL),
        ("hf", True, ALL),
        ("safetensors", True, ALL),
        ("mistral", False, ALL[2:]),
    ],
)
def test_files_in_mistrals_format_are_named_where_they_are_loaded(
    tmp_path: Path, load_format: str, auto_is_mistral: bool, loaded: tuple[str, ...]
) -> None:
    model = directory(tmp_path / "m", *ALL)
    found = named(model, model, load_format, auto_is_mistral=auto_is_mistral)
    assert found == weights_digest(directory(tmp_path / "loaded", *loaded))


@pytest.mark.parametrize("index", [ALL[:2], ALL[2:]])
def test_files_that_are_not_in_the_index_are_not_named(
    tmp_path: Path, index: tuple[str, ...]
) -> None:
    more = () if index == ALL[:2] else ("consolidated-9.safetensors",)
    model = directory(tmp_path / "m", *ALL, *more, index=index)
    load_format = "safetensors" if index == ALL[:2] else "mistral"
    loaded = directory(tmp_path / "loaded", *index)
    assert named(model, model, load_format) == weights_digest(loaded)
    assert named(loaded, model, load_format) == weights_digest(loaded)
    assert named(model, loaded, load_format) == weights_digest(loaded)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}'])
def test_an_index_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    model = directory(tmp_path / "m", *ALL)
    (model / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Inert, match=r"model\.safetensors\.index\.json"):
        named(model, model)


def test_one_file_may_be_named(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", "model.safetensors")
    assert named(model / "model.safetensors", model) == weights_digest(model)
    with pytest.raises(Inert, match="not those of"):
        named(model / "model.safetensors", directory(tmp_path / "o", *ALL))


def test_settings_that_name_nothing_end_the_start_whatever_the_engine_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="settings: weights: no safetensors in"):
        named(tmp_path, "someone/model", "npcache")


def test_an_engine_without_safetensors_that_names_its_own_model_starts(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", "pytorch_model.bin")
    with pytest.raises(Inert, match="other files than safetensors"):
        named(model, model)
    with pytest.raises(Inert, match="load_format 'dummy' is not supported"):
        named(model, model, "dummy")
    with pytest.raises(Inert, match="no directory of 'maker/gone'"):
        named("maker/gone", "maker/gone")


def test_a_model_of_a_hub_is_compared_where_it_was_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = directory(tmp_path / "m", *ALL), directory(tmp_path / "o", *ALL[:1])
    asked: list[tuple[object, ...]] = []

    def snapshot_download(
        name: str,
        *,
        revision: str,
        cache_dir: str,
        local_files_only: bool,
        allow_patterns: list[str],
    ) -> str:
        assert not allow_patterns, "files that engines leave out may be missing"
        asked.append((name, revision, cache_dir, local_files_only))
        if name != "maker/tiny":
            raise FileNotFoundError(name)
        return str(model)

    hub = cast(Any, ModuleType("huggingface_hub"))
    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    where = {"revision": "ab12", "download_dir": "/downloads"}
    assert named(model, "maker/tiny", **where) == weights_digest(model)
    assert asked == [("maker/tiny", "ab12", "/downloads", True)]
    with pytest.raises(Inert, match="not those of"):
        named(other, "maker/tiny", **where)
    assert model_directory(Loading("maker/other")) == "maker/other"
    for given in (other, "ab" * 32):
        with pytest.raises(Inert, match="no directory of 'maker/other'"):
            named(given, "maker/other")


def test_a_model_of_a_hub_is_refused_without_the_hubs_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Inert, match="no directory of 'maker/tiny'"):
        named(directory(tmp_path / "m", *ALL), "maker/tiny")
