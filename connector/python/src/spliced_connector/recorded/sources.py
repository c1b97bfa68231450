"""Describes the interfaces of a release by reading its sources, without importing any.

The facts are the same as in `spliced_connector.drift`, as far as sources show them. Sources do not
show results of the engine's functions, nor members that come from decorators or from base classes
of other libraries.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from spliced_connector.recorded.targets import Target

MISSING = "missing"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_RECORDS = {"dataclass", "Struct", "NamedTuple", "config"}
"""Decorators and bases of classes whose annotated names are fields."""
_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
_EMPTY = {"ABC", "Generic", "Protocol", "object"}
"""Bases that add nothing to the facts."""


@dataclass
class Facts:
    """The facts that were read, and the names whose facts are unknown."""

    known: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def comparable(self, recorded: dict[str, str]) -> dict[str, str]:
        """Returns the recorded facts that sources can show."""
        return {n: text for n, text in recorded.items() if not n.startswith(tuple(self.unknown))}


class Sources:
    """The sources of a release below a folder, which holds its top package."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._module = cache(self._parse)

    def describe(self, targets: tuple[Target, ...]) -> Facts:
        out = Facts()
        for target in targets:
            self._describe(target, out)
        out.known = {n: t for n, t in out.known.items() if n in out.comparable(out.known)}
        return out

    def _describe(self, target: Target, out: Facts) -> None:
        name = f"{target.module}.{target.name}"
        if target.module.partition(".")[0] == "spliced_connector":
            out.unknown.add(name)
            return
        for call in target.calls:
            out.unknown.add(f"{name}.{call.method}{call.arguments}")
        found = self._find(target.module, target.name)
        if found is None:
            out.known[name] = MISSING
        elif isinstance(found[1], _FUNCTIONS):
            out.known |= {name: "function", f"{name}()": _signature(found[1])}
        elif isinstance(found[1], ast.ClassDef):
            out.known[name] = "class"
            self._class(name, target, *found, out)
        else:
            out.unknown.add(name)

    def _class(self, name: str, target: Target, module: str, node: ast.AST, out: Facts) -> None:
        order, whole = self._ancestors(module, node)
        if abstract := _abstract(order):
            out.known[f"{name}.abstract methods"] = ", ".join(sorted(abstract))
        if any(_bases(c) & _ENUMS for c in order):
            for member, value in _members(order[0]):
                if not target.members or member in target.members:
                    out.known[f"{name}.[{member}]"] = value
        for each in _fields(order):
            if not target.members or each in target.members:
                out.known[f"{name}.field {each}"] = "there"
        methods = {*target.methods, *(_public(order[0]) if target.every else ())}
        for method in methods:
            text = _kind(order, method)
            if text is not None:
                out.known[f"{name}.{method}()"] = text
            elif whole and method != "__init__":
                out.known[f"{name}.{method}()"] = MISSING
            else:
                out.unknown.add(f"{name}.{method}()")
        source = ast.unparse(order[0])
        for attribute in target.attributes:
            there = re.search(rf"self\.{attribute}\b\s*(:[^=\n]+)?=[^=]", source)
            out.known[f"{name}.attribute {attribute}"] = "set" if there else MISSING
        if not whole:
            out.unknown |= {f"{name}.field ", f"{name}.abstract methods"}

    def _parse(self, module: str) -> ast.Module | None:
        path = self._root.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text())
        return None

    def _find(self, module: str, name: str, depth: int = 8) -> tuple[str, ast.AST] | None:
        """Returns a name's definition and the module that has it, through imports."""
        tree = self._module(module)
        if tree is None or not depth:
            return None
        found: tuple[str, ast.AST] | None = None
        for node in _statements(tree.body):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.name == name:
                found = (module, node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == "*" or (alias.asname or alias.name) == name:
                        wanted = name if alias.name == "*" else alias.name
                        source = self._absolute(module, node)
                        found = self._find(source, wanted, depth - 1) or found
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    found = (module, node)
        return found

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        is_package = self._root.joinpath(*parts, "__init__.py").is_file()
        above = parts[: len(parts) - node.level + is_package]
        return ".".join([*above, *([node.module] if node.module else [])])

    def _ancestors(self, module: str, node: ast.AST) -> tuple[list[ast.ClassDef], bool]:
        """Returns a class and its bases in order, and whether all its bases were found."""
        if not isinstance(node, ast.ClassDef):
            return [], False
        order, whole = [node], True
        for base in node.bases:
            name = _name(base)
            if name in _EMPTY | _ENUMS | _RECORDS:
                continue
            found = self._find(module, name)
            if found is None or not isinstance(found[1], ast.ClassDef):
                whole = False
                continue
            more, all_of_them = self._ancestors(*found)
            order += [c for c in more if c not in order]
            whole &= all_of_them
        return order, whole


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a module, including those in conditions."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                inner = getattr(node, part, [])
                for each in inner:
                    yield from _statements(each.body if part == "handlers" else [each])


def _name(node: ast.expr) -> str:
    """Returns the last name of an expression such as `a.B[C]` or `B(...)`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _bases(node: ast.ClassDef) -> set[str]:
    return {_name(base) for base in node.bases}


def _decorators(node: _Function | ast.ClassDef) -> set[str]:
    return {_name(d) for d in node.decorator_list}


def _own(node: ast.ClassDef) -> Iterator[_Function]:
    for each in _statements(node.body):
        if isinstance(each, _FUNCTIONS):
            yield each


def _abstract(order: list[ast.ClassDef]) -> set[str]:
    names: set[str] = set()
    for node in reversed(order):
        for each in _own(node):
            is_abstract = bool(_decorators(each) & {"abstractmethod", "abstractproperty"})
            names = names | {each.name} if is_abstract else names - {each.name}
    return names


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    last = 0
    for each in node.body:
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Name):
            continue
        name, value = each.targets[0].id, each.value
        if name.startswith("_"):
            continue
        if isinstance(value, ast.Call) and _name(value) == "auto":
            last += 1
            yield name, str(last)
            continue
        try:
            literal = ast.literal_eval(value)
        except ValueError:
            continue
        last = literal if isinstance(literal, int) else last
        yield name, str(literal)


def _fields(order: list[ast.ClassDef]) -> list[str]:
    names = []
    for node in order:
        marks = _decorators(node) | _bases(node)
        if not marks & _RECORDS and not any((_decorators(c) | _bases(c)) & _RECORDS for c in order):
            continue
        for each in node.body:
            if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
                continue
            if "ClassVar" not in ast.unparse(each.annotation):
                names.append(each.target.id)
    return names


def _public(node: ast.ClassDef) -> set[str]:
    return {each.name for each in _own(node) if not each.name.startswith("_")}


def _kind(order: list[ast.ClassDef], method: str) -> str | None:
    for node in order:
        found = [each for each in _own(node) if each.name == method]
        if not found:
            continue
        marks = _decorators(found[-1])
        if marks & {"property", "abstractproperty", "setter"}:
            return "property"
        if "cached_property" in marks:
            return "value"
        return _signature(found[-1], bound="classmethod" in marks)
    return None


def _signature(node: _Function, *, bound: bool = False) -> str:
    """Formats parameters as `drift.signature` does."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    first = len(plain) - len(args.defaults)
    out = [a.arg + "=" * (i >= first) for i, a in enumerate(plain)]
    if args.posonlyargs:
        out.insert(len(args.posonlyargs), "/")
    if bound:
        out = out[1:]
    if args.vararg is not None:
        out.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        out.append("*")
    defaults = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    out += [a.arg + "=" * (default is not None) for a, default in defaults]
    if args.kwarg is not None:
        out.append(f"**{args.kwarg.arg}")
    return f"({', '.join(out)})"
