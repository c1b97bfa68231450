"""Our log lines among vLLM's.

vLLM only configures handlers for loggers below its own name, and leaves the root logger at its
default, which drops everything below a warning. Operators would not see that the connector has
attached, nor why it is inert.
"""

from __future__ import annotations

import logging

_OURS, _ENGINE = "spliced", "vllm"


def adopt() -> None:
    """Sends our lines to the handlers of vLLM's logger, at its level. Does nothing if it has
    none, or if our logger is already configured. May be called again."""
    ours, engine = logging.getLogger(_OURS), logging.getLogger(_ENGINE)
    if ours.handlers or not engine.handlers:
        return
    for handler in engine.handlers:
        ours.addHandler(handler)
    ours.setLevel(engine.getEffectiveLevel())
    ours.propagate = False
