"""Two small panels side by side as SVG: lines with intervals, or points with intervals by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 470, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 96
COLOURS = (
    "#222222", "#0b6e99", "#5aa9c9", "#c77f00", "#b3261e", "#6b6b6b", "#2e7d32", "#8e24aa", "#d4a017", "#795548"
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    name: str
    points: list[Point]


@dataclass(frozen=True)
class Panel:
    """One panel. names: texts under x = 0, 1, 2, …; if empty, x is a number. ticks: the labelled
    values of x; if empty, those of all points."""

    title: str
    x: str
    series: list[Series]
    names: list[str] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)


def draw(panels: list[Panel]) -> str:
    """Returns a standalone SVG."""
    body = [
        f'<g transform="translate({i * WIDTH} 0)">{_panel(p)}</g>' for i, p in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    points = [p for s in panel.series for p in s.points]
    low, high = min(p.low for p in points), max(p.high for p in points)
    step = _step(high - low)
    first, last = step * (low // step), step * -(-high // step)
    across = panel.ticks or sorted({p.x for p in points})
    left, right = across[0], across[-1]
    if panel.names:
        left, right = left - 0.5, right + 0.5

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / max(right - left, 1e-9)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (last - value) / max(last - first, 1e-9)

    out = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>']
    tick = first
    while tick <= last + step / 2:
        out.append(_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "#dddddd"))
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        tick += step
    if panel.names:
        out += [
            _slanted(x(float(i)), HEIGHT - BOTTOM + 14, name) for i, name in enumerate(panel.names)
        ]
    else:
        for value in across:
            at = HEIGHT - BOTTOM + 16
            out.append(f'<text x="{x(value):.1f}" y="{at}" text-anchor="middle">{value:g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        under = HEIGHT - BOTTOM + 32
        out.append(
            f'<text x="{middle:.1f}" y="{under}" text-anchor="middle">{escape(panel.x)}</text>'
        )
    for i, series in enumerate(panel.series):
        colour = COLOURS[i % len(COLOURS)]
        out += [_mark(x(p.x), y(p.y), y(p.low), y(p.high), colour) for p in series.points]
        if not panel.names:
            path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in series.points)
            out.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            )
            out.append(_legend(i, series.name, colour))
    return "".join(out)


def _step(span: float) -> float:
    """Returns a round distance between ticks, for five to nine ticks."""
    size = 1e-6
    for _ in range(60):
        for factor in (1.0, 2.0, 2.5, 5.0):
            if span / (size * factor) <= 8:
                return size * factor
        size *= 10
    return 1.0


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _mark(x: float, y: float, low: float, high: float, colour: str) -> str:
    return (
        _line(x, low, x, high, colour)
        + f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    )


def _slanted(x: float, y: float, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="end" font-size="9" '
        f'transform="rotate(-35 {x:.1f} {y})">{escape(text)}</text>'
    )


def _legend(i: int, name: str, colour: str) -> str:
    x, y = LEFT + (i % 3) * 135, HEIGHT - BOTTOM + 52 + (i // 3) * 16
    return (
        f'<rect x="{x}" y="{y - 8}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{x + 14}" y="{y + 1}">{escape(name)}</text>'
    )
