"""Readers of one group that are killed at any moment: no record is passed over, none is taken by two commits.

    python -m verification.kills.groups --kills 100 [--seed 0]

Two processes read a partition from the group's position on, a few records at a time, and commit. Each notes what it
has read before its commit, and behind it that it was acknowledged. Now and then one of them gets a SIGKILL, and another
begins.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError, UnknownOutcomeError

TOPIC, GROUP = "orders", "billing"
READERS = 2
RECORDS = 5_000_000


def read(uri: str, notes: str, seed: int) -> None:
    """What a reader does until it is killed, or the log has ended."""
    chance, log = random.Random(seed), LogDir.open(uri)
    topic, group = log.topic(TOPIC), log.group(GROUP)
    with open(notes, "ab", buffering=0) as noted:
        while True:
            positions = group.positions()
            position = positions.get((TOPIC, 0))
            start = 0 if position is None else position.offset
            read = topic.scan(0, offsets=(start, start + chance.randrange(1, 20)), columns=["offset"]).to_table()
            if not read.num_rows:
                return
            end = int(read.column("offset")[-1].as_py()) + 1
            assert read.column("offset").to_pylist() == list(range(start, end))
            noted.write(b"read %d %d\n" % (start, end))
            try:
                group.commit(positions, {TOPIC: {0: end}})
            except (CommitConflictError, UnknownOutcomeError):
                continue
            noted.write(b"committed %d %d\n" % (start, end))


def judge(log: LogDir, notes: Path) -> dict[str, int]:
    """Raises AssertionError where a record was passed over, or two commits were acknowledged for it."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    ranges = {
        kind: {(int(start), int(end)) for one, start, end in lines if one == kind} for kind in ("read", "committed")
    }
    acknowledged = sorted(ranges["committed"])
    assert len(acknowledged) == sum(line[0] == "committed" for line in lines), "a commit was acknowledged twice"
    begins: dict[int, list[int]] = {}
    for start, end in ranges["read"]:
        begins.setdefault(start, []).append(end)
    position = log.group(GROUP).positions()[TOPIC, 0].offset
    unknown = 0
    for (_, end), (start, _) in pairwise([(0, 0), *acknowledged, (position, position)]):
        assert end <= start, f"offsets {start} to {end} were committed twice"
        # Whoever was killed in its commit may have made it: then what it had read leads to where the next one began.
        reached = {end}
        for at in range(end, start):
            if at in reached:
                reached.update(begins.get(at, ()))
        assert start in reached, f"nobody has read the offsets {end} to {start}"
        unknown += end < start
    return {"acknowledged commits": len(acknowledged), "commits of killed readers": unknown, "position": position}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.kills.groups", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as directory:
        log, notes = LogDir.create(f"{directory}/log"), Path(directory, "notes")
        log.create_topic(TOPIC)
        log.topic(TOPIC).append(pa.table({"value": pa.nulls(RECORDS, pa.binary())}))

        def begun() -> subprocess.Popen[bytes]:
            call = f"read({log.uri!r}, {str(notes)!r}, {chance.randrange(1 << 30)})"
            return subprocess.Popen([sys.executable, "-c", f"from verification.kills.groups import read; {call}"])

        readers = [begun() for _ in range(READERS)]
        while not (notes.exists() and notes.stat().st_size):
            time.sleep(0.1)
        for _ in range(given.kills):
            time.sleep(chance.uniform(1.5, 4.0))  # until a reader reads takes a second
            victim = chance.randrange(READERS)
            assert readers[victim].poll() is None, "a reader ended by itself"
            os.kill(readers[victim].pid, signal.SIGKILL)
            readers[victim].wait()
            readers[victim] = begun()
        for reader in readers:
            reader.kill()
            reader.wait()
        print(f"{given.kills} kills, no record passed over, none committed twice: {judge(log, notes)}")


if __name__ == "__main__":
    main()
