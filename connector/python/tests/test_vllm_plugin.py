"""Which runner loaded which model, without an engine."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import queue
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from spliced_connector.vllm import plugin as vllm_plugin

SOURCE = """
class GPUModelRunner:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def load_model(self, load_dummy_weights=False, **options):
        self.model = "a model"
        return "loaded"

    def get_model(self):
        return self.model

    def reload_weights(self, path=None):
        if path is None:
            raise FileNotFoundError
        return path
"""


def module(source: str) -> ModuleType:
    made = ModuleType("runners")
    exec(source, vars(made))
    return made


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> vllm_plugin.LoadedModels:
    fresh = vllm_plugin.LoadedModels()
    monkeypatch.setattr(vllm_plugin, "loaded", fresh)
    return fresh


def test_the_model_is_found_by_its_configuration(loaded: vllm_plugin.LoadedModels) -> None:
    runners = module(SOURCE)
    assert vllm_plugin.wrap(runners, "GPUModelRunner")
    config, other = object(), object()
    runner = runners.GPUModelRunner(config)
    assert loaded.of(config) is None
    assert runner.load_model() == "loaded"
    assert not loaded.replaced(config)
    assert runner.load_model(load_dummy_weights=True) == "loaded"
    assert loaded.replaced(config)
    assert loaded.of(config) == "a model"
    assert loaded.of(other) is None


def test_wrapping_twice_is_wrapping_once(loaded: vllm_plugin.LoadedModels) -> None:
    runners = module(SOURCE)
    vllm_plugin.wrap(runners, "GPUModelRunner")
    once = runners.GPUModelRunner.load_model, runners.GPUModelRunner.reload_weights
    assert vllm_plugin.wrap(runners, "GPUModelRunner")
    assert (runners.GPUModelRunner.load_model, runners.GPUModelRunner.reload_weights) == once


@pytest.mark.parametrize("works", [True, False])
def test_weights_that_are_replaced_are_noticed(
    loaded: vllm_plugin.LoadedModels, works: bool
) -> None:
    runners = module(SOURCE + "\nclass CPUModelRunner(GPUModelRunner): pass")
    vllm_plugin.wrap(runners, "GPUModelRunner")
    vllm_plugin.wrap(runners, "CPUModelRunner")
    config, other = object(), object()
    runner, kept = runners.CPUModelRunner(config), runners.GPUModelRunner(other)
    runner.load_model()
    kept.load_model()
    assert not loaded.replaced(config)
    if works:
        assert runner.reload_weights(path="there") == "there"
    else:
        with pytest.raises(FileNotFoundError):
            runner.reload_weights()
    assert loaded.replaced(config)
    assert not loaded.replaced(other)


def test_a_runner_is_not_kept_alive(loaded: vllm_plugin.LoadedModels) -> None:
    runners = module(SOURCE)
    vllm_plugin.wrap(runners, "GPUModelRunner")
    config = object()
    runners.GPUModelRunner(config).load_model()
    gc.collect()
    assert loaded.of(config) is None


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("GPUModelRunner = 7", "is no class"),
        ("class GPUModelRunner: pass", "no load_model"),
        ("class GPUModelRunner:\n def load_model(self, device): pass", r"load_model\(self, device"),
        ("class GPUModelRunner:\n def load_model(self, load_dummy_weights): pass", "no get_model"),
    ],
)
def test_a_runner_of_another_shape_is_left_alone(
    source: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    runners = module(source)
    before = runners.GPUModelRunner
    assert not vllm_plugin.wrap(runners, "GPUModelRunner")
    assert runners.GPUModelRunner is before
    assert len(caplog.records) == 1
    caplog.text.index(text.replace("\\", ""))


@pytest.fixture
def finders() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


def test_a_runner_that_is_imported_later_is_wrapped_then(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loaded: vllm_plugin.LoadedModels,
    finders: None,
) -> None:
    (tmp_path / "late_runner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(vllm_plugin, "RUNNERS", {"late_runner": "GPUModelRunner"})
    vllm_plugin.register()
    vllm_plugin.register()
    assert importlib.util.find_spec("late_runner") is not None  # a question, not an import
    runners = importlib.import_module("late_runner")
    config = object()
    runner = runners.GPUModelRunner(config)
    runner.load_model()
    assert loaded.of(config) == "a model"
    del sys.modules["late_runner"]


CORE = """
class EngineCore:
    def collective_rpc(self, method):
        return method()

    def reset_prefix_cache(self):
        return True

    def wake_up(self, tags=None):
        return tags


class EngineCoreProc(EngineCore):
    def __init__(self, queue):
        self.input_queue = queue

    def run_busy_loop(self):
        return self.input_queue.get(timeout=30)
