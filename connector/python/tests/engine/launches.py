"""Counts the operations that a walk starts: what a GPU would be given one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from spliced_connector.walk import Architecture

# They reserve memory or name it; nothing runs.
IDLE = {
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh")
} | {"aten::_unsafe_view", "aten::new_empty_strided", "aten::resize_"}

MODULES = {"embed", "norm", "attention", "attention_out", "linear", "linear_out", "mix"}
"""Methods of an architecture that are the model's own arithmetic."""


class Launches(TorchDispatchMode):  # type: ignore[misc]
    """Counts within its `with`, in which autograd has to be off and inference mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: Counter[str] = Counter()
        self.modules: Counter[str] = Counter()
        """By the model's modules, of an architecture that `apart` gave."""
        self._counted = self.ours

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        schema = func._schema
        is_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        if not is_view and schema.name not in IDLE:
            self._counted[schema.name] += 1
        return func(*args, **(kwargs or {}))

    def apart(self, arch: Architecture) -> Architecture:
        """The same architecture; what its modules start is counted apart."""
        mode = self

        class Apart:
            def __getattr__(self, name: str) -> object:
                found = getattr(arch, name)
                return mode._elsewhere(found) if name in MODULES else found

        return Apart()  # type: ignore[return-value]

    def _elsewhere(self, method: Any) -> object:
        def call(*args: Any) -> object:
            self._counted = self.modules
            try:
                return method(*args)
            finally:
                self._counted = self.ours

        return call
