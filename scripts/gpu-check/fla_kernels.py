"""Flash Linear Attention, with it or without, before anything has imported it."""

from __future__ import annotations

import sys
from typing import Any


def hide() -> None:
    """It is not to be found from here on, as where it is not installed."""
    sys.modules["fla"] = None  # type: ignore[assignment]


def quicken() -> None:
    """Triton compiles one form of each kernel, that in the middle of its list, and times none.

    Choosing among all compiles dozens, for minutes. What is computed is the same.
    """
    from triton.runtime.autotuner import Autotuner

    given = Autotuner.__init__

    def init(self: Any, fn: Any, arg_names: Any, configs: Any, *more: Any, **named: Any) -> None:
        one = configs[len(configs) // 2 :][:1] if configs else configs
        given(self, fn, arg_names, one, *more, **named)

    Autotuner.__init__ = init
