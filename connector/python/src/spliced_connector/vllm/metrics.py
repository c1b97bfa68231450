"""The connector's counts in vLLM's log and among its Prometheus metrics.

`vllm:spliced_total{engine="0",what="loaded_tokens"}`: every count of `EngineTally` by name.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_METRIC = "vllm:spliced"


class SplicedStats(KVConnectorStats):  # type: ignore[misc]
    """Counts since the last step, by name."""

    def reset(self) -> None:
        self.data: dict[str, int] = {}

    def aggregate(self, other: KVConnectorStats) -> SplicedStats:
        return SplicedStats(dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class SplicedMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """One Prometheus counter, with a label `what` for the name of the count."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counter = self._counter_cls(
            name=_METRIC,
            documentation="What the spliced connector has done, by name.",
            labelnames=[*labelnames, "what"],
        )

    def observe(self, transfer_stats_data: dict[str, int], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data.items():
            self._counter.labels(*labels, name).inc(count)