"""


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> vllm_plugin.Cores:
    fresh = vllm_plugin.Cores()
    monkeypatch.setattr(vllm_plugin, "cores", fresh)
    return fresh


def core_module(source: str) -> ModuleType:
    made = module(source)
    made.__name__ = vllm_plugin.CORE[0]
    return made


def test_an_engine_that_sleeps_is_woken(
    cores: vllm_plugin.Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ModuleType("vllm.v1.engine")
    vars(engine)["EngineCoreRequestType"] = SimpleNamespace(WAKEUP=b"wake")
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", engine)
    made = core_module(CORE)
    assert vllm_plugin.wrap(made, "EngineCoreProc")
    assert vllm_plugin.wrap(made, "EngineCoreProc")
    assert not cores.running
    core = made.EngineCoreProc(queue.Queue())
    with ThreadPoolExecutor(1) as pool:
        slept = pool.submit(core.run_busy_loop)
        while not cores.running:
            assert not slept.done()
        cores.wake()
        assert slept.result(30) == (b"wake", None)
    del core, slept
    gc.collect()
    assert not cores.running, "a core is not kept alive"


@pytest.mark.parametrize("source", ["EngineCoreProc = 7", "class EngineCoreProc: pass"])
def test_a_loop_of_another_shape_is_left_alone(
    source: str, cores: vllm_plugin.Cores, caplog: pytest.LogCaptureFixture
) -> None:
    assert not vllm_plugin.wrap(core_module(source), "EngineCoreProc")
    assert "computes nothing for others" in caplog.text
    assert "changed weights may be noticed late" in caplog.text


def test_calls_of_users_into_an_engine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = vllm_plugin.UsersCalls()
    monkeypatch.setattr(vllm_plugin, "users_calls", calls)
    made = core_module(CORE)
    vllm_plugin.wrap(made, "EngineCoreProc")
    vllm_plugin.wrap(made, "EngineCoreProc")
    inside, process = made.EngineCore(), made.EngineCoreProc(queue.Queue())
    assert (inside.collective_rpc(lambda: 3), process.reset_prefix_cache()) == (3, True)
    assert process.wake_up(tags=["weights"]) == ["weights"]
    assert calls.count == 3
    with pytest.raises(ZeroDivisionError):
        process.collective_rpc(lambda: 1 // 0)
    assert calls.count == 4, "one that fails may have written some"


def test_the_model_that_drafts_is_found(loaded: vllm_plugin.LoadedModels) -> None:
    runners = module(SOURCE)
    vllm_plugin.wrap(runners, "GPUModelRunner")
    one, other, plain = (runners.GPUModelRunner(object()) for _ in range(3))
    one.drafter, other.speculator = SimpleNamespace(model="drafts"), SimpleNamespace(model="mtp")
    plain.drafter = SimpleNamespace()
    for runner in (one, other, plain):
        runner.load_model()
    found = [loaded.drafter_of(runner.vllm_config) for runner in (one, other, plain)]
    assert found == ["drafts", "mtp", None]
    assert loaded.drafter_of(object()) is None


@pytest.mark.parametrize(
    ("module", "device", "given", "shares"),
    [
        ("spliced_connector.vllm", "cpu", {"shared_pages": True}, True),
        ("spliced_connector.vllm_connector", "cpu", {"shared_pages": True}, True),
        ("spliced_connector.vllm", "cuda", {"shared_pages": True}, False),
        ("spliced_connector.vllm", "cpu", {"shared_pages": False}, False),
        ("spliced_connector.vllm", "cpu", None, False),
        ("another.connector", "cpu", {"shared_pages": True}, False),
    ],
)
def test_pages_are_shared_where_they_are_asked_for(
    module: str, device: str, given: dict[str, object] | None, shares: bool
) -> None:
    transfer = SimpleNamespace(kv_connector_module_path=module, kv_connector_extra_config=given)
    config = SimpleNamespace(
        kv_transfer_config=transfer, device_config=SimpleNamespace(device_type=device)
    )
    assert vllm_plugin.shares_pages(config) is shares
    assert not vllm_plugin.shares_pages(SimpleNamespace(kv_transfer_config=None))
    assert not vllm_plugin.shares_pages(None)


def test_the_requests_of_a_step_are_those_of_its_runner(
    loaded: vllm_plugin.LoadedModels,
) -> None:
    runner = type("Runner", (), {})()
    runner.vllm_config = object()
    runner.input_batch = SimpleNamespace(req_ids=["a", "b"])
    loaded.keep(runner)
    batch = loaded.batch_of(runner.vllm_config)
    assert list(batch()) == ["a", "b"]
    runner.input_batch = SimpleNamespace(req_ids=["b"])
    assert list(batch()) == ["b"]
    with pytest.raises(LookupError):
        loaded.batch_of(object())
