"""Writes the tables and plots of docs/fidelity.md from the results of `measure.py` and `drift.py`.

python scripts/fidelity/report.py docs/results docs/fidelity.md

A table stands between `<!-- fidelity: NAME -->` and `<!-- end -->`; the rest of the page is written
by hand. NAME is the name of a table below and of a result: `forms wide` is the table `forms` of
fidelity-forms-wide.json. The plots fidelity.svg and fidelity-bytes.svg are written next to the
page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plot import Panel, Point, Series, draw
from ways import FULL, PACKED, PREFIX, ROWS, SPLICED

ADDED, WHOLE = "naive addition", "whole tuples, edges again"
LINES = (FULL, SPLICED, WHOLE, ADDED)
BLOCK = re.compile(r"(<!-- fidelity: ([a-z -]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
LAYER_OF_PRIMED = re.compile("primed, exact .* of layer")
"""Names of ways that tables leave out. These ways show the same as the corresponding ways with
notes captured in isolation."""
Json = Mapping[str, object]
Estimate = Mapping[str, float]


class Results:
    """The files of a directory, by the part of their name after "fidelity"."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getitem__(self, name: str) -> Json:
        """Returns a result; "" names the main result."""
        file = f"fidelity-{name}.json" if name else "fidelity.json"
        found: Json = json.loads((self._directory / file).read_text())
        return found


def page(text: str, results: Results) -> str:
    """Returns a page with its tables written again."""

    def block(match: re.Match[str]) -> str:
        name, _, model = match[2].partition(" ")
        return f"{match[1]}{TABLES[name](results, model)}{match[3]}"

    return BLOCK.sub(block, text)


def percent(e: Estimate) -> str:
    """Returns a share with its interval, in %."""
    return f"{100 * e['value']:.1f} ({100 * e['low']:.1f} to {100 * e['high']:.1f})"


def points(e: Estimate) -> str:
    """Returns a difference of shares with its interval, in points."""
    return f"{100 * e['value']:+.2f} ({100 * e['low']:+.2f} to {100 * e['high']:+.2f})"


def share(e: Estimate) -> str:
    """Returns a share with its interval, in whole %."""
    return f"{100 * e['value']:.0f} ({100 * e['low']:.0f} to {100 * e['high']:.0f})"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], about: str = "") -> str:
    """Returns a table, after a line that says on what the figures were measured."""
    lines = [f"{about}\n"] if about else []
    lines += ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    lines.insert(len(lines) - len(rows), "|---" * len(head) + "|")
    return "\n".join(lines) + "\n"


def source(result: Json) -> str:
    """Returns what a result was measured on, when and at which commit."""
    first = ways_of(result)[0]
    counts = list(first["by notes"])  # type: ignore[call-overload]
    notes = ", ".join(counts[:-1]) + f" or {counts[-1]}"
    return (
        f"{first['questions']:,} questions, {notes} notes a prompt; "
        f"{result['date']}, commit {str(result['commit'])[:8]}, model {str(result['model'])[:8]}."
    )


def ways_of(result: Json) -> Sequence[Json]:
    """Returns the ways of `measure.py`, whichever section it ran."""
    found: Sequence[Json] = result.get("variants") or result["ways"]  # type: ignore[assignment]
    return found


def _suffix(name: str, model: str) -> str:
    return "-".join(part for part in (name, model) if part)


def answers(results: Results, name: str) -> str:
    """Returns scores and agreement of each way."""
    result = results[_suffix("", name)]
    head = ("way", "questions", "score, %", "difference, points", "same token, %", "surprise")
    rows = [
        (
            str(v["name"]),
            f"{v['questions']:,}",
            percent(v["score"]),  # type: ignore[arg-type]
            points(v["difference"]),  # type: ignore[arg-type]
            percent(v["agreement"]),  # type: ignore[arg-type]
            f"{v['surprise']:.3f}",
        )
        for v in ways_of(result)
    ]
    return grid(head, rows, source(result))


def by_notes(results: Results, name: str) -> str:
    """Returns scores by the number of notes."""
    return _split(results[name], "notes")


def by_kind(results: Results, name: str) -> str:
    """Returns scores by kind of question."""
    return _split(results[name], "kind")


