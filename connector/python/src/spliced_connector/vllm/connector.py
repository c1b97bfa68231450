"""The class that vLLM loads: `kv_connector_module_path` names this package.

    --kv-transfer-config '{"kv_connector": "SplicedConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "spliced_connector.vllm",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"weights": "/models/m", "mode": "prefix"}}'

vLLM builds one object in the scheduler's process and one in each worker's. Each has the half of the
connector for its role; the mode determines what the halves do.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from spliced_connector.serving.prices import Walked
from spliced_connector.vllm import logs
from spliced_connector.vllm.metrics import SplicedMetrics, SplicedStats
from spliced_connector.vllm.plans import Blocks, Outcome, Worked
from spliced_connector.vllm.scheduler import SchedulerHalf
from spliced_connector.vllm.settings import Mode, Settings
from spliced_connector.vllm.worker import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass(frozen=True)
class SplicedMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler's half sends to the workers for one step. The type of `plan` depends on
    the mode; None is no work."""

    plan: object = None
    ended: frozenset[str] = frozenset()
    """Requests whose shared pages were released. They are sent even after reuse has ended."""
    doubt: bool = False
    """Whether the engine's weights may have changed since the last step."""


@dataclass(frozen=True)
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """A rank's report to the scheduler's half."""

    inert: str = ""
    """Why the rank does nothing, empty if it works. If one rank does nothing, no rank gets work."""
    walks: tuple[Walked, ...] = ()
    worked: tuple[Worked, ...] = ()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        if not isinstance(other, WorkerReport):
            return self
        slower = max(self, other, key=lambda report: sum(w.seconds for w in report.walks))
        return WorkerReport(self.inert or other.inert, slower.walks, self.worked + other.worked)


class SplicedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Connects one vLLM engine to the spliced daemon on its node.

    Failures of the daemon never reach the engine: it computes what the connector cannot provide.
    Raises ValueError at the start for invalid settings.
    """

    _handled: BaseException | None = None
    """The exception that the code around the engine was handling when the step began. It is not a
    failure of the step."""
    _walks: tuple[Walked, ...] = ()
    """Finished walks that were not reported yet."""
    _worked: tuple[Worked, ...] = ()
    """Finished segments for other nodes that were not reported yet."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        logs.adopt()
        transfer = vllm_config.kv_transfer_config
        settings = Settings.read(transfer.kv_connector_extra_config)
        self._settings = settings
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError(
                f"kv_load_failure_policy: {transfer.kv_load_failure_policy!r}, want 'recompute':"
                " a checkpoint that cannot be loaded must not fail its request"
            )
        self.scheduler_half: SchedulerHalf | None = None
        self.worker_half: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_half = SchedulerHalf(settings, vllm_config, kv_cache_config)
        else:
            self.worker_half = WorkerHalf(settings, vllm_config, kv_cache_config)
        self._outcome = Outcome()

    @property
    def requires_kv_delivery(self) -> bool:
        """Returns False: if data is not stored, the only effect is a later miss. So no request must
        wait for storing."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:
        """Returns False: an engine may wake with other weights, so the reset of its caches before
        sleep ends reuse until a restart. vLLM 0.33 calls this before it builds anything; 0.32 does
        not call it, and sleeps anyway."""
        return False

    @property
    def counts(self) -> dict[str, int]:
        """Returns the counts of this half, by name."""
        return self._half.tally.snapshot()

    def get_kv_connector_stats(self) -> SplicedStats:
        return SplicedStats(self._half.tally.news())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, int] | None = None) -> SplicedStats:
        return SplicedStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> SplicedMetrics:
        return SplicedMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @property
    def _half(self) -> SchedulerHalf | WorkerHalf:
        half = self.scheduler_half or self.worker_half
        if half is None:
            raise RuntimeError("the connector is built for neither the scheduler nor a worker")
        return half

    @property
    def _scheduler(self) -> SchedulerHalf:
        if self.scheduler_half is None:
            raise RuntimeError("called for the scheduler, built for a worker")
        return self.scheduler_half

    @property
    def _worker(self) -> WorkerHalf:
        if self.worker_half is None:
            raise RuntimeError("called for a worker, built for the scheduler")
        return self.worker_half

    # Called in the scheduler's process.

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind(kv_cache_manager)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """Returns the groups whose new blocks need not be zeroed: none in mode splice, because a
        splice may end inside a block."""
        if self._settings.mode is Mode.SPLICE:
            return ()
        groups: tuple[int, ...] = super().get_loaded_kv_cache_group_ids(request)
        return groups

    def has_pending_push_work(self) -> bool:
        return self._scheduler.pending()

    def on_new_request(self, request: Request) -> None:
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._scheduler.allocated(request, _rows(blocks.get_block_ids()), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> SplicedMetadata:
        plan = self._scheduler.plan(scheduler_output)
        return SplicedMetadata(plan, self._scheduler.ended(), self._scheduler.doubt())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        done = frozenset(connector_output.finished_recving or ())
        failed = frozenset(connector_output.failed_recving or ())
        report = connector_output.kv_connector_worker_meta
        if not isinstance(report, WorkerReport):
            report = WorkerReport()
        self._scheduler.settled(Outcome(done, failed, report.walks, report.worked))
        if report.inert:
            self._scheduler.turn_off(report.inert)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, object] | None]:
        return False, self._scheduler.finished(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, object] | None]:
        return False, self._scheduler.finished(request)

    def reset_cache(self) -> bool:
        """Ends reuse until the engine is restarted.

        Engines reset their connectors after weights were changed in place. The keys of the daemon's
        objects depend on the weights that were read at the start.
        """
        self._scheduler.turn_off("its cache was reset, weights may have changed: restart it")
        return True

    # Called in the workers' processes.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Ends reuse, because the engine is about to free its caches (vLLM 0.33)."""
        self._worker.turn_off("the engine has released its caches: restart it")

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Handles ended requests and doubts about weights. In a step, this is the only call of the
        connector before attention gets the positions of rows."""
        if isinstance(kv_connector_metadata, SplicedMetadata):
            self._worker.forget(kv_connector_metadata.ended)
            if kv_connector_metadata.doubt:
                self._worker.doubt()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        self._give_up_failed_step()
        self._outcome = self._worker.load(self._plan)
        self._walks += self._outcome.walks
        self._worked += self._outcome.worked

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: all data is in place when `start_load_kv` returns."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: object,
    ) -> None:
        """Does nothing: only attention layers have this call, so `wait_for_save` saves all
        layers."""

    def wait_for_save(self) -> None:
        self._give_up_failed_step()
        self._worker.save(self._plan)

    def _give_up_failed_step(self) -> None:
        """Ends reuse if the engine is leaving its step with an exception.

        The engine calls the connector in a `finally` block, so also after a failure. Then the
        results of the step are undefined: nothing may be stored or written to blocks.
        """
        error = sys.exc_info()[1]
        if error is not None and error is not self._handled:
            self._worker.turn_off("the engine's step has failed")

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._handled = sys.exc_info()[1]

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        self._handled = None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        outcome, self._outcome = self._outcome, Outcome()
        return KVConnectorTransferResults(
            finished_recving=set(outcome.done), failed_recving=set(outcome.failed)
        )

    def build_connector_worker_meta(self) -> WorkerReport | None:
        walks, self._walks = self._walks, ()
        worked, self._worked = self._worked, ()
        report = WorkerReport(self._worker.inert, walks, worked)
        return report if report.inert or walks or worked else None

    def shutdown(self) -> None:
        self._half.close()

    @property
    def _plan(self) -> object:
        metadata = self._get_connector_metadata()
        return metadata.plan if isinstance(metadata, SplicedMetadata) else None


def _rows(ids: tuple[list[int], ...]) -> Blocks:
    return tuple(tuple(row) for row in ids)
