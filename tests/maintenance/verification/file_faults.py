"""Faults in files: each is planted, and gives (path, position or None) of the finding that must be there."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c

from spark_segments import LogDir
from spark_segments.format.sidecars.index import OFFSET_ENTRY, TIME_ENTRY
from spark_segments.format.sidecars.txn_index import TXN_ENTRY
from tests.maintenance.verification.topics import Place, overwrite, segment
from verification.world.kafka_bytes.golden_files import expected_records
from verification.world.kafka_bytes.segment_bytes import BatchTable, scan_batches
from verification.world.manifest_rows import Segment


def batches_of(path: Path) -> BatchTable:
    return scan_batches(path.read_bytes(), check_crc=False).batches


def reseal(path: Path, position: int) -> None:
    """Gives a batch the CRC of what it holds now: a fault that no checksum shows."""
    content = bytearray(path.read_bytes())
    end = position + 12 + struct.unpack_from(">i", content, position + 8)[0]
    struct.pack_into(">I", content, position + 17, crc32c.crc32c(bytes(content[position + 21 : end])))
    path.write_bytes(content)


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
    return row, path, int(batches_of(path).byte_position[2])


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
    position = int(batches_of(path).byte_position[-1])
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
    position = int(batches_of(path).byte_position[-1])
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
    sealed = [row for row in log.topic("latest").snapshot.live_of(0) if row.log_bytes and row.state == "sealed"]
    path = directory / sealed[0].path
    content = path.read_bytes()
    first = re.search(rb"key\d\d", content)
    newer = re.findall(rb"key\d\d", (directory / sealed[-1].path).read_bytes())[-1]
    assert first[0] != newer
    batches = batches_of(path)
    position = int(batches.byte_position[batches.byte_position < first.start()][-1])
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
    a, b, c = (int(position) for position in batches.byte_position[2:5])
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
    row = next(row for row in log.topic("orders").snapshot.live_of(0) if row.index_bytes > 8)
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
