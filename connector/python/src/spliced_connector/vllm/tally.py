"""Where the connector logs inside vLLM."""

from __future__ import annotations

import logging

log = logging.getLogger("spliced.vllm")
