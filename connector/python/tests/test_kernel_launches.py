"""Kernel launches are those that Go's package gpuipc/cuda/kernels builds, to the byte."""

from __future__ import annotations

import json
import math
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
FILES = sorted(FOLDER.glob("launches*.json"))
GOLDEN = [case for path in FILES for case in json.loads(path.read_text())]


def cases(name: str) -> list[Any]:
    """The golden launches of one kernel."""
    found = [case for case in GOLDEN if case["name"] == name]
    assert found, f"no golden launches of {name} in {FOLDER}"
    return [pytest.param(case, id=case["case"]) for case in found]


def plain(launch: Launch) -> dict[str, Any]:
    """As the golden file writes it."""
    return {
        "name": launch.name,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "args": (bytes(8) + launch.arguments).hex(),
        "tables": launch.tables.hex(),
    }


def turn_of(args: dict[str, Any] | None) -> Turn | None:
    if args is None:
        return None
    return Turn(
        args["Dims"], args["Interleaved"], tuple(args["Cos"] or ()), tuple(args["Sin"] or ())
    )


def rotate_job(args: dict[str, Any]) -> RotateJob:
    to, rows = args["Dst"], args["PerRow"]
    target = RotateTarget(
        to["Base"], tuple(to["Blocks"] or ()), to["BlockRows"], to["FirstRow"],
        to["BlockStride"], to["RowStride"], to["HeadStride"],
    )  # fmt: skip
    turn: Turn | RowTurns | None = turn_of(args["Turn"])
    if rows is not None:
        freq = tuple(rows["InvFreq"])
        turn = RowTurns(rows["Dims"], rows["Interleaved"], rows["Position"], freq)
    dtype, source = DType(args["Type"]), args["Src"]
    return RotateJob(args["Rows"], args["Heads"], args["Dim"], dtype, source, target, turn)


@pytest.mark.parametrize("case", cases("rotate"))
def test_rotations_are_the_golden_ones(case: dict[str, Any]) -> None:
    launches = rotate_launches([rotate_job(args) for args in case["args"]])
    assert [plain(launch) for launch in launches] == case["launches"]


def compose_job(args: dict[str, Any]) -> ComposeJob:
    steps = [
        ComposeStep(
            step["T"], step["S"], step["Before"], DType(step["TType"]), DType(step["SType"]),
            turn_of(step["Rotation"]), step.get("TPacked", 0), step.get("SPacked", 0),
        )
        for step in args["Steps"] or ()
    ]  # fmt: skip
    sizes = args["Heads"], args["DK"], args["DV"]
    return ComposeJob(Transition(args["Transition"]), *sizes, steps, args["From"], args["Out"])


@pytest.mark.parametrize("case", cases("compose"))
def test_compositions_are_the_golden_ones(case: dict[str, Any]) -> None:
    launches = compose_launches([compose_job(args) for args in case["args"]])
    assert [plain(launch) for launch in launches] == case["launches"]


def attend_rows(args: dict[str, Any]) -> AttendRows:
    return AttendRows(args["Base"], args["BlockStride"], args["RowStride"], args["HeadStride"])


def attend_job(args: dict[str, Any]) -> AttendJob:
    runs = [
        AttendRun(
            run["Rows"], run["Begin"], attend_rows(run["Keys"]), attend_rows(run["Values"]),
            tuple(run["Blocks"] or ()), run["BlockRows"], run["FirstRow"], turn_of(run["Turn"]),
        )
        for run in args["Runs"] or ()
    ]  # fmt: skip
    return AttendJob(
        args["Rows"], args["Heads"], args["KeyHeads"], args["KeyDim"], args["ValueDim"],
        args["Begin"], DType(args["Type"]), DType(args["QType"]), args["Scale"],
        args["Q"], args["Out"], runs,
    )  # fmt: skip


SCRATCH = 0x7F4000000000


@pytest.mark.parametrize("case", cases("attend"))
def test_attentions_are_the_golden_ones(case: dict[str, Any]) -> None:
    launches = attend_launches([attend_job(args) for args in case["args"]], SCRATCH)
    assert [plain(launch) for launch in launches] == case["launches"]


