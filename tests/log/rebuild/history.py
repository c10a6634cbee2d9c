"""Random histories of a topic that loses its manifest, and what a rebuild must make of the files that they leave.

Everything is compared with the records that were read before: what was live at the recovery copy, and what was live
when the manifest was lost. `python -m tests.log.rebuild.history FIRST LAST` plays the histories of these seeds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.log.manifest import row_files
from spark_segments.log.manifest.recovery_copy import read_recovery_copy
from spark_segments.log.manifest.rows import segments_of
from spark_segments.log.rebuild.rebuild import ALL, rebuild_manifest
from spark_segments.log.rebuild.report import RebuildReport
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, restore, retain, roll, vacuum
from tests.log.rebuild.lost import TOPIC, WEEKS_MS, copy

Place = tuple[int, int]
"""(partition, offset)"""

Records = dict[Place, int]

STEPS = ("append", "roll", "compact", "delete", "retain", "vacuum", "restore", "again")


@dataclass
class History:
    """A topic that lives by the dice. `at_copy`, `at_loss`: {place: number} of all records of that moment;
    `at_version`: of the version after each step since the copy.
    """

    root: Path
    random: Random
    log: LogDir = field(init=False)
    keys: dict[int, bytes] = field(default_factory=dict)
    at_copy: Records = field(default_factory=dict)
    at_loss: Records = field(default_factory=dict)
    at_version: dict[int, Records] = field(default_factory=dict)
    appended_since: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = [6, *(self.random.choice((0, 1, 4)) for _ in STEPS[1:])]
        self.partitions = self.random.choice((1, 1, 2, 12))
        self.now_ms = 0
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

    def play(self, before: int, after: int) -> None:
        """Steps, a recovery copy, more steps, and the loss of the manifest and of all younger copies."""
        for _ in range(before):
            self.step()
        copy(self.log)
        self.steps.append("copy")
        self.at_copy = self.read()
        self.appended_since.clear()
        kept = shutil.copytree(self.root / "_recovery", self.root.with_name(f"{self.root.name}-copy"))
        copied = self.log.snapshot(TOPIC).version
        for _ in range(after):
            self.at_version[self.log.snapshot(TOPIC).version] = self.read()
            self.step()
        self.at_loss = self.at_version[self.log.snapshot(TOPIC).version] = self.read()
        self.lose(copied)
        shutil.rmtree(self.root / "_recovery")
        shutil.copytree(kept, self.root / "_recovery")

    def lose(self, copied: int) -> None:
        """Loses the manifest whole; or its checkpoints, and perhaps a commit since the copy."""
        directory = self.root / "_manifest" / TOPIC / "_delta_log"
        if self.random.random() < 0.6:
            shutil.rmtree(self.root / "_manifest" / TOPIC)
            self.steps.append("lost")
            return
        for path in [*directory.glob("*.parquet"), directory / "_last_checkpoint"]:
            path.unlink(missing_ok=True)
        commits = sorted(directory.glob("*.json"))
        doomed = {path for path in commits if int(path.stem) <= copied}
        if self.random.random() < 0.5:
            doomed.add(self.random.choice(commits))
        for path in doomed:
            path.unlink()
        self.steps.append(f"lost {sorted(int(path.stem) for path in doomed)}")

    def read(self) -> Records:
        names = ("partition", "offset", "value")
        return {
            (partition, offset): int(value)
            for batch in self.log.read(TOPIC)
            for partition, offset, value in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        }

    def step(self) -> None:
        [name] = self.random.choices(STEPS, self.weights)
        self.steps.append(name)
        getattr(self, f"_{name}")()

    def _append(self) -> None:
        first, count = len(self.keys), self.random.randint(1, 40)
        numbers = range(first, first + count)
        for number in numbers:
            self.keys[number] = b"%d" % self.random.randint(0, 12)
        self.appended_since |= set(numbers)
        columns = {
            "key": pa.array([self.keys[number] for number in numbers], pa.binary()),
            "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "partition": pa.array([int(self.keys[number]) % self.partitions for number in numbers], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000_000 + 1000 * number for number in numbers], pa.timestamp("us")),
        }
        options = ProducerOptions(batch_bytes=self.random.choice((1, 200, 10_000)))
        self.log.append(TOPIC, pa.table(columns), options=options)

    def _roll(self) -> None:
        self.now_ms += self.random.choice((0, WEEKS_MS))
        roll(self.log, topic=TOPIC, now_ms=self.now_ms)

    def _compact(self) -> None:
        compact(self.log, topic=TOPIC, now_ms=self.now_ms, force=True)

    def _delete(self) -> None:
        bounds = self.log.offsets(TOPIC)
        number = self.random.choice(sorted(bounds))
        start, end = bounds[number]
        self.log.delete_records(TOPIC, {number: self.random.randint(start, end)})

    def _retain(self) -> None:
        self.log.alter_topic(TOPIC, {"retention.bytes": str(self.random.choice((200, 1000, 5000)))})
        retain(self.log, topic=TOPIC, now_ms=self.now_ms)
        self.log.alter_topic(TOPIC, {"retention.bytes": "-1"})

    def _vacuum(self) -> None:
        vacuum(self.log, topic=TOPIC, now_ms=self.now_ms + WEEKS_MS)

    def _restore(self) -> None:
        versions = self.log.manifest(TOPIC).log.versions()
        try:
            restore(self.log, TOPIC, self.random.choice(versions[-8:]))
        except (LogDirError, UnknownTopicError, InvalidOptionError) as error:  # vacuum may have taken its rows
            self.steps[-1] = f"restore refused ({error.message})"

    def _again(self) -> None:
        if self.random.random() < 0.3:
            self.log.delete_topic(TOPIC)
            self.create()


def check(seed: int, directory: Path) -> Counter[str]:
    """Plays a history, loses the manifest, and rebuilds it without other files and with all. Returns what came of the
    files.
    """
    random = Random(seed)
    history = History(directory / "log", random)
    history.play(random.randint(1, 10), random.randint(0, 12))
    files = {info.path for info in history.log.storage.list(recursive=True)}
    known = read_recovery_copy(history.log.storage, TOPIC).snapshot
    there = {
        (row.partition, offset)
        for row in segments_of(known.live)
        if row.path in files
        for offset in range(row.base_offset, row.next_offset)
    }
    other = shutil.copytree(history.root, directory / "other")
    try:
        plain, report = rebuilt(history.root, [])
    except LogDirError as error:  # the last commit that is known deletes the topic
        assert "was deleted" in error.message and "again" in history.steps
        return Counter({"deleted": 1})
    _check_plain(history, plain, report, there)
    everything, report = rebuilt(other, [ALL])
    _check_all(history, everything, report)
    found = Counter({"histories": 1}, **Counter(one["status"] for one in report.later_files))
    found.update(one["reads"] for one in report.missing_files)
    found["returned"] += len(report.returned_files)
    found["exact"] += report.is_exact
    found["later version"] += report.known_version > report.copy_version
    return found


def rebuilt(root: Path, add: list[str]) -> tuple[Records, RebuildReport]:
    """(the records of the rebuilt log that can be read, the report)"""
    row_files._cache = row_files._RowCache(row_files.CACHE_BYTES)  # rows in memory would prove nothing
    report = rebuild_manifest(LogDir.open(str(root)), TOPIC, add=add)
    row_files._cache = row_files._RowCache(row_files.CACHE_BYTES)
    log = LogDir.open(str(root))
    wrong = [one for one in verify(log, TOPIC, deep=True).findings if "missing" not in one.message]
    assert not wrong, wrong
    lost = {one["path"] for one in report.missing_files if one["reads"] == "reads fail"}
    found: Records = {}
    bounds = {one["partition"]: one["log_start_offset"] for one in report.partitions}
    for row in segments_of(log.snapshot(TOPIC).live):
        first = max(row.base_offset, bounds[row.partition])
        if row.path in lost or first >= row.next_offset:
            continue
        for batch in log.read(TOPIC, row.partition, first, row.next_offset):
            columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
            for offset, value in zip(*columns, strict=True):
                assert (row.partition, offset) not in found
                found[row.partition, offset] = int(value)
    return found, report


def _unread(report: RebuildReport) -> set[Place]:
    """The places that the report says are gone."""
    missing = {
        (one["partition"], offset)
        for one in report.missing_files
        for offset in range(one["base_offset"], one["next_offset"])
    }
    return missing | {
        (one["partition"], offset)
        for one in report.partitions
        for offset in range(one["known_log_start_offset"], one["log_start_offset"])
    }


def _check_plain(history: History, found: Records, report: RebuildReport, there: set[Place]) -> None:
    """What was live at the last known version is there, but what the report says is gone; and nothing else."""
    if report.known_version == report.copy_version:
        then = history.at_copy
    elif report.known_version in history.at_version:
        then, there = history.at_version[report.known_version], set()
    else:  # in the middle of a step
        return
    assert found.items() <= then.items(), "records that were not there at the last known version"
    lost = then.keys() - found.keys()
    assert lost <= _unread(report), "records are gone, and the report does not say so"
    assert not lost & there, "records are gone whose file is there"
    if report.is_exact:
        assert found == then == history.at_loss


def _check_all(history: History, found: Records, report: RebuildReport) -> None:
    """With all files: nothing twice, nothing from before the copy, and, unless commits are lost that no file tells of,
    all that was live, with the newest record of each key.
    """
    values = set(found.values())
    assert len(values) == len(found), "a record is there twice"
    if report.known_version > report.copy_version:  # a restore may be among the commits that are known
        return
    assert values <= {*history.at_copy.values(), *history.appended_since}, "records from before the copy are back"
    unread = _unread(report)
    wrong = [place for place, number in history.at_copy.items() if found.get(place) not in (None, number)]
    later = set(history.steps[history.steps.index("copy") :])
    if "again" not in later:  # else segments of the new topic stand where files of the old are gone
        assert unread.issuperset(wrong), "another record at its offset"
    if not {"restore", "again"} & later:
        assert values >= set(history.at_loss.values()), "a live record is gone"
        newest, then = _newest(history, found), _newest(history, history.at_loss)
        assert {key: newest.get(key) for key in then} == then, "an old value came back as the newest"


def _newest(history: History, records: Records) -> dict[bytes, int]:
    """{key: number of its last record in the log}"""
    return {history.keys[number]: number for _, number in sorted(records.items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.log.rebuild.history", description=__doc__)
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
