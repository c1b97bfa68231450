"""The `vllm.general_plugins` entry point: records which model each model runner has loaded, and
records the engine's loop, so that a sleeping engine can be woken.

Splicing computes the tokens at seams with the engine's own modules, but vLLM does not give the
model to a connector. So `register` wraps `load_model` of the runner classes and keeps a weak
reference to each runner that has loaded a model. A runner class with unexpected methods is not
wrapped: then no model is found, and splicing stays off.

vLLM does not tell a connector either that weights were replaced in place. So `reload_weights` is
wrapped too, and so are the calls to the engine core after which weights may have changed. An engine
without requests sleeps until one arrives, but must wake for a segment that another node requests.
So `run_busy_loop` is wrapped as well. Nothing else is changed.

Runners are imported late in some processes and never in others, and importing them takes seconds.
So a class is wrapped when its module is imported, or at once if it is already imported.

This module imports neither vLLM nor torch.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

_log = logging.getLogger("spliced")

# Module and class of every runner that loads a model (tested: vLLM 0.32.0).
RUNNERS = {
    "vllm.v1.worker.gpu_model_runner": "GPUModelRunner",
    "vllm.v1.worker.cpu_model_runner": "CPUModelRunner",
    "vllm.v1.worker.gpu.model_runner": "GPUModelRunner",
}

# Module and class of the engine's loop (tested: vLLM 0.32.0).
CORE = ("vllm.v1.engine.core", "EngineCoreProc")

_USERS_CALLS = ("collective_rpc", "reset_prefix_cache", "wake_up")
"""Methods of the engine's core after which weights may have changed. `collective_rpc` runs users'
code in the workers. The others are called after weights were replaced, or restore released
memory."""
_LOOP = "run_busy_loop"
_LOAD = "load_model"
_RELOAD = "reload_weights"
_MARK = "_spliced_keeps_model"


class LoadedModels:
    """The runners of this process that have loaded a model, weakly referenced."""

    def __init__(self) -> None:
        self._runners: list[weakref.ref[object]] = []
        self._replaced: weakref.WeakSet[object] = weakref.WeakSet()

    def keep(self, runner: object) -> None:
        """Records a runner, only once even if it loads several times."""
        alive = [ref for ref in self._runners if ref() is not None]
        if not any(ref() is runner for ref in alive):
            alive.append(weakref.ref(runner))
        self._runners = alive

    def of(self, vllm_config: object) -> object | None:
        """Returns the model of the runner with exactly this configuration object, None if there is
        none."""
        get_model = getattr(self._runner(vllm_config), "get_model", None)
        return get_model() if callable(get_model) else None

    def drafter_of(self, vllm_config: object) -> object | None:
        """Returns the draft model of the runner with exactly this configuration object, None if
        there is none."""
        runner = self._runner(vllm_config)
        drafters = (getattr(runner, name, None) for name in ("drafter", "speculator"))
        return next((m for d in drafters if (m := getattr(d, "model", None)) is not None), None)

    def _runner(self, vllm_config: object) -> object | None:
        for ref in self._runners:
            runner = ref()
            if runner is not None and getattr(runner, "vllm_config", None) is vllm_config:
                return runner
        return None

    def batch_of(self, vllm_config: object) -> Callable[[], Sequence[str]]:
        """Returns a function that returns the ids of the requests in a step of the runner with this
        configuration, in the order of the batch. Raises LookupError if the runner is unknown."""
        runner = self._runner(vllm_config)
        if runner is None:
            raise LookupError("the runner is not known")
        return functools.partial(_batch, weakref.ref(runner))

    def replace(self, runner: object) -> None:
        """Records that the weights of a runner were replaced after loading, or soon will be."""
        self._replaced.add(runner)

    def replaced(self, vllm_config: object) -> bool:
        """Returns whether weights were replaced in a runner with exactly this configuration
        object."""
        return any(getattr(r, "vllm_config", None) is vllm_config for r in self._replaced)


def _batch(ref: weakref.ref[object]) -> Sequence[str]:
    ids: Sequence[str] = getattr(ref(), "input_batch").req_ids  # noqa: B009 (mypy)
    return ids


loaded = LoadedModels()


class _Inbox(Protocol):
    def put_nowait(self, item: tuple[object, None]) -> None: ...


class Cores:
    """The engine loops of this process, which sleep without requests. An engine's own process has
    one."""

    def __init__(self) -> None:
        self._running: weakref.WeakSet[object] = weakref.WeakSet()

    def keep(self, core: object) -> None:
        """Records a loop that begins to run."""
        self._running.add(core)

    @property
    def running(self) -> bool:
        """Returns whether there is a loop. A program that steps its engine itself has none."""
        return bool(self._inboxes())

    def wake(self) -> None:
        """Makes loops check for work; any thread may call it."""
        for inbox, wakeup in self._inboxes():
            inbox.put_nowait((wakeup, None))

    def _inboxes(self) -> list[tuple[_Inbox, object]]:
        """Returns the queues of the loops, and the objects that wake them."""
        kinds = getattr(sys.modules.get("vllm.v1.engine"), "EngineCoreRequestType", None)
        wakeup = getattr(kinds, "WAKEUP", None)
        found = (getattr(core, "input_queue", None) for core in list(self._running))
        return [(inbox, wakeup) for inbox in found if inbox is not None and wakeup is not None]


cores = Cores()


class UsersCalls:
    """Counts calls in this process after which an engine's weights may have changed."""

    def __init__(self) -> None:
        self.count = 0


users_calls = UsersCalls()


