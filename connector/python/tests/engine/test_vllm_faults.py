"""A daemon that is killed, stalled and restarted; `make faults-engines` does so for longer."""

from __future__ import annotations

import importlib.util

import pytest

from engine.faults import run

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.mark.parametrize("mode", ["prefix", "splice"])
def test_no_answer_is_wrong_beside_a_daemon_in_trouble(mode: str) -> None:
    report = run(mode, requests=400)
    assert report.requests == 400
    assert report.wrong == []
    assert "inert" not in report.counts
