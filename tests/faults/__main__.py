"""Disks that fail for real: `python -m tests.faults [full read-only]`, as root; each fault on a disk of its own.

A process of a mount namespace of its own makes a small file system and fills it, or mounts a directory read-only, and
does all operations there. Nothing of that is seen outside, and nothing stays. Prints a line for each operation: how
many trials failed, and the first error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from spark_segments import LogDir
from tests.faults.scenes import (
    READS,
    WRITES,
    assert_clear,
    assert_unchanged,
    assert_usable,
    contents,
    copied,
    filled,
    outcome,
    prepared,
)
from tests.manifest_rows import forget_rows

DISK_BYTES = 64 << 20
FREE_BYTES = [*range(0, 64 << 10, 4 << 10), *range(64 << 10, 512 << 10, 64 << 10)]
"""How much room is left: by the page while a commit runs out of it, then for the files of the log."""

INSIDE = "TESTS_FAULTS_INSIDE"


def full(directory: Path) -> None:
    """A tmpfs, full but for some pages."""
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory))
    made = _prepared(directory)
    for name, operation in WRITES.items():
        errors = []
        for free_bytes in FREE_BYTES:
            log = copied(made, directory / "log")
            before = contents(log)
            with filled(directory, free_bytes):
                errors.append(outcome(operation, log))
            _check(name, log, errors[-1], before, "No space left")
            _run("rm", "-rf", log.uri, str(directory / "export"), str(directory / "table"))
        _say(name, errors)


def read_only(directory: Path) -> None:
    """A directory that is mounted read-only while it is worked in."""
    made = _prepared(directory)
    _run("mount", "--bind", str(directory), str(directory))
    for kind, operations in (("write", WRITES), ("read", READS)):
        for name, operation in operations.items():
            log = copied(made, directory / "log")
            before = contents(log)
            _run("mount", "-o", "remount,ro,bind", str(directory))
            error = outcome(operation, log)
            _run("mount", "-o", "remount,rw,bind", str(directory))
            assert (error is None) == (kind == "read"), (name, error)
            _check(name, log, error, before, "Read-only")
            _run("rm", "-rf", log.uri, str(directory / "table"))
            _say(name, [error])


FAULTS: dict[str, Callable[[Path], None]] = {"full": full, "read-only": read_only}


def _prepared(directory: Path) -> LogDir:
    """The log that each trial works on a copy of, after all operations have run once."""
    made = prepared(directory / "made")
    for operation in {**WRITES, **READS}.values():
        log = copied(made, directory / "log")
        assert outcome(operation, log) is None
        _run("rm", "-rf", log.uri, str(directory / "export"), str(directory / "table"))
    return made


def _check(name: str, log: LogDir, error: str | None, before: dict, *words: str) -> None:
    forget_rows()  # what is there is read from the disk
    if error is not None:
        assert_clear(error, *words)
        assert_unchanged(name, log, before, error)
    assert_usable(log)


def _say(name: str, errors: list[str | None]) -> None:
    failed = [error for error in errors if error is not None]
    print(f"{name}: {len(failed)} of {len(errors)} failed{': ' + failed[0] if failed else ''}", flush=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []], default=list(FAULTS))
    chosen = parser.parse_args().faults
    if INSIDE not in os.environ:
        command = ["unshare", "--mount", sys.executable, "-m", "tests.faults", *chosen]
        sys.exit(subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode)
    for name in chosen:
        print(f"== {name}: {FAULTS[name].__doc__}")
        with tempfile.TemporaryDirectory() as directory:
            disk = Path(directory) / "disk"
            disk.mkdir()
            Path(directory).chmod(0o755)
            FAULTS[name](disk)
            subprocess.run(["umount", str(disk)], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
