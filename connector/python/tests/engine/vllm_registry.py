"""The classes of vLLM's registry that keep states, read from its source without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

_MARKS = {"IsHybrid", "HasInnerState", "IsAttentionFree"}


def stateful_classes() -> set[str]:
    """Names that a config may give under `architectures`."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("vLLM is not installed")
    package = Path(spec.submodule_search_locations[0])
    models = package / "model_executor" / "models"
    bases: dict[str, set[str]] = {}
    for folder in (models, package / "models"):
        for path in folder.rglob("*.py"):
            for name, theirs in _classes(path):
                bases.setdefault(name, set()).update(theirs)
    registered = _registered(models / "registry.py")
    return {name for name, made in registered.items() if _MARKS & _ancestors(made, bases)}


def _classes(path: Path) -> Iterator[tuple[str, set[str]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name, {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def _registered(path: Path) -> dict[str, str]:
    """The class that each name stands for."""
    found: dict[str, str] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    found[str(key.value)] = str(ast.literal_eval(value)[1])
    return found


def _ancestors(name: str, bases: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = {name}
    while left:
        at = left.pop()
        found.add(at)
        left |= bases.get(at, set()) - found
    return found
