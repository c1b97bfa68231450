"""Packages whose names are imported at first use.

Importing such a package, or a module of it that needs neither, imports no torch and no engine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module


def attribute(package: str, modules: Mapping[str, str], name: str) -> object:
    """Implements `__getattr__` of a package; `modules` lists the names that each of its modules
    defines."""
    for module, names in modules.items():
        if name in names.split():
            value: object = getattr(import_module(f"{package}.{module}"), name)
            setattr(sys.modules[package], name, value)  # later accesses do not call this again
            return value
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
