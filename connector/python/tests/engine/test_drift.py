"""The installed engines are those that the adapters were written against."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from spliced_connector import drift
from spliced_connector.recorded.targets import TARGETS

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("engine", sorted(TARGETS))
def test_installed_engine_has_not_drifted(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed here")
    status = drift.main([engine])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("engine", sorted(TARGETS))
def test_sources_show_what_importing_does(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So the report on a release that is not installed is about that release."""
    module = pytest.importorskip(engine, reason=f"{engine} is not installed here")
    root = Path(module.__file__).parent.parent
    assert drift.main([engine, "--sources", str(root)]) == 0
    _, second, *lines = capsys.readouterr().out.splitlines()
    assert lines == []
    read, of = (int(word) for word in second.split() if word.isdigit())
    assert read >= 0.95 * of


SEAMS = {
    "mem_cache.unified_radix_cache.UnifiedRadixCache": (
        "match_prefix",
        "init_load_back",
        "load_back_is_cache_owned",
        "prefix_device_indices",
        "checkpoint",
        "on_release",
        "finish",
        "evict_for_alloc",
        "shutdown",
    ),
    "mem_cache.unified_cache.components.mamba.MambaComponent": ("cleanup_after_caching_req",),
    "managers.schedule_policy.PrefillAdder": ("add_one_req", "add_chunked_req"),
    "managers.scheduler.Scheduler": ("get_next_batch_to_run", "run_batch"),
    "models.qwen3_5.Qwen3_5AttentionDecoderLayer": ("_prepare_qkv_gate",),
}
"""Methods of SGLang that are overridden, wrapped or called."""


def test_a_seam_that_changes_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed here")
    want = set()
    for place, methods in SEAMS.items():
        module, _, name = f"sglang.srt.{place}".rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        for method in methods:
            monkeypatch.setattr(cls, method, lambda self, something_else: None)
            want.add(f"{module}.{name}.{method}()")
    assert drift.main(["sglang"]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    changed = {line.removeprefix("changed: ").partition(": ")[0] for line in lines}
    assert changed == want
    assert all(line.endswith("-> (self, something_else)") for line in lines)
