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
"""Fewer give no recommendation: a bootstrap over a handful of prompts is too sure of itself."""

LEAST_AGREEMENT = 0.9
"""Share of equal first tokens below which the report warns: with the model of
`scripts/tinyhybrid/long`, 0.86 went with a loss of 5.6 points."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One way over all prompts. first and tokens are shares of equal first and equal answer
    tokens, distance is the mean |delta log p| of an answer token in nats, all against the full
    prefill. removed is the share of the distance of captures alone that the way removes, None where
    that is not defined. computed is the share of prompt tokens computed."""

    way: Way
    prompts: int
    first: Estimate
    tokens: float
    distance: Estimate
    removed: Estimate | None
    computed: float


@dataclass(frozen=True)
class Settings:
    """What the figures were measured with, and what a recommendation repeats if it is no
    default."""

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
    """Returns the way with the smallest distance among those that are better than captures alone
    beyond their 95 % interval; None without one, or with too few prompts."""
    better = [r for r in rows if r.removed and r.removed.low > 0 and r.prompts >= LEAST_PROMPTS]
    return min(better, key=lambda r: r.distance.value, default=None)


def advice(rows: Sequence[Figures], settings: Settings) -> list[str]:
    """Returns the recommendation, and a warning if agreement stays low."""
    best = recommended(rows)
    if best is not None:
        lines = [f"Recommended setting: {_setting(best.way, settings)}" + _cost(best, rows)]
    elif rows[0].prompts < LEAST_PROMPTS:
        lines = [f"No recommendation: {rows[0].prompts} prompts, want {LEAST_PROMPTS} or more."]
    else:
        lines = ["Recommended setting: no primer is better than none on these prompts."]
    kept = best or next(row for row in rows if row.way == TODAY)
    if kept.first.value < LEAST_AGREEMENT:
        lines.append(
            f"Warning: the first token equals the full prefill's on {100 * kept.first.value:.1f} %"
            f" of the prompts, below {100 * LEAST_AGREEMENT:.0f} %. Check answers before splicing"
            " these prompts."
        )
    return lines


def _setting(way: Way, settings: Settings) -> str:
    """Returns what to write into an engine's settings, as JSON members."""
    named: dict[str, object] = {}
    if way.primer:
        named["primer"] = way.primer
        if settings.primer_after != Settings.primer_after:
            named["primer_after"] = settings.primer_after
    if settings.seam != Settings.seam:
        named["seam_tokens"] = settings.seam
    text = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in named.items())
    if not way.refresh:
        return text
    return (f"{text}; " if text else "") + "leave the last segment out of each request's cuts"


def _cost(best: Figures, rows: Sequence[Figures]) -> str:
    """Returns what a last segment in context costs, "" for other ways."""
    if not best.way.refresh:
        return ""
    plain = next(r for r in rows if r.way == replace(best.way, refresh=False))
    return (
        f" ({100 * best.computed:.1f} % of the prompt tokens are computed then,"
        f" {100 * plain.computed:.1f} % otherwise)"
    )


def skips(skipped: Sequence[Skipped]) -> str:
    """Returns one line about the prompts that were skipped, "" without any."""
    reasons = Counter(s.reason for s in skipped)
    if not reasons:
        return ""
    return "Skipped: " + "; ".join(
        f"{n} prompt{'s' if n > 1 else ''}: {reason}" for reason, n in reasons.items()
    )


def document(
    about: Mapping[str, object],
    rows: Sequence[Figures],
    lines: Sequence[str],
    measured: Sequence[Measured],
    skipped: Sequence[Skipped],
) -> Mapping[str, object]:
    """Returns everything for a JSON file: figures of the ways and each prompt's readings."""
    best = recommended(rows)
    return {
        **about,
        "ways": [{"name": r.way.name} | asdict(r) | {"way": _named(r.way)} for r in rows],
        "recommended": best.way.name if best else None,
        "advice": list(lines),
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


def _named(way: Way) -> Mapping[str, object]:
    return {"kind": str(way.kind), "primer": way.primer, "refresh": way.refresh}
