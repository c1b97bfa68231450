"""The connector's logger inside vLLM."""

from __future__ import annotations

import logging

log = logging.getLogger("spliced.vllm")