LIE = AttendRows(0x10000, 4096, 256, 128)
RUN = AttendRun(20, 0, LIE, LIE, (3, 1), 16, 4)
ATTEND = AttendJob(2, 4, 2, 64, 64, 20, DType.BF16, DType.BF16, 0.125, 0x1000, 0x2000, [RUN])


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ATTEND, heads=0),
        replace(ATTEND, heads=3),
        replace(ATTEND, rows=-1),
        replace(ATTEND, rows=1 << 20),
        replace(ATTEND, value_dim=1032),
        replace(ATTEND, key_dim=4096),
        replace(ATTEND, dtype=DType.NONE),
        replace(ATTEND, q_dtype=DType.NONE),
        replace(ATTEND, q=0),
        replace(ATTEND, out=0x2001),
        replace(ATTEND, scale=math.nan),
        replace(ATTEND, runs=[replace(RUN, begin=-1)]),
        replace(ATTEND, runs=[replace(RUN, rows=29)]),
        replace(ATTEND, runs=[replace(RUN, block_rows=0)]),
        replace(ATTEND, runs=[replace(RUN, keys=replace(LIE, base=0))]),
        replace(ATTEND, runs=[replace(RUN, values=replace(LIE, row_stride=255))]),
        replace(ATTEND, runs=[replace(RUN, keys=replace(LIE, block_stride=2**62))]),
        replace(ATTEND, runs=[replace(RUN, turn=Turn(4, False, (1.0,), (1.0, 2.0)))]),
        replace(ATTEND, runs=[replace(RUN, turn=Turn(66, False, (1.0,) * 33, (0.0,) * 33))]),
    ],
)
def test_attentions_that_can_never_be_right_are_refused(wrong: AttendJob) -> None:
    assert len(attend_launches([ATTEND], SCRATCH)) == 2
    assert attend_scratch([ATTEND]) > 0
    with pytest.raises(SplicedError) as caught:
        attend_launches([ATTEND, wrong], SCRATCH)
    assert caught.value.code == Code.INVALID
    assert "job 1" in caught.value.text


def buffer_job(args: dict[str, Any]) -> BufferJob:
    new = args["New"]
    rows = BufferRows(
        new["N"], DType(new["Type"]), new["Q"], new["K"], new["V"], new["G"], new["Beta"],
        new["E"], new["Outputs"],
    )  # fmt: skip
    parents = None if args["Parents"] is None else tuple(args["Parents"])
    return BufferJob(
        args["Heads"], args["KeyHeads"], args["DK"], args["DV"], DType(args["Type"]),
        args["PerKey"], args["Delta"], args["Capacity"], args["Pending"],
        args["K"], args["U"], args["G"], args["From"], args["Out"], rows, parents,
    )  # fmt: skip


@pytest.mark.parametrize("case", cases("buffer"))
def test_buffers_are_the_golden_ones(case: dict[str, Any]) -> None:
    launches = buffer_launches([buffer_job(args) for args in case["args"]])
    assert [plain(launch) for launch in launches] == case["launches"]


NEW = BufferRows(2, DType.F32, 0x5000, 0x6000, 0x7000, 0x8000, 0x9000, 0, 0xA000)
PENDING = BufferJob(
    4, 2, 8, 8, DType.BF16, False, True, 8, 3, 0x1000, 0x2000, 0x3000, 0x4000, 0, NEW
)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PENDING, heads=0),
        replace(PENDING, key_heads=3),
        replace(PENDING, dk=4096),
        replace(PENDING, dtype=DType.NONE),
        replace(PENDING, pending=7),
        replace(PENDING, pending=-1),
        replace(PENDING, g=0),
        replace(PENDING, k=0x1001),
        replace(PENDING, origin=2),
        replace(PENDING, new=replace(NEW, v=0x7002)),
        replace(PENDING, new=replace(NEW, outputs=0)),
        replace(PENDING, new=replace(NEW, dtype=DType.NONE)),
        replace(PENDING, parents=(-1,)),
        replace(PENDING, parents=(-1, 0, 1, 3, 2)),
    ],
)
def test_buffers_that_can_never_be_right_are_refused(wrong: BufferJob) -> None:
    assert len(buffer_launches([PENDING])) == 1
    with pytest.raises(SplicedError) as caught:
        buffer_launches([PENDING, wrong])
    assert caught.value.code == Code.INVALID
    assert "job 1" in caught.value.text


