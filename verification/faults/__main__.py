"""Disks that fail for real: `python -m verification.faults [full read-only now-and-then]`, as root, each on a disk.

A process of a mount namespace of its own makes a small file system and fills it, or mounts a directory read-only, and
does all operations there. Nothing of that is seen outside, and nothing stays. Prints a line for each operation: how
many trials failed, and the first error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from spark_segments import LogDir
from spark_segments.errors import SegmentsError, UnknownOutcomeError
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.faults.scenes import (
    READS,
    WRITES,
    assert_clear,
    assert_unchanged,
    assert_usable,
    contents,
    filled,
    outcome,
    prepared,
)
from verification.world.log_copies import copy_of
from verification.world.manifest_rows import forget_rows

DISK_BYTES = 64 << 20
FREE_BYTES = [*range(0, 64 << 10, 4 << 10), *range(64 << 10, 512 << 10, 64 << 10)]
"""How much room is left: by the page while a commit runs out of it, then for the files of the log."""

INSIDE = "TESTS_FAULTS_INSIDE"


def full(directory: Path, _: argparse.Namespace) -> None:
    """A tmpfs, full but for some pages."""
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory))
    made = _prepared(directory)
    for name, operation in WRITES.items():
        errors = []
        for free_bytes in FREE_BYTES:
            log = copy_of(made, directory / "log")
            before = contents(log)
            with filled(directory, free_bytes):
                errors.append(outcome(operation, log))
            _check(name, log, errors[-1], before, "No space left")
            _run("rm", "-rf", log.uri, str(directory / "export"), str(directory / "table"))
        _say(name, errors)


def read_only(directory: Path, _: argparse.Namespace) -> None:
    """A directory that is mounted read-only while it is worked in."""
    made = _prepared(directory)
    _run("mount", "--bind", str(directory), str(directory))
    for kind, operations in (("write", WRITES), ("read", READS)):
        for name, operation in operations.items():
            log = copy_of(made, directory / "log")
            before = contents(log)
            _run("mount", "-o", "remount,ro,bind", str(directory))
            error = outcome(operation, log)
            _run("mount", "-o", "remount,rw,bind", str(directory))
            assert (error is None) == (kind == "read"), (name, error)
            _check(name, log, error, before, "Read-only")
            _run("rm", "-rf", log.uri, str(directory / "table"))
            _say(name, [error])


def now_and_then(directory: Path, options: argparse.Namespace) -> None:
    """A small tmpfs that another process fills and empties without pause, beside appends and all jobs."""
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory))
    chance, ended = random.Random(options.seed), threading.Event()
    log = LogDir.create(str(directory / "log"))
    log.create_topic("orders", 1, {"segment.bytes": "65536", "retention.bytes": "2000000"})
    log.create_topic("keyed", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})

    def fill() -> None:
        while not ended.wait(chance.uniform(0, 0.02)):
            with filled(directory, chance.randrange(256 << 10)):
                ended.wait(chance.uniform(0, 0.1))

    filling = threading.Thread(target=fill)
    filling.start()
    acknowledged: dict[int, str] = {}
    sent: set[str] = set()
    outcomes: Counter[str] = Counter()
    number = 0
    for _ in range(options.rounds):
        values = [f"value {number + step}" for step in range(50)]
        number += len(values)
        error = None
        try:
            log.topic("keyed").append([{"key": str(number % 7), "value": value} for value in values])
            sent |= {*values}
            [(first, last)] = log.topic("orders").append([{"value": value} for value in values]).values()
            acknowledged |= dict(zip(range(first, last + 1), values, strict=True))
        except UnknownOutcomeError:
            outcomes["appends of unknown outcome"] += 1
        except SegmentsError as failed:
            error, sent = str(failed), sent - {*values}
        jobs = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
        for name, job in jobs.items():
            if chance.random() < 0.3:
                with contextlib.suppress(SegmentsError):
                    outcomes[f"{name} with failures"] += bool(job(log).failed)
        outcomes["appends that failed" if error else "appends"] += 1
        assert error is None or "No space left" in error, error
    ended.set()
    filling.join()
    forget_rows()
    log = LogDir.open(log.uri)
    sent.add("usable")
    log.topic("orders").append([{"value": "usable"}])
    [(start, end)] = log.topic("orders").offsets().values()
    rows = log.topic("orders").scan(columns=["offset", "value"]).to_table().to_pylist()
    found = {row["offset"]: row["value"].decode() for row in rows}
    assert len(found) == len(rows) == end - start, "an offset is there twice, or missing"
    lost = {offset: value for offset, value in acknowledged.items() if offset >= start and found.get(offset) != value}
    assert not lost, f"lost: {sorted(lost.items())[:5]}"
    assert {*found.values()} <= sent, "a refused append is there"
    assert not verify(log, deep=True).findings
    print(f"{dict(outcomes)}, {len(acknowledged)} records acknowledged: nothing lost, doubled or half there")


FAULTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "full": full,
    "read-only": read_only,
    "now-and-then": now_and_then,
}


def _prepared(directory: Path) -> LogDir:
    """The log that each trial works on a copy of, after all operations have run once."""
    made = prepared(directory / "made")
    for operation in {**WRITES, **READS}.values():
        log = copy_of(made, directory / "log")
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
    parser.add_argument("--rounds", type=int, default=300, help="of now-and-then")
    parser.add_argument("--seed", type=int, default=1, help="of now-and-then")
    options = parser.parse_args()
    chosen = options.faults
    if INSIDE not in os.environ:
        command = ["unshare", "--mount", sys.executable, "-m", "verification.faults", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode)
    for name in chosen:
        print(f"== {name}: {FAULTS[name].__doc__}")
        with tempfile.TemporaryDirectory() as directory:
            disk = Path(directory) / "disk"
            disk.mkdir()
            Path(directory).chmod(0o755)
            FAULTS[name](disk, options)
            subprocess.run(["umount", str(disk)], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