def _split(result: Json, by: str) -> str:
    variants = ways_of(result)
    variants = [v for v in variants if v["questions"] == variants[0]["questions"]]
    groups: Mapping[str, Json] = variants[0][f"by {by}"]  # type: ignore[assignment]
    head = (by, *(f"{g} (n={about['questions']})" for g, about in groups.items()))
    rows = []
    for v in variants:
        found: Mapping[str, Mapping[str, Estimate]] = v[f"by {by}"]  # type: ignore[assignment]
        rows.append((str(v["name"]), *(f"{100 * found[g]['score']['value']:.1f}" for g in groups)))
    return grid(head, rows)


def drift_notes(results: Results, model: str) -> str:
    """Returns errors of states and rows by layer and number of notes."""
    result = results[_suffix("drift", model)]
    commit = str(result["commit"])[:8]
    about = f"{result['prompts']} prompts a column; {result['date']}, commit {commit}."
    return _errors(result, ", by notes", "notes in the prompt", about)


def drift_distance(results: Results, model: str) -> str:
    """Returns errors of rows by the distance from the beginning of their note."""
    return _errors(results[_suffix("drift", model)], ", by distance", "tokens from the beginning")


def _errors(result: Json, suffix: str, title: str, about: str = "") -> str:
    whole: Mapping[str, Mapping[str, float]] = result["as it is"]  # type: ignore[assignment]
    silent: Mapping[str, Mapping[str, float]] = result["without attention"]  # type: ignore[assignment]
    names = [name for name in whole if name.endswith(suffix)]
    columns = list(whole[names[0]])
    rows = [
        (
            name.removesuffix(suffix),
            *(f"{100 * whole[name][at]:.1f} ({100 * silent[name][at]:.1f})" for at in columns),
        )
        for name in names
    ]
    return grid((title, *columns), rows, about)


def keys(results: Results, model: str) -> str:
    """Returns what keys and values in 8 bits change."""
    result = results[_suffix("keys", model)]
    rows = []
    for v in ways_of(result):
        if v["name"] == FULL:
            continue
        from_splice: Mapping[str, Estimate] = v["from spliced"]  # type: ignore[assignment]
        name = "nothing" if v["name"] == SPLICED else str(v["name"])
        rows.append(
            (
                name,
                points(from_splice["difference"]),
                percent(from_splice["agreement"]),
                f"{v['surprise']:.4f}",
            )
        )
    found: Mapping[str, float] = result["keys"]  # type: ignore[assignment]
    size, mean, most = (100 * found[name] for name in ("bytes", "mean", "most"))
    about = (
        f"{source(result)} Keys and values take {size:.1f} % of 16 bits a number; their error is "
        f"{mean:.2f} % of their norm, {most:.2f} % at most."
    )
    return grid(("packed", "difference, points", "same token, %", "surprise"), rows, about)


def captures(results: Results, _: str) -> str:
    """Returns what each primer removes, on both models."""
    wide, first = results["captures-wide"], results["captures"]
    named = {str(w["name"]): w for w in ways_of(first)}
    rows = []
    for w in ways_of(wide):
        name = str(w["name"])
        if name == FULL:
            continue
        cells = [
            f(x[k])
            for x in (w, named[name])
            for f, k in ((share, "removed"), (percent, "agreement"))
        ]  # type: ignore[arg-type]
        rows.append((name, *cells))
    head = ("captured after", "long notes: removed, %", "same token, %")
    head += ("short notes: removed, %", "same token, %")  # type: ignore[assignment]
    return grid(head, rows, f"Long notes: {source(wide)} Short notes: {source(first)}")


def distances(name: str) -> Callable[[Results, str], str]:
    """Returns a function that makes the table of a section of `contexts.py`."""

    def table(results: Results, model: str) -> str:
        result = results[_suffix(name, model)]
        rows = []
        for w in ways_of(result):
            if w["name"] == FULL or LAYER_OF_PRIMED.match(str(w["name"])):
                continue
            e: Mapping[str, Estimate] = w  # type: ignore[assignment]
            off = e["distance"]
            rows.append(
                (
                    str(w["name"]),
                    f"{off['value']:.3f} ({off['low']:.3f} to {off['high']:.3f})",
                    share(e["removed"]),
                    percent(e["agreement"]),
                    points(e["difference"]),
                )
            )
        head = ("way", "distance", "removed, %", "same token, %", "difference, points")
        return grid(head, rows, source(result))

    return table


