"""Cost of growth: CPU time and memory of each operation against bytes, segments, partitions and versions.

Each dimension grows over two orders of magnitude while the others stand still; _growing.py has the logs and the
operations. With --write the pictures and the tables of docs/growth.md are made anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks._curves import Panel, picture
from tests.benchmarks._growing import DIMENSIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "growth.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

LEAST_S, LEAST_MIB = 0.01, 8.0
"""What grows by less over all sizes, or by less than half of what it was, is flat: the machine's noise is as large."""

FLAT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Growth:
    """How a cost grows: `first` and `last` are that of the smallest and of the largest size.

    `exponent`: the slope of the least squares line through the logarithms of size and cost over the upper order of
    magnitude, once the fixed cost is taken off: that of the smallest size. 1 is linear. 0 where the cost is flat.
    """

    first: float
    last: float
    exponent: float

    @classmethod
    def of(cls, sizes: Sequence[float], costs: Sequence[float], least: float) -> Growth:
        first, last = costs[0], costs[-1]
        if last - first <= max(least, FLAT_SHARE * first):
            return cls(first, last, 0.0)
        x, y = np.array(sizes[1:]) - sizes[0], np.array(costs[1:]) - first
        upper = (np.array(sizes[1:]) >= sizes[-1] / 10.5) & (y > 0)
        slope = np.polyfit(np.log(x[upper]), np.log(y[upper]), 1)[0] if upper.sum() > 1 else np.inf
        return cls(first, last, round(float(slope), 2))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dimensions", nargs="+", choices=DIMENSIONS, default=list(DIMENSIONS))
    parser.add_argument("--only", default="", help="operations whose names contain this text")
    parser.add_argument("--sizes", type=int, default=5, help="how many sizes, from the smallest on")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")
    parser.add_argument("--write", action="store_true", help="make the pictures and tables of docs/growth.md anew")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    found = {name: _measured(name, arguments) for name in arguments.dimensions}
    figures: dict[str, float] = {}
    exponents: dict[str, float] = {}
    for dimension, by_operation in found.items():
        for operation, points in by_operation.items():
            time, memory = _growths(points)
            figures[f"{operation} by {dimension}, CPU s"] = round(time.last, 4)
            figures[f"{operation} by {dimension}, MiB"] = round(memory.last, 1)
            exponents[f"{operation} by {dimension}, time"] = time.exponent
            exponents[f"{operation} by {dimension}, memory"] = memory.exponent
    if arguments.write:
        _write(found)
    return {"figures": figures, "exponents": exponents, "points": found}


def _measured(dimension: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """{operation: what was measured at each size, in order}, by a process of its own."""
    by_operation: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        command = [sys.executable, "-m", "tests.benchmarks._growing", dimension, directory, "--only", arguments.only]
        command += ["--sizes", str(arguments.sizes)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(dimension, line, end="", file=sys.stderr, flush=True)
                point = json.loads(line)
                by_operation[point.pop("operation")].append(point)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return dict(by_operation)


def _growths(points: Sequence[dict[str, float]]) -> tuple[Growth, Growth]:
    """The growth of CPU seconds and of memory in MiB."""
    sizes = [point["size"] for point in points]
    time = Growth.of(sizes, [point["cpu_s"] for point in points], LEAST_S)
    return time, Growth.of(sizes, [point["memory_mib"] for point in points], LEAST_MIB)


def _write(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    for name, title, column, unit, factor in (
        ("time", "CPU time by size of the log (dashed: linear)", "cpu_s", "ms", 1000.0),
        (
            "memory",
            "Memory over an idle process, by size of the log (dashed: linear)",
            "memory_mib",
            "MiB",
            1.0,
        ),
    ):
        panels = [
            Panel(
                f"by {dimension}",
                DIMENSIONS[dimension].unit,
                {
                    operation: [(point["size"], point[column] * factor) for point in points]
                    for operation, points in by_operation.items()
                },
            )
            for dimension, by_operation in found.items()
        ]
        target = ROOT / "docs" / "pictures" / f"growth-{name}.svg"
        target.write_text(picture(title, panels, unit), encoding="utf-8")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    tables = "\n".join(_table(dimension, by_operation) for dimension, by_operation in found.items())
    PAGE.write_text(f"{before}{BEGIN}\n{tables}{END}{rest.partition(END)[2]}")


def _table(dimension: str, by_operation: dict[str, list[dict[str, float]]]) -> str:
    sizes, unit = DIMENSIONS[dimension].sizes, DIMENSIONS[dimension].unit
    lines = [
        f"\n### By {dimension}: {sizes[0]} to {sizes[-1]:,} {unit}\n",
        "| | CPU ms, smallest | largest | exponent | MiB, smallest | largest | exponent |",
        "|---|---|---|---|---|---|---|",
    ]
    for operation, points in by_operation.items():
        time, memory = _growths(points)
        cells = [f"{time.first * 1000:,.0f}", f"{time.last * 1000:,.0f}", _exponent(time)]
        cells += [f"{memory.first:,.0f}", f"{memory.last:,.0f}", _exponent(memory)]
        lines.append(f"| {operation} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _exponent(growth: Growth) -> str:
    return f"{growth.exponent:.2f}" if growth.exponent else "flat"
