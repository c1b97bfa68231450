"""The `sglang.srt.plugins` entry point, which registers `--radix-cache-backend spliced`.

SGLang passes requests to a cache when it schedules them. The plugin gets everything else from
SGLang's hooks, which do nothing for other caches:

    before a batch is planned        a slice of work is done, see `reuse`
    a request is to be admitted      it is skipped until its promised tokens are there, and its
                                     prompt is cut where the daemon wants a state
    a batch runs                     a prefill's time is measured
    a model is loaded                its weights are watched
    weights are replaced             nothing is reused any more
    weights may have been written    they are compared before anything is reused or stored
    an answer is sent                the outcome of the request is included, in `meta_info`

Neither SGLang nor torch is imported before it is needed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spliced_connector.sglang.splice_settings import VARIABLE, SpliceSettings
from spliced_connector.sglang.weights import engine_weights

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

log = logging.getLogger("spliced.sglang")

BACKEND = "spliced"

_MANAGERS = "sglang.srt.managers"
_UPDATER = f"{_MANAGERS}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_UPDATES = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "begin_weight_update",  # others may write into the memory until it ends
)
_WEIGHTS_TAG = "weights"


def register() -> None:
    """Registers the hooks, in each of the engine's processes and before anything else."""
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if get_radix_cache_factory(BACKEND) is not None:
        return
    register_radix_cache_backend(BACKEND, build)
    hooks: dict[str, Callable[..., Any]] = {
        f"{_MANAGERS}.scheduler.Scheduler.get_next_batch_to_run": plan,
        f"{_MANAGERS}.scheduler.Scheduler.run_batch": run,
        f"{_MANAGERS}.schedule_policy.PrefillAdder.add_one_req": add,
        f"{_MANAGERS}.schedule_policy.PrefillAdder.add_chunked_req": add_chunk,
        f"{_MANAGERS}.scheduler_components.output_streamer"
        ".SchedulerOutputStreamer.is_request_level_customized_info_key": is_told,
        f"{_MANAGERS}.scheduler.Scheduler.flush_cache": flushed,
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model": loaded,
        f"{_UPDATER}.release_memory_occupation": released,
        f"{_UPDATER}.resume_memory_occupation": resumed,
    }
    for name, hook in hooks.items():
        HookRegistry.register(name, hook, HookType.AROUND)
    for name in _UPDATES:
        HookRegistry.register(f"{_UPDATER}.{name}", updated, HookType.AROUND)


def build(context: TreeCacheBuildContext) -> BasePrefixCache:
    """Returns SGLang's cache, with the daemon as a lower tier if the engine is supported.

    Raises ValueError for invalid settings.
    """
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    from spliced_connector.serving.inert import Inert
    from spliced_connector.serving.weights import model_directory
    from spliced_connector.sglang.build import make_reuse
    from spliced_connector.sglang.metrics import count_inert
    from spliced_connector.sglang.radix import SplicedRadixCache
    from spliced_connector.sglang.support import loading_of

    cache = create_unified_radix_cache(context, cache_class=SplicedRadixCache)
    model = model_directory(loading_of(context.server_args))
    settings = SpliceSettings.parse(os.environ.get(VARIABLE, ""), model)
    try:
        cache.attach(make_reuse(context, settings))
    except Inert as err:
        log.warning("spliced does nothing for this engine: %s", err)
        cache.inert = str(err)
        if context.server_args.enable_metrics:
            count_inert()
    return cache


def plan(
    original: Callable[..., Any],
    scheduler: Scheduler,
    running_batch: ScheduleBatch,
    last_batch: ScheduleBatch | None,
) -> Any:
    """Wraps `Scheduler.get_next_batch_to_run`."""
    cache = _ours(scheduler.tree_cache)
    if cache is not None:
        cache.step(alone=running_batch.is_empty() and not last_batch)
    return original(scheduler, running_batch, last_batch)


