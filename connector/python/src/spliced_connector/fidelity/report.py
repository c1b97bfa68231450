"""Figures of the ways, the table, and the recommended setting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from spliced_connector.fidelity.intervals import Draws, Estimate, draws, ratio, removed, share
from spliced_connector.fidelity.ways import FULL, TODAY, Kind, Measured, Skipped, Way
from spliced_connector.serving.settings import ServingSettings

LEAST_PROMPTS = 20
"""With fewer prompts nothing is recommended, because a bootstrap over a few prompts gives intervals
that are too narrow."""

LEAST_AGREEMENT = 0.9
"""Share of equal first tokens below which the report warns. With the model of
`scripts/tinyhybrid/long`, a share of 0.86 was measured together with a loss of 5.6 points."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One way over all prompts, compared with the full prefill. first and tokens: shares of equal
    first tokens and of equal answer tokens. distance: mean |delta log p| of an answer token, in
    nats. removed: the share by which the way reduces the distance of segments captured without a
    primer; None if that is not defined. computed: the share of prompt tokens that are computed.
    distances: for each prompt, the sum of |delta log p| over its answer."""

    way: Way
    prompts: int
    first: Estimate
    tokens: float
    distance: Estimate
    removed: Estimate | None
    computed: float
    distances: Sequence[float]


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. A recommendation repeats those that differ from the default."""

    seam: int = ServingSettings.seam_tokens
    primer_after: int = ServingSettings.primer_after


def figures(measured: Sequence[Measured], ways: Sequence[Way]) -> list[Figures]:
    """Returns the figures of each way. Raises ValueError for no prompts."""
    resampled = draws(len(measured))
    counts = [float(len(m.answer)) for m in measured]
    today = [_distance(m, TODAY) for m in measured]
    return [_figures(measured, way, counts, today, resampled) for way in ways]


def _figures(
    measured: Sequence[Measured],
    way: Way,
    counts: Sequence[float],
    today: Sequence[float],
    resampled: Draws,
) -> Figures:
    same = [
        [a == b for a, b in zip(m.readings[way].top, m.readings[FULL].top, strict=True)]
        for m in measured
    ]
    distances = [_distance(m, way) for m in measured]
    nearer = way.kind is Kind.SPLICE and way != TODAY and sum(today) > 0
    return Figures(
        way=way,
        prompts=len(measured),
        first=share([row[0] for row in same]),
        tokens=sum(sum(row) for row in same) / sum(counts),
        distance=ratio(distances, counts, resampled),
        removed=removed(distances, today, resampled) if nearer else None,
        computed=sum(m.readings[way].computed for m in measured) / sum(m.tokens for m in measured),
        distances=distances,
    )


def _distance(m: Measured, way: Way) -> float:
    """Returns the sum of |delta log p| over a prompt's answer."""
    pairs = zip(m.readings[way].log_p, m.readings[FULL].log_p, strict=True)
    return sum(abs(a - b) for a, b in pairs)


