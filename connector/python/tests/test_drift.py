"""What counts as a difference between an engine that was recorded and one that is installed."""

from __future__ import annotations

import abc
import enum
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from spliced_connector import drift
from spliced_connector.recorded import targets
from spliced_connector.recorded.sources import Sources
from spliced_connector.recorded.targets import TARGETS, Call, Target

HERE = __name__


class Base(abc.ABC):
    def __init__(self, rank: int, *, name: str = "x") -> None:
        self.rank = rank
        self.name: str = name

    @abc.abstractmethod
    def load(self, request: str, tokens: int = 0) -> None: ...

    @property
    def size(self) -> int:
        return self.rank

    @classmethod
    def shape(cls, heads: int) -> tuple[int, int]:
        return heads, 2 * heads


@dataclass
class Record:
    first: int
    second: str = ""


class Mode(enum.Enum):
    ON = "on"
    OFF = "off"


def facts(name: str, **limits: object) -> dict[str, str]:
    described = drift.describe(Target(HERE, name, **limits))  # type: ignore[arg-type]
    return {key.removeprefix(f"{HERE}.{name}"): text for key, text in described.items()}


def test_a_new_method_with_a_default_is_a_difference() -> None:
    """Of a class that ours are made of: the engine asks what we have not answered."""
    known = facts("Base", every=True)
    assert {"." + name for name in ("load()", "size()", "shape()")} <= known.keys()

    class Newer(Base):
        def supports_sleep(self) -> bool:
            return True

    before = drift.describe_class(Base, Target(HERE, "Base", every=True))
    after = before | drift.describe_class(Newer, Target(HERE, "Base", every=True))
    assert [line for line in drift.compare(before, after) if line.startswith("new")] == [
        "new: supports_sleep() is (self)"
    ]


def test_class_is_described_by_what_a_subclass_depends_on() -> None:
    found = facts(
        "Base",
        methods=("__init__", "load", "size", "gone"),
        attributes=("rank", "name", "other"),
        calls=(Call("shape", (3,)), Call("shape", ())),
    )
    assert found == {
        "": "class",
        ".abstract methods": "load",
        ".__init__()": "(self, rank, *, name=)",
        ".load()": "(self, request, tokens=)",
        ".size()": "property",
        ".gone()": "missing",
        ".attribute rank": "set",
        ".attribute name": "set",
        ".attribute other": "missing",
        ".shape(3,)": "(3, 6)",
        ".shape()": "TypeError",
    }


def test_records_and_enumerations_are_described_by_their_members() -> None:
    assert facts("Record", members=("first",)) == {"": "class", ".field first": "there"}
    assert facts("Mode") == {"": "class", ".[ON]": "on", ".[OFF]": "off"}


def test_absent_names_are_facts_too() -> None:
    assert facts("Nothing") == {"": "missing"}
    assert drift.describe(Target("no.such.module", "X")) == {"no.such.module.X": "missing"}


def test_every_difference_is_one_line() -> None:
    recorded = {"a": "1", "b": "2", "c": "3"}
    assert drift.compare(recorded, dict(recorded)) == []
    assert drift.compare(recorded, {"a": "1", "b": "9", "d": "4"}) == [
        "changed: b: 2 -> 9",
        "gone: c (was 3)",
        "new: d is 4",
    ]


@pytest.mark.parametrize("engine", sorted(TARGETS))
def test_recorded_descriptions_cover_all_targets(engine: str) -> None:
    recorded = json.loads((drift.RECORDED / f"{engine}.json").read_text())
    assert recorded["version"] != "unknown"
    for target in TARGETS[engine]:
        assert f"{target.module}.{target.name}" in recorded["facts"]
    assert [name for name, text in recorded["facts"].items() if text == drift.MISSING] == []


def test_engine_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(targets.TARGETS, "no_such_engine", ())
    assert drift.main(["no_such_engine"]) == 2
    assert "cannot be imported" in capsys.readouterr().err


def test_drift_decides_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.TARGETS, "json", (Target("json", "loads"),))
    monkeypatch.setitem(drift.DISTRIBUTIONS, "json", ())
    file = tmp_path / "json.json"
    assert drift.main(["json", "--record", "--recorded", str(file)]) == 0
    assert drift.main(["json", "--recorded", str(file)]) == 0
    changed = json.loads(file.read_text())
    changed["facts"]["json.loads()"] = "(text)"
    file.write_text(json.dumps(changed))
    assert drift.main(["json", "--recorded", str(file)]) == 1


SOURCE = """
from __future__ import annotations
import enum
from dataclasses import dataclass
from abc import ABC, abstractmethod
from .inner import Inner, helper as named

class Base(ABC):
    def __init__(self, rank: int, *, name: str = "x") -> None:
        self.rank = rank
        self.name: str = name

    @abstractmethod
    def load(self, request: str, tokens: int = 0) -> None: ...

    @property
    def size(self) -> int: ...

    @classmethod
    def shape(cls, heads: int) -> tuple[int, int]: ...

class Derived(Base, Inner):
    def load(self, request, /, *more, **rest): ...

@dataclass
class Record:
    first: int
    second: str = ""

class Mode(enum.Enum):
    ON = "on"
    OFF = "off"

if True:
    def function(a, b=1, *, c): ...
"""


def test_sources_are_described_as_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "read_by_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (package / "inner.py").write_text("class Inner:\n def inner(self, x): ...\ndef helper(y): ...")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = (
        Target("read_by_a_test", "Base", methods=("__init__", "size", "gone"),
               attributes=("rank", "name", "other"), every=True),
        Target("read_by_a_test", "Derived", methods=("load", "inner", "shape")),
        Target("read_by_a_test", "Record", members=("first",)),
        Target("read_by_a_test", "Mode"),
        Target("read_by_a_test", "function"),
        Target("read_by_a_test", "named"),
        Target("read_by_a_test", "nothing"),
        Target("read_by_a_test.nowhere", "nothing"),
    )  # fmt: skip
    imported: dict[str, str] = {}
    for target in wanted:
        imported |= drift.describe(target)
    found = Sources(tmp_path).describe(wanted)
    assert found.known == imported
    assert found.unknown == set()

    monkeypatch.setitem(targets.TARGETS, "read_by_a_test", wanted)
    file = tmp_path / "recorded.json"
    file.write_text(
        json.dumps({"version": "1", "facts": imported | {f"{wanted[0].module}.old": "x"}})
    )
    options = ["read_by_a_test", "--sources", str(tmp_path), "--recorded", str(file)]
    assert drift.main(options) == 0, "a report"
    assert "gone: read_by_a_test.old (was x)" in capsys.readouterr().out
