"""Enables or hides Flash Linear Attention, before any import of it."""

from __future__ import annotations

import sys
from typing import Any


def hide() -> None:
    """Hides Flash Linear Attention from later imports, as if it were not installed."""
    sys.modules["fla"] = None  # type: ignore[assignment]


def quicken() -> None:
    """Makes Triton compile one configuration of each kernel, the middle of its list, untimed.

    To choose among all configurations, Triton compiles dozens, which takes minutes. The results are
    the same.
    """
    from triton.runtime.autotuner import Autotuner

    given = Autotuner.__init__

    def init(self: Any, fn: Any, arg_names: Any, configs: Any, *more: Any, **named: Any) -> None:
        one = configs[len(configs) // 2 :][:1] if configs else configs
        given(self, fn, arg_names, one, *more, **named)

    Autotuner.__init__ = init
