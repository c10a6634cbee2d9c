"""A copy of the tree with a fault in it, and the check that must fail there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from verification.world.checkout import ROOT

PACKAGE = "spark_segments"
_COPIED = ("spark_segments", "pyspark_segments", "tests", "verification")
_LINKED = ("pyproject.toml", "README.md", "CHANGELOG.md", "conf", "docs", "examples", "jobs", "mkdocs.yml")
_GOLDEN = "tests/golden"  # large, and never changed
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=proof", "--durations=0")
MOST_SECONDS = 900


@dataclass(frozen=True)
class Mutant:
    """A fault. `room`: what it is planted in. `path`: the module, in the package. `old` stands there once, and `new`
    takes its place. `check`: the test, by its pytest node, that fails for the fault.
    """

    room: str
    fault: str
    path: str
    old: str
    new: str
    check: str

    def patched(self, source: str) -> str:
        """The module's source with the fault. Raises AssertionError where `old` does not stand there once."""
        count = source.count(self.old)
        assert count == 1, (
            f"{self.path}: the text of the mutant '{self.fault}' stands there {count} times: {self.old!r}"
        )
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Ran:
    """What became of a check. `seconds`: of the whole process, `test_seconds`: of the test alone."""

    failed: bool
    seconds: float
    test_seconds: float
    output: str


class Tree:
    """A copy of the tree, in which a fault is planted at a time. Compiled kernels come along."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in _COPIED:
            ignored = shutil.ignore_patterns("golden")
            shutil.copytree(ROOT / name, directory / name, ignore=ignored if name == "tests" else None)
        for name in (*_LINKED, _GOLDEN):
            (directory / name).symlink_to(ROOT / name)

    def run(self, mutant: Mutant) -> Ran:
        """Plants the fault, runs its check and takes the fault out again."""
        path = self.directory / PACKAGE / mutant.path
        source, times = path.read_text(), path.stat()
        path.write_text(mutant.patched(source))
        try:
            return self.check(mutant.check)
        finally:
            path.write_text(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def check(self, *nodes: str) -> Ran:
        """Runs tests of the copy. Raises AssertionError where they could not be run at all."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *nodes],
            cwd=self.directory,
            env=os.environ | {"PYTHONPATH": str(self.directory), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        output = done.stdout + done.stderr
        assert done.returncode in (0, 1), f"{nodes} did not run: {output}"
        return Ran(done.returncode == 1, time.monotonic() - started, _test_seconds(done.stdout), output)


def _test_seconds(output: str) -> float:
    """The sum of the durations that pytest prints."""
    words = (line.split() for line in output.splitlines())
    return sum(float(line[0][:-1]) for line in words if len(line) == 3 and line[1] in ("call", "setup", "teardown"))
