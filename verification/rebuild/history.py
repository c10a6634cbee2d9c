"""Random histories of a topic that loses its manifest after any of its commits, and processes that die in the midst.

A rebuilt manifest is compared, row by row, with what the manifest said before it was lost.
`python -m verification.rebuild.history FIRST LAST` plays the histories of these seeds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.maintenance import Report, compact, restore, retain, roll, vacuum
from verification.rebuild.lost import TOPIC, WEEKS_MS, rebuild_manifest
from verification.world.manifest_rows import Partition, Segment, Snapshot, forget_rows
from verification.world.opened import LocalFiles, opened

STEPS = ("append", "roll", "compact", "delete", "retain", "vacuum", "restore", "again", "merge")

Rows = tuple[Any, ...]
"""A topic without its id and the number of its version: settings, rows of partitions, rows of segments, transactions"""


class Killed(BaseException):
    """The process died."""


class DyingFiles(LocalFiles):
    """Local files of a process that dies before it has made a commit (`commit`), or before it has marked one (`made`):
    the one after so many.
    """

    def __init__(self, moment: str, after: int) -> None:
        super().__init__()
        self._moment, self._left, self._is_dead = moment, after, False

    def _live(self, path: str, moment: str) -> None:
        if not self._is_dead and moment == self._moment:
            self._left -= 1
            self._is_dead = self._left < 0
        if self._is_dead:
            raise Killed(path)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        self._live(path, "commit" if "/_delta_log/" in path else "")
        super().create(path, data, is_forced=is_forced)

    def stream(self, path: str, *, unique: bool = False) -> Any:
        self._live(path, "made" if path.endswith(".made") else "")
        return super().stream(path, unique=unique)

    def replace(self, path: str, data: Any) -> None:
        self._live(path, "")
        super().replace(path, data)

    def delete(self, paths: Sequence[str]) -> None:
        self._live("", "")
        super().delete(paths)


@dataclass
class History:
    """A topic that lives by the dice."""

    root: Path
    random: Random
    log: LogDir = field(init=False)
    keys: dict[int, bytes] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = [6, *(self.random.choice((0, 1, 4)) for _ in STEPS[1:])]
        self.partitions = self.random.choice((1, 1, 2, 12))
        self.log = LogDir.create(str(self.root))
        self.create()
        self.now_ms = self.log.storage.now_ms()

    def create(self) -> None:
        sizes = self.random.choice(("300", "900", "1048576"))
        config = {
            "segment.bytes": sizes, "retention.ms": "-1", "cleanup.policy": "compact,delete",
            "min.cleanable.dirty.ratio": "0.01", "compression.type": "uncompressed",
        }  # fmt: skip
        self.log.create_topic(TOPIC, partitions=self.partitions, config=config)

    def step(self) -> None:
        [name] = self.random.choices(STEPS, self.weights)
        self.steps.append(name)
        getattr(self, f"_{name}")()

    def _append(self) -> None:
        first, count = len(self.keys), self.random.randint(1, 40)
        numbers = range(first, first + count)
        for number in numbers:
            self.keys[number] = b"%d" % self.random.randint(0, 12)
        columns = {
            "key": pa.array([self.keys[number] for number in numbers], pa.binary()),
            "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "partition": pa.array([int(self.keys[number]) % self.partitions for number in numbers], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000_000 + 1000 * number for number in numbers], pa.timestamp("us")),
        }
        options = ProducerOptions(batch_bytes=self.random.choice((1, 200, 10_000)))
        txn = ("feed", first) if self.random.random() < 0.3 else None
        self.log.topic(TOPIC).append(pa.table(columns), options=options, txn=txn)

    def _roll(self) -> None:
        self.now_ms += self.random.choice((0, WEEKS_MS))
        roll(self.log, topics=[TOPIC], now_ms=self.now_ms)

    def _compact(self) -> None:
        compact(self.log, topics=[TOPIC], now_ms=self.now_ms, force=True)

    def _delete(self) -> None:
        bounds = self.log.topic(TOPIC).offsets()
        number = self.random.choice(sorted(bounds))
        start, end = bounds[number]
        self.log.topic(TOPIC).delete_records({number: self.random.randint(start, end)})

    def _retain(self) -> None:
        self.log.topic(TOPIC).alter({"retention.bytes": str(self.random.choice((200, 1000, 5000)))})
        retain(self.log, topics=[TOPIC], now_ms=self.now_ms)
        self.log.topic(TOPIC).alter({"retention.bytes": "-1"})

    def _merge(self) -> None:
        self.log.topic(TOPIC).manifest.merge_files()

    def _vacuum(self) -> None:
        vacuum(self.log, topics=[TOPIC], now_ms=self.now_ms + WEEKS_MS)

    def _restore(self) -> None:
        versions = self.log.topic(TOPIC).manifest.log.versions()
        try:
            restore(self.log, topics=[TOPIC], version=self.random.choice(versions[-8:]))
        except (LogDirError, UnknownTopicError, InvalidOptionError) as error:  # vacuum may have taken its rows
            self.steps[-1] = f"restore refused ({error.message})"

    def _again(self) -> None:
        if self.random.random() < 0.3:
            self.log.delete_topic(TOPIC)
            self.create()


def said(log: LogDir, version: int | None = None) -> Rows:
    """What the manifest says at a version."""
    manifest = log.topic(TOPIC).manifest
    state = manifest.log.state(version)
    return rows_of(state.snapshot), sorted((one.application, one.version) for one in state.last_transactions())


def rows_of(snapshot: Snapshot) -> Rows:
    partitions = [replace(row, topic_id="") for row in Partition.of_table(snapshot.partitions)]
    segments = sorted((replace(row, topic_id="") for row in Segment.of_table(snapshot.source.read(None))), key=str)
    return snapshot.config, partitions, segments


def lose(root: Path, random: Random) -> str:
    """Loses the manifest whole; or its checkpoints with the first commits, rows, or a part of the commits."""
    directory = root / "_manifest" / TOPIC
    what = random.choice(("whole", "whole", "rows", "commits"))
    if what == "whole":
        shutil.rmtree(directory)
        return what
    for path in [*directory.glob("_delta_log/*.parquet"), directory / "_delta_log" / "_last_checkpoint"]:
        path.unlink(missing_ok=True)
    commits = sorted(directory.glob("_delta_log/*.json"))
    lost = commits if what == "rows" else [path for path in commits if random.random() < 0.5]
    for path in [*lost, commits[0]]:
        path.unlink(missing_ok=True)
    if what == "rows":
        for path in directory.glob("kind=*/*.parquet"):
            if random.random() < 0.5:
                path.unlink()
    return what


def rebuilt(root: Path) -> tuple[Rows, Report]:
    """What the rebuilt manifest says, and the report."""
    forget_rows()  # rows in memory would prove nothing
    report = rebuild_manifest(LogDir.open(str(root)), TOPIC)
    forget_rows()
    return said(LogDir.open(str(root))), report


def clone(root: Path, name: str) -> Path:
    """The directory again: no file of it is ever changed in its place."""
    return Path(shutil.copytree(root, root.with_name(name), copy_function=os.link))


def check(seed: int, directory: Path) -> Counter[str]:
    """Plays a history. After each step its manifest is lost in a copy; and in another copy a process dies in the next
    step, before the manifest is lost. Returns how often what was seen.
    """
    random = Random(seed)
    history = History(directory / "log", random)
    found = Counter({"histories": 1})
    for number in range(random.randint(3, 12)):
        history.step()
        found["versions"] += 1
        expected = said(history.log)
        copy = clone(history.root, f"lost-{number}")
        how = lose(copy, random)
        got, report = rebuilt(copy)
        assert got == expected, f"seed {seed}, {history.steps}, lost {how}"
        assert report.details["is_exact"] and not report.details["not_known"], (
            seed,
            history.steps,
            how,
            report.details["not_known"],
        )
        if random.random() < 0.5:
            found[_killed(history, clone(history.root, f"killed-{number}"), seed)] += 1
        for path in directory.glob("*-*"):
            shutil.rmtree(path)
    return found


def _killed(history: History, root: Path, seed: int) -> str:
    """A process dies in a step; then the manifest is lost whole. Returns what came of it."""
    random, moment = history.random, history.random.choice(("commit", "made"))
    steps, keys = list(history.steps), dict(history.keys)
    files = DyingFiles(moment, random.randint(0, 2))
    log, history.log = history.log, opened(root, files)
    try:
        history.step()
        died = ""
    except Killed:
        died = moment
    history.log, step, history.steps, history.keys = log, history.steps[-1], steps, keys
    there = LogDir.open(str(root))
    try:
        version = there.topic(TOPIC).snapshot.version
    except UnknownTopicError:  # it died after it had deleted the topic, before it made it again
        return "deleted"
    # The commit that has no mark yet is one that nothing proves, where the manifest is lost whole.
    proven = version - 1 if died == "made" else version
    try:
        expected = said(there, proven)
    except (InvalidOptionError, UnknownTopicError):  # vacuum has taken the rows of that version
        return "gone"
    if there.topic(TOPIC).manifest.log.state(proven).snapshot.deleted_ms is not None:
        return "deleted"
    shutil.rmtree(root / "_manifest" / TOPIC)
    got, report = rebuilt(root)
    text = f"seed {seed}, {steps}, killed in {step} at {died}"
    assert got == expected, text
    assert report.details["known_version"] == proven, text
    assert report.details["is_exact"] == (not died) and bool(report.details["unproven"]) == bool(died), (text, report)
    return f"killed before {died}" if died else "not killed"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.rebuild.history", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(given.first, given.last + 1):
        with tempfile.TemporaryDirectory() as directory:
            try:
                total += check(seed, Path(directory))
            except Exception:
                print(f"seed {seed}", flush=True)
                raise
    print(dict(total))


if __name__ == "__main__":
    sys.exit(main())
