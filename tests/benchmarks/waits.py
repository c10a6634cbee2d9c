"""The waits of a user: the first append, read and compaction where no kernel is compiled yet, and again where all are;
and an append of one record to a topic of very many versions.

Each wait is a whole process, from its start to its end, with an empty cache of kernels. With `--rev`, another commit
and this tree take turns. CPU time is what other work on the machine lengthens least; it has that of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.benchmarks.compare import HERE, exported

WAITS = ("append", "read", "compact")
CHECKPOINT_VERSIONS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rev", help="another commit, to be measured in turns with this tree")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--versions", type=int, default=10_000, help="of the topic that single records go to")
    parser.add_argument("--only", choices=("first", "appends"), help="the first calls alone, or the appends alone")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        trees = {"now": HERE}
        if arguments.rev:
            trees["before"] = exported(arguments.rev, directory / "tree")
        prepared = directory / "prepared"
        _done(_environment(trees.get("before", HERE), directory / "kernels"), "prepare", prepared)
        if arguments.only != "appends":
            _first_calls(directory, trees, prepared, arguments.turns, figures, ratios)
        if arguments.only != "first":
            _appends(directory, trees, prepared, arguments, figures, ratios)
    return {"turns": arguments.turns, "figures": figures, "ratios": ratios}


def _first_calls(
    directory: Path,
    trees: dict[str, Path],
    prepared: Path,
    turns: int,
    figures: dict[str, float],
    ratios: dict[str, float],
) -> None:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in range(turns):
        for wait in WAITS:
            for side in sorted(trees, reverse=turn % 2 == 1):
                work, kernels = directory / "work", directory / "cold kernels"
                for name in (f"first {wait}", f"{wait} with kernels"):
                    shutil.copytree(prepared, work)
                    found.setdefault((side, name), []).append(_done(_environment(trees[side], kernels), wait, work))
                    shutil.rmtree(work)
                shutil.rmtree(kernels)
    _note(found, figures, ratios, "s", 2)


def _appends(
    directory: Path,
    trees: dict[str, Path],
    prepared: Path,
    arguments: argparse.Namespace,
    figures: dict[str, float],
    ratios: dict[str, float],
) -> None:
    """Both sides have a topic each."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    sides = {}
    for side, tree in trees.items():
        log = directory / f"versions {side}"
        shutil.copytree(prepared, log)
        add_versions(log / "_manifest" / "events" / "_delta_log", arguments.versions)
        environment = _environment(tree, directory / f"kernels {side}")
        sides[side] = subprocess.Popen(
            _command("appends", log), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    for process in sides.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for turn in range(arguments.turns + 1):
        for side in sorted(sides, reverse=turn % 2 == 1):
            seconds = _answer(sides[side])
            if turn:
                found.setdefault((side, f"append at {arguments.versions} versions"), []).append(seconds)
    for process in sides.values():
        process.communicate()
    _note(found, figures, ratios, "ms", 1)


def add_versions(log: Path, versions: int) -> None:
    """Makes a Delta log as long as `versions` commits leave it: commits that say nothing, with checkpoints."""
    last = max(int(path.stem) for path in log.glob("*.json"))
    nothing = (log / f"{last:020d}.json").read_text().splitlines()[0]
    assert "commitInfo" in json.loads(nothing)
    for version in range(last + 1, versions):
        (log / f"{version:020d}.json").write_text(f"{nothing}\n")
    DeltaTable(str(log.parent)).create_checkpoint()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for version in range(CHECKPOINT_VERSIONS, versions - 1, CHECKPOINT_VERSIONS):
        shutil.copy(checkpoint, log / f"{version:020d}.checkpoint.parquet")


def _note(
    found: dict[tuple[str, str], list[tuple[float, float]]],
    figures: dict[str, float],
    ratios: dict[str, float],
    unit: str,
    digits: int,
) -> None:
    scale = 1000 if unit == "ms" else 1
    for (side, name), seconds in found.items():
        for kind, number in (("CPU", 0), ("wall", 1)):
            median = statistics.median(one[number] for one in seconds)
            figures[f"{name}, {side}, {kind} {unit}"] = round(median * scale, digits)
            if side == "now" and ("before", name) in found:
                turns = zip(seconds, found["before", name], strict=True)
                ratio = statistics.median(mine[number] / other[number] for mine, other in turns)
                ratios[f"{name}, {kind}, now / before"] = round(ratio, 2)


def _environment(tree: Path, kernels: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(kernels)}


def _command(name: str, log: Path) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__).with_name("_waits_side.py")), name, str(log)]


def _done(environment: dict[str, str], name: str, log: Path) -> tuple[float, float]:
    """CPU and wall seconds of a process, with those that it waited for."""
    before, started = os.times(), time.perf_counter()
    subprocess.run(_command(name, log), env=environment, check=True)
    wall, after = time.perf_counter() - started, os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system, wall


def _answer(process: subprocess.Popen[str]) -> tuple[float, float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    cpu, wall = map(float, process.stdout.readline().split())
    return cpu, wall