def run(
    original: Callable[..., Any], scheduler: Scheduler, batch: ScheduleBatch, *more: Any
) -> Any:
    """Wraps `Scheduler.run_batch`."""
    cache = _ours(scheduler.tree_cache)
    if cache is None or cache.reuse is None or scheduler.enable_overlap:
        return original(scheduler, batch, *more)
    alone = batch.forward_mode.is_extend() and len(batch.reqs) == 1
    clock = cache.reuse.clock
    clock.begin((batch.reqs[0].prefix_len, batch.reqs[0].extend_end) if alone else None)
    done = original(scheduler, batch, *more)
    clock.end()
    return done


def add(
    original: Callable[..., Any],
    adder: PrefillAdder,
    req: Req,
    has_chunked_req: bool,
    truncation_align_size: int | None,
) -> Any:
    """Wraps `PrefillAdder.add_one_req`."""
    from sglang.srt.managers.schedule_policy import AddReqResult

    cache = _ours(adder.tree_cache)
    if cache is None:
        return original(adder, req, has_chunked_req, truncation_align_size)
    if not cache.admit(req):
        return AddReqResult.CONTINUE  # others may be served in the meantime
    if has_chunked_req or adder.new_chunked_req is not None:  # there can be one only
        return original(adder, req, has_chunked_req, truncation_align_size)
    with cache.stopping(adder, req, req.prefix_len + req.host_hit_length):
        return original(adder, req, has_chunked_req, truncation_align_size)


def add_chunk(original: Callable[..., Any], adder: PrefillAdder, req: Req) -> Any:
    """Wraps `PrefillAdder.add_chunked_req`."""
    cache = _ours(adder.tree_cache)
    if cache is None:
        return original(adder, req)
    with cache.stopping(adder, req, req.prefix_len):
        return original(adder, req)


def updated(original: Callable[..., Any], updater: Any, *given: Any, **named: Any) -> Any:
    """Wraps the replacement of weights. Objects are named by the weights at the start, so reuse
    ends."""
    engine_weights.replace()
    cache = _ours(getattr(updater.scheduler, "tree_cache", None))
    if cache is not None:
        cache.turn_off("its weights were replaced: restart it")
    return original(updater, *given, **named)


def loaded(original: Callable[..., Any], runner: Any, *given: Any, **named: Any) -> Any:
    """Wraps `ModelRunner.load_model`."""
    done = original(runner, *given, **named)
    engine_weights.keep(runner)
    return done


def flushed(original: Callable[..., Any], scheduler: Any, *given: Any, **named: Any) -> Any:
    """Wraps `Scheduler.flush_cache`, which trainers call after writing weights."""
    try:
        return original(scheduler, *given, **named)
    finally:
        _doubt(scheduler)


def released(original: Callable[..., Any], updater: Any, request: Any) -> Any:
    """Wraps SGLang's release of the weights' memory."""
    if not request.tags or _WEIGHTS_TAG in request.tags:
        engine_weights.release()
    return original(updater, request)


def resumed(original: Callable[..., Any], updater: Any, request: Any) -> Any:
    """Wraps SGLang's call that restores the weights' memory, whose contents are then unknown."""
    done = original(updater, request)
    if _WEIGHTS_TAG not in updater.offload_tags:
        engine_weights.resume()
        _doubt(updater.scheduler)
    return done


def _doubt(scheduler: Any) -> None:
    engine_weights.doubt()
    cache = _ours(getattr(scheduler, "tree_cache", None))
    if cache is not None and cache.reuse is not None:
        cache.reuse.weights.doubt()


def is_told(original: Callable[..., Any], streamer: Any, key: str) -> bool:
    """Wraps the function by which SGLang decides whether a value of `meta_info` is reported once
    per request, not for each token."""
    from spliced_connector.sglang.radix import TOLD

    return key == TOLD or bool(original(streamer, key))


def _ours(cache: object) -> Any:
    """Returns the cache if it is a `SplicedRadixCache`, else None. The annotated type is Any,
    because importing the class would import SGLang."""
    return cache if hasattr(cache, "admit") and hasattr(cache, "stopping") else None
