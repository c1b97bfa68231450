"""Settings in `--hicache-storage-backend-extra-config`, checked before the engine starts.

    {"backend_name": "spliced", "module_path": "spliced_connector.sglang",
     "class_name": "SplicedHiCache", "interface_v1": 1, "hicache_storage_pass_prefix_keys": true,
     "model": "/models/qwen3-next"}

Settings that are unknown, of another type or out of range stop the start with a text that names
all of them. Otherwise a mistyped setting would look like a cache without hits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from spliced_connector.errors import ProfileError
from spliced_connector.model import (
    DType,
    Identity,
    from_config,
    identity_digest,
    served,
    weights_digest,
)

_OF_THE_ENGINE = {"backend_name", "module_path", "class_name", "interface_v1"}


@dataclass(frozen=True)
class HiCacheSettings:
    """Settings of one backend, the same for all ranks."""

    WHERE: ClassVar[str] = "hicache-storage-backend-extra-config"

    model: str = ""
    """Directory of the model's config.json. Empty: the model path that SGLang was started with."""
    weights: str = ""
    """The weights: their digest as 64 hexadecimal digits, or the directory of the safetensors
    files, which is read at every start. Empty: `model`."""
    weights_cache: str = ""
    """Directory that caches digests of weights files. Empty: they are read at every start."""
    adapter: str = ""
    """A text that identifies changes of values beyond config and weights: merged adapters,
    quantisation, overrides of the config. Adapters that requests name are in the page hashes."""
    socket: str = ""
    """Path of the daemon's socket. Empty: the daemon's default path."""
    tenant: str = ""
    """Tenant whose objects and quota are used. Empty: the default tenant."""
    token: str = ""
    """The tenant's token."""
    timeout_ms: float = 50.0
    """Longest wait for one answer of the daemon; 0.1 to 10,000."""
    exists_ms: float = 200.0
    """Longest time for the lookup of a prompt, which then returns its result so far; 1 to
    10,000."""
    load_ms: float = 1000.0
    """Longest wait, for one batch of pages, for reads from disk; 1 to 60,000."""

    @classmethod
    def read(cls, given: Mapping[str, object] | None, model_name: str | None) -> HiCacheSettings:
        """Returns checked settings. Raises ValueError, which names all invalid settings."""
        wrong: list[str] = []
        known = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, object] = {}
        for name, value in (given or {}).items():
            if name in _OF_THE_ENGINE:
                continue
            if name not in known:
                wrong.append(f"{name}: unknown, want one of {', '.join(known)}")
            elif known[name] == "str" and isinstance(value, str):
                values[name] = value
            elif known[name] == "float" and type(value) in (int, float):
                values[name] = float(str(value))
            else:
                wrong.append(f"{name}: {value!r}, want {known[name]}")
        for name, low, high in _RANGES:
            number = values.get(name)
            if isinstance(number, float) and not low <= number <= high:
                wrong.append(f"{name}: {number:g}, want {low:g} to {high:g}")
        if not values.get("model"):
            values["model"] = model_name or ""
        if not values["model"]:
            wrong.append("model: missing, want the directory of config.json")
        if wrong:
            raise ValueError(f"{cls.WHERE}: " + "; ".join(wrong))
        values["weights"] = values.get("weights") or values["model"]
        return cls(**values)  # type: ignore[arg-type]

    def digest(self) -> bytes:
        """Returns the digest of the weights, for a process without a loaded engine. Raises
        ValueError if they cannot be read."""
        if re.fullmatch("[0-9a-fA-F]{64}", self.weights):
            return bytes.fromhex(self.weights)
        try:
            return weights_digest(self.weights, self.weights_cache)
        except ProfileError as err:
            raise ValueError(f"{self.WHERE}: {err}") from err

    def identity(self, weights: bytes, tp_size: int, dtype: DType) -> Identity:
        """Returns the identity of the model with rows, or convolution tails, of type `dtype`.

        It covers all settings of the config that may change values, but none that SGLang was
        started with. Raises ValueError if its config cannot be read or is not supported.
        """
        path = Path(self.model) / "config.json"
        try:
            described = json.loads(path.read_text())
            return from_config(
                described,
                identity_digest(weights, described, dtype.name, "float32" + served(described)),
                adapter=self.adapter,
                tp_size=tp_size,
                kv=dtype,
                conv=dtype,
            )
        except (OSError, json.JSONDecodeError, ProfileError) as err:
            raise ValueError(f"model {self.model!r}: {err}") from err


_RANGES = (("timeout_ms", 0.1, 10_000), ("exists_ms", 1, 10_000), ("load_ms", 1, 60_000))
