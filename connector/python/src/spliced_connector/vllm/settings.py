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
    """It takes no part."""
    WORK = "work"
    """It computes segments that other nodes request."""
    COMBINE = "combine"
    """It lets other nodes compute segments that its own requests miss."""
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
    """For prompts of fewer tokens nothing is reused, and the daemon is not asked."""
    parallel: Parallel = Parallel.OFF
    """Whether this engine computes segments for other nodes of the cluster ("work"), lets other
    nodes compute segments that it misses ("combine"), or "both", mode splice. The daemons of both
    nodes must allow it for the tenant."""
    parallel_tokens: int = 1024
    """Other nodes are asked only if a prompt misses at least two segments that have at least this
    number of tokens in all; 1 to 16,777,216."""
    parallel_share: float = 0.25
    """Share of its time that the engine spends on segments for other nodes while its own requests
    run; 0 to 1. While they run, no batch of segments may take longer than `stall_ms`. An idle
    engine spends all its time on such segments."""
    shared_pages: bool = False
    """Whether all requests with a segment share one copy of its keys and values in the engine's
    cache, mode splice; on a CPU only. Attention of such requests is slower."""
    untested: bool = False
    """Whether to try releases of the engine and devices with which this connector was never run."""

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