def chains(results: Results, model: str) -> str:
    """Returns errors of states by the number of segments before them."""
    found: Mapping[str, Mapping[str, Mapping[str, float]]]
    found = results[_suffix("forms", model)]["chains"]  # type: ignore[assignment]
    shown = {name: row for name, row in found.items() if row["1"]["mean"] > 1e-6}
    lengths = list(next(iter(shown.values())))
    rows = [
        (
            name,
            *(f"{100 * row[n]['mean']:.2f} ({100 * row[n]['most']:.2f})" for n in lengths),
            f"{100 * row[lengths[-1]]['bound']:.1f}",
        )
        for name, row in shown.items()
    ]
    return grid(("segments", *lengths, f"bound of {lengths[-1]}"), rows)


def forms(results: Results, model: str) -> str:
    """Returns what each form of tuples takes and changes."""
    result = results[_suffix("forms", model)]
    weights: Mapping[str, float] = result["bytes"]  # type: ignore[assignment]
    rows = []
    for v in ways_of(result):
        from_splice: Mapping[str, Estimate] = v["from spliced"]  # type: ignore[assignment]
        name = str(v["name"])
        rows.append(
            (
                name,
                f"{v['questions']:,}",
                f"{100 * weights[name]:.1f}" if name in weights else "",
                points(from_splice["difference"]),
                percent(from_splice["agreement"]),
                f"{v['surprise']:.3f}",
            )
        )
    rows.append((ROWS, "", f"{100 * weights[ROWS]:.1f}", "exact", "", ""))
    head = ("way", "questions", "bytes, %", "difference, points", "same token, %", "surprise")
    return grid(head, rows, source(result))


TABLES: Mapping[str, Callable[[Results, str], str]] = {
    "answers": answers,
    "notes": by_notes,
    "kinds": by_kind,
    "captures": captures,
    "settings": distances("settings"),
    "oracles": distances("oracles"),
    "drift-notes": drift_notes,
    "drift-distance": drift_distance,
    "forms": forms,
    "chains": chains,
    "keys": keys,
}


def by_bytes(title: str, result: Json) -> Panel:
    """Returns a plot of differences from the splice of unrounded tuples by the bytes of forms."""
    weights: Mapping[str, float] = result["bytes"]  # type: ignore[assignment]
    series = []
    for v in ways_of(result):
        name = str(v["name"])
        if name in weights and name != SPLICED:
            from_splice: Mapping[str, Estimate] = v["from spliced"]  # type: ignore[assignment]
            at = [100 * from_splice["difference"][x] for x in ("value", "low", "high")]
            short = name.removeprefix(PACKED + ", ").removeprefix("packed, ")
            series.append(Series(short, [Point(100 * weights[name], *at)]))
    ticks = [float(x) for x in range(0, 101, 20)]
    return Panel(title, "bytes of T and S, % of fp16 and fp32", series, ticks=ticks)


def panels(result: Json) -> list[Panel]:
    """Returns plots of scores by number of notes, and of points lost by each way."""
    variants = ways_of(result)
    named = {str(v["name"]): v for v in variants}
    by_count = [
        Series(
            name,
            [
                Point(float(k), *(100 * g["score"][x] for x in ("value", "low", "high")))
                for k, g in named[name]["by notes"].items()  # type: ignore[attr-defined]
            ],
        )
        for name in LINES
    ]
    shown = [v for v in variants if v["name"] not in (FULL, PREFIX, ADDED)]
    lost = [
        Point(float(i), *(100 * v["difference"][x] for x in ("value", "low", "high")))  # type: ignore[index]
        for i, v in enumerate(shown)
    ]
    return [
        Panel("score, %", "passages in the prompt", by_count),
        Panel(
            "difference from full, points", "", [Series("", lost)], [str(v["name"]) for v in shown]
        ),
    ]


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    directory, written = Path(sys.argv[1]), Path(sys.argv[2])
    results = Results(directory)
    written.write_text(page(written.read_text(), results))
    written.with_suffix(".svg").write_text(draw(panels(results[""])))
    sizes = [
        by_bytes("heads of 64x64, points", results["forms"]),
        by_bytes("heads of 128x128, points", results["forms-wide"]),
    ]
    written.with_name("fidelity-bytes.svg").write_text(draw(sizes))


if __name__ == "__main__":
    main()
