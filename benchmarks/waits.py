"""The waits of a user: the first write and count of a Spark session, beside a Python source that does nothing; and an
append of one record to a topic of very many versions.

A session is a process of its own, and its CPU time that of all its processes: what other work on the machine lengthens
least. With `--rev`, another commit and this tree take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks.compare import HERE, environment, exported

CHECKPOINT_VERSIONS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rev", help="another commit, to be measured in turns with this tree")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--versions", type=int, default=10_000, help="of the topic that single records go to")
    parser.add_argument("--only", choices=("sessions", "appends"), help="the sessions alone, or the appends alone")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        trees = {"now": HERE}
        if arguments.rev:
            trees["before"] = exported(arguments.rev, directory / "tree")
        if arguments.only != "appends":
            _sessions(directory, trees, arguments.turns, figures, ratios)
        if arguments.only != "sessions":
            _appends(directory, trees, arguments, figures, ratios)
    return {"turns": arguments.turns, "figures": figures, "ratios": ratios}


def _sessions(
    directory: Path, trees: dict[str, Path], turns: int, figures: dict[str, float], ratios: dict[str, float]
) -> None:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(turns):
        for side, tree in {"prebuilt": HERE, **trees}.items():
            work = directory / "work"
            work.mkdir()
            source = "prebuilt" if side == "prebuilt" else "segments"
            command = [sys.executable, "-P", str(Path(__file__).with_name("_session_side.py")), source, str(work)]
            done = subprocess.run(command, env=environment(tree), check=True, stdout=subprocess.PIPE, text=True)
            for name, seconds in json.loads(done.stdout).items():
                found.setdefault((side, name), []).append(tuple(seconds))
            shutil.rmtree(work)
    _note(found, figures, ratios, "s", 2)


def _appends(
    directory: Path,
    trees: dict[str, Path],
    arguments: argparse.Namespace,
    figures: dict[str, float],
    ratios: dict[str, float],
) -> None:
    """Both sides have a topic each."""
    prepared = directory / "prepared"
    subprocess.run(_command("prepare", prepared), env=environment(trees.get("before", HERE)), check=True)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    sides = {}
    for side, tree in trees.items():
        log = directory / f"versions {side}"
        shutil.copytree(prepared, log)
        add_versions(log / "_manifest" / "events" / "_delta_log", arguments.versions)
        sides[side] = subprocess.Popen(
            _command("appends", log), env=environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def _command(name: str, log: Path) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__).with_name("_waits_side.py")), name, str(log)]


def _answer(process: subprocess.Popen[str]) -> tuple[float, float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    cpu, wall = map(float, process.stdout.readline().split())
    return cpu, wall
