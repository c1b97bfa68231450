"""Tests that need torch and an engine, see `make test-engines`."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Read by OpenMP when torch is imported. Workers share the processors: a second thread of each would
# mostly spin while it waits for the first.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]

# Modules that start vLLM.
STARTING = (
    "test_vllm_faults",
    "test_vllm_pages",
    "test_vllm_parallel",
    "test_vllm_parallel_ranks",
    "test_vllm_prefix",
    "test_vllm_prefix_dense",
    "test_vllm_prefix_drafter",
    "test_vllm_prefix_drafts",
    "test_vllm_prefix_faults",
    "test_vllm_prefix_fp8",
    "test_vllm_prefix_ranks",
    "test_vllm_splice",
    "test_vllm_splice_cached",
    "test_vllm_splice_dense",
    "test_vllm_splice_packed",
    "test_vllm_splice_ranks",
)

# Modules that show for another setting, or beside more processes, what one that runs by default
# shows already: `make test-engines-all`.
WIDE = (
    "test_gdn2",
    "test_hf_long",
    "test_hf_parallel",
    "test_sglang_faults",
    "test_sglang_ling",
    "test_sglang_trouble",
    "test_vllm_faults",
    "test_vllm_parallel",
    "test_vllm_parallel_ranks",
    "test_vllm_prefix_drafter",
    "test_vllm_prefix_drafts",
    "test_vllm_prefix_fp8",
    "test_vllm_prefix_ranks",
    "test_vllm_ring",
    "test_vllm_splice_dense",
    "test_vllm_splice_ling",
    "test_vllm_splice_packed",
    "test_vllm_splice_ranks",
)

# Of tests that have each class of models as a parameter, those that run by default: one class of
# each recurrent family.
PER_CLASS = ("test_hf_cache", "test_hf_steps", "test_vllm_families", "test_walk_transformers")
DEFAULT_CLASSES = {
    "bamba",
    "falcon_mamba",
    "jamba",
    "kimi",
    "minimax",
    "nemotron_h",
    "olmo",
    "olmo_hybrid",
    "qwen3",
    "qwen35_moe",
}

# Modules that take longest, in the order in which workers begin them: one that began last would
# run alone. The others follow by name. Needs `--no-loadscope-reorder`.
FIRST = (
    "test_gpu_check",
    "test_examples",
    "test_sglang_splice",
    "test_vllm_families",
    "test_vllm_prefix",
    "test_vllm_rounded",
    "test_vllm_prefix_faults",
    "test_vllm_splice",
    "test_vllm_splice_cached",
    "test_vllm_pages",
    "test_vllm_prefix_dense",
    "test_vllm_turns",
    "test_vllm_classes",
    "test_drift",
    "test_hf_registered",
)

# Available memory with which one process of vLLM more fits: each takes up to 2 GiB, and the
# daemons, servers and other engines that its tests start take as much.
AMPLE_BYTES = 16 << 30


def wide(item: pytest.Item) -> bool:
    """Reports whether a test runs only in `make test-engines-all`."""
    if item.path.stem in WIDE:
        return True
    if item.path.stem not in PER_CLASS or not isinstance(item, pytest.Function):
        return False
    parameters = getattr(item, "callspec", None)
    values = parameters.params if parameters else {}
    name = values.get("name", values.get("family"))
    return isinstance(name, str) and name not in DEFAULT_CLASSES


def kernels_missing() -> str:
    """Why vLLM 0.32 cannot run hybrids on this CPU, "" where it can (tested with AVX2, AVX512-BF16
    and AMX)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "the CPU's features are not known"
    return "" if "avx2" in flags else "vLLM's CPU kernels for hybrids want AVX2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {HERE / f"{name}.py": i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    missing = kernels_missing()
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.engine)
        if wide(item):
            item.add_marker(pytest.mark.wide)
        if missing and item.path.stem in STARTING:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns the number of processors, and one more where memory is ample: tests also wait for
    engines and daemons."""
    workers = len(os.sched_getaffinity(0))
    try:
        found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return workers
    return workers + (found is not None and int(found[1]) * 1024 >= AMPLE_BYTES)


@pytest.fixture(scope="module", autouse=True)
def _freeze_imports() -> None:
    """Excludes what is alive when a module begins from later garbage collections. `connect` forces
    two per test, and each would spend 0.4 s on what imports have left. An engine of vLLM that ends
    unfreezes everything."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _lines_for_caplog(request: pytest.FixtureRequest) -> Iterator[None]:
    """An engine that ran in this process may have taken our log lines to its own handlers, at its
    own level."""
    log = logging.getLogger("spliced")
    before = log.propagate, log.level
    if "caplog" in request.fixturenames:
        log.propagate = True
        log.setLevel(logging.NOTSET)
    yield
    log.propagate = before[0]
    log.setLevel(before[1])
