"""SGLang beside a daemon in trouble; `python -m engine.sglang_faults` does so for longer."""

from __future__ import annotations

import importlib.util

import pytest

if not importlib.util.find_spec("sglang") or not importlib.util.find_spec("triton"):
    pytest.skip("SGLang is not installed: `make test-sglang`", allow_module_level=True)

from engine.sglang_faults import run

pytestmark = pytest.mark.engine


def test_no_answer_is_wrong_beside_a_daemon_in_trouble() -> None:
    report = run(requests=200)
    assert (report.wrong, report.errors) == ([], [])
    assert report.requests == report.aborted + sum(report.ways.values()) == 200
    assert report.lived
    assert report.recovered
    assert report.faults.total() > 0
    assert report.ways["cuts: splice"] > 0
