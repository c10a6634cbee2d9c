"""This working tree against another commit: both do the same cases in turns, and what became slower is named.

The logs are written by the other commit, so that both can read them. What counts is CPU time, which other work on the
machine lengthens least. A case is slower where the median of the turns' ratios is above `--limit` and nine turns in ten
agree; faster likewise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SHARE_THAT_AGREES = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rev", required=True, help="the other commit")
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--limit", type=float, default=1.05, help="the ratio above which a case is slower")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        other = exported(arguments.rev, directory / "tree")
        subprocess.run(_command("_cases.py", "prepare", str(directory / "logs")), env=environment(other), check=True)
        cases = ("_cases.py", "serve", str(directory / "logs"))
        with Side(other, *cases) as theirs, Side(HERE, *cases) as ours:
            names = [name for name in ours.names if arguments.only in name]
            found = {name: _in_turns(name, ours, theirs, arguments.turns) for name in names}
    ratios = {name: [mine / other for mine, other in turns] for name, turns in found.items()}
    limit = arguments.limit
    return {
        "figures": {f"{name}, CPU ms": round(statistics.median(m for m, _ in t) * 1e3, 1) for name, t in found.items()},
        "ratios": {name: round(statistics.median(one), 3) for name, one in ratios.items()},
        "slower": [name for name, one in ratios.items() if _beyond(one, limit)],
        "faster": [name for name, one in ratios.items() if _beyond([1 / ratio for ratio in one], limit)],
    }


def _beyond(ratios: list[float], limit: float) -> bool:
    agree = sum(ratio > 1 for ratio in ratios) / len(ratios)
    return statistics.median(ratios) > limit and agree >= SHARE_THAT_AGREES


def exported(rev: str, directory: Path) -> Path:
    """The package of another commit, in a new directory, without its benchmarks: those of this tree measure both."""
    directory.mkdir()
    archive = subprocess.run(["git", "archive", rev], cwd=HERE, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "--exclude=benchmarks", "-C", str(directory)], input=archive.stdout, check=True)
    if (directory / "hatch_build.py").exists():  # before it, kernels were compiled when they were imported
        subprocess.run([sys.executable, "hatch_build.py"], cwd=directory, check=True)
    return directory


def _command(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__).with_name(script)), *arguments]


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that imports the package of `tree`, and these benchmarks."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(HERE)])}


class Side:
    """A process that does the cases with the package of one tree: `script` is a module here, which prints the names of
    its cases and an empty line, and answers each name with its seconds.
    """

    def __init__(self, tree: Path, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            _command(script, *arguments),
            env=environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = []
        assert self._process.stdout is not None
        while name := self._process.stdout.readline().strip():
            self.names.append(name)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._process.wait()

    def seconds(self, name: str) -> float:
        """Seconds of a case, as the script has them first."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline().split()[0])


def _in_turns(name: str, ours: Side, theirs: Side, turns: int) -> list[tuple[float, float]]:
    """(our seconds, their seconds) of each turn; who begins changes from turn to turn. The first turn only warms."""
    found = []
    for turn in range(turns + 1):
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        one, other = first.seconds(name), second.seconds(name)
        found.append((one, other) if turn % 2 else (other, one))
    return found[1:]