def table(rows: Sequence[Figures]) -> str:
    """Returns the table, in Markdown."""
    cells = [
        [
            "way",
            "prompts",
            "equal first tokens, %",
            "equal answer tokens, %",
            "mean abs. Δ log p",
            "distance removed, %",
            "tokens computed, %",
        ]
    ]
    for row in rows:
        cells.append(
            [
                row.way.name,
                str(row.prompts),
                _percent(row.first),
                f"{100 * row.tokens:.1f}",
                f"{row.distance.value:.4f} ({row.distance.low:.4f} to {row.distance.high:.4f})",
                _percent(row.removed) if row.removed else "",
                f"{100 * row.computed:.1f}",
            ]
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def _percent(e: Estimate) -> str:
    return f"{100 * e.value:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})"


def recommended(rows: Sequence[Figures]) -> Figures | None:
    """Returns the way to use. Returns None if this is the way without primer and refresh, or if
    there are too few prompts.

    A way is nearer than another if its distance is smaller beyond the paired 95 % interval. Of the
    primers that are nearer than no primer, the nearest is chosen. A larger refresh is chosen if its
    best way is nearer than the way chosen so far.
    """
    chosen = today = _row(rows, TODAY)
    if today.prompts < LEAST_PROMPTS:
        return None
    for refresh in sorted({row.way.refresh for row in rows}):
        best = _nearest(_row(rows, replace(TODAY, refresh=refresh)), rows)
        if refresh == 0 or _nearer(best, chosen):
            chosen = best
    return None if chosen is today else chosen


def _row(rows: Sequence[Figures], way: Way) -> Figures:
    return next(row for row in rows if row.way == way)


def _nearest(alone: Figures, rows: Sequence[Figures]) -> Figures:
    """Returns the best way with the refresh of `alone`, which is the way without a primer."""
    primed = (row for row in rows if row.way.primer and row.way.refresh == alone.way.refresh)
    better = [row for row in primed if _nearer(row, alone)]
    return min(better, key=lambda row: row.distance.value, default=alone)


def _nearer(one: Figures, other: Figures) -> bool:
    """Returns whether a way has a smaller distance than another beyond the paired 95 % interval."""
    if not any(other.distances):
        return False
    return removed(one.distances, other.distances, draws(other.prompts)).low > 0


def advice(rows: Sequence[Figures], settings: Settings) -> list[str]:
    """Returns the recommended settings, what they cost, and a warning if agreement stays low."""
    best = recommended(rows)
    if best is not None:
        lines = [f"Recommended settings: {json.dumps(_fragment(best.way, settings))}"]
        lines += _cost(best, rows)
    elif rows[0].prompts < LEAST_PROMPTS:
        lines = [f"No recommendation: {rows[0].prompts} prompts, want {LEAST_PROMPTS} or more."]
    else:
        lines = ["Recommended settings: none, no way measured is nearer than captures alone."]
    kept = best or _row(rows, TODAY)
    if kept.first.value < LEAST_AGREEMENT:
        lines.append(
            f"Warning: the first token equals the full prefill's on {100 * kept.first.value:.1f} %"
            f" of the prompts, below {100 * LEAST_AGREEMENT:.0f} %. Check answers before splicing"
            " these prompts."
        )
    return lines


def _fragment(way: Way, settings: Settings) -> Mapping[str, object]:
    """Returns what to write into an engine's settings for a way."""
    named: dict[str, object] = {}
    if way.primer:
        named["primer"] = way.primer
        if settings.primer_after != Settings.primer_after:
            named["primer_after"] = settings.primer_after
    if way.refresh:
        named["refresh"] = way.refresh
    if settings.seam != Settings.seam:
        named["seam_tokens"] = settings.seam
    return named


def _cost(best: Figures, rows: Sequence[Figures]) -> list[str]:
    """Returns a line about the cost and gain of a refresh; no line for a way without refresh."""
    if not best.way.refresh:
        return []
    plain = _nearest(_row(rows, TODAY), rows)
    return [
        f"Cost of refresh: {100 * best.computed:.1f} % of the prompt tokens are computed. Without"
        f" it ({plain.way.name}): {100 * plain.computed:.1f} %, and a mean abs. Δ log p of"
        f" {plain.distance.value:.4f} instead of {best.distance.value:.4f}."
    ]


def skips(skipped: Sequence[Skipped]) -> str:
    """Returns one line about the skipped prompts; "" if no prompt was skipped."""
    reasons = Counter(s.reason for s in skipped)
    if not reasons:
        return ""
    return "Skipped: " + "; ".join(
        f"{n} prompt{'s' if n > 1 else ''}: {reason}" for reason, n in reasons.items()
    )


def document(
    about: Mapping[str, object],
    rows: Sequence[Figures],
    settings: Settings,
    measured: Sequence[Measured],
    skipped: Sequence[Skipped],
) -> Mapping[str, object]:
    """Returns everything for a JSON file: figures of the ways and each prompt's readings."""
    best = recommended(rows)
    return {
        **about,
        "ways": [_named(row) for row in rows],
        "recommended": best.way.name if best else None,
        "settings": _fragment(best.way, settings) if best else None,
        "advice": advice(rows, settings),
        "skipped": [asdict(s) for s in skipped],
        "prompts": [
            {
                "line": m.line,
                "tokens": m.tokens,
                "segments": m.segments,
                "primed": m.primed,
                "answer": list(m.answer),
                "ways": {way.name: asdict(read) for way, read in m.readings.items()},
            }
            for m in measured
        ],
    }


def _named(row: Figures) -> Mapping[str, object]:
    way = row.way
    found = {"name": way.name} | asdict(row)
    del found["distances"]  # they follow from the prompts' readings
    found["way"] = {
        "kind": str(way.kind),
        "primer": way.primer,
        "refresh": way.refresh > 0,
        "refresh_share": way.refresh,
    }
    return found
