"""Our log lines among vLLM's.

vLLM configures handlers for loggers below its own name only, and leaves the root logger at its
default, which drops everything below a warning: an operator would not see that the connector has
attached, nor why it declines.
"""

from __future__ import annotations

import logging

_OURS, _ENGINE = "spliced", "vllm"


def adopt() -> None:
    """Sends our lines to the handlers of vLLM's logger, at its level. Does nothing where it has
    none, or where somebody has configured our logger. May be called again."""
    ours, engine = logging.getLogger(_OURS), logging.getLogger(_ENGINE)
    if ours.handlers or not engine.handlers:
        return
    for handler in engine.handlers:
        ours.addHandler(handler)
    ours.setLevel(engine.getEffectiveLevel())
    ours.propagate = False
