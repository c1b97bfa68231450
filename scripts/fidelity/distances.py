"""How far the ways of `contexts.py` are from the full prefill, each figure with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

from ways import FULL, SPLICED

from spliced_connector.fidelity.intervals import Draws, draws, paired, ratio, removed, share

Row = dict[str, object]
Answers = Sequence[Sequence[object]]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Returns the measures of each way: over all questions, by kind of question, and by number of
    notes."""
    out: list[Row] = []
    for name in rows[0]["answers"]:  # type: ignore[attr-defined]
        about: Row = {"name": name, "questions": len(rows)} | measured(rows, name)
        for by in ("kind", "notes"):
            groups = sorted({str(row[by]) for row in rows}, key=lambda g: (len(g), g))
            about[f"by {by}"] = {
                g: _brief(measured([row for row in rows if str(row[by]) == g], name))
                for g in groups
            }
        out.append(about)
    return out


def _brief(found: Row) -> Row:
    """Returns the measures that are reported for a group of questions."""
    kept = ("removed", "agreement", "difference")
    values = {name: found[name]["value"] for name in kept}  # type: ignore[index]
    return {"questions": found["questions"]} | values


def measured(rows: Sequence[Row], name: str) -> Row:
    """Returns the measures of one way. distance: the mean |difference of log p| from the full
    prefill over the tokens of right answers. removed: the share by which this distance is below the
    distance of segments captured alone. agreement: the share of equal first tokens; "agreement
    gained": the agreement minus that of segments captured alone. score: the share of right answers;
    difference: the score minus the full prefill's score."""
    full, alone, mine = (_column(rows, which) for which in (FULL, SPLICED, name))
    off, most, drawn = _distances(mine, full), _distances(alone, full), _drawn(len(rows))
    tokens = [float(len(x[2])) for x in full]  # type: ignore[arg-type]
    right = [bool(x[0]) for x in mine]
    same, before = (
        [x[1] == f[1] for x, f in zip(which, full, strict=True)] for which in (mine, alone)
    )
    return {
        "questions": len(rows),
        "distance": asdict(ratio(off, tokens, drawn)),
        "removed": asdict(removed(off, most, drawn)),
        "divergence": sum(float(x[3]) for x in mine) / len(mine),  # type: ignore[arg-type]
        "agreement": asdict(share(same)),
        "agreement gained": asdict(paired(same, before)),
        "difference": asdict(paired(right, [bool(x[0]) for x in full])),
        "score": asdict(share(right)),
    }


def _column(rows: Sequence[Row], name: str) -> Answers:
    return [row["answers"][name] for row in rows]  # type: ignore[index]


def _distances(mine: Answers, full: Answers) -> list[float]:
    """Returns for each question the sum of |difference of log p| over its answer's tokens."""
    return [
        sum(abs(a - b) for a, b in zip(x[2], f[2], strict=True))  # type: ignore[call-overload]
        for x, f in zip(mine, full, strict=True)
    ]


@cache
def _drawn(questions: int) -> Draws:
    return draws(questions)
