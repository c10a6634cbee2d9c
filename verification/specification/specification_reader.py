"""A reader of log directories, written from docs/format alone: plain, slow, and importing nothing of the package.

It reads directories that Kafka wrote (`KafkaPartition`) and log directories with a manifest (`ManagedLog`). The tests
hold it against Kafka's own files and against what the package wrote, so that the specification is known to be complete.
As a program it answers the requests of the conformance kit:
`python -m verification.specification.specification_reader`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

FORMAT_VERSION = 2
"""The `format.version` of a topic. That of a log directory is 1."""
ABORT = 0


class BadBatchError(Exception):
    """Bytes that are no good batch."""


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Batch:
    """A batch header, where it begins in the file, and its records section as it lies there."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    payload: bytes

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x10)


@dataclass(frozen=True)
class Aborted:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


# Record batches


def batches(data: bytes, start: int = 0) -> Iterator[Batch]:
    """The batches from position `start` on, each checked. BadBatchError at the first that is not good."""
    position = start
    while position < len(data):
        if len(data) - position < 17:
            raise BadBatchError(f"cut header at {position}")
        base_offset, length = struct.unpack_from(">qi", data, position)
        magic = data[position + 16]
        end = position + 12 + length
        if length < (49 if magic == 2 else 14) or end > len(data) or magic > 2:
            raise BadBatchError(f"no batch at {position}")
        if magic == 2:
            yield _batch(data, position, end, base_offset)
        else:
            yield _message_set_entry(data, position, end)
        position = end


def _batch(data: bytes, position: int, end: int, base_offset: int) -> Batch:
    epoch, magic, crc, attributes, last_delta, base_timestamp, max_timestamp, *producer, count = struct.unpack_from(
        ">ibIhiqqqhii", data, position + 12
    )
    if crc32c.crc32c(data[position + 21 : end]) != crc:
        raise BadBatchError(f"CRC-32C at {position}")
    payload = data[position + 61 : end]
    return Batch(
        position, end - position, magic, base_offset, base_offset + last_delta, epoch, attributes, base_timestamp,
        max_timestamp, *producer, count, payload,
    )  # fmt: skip


def records(batch: Batch) -> list[Record]:
    """The records of a batch, at the offsets of its file."""
    if batch.magic < 2:
        return list(_messages(batch))
    data, position, found = _decompress(batch.attributes & 7, batch.payload), 0, []
    timestamp_type = batch.attributes >> 3 & 1
    for _ in range(batch.count):
        length, position = _varint(data, position)
        end = position + length
        timestamp_delta, at = _varint(data, position + 1)
        offset_delta, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers, at = _headers(data, at)
        if at != end or end > len(data):
            raise BadBatchError(f"a record of the batch at {batch.position} has another length than it says")
        timestamp = batch.max_timestamp if timestamp_type else batch.base_timestamp + timestamp_delta
        found.append(Record(batch.base_offset + offset_delta, timestamp, timestamp_type, key, value, headers))
        position = end
    if position != len(data):
        raise BadBatchError(f"bytes after the last record of the batch at {batch.position}")
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    return (None, position) if length < 0 else (bytes(data[position : position + length]), position + length)


def _headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        value, position = _bytes(data, position)
        headers.append(((name or b"").decode(), value))
    return tuple(headers), position


def marker(batch: Batch) -> int | None:
    """The type of a control batch's first record, None where compaction emptied the batch."""
    found = records(batch)
    return struct.unpack(">hh", (found[0].key or b"")[:4])[1] if found else None


# Messages of magic 0 and 1


def _message(data: bytes, position: int) -> tuple[Any, ...]:
    """(offset, magic, attributes, timestamp, key, value, end)"""
    offset, size, crc, magic, attributes = struct.unpack_from(">qiIbb", data, position)
    end = position + 12 + size
    if zlib.crc32(data[position + 16 : end]) != crc:
        raise BadBatchError(f"CRC-32 at {position}")
    timestamp, at = (struct.unpack_from(">q", data, position + 18)[0], position + 26) if magic else (-1, position + 18)
    fields = []
    for _ in range(2):
        (length,) = struct.unpack_from(">i", data, at)
        fields.append(None if length < 0 else bytes(data[at + 4 : at + 4 + length]))
        at += 4 + max(length, 0)
    return offset, magic, attributes, timestamp, *fields, end


