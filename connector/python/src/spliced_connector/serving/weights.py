"""Determines which weights an engine has loaded, and their digest."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spliced_connector.errors import ProfileError
from spliced_connector.model import weights_digest
from spliced_connector.serving.inert import Inert

SAFETENSORS = frozenset({"auto", "hf", "safetensors", "fastsafetensors", "instanttensor"})
"""Load formats of vLLM and SGLang that read a directory's safetensors if it has any."""
MISTRAL = "mistral"
_CONSOLIDATED = "consolidated"
"""Prefix of file names in Mistral's own format."""


@dataclass(frozen=True, slots=True)
class Loading:
    """An engine's arguments that determine which files it loads."""

    model: str
    """A directory, or a name on a hub."""
    load_format: str = "auto"
    revision: str | None = None
    download_dir: str | None = None
    auto_is_mistral: bool = False
    """Whether load format "auto" uses files in Mistral's own format if there are any."""


class NamesWeights(Protocol):
    """Settings that name the weights."""

    @property
    def weights(self) -> str: ...
    @property
    def weights_cache(self) -> str: ...
    @property
    def WHERE(self) -> str: ...  # noqa: N802


def model_directory(loading: Loading) -> str:
    """Returns the directory of the engine's model. A model on a hub has a directory once the engine
    has downloaded it; until then this returns its name."""
    if Path(loading.model).exists():
        return loading.model
    try:
        from huggingface_hub import snapshot_download

        found: str = snapshot_download(
            loading.model,
            revision=loading.revision,
            cache_dir=loading.download_dir,
            local_files_only=True,
            allow_patterns=[],  # so that files which engines do not download are not required
        )
    except (ImportError, OSError, ValueError):
        return loading.model  # the caller reports that there is no such directory
    return found


def named_weights(settings: NamesWeights, loading: Loading) -> bytes:
    """Returns the digest of the weights that the settings name, if the engine has loaded them.

    The digest covers the safetensors files that the engine loads. Raises ValueError if the settings
    name no readable weights. Raises Inert if the engine has loaded other weights, or other files
    than safetensors.
    """
    directory = Path(model_directory(loading))
    try:
        given = _given(settings)
    except ValueError:
        if Path(settings.weights) in (directory, Path(loading.model)):
            _loaded(directory, loading)  # raises Inert if it knows why the files are missing
        raise
    names = _loaded(directory, loading)
    if isinstance(given, bytes):
        return given
    within, present = given
    try:
        chosen = names if present.issuperset(names) else present
        digest = _digest_of(within, settings.weights_cache, chosen)
    except ProfileError as err:
        raise ValueError(f"{settings.WHERE}: {err}") from err
    if chosen == names and directory.samefile(within):
        return digest
    try:
        same = _digest_of(directory, settings.weights_cache, names) == digest
    except ProfileError as err:
        raise Inert(f"cannot read what the engine has loaded: {err}") from err
    if not same:
        raise Inert(f"the engine's weights are not those of {settings.weights}")
    return digest


def _given(settings: NamesWeights) -> bytes | tuple[Path, frozenset[str]]:
    """Returns the weights that the settings name: a digest, or a directory and file names."""
    if re.fullmatch("[0-9a-fA-F]{64}", settings.weights):
        return bytes.fromhex(settings.weights)
    path = Path(settings.weights)
    if path.is_file():
        return path.parent, frozenset({path.name})
    names = frozenset(file.name for file in path.glob("*.safetensors"))
    if not names:
        raise ValueError(f"{settings.WHERE}: weights: no safetensors in {path}")
    return path, names


def _loaded(directory: Path, loading: Loading) -> frozenset[str]:
    """Returns the names of the files that the engine has loaded, by the rules of vLLM and SGLang.
    Raises Inert if it has loaded other files than safetensors."""
    chosen = loading.load_format
    if chosen not in SAFETENSORS | {MISTRAL}:
        raise Inert(
            f"load_format {chosen!r} is not supported: the weights are named by their safetensors"
        )
    if not directory.is_dir():
        raise Inert(
            f"the files that the engine has loaded are unknown: no directory of {loading.model!r}"
        )
    names = frozenset(file.name for file in directory.glob("*.safetensors"))
    consolidated = frozenset(name for name in names if name.startswith(_CONSOLIDATED))
    index = "model.safetensors.index.json"
    if chosen == MISTRAL or (chosen == "auto" and loading.auto_is_mistral and consolidated):
        names, index = consolidated, "consolidated.safetensors.index.json"
    if not names:
        raise Inert(f"the engine has loaded other files than safetensors: none in {directory}")
    try:
        listed = json.loads((directory / index).read_text())["weight_map"].values()
    except FileNotFoundError:
        return names
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as err:
        raise Inert(f"cannot read what the engine has loaded: {directory / index}: {err}") from err
    return names.intersection(listed)


def _digest_of(directory: Path, cache: str, names: Collection[str]) -> bytes:
    """Returns the digest of files. Raises ProfileError if there are no weights or they cannot be
    read."""
    files = [directory / name for name in sorted(names)]
    try:
        states = [(file.name, file.stat()) for file in files]
    except OSError as err:
        raise ProfileError(f"weights: {err}") from err
    known = tuple((name, s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev) for name, s in states)
    return _digest(str(directory), cache, known)


@functools.lru_cache(maxsize=4)
def _digest(directory: str, cache: str, files: tuple[tuple[str, int, int, int, int], ...]) -> bytes:
    """Cached, because both halves of an adapter may be in one process."""
    return weights_digest(directory, cache, [name for name, *_ in files])
