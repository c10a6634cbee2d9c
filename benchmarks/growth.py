"""Cost of growth: CPU time and memory of each operation against bytes, segments, partitions and versions.

Each dimension grows over two orders of magnitude while the others stand still; _growing.py has the logs and the
operations. With --write the pictures and the tables of docs/design/growth.md are made anew.
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

from benchmarks._curves import Panel, picture
from benchmarks._growing import DIMENSIONS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design" / "growth.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

LEAST_S, LEAST_MIB = 0.01, 8.0
"""What grows by less over all sizes, or by less than half of what it was, is flat: the machine's noise is as large."""

FITTED_S, FITTED_MIB = 0.06, 32.0
"""What grows by less has too much noise in it for an exponent."""

FLAT_SHARE = 0.5
EXPONENTS = [number / 100 for number in range(5, 301)]


@dataclass(frozen=True, slots=True)
class Growth:
    """How a cost grows: `first` and `last` are that of the smallest and of the largest size.

    `exponent`: that of fixed + each · size ^ exponent, the curve with the least squares of relative errors over all
    sizes. 1 is linear. 0 where the cost is flat, None where it grows by too little to tell.
    """

    first: float
    last: float
    exponent: float | None

    @classmethod
    def of(cls, sizes: Sequence[float], costs: Sequence[float], least: float, fitted: float) -> Growth:
        first, last = costs[0], costs[-1]
        if last - first <= max(least, FLAT_SHARE * first):
            return cls(first, last, 0.0)
        if last - first <= fitted:
            return cls(first, last, None)
        # Costs below what the machine's noise is count as that noise.
        weights = 1 / np.maximum(costs, least / 2)
        return cls(first, last, min(EXPONENTS, key=lambda exponent: _misfit(sizes, costs, weights, exponent)))


def _misfit(sizes: Sequence[float], costs: Sequence[float], weights: np.ndarray, exponent: float) -> float:
    """The sum of squares of relative errors of the best curve with an exponent. Neither of its costs is negative."""
    shape = np.array(sizes) ** exponent / sizes[-1] ** exponent
    columns = np.stack([np.ones(len(sizes)), shape], axis=1) * weights[:, None]
    wanted = np.array(costs) * weights
    found = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if found[0] < 0:
        found = np.array([0.0, columns[:, 1] @ wanted / (columns[:, 1] @ columns[:, 1])])
    return float(((columns @ found - wanted) ** 2).sum())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dimensions", nargs="+", choices=DIMENSIONS, default=list(DIMENSIONS))
    parser.add_argument("--only", default="", help="operations whose names contain this text")
    parser.add_argument("--sizes", type=int, default=5, help="how many sizes, from the smallest on")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")
    parser.add_argument("--wide", action="store_true", help="to 100,000 segments, 10,000 partitions: not for --write")
    parser.add_argument(
        "--write", action="store_true", help="make the pictures and tables of docs/design/growth.md anew"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    found = {name: _measured(name, arguments) for name in arguments.dimensions}
    figures: dict[str, float] = {}
    exponents: dict[str, float | None] = {}
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
        command = [sys.executable, "-m", "benchmarks._growing", dimension, directory, "--only", arguments.only]
        command += ["--sizes", str(arguments.sizes), *(["--wide"] if arguments.wide else [])]
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
    time = Growth.of(sizes, [point["cpu_s"] for point in points], LEAST_S, FITTED_S)
    return time, Growth.of(sizes, [point["memory_mib"] for point in points], LEAST_MIB, FITTED_MIB)


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
    if growth.exponent is None:
        return "small"
    return f"{growth.exponent:.2f}" if growth.exponent else "flat"
