"""Detects that a model's weights have changed since they were named."""

from __future__ import annotations

import weakref

from torch import nn

from spliced_connector.serving.parameters import Parameters
from spliced_connector.walk import UnsupportedError, altered


class Weights:
    """Watches a model's modules, and their parameters byte by byte.

    Raises `UnsupportedError` for a model whose weights cannot be read, such as offloaded weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen = [(name, weakref.ref(m), _names(m)) for name, m in _modules(model)]
        try:
            self._parameters = Parameters(model)
        except ValueError as err:
            raise UnsupportedError(str(err)) from err

    def changed(self) -> str:
        """Returns what has changed, "" if nothing has.

        Compares every byte, which takes as long as decoding a token or two. Merging an adapter or
        copying averaged weights writes `parameter.data`, which leaves no other trace.
        """
        why = altered(self._model) or self._replaced()
        if not why:
            self._parameters.doubt()
            why = self._parameters.changed()
        return why

    def _replaced(self) -> str:
        modules = _modules(self._model)
        for (name, seen, names), (now, module) in zip(self._seen, modules, strict=False):
            if now != name or seen() is not module or _names(module) != names:
                return f"module {now or 'of the model'} was replaced or has other parameters"
        return "" if len(modules) == len(self._seen) else "the model has other modules"


def _modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules(remove_duplicate=False))


def _names(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of existing parameters; one may be registered as None."""
    return tuple(name for name, weight in module._parameters.items() if weight is not None)
