"""The connector's half in a worker: fills blocks and saves the results of steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spliced_connector.client import Client
from spliced_connector.model import primer_digest
from spliced_connector.serving.connection import connect
from spliced_connector.serving.parameters import Parameters
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.caches import Caches, UnsupportedError, find_caches
from spliced_connector.vllm.pages.placed import Placed
from spliced_connector.vllm.plans import Lost, Outcome, WorkerMode
from spliced_connector.vllm.plugin import loaded
from spliced_connector.vllm.plugin import register as watch_runners
from spliced_connector.vllm.prefix import PrefixWorker
from spliced_connector.vllm.session import Session, join, ranks_of
from spliced_connector.vllm.settings import Mode, Settings
from spliced_connector.vllm.support import Engine, Inert, survey
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_CLOSE_SECONDS = 5.0


class WorkerHalf:
    """Does nothing until the engine's tensors are registered and their layout is known.

    All calls come from the thread that runs the model. Raises ValueError for weights that cannot be
    read.
    """

    def __init__(self, settings: Settings, config: VllmConfig, caches: KVCacheConfig) -> None:
        self.tally = EngineTally()
        self.inert = ""
        """Why this half does nothing; empty if it works."""
        self._settings = settings
        self._config = config
        self._client: Client | None = None
        self._session: Session | None = None
        self._waiting: set[str] = set()  # requests whose loads are not settled
        self._mode: WorkerMode | None = None
        self._placed: Placed | None = None  # outlives the mode, because requests do
        self._engine: Engine | None = None
        self._weights: Parameters | None = None
        self._verify = False  # check the weights even in a step that reuses and stores nothing
        splices = settings.mode is Mode.SPLICE
        self._ranks = int(config.parallel_config.tensor_parallel_size) if splices else 1
        self._together = self._ranks > 1  # all ranks must do the same in every step
        watch_runners()  # so that replaced weights are detected even without plugins
        try:
            self._engine = survey(config, caches, settings)
        except Inert as err:
            self.turn_off(str(err))
        except ValueError:  # an invalid setting
            raise
        except Exception as err:
            self._fail(err)

    def register(self, tensors: dict[str, torch.Tensor]) -> None:
        """Finds the layout of the engine's caches and begins to work. Ranks that walk together
        either all work, or none does."""
        why = self.inert
        if self._engine is not None and not why:
            why = self._started(self._engine, tensors)
        if self._together:
            try:
                self._begin_together(why)
            except Exception as err:
                self._fail(err)
        elif why:
            self.turn_off(why)

    def _started(self, engine: Engine, tensors: dict[str, torch.Tensor]) -> str:
        """Begins to work. Returns why it cannot, "" if it can."""
        try:
            self._mode = self._start(engine, tensors)
            self._placed = getattr(self._mode, "placed", None)
        except (Inert, UnsupportedError) as err:
            return str(err)
        except Exception as err:
            return _described(err)
        return ""

    def _begin_together(self, why: str) -> None:
        """Turns this rank off if any rank cannot start, because ranks wait for each other inside
        the model's layers. The first rank that cannot start logs the reason."""
        from vllm.distributed import get_tensor_model_parallel_rank

        rank = get_tensor_model_parallel_rank()
        primer = () if self._session is None else self._session.primer
        digest = primer_digest(primer).hex() if primer else ""
        first, why = ranks_of(rank, self._ranks).started(why, digest)
        if why:
            self._note(f"rank {first}: {why}", quiet=first != rank)
            self._end(0.0)

    def _start(self, engine: Engine, tensors: dict[str, torch.Tensor]) -> WorkerMode:
        from vllm.distributed import get_tensor_model_parallel_rank

        self._weights = _watched(self._config)
        layers = self._config.compilation_config.static_forward_context
        modules = {name: layers.get(name) for name in tensors}
        caches = find_caches(engine, modules, self._config)
        self._client = connect(self._settings, f"vllm {engine.version}")
        rank = get_tensor_model_parallel_rank()
        try:
            self._session = session = join(
                self._client, self._settings, engine, self.tally, self._config, rank
            )
        except ValueError as err:  # such as a primer, though the scheduler's half could read it
            raise Inert(str(err)) from err
        return worker_mode(session, caches, self._config)

    def turn_off(self, why: str) -> None:
        """Ends loading and storing; the scheduler's half is notified."""
        self._note(why)
        self._end(0.0)

    def _note(self, why: str, quiet: bool = False) -> None:
        if not self.inert:
            self.tally.add("inert")
            if not quiet:
                log.warning("spliced does nothing for this engine: %s", why)
            self.inert = why

    def forget(self, request_ids: frozenset[str]) -> None:
        """Records that these requests have no shared pages any more."""
        if self._placed is not None:
            self._placed.forget(request_ids)

    def load(self, plan: object) -> Outcome:
        """Runs the step's loads. Failed loads are reported, and the engine computes these
        requests."""
        if isinstance(plan, Lost):
            self._waiting |= plan.request_ids
            self.turn_off("the scheduler side has failed")
        for part in (plan, getattr(plan, "prefix", None)):
            self._waiting |= {load.request_id for load in getattr(part, "loads", ())}
        if self._verify or (self._mode is not None and self._mode.shares(plan)):
            self._check_weights()
        outcome = Outcome()
        if self._mode is not None and plan is not None:
            try:
                outcome = self._mode.load(plan)
            except Exception as err:
                self._fail(err)
        if self._mode is None:
            lost = frozenset(self._waiting)
            outcome = Outcome(done=lost, failed=lost)
        elif self.inert:
            outcome = replace(outcome, failed=outcome.done)
        self._waiting -= outcome.done
        return outcome

    def save(self, plan: object) -> None:
        if any(getattr(part, "saves", ()) for part in (plan, getattr(plan, "prefix", None))):
            self._check_weights()
        if self._mode is not None and plan is not None and not self.inert:
            try:
                self._mode.save(plan)
            except Exception as err:
                self._fail(err)

    def doubt(self) -> None:
        """Makes this step compare all weights, because they may have changed since the last one."""
        self._verify = True
        if self._weights is not None:
            self._weights.doubt()

    def _check_weights(self) -> None:
        """Ends reuse if the engine's weights are not those that were read at the start."""
        self._verify = False
        if self._mode is None or self.inert:
            return
        if loaded.replaced(self._config):
            self._leave("its weights were replaced: restart it")
        elif self._weights is not None and (why := self._weights.changed()):
            self._leave(f"its weights have changed ({why}): restart it")

    def _leave(self, why: str) -> None:
        """Ends reuse on this rank, which may be the only one to notice a change.

        Ranks that walk together wait for each other. So this rank keeps walking, but stores nothing
        and reports its loads as failed, until the scheduler's half ends reuse on all ranks in one
        step.
        """
        if self._together and self._mode is not None:
            self._note(why)
            self._mode.stop_storing()
        else:
            self.turn_off(why)

    def _fail(self, err: Exception) -> None:
        """Ends reuse after an error of ours, which must not end the engine."""
        self.turn_off(_described(err))

    def drain(self, timeout: float) -> bool:
        """Waits until saved data is stored or abandoned."""
        return self._mode is None or self._mode.drain(timeout)

    def wait_attached(self, timeout: float) -> bool:
        """Waits until the daemon can be used."""
        return self._session is not None and self._session.model.wait_attached(timeout)

    def close(self) -> None:
        """Stores saved data, for some seconds at most, and ends."""
        self._end(_CLOSE_SECONDS)

    def _end(self, seconds: float) -> None:
        self._weights = None
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.drain(seconds)
            mode.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _described(err: Exception) -> str:
    """Logs an error of ours. Returns a description in one line."""
    log.exception("spliced has failed")
    return f"{type(err).__name__}: {err}"


def _watched(config: VllmConfig) -> Parameters:
    """Returns the watch over the engine's weights. Raises Inert if they are unknown or cannot be
    read."""
    models = [loaded.of(config), loaded.drafter_of(config)]
    found = [model for model in models if isinstance(model, torch.nn.Module)]
    if models[0] is None or len(found) < len([model for model in models if model is not None]):
        raise Inert(
            "changed weights cannot be detected, since no model was found: the plugin 'spliced' of"
            " vllm.general_plugins did not run (VLLM_PLUGINS), or the model runner is not one it"
            " knows"
        )
    try:
        return Parameters(*found)
    except ValueError as err:
        raise Inert(str(err)) from err


def worker_mode(session: Session, caches: Caches, config: VllmConfig) -> WorkerMode:
    """Returns the mode that the settings name. Raises Inert if the engine is not set up for it."""
    if session.settings.mode is Mode.PREFIX:
        return PrefixWorker(session, caches)
    from spliced_connector.vllm.splice import SpliceWorker

    return SpliceWorker(session, caches, config)
