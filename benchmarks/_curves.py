"""Curves on logarithmic axes as an SVG picture: a panel for each dimension, a line for each operation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PANEL_HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 86, 34, 40  # of a panel: room for ticks, names of lines, title, names of sizes
COLUMNS = 2
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#ef6c00", "#6a1b9a", "#00838f", "#5d4037", "#ad1457", "#37474f")
_NAME_HEIGHT = 12


@dataclass(frozen=True, slots=True)
class Panel:
    """`lines`: {name: [(size, value), …]}; values at or below 0 are left out. `unit`: of the sizes."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def picture(title: str, panels: Sequence[Panel], value_unit: str) -> str:
    """The picture as SVG. All panels share the range of values; a dashed line rises as the sizes do."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    values = [value for panel in panels for line in panel.lines.values() for _, value in line if value > 0]
    least, greatest = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))))
    rows = -(-len(panels) // COLUMNS)
    height = rows * PANEL_HEIGHT + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#263238">',
        f"  <title>{escape(title)}</title>",
        f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#f7f9fa"/>',
        f'  <text x="16" y="22" font-size="13" font-weight="600">{escape(title)}</text>',
    ]
    for place, panel in enumerate(panels):
        x, y = (place % COLUMNS) * WIDTH // COLUMNS, 30 + place // COLUMNS * PANEL_HEIGHT
        parts.append(f'  <g transform="translate({x} {y})">')
        parts += [f"    {part}" for part in _panel(panel, colours, (least, max(greatest, least + 1)), value_unit)]
        parts.append("  </g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colours: Mapping[str, str], decades: tuple[int, int], value_unit: str) -> Iterator[str]:
    sizes = sorted({size for line in panel.lines.values() for size, _ in line})
    right, bottom = WIDTH // COLUMNS - RIGHT, PANEL_HEIGHT - BOTTOM

    def across(size: float) -> float:
        return LEFT + (right - LEFT) * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def down(value: float) -> float:
        return bottom - (bottom - TOP) * (math.log10(value) - decades[0]) / (decades[1] - decades[0])

    yield f'<text x="{LEFT}" y="{TOP - 12}" font-weight="600">{escape(panel.title)}, {value_unit}</text>'
    for decade in range(decades[0], decades[1] + 1):
        y = down(10.0**decade)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#dfe5e8"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(10.0**decade)}</text>'
    for size in (sizes[0], sizes[len(sizes) // 2], sizes[-1]):
        yield f'<text x="{across(size):.1f}" y="{bottom + 16}" text-anchor="middle">{_number(size)}</text>'
    yield f'<text x="{(LEFT + right) / 2:.1f}" y="{bottom + 31}" text-anchor="middle">{escape(panel.unit)}</text>'
    rise = min(sizes[-1] / sizes[0], 10.0 ** (decades[1] - decades[0]))
    start = 10.0 ** decades[0]
    yield (
        f'<path d="M{across(sizes[-1] / rise):.1f} {down(start):.1f}L{across(sizes[-1]):.1f} {down(start * rise):.1f}" '
        'stroke="#90a4ae" stroke-dasharray="3 4" fill="none"/>'
    )
    ends = []
    for name, line in panel.lines.items():
        points = [(across(size), down(value)) for size, value in line if value > 0]
        if not points:
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield f'<path d="M{path}" stroke="{colours[name]}" stroke-width="1.6" fill="none"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colours[name]}"/>' for x, y in points)
        ends.append((points[-1][1], name))
    for y, name in _apart(sorted(ends), bottom):
        yield f'<text x="{right + 6}" y="{y + 4:.1f}" fill="{colours[name]}">{escape(name)}</text>'


def _apart(ends: Sequence[tuple[float, str]], bottom: float) -> list[tuple[float, str]]:
    """The places of names, from top to bottom, moved so that none lies over another."""
    placed: list[tuple[float, str]] = []
    for y, name in ends:
        placed.append((max(y, placed[-1][0] + _NAME_HEIGHT) if placed else y, name))
    for place in range(len(placed) - 1, -1, -1):
        below = placed[place + 1][0] - _NAME_HEIGHT if place + 1 < len(placed) else bottom
        placed[place] = (min(placed[place][0], below), placed[place][1])
    return placed


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
