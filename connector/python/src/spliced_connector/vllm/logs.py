"""Puts our log lines into vLLM's log.

vLLM configures handlers only for loggers below its own name. The root logger keeps its default,
which drops everything below a warning. So operators would not see that the connector has attached.
"""

from __future__ import annotations

import logging

_OURS, _ENGINE = "spliced", "vllm"


def adopt() -> None:
    """Sends our lines to the handlers of vLLM's logger, at its level. Does nothing if vLLM's logger
    has no handlers, or if our logger is already configured. May be called again."""
    ours, engine = logging.getLogger(_OURS), logging.getLogger(_ENGINE)
    if ours.handlers or not engine.handlers:
        return
    for handler in engine.handlers:
        ours.addHandler(handler)
    ours.setLevel(engine.getEffectiveLevel())
    ours.propagate = False
