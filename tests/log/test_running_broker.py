"""Imports of a directory that a running broker changes, and the holes of topics."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.kafka.directory import KafkaDirectory, committed_directory
from spark_segments.kafka.jobs import import_all
from spark_segments.log.manifest.state.states import Hole
from spark_segments.maintenance import Report, mirror, verify
from spark_segments.maintenance.verification.deep import MESSAGE
from spark_segments.spark.options import read_options
from spark_segments.spark.streams.data_loss import DataLoss
from spark_segments.spark.streams.stream_reader import StreamTopics
from spark_segments.storage import Storage
from tests.spark.test_offsets import read_by
from verification.simulation.broker.disk import ABORT, PlayedDisk, PlayedPartition
from verification.world.manifest_rows import Change
from verification.world.opened import LocalFiles
from verification.world.topics import offsets


class WatchedFiles(LocalFiles):
    """Local files. Something happens before the read of a file whose name ends so; the bytes of reads are counted."""

    def __init__(self, suffix: str, happens: Callable[[], None] = lambda: None, *, times: int = 1) -> None:
        super().__init__()
        self.suffix, self.happens, self.times = suffix, happens, times
        self.bytes_read: Counter[str] = Counter()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        if self.times and path.endswith(self.suffix):
            self.times -= 1
            self.happens()
        data = super().read(path, offset, length)
        self.bytes_read[path.rpartition("/")[2]] += data.size
        return data


@pytest.fixture
def disk(tmp_path: Path) -> PlayedDisk:
    return PlayedDisk(tmp_path / "kafka", random.Random(5))


def filled(partition: PlayedPartition, segments: int) -> PlayedPartition:
    """A partition with as many segments, all of whose records all replicas have."""
    for number in range(segments):
        if number:
            partition.roll()
        for _ in range(3):
            partition.append()
            partition.settle()
    return partition


def copied(disk: PlayedDisk, log: LogDir, topic: str, files: WatchedFiles | None = None) -> Report:
    storage = Storage(str(disk.root), filesystem=files)
    return import_all(committed_directory(storage), log, [topic])


def holes(log: LogDir, topic: str) -> list[tuple[int, int]]:
    return [(hole.start_offset, hole.end_offset) for hole in Hole.of(log.topic(topic).snapshot.states)]


def is_sound(log: LogDir) -> bool:
    return not verify(log, deep=True).errors


def test_a_segment_that_rolls_meanwhile_is_left_to_the_next_run(disk, log):
    partition = filled(disk.partitions["orders", 0], 1)
    end = partition.high_watermark
    partition.append()  # the high watermark lies within the last segment
    disk.write_checkpoints()

    def roll_and_go_on() -> None:
        partition.settle()
        partition.roll()
        partition.append()
        disk.settle()

    copied(disk, log, "orders", WatchedFiles(".log", roll_and_go_on))
    assert log.topic("orders").offsets()[0] == (0, end)
    copied(disk, log, "orders")
    assert offsets(log, "orders") == list(partition.history)
    assert holes(log, "orders") == [] and is_sound(log)


@pytest.mark.rule("K4")
def test_a_segment_that_was_cleaned_meanwhile_is_read_anew(disk, log):
    partition = filled(disk.partitions["prices", 0], 4)
    disk.write_checkpoints()

    def clean() -> None:
        partition.clean()
        partition.settle()

    done = copied(disk, log, "prices", WatchedFiles(".log", clean))
    there = {at for _, batches in partition.segments for batch in batches for at in batch.records}
    assert set(offsets(log, "prices")) == there < set(partition.history)
    assert done.failed == [] and is_sound(log)


def test_a_partition_that_changes_in_each_attempt_is_left_to_the_next_run(disk, log):
    partition = filled(disk.partitions["orders", 0], 3)
    disk.write_checkpoints()
    first = partition.directory / f"{0:020d}.log"

    def replace() -> None:
        Path(shutil.copy2(first, first.with_suffix(".copy"))).rename(first)

    done = copied(disk, log, "orders", WatchedFiles(f"orders-0/{first.name}", replace, times=1000))
    assert [line["partition"] for line in done.failed] == [0]
    assert copied(disk, log, "orders").failed == []
    assert offsets(log, "orders") == list(partition.history) and is_sound(log)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_transaction_that_is_aborted_meanwhile_is_open_or_aborted(disk, log, at):
    partition = filled(disk.partitions["payments", 0], 2)
    while not any(one.outcome is None for one in partition.transactions):
        partition.append()
        partition.settle()
    disk.write_checkpoints()
    reads = iter(range(1, 1000))

    def abort() -> None:
        if next(reads) != at:
            return
        while not any(one.outcome == ABORT for one in partition.transactions):
            partition.append()
            partition.settle()
            partition.end_transaction()
            partition.settle()
        disk.write_checkpoints()

    storage = Storage(str(disk.root), filesystem=WatchedFiles("", abort, times=1000))
    import_all(KafkaDirectory(storage), log, ["payments"])
    must, may = partition.readable(log.topic("payments").offsets()[0][1])
    assert must.keys() <= set(offsets(log, "payments", isolation="read_committed")) <= may.keys()
    assert is_sound(log)


def test_what_retention_took_before_it_was_copied_is_a_hole(disk, log):
    partition = filled(disk.partitions["orders", 0], 2)
    disk.write_checkpoints()
    copied(disk, log, "orders")
    end = partition.log_end_offset
    filled(partition, 3)
    partition.roll()
    while partition.log_start_offset <= end:
        partition.delete()
        partition.settle()
    disk.write_checkpoints()
    done = copied(disk, log, "orders")
    assert holes(log, "orders") == [(end, partition.log_start_offset)]
    noticed = done.details["holes"]
    assert noticed == [{"topic": "orders", **hole.to_dict()} for hole in Hole.of(log.topic("orders").snapshot.states)]
    assert noticed[0]["reason"] == Hole.REMOVED_BEFORE
    assert copied(disk, log, "orders").details["holes"] == []
    assert verify(log).details["holes"] == noticed and is_sound(log)


@pytest.fixture
def lacking(disk: PlayedDisk) -> tuple[PlayedDisk, tuple[int, int]]:
    """A disk on which a segment between others was lost, and the offsets that it had."""
    partition = filled(disk.partitions["orders", 0], 3)
    disk.settle()
    (_, _), (base, _), (end, _) = partition.segments
    for file in partition.directory.glob(f"{base:020d}.*"):
        file.unlink()
    return disk, (base, end)


def test_a_segment_that_is_missing_in_the_directory_is_a_hole(lacking, log):
    disk, hole = lacking
    log.import_kafka(str(disk.root))
    assert holes(log, "orders") == [hole]
    assert is_sound(log)


def test_verify_finds_offsets_that_nothing_explains(lacking, log):
    disk, (start, end) = lacking
    log.import_kafka(str(disk.root))
    forget = dataclasses.replace(log.topic("orders").snapshot.topic_row, states={})
    log.topic("orders").manifest.commit(lambda _: Change("import", topic=forget))
    [finding] = [one for one in verify(log, topics=["orders"], deep=True).findings if one.severity == "error"]
    assert finding.message == MESSAGE
    assert str(start) in str(finding.expected) and str(end) in str(finding.found)
    assert "segments import" in str(finding.found)


def test_reads_that_must_not_lose_data_stop_at_a_hole(lacking, log):
    disk, (start, end) = lacking
    log.import_kafka(str(disk.root))
    snapshots = {"orders": log.topic("orders").snapshot}
    given = {"path": log.uri, "assign": '{"orders": [0]}'}

    def ranges(**options: str) -> list[tuple[int, int]]:
        found = read_by(read_options(given | options), snapshots, lambda *_: {})
        return [(start, end) for _, _, start, end in found]

    with pytest.raises(OffsetOutOfRangeError, match=f"hole: offsets {start} to {end - 1}"):
        ranges()
    assert ranges(failOnDataLoss="false") == [log.topic("orders").offsets()[0]]
    assert ranges(startingOffsets=json.dumps({"orders": {"0": end}})) == [(end, log.topic("orders").offsets()[0][1])]
    state = StreamTopics(read_options(given)).states(snapshots)["orders", 0]
    DataLoss(True).passed_holes(("orders", 0), end, end + 1, state)
    DataLoss(False).passed_holes(("orders", 0), 0, end, state)
    with pytest.raises(OffsetOutOfRangeError, match="has a hole"):
        DataLoss(True).passed_holes(("orders", 0), 0, start + 1, state)


def test_a_follower_has_the_holes_of_its_leader(lacking, log, tmp_path):
    disk, hole = lacking
    log.import_kafka(str(disk.root))
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=log)
    assert holes(follower, "orders") == [hole]


def test_a_run_with_nothing_to_do_reads_no_segment(disk, log):
    filled(disk.partitions["orders", 0], 3)
    filled(disk.partitions["orders", 1], 1)
    disk.settle()
    copied(disk, log, "orders")
    version, files = log.topic("orders").snapshot.version, WatchedFiles("nothing")
    assert copied(disk, log, "orders", files).partitions[0]["segments"] == 0
    assert not [name for name in files.bytes_read if name.endswith(".log")]
    assert log.topic("orders").snapshot.version == version


def test_an_import_reads_each_byte_of_a_log_once(disk, log):
    partition = filled(disk.partitions["orders", 0], 4)
    files = WatchedFiles("nothing")
    import_all(
        KafkaDirectory(Storage(str(disk.root), filesystem=files)),
        log,
        ["orders"],
    )
    sizes = {path.name: path.stat().st_size for path in partition.directory.glob("*.log")}
    assert {name: size for name, size in files.bytes_read.items() if name.endswith(".log")} == sizes
    assert offsets(log, "orders") == list(partition.history) and is_sound(log)


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_copies_of_what_changed_meanwhile_are_deleted(disk, log, suffix):
    partition = filled(disk.partitions["prices", 0], 4)
    disk.write_checkpoints()

    def clean() -> None:
        partition.clean()
        partition.settle()

    for times in (1, 2, 3):
        copied(disk, log, "prices", WatchedFiles(suffix, clean, times=times))
        partition.append()
        disk.settle()
    named = {path for path in log.topic("prices").snapshot.segments.column("path").to_pylist()}
    assert {str(path.relative_to(log.uri)) for path in Path(log.uri).glob("prices-0/*.log")} == named
    assert is_sound(log)


def test_a_run_reads_only_segments_that_are_not_here(disk, log):
    partition = filled(disk.partitions["orders", 0], 4)
    disk.settle()
    copied(disk, log, "orders")
    before = [base for base, _ in partition.segments]
    partition.append()
    disk.settle()
    files = WatchedFiles("nothing")
    copied(disk, log, "orders", files)
    assert {name for name, size in files.bytes_read.items() if size and name.endswith(".log")} == {
        f"{before[-1]:020d}.log"
    }
    assert offsets(log, "orders") == list(partition.history) and is_sound(log)
