"""Settings in `kv_connector_extra_config`.

{"socket": "/run/spliced/spliced.sock", "mode": "prefix", "weights": "/models/qwen3-next"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from spliced_connector.serving.settings import Mode, ServingSettings

__all__ = ["Mode", "Parallel", "Settings"]


class Parallel(StrEnum):
    """An engine's part in computing segments across nodes of a cluster."""

    OFF = "off"
    """Nothing."""
    WORK = "work"
    """It computes segments that other nodes ask for."""
    COMBINE = "combine"
    """It has other nodes compute segments that its own requests miss."""
    BOTH = "both"

    @property
    def works(self) -> bool:
        return self in (Parallel.WORK, Parallel.BOTH)

    @property
    def combines(self) -> bool:
        return self in (Parallel.COMBINE, Parallel.BOTH)


@dataclass(frozen=True)
class Settings(ServingSettings):
    """Settings of one engine; the same for all its processes."""

    min_tokens: int = 0
    """Prompts of fewer tokens are not reused, and the daemon is not asked about them."""
    parallel: Parallel = Parallel.OFF
    """Whether segments are computed for other nodes of the daemon's cluster ("work"), by them
    ("combine") or "both", mode splice. The tenant has to allow it at the daemons of both nodes."""
    parallel_tokens: int = 1024
    """Other nodes are asked for a prompt that misses segments of at least this many tokens, two
    of them at least; 1 to 16,777,216."""
    parallel_share: float = 0.25
    """Share of its time that the engine gives to other nodes while requests run here; 0 to 1.
    None of these segments may then take longer than `stall_ms`. An idle engine gives all."""
    shared_pages: bool = False
    """Whether one copy of a segment's keys and values in the engine's cache serves all requests
    that have it, mode splice; on a CPU only. Attention of such requests is slower."""
    untested: bool = False
    """Try releases of the engine and devices that this connector was never run with."""

    WHERE: ClassVar[str] = "kv_connector_extra_config"
    CHOICES: ClassVar[Mapping[str, type[StrEnum]]] = {
        **ServingSettings.CHOICES,
        "Parallel": Parallel,
    }
    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        **ServingSettings.RANGES,
        "min_tokens": (0, 1 << 24),
        "parallel_tokens": (1, 1 << 24),
        "parallel_share": (0, 1),
    }

    @classmethod
    def conflicts(cls, values: Mapping[str, object]) -> list[str]:
        wrong = super().conflicts(values)
        splices = values.get("mode") is Mode.SPLICE
        if values.get("parallel", Parallel.OFF) is not Parallel.OFF:
            if not splices:
                wrong.append("parallel: it is for mode splice")
            elif not values.get("capture", True):
                wrong.append("parallel: it needs capture")
        if values.get("shared_pages") and not splices:
            wrong.append("shared_pages: it is for mode splice")
        return wrong
