"""Packages that import their names at first use.

Importing such a package imports neither torch nor an engine, unless a module that is used needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module


def attribute(package: str, modules: Mapping[str, str], name: str) -> object:
    """Implements `__getattr__` of a package. `modules` maps each of its modules to the names that
    it defines, separated by spaces."""
    for module, names in modules.items():
        if name in names.split():
            value: object = getattr(import_module(f"{package}.{module}"), name)
            setattr(sys.modules[package], name, value)  # later accesses do not call this again
            return value
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
