"""Tests that need torch and an engine, see `make test-engines`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

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


def kernels_missing() -> str:
    """Why vLLM 0.32 cannot run hybrids on this CPU, "" where it can (tested with AVX2, AVX512-BF16
    and AMX)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "the CPU's features are not known"
    return "" if "avx2" in flags else "vLLM's CPU kernels for hybrids want AVX2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = kernels_missing()
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.engine)
        if missing and item.path.stem in STARTING:
            item.add_marker(pytest.mark.skip(reason=missing))
