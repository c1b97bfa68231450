"""Kernel launches are those that Go's package gpuipc/cuda/kernels builds, to the byte."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu import (
    AttendJob,
    AttendRows,
    AttendRun,
    BufferJob,
    BufferRows,
    ComposeJob,
    ComposeStep,
    Launch,
    RotateJob,
    RotateTarget,
    RowTurns,
    Turn,
    attend_launches,
    attend_scratch,
    buffer_launches,
    compose_launches,
    rotate_launches,
    turn_by,
)
from spliced_connector.model import DType, Transition

FOLDER = Path(__file__).parents[3] / "gpuipc/cuda/kernels/testdata"
SCRATCH = 0x7F4000000000
BUILD: dict[str, tuple[Callable[..., Any], Callable[[Any], Sequence[Launch]]]] = {
    "rotate": (RotateJob, rotate_launches),
    "compose": (ComposeJob, compose_launches),
    "buffer": (BufferJob, buffer_launches),
    "attend": (AttendJob, lambda jobs: attend_launches(jobs, SCRATCH)),
}
GOLDEN: list[dict[str, Any]] = [
    case
    for path in sorted(FOLDER.glob("launches*.json"))
    for case in json.loads(path.read_text())
    if case["name"] in BUILD
]
FIELDS: dict[str, Callable[..., Any]] = {
    "dst": RotateTarget, "turn": Turn, "per_row": RowTurns, "steps": ComposeStep,
    "runs": AttendRun, "keys": AttendRows, "values": AttendRows, "new": BufferRows,
}  # fmt: skip


def name_of(name: str) -> str:
    """The field that Go calls by another name."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return {"from": "origin", "rotation": "turn"}.get(name, re.sub("type$", "dtype", name))


def value_of(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value_of(name, one) for one in value)
    if isinstance(value, dict):
        return job_of(FIELDS[name], value)
    known = {"transition": Transition, "dtype": DType}.get(name.split("_")[-1])
    return value if known is None else known(value)


def job_of(kind: Callable[..., Any], args: dict[str, Any]) -> Any:
    """A job, or a part of one, with the fields that the golden file writes."""
    named = {name_of(name): value for name, value in args.items() if value is not None}
    return kind(**{name: value_of(name, value) for name, value in named.items()})


def plain(launch: Launch) -> dict[str, Any]:
    """As the golden file writes it."""
    return {
        "name": launch.name,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "args": launch.args.hex(),
        "tables": launch.tables.hex(),
    }


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['name']}: {case['case']}")
def test_launches_are_the_golden_ones(case: dict[str, Any]) -> None:
    kind, build = BUILD[case["name"]]
    launches = build([job_of(kind, args) for args in case["args"]])
    assert [plain(launch) for launch in launches] == case["launches"]


def test_every_kernel_has_golden_launches() -> None:
    assert {case["name"] for case in GOLDEN} == set(BUILD)


LIE = AttendRows(0x10000, 4096, 256, 128)
RUN = AttendRun(20, 0, LIE, LIE, (3, 1), 16, 4)
ATTEND = AttendJob(2, 4, 2, 64, 64, 20, DType.BF16, DType.BF16, 0.125, 0x1000, 0x2000, [RUN])
NEW = BufferRows(2, DType.F32, 0x5000, 0x6000, 0x7000, 0x8000, 0x9000, 0, 0xA000)
PENDING = BufferJob(
    4, 2, 8, 8, DType.BF16, False, True, 8, 3, 0x1000, 0x2000, 0x3000, 0x4000, 0, NEW
)
STEP = ComposeStep(0x1000, 0x2000, 0x3000, DType.F32, DType.F32)
STATE = ComposeJob(Transition.SCALAR, 4, 16, 16, 0x4000, [STEP], 0x5000)
TABLE = RotateTarget(0x1000, (3, 1), 16, 4, 4096, 256, 64)
ROTATE = RotateJob(8, 4, 16, DType.F32, 0x100, None, None, TABLE)


@pytest.mark.parametrize(
    ("name", "good", "wrong", "text"),
    [
        ("attend", ATTEND, replace(ATTEND, runs=[replace(RUN, rows=29)]), "attend, job 1: run 0: "),
        ("attend", ATTEND, replace(ATTEND, scale=math.nan), "attend, job 1: queries of type 3"),
        ("buffer", PENDING, replace(PENDING, new=replace(NEW, v=2)), "buffer, job 1: 2 new rows"),
        ("buffer", PENDING, replace(PENDING, parents=(-1, 0, 1, 3, 2)), "buffer, job 1: row 3 "),
        ("compose", STATE, replace(STATE, steps=[replace(STEP, t=0)]), "compose, job 1: step 0: "),
        ("rotate", ROTATE, replace(ROTATE, dst=replace(TABLE, base=2**63 - 64)), "rotate, job 1: "),
        ("rotate", ROTATE, replace(ROTATE, turn=Turn(4, False, (1.0,), (0.0,))), "rotate, job 1: "),
    ],
)
def test_jobs_that_can_never_be_right_are_refused(
    name: str, good: object, wrong: object, text: str
) -> None:
    build = BUILD[name][1]
    assert build([good])
    with pytest.raises(SplicedError, match=text) as caught:
        build([good, wrong])
    assert caught.value.code == Code.INVALID
    assert "None" not in caught.value.text


def test_jobs_stay_as_they_are() -> None:
    job = replace(PENDING, capacity=40, new=replace(NEW, n=19))
    before = replace(job, new=replace(job.new))
    assert buffer_launches([job]) == buffer_launches([job])
    assert job == before


def test_attention_needs_scratch_memory() -> None:
    assert attend_scratch([ATTEND]) > 0
    with pytest.raises(SplicedError, match="scratch at 0x8"):
        attend_launches([ATTEND], 8)


def test_a_turn_is_by_the_angles_of_its_distance() -> None:
    turn = turn_by(1000, 4, True, (1.0, 0.25))
    assert turn.cos == (math.cos(1000.0), math.cos(250.0))
    assert turn.sin == (math.sin(1000.0), math.sin(250.0))
    assert (turn.dims, turn.interleaved) == (4, True)