def register() -> None:
    """Wraps the runner classes and the engine's loop, now or when they are imported. May be called
    again."""
    waiting = {}
    for module_name, class_name in (*RUNNERS.items(), CORE):
        module = sys.modules.get(module_name)
        if module is None:
            waiting[module_name] = class_name
        else:
            wrap(module, class_name)
    if waiting and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(waiting))


def wrap(module: ModuleType, class_name: str) -> bool:
    """Wraps a class: load_model of a runner class records the runner, and the loop of an engine's
    core records the core. Returns whether the class has the expected methods."""
    runner = getattr(module, class_name, None)
    if (module.__name__, class_name) == CORE:
        _wrap_users_calls(runner)
        return _wrap_loop(runner)
    if inspect.isclass(runner):
        _wrap_reload(runner)
    trouble = _mismatch(runner)
    if trouble:
        _log.warning("splicing stays off: %s.%s %s", module.__name__, class_name, trouble)
        return False
    load = vars(runner)[_LOAD]
    if getattr(load, _MARK, False):
        return True
    setattr(runner, _LOAD, _keeping(load))
    return True


def _mismatch(runner: object) -> str:
    """Returns what is unexpected in a runner class, "" if nothing is."""
    if not inspect.isclass(runner):
        return "is no class"
    load = vars(runner).get(_LOAD)
    if not callable(load):
        return "has no load_model of its own"
    names = list(inspect.signature(load).parameters)
    if names[:2] != ["self", "load_dummy_weights"]:
        return f"has load_model({', '.join(names)})"
    if not callable(getattr(runner, "get_model", None)):
        return "has no get_model"
    return ""


def _keeping(load: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(load)
    def load_model(self: object, *args: object, **options: object) -> object:
        config = getattr(self, "vllm_config", None)
        if loaded.of(config) is not None:
            loaded.replace(self)
        _share_pages(shares_pages(config))
        result = load(self, *args, **options)
        loaded.keep(self)
        return result

    setattr(load_model, _MARK, True)
    return load_model


def shares_pages(config: object) -> bool:
    """Returns whether the setting `shared_pages` is on, for an engine on a supported device."""
    transfer = getattr(config, "kv_transfer_config", None)
    module = str(getattr(transfer, "kv_connector_module_path", None))
    given = getattr(transfer, "kv_connector_extra_config", None) or {}
    device = getattr(getattr(config, "device_config", None), "device_type", None)
    ours = module.startswith(__name__.partition(".")[0])
    return ours and device == "cpu" and given.get("shared_pages") is True


def _share_pages(wanted: bool) -> None:
    """Installs the attention backend for shared pages, or withdraws it. This must happen before the
    model is loaded, because attention layers select their backend when they are built."""
    name = "spliced_connector.vllm.pages.backend"
    if not wanted and name not in sys.modules:
        return
    try:
        from spliced_connector.vllm.pages.backend import install, withdraw
    except ImportError as err:
        _log.warning("segments are copied into each request's blocks: %s", err)
    else:
        install() if wanted else withdraw()


def _wrap_loop(core: object) -> bool:
    loop = vars(core).get(_LOOP) if inspect.isclass(core) else None
    if not callable(loop):
        _log.warning("an engine without requests computes nothing for others: no %s", _LOOP)
        return False
    if not getattr(loop, _MARK, False):
        setattr(core, _LOOP, _keeping_core(loop))
    return True


def _keeping_core(loop: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(loop)
    def run_busy_loop(self: object, *args: object, **options: object) -> object:
        cores.keep(self)
        return loop(self, *args, **options)

    setattr(run_busy_loop, _MARK, True)
    return run_busy_loop


def _wrap_users_calls(core: object) -> None:
    """Wraps the methods in `_USERS_CALLS` in the class that defines them, because engines in the
    user's own process use a base class without a loop."""
    for name in _USERS_CALLS:
        owners = (c for c in getattr(core, "__mro__", ()) if callable(vars(c).get(name)))
        if (owner := next(owners, None)) is None:
            _log.warning("changed weights may be noticed late: no %s.%s", CORE[0], name)
        elif not getattr(vars(owner)[name], _MARK, False):
            setattr(owner, name, _counting(vars(owner)[name]))


def _counting(call: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(call)
    def counted(self: object, *args: object, **options: object) -> object:
        try:
            return call(self, *args, **options)
        finally:
            users_calls.count += 1

    setattr(counted, _MARK, True)
    return counted


def _wrap_reload(runner: type) -> None:
    """Wraps reload_weights if the class itself defines it. An inherited method is wrapped in the
    class that defines it."""
    reload = vars(runner).get(_RELOAD)
    if callable(reload) and not getattr(reload, _MARK, False):
        setattr(runner, _RELOAD, _telling(reload))


def _telling(reload: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(reload)
    def reload_weights(self: object, *args: object, **options: object) -> object:
        loaded.replace(self)  # before the call, which may replace some weights and fail
        return reload(self, *args, **options)

    setattr(reload_weights, _MARK, True)
    return reload_weights


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps classes right after their modules are executed. It leaves finding modules to Python."""

    def __init__(self, waiting: dict[str, str]) -> None:
        self._waiting = waiting

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        # The entry is kept: this may be only a query, and the import may follow later.
        class_name = self._waiting.get(fullname)
        if class_name is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, class_name)
        return spec


class _Loader(importlib.abc.Loader):
    """Runs a module's own loader, then wraps the class in it."""

    def __init__(self, loader: importlib.abc.Loader, class_name: str) -> None:
        self._loader, self._class_name = loader, class_name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        wrap(module, self._class_name)