def _message_set_entry(data: bytes, position: int, end: int) -> Batch:
    offset, magic, attributes, timestamp, *_ = _message(data, position)
    entry = Batch(position, end - position, magic, offset, offset, -1, attributes, timestamp, timestamp, -1, -1, -1, 1,
                  bytes(data[position:end]))  # fmt: skip
    inside = list(_messages(entry))
    offsets = {"base_offset": inside[0].offset, "last_offset": inside[-1].offset, "count": len(inside)}
    return Batch(**{**entry.__dict__, **offsets})


def _messages(entry: Batch) -> Iterator[Record]:
    offset, magic, attributes, timestamp, key, value, _ = _message(entry.payload, 0)
    timestamp_type = attributes >> 3 & 1 if magic else -1
    if not attributes & 7:
        yield Record(offset, timestamp, timestamp_type, key, value, ())
        return
    data, position, inside = _decompress(attributes & 7, value), 0, []
    while position < len(data):
        *message, position = _message(data, position)
        inside.append(message)
    shift = offset - inside[-1][0] if magic and offset else 0
    for inner_offset, _, _, inner_timestamp, inner_key, inner_value in inside:
        at = timestamp if timestamp_type == 1 else inner_timestamp
        yield Record(inner_offset + shift, at, timestamp_type, inner_key, inner_value, ())


# Compression


def _decompress(codec: int, data: bytes) -> bytes:
    return [bytes, gzip.decompress, _snappy, _lz4, _zstd][codec](data)


def _zstd(data: bytes) -> bytes:
    most = max(256 << 20, 1100 * len(data))
    found = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(most + 1)
    if len(found) > most:
        raise BadBatchError(f"more than {most} bytes from {len(data)}")
    return found


def _snappy(data: bytes) -> bytes:
    if data[:8] != b"\x82SNAPPY\x00":
        return _raw_snappy(data)
    position, parts = 16, []
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        parts.append(_raw_snappy(data[position + 4 : position + 4 + length]))
        position += 4 + length
    return b"".join(parts)


def _raw_snappy(data: bytes) -> bytes:
    size = shift = position = 0
    while True:  # the decompressed size comes first, as a plain varint
        size |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if data[position - 1] < 0x80:
            return pa.Codec("snappy").decompress(data, size, asbytes=True)


def _lz4(data: bytes) -> bytes:
    """An LZ4 frame; its checksums are not looked at."""
    if data[:4] != b"\x04\x22\x4d\x18":
        raise BadBatchError("no LZ4 frame")
    flags = data[4]
    position, out = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0), bytearray()
    while True:
        (length,) = struct.unpack_from("<I", data, position)
        if length == 0:
            return bytes(out)
        position, size = position + 4, length & 0x7FFFFFFF
        block = data[position : position + size]
        out += block if length >> 31 else b""
        if not length >> 31:
            _lz4_block(block, out)
        position += size + (4 if flags & 0x10 else 0)


def _lz4_block(data: bytes, out: bytearray) -> None:
    position = 0
    while True:
        token = data[position]
        literals, position = _lz4_length(data, position + 1, token >> 4)
        out += data[position : position + literals]
        position += literals
        if position >= len(data):
            return
        distance = data[position] | data[position + 1] << 8
        length, position = _lz4_length(data, position + 2, token & 15)
        for _ in range(length + 4):
            out.append(out[-distance])


def _lz4_length(data: bytes, position: int, length: int) -> tuple[int, int]:
    byte = 255 if length == 15 else 0
    while byte == 255:
        byte, position = data[position], position + 1
        length += byte
    return length, position


# Sidecar files


