"""Which weights an engine has loaded."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from spliced_connector.errors import ProfileError
from spliced_connector.model import weights_digest
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.settings import ServingSettings


def named_weights(settings: ServingSettings, model: str) -> bytes:
    """The digest that the settings name. model: what the engine was told to load.

    Raises ValueError where the settings name nothing that can be read, Inert where the engine has
    loaded something else.
    """
    if re.fullmatch("[0-9a-fA-F]{64}", settings.weights):
        return bytes.fromhex(settings.weights)
    try:
        weights = _digest_of(settings.weights, settings.weights_cache)
    except ProfileError as err:
        raise ValueError(f"{settings.WHERE}: {err}") from err
    if Path(model).is_dir() and not Path(model).samefile(settings.weights):
        try:
            same = _digest_of(model, settings.weights_cache) == weights
        except ProfileError as err:
            raise Inert(f"what the engine has loaded cannot be told: {err}") from err
        if not same:
            raise Inert(f"the engine's weights are not those of {settings.weights}")
    return weights


def _digest_of(weights: str, cache: str) -> bytes:
    """Raises ProfileError when there are no weights or they cannot be read."""
    path = Path(weights)
    try:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        states = [(file.name, file.stat()) for file in files]
    except OSError as err:
        raise ProfileError(f"weights: {err}") from err
    known = tuple((name, s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev) for name, s in states)
    return _digest(weights, cache, known)


@functools.lru_cache(maxsize=4)
def _digest(weights: str, cache: str, files: tuple[tuple[object, ...], ...]) -> bytes:
    """Both halves may be in one process: there the weights are read once, as they are now."""
    return weights_digest(weights, cache)
