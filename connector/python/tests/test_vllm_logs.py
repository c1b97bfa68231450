"""Our log lines among vLLM's."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from spliced_connector.vllm import logs


@pytest.fixture
def engine() -> Iterator[io.StringIO]:
    """What vLLM's logger writes, configured as vLLM does it."""
    loggers = [logging.getLogger(name) for name in ("vllm", "spliced")]
    before = [(log.handlers, log.level, log.propagate) for log in loggers]
    for log in loggers:
        log.handlers, log.propagate = [], True
    written = io.StringIO()
    loggers[0].addHandler(logging.StreamHandler(written))
    loggers[0].setLevel(logging.INFO)
    loggers[0].propagate = False
    yield written
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


def test_lines_below_a_warning_are_written_once(engine: io.StringIO) -> None:
    logging.getLogger("spliced.vllm").info("not yet")
    logs.adopt()
    logs.adopt()
    logging.getLogger("spliced.vllm").info("attached")
    logging.getLogger("spliced").debug("detail")
    assert engine.getvalue() == "attached\n"


def test_a_logger_that_somebody_has_configured_is_left_alone(engine: io.StringIO) -> None:
    own = io.StringIO()
    logging.getLogger("spliced").addHandler(logging.StreamHandler(own))
    logs.adopt()
    logging.getLogger("spliced").warning("trouble")
    assert (engine.getvalue(), own.getvalue()) == ("", "trouble\n")