def offset_index(data: bytes) -> list[tuple[int, int]]:
    """(relative offset, position) of an .index, without the zeros at its end."""
    return _without_zeros([struct.unpack_from(">ii", data, at) for at in range(0, len(data) // 8 * 8, 8)])


def time_index(data: bytes) -> list[tuple[int, int]]:
    """(timestamp, relative offset) of a .timeindex, without the zeros at its end."""
    return _without_zeros([struct.unpack_from(">qi", data, at) for at in range(0, len(data) // 12 * 12, 12)])


def _without_zeros(entries: list[Any]) -> list[tuple[int, int]]:
    while entries and not any(entries[-1]):
        entries.pop()
    return entries


def transaction_index(data: bytes, shift: int = 0) -> list[Aborted]:
    """The entries of a .txnindex, at the offsets of the log."""
    found = []
    for version, producer_id, *offsets in struct.iter_unpack(">hqqqq", data):
        if version != 0:
            raise BadBatchError(f"version {version} of a .txnindex entry")
        found.append(Aborted(producer_id, *(offset + shift for offset in offsets)))
    return found


def producer_snapshot(data: bytes) -> dict[int, int]:
    """{producer id: first offset of its transaction under way} of a .snapshot."""
    version, crc, count = struct.unpack_from(">hIi", data)
    if version != 1 or crc32c.crc32c(data[6:]) != crc or len(data) != 10 + 46 * count:
        raise BadBatchError("no producer snapshot")
    rows = [struct.unpack_from(">qhiqiqiq", data, 10 + 46 * number) for number in range(count)]
    return {row[0]: row[7] for row in rows if row[7] >= 0}


def position_of_offset(index: list[tuple[int, int]], relative_offset: int) -> int:
    """Where a scan for an offset begins."""
    return max((position for offset, position in index if offset <= relative_offset), default=0)


def position_of_time(times: list[tuple[int, int]], index: list[tuple[int, int]], timestamp: int) -> int:
    """Where a scan for the first record not older than `timestamp` begins."""
    before = [offset for at, offset in times if at < timestamp]
    return position_of_offset(index, before[-1]) if before else 0


def is_aborted(batch: Batch, shift: int, aborted: list[Aborted]) -> bool:
    """Whether the batch's transaction was aborted."""
    if not batch.is_transactional or batch.is_control:
        return False
    begun = [
        one for one in aborted if one.producer_id == batch.producer_id and one.first_offset <= batch.last_offset + shift
    ]
    last = max(begun, key=lambda one: one.first_offset, default=None)
    return last is not None and last.last_offset >= batch.base_offset + shift


# Directories that Kafka wrote


class KafkaPartition:
    """One `<topic>-<partition>` directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        topic, _, partition = directory.name.rpartition("-")
        self.log_start_offset = _checkpoint(directory.parent / "log-start-offset-checkpoint", topic, int(partition))
        self._segments: dict[int, list[Batch]] = {}
        self.log_end_offset = 0
        for base, path in _log_files(directory):
            self._segments[base], cut = _good_batches(path.read_bytes())
            ends = [batch.last_offset + 1 for batch in self._segments[base]]
            self.log_end_offset = max(base, *ends[-1:]) if ends else base
            if cut:
                break
        self.batches = list(self._walk())
        self.aborted, self.last_stable_offset = self._transactions()

    def records(self, *, committed: bool = False, control: bool = False) -> Iterator[tuple[Batch, Record]]:
        """The records from the log start on, by offset, each with its batch."""
        for batch in self.batches:
            if (batch.is_control and not control) or (committed and is_aborted(batch, 0, self.aborted)):
                continue
            for record in records(batch):
                visible = not committed or record.offset < self.last_stable_offset
                if record.offset >= self.log_start_offset and visible:
                    yield batch, record

    def indexed_aborts(self) -> list[Aborted]:
        """What the .txnindex files say."""
        paths = sorted(self._directory.glob("*.txnindex"))
        return [entry for path in paths for entry in transaction_index(path.read_bytes())]

    def _walk(self) -> Iterator[Batch]:
        """The batches that a broker serves, by the rule for segments that overlap."""
        offset = self.log_start_offset
        bases = sorted(self._segments)
        base = max((one for one in bases if one <= offset), default=bases[0] if bases else None)
        while base is not None:
            for batch in self._segments[base]:
                if batch.last_offset >= offset:
                    yield batch
                    offset = batch.last_offset + 1
            following = [one for one in bases if one > base]
            base = max((one for one in following if one <= offset), default=following[0] if following else None)

    def _transactions(self) -> tuple[list[Aborted], int]:
        first = min(self._segments, default=0)
        snapshot = self._directory / f"{first:020d}.snapshot"
        under_way = producer_snapshot(snapshot.read_bytes()) if first and snapshot.exists() else {}
        aborted = []
        for batch in self.batches:
            if not batch.is_control and batch.is_transactional:
                under_way.setdefault(batch.producer_id, batch.base_offset)
            elif batch.is_control and (kind := marker(batch)) in (0, 1):
                begun = under_way.pop(batch.producer_id, None)
                if begun is not None and kind == ABORT:
                    stable = min(under_way.values(), default=batch.last_offset + 1)
                    aborted.append(Aborted(batch.producer_id, begun, batch.last_offset, stable))
        return aborted, min(under_way.values(), default=self.log_end_offset)


Listing = dict[str, tuple[int, int, int]]
"""inode, size and modification time of each file, by name"""


def copied(directory: Path, target: Path) -> Iterator[dict[str, Any]]:
    """Copies the partition of a broker that runs, again until no file changed meanwhile (K4). Pauses after each file,
    so that the kit can change what is still to be read.
    """
    while True:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        checkpoint = directory.parent / "log-start-offset-checkpoint"
        if checkpoint.exists():
            shutil.copy2(checkpoint, target.parent)
        before = _listing(directory)
        try:
            for name, (_, size, _) in sorted(before.items()):
                (target / name).write_bytes((directory / name).read_bytes()[:size])
                yield {"paused": name}
        except FileNotFoundError:
            continue
        if _is_unchanged(before, _listing(directory)):
            return


def _listing(directory: Path) -> Listing:
    stats = {path.name: path.stat() for path in directory.iterdir()}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _is_unchanged(before: Listing, after: Listing) -> bool:
    last = max((name[:20] for name in before if name.endswith(".log")), default="")
    for name, (inode, size, modified) in before.items():
        inode_now, size_now, modified_now = after.get(name) or after.get(f"{name}.deleted") or (-1, -1, -1)
        may_grow = name[:20] == last
        if inode_now != inode or size_now < size or (size_now > size and not may_grow):
            return False
        if name.endswith(".log") and not may_grow and modified_now != modified:
            return False
    return True


def _log_files(directory: Path) -> list[tuple[int, Path]]:
    """The .log files that are the log, by base offset."""
    named = {path.name: path for path in directory.iterdir() if re.fullmatch(r"\d{20}\.log(\.swap)?", path.name)}
    cleaned = [int(path.name[:20]) for path in directory.glob("*.cleaned") if path.name[:20].isdigit()]
    swaps = {name: path for name, path in named.items() if name.endswith(".swap")}
    if cleaned:
        named = {name: path for name, path in named.items() if name not in swaps or int(name[:20]) < min(cleaned)}
        swaps = {name: path for name, path in swaps.items() if name in named}
    for name, path in swaps.items():
        first, end = (
            int(name[:20]),
            max([batch.last_offset + 1 for batch in _good_batches(path.read_bytes())[0]] or [0]),
        )
        for other in list(named):
            if other not in swaps and (first <= int(other[:20]) < end or other[:20] == name[:20]):
                del named[other]
    return sorted((int(name[:20]), path) for name, path in named.items())


def _good_batches(data: bytes) -> tuple[list[Batch], bool]:
    """The batches up to the first bad one, and whether there is a bad one."""
    good = []
    try:
        for batch in batches(data):
            good.append(batch)
    except BadBatchError:
        return good, True
    return good, False


def _checkpoint(path: Path, topic: str, partition: int) -> int:
    lines = path.read_text().split("\n")[2:] if path.exists() else []
    entries = [line.split() for line in lines if line]
    return next((int(offset) for name, number, offset in entries if (name, number) == (topic, str(partition))), 0)


# Log directories with a manifest


@dataclass(frozen=True)
class Snapshot:
    """One version of a topic: its row, its partitions' rows and the live rows of its segments, as dicts."""

    topic: dict[str, Any]
    partitions: dict[int, dict[str, Any]]
    segments: dict[int, list[dict[str, Any]]]
    transactions: dict[str, int]


class ManagedLog:
    """A log directory with a manifest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        content = (directory / "_manifest/log-directory.json").read_text()
        _check_version(json.loads(content)["format.version"] if content else 1, known=1)

    def topics(self) -> list[str]:
        """The topics that are there, deleted ones left out."""
        manifests = (self._directory / "_manifest").iterdir()
        names = sorted(path.name for path in manifests if any((path / "_delta_log").glob("*.json")))
        return [name for name in names if "deleted_ms" not in self.snapshot(name).topic["properties"]]

    def snapshot(self, topic: str, version: int | None = None) -> Snapshot:
        """The latest version of a topic, or an earlier one."""
        table = self._directory / "_manifest" / topic
        files = _delta_files(table, version)
        contents = {path: (kind, (table / unquote(path)).read_bytes()) for path, kind in files.items()}
        return self.snapshot_of(contents)

    def snapshot_of(self, files: Mapping[str, tuple[str, bytes]]) -> Snapshot:
        """The version that has these files of rows, each with its kind."""
        rows: dict[str, list[dict[str, Any]]] = {"topic": [], "partition": [], "segment": [], "transaction": []}
        for kind, content in files.values():
            rows[kind] += pq.ParquetFile(pa.BufferReader(content)).read().to_pylist()
        [row] = rows["topic"]
        row["properties"] = dict(row["properties"])
        _check_version(int(row["properties"]["format.version"]))
        gone = {"removed", "deleting"}
        if states := {one["state"] for one in rows["segment"]} - {"chunk", "sealed"} - gone:
            raise ValueError(f"unknown states {states}")
        transactions = {
            f"{one['application_id']}@{one['topic_id']}": one["version"]
            for one in rows["transaction"]
            if one["topic_id"] == row["topic_id"]
        }
        live = [one for one in rows["segment"] if one["topic_id"] == row["topic_id"] and one["state"] not in gone]
        live.sort(key=lambda one: (one["base_offset"], one["next_offset"]))
        partitions = {one["partition"]: one for one in rows["partition"]}
        segments = {number: [one for one in live if one["partition"] == number] for number in partitions}
        return Snapshot(row, partitions, segments, transactions)

    def records(
        self,
        snapshot: Snapshot,
        partition: int,
        start: int = 0,
        end: int | None = None,
        *,
        committed: bool = False,
        control: bool = False,
    ) -> Iterator[Record]:
        """The records of a partition with offsets in [start, end), at the offsets of the log."""
        row, segments = snapshot.partitions[partition], snapshot.segments[partition]
        start = max(start, row["log_start_offset"])
        end = min(row["log_end_offset"] if end is None else end, row["log_end_offset"])
        if committed:
            end = min(end, row["last_stable_offset"])
        for number, segment in enumerate(segments):
            low, high = max(start, segment["base_offset"]), min(end, segment["next_offset"])
            if low >= high:
                continue
            shift = shift_of(segment)
            aborted = self.aborted(segments[number:]) if committed else []
            index = offset_index(self.read(segment, "index"))
            position = position_of_offset(index, low - shift - name_offset(segment))
            for batch in batches(self.read(segment, "log"), position):
                if batch.base_offset + shift >= high:
                    break
                if (batch.is_control and not control) or is_aborted(batch, shift, aborted):
                    continue
                for record in records(batch):
                    if low <= record.offset + shift < high:
                        yield Record(**{**record.__dict__, "offset": record.offset + shift})

    def offset_for_time(self, snapshot: Snapshot, partition: int, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the lowest offset that is not older than `timestamp`."""
        start = snapshot.partitions[partition]["log_start_offset"]
        for segment in snapshot.segments[partition]:
            if segment["max_timestamp_ms"] < timestamp:
                continue
            shift = shift_of(segment)
            low, high = max(start, segment["base_offset"]), segment["next_offset"]
            times, index = time_index(self.read(segment, "timeindex")), offset_index(self.read(segment, "index"))
            for batch in batches(self.read(segment, "log"), position_of_time(times, index, timestamp)):
                for record in records(batch):
                    if record.timestamp >= timestamp and low <= record.offset + shift < high:
                        return record.offset + shift, record.timestamp
        return None

    def aborted(self, segments: list[dict[str, Any]]) -> list[Aborted]:
        """The aborted transactions whose markers are in these segments, at the offsets of the log."""
        return [
            entry
            for segment in segments
            for entry in transaction_index(self.read(segment, "txnindex"), shift_of(segment))
        ]

    def read(self, segment: dict[str, Any], suffix: str) -> bytes:
        """A file of a segment, as many bytes as its row says."""
        columns = {"log": "log", "index": "index", "timeindex": "time_index", "txnindex": "txn_index"}
        size = segment[columns[suffix] + "_bytes"]
        if size == 0:
            return b""
        if segment.get("index_position") is None:
            data = (self._directory / (segment["path"].removesuffix("log") + suffix)).read_bytes()[:size]
        else:  # a shared object: the row's batches, and elsewhere its .index entries with the .timeindex entries behind
            index = segment["index_position"]
            at = {"log": segment["position"], "index": index, "timeindex": index + segment["index_bytes"]}[suffix]
            data = (self._directory / segment["path"]).read_bytes()[at : at + size]
        if len(data) < size:
            raise BadBatchError(f"{segment['path']} has {len(data)} bytes of {suffix}, and not {size}")
        return data


def shift_of(segment: dict[str, Any]) -> int:
    """What makes an offset in the file's bytes the offset in the log."""
    return segment["base_offset"] - segment["file_base_offset"]


def name_offset(segment: dict[str, Any]) -> int:
    """What the relative offsets of a segment's sidecars count from."""
    if segment.get("index_position") is not None:
        return 0  # chunks alone are in shared objects
    return int(segment["path"].rpartition("/")[2][:20])


def _check_version(version: int, known: int = FORMAT_VERSION) -> None:
    if version != known:
        raise ValueError(f"format.version {version} is not {known}, which this reader knows")


def _delta_files(table: Path, version: int | None) -> dict[str, str]:
    """{path of a Parquet file: kind} of a version."""
    log = table / "_delta_log"
    commits = {int(path.name[:20]): path for path in log.glob("*.json") if path.name[:20].isdigit()}
    latest = max(commits) if version is None else version
    checkpoints = {int(path.name[:20]): path for path in log.glob("*.checkpoint.parquet")}
    start = max((number for number in checkpoints if number <= latest), default=None)
    files: dict[str, str] = {}
    if start is not None:
        _apply(pq.ParquetFile(checkpoints[start]).read().to_pylist(), files)
    for number in range(0 if start is None else start + 1, latest + 1):
        lines = commits[number].read_text().splitlines()
        if not lines:
            raise ValueError(f"commit {number} is empty")
        _apply([json.loads(line) for line in lines if line], files)
    return files


ACTIONS = {"commitInfo", "protocol", "metaData", "add", "remove", "txn"}
"""Those that this reader knows: what any other one says of the files of a version is not known (M6)."""


def _apply(actions: list[dict[str, Any]], files: dict[str, str]) -> None:
    for action in actions:
        if others := {name for name, value in action.items() if value is not None} - ACTIONS:
            raise ValueError(f"unknown actions {others}")
        if (protocol := action.get("protocol")) and protocol["minReaderVersion"] > 1:
            raise ValueError(f"Delta reader version {protocol['minReaderVersion']}")
        if remove := action.get("remove"):
            files.pop(remove["path"], None)
        if add := action.get("add"):
            files[add["path"]] = dict(add["partitionValues"])["kind"]


# What a lost manifest is rebuilt from


def noted_files(log: Path, topic: str) -> dict[str, tuple[str, bytes]]:
    """{path of a file of rows: its kind and content} of the last version that proven notes lead to."""
    notes = [_note(path) for path in sorted((log / "_recovery" / topic).glob("*.note"))]
    marks = {path.stem for path in (log / "_recovery" / topic).glob("*.made")}
    files: dict[str, tuple[str, bytes]] = {}
    version = -1
    while True:
        state = _state(files)
        following = [note for note in notes if note["before"] == state and note["version"] == version + 1]
        proven = [note for note in following if _is_proven(note, notes, marks)]
        if not proven:
            return files
        [note] = proven
        files = {path: file for path, file in files.items() if path not in note["removed"]} | note["files"]
        version += 1


def _note(path: Path) -> dict[str, Any]:
    """A note, with the files that it adds, and its name."""
    line, check, content = path.read_bytes().split(b"\n", 2)
    note = json.loads(line)
    if zlib.crc32(line) != json.loads(check)["crc32"] or zlib.crc32(content) != note["crc32"]:
        raise ValueError(f"{path.name} is damaged")
    files = {}
    for added in note["added"]:
        files[added["path"]] = (added["kind"], content[: added["size"]])
        content = content[added["size"] :]
    return {**note, "files": files, "name": path.stem}


def _is_proven(note: dict[str, Any], notes: list[dict[str, Any]], marks: set[str]) -> bool:
    """Whether the note's commit was made. That of its version in Delta's log would say so, too: here it is lost."""
    after = [other["before"] for other in notes if other["version"] == note["version"] + 1]
    return note["name"] in marks or note["after"] in after


def _state(paths: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


# The line protocol of the conformance kit


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines that answer a request."""
    try:
        yield from _answered(request)
    except Exception as error:  # whatever was wrong with the files
        yield {"refused": f"{type(error).__name__}: {error}"}


def _answered(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, committed = request["request"], request.get("isolation_level") == "read_committed"
    if kind == "read_kafka":
        partition = KafkaPartition(Path(request["directory"]))
        yield from _listed((0, record) for _, record in partition.records(committed=committed))
        return
    if kind == "read_running":
        with tempfile.TemporaryDirectory() as place:
            target = Path(place) / Path(request["directory"]).name
            yield from copied(Path(request["directory"]), target)
            yield from _listed((0, record) for _, record in KafkaPartition(target).records(committed=committed))
        return
    log = ManagedLog(Path(request["log"]))
    if kind == "rebuild":
        rebuilt = log.snapshot_of(noted_files(Path(request["log"]), request["topic"]))
        yield from _read(log, rebuilt)
        return
    if kind == "topics":
        yield {"topics": log.topics()}
        return
    snapshot = log.snapshot(request["topic"], request.get("version"))
    if "deleted_ms" in snapshot.topic["properties"]:
        raise LookupError("no such topic")
    if kind == "offsets":
        rows = snapshot.partitions.items()
        yield {"offsets": {str(number): [row["log_start_offset"], row["log_end_offset"]] for number, row in rows}}
    elif kind == "offset_for_time":
        found = log.offset_for_time(snapshot, request["partition"], request["timestamp"])
        yield {"offset": None if found is None else list(found)}
    elif kind == "read":
        yield from _read(log, snapshot, committed=committed)
    else:
        yield {"unsupported": kind}


def _read(log: ManagedLog, snapshot: Snapshot, *, committed: bool = False) -> Iterator[dict[str, Any]]:
    numbers = sorted(snapshot.partitions)
    return _listed(
        (number, record) for number in numbers for record in log.records(snapshot, number, committed=committed)
    )


def _listed(found: Iterable[tuple[int, Record]]) -> Iterator[dict[str, Any]]:
    """Records with their partitions, and how many they were."""
    count = 0
    for count, (partition, record) in enumerate(found, 1):  # noqa: B007
        yield as_json(partition, record)
    yield {"end": count}


def as_json(partition: int, record: Record) -> dict[str, Any]:
    """A record as the kit compares it."""
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def main() -> None:
    for line in sys.stdin:
        for answer in answers(json.loads(line)):
            print(json.dumps(answer), flush=True)
            if "paused" in answer:
                sys.stdin.readline()


if __name__ == "__main__":
    main()
