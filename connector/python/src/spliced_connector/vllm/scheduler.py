"""The connector's half in the scheduler's process. It decides what to do; workers move the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spliced_connector.client import Client
from spliced_connector.segments import Finder
from spliced_connector.serving.connection import connect
from spliced_connector.serving.finding import finder_of
from spliced_connector.serving.tally import EngineTally
from spliced_connector.serving.telling import Served, Teller, traceparent
from spliced_connector.vllm.first_tokens import FirstTokens, Started
from spliced_connector.vllm.plans import Blocks, Lost, Outcome, SchedulerMode
from spliced_connector.vllm.plugin import register as watch_engines
from spliced_connector.vllm.plugin import users_calls
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.rounding import Rounding
from spliced_connector.vllm.session import Session, join, losses_of, tokenizer_of
from spliced_connector.vllm.settings import Mode, Settings
from spliced_connector.vllm.support import Engine, Inert, survey
from spliced_connector.vllm.tally import log

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from spliced_connector.vllm.pages.manager import SharedPagesManager

T = TypeVar("T")

_NOTHING: tuple[int | None, bool] = (0, False)

_ATTACH_SECONDS = 1.0
"""Seconds that the start waits for the daemon, so that the first request can already hit."""


class SchedulerHalf:
    """Passes requests to the mode, except those whose state cannot be reused. If the engine is not
    supported or something has failed, there is no mode, and this half does nothing.

    Raises ValueError for weights that cannot be read.
    """

    def __init__(self, settings: Settings, config: VllmConfig, caches: KVCacheConfig) -> None:
        self.tally = EngineTally()
        self._settings = settings
        self._client: Client | None = None
        self._session: Session | None = None
        self._claims: set[str] = set()  # requests with promised tokens, not yet passed to workers
        self._over = False  # the workers must be told that reuse has ended
        self._mode: SchedulerMode | None = None
        self._teller: Teller | None = None
        self._first = FirstTokens(pipelined=False)
        self._pages: SharedPagesManager | None = None
        watch_engines()  # so that users' calls are detected even without plugins
        self._users_calls = users_calls.count
        try:
            finder = Finder()
            if settings.find:
                finder = finder_of(settings, tokenizer_of(config.model_config))
            engine = survey(config, caches, settings)
            self._mode = self._start(engine, finder, config)
        except Inert as err:
            self.turn_off(str(err))
        except ValueError:  # an invalid setting
            raise
        except Exception as err:
            self._fail(err)

    def _start(self, engine: Engine, finder: Finder, config: VllmConfig) -> SchedulerMode:
        self._client = connect(self._settings, f"vllm {engine.version}")
        session = join(self._client, self._settings, engine, self.tally, config)
        session.model.measured_offline(losses_of(session, config))
        rounding = None
        if engine.rounds:
            rounding = Rounding(session.model.profile, session.block_tokens)
            log.info(
                "states after answers are not stored, as decoding rounds them to 16 bits: they"
                " are with --mamba-ssm-cache-dtype float32"
            )
        self._session = session = replace(session, finder=finder, rounding=rounding)
        mode = scheduler_mode(session)
        self._teller = Teller(session.model, self.tally)
        self._first = FirstTokens(engine.pipelined)
        session.model.wait_attached(_ATTACH_SECONDS)
        return mode

    def turn_off(self, why: str) -> None:
        """Ends reuse and storing. Logs it once, and notifies the workers."""
        if not self.tally.snapshot().get("inert"):
            self.tally.add("inert")
            log.warning("spliced does nothing for this engine: %s", why)
        self._over = self._over or self._mode is not None
        self.close()

    def bind(self, manager: KVCacheManager) -> None:
        """Called when the engine's cache exists."""
        mode = self._mode
        if mode is not None:
            self._guarded(lambda: mode.bind(manager), None)
        if self._settings.shared_pages:
            from spliced_connector.vllm.pages.manager import find_manager

            self._pages = find_manager(manager)

    def ended(self) -> frozenset[str]:
        """Returns requests that have released their shared pages. The workers are told even if the
        mode is off, because a request with the same id may return without shared pages."""
        return frozenset() if self._pages is None else self._pages.ended()

    def doubt(self) -> bool:
        """Returns whether a user's call since the last step may have changed the engine's
        weights."""
        before, self._users_calls = self._users_calls, users_calls.count
        return before != self._users_calls

    def arrived(self, request: Request) -> None:
        """Called when a request arrives."""
        if self._mode is not None and not self._guarded(lambda: self._touches(request), True):
            self.tally.add("untouched")

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        mode = self._mode
        if mode is None:
            return _NOTHING
        return self._guarded(lambda: self._match(mode, request, computed), _NOTHING)

    @property
    def _rounding(self) -> Rounding | None:
        return None if self._session is None else self._session.rounding

    def _match(
        self, mode: SchedulerMode, request: Request, computed: int
    ) -> tuple[int | None, bool]:
        if self._rounding is not None:
            self._rounding.matched(request, computed)
        if not self._touches(request):
            return _NOTHING
        self._first.matched(request, computed)
        return mode.match(request, computed)

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        if external > 0:
            self._claims.add(request.request_id)
        mode = self._mode
        if mode is not None:
            self._guarded(
                lambda: (
                    mode.allocated(request, blocks, external) if self._touches(request) else None
                ),
                None,
            )

    def plan(self, step: SchedulerOutput) -> object:
        mode = self._mode
        plan = None if mode is None else self._guarded(lambda: self._planned(mode, step), None)
        claims, self._claims = frozenset(self._claims), set()
        if self._over:
            self._over = False
            return Lost(claims)
        return plan

    def _planned(self, mode: SchedulerMode, step: SchedulerOutput) -> object:
        for started in self._first.plan(step):
            self._report(mode, started)
        return mode.plan(step)

    def settled(self, outcome: Outcome) -> None:
        mode = self._mode
        if mode is not None:
            self._guarded(lambda: mode.settled(outcome), None)

    def finished(self, request: Request) -> dict[str, object] | None:
        mode = self._mode
        return None if mode is None else self._guarded(lambda: self._ended(mode, request), None)

    def _ended(self, mode: SchedulerMode, request: Request) -> dict[str, object] | None:
        if (started := self._first.finished(request)) is not None:
            self._report(mode, started)
        if self._rounding is not None:
            self._rounding.finished(request)
        return mode.finished(request)

    def pending(self) -> bool:
        mode = self._mode
        return False if mode is None else self._guarded(mode.pending, False)

    def _report(self, mode: SchedulerMode, started: Started) -> None:
        """Reports to the daemon how a request was served."""
        if self._teller is not None:
            request, tokens = started.request, len(started.request.prompt_token_ids)
            held = min(started.held, tokens - 1)
            trace = traceparent(request.trace_headers)
            report = Served(request.request_id, tokens, held, first=started.first, trace=trace)
            self._teller.tell(mode.served(report))

    def _guarded(self, work: Callable[[], T], instead: T) -> T:
        """Calls `work`. An error of ours ends reuse, not the engine; then returns `instead`."""
        try:
            return work()
        except Exception as err:
            self._fail(err)
            return instead

    def _fail(self, err: Exception) -> None:
        log.exception("spliced has failed")
        self.turn_off(f"{type(err).__name__}: {err}")

    def wait_attached(self, timeout: float) -> bool:
        """Waits until the daemon can be used."""
        return self._session is not None and self._session.model.wait_attached(timeout)

    def close(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.close()
        if self._teller is not None:
            self._teller.close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _touches(self, request: Request) -> bool:
        return is_plain(request) and len(request.prompt_token_ids) >= self._settings.min_tokens


def is_plain(request: Request) -> bool:
    """Returns whether the request's state depends only on the weights and its token ids."""
    return (
        request.lora_request is None
        and request.pooling_params is None
        and request.prompt_embeds is None
        and not request.mm_features
        and not request.resumable
        and not request.skip_reading_prefix_cache
        and bool(request.prompt_token_ids)
    )


def scheduler_mode(session: Session) -> SchedulerMode:
    """Returns the mode that the settings name. Raises Inert if the engine is not set up for it."""
    if session.settings.mode is Mode.PREFIX:
        return PrefixScheduler(session)
    from spliced_connector.vllm.splice_scheduler import SpliceScheduler

    return SpliceScheduler(session)