STEP = ComposeStep(0x1000, 0x2000, 0x3000, DType.F32, DType.F32)
STATE = ComposeJob(Transition.SCALAR, 4, 16, 16, [STEP], 0x4000, 0x5000)
HALF = Turn(4, False, (1.0, 1.0), (0.0, 0.0))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(STATE, heads=0),
        replace(STATE, dk=1 << 21),
        replace(STATE, heads=1 << 20, dk=1 << 20),
        replace(STATE, transition=Transition.NONE),
        replace(STATE, origin=2),
        replace(STATE, steps=[replace(STEP, t=0)]),
        replace(STATE, steps=[replace(STEP, before=2)]),
        replace(STATE, steps=[replace(STEP, t_dtype=DType.F16)]),
        replace(STATE, steps=[replace(STEP, s_dtype=DType.NONE)]),
        replace(STATE, steps=[replace(STEP, s=0x2002)]),
        replace(STATE, steps=[replace(STEP, turn=replace(HALF, dims=6))]),
        replace(STATE, transition=Transition.DIAGONAL, steps=[replace(STEP, turn=HALF)]),
        replace(STATE, transition=Transition.DENSE, heads=1, dk=1 << 14, dv=3),
    ],
)
def test_compositions_that_can_never_be_right_are_refused(wrong: ComposeJob) -> None:
    assert len(compose_launches([STATE, replace(STATE, steps=[replace(STEP, turn=HALF)])])) == 2
    with pytest.raises(SplicedError) as caught:
        compose_launches([STATE, wrong])
    assert caught.value.code == Code.INVALID
    assert "job 1" in caught.value.text


TABLE = RotateTarget(0x1000, (3, 1), 16, 4, 4096, 256, 64)
GOOD = RotateJob(8, 4, 16, DType.F32, 0x100, TABLE)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(GOOD, rows=-1),
        replace(GOOD, heads=0),
        replace(GOOD, dim=1 << 25),
        replace(GOOD, heads=1 << 20, dim=1 << 20),
        replace(GOOD, dtype=DType.NONE),
        replace(GOOD, rows=29),
        replace(GOOD, src=0),
        replace(GOOD, src=0x102),
        replace(GOOD, dst=replace(TABLE, base=0x1002)),
        replace(GOOD, dst=replace(TABLE, head_stride=-64)),
        replace(GOOD, dst=replace(TABLE, block_rows=0)),
        replace(GOOD, dst=replace(TABLE, base=2**63 - 64)),
        replace(GOOD, src=2**63 - 64),
        replace(GOOD, turn=Turn(18, False, (1.0,) * 9, (0.0,) * 9)),
        replace(GOOD, turn=Turn(4, False, (1.0, 1.0), (0.0,))),
        replace(GOOD, turn=RowTurns(4, False, 0, (1.0,))),
    ],
)
def test_rotations_that_can_never_be_right_are_refused(wrong: RotateJob) -> None:
    assert len(rotate_launches([GOOD])) == 1
    with pytest.raises(SplicedError) as caught:
        rotate_launches([GOOD, wrong])
    assert caught.value.code == Code.INVALID
    assert "job 1" in caught.value.text


def test_a_turn_is_by_the_angles_of_its_distance() -> None:
    turn = turn_by(1000, 4, True, (1.0, 0.25))
    assert turn.cos == (math.cos(1000.0), math.cos(250.0))
    assert turn.sin == (math.sin(1000.0), math.sin(250.0))
    assert (turn.dims, turn.interleaved) == (4, True)
