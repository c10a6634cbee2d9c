"""Verify is silent on good logs and finds planted faults with their places; a repair mends sidecars, nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError, LogDirError, UnknownTopicError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.sidecars.index import OFFSET_ENTRY, TIME_ENTRY
from spark_segments.format.sidecars.txn_index import TXN_ENTRY, AbortedTransactions
from spark_segments.log.appending.appender import ProducerOptions
from spark_segments.log.manifest.rows import (
    Partition,
    Segment,
    partitions_of,
    partitions_table,
    segments_of,
    segments_table,
)
from spark_segments.log.manifest.snapshot import SegmentRows
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.verification.keys import KeysTask, verify_keys
from spark_segments.log.verification.repair import Rebuild, Rebuilder
from spark_segments.log.verification.verify import Finding, VerifyReport, verify
from spark_segments.maintenance import compact, retain, roll
from tests.golden_files import CLEAN_DIRECTORIES, GOLDEN, LEGACY_DIRECTORIES, damaged_dir, expected_records, golden_dir
from tests.log.golden_reads import as_records, records_of, tree

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 1_000_000


def rows(generator: random.Random, first_ms: int) -> pa.Table:
    """400 records with 50 keys and 10% tombstones."""
    return pa.table(
        {
            "key": [f"key{generator.randrange(50)}".encode() for _ in range(400)],
            "value": pa.array(
                [None if generator.random() < 0.1 else generator.randbytes(100) for _ in range(400)], pa.binary()
            ),
            "timestamp": pa.array([(first_ms + n * 10) * 1000 for n in range(400)], pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """`orders` with sealed segments and chunks, `latest` compacted, `txn` and `multiappend` imported from Kafka."""
    directory = tmp_path_factory.mktemp("verified") / "log"
    log = LogDir.create(str(directory))
    generator = random.Random(3)
    options = ProducerOptions(batch_bytes=1000)
    log.create_topic("orders", partitions=2, config={"segment.bytes": "32768", "retention.ms": "-1"})
    compacted = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
    log.create_topic("latest", config={**compacted, "compression.type": "uncompressed"})
    for number in range(4):
        for topic in ("orders", "latest"):
            log.append(topic, rows(generator, NOW_MS + number * 10_000), options=options)
    roll(log, now_ms=LATER_MS)
    compact(log, topic="latest", now_ms=LATER_MS)
    log.append("orders", rows(generator, NOW_MS + 60_000), options=options)
    log.import_kafka(str(golden_dir("txn-0")))
    log.import_kafka(str(golden_dir("multiappend-0")))
    return directory


@pytest.fixture
def directory(built, tmp_path) -> Path:
    copy = tmp_path / "log"
    shutil.copytree(built, copy)
    return copy


@pytest.fixture
def log(directory) -> LogDir:
    return LogDir.open(str(directory))


def segment(log: LogDir, topic: str, number: int = 0) -> Segment:
    """A live segment of partition 0 that has records."""
    return [row for row in log.snapshot(topic).live_of(0) if row.log_bytes][number]


def batches_of(path: Path) -> BatchTable:
    return scan_batches(path.read_bytes(), check_crc=False).batches


def overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def reseal(path: Path, position: int) -> None:
    """Gives a batch the CRC of what it holds now: a fault that no checksum shows."""
    content = bytearray(path.read_bytes())
    end = position + 12 + struct.unpack_from(">i", content, position + 8)[0]
    struct.pack_into(">I", content, position + 17, crc32c.crc32c(bytes(content[position + 21 : end])))
    path.write_bytes(content)


# Faults in files: each gives (path, position or None) of the finding that must be there.

Place = tuple[str, int | None]
FileFault = Callable[[LogDir, Path], Place]
FILE_FAULTS: dict[str, tuple[FileFault, bool]] = {}


def file_fault(name: str, *, deep: bool = True) -> Callable[[FileFault], FileFault]:
    """Registers a fault that the quick look finds too, or, `deep`, the deep one only."""

    def register(fault: FileFault) -> FileFault:
        FILE_FAULTS[name] = (fault, deep)
        return fault

    return register


def third_batch(log: LogDir, directory: Path, topic: str) -> tuple[Segment, Path, int]:
    row = segment(log, topic)
    path = directory / row.path
    return row, path, int(batches_of(path).position[2])


@file_fault("a bit of a record")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 100, bytes([path.read_bytes()[position + 100] ^ 4]))
    return row.path, position


@file_fault("a bit of a CRC")
def _(log, directory):
    row, path, position = third_batch(log, directory, "txn")
    overwrite(path, position + 18, bytes([path.read_bytes()[position + 18] ^ 1]))
    return row.path, position


@file_fault("a magic byte")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 16, b"\x03")
    return row.path, position


@file_fault("a batch's length")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 8, struct.pack(">i", 2**30))
    return row.path, position


@file_fault("a base offset, which no CRC covers")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position, struct.pack(">q", 0))
    return row.path, position


@file_fault("a base offset beyond the segment's row")
def _(log, directory):
    row = segment(log, "orders")
    path = directory / row.path
    position = int(batches_of(path).position[-1])
    overwrite(path, position, struct.pack(">q", 10**6))
    return row.path, position


@file_fault("a leader epoch, which no CRC covers")
def _(log, directory):
    row, path, position = third_batch(log, directory, "multiappend")
    overwrite(path, position + 12, struct.pack(">i", 1))
    return row.path, position


@file_fault("a leader epoch below none")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 12, struct.pack(">i", -7))
    return row.path, position


@file_fault("a base offset that is far too high")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position, struct.pack(">q", 2**61))
    return row.path, position


@file_fault("zeros at the end of a log")
def _(log, directory):
    row = segment(log, "orders")
    path = directory / row.path
    position = int(batches_of(path).position[-1])
    overwrite(path, position, bytes(row.log_bytes - position))
    return row.path, position


@file_fault("a record count that is too high, with a good CRC")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    count = int(batches_of(path).count[2])
    overwrite(path, position + 23, struct.pack(">i", count))  # lastOffsetDelta, or the count could not be
    overwrite(path, position + 57, struct.pack(">i", count + 1))
    reseal(path, position)
    return row.path, position


@file_fault("a compressed batch that does not decompress, with a good CRC")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 61, b"\xff" * 20)
    reseal(path, position)
    return row.path, position


@file_fault("a largest timestamp that is too low, with a good CRC")
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    overwrite(path, position + 35, struct.pack(">q", int(batches_of(path).max_timestamp[2]) - 5))
    reseal(path, position)
    return row.path, position


@file_fault("a key that is twice in a clean tail, with good CRCs")
def _(log, directory):
    sealed = [row for row in log.snapshot("latest").live_of(0) if row.log_bytes and row.state == "sealed"]
    path = directory / sealed[0].path
    content = path.read_bytes()
    first = re.search(rb"key\d\d", content)
    newer = re.findall(rb"key\d\d", (directory / sealed[-1].path).read_bytes())[-1]
    assert first[0] != newer
    batches = batches_of(path)
    position = int(batches.position[batches.position < first.start()][-1])
    overwrite(path, first.start(), newer)
    reseal(path, position)
    return sealed[0].path, position


@file_fault("a log cut inside a batch", deep=False)
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    path.write_bytes(path.read_bytes()[: position + 70])
    return row.path, position + 70


@file_fault("a log cut between batches", deep=False)
def _(log, directory):
    row, path, position = third_batch(log, directory, "orders")
    path.write_bytes(path.read_bytes()[:position])
    return row.path, position


@file_fault("bytes after a log's end", deep=False)
def _(log, directory):
    row = segment(log, "orders", -1)
    with open(directory / row.path, "ab") as file:
        file.write(b"more")
    return row.path, row.log_bytes


@file_fault("a missing log", deep=False)
def _(log, directory):
    row = segment(log, "txn", 2)
    (directory / row.path).unlink()
    return row.path, None


@file_fault("two logs in each other's place", deep=False)
def _(log, directory):
    one, other = segment(log, "txn", 1), segment(log, "txn", 3)
    contents = [(directory / row.path).read_bytes() for row in (one, other)]
    (directory / one.path).write_bytes(contents[1])
    (directory / other.path).write_bytes(contents[0])
    return one.path, None


@file_fault("two batches in each other's place")
def _(log, directory):
    row = segment(log, "txn")
    path = directory / row.path
    batches, content = batches_of(path), path.read_bytes()
    a, b, c = (int(position) for position in batches.position[2:5])
    overwrite(path, a, content[b:c] + content[a:b])
    return row.path, a + c - b


@file_fault("a missing offset index", deep=False)
def _(log, directory):
    row = segment(log, "orders")
    (directory / row.index_path).unlink()
    return row.index_path, None


@file_fault("a missing time index", deep=False)
def _(log, directory):
    row = segment(log, "orders")
    (directory / row.time_index_path).unlink()
    return row.time_index_path, None


@file_fault("a missing transaction index", deep=False)
def _(log, directory):
    row = segment(log, "txn")
    (directory / row.txn_index_path).unlink()
    return row.txn_index_path, None


@file_fault("an offset index that is cut", deep=False)
def _(log, directory):
    row = segment(log, "orders")
    path = directory / row.index_path
    path.write_bytes(path.read_bytes()[:-3])
    return row.index_path, row.index_bytes - 3


@file_fault("a time index with an entry too many", deep=False)
def _(log, directory):
    row = segment(log, "orders")
    with open(directory / row.time_index_path, "ab") as file:
        file.write(bytes(12))
    return row.time_index_path, row.time_index_bytes


@file_fault("a transaction index that no row knows of", deep=False)
def _(log, directory):
    row = segment(log, "orders")
    (directory / row.txn_index_path).write_bytes(bytes(34))
    return row.txn_index_path, 0


@file_fault("a position in an offset index")
def _(log, directory):
    row = segment(log, "multiappend")
    overwrite(directory / row.index_path, 2 * OFFSET_ENTRY.itemsize + 7, b"\x01")
    return row.index_path, 2 * OFFSET_ENTRY.itemsize


@file_fault("an offset in an offset index")
def _(log, directory):
    row = segment(log, "multiappend")
    path = directory / row.index_path
    next_offset = struct.unpack_from(">i", path.read_bytes(), 3 * OFFSET_ENTRY.itemsize)[0]
    overwrite(path, 2 * OFFSET_ENTRY.itemsize, struct.pack(">i", next_offset - 1))
    return row.index_path, 2 * OFFSET_ENTRY.itemsize


@file_fault("entries of an offset index in the wrong order")
def _(log, directory):
    row = segment(log, "txn")
    path = directory / row.index_path
    content = path.read_bytes()
    path.write_bytes(content[8:16] + content[:8] + content[16:])
    return row.index_path, 8


@file_fault("an offset index of zeros")
def _(log, directory):
    row = segment(log, "orders")
    (directory / row.index_path).write_bytes(bytes(row.index_bytes))
    return row.index_path, None


@file_fault("an offset index without its last entry")
def _(log, directory):
    row = next(row for row in log.snapshot("orders").live_of(0) if row.index_bytes > 8)
    overwrite(directory / row.index_path, row.index_bytes - 8, bytes(8))
    return row.index_path, None


@file_fault("a time in a time index that is too low")
def _(log, directory):
    row = segment(log, "txn")
    path = directory / row.time_index_path
    timestamp = struct.unpack_from(">q", path.read_bytes(), 2 * TIME_ENTRY.itemsize)[0]
    overwrite(path, 2 * TIME_ENTRY.itemsize, struct.pack(">q", timestamp - 1))
    return row.time_index_path, 2 * TIME_ENTRY.itemsize


@file_fault("a time in a time index that is too high")
def _(log, directory):
    row = segment(log, "txn")
    path = directory / row.time_index_path
    position = row.time_index_bytes - TIME_ENTRY.itemsize
    timestamp = struct.unpack_from(">q", path.read_bytes(), position)[0]
    overwrite(path, position, struct.pack(">q", timestamp + 1))
    return row.time_index_path, position


@file_fault("an offset in a time index")
def _(log, directory):
    row = segment(log, "txn")
    path = directory / row.time_index_path
    offset = struct.unpack_from(">i", path.read_bytes(), TIME_ENTRY.itemsize + 8)[0]
    overwrite(path, TIME_ENTRY.itemsize + 8, struct.pack(">i", offset + 7))
    return row.time_index_path, TIME_ENTRY.itemsize


@file_fault("a time index of zeros")
def _(log, directory):
    row = segment(log, "txn")
    (directory / row.time_index_path).write_bytes(bytes(row.time_index_bytes))
    return row.time_index_path, None


@file_fault("two offset indexes of one size in each other's place")
def _(log, directory):
    one, other = segment(log, "txn", 1), segment(log, "txn", 3)
    assert one.index_bytes == other.index_bytes
    contents = [(directory / row.index_path).read_bytes() for row in (one, other)]
    (directory / one.index_path).write_bytes(contents[1])
    (directory / other.index_path).write_bytes(contents[0])
    return one.index_path, None


def txn_entry(log: LogDir, directory: Path, field: str, value: int) -> Place:
    row = segment(log, "txn", 1)
    overwrite(directory / row.txn_index_path, TXN_ENTRY.itemsize + TXN_ENTRY.fields[field][1], struct.pack(">q", value))
    return row.txn_index_path, TXN_ENTRY.itemsize


@file_fault("a producer in a transaction index")
def _(log, directory):
    return txn_entry(log, directory, "producer_id", 4711)


@file_fault("a first offset in a transaction index that is too late")
def _(log, directory):
    path = directory / segment(log, "txn", 1).txn_index_path
    entry = struct.unpack_from(">hqqqq", path.read_bytes(), TXN_ENTRY.itemsize)
    return txn_entry(log, directory, "first_offset", entry[2] + 1)


@file_fault("a last stable offset in a transaction index that is too late")
def _(log, directory):
    return txn_entry(log, directory, "last_stable_offset", 10**9)


@file_fault("a transaction index that hides a committed transaction")
def _(log, directory):
    row = segment(log, "txn", 1)
    path = directory / row.txn_index_path
    commit = next(
        line for line in expected_records("txn-0") if line.get("controlType") == "COMMIT" and line["offset"] > 900
    )
    content = path.read_bytes()
    entry = struct.pack(">hqqqq", 0, commit["producerId"], 0, commit["offset"], 0)
    path.write_bytes(b"".join(sorted([content[:34], entry, content[68:]], key=lambda one: one[18:26])))
    return row.txn_index_path, None


@file_fault("a version in a transaction index")
def _(log, directory):
    row = segment(log, "txn", 1)
    overwrite(directory / row.txn_index_path, 0, b"\x00\x09")
    return row.txn_index_path, 0


@file_fault("a manifest whose files are gone", deep=False)
def _(log, directory):
    for file in (directory / "_manifest" / "orders").rglob("*.parquet"):
        file.unlink()
    return "_manifest/orders", None


@file_fault("a manifest without a log", deep=False)
def _(log, directory):
    for file in (directory / "_manifest" / "txn" / "_delta_log").iterdir():
        if file.is_file():
            file.write_bytes(b"{")
    return "_manifest/txn", None


def has(report: VerifyReport, place: Place) -> bool:
    path, position = place
    return any(
        finding.path == path and (position is None or finding.position == position) for finding in report.findings
    )


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_in_a_file_is_found_with_its_place(name, directory):
    fault, deep = FILE_FAULTS[name]
    place = fault(LogDir.open(str(directory)), directory)
    before = tree(directory)
    log = LogDir.open(str(directory))
    report = verify(log, deep=True)
    assert has(report, place), [str(finding) for finding in report.findings]
    assert has(verify(log), place) != deep
    assert tree(directory) == before


# Faults in rows: each gives (path or None, partition) of the finding that must be there.

RowFault = Callable[[list[Segment], list[Partition]], tuple[str | None, int | None]]
ROW_FAULTS: dict[str, tuple[str, RowFault, bool]] = {}


def row_fault(name: str, topic: str = "orders", *, deep: bool = False) -> Callable[[RowFault], RowFault]:
    def register(fault: RowFault) -> RowFault:
        ROW_FAULTS[name] = (topic, fault, deep)
        return fault

    return register


def change(live: list, number: int, **values) -> None:
    live[number] = dataclasses.replace(live[number], **values)


def figure(name: str, by: int) -> None:
    @row_fault(f"{name} of a row", deep=True)
    def _(live, partitions):
        change(live, 1, **{name: getattr(live[1], name) + by})
        return live[1].path, 0


figure("records", 1)
figure("batches", -1)
figure("max_timestamp_ms", 1)
figure("offset_of_max_timestamp", -1)
figure("first_batch_max_timestamp_ms", -1)
figure("tombstones", 1)


@row_fault("a delete horizon that no batch has", deep=True)
def _(live, partitions):
    change(live, 0, delete_horizon_ms=NOW_MS)
    return live[0].path, 0


@row_fault("a delete horizon that is passed over", "latest", deep=True)
def _(live, partitions):
    number = next(n for n, row in enumerate(live) if row.delete_horizon_ms is not None)
    change(live, number, delete_horizon_ms=None)
    return live[number].path, 0


@row_fault("the size of a log")
def _(live, partitions):
    change(live, 0, log_bytes=live[0].log_bytes - 100)
    return live[0].path, 0


@row_fault("the size of an index")
def _(live, partitions):
    change(live, 0, index_bytes=live[0].index_bytes - 8)
    return live[0].index_path, 0


@row_fault("a segment that overlaps the one before")
def _(live, partitions):
    change(live, 1, base_offset=live[1].base_offset - 1)
    return live[1].path, 0


@row_fault("a segment that is not named")
def _(live, partitions):
    del live[1]
    return live[1].path, 0


@row_fault("a first segment that is not named")
def _(live, partitions):
    del live[0]
    return live[0].path, 0


@row_fault("a last segment that is not named")
def _(live, partitions):
    last = max(number for number, row in enumerate(live) if row.partition == 0)
    del live[last]
    return live[last - 1].path, 0


@row_fault("a partition without its segments")
def _(live, partitions):
    live[:] = [row for row in live if row.partition != 1]
    return None, 1


@row_fault("segments of a partition that is not there")
def _(live, partitions):
    del partitions[1]
    return None, 1


@row_fault("a partition number that is left out")
def _(live, partitions):
    change(partitions, 1, partition=2)
    return None, None


@row_fault("a path of another partition")
def _(live, partitions):
    path = next(row.path for row in live if row.partition == 1)
    change(live, 0, path=path)
    return path, 0


@row_fault("a path that leads out of the log directory")
def _(live, partitions):
    change(live, 0, path="../../etc/00000000000000000000.log")
    return live[0].path, 0


@row_fault("a path whose name is none")
def _(live, partitions):
    change(live, 0, path="orders-0/records.log")
    return live[0].path, 0


@row_fault("a file base offset below its file's name", "txn")
def _(live, partitions):
    change(live, 1, file_base_offset=3)
    return live[1].path, 0


@row_fault("a segment moved in the log", deep=True)
def _(live, partitions):
    change(live, 0, file_base_offset=7)
    return live[0].path, 0


@row_fault("a state that there is none of")
def _(live, partitions):
    change(live, 0, state="open")
    return live[0].path, 0


@row_fault("a removed row without its time")
def _(live, partitions):
    change(live, 0, state="removed")
    return live[0].path, 0


@row_fault("a sealed segment behind the active one")
def _(live, partitions):
    number = next(number for number, row in enumerate(live) if row.state == "chunk")
    change(live, 0, state="chunk")
    return live[min(1, number)].path, 0


@row_fault("a negative size")
def _(live, partitions):
    change(live, 0, records=-3)
    return live[0].path, 0


@row_fault("a log start behind the log end")
def _(live, partitions):
    change(partitions, 0, log_start_offset=10**6)
    return None, 0


@row_fault("a first dirty offset behind the log end")
def _(live, partitions):
    change(partitions, 1, first_dirty_offset=10**6)
    return None, 1


@row_fault("a last stable offset behind the log end")
def _(live, partitions):
    change(partitions, 1, last_stable_offset=10**6)
    return None, 1


@row_fault("a log end behind the last segment's")
def _(live, partitions):
    change(partitions, 1, log_end_offset=10**6)
    return max((row for row in live if row.partition == 1), key=lambda row: row.base_offset).path, 1


@row_fault("leader epochs that fall", "multiappend")
def _(live, partitions):
    change(partitions, 0, leader_epochs=((2, 0), (1, 700)), leader_epoch=1)
    return None, 0


@row_fault("a leader epoch that is not the last", "multiappend")
def _(live, partitions):
    change(partitions, 0, leader_epoch=9)
    return None, 0


@row_fault("leader epochs that are not those of the batches", "multiappend", deep=True)
def _(live, partitions):
    change(partitions, 0, leader_epochs=((1, 0), (2, 1200)))
    return live[0].path, 0


@row_fault("a producer snapshot that is damaged", "txn")
def _(live, partitions):
    change(partitions, 0, producer_snapshot=partitions[0].producer_snapshot[:-1])
    return None, 0


@pytest.mark.parametrize("name", ROW_FAULTS)
def test_a_row_that_lies_is_found(name, log, monkeypatch):
    topic, fault, deep = ROW_FAULTS[name]
    snapshot = log.snapshot(topic)
    segments, partitions = segments_of(snapshot.live), partitions_of(snapshot.partitions)
    path, partition = fault(segments, partitions)
    lying = dataclasses.replace(
        snapshot, partitions=partitions_table(partitions), source=SegmentRows(segments_table(segments))
    )
    monkeypatch.setattr(log, "snapshot", lambda topic: lying)

    def found(report: VerifyReport) -> list[Finding]:
        return [one for one in report.findings if one.partition == partition and (path is None or one.path == path)]

    assert found(verify(log, topic, deep=True)), name
    assert bool(found(verify(log, topic))) != deep


def test_there_are_many_faults():
    assert len(FILE_FAULTS) + len(ROW_FAULTS) >= 70


def test_a_configuration_that_is_not_valid_is_found(log, monkeypatch):
    lying = dataclasses.replace(log.snapshot("orders"), config={"segment.bytes": "-1"})
    monkeypatch.setattr(log, "snapshot", lambda topic: lying)
    assert any("configuration" in finding.message for finding in verify(log, "orders").findings)


def test_a_good_log_directory_has_no_findings(log, directory):
    before = tree(directory)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]
    assert verify(log).ok
    assert report.topics == ["latest", "multiappend", "orders", "txn"]
    assert report.bytes_read == sum(path.stat().st_size for path in _live_logs(log, directory))
    assert tree(directory) == before


def _live_logs(log: LogDir, directory: Path) -> list[Path]:
    return [directory / path for topic in log.topics() for path in log.snapshot(topic).live.column("path").to_pylist()]


def test_a_log_that_jobs_have_been_over_has_no_findings(log):
    log.delete_records("orders", {0: 300})
    log.alter_topic("orders", {"index.interval.bytes": "1000"}, partitions=3)
    log.append("orders", rows(random.Random(5), NOW_MS + 90_000), options=ProducerOptions(batch_bytes=700))
    log.alter_topic("orders", {"index.interval.bytes": "20000"})
    roll(log, topic="orders", now_ms=LATER_MS)
    retain(log, topic="orders", now_ms=LATER_MS)
    log.append("latest", rows(random.Random(6), NOW_MS + 90_000), options=ProducerOptions(batch_bytes=700))
    roll(log, topic="latest", now_ms=LATER_MS + 8 * 86_400_000)
    compact(log, topic="latest", now_ms=LATER_MS + 8 * 86_400_000)
    log.create_topic("empty", partitions=2)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize("before", [{}, {"segment.index.bytes": "96"}, {"index.interval.bytes": "0"}])
@pytest.mark.parametrize(
    "after",
    [
        {"segment.index.bytes": "60"},
        {"segment.index.bytes": "1048576"},
        {"index.interval.bytes": "0"},
        {"index.interval.bytes": "100000"},
        {"index.interval.bytes": "1000", "segment.index.bytes": "36"},
    ],
    ids=str,
)
def test_indexes_that_were_right_when_they_were_written_are_right(tmp_path, before, after):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.bytes": "32768", **before})
    for number in range(3):
        data = rows(random.Random(number), NOW_MS + number * 10_000)
        log.append("orders", data, options=ProducerOptions(batch_bytes=700))
    roll(log, now_ms=NOW_MS)
    # A chunk of few bytes has no entry at all.
    log.append("orders", rows(random.Random(4), NOW_MS + 90_000).slice(0, 20), options=ProducerOptions(batch_bytes=300))
    assert verify(log, deep=True).ok
    log.alter_topic("orders", after)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize(
    "name", [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES, "live-0", "broker-data", "tiered/kafka-tiered-storage"]
)
def test_directories_of_kafka_have_no_findings(name):
    log = LogDir.open(str(GOLDEN / name))
    for deep in (False, True):
        report = verify(log, deep=deep)
        assert report.ok, [str(finding) for finding in report.findings]


KAFKA_FAULTS: dict[str, tuple[Callable[[Path], Place], bool]] = {
    "a bit of a record": (lambda path: _flip(path / "00000000000000000649.log", 3000), True),
    "an entry of an offset index": (lambda path: _flip(path / "00000000000000000649.index", 15), True),
    "an entry of a time index": (lambda path: _flip(path / "00000000000000000649.timeindex", 7), True),
    "an entry of a transaction index": (lambda path: _flip(path / "00000000000000000649.txnindex", 9), True),
    "a cut transaction index": (lambda path: _cut(path / "00000000000000000649.txnindex", 50), False),
    "a cut offset index": (lambda path: _cut(path / "00000000000000000649.index", 13), False),
    "a missing time index": (lambda path: _remove(path / "00000000000000000649.timeindex"), False),
    "a missing transaction index": (lambda path: _remove(path / "00000000000000000649.txnindex"), True),
    "an index without a log": (lambda path: _copy(path, "00000000000000000000.index", f"{9:020d}.index"), False),
    "a producer snapshot": (lambda path: _flip(path / "00000000000000003168.snapshot", 20), False),
    "leader epochs": (lambda path: _flip(path / "leader-epoch-checkpoint", 2), False),
    "partition.metadata": (lambda path: _flip(path / "partition.metadata", 3), False),
    "a leftover of the cleaner": (
        lambda path: _copy(path, "00000000000000000649.log", "00000000000000000649.log.deleted"),
        False,
    ),
    "a torn end": (lambda path: _cut(path / "00000000000000003156.log", 650), True),
}


def _flip(path: Path, position: int) -> Place:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x40]))
    return path.name, None


def _cut(path: Path, size: int) -> Place:
    path.write_bytes(path.read_bytes()[:size])
    return path.name, None


def _remove(path: Path) -> Place:
    path.unlink()
    return path.name, None


def _copy(directory: Path, name: str, copy: str) -> Place:
    shutil.copy(directory / name, directory / copy)
    return copy, None


@pytest.mark.parametrize("name", KAFKA_FAULTS)
def test_a_fault_in_a_directory_of_kafka_is_found(name, tmp_path):
    fault, deep = KAFKA_FAULTS[name]
    copy = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), copy)
    place = fault(copy)
    before = tree(copy)
    log = LogDir.open(str(copy))
    report = verify(log, deep=True)
    assert has(report, place), [str(finding) for finding in report.findings]
    assert has(verify(log), place) != deep
    assert tree(copy) == before


def test_a_checkpoint_of_kafkas_log_directory_that_does_not_parse_is_found(tmp_path):
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / "orders-0")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\nmany\n")
    assert has(verify(LogDir.open(str(tmp_path))), ("recovery-point-offset-checkpoint", 2))


def test_damage_that_kafka_would_cut_is_an_error_with_what_is_lost(tmp_path):
    report = verify(LogDir.open(str(damaged_dir("flipped-byte", tmp_path))), deep=True)
    [finding] = report.findings
    assert (finding.severity, finding.path, finding.position) == ("error", "00000000000000002773.log", 31654)
    assert "3 later segments" in str(finding)
    assert report.errors == 1


SIDECAR_FAULTS = [
    "a missing offset index",
    "a missing time index",
    "a missing transaction index",
    "an offset index that is cut",
    "a time index with an entry too many",
    "a position in an offset index",
    "entries of an offset index in the wrong order",
    "an offset index of zeros",
    "a time in a time index that is too low",
    "a time index of zeros",
    "two offset indexes of one size in each other's place",
    "a producer in a transaction index",
    "a last stable offset in a transaction index that is too late",
    "a transaction index that hides a committed transaction",
]


def everything(log: LogDir, topic: str) -> tuple[list, list]:
    levels = ("read_uncommitted", "read_committed")
    return tuple(records_of(log.read(topic, isolation_level=level)) for level in levels)


@pytest.mark.parametrize("name", SIDECAR_FAULTS)
def test_a_repair_builds_sidecars_anew_under_new_names(name, directory, built):
    path, _ = FILE_FAULTS[name][0](LogDir.open(str(directory)), directory)
    topic = path.partition("-")[0]
    logs = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.rglob("*.log")}
    before = tree(directory)
    log = LogDir.open(str(directory))
    report = verify(log, repair=True)
    assert report.repaired, [str(finding) for finding in report.findings]
    assert verify(log, deep=True).ok
    assert everything(log, topic) == everything(LogDir.open(str(built)), topic)
    new = {file for file in directory.rglob("*.log") if file not in logs}
    assert {hashlib.sha256(file.read_bytes()).hexdigest() for file in new} <= set(logs.values())
    assert {str(file.relative_to(directory)) for file in new} == {one["new_path"] for one in report.repaired}
    after = tree(directory)
    assert {file: after[file] for file in before if "." in Path(file).name and "_manifest" not in file} == {
        file: seen for file, seen in before.items() if "." in Path(file).name and "_manifest" not in file
    }


def test_a_repair_leaves_a_damaged_log_alone(directory):
    path, position = FILE_FAULTS["a bit of a record"][0](LogDir.open(str(directory)), directory)
    (directory / path.replace(".log", ".index")).unlink()
    log = LogDir.open(str(directory))
    before = log.snapshot("orders").version
    report = verify(log, "orders", repair=True)
    assert report.repaired == []
    assert has(report, (path, position))
    assert log.snapshot("orders").version == before


def test_a_rebuild_of_a_log_that_turns_out_damaged_leaves_no_file(directory):
    """The .log was good when it was looked at."""
    log = LogDir.open(str(directory))
    path, _ = FILE_FAULTS["a bit of a record"][0](log, directory)
    [damaged] = [row for number in range(2) for row in log.snapshot("orders").live_of(number) if row.path == path]
    before = set(directory.rglob("*"))
    with pytest.raises(CorruptBatchError):
        Rebuilder(log.storage)(
            Rebuild("orders", damaged, AbortedTransactions.of(), SegmentLimits(1 << 30, 4096, 10 << 20))
        )
    assert set(directory.rglob("*")) == before


def test_the_time_0_is_no_tail_of_zeros(log):
    """A time index whose only entry is (0, 0) is 12 bytes of zeros."""
    log.create_topic("epoch")
    log.append("epoch", pa.table({"value": [b"a"], "timestamp": pa.array([0], pa.timestamp("us", tz="UTC"))}))
    [row] = log.snapshot("epoch").live_of(0)
    assert log.storage.read(row.time_index_path).to_pybytes() == bytes(12)
    assert verify(log, deep=True).ok


def test_a_second_repair_finds_nothing_to_do(log, directory):
    (directory / segment(log, "orders").index_path).unlink()
    assert len(verify(log, repair=True).repaired) == 1
    version = log.snapshot("orders").version
    assert verify(log, repair=True).repaired == []
    assert log.snapshot("orders").version == version


def test_a_directory_of_kafka_is_not_repaired():
    with pytest.raises(LogDirError, match="read-only"):
        verify(LogDir.open(str(golden_dir("plain-0"))), repair=True)


def test_an_unknown_topic_is_an_error_and_no_finding(log):
    with pytest.raises(UnknownTopicError):
        verify(log, "order")
    with pytest.raises(UnknownTopicError):
        verify(LogDir.open(str(golden_dir("plain-0"))), "order")


def test_a_deleted_topic_is_not_looked_at(log):
    log.delete_topic("txn")
    report = verify(log, deep=True)
    assert report.ok
    assert "txn" not in report.topics


def test_the_report_has_plain_values(log, directory):
    (directory / segment(log, "orders").index_path).unlink()
    said = verify(log, deep=True).to_dict()
    [finding] = said["findings"]
    assert (said["job"], said["ok"], said["errors"], said["deep"]) == ("verify", False, 1, True)
    assert finding == {
        "severity": "error",
        "topic": "orders",
        "partition": 0,
        "path": segment(log, "orders").index_path,
        "position": None,
        "expected": f"{segment(log, 'orders').index_bytes} bytes",
        "found": "no file",
        "message": "A segment's .index is missing",
    }


def test_findings_of_one_kind_are_kept_up_to_a_number(log, monkeypatch):
    snapshot = log.snapshot("txn")
    batches = sum(row.batches for row in snapshot.live_of(0))
    lying = dataclasses.replace(
        snapshot,
        partitions=partitions_table(
            [dataclasses.replace(partitions_of(snapshot.partitions)[0], leader_epochs=((7, 0),), leader_epoch=7)]
        ),
    )
    monkeypatch.setattr(log, "snapshot", lambda topic: lying)
    report = verify(log, "txn", deep=True)
    assert len(report.findings) == 20 * 5 + 5  # 20 a segment, all of the last one's
    assert len(report.findings) + report.left_out == batches


def test_keys_of_more_than_one_map_are_looked_at_in_parts():
    log = LogDir.open(str(golden_dir("bigcompact-zstd/clean-1/bigcompact-0")))
    snapshot = log.snapshot("bigcompact")
    row, live = snapshot.partition(0), tuple(snapshot.live_of(0))
    assert (row.log_start_offset, row.first_dirty_offset) == (0, 41633)
    task = KeysTask("bigcompact", 0, live, 0, row.first_dirty_offset, AbortedTransactions.of(), map_bytes=24 * 300)
    assert verify_keys(log.storage, task) == []
    found = verify_keys(log.storage, dataclasses.replace(task, end_offset=row.log_end_offset, map_bytes=1 << 20))
    assert found
    keys = {record[1]: record[4] for record in as_records(expected_records("bigcompact-zstd/clean-1/bigcompact-0"))}
    for finding in found:
        offset, latest = map(int, finding.found.removeprefix("offset ").split(", and again "))
        assert keys[offset] == keys[latest]
