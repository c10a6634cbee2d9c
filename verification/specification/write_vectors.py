"""Writes the vectors of tests/golden/vectors, and the index of all vectors:
`python -m verification.specification.write_vectors DIRECTORY`.

The vectors were written by this once and stay as they are. Nothing of the package takes part: specification_writer.py
writes what docs/format says; zstandard, zlib, lz4 and cramjam compress; what a vector expects is what they were given.
"""

from __future__ import annotations

import json
import lzma
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from verification.specification.specification_writer import (
    MAP,
    START_MS,
    TOPIC_ID,
    UNIQUE,
    Batch,
    Record,
    Topic,
    aborted,
    changed,
    commit_info,
    footer,
    indexes,
    marker,
    table,
    varint,
)
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, GOLDEN, LARGE_DIRECTORIES, LEGACY_DIRECTORIES

FAR_MS = 32_503_680_000_000
"""The year 3000."""

Vector = dict[str, Any]


def record(at: int, value: bytes | None = b"", *, key: bytes | None = None, timestamp: int | None = None) -> Record:
    """The record at an offset, with a value that says which it is."""
    said = b"value %d" % at if value == b"" else value
    return Record(0, said, b"key %d" % at if key is None else key, START_MS + at if timestamp is None else timestamp)


def batch(base_offset: int, count: int = 1, *, leader_epoch: int = -1, first: int | None = None) -> Batch:
    """A batch of `count` records. `first`: the offset in the log that its records speak of."""
    records = [record((base_offset if first is None else first) + at) for at in range(count)]
    return Batch([changed_record(one, at) for at, one in enumerate(records)], base_offset, leader_epoch=leader_epoch)


def changed_record(one: Record, offset: int) -> Record:
    return Record(offset, one.value, one.key, one.timestamp, one.headers)


def plain(log: Path) -> Topic:
    """A topic with a sealed segment, a chunk with files of its own and a shared object of two runs."""
    topic = Topic(log)
    topic.sealed([batch(at, leader_epoch=0) for at in (100, 101, 102, 103)])
    topic.chunk([batch(0, 2, first=104)], 104)
    topic.shared({0: (106, [batch(0, 2, first=106)]), 1: (0, [batch(0, 2)])})
    topic.partition(0, 100)
    topic.partition(1, 0)
    return topic


# What a vector asks, and what it expects


def read(records: Sequence[Mapping[str, Any]] | str, topic: str = "orders", **more: Any) -> Vector:
    """`records`: in the order of partition and offset; or the file, relative to the index, that has them."""
    if not isinstance(records, str):
        records = sorted(records, key=lambda one: (one["partition"], one["offset"]))
    return {"request": "read", "topic": topic, "isolation_level": "read_uncommitted", **more, "records": records}


def refused(topic: str = "orders", request: str = "read", **more: Any) -> Vector:
    more = {"topic": topic, "isolation_level": "read_uncommitted", **more} if request == "read" else more
    return {"request": request, **more, "refused": True}


class Writer:
    """Writes vectors below a directory, and keeps what the index says of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index: list[Vector] = []

    def whole(self, name: str, about: str, rules: str, write: Callable[[Path], Sequence[Vector]], **more: Any) -> None:
        """A vector with a log directory of its own."""
        log = self.directory / name
        asked = list(write(log))
        for one in asked:
            if len(json.dumps(one.get("records"))) > 4000:
                one["records"] = self._kept(f"{name}.{one['topic']}.jsonl.xz", one["records"])
        self.index.append({"name": name, "about": about, "rules": rules.split(), "log": f"vectors/{name}", **more})
        self.index[-1]["requests"] = asked

    def _kept(self, name: str, records: Sequence[Mapping[str, Any]]) -> str:
        """The file of many records; topics with the same records have the same one."""
        content = lzma.compress("".join(json.dumps(one) + "\n" for one in records).encode())
        for path in sorted(self.directory.glob("*.jsonl.xz")):
            if path.read_bytes() == content:
                return f"vectors/{path.name}"
        (self.directory / name).write_bytes(content)
        return f"vectors/{name}"

    def altered(
        self,
        name: str,
        about: str,
        rules: str,
        alter: Callable[[Topic], Sequence[Vector] | None],
        *,
        findings: str = "",
    ) -> None:
        """A vector that lays some files over those of the plain topic. `alter`: changes the topic, gives the requests.
        `findings`: the rules that the judge of writers finds broken.
        """
        base = self.directory / "plain"
        scratch = self.directory / "scratch"
        topic = plain(scratch)
        asked = alter(topic)
        if not (scratch / "_manifest/orders/_delta_log").exists():
            topic.commit()
        there = {path.relative_to(base).as_posix(): path.read_bytes() for path in _files(base)}
        mine = {path.relative_to(scratch).as_posix(): path.read_bytes() for path in _files(scratch)}
        for path, content in mine.items():
            if there.get(path) != content:
                target = self.directory / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        entry: Vector = {"name": name, "about": about, "rules": rules.split(), "log": f"vectors/{name}"}
        entry["base"] = f"vectors/{base.name}"
        if gone := sorted(there.keys() - mine.keys()):
            entry["removed"] = gone
        if findings:
            entry["findings"] = findings.split()
        entry["requests"] = list(asked or [])
        self.index.append(entry)
        shutil.rmtree(scratch)


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


# Topics that a reader must read


def write_plain(log: Path) -> Sequence[Vector]:
    topic = plain(log)
    topic.commit()
    offsets = {"0": [100, 108], "1": [0, 2]}
    asked = [read(topic.records), {"request": "topics", "topics": ["orders"]}]
    return [*asked, {"request": "offsets", "topic": "orders", "offsets": offsets}]


def write_first_append(log: Path) -> Sequence[Vector]:
    """The literal example of the specification: commit 0 makes the topic, commit 1 is an append."""
    topic = Topic(log, "fruit", config={"retention.ms": "604800000"})
    made = topic.partition()
    topic.commit()
    batch = Batch(
        [
            Record(0, b"ripe", b"apple", START_MS),
            Record(1, None, b"pear", START_MS + 250),
            Record(2, b"green", b"fig", START_MS + 100, (("from", b"tree"),)),
        ]
    )
    row = topic.chunk([batch], 0)
    after = {**made, "log_end_offset": 3, "last_stable_offset": 3}
    actions = [commit_info(1), topic.add("partition", [after], "part-1"), topic.add("segment", [row])]
    removed = {"path": "kind=partition/part-0.parquet", "dataChange": True, "deletionTimestamp": START_MS}
    topic.write_commit(1, [*actions, {"remove": {**removed, "partitionValues": {"kind": "partition"}}}])
    return [read(topic.records, "fruit"), read([], "fruit", version=0)]


def _noted_topic(log: Path, name: str) -> tuple[Topic, list[str]]:
    """A topic of one partition whose first commit has an id and a note, and the paths of its files of rows."""
    topic = Topic(log, name)
    topic.partition()
    topic.commit()
    path = log / f"_manifest/{name}/_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    topic.write_commit(0, [_identified(0), *actions[1:]])
    return topic, topic.write_noted(0, "create", [], [], [action for action in actions if "add" in action])


def write_noted(log: Path) -> Sequence[Vector]:
    """The same with notes: what a lost manifest is rebuilt from."""
    topic, files = _noted_topic(log, "fruit")
    row = topic.chunk([batch(0, 3)], 0)
    after = {**topic.partitions[0], "log_end_offset": 3, "last_stable_offset": 3}
    added = [topic.add("partition", [after], "part-1"), topic.add("segment", [row])]
    removed = {"remove": {"path": "kind=partition/part-0.parquet", "dataChange": True, "deletionTimestamp": START_MS}}
    topic.write_commit(1, [_identified(1), *added, removed])
    topic.write_noted(1, "append", files, [removed], added)
    return [read(topic.records, "fruit")]


def _identified(number: int) -> dict:
    """A commitInfo whose id has 32 digits."""
    return {"commitInfo": {**commit_info(number)["commitInfo"], "commitId": f"{number:032x}"}}


def write_codecs(log: Path) -> Sequence[Vector]:
    """A topic for each form that a records section may have."""
    text = [changed_record(record(at, b"%d " % at * 3000), at) for at in range(12)]
    section = b"".join(one.encoded(START_MS) for one in text)
    half = len(section) // 2
    sized, unsized = zstandard.ZstdCompressor(), zstandard.ZstdCompressor(write_content_size=False)
    checked = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    forms: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
        "zstd-sized": (4, sized.compress),
        "zstd-unsized": (4, unsized.compress),
        "zstd-frames": (4, lambda data: unsized.compress(data[:half]) + sized.compress(data[half:])),
        "zstd-unsized-frames": (4, lambda data: checked.compress(data[:half]) + unsized.compress(data[half:])),
        "gzip": (1, _gzip),
        "gzip-members": (1, lambda data: _gzip(data[:half]) + _gzip(data[half:])),
        "snappy-raw": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        "snappy-blocks": (2, lambda data: _xerial(data[:half], data[half:])),
        "lz4-independent": (3, _lz4),
        "lz4-linked": (3, lambda data: _lz4(data, linked=True)),
        "lz4-sized": (3, lambda data: _lz4(data, store_size=True)),
        "lz4-checksums": (3, lambda data: _lz4(data, linked=True, block_checksum=True, content_checksum=True)),
        "lz4-stored": (3, _lz4_stored),
    }
    asked = []
    for name, (codec, compress) in forms.items():
        topic = Topic(log, name)
        topic.chunk([Batch(text, codec=codec, compress=compress), batch(len(text))], 0)
        topic.partition()
        topic.commit()
        asked.append(read(topic.records, name))
    return asked


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


def _xerial(*blocks: bytes) -> bytes:
    raw = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in raw)


def _lz4(data: bytes, *, linked: bool = False, **flags: bool) -> bytes:
    """A frame by liblz4, of blocks of 64 KiB."""
    size = lz4.frame.BLOCKSIZE_MAX64KB
    return bytes(lz4.frame.compress(data, block_size=size, block_linked=linked, **{"store_size": False, **flags}))


def _lz4_stored(data: bytes) -> bytes:
    """A frame whose blocks are not compressed."""
    blocks = (data[at : at + 65_536] for at in range(0, len(data), 65_536))
    stored = b"".join(struct.pack("<I", len(one) | 1 << 31) + one for one in blocks)
    return _lz4(b"x")[:7] + stored + b"\0\0\0\0"


def write_batches(log: Path) -> Sequence[Vector]:
    """Batches of every kind that is no plain batch of records, a topic a kind."""
    asked = []

    def topic_of(name: str, batches: Sequence[Batch], **columns: Any) -> None:
        topic = Topic(log, name)
        topic.sealed(batches, **columns)
        topic.partition()
        topic.commit()
        asked.append(read(topic.records, name))

    emptied = Batch([], 1, last_delta=2, max_timestamp=-1, leader_epoch=0)
    gzipped = changed(emptied, base_offset=6, codec=1, compress=_gzip)
    topic_of("emptied", [batch(0, leader_epoch=0), emptied, batch(4, 2, leader_epoch=0), gzipped])
    topic_of("gaps", [Batch([changed_record(record(3), 3), changed_record(record(7), 7)], 0, last_delta=9)])
    headers = (("name", b"value"), ("", None), ("name", b""), ("é", b"\x00\xff"))
    odd = [Record(0, b"", b"", START_MS), Record(1, None, None, START_MS, headers), Record(2, b"v", b"k", START_MS - 9)]
    topic_of("nulls-and-headers", [Batch(odd)])
    topic_of("log-append-time", [changed(batch(0, 3), attributes=8, max_timestamp=START_MS + 77)])
    none = [Record(0, b"v", b"k", -1), Record(1, b"w", b"k", -1)]
    topic_of("no-timestamps", [Batch(none)])
    horizon = changed(batch(0, 3), attributes=0x40, base_timestamp=START_MS + 5000)
    topic_of("delete-horizon", [horizon])
    return asked


def write_legacy(log: Path) -> Sequence[Vector]:
    """Kafka's own segments of magic 0 and 1, byte for byte."""
    asked = []
    for name in LEGACY_DIRECTORIES:
        topic = Topic(log, name.removesuffix("-0"))
        source = sorted((GOLDEN / name).glob("*.log"))[1]
        base = int(source.stem)
        records = [_as_read(one) for one in _lines(name, "expected") if one["segment"] == base]
        stamps = [one["timestamp"] for one in records]
        batches = [one for one in _lines(name, "batches") if one["segment"] == base]
        row = topic.sealed([Batch([Record(0, b"v")], base)])
        for suffix, column in (("log", "log"), ("index", "index"), ("timeindex", "time_index")):
            content = source.with_suffix(f".{suffix}").read_bytes()
            topic.write(row["path"].removesuffix("log") + suffix, content)
            row[f"{column}_bytes"] = len(content)
        at = stamps.index(max(stamps))
        containing = next(one for one in batches if one["lastOffset"] >= records[at]["offset"])
        row |= {"next_offset": records[-1]["offset"] + 1, "records": len(records), "batches": len(batches)}
        row |= {"max_timestamp_ms": max(stamps), "first_batch_max_timestamp_ms": batches[0]["maxTimestamp"]}
        row["offset_of_max_timestamp"] = containing["lastOffset"] if max(stamps) >= 0 else -1
        row["tombstones"] = sum(one["value"] is None for one in records)
        topic.partition(0, base)
        topic.commit()
        asked.append(read(records, topic.name))
    return asked


def _lines(name: str, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.open(GOLDEN / f"{name}.{kind}.jsonl.xz", "rt")]


def _as_read(one: Mapping[str, Any]) -> dict[str, Any]:
    """A record of Kafka's own reader as the kit has it."""
    kinds = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
    found = {name: one[name] for name in ("offset", "timestamp", "key", "value", "headers")}
    return {"partition": 0, **found, "timestampType": kinds[one["timestampType"]]}


def write_transactions(log: Path) -> Sequence[Vector]:
    """A transaction that was aborted in a later segment than its data's, one that was committed, one that is open."""
    topic = Topic(log)
    data = {"attributes": 0x10, "leader_epoch": 0}
    first = changed(batch(0, 2), producer=(7, 0, 0), **data)
    other = changed(batch(2, 2), producer=(8, 0, 0), **data)
    topic.sealed([first, other])
    again = changed(batch(6, 1), producer=(7, 0, 2), **data)
    topic.sealed([marker(4, 7, 0), marker(5, 8, 1), again], aborts=aborted(7, 0, 4, 2))
    plain_one = batch(7, leader_epoch=0)
    still = changed(batch(9, 1), producer=(9, 0, 0), **data)
    topic.sealed([plain_one, marker(8, 7, 1), still, batch(10, leader_epoch=0)])
    topic.partition(0, 0, last_stable_offset=9)
    topic.commit()
    committed = [one for one in topic.records if one["offset"] in (2, 3, 6, 7)]
    return [read(topic.records), read(committed, isolation_level="read_committed")]


def write_times(log: Path) -> Sequence[Vector]:
    """Timestamps in any order; look-ups name the lowest offset that is not older."""
    topic = Topic(log)
    times = [50, 10, 40, 90, 20, 95, 30, 60]
    batches = [Batch([record(at, timestamp=START_MS + time)], at, leader_epoch=0) for at, time in enumerate(times)]
    topic.sealed(batches[:4])
    topic.sealed(batches[4:])
    later = Batch([Record(0, b"v", b"k", START_MS + 99), Record(1, b"v", b"k", START_MS + 70)])
    topic.chunk([later], 8)
    topic.partition(0, 2)
    topic.commit()
    everything = {**dict(enumerate(times)), 8: 99, 9: 70}
    asked = []
    for time in (0, 15, 45, 90, 91, 96, 99, 100):
        found = next((at for at in sorted(everything) if at >= 2 and everything[at] >= time), None)
        answer = None if found is None else [found, START_MS + everything[found]]
        request = {"request": "offset_for_time", "topic": "orders", "partition": 0, "timestamp": START_MS + time}
        asked.append({**request, "offset": answer})
    return [*asked, read([one for one in topic.records if one["offset"] >= 2])]


def write_checkpoint(log: Path) -> Sequence[Vector]:
    """Rows in the order of no listing: twelve partitions, their files backwards, behind a checkpoint; a wrong hint."""
    topic = Topic(log)
    for number in range(12):
        topic.chunk([batch(0)], 1, number)
        topic.chunk([batch(0, first=1)], 0, number)
    for number in range(12):
        topic.partition(number)
    meta = table("orders")
    properties = {"format.version": "2", **topic.config}
    row = {"topic_id": TOPIC_ID, "properties": properties, "deleted_topics": {}, "states": {}}
    kept = [topic.add("topic", [row]), topic.add("partition", topic.partitions)]
    halves = [topic.add("segment", topic.segments[at::2], name) for at, name in ((0, "part-b"), (1, "part-c"))]
    more = topic.add("segment", [], "part-a")
    actions = [*meta, *kept, halves[0], {"txn": {"appId": f"feed@{TOPIC_ID}", "version": 3}}]
    _write_checkpoint(log, "orders", 9, actions)
    topic.write_commit(8, [commit_info(8), {"remove": {"path": halves[0]["add"]["path"], "dataChange": True}}])
    topic.write_commit(9, [commit_info(9), halves[0]])
    topic.write_commit(10, [commit_info(10), halves[1], more])
    topic.write_commit(11, [commit_info(11), {"remove": {"path": more["add"]["path"], "dataChange": True}}])
    topic.write("_manifest/log-directory.json", b'{"format.version": 1}')
    topic.write("_manifest/orders/_delta_log/_last_checkpoint", b'{"version": 5, "size": 4}')
    return [read(topic.records), read(topic.records, version=10)]


def _write_checkpoint(log: Path, topic: str, version: int, actions: Sequence[dict]) -> None:
    """A checkpoint of these actions."""
    texts = pa.map_(pa.string(), pa.string())
    add = [("path", pa.string()), ("partitionValues", texts), ("size", pa.int64()), ("modificationTime", pa.int64())]
    add += [("dataChange", pa.bool_()), ("stats", pa.string())]
    provider = pa.struct([("provider", pa.string()), ("options", texts)])
    names = ("id", "name", "description", "schemaString")
    metadata = [*((name, pa.string()) for name in names), ("format", provider)]
    metadata += [("partitionColumns", pa.list_(pa.string())), ("configuration", texts), ("createdTime", pa.int64())]
    kinds = {
        "add": pa.struct(add),
        "remove": pa.struct([("path", pa.string())]),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        "metaData": pa.struct(metadata),
    }
    rows = json.loads(json.dumps(actions))
    for row in rows:
        for place, name in ((row.get("add"), "partitionValues"), (row.get("metaData"), "configuration")):
            if place is not None:
                place[name] = list(place[name].items())
        if "metaData" in row:
            row["metaData"]["format"]["options"] = []
    path = log / f"_manifest/{topic}/_delta_log/{version:020d}.checkpoint.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))), path, compression="snappy")


def write_rebuilt(log: Path) -> Sequence[Vector]:
    """A table that was made anew: fences, a free version, and a commit with its checkpoint behind it."""
    topic = plain(log)
    topic.commit()
    path = log / "_manifest/orders/_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    fence = {"commitInfo": {"timestamp": START_MS, "operation": "WRITE", "change": "fence", "rebuild": "r"}}
    topic.write_commit(4, [commit_info(4), {"add": {"path": "kind=segment/lost.parquet", "partitionValues": {}}}])
    for version in (5, 6, 7):
        topic.write_commit(version, [fence])
    topic.write_commit(9, [commit_info(9), *actions[1:]])
    _write_checkpoint(log, "orders", 9, actions[1:])
    topic.write_commit(10, [commit_info(10), {"txn": {"appId": f"feed@{TOPIC_ID}", "version": 1}}])
    return [read(topic.records)]


def write_topics(log: Path) -> Sequence[Vector]:
    """What is a topic, and what is none."""
    there = Topic(log, "there")
    there.chunk([batch(0)], 0)
    there.partition()
    there.commit()
    deleted = Topic(log, "deleted", config={"deleted_ms": str(START_MS)})
    deleted.chunk([batch(0)], 0, state="removed", removed_ms=START_MS)
    deleted.partition()
    deleted.commit()
    follower = Topic(log, "follower", topic={"states": {"role": "follower", "source_version": "3", "unknown": "kept"}})
    follower.chunk([batch(0)], 0)
    follower.partition()
    follower.commit()
    there.write("_manifest/begun/_delta_log/_staged", b"")
    there.write("there-0/00000000000000000001.stray.log", batch(1).data)
    there.write("_recovery/lost/00000000000000000000.json", b"{}")
    asked = [{"request": "topics", "topics": ["follower", "there"]}, refused("deleted"), refused("begun")]
    return [*asked, refused("lost"), read(there.records, "there"), read(follower.records, "follower")]


# Topics that a reader must refuse, or that hide a snare


def edited(topic: Topic, edit: Callable[[list[dict]], list[dict]]) -> None:
    """Writes commit 0 with other actions."""
    topic.commit()
    path = topic.log / f"_manifest/{topic.name}/_delta_log/{0:020d}.json"
    topic.write_commit(0, edit([json.loads(line) for line in path.read_text().splitlines()]))


def log_of(topic: Topic, number: int, alter: Callable[[bytearray], bytes | bytearray]) -> list[Vector]:
    """Alters the .log that a row names, whose size the row keeps."""
    path = topic.log / topic.segments[number]["path"]
    path.write_bytes(alter(bytearray(path.read_bytes())))
    return [refused()]


def chunk_of(bad: Batch, **columns: Any) -> Callable[[Topic], list[Vector]]:
    """The chunk's file has another batch of the same offsets, and its row that batch's sizes."""

    def alter(topic: Topic) -> list[Vector]:
        row, data = topic.segments[1], bad.data
        _, times = indexes([bad], 0, 100)
        row |= {"log_bytes": len(data), "time_index_bytes": len(times), **columns}
        topic.write(row["path"], data)
        topic.write(row["path"].removesuffix("log") + "timeindex", times)
        return [refused()]

    return alter


def set_bytes(data: bytearray, at: int, new: bytes) -> bytearray:
    data[at : at + len(new)] = new
    return data


def marker_file(content: bytes) -> Callable[[Topic], None]:
    def alter(topic: Topic) -> None:
        topic.write("_manifest/log-directory.json", content)

    return alter


def with_requests(alter: Callable[[Topic], Any], *requests: Vector) -> Callable[[Topic], list[Vector]]:
    def done(topic: Topic) -> list[Vector]:
        alter(topic)
        return list(requests) or [refused()]

    return done


def protocol(reader: int, features: Sequence[str] = ()) -> Callable[[Topic], list[Vector]]:
    def alter(topic: Topic) -> list[Vector]:
        edited(topic, lambda actions: [*table("orders", reader=reader, features=features), *actions[3:]])
        return [refused()]

    return alter


def transaction_index(entry: bytes) -> Callable[[Topic], list[Vector]]:
    def alter(topic: Topic) -> list[Vector]:
        row = topic.segments[0]
        topic.write(row["path"].removesuffix("log") + "txnindex", entry)
        row["txn_index_bytes"] = len(entry)
        return [refused(isolation_level="read_committed"), read(topic.records)]

    return alter


def write_refused(writer: Writer) -> None:
    both = (refused(), refused(request="topics"))
    alter = writer.altered
    newer = marker_file(b'{"format.version": 2}')
    alter("newer-log-directory", "a log directory of a later layout", "D1", with_requests(newer, *both))
    alter("no-version-of-the-log", "a marker file without a version", "D2", with_requests(marker_file(b"{}"), *both))
    for name, version in (("newer-topic", "3"), ("older-topic", "1")):
        another = with_requests(lambda topic, version=version: topic.config.update({"format.version": version}))
        alter(name, f"format.version {version}", "D8", another)
    none = with_requests(lambda topic: topic.config.update({"format.version": None}))
    alter("no-version-of-the-topic", "a topic row without format.version", "D8", none)
    alter("reader-version-2", "minReaderVersion 2", "M3", protocol(2))
    alter("reader-version-3", "minReaderVersion 3 and readerFeatures", "M3", protocol(3, ["deletionVectors"]))

    def gap(topic: Topic) -> None:
        topic.commit()
        topic.write_commit(2, [commit_info(2), {"txn": {"appId": f"a@{TOPIC_ID}", "version": 1}}])

    def empty(topic: Topic) -> None:
        topic.commit()
        topic.write(f"_manifest/orders/_delta_log/{1:020d}.json", b"")

    def kind(topic: Topic) -> None:
        row = {"topic_id": TOPIC_ID, "partition": 0}
        edited(topic, lambda actions: [*actions, _of_kind(topic, row)])

    def two_rows(topic: Topic) -> None:
        row = {"topic_id": TOPIC_ID, "properties": {"format.version": "2"}, "deleted_topics": {}, "states": {}}
        edited(topic, lambda actions: [*actions, topic.add("topic", [row], "part-1")])

    alter("commit-gap", "commit 1 is missing between 0 and 2", "M2", with_requests(gap))
    alter("empty-commit", "commit 1 is an empty file", "M5", with_requests(empty))
    alter("unknown-kind", "a file of rows of an unknown kind", "M8", with_requests(kind))
    alter("two-topic-rows", "two files with a topic row", "M10", with_requests(two_rows))
    frozen = with_requests(lambda topic: topic.segments[1].update(state="frozen"))
    alter("unknown-state", "a segment row of an unknown state", "M18", frozen)

    def missing(topic: Topic) -> None:
        (topic.log / topic.segments[1]["path"]).unlink()

    alter("missing-log", "a .log that a row names is not there", "R6", with_requests(missing), findings="R6")
    alter(
        "short-log",
        "a .log that is shorter than its row says",
        "R6",
        lambda t: log_of(t, 1, lambda d: d[:-1]),
        findings="R6",
    )
    flipped = lambda d: set_bytes(d, len(d) - 3, bytes([d[-3] ^ 1]))  # noqa: E731
    alter("wrong-crc", "a bit of a record is another", "B1", lambda t: log_of(t, 1, flipped), findings="B13")
    alter(
        "wrong-crc-in-shared-object",
        "the same in a run",
        "B1 O1",
        lambda t: log_of(t, 2, lambda d: set_bytes(d, 70, b"?")),
    )
    magic = lambda d: set_bytes(d, 16, b"\x03")  # noqa: E731
    alter("unknown-magic", "magic 3", "B13", lambda t: log_of(t, 1, magic), findings="B13")
    long = lambda d: set_bytes(d, 8, struct.pack(">i", len(d)))  # noqa: E731
    alter("cut-batch", "a batch that is longer than its file", "B13", lambda t: log_of(t, 1, long), findings="B13")
    good = batch(0, 2, first=104)
    section = b"".join(one.encoded(START_MS + 104) for one in good.records)
    huge = good.records[0].encoded(START_MS + 104) + Record(1, bytes(257 << 20)).encoded(START_MS)
    cases = {
        "unknown-codec": ("codec 5, with a right CRC", "B2", changed(good, codec=5)),
        "record-too-long": (
            "a record that ends behind its length",
            "B5",
            changed(good, section=varint(40) + section[1:]),
        ),
        "bytes-after-records": ("bytes behind the last record", "B5", changed(good, section=section + b"\0")),
        "too-few-records": ("fewer records than recordsCount", "B5", changed(good, count=3)),
        "cut-gzip": ("a gzip member that is cut", "B7", changed(good, codec=1, compress=lambda data: _gzip(data)[:-9])),
        "cut-zstd": ("a zstd frame that is cut", "B10", changed(good, codec=4, compress=lambda data: _zstd(data)[:-2])),
        "bad-snappy": (
            "a snappy block of another length",
            "B8",
            changed(good, codec=2, compress=lambda data: b"\x05" + data),
        ),
        "bad-lz4": ("no LZ4 frame", "B9", changed(good, codec=3)),
        "bomb": ("a value of 257 MiB in a few kilobytes", "B11", changed(good, codec=4, section=huge, compress=_zstd)),
    }
    for name, (about, rule, bad) in cases.items():
        alter(name, about, rule, chunk_of(bad), findings="B13")
    version = aborted(7, 100, 101, 102)
    wrong = transaction_index(b"\0\1" + version[2:])
    alter("transaction-index-of-version-1", "a .txnindex entry of another version", "I7", wrong, findings="I7")
    alter(
        "cut-transaction-index", "a .txnindex entry that is cut", "I7", transaction_index(version[:-1]), findings="I7"
    )


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _of_kind(topic: Topic, row: Mapping[str, Any]) -> dict:
    path = "kind=strange/part-0.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row)]), sink)
    topic.write(f"_manifest/orders/{path}", sink.getvalue().to_pybytes())
    add = {"path": path, "partitionValues": {"kind": "strange"}, "size": 1}
    return {"add": {**add, "modificationTime": START_MS, "dataChange": True}}


def write_snares(writer: Writer) -> None:
    alter = writer.altered

    def everything(topic: Topic) -> list[Vector]:
        return [read(topic.records)]

    def empty_marker(topic: Topic) -> list[Vector]:
        topic.write("_manifest/log-directory.json", b"")
        return everything(topic)

    def parts(topic: Topic) -> list[Vector]:
        sealed, chunk, shared, _ = topic.segments
        sealed |= {"base_offset": 101, "file_base_offset": 101, "next_offset": 103}
        chunk |= {"base_offset": 103, "file_base_offset": 1, "next_offset": 104, "offset_of_max_timestamp": 103}
        shared |= {"base_offset": 104, "file_base_offset": 1, "next_offset": 105, "offset_of_max_timestamp": 104}
        topic.partitions[0] |= {"log_start_offset": 101, "log_end_offset": 105, "first_dirty_offset": 101}
        topic.partitions[0] |= {"last_stable_offset": 105}
        found = [{**one} for one in topic.records if one["partition"] or one["offset"] in (101, 102, 105, 107)]
        for one in found:
            if one["offset"] in (105, 107):
                one["offset"] -= 2 if one["offset"] == 105 else 3
        return [read(found)]

    def out_of_log(topic: Topic) -> list[Vector]:
        copies = [dict(row) for row in topic.segments[:2]]
        gone = [{**copies[0], "state": "removed", "removed_ms": START_MS}, {**copies[1], "state": "deleting"}]
        gone[1]["removed_ms"] = START_MS
        other = {**copies[0], "topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}
        for number, row in enumerate([*gone, other]):
            row["path"] = f"orders-0/{row['file_base_offset']:020d}.{number}f{UNIQUE[2:]}.log"
            topic.segments.append(row)
        return everything(topic)

    def unknown(topic: Topic) -> list[Vector]:
        topic.extra = {"segment": {"temperature": "long"}, "partition": {"colour": "string"}, "topic": {"more": MAP}}
        edited(topic, lambda actions: [{"commitInfo": {**actions[0]["commitInfo"], "later": {"a": [1]}}}, *actions[1:]])
        return everything(topic)

    def without_stats(topic: Topic) -> list[Vector]:
        topic.commit(stats=False)
        return everything(topic)

    def some_stats(topic: Topic) -> list[Vector]:
        def cut(actions: list[dict]) -> list[dict]:
            for one, stats in zip(
                [one for one in actions if "add" in one], ("{}", '{"numRecords": 2}', None), strict=True
            ):
                one["add"]["stats"] = stats
            return actions

        edited(topic, cut)
        return everything(topic)

    def longer(topic: Topic) -> list[Vector]:
        for row in topic.segments[:2]:
            stem = row["path"].removesuffix("log")
            for suffix, more in (("log", b"\0" * 7 + b"left"), ("index", bytes(16)), ("timeindex", bytes(24))):
                path = topic.log / f"{stem}{suffix}"
                path.write_bytes(path.read_bytes() + more)
        return everything(topic)

    def percent(topic: Topic) -> list[Vector]:
        topic.commit()
        place = topic.log / "_manifest/orders/kind=segment"
        (place / "part-0.parquet").rename(place / "part 0+é.parquet")
        edited_path = topic.log / f"_manifest/orders/_delta_log/{0:020d}.json"
        said = edited_path.read_text().replace("kind=segment/part-0.parquet", "kind=segment/part%200%2B%C3%A9.parquet")
        edited_path.write_text(said)
        return everything(topic)

    alter("empty-marker", "a marker file that is still empty", "D2", empty_marker)
    alter("part-of-a-file", "rows that stand for a part of their files", "M22 R3 R8", parts)
    alter(
        "rows-out-of-the-log",
        "rows that were removed, are being deleted, or are another topic's",
        "M15 M18",
        out_of_log,
    )
    alter("unknown-columns", "columns and members of a later release", "D9", unknown)
    alter("no-statistics", "files without stats", "M9", without_stats)
    alter("some-statistics", "stats that say little", "M9", some_stats)
    alter("longer-files", "files with more bytes than their rows say", "I1", longer, findings="I1")
    alter("percent-encoded", "a path with a space, a plus sign and an é", "M7", percent)


# What a writer must not write: the judge of writers finds it


def rows(number: int, **columns: Any) -> Callable[[Topic], None]:
    return lambda topic: topic.segments[number].update(columns)


def partition(**columns: Any) -> Callable[[Topic], None]:
    return lambda topic: topic.partitions[0].update(columns)


def states(**entries: str) -> Callable[[Topic], None]:
    return lambda topic: topic.topic.update(states=entries)


def sidecar(number: int, suffix: str, alter: Callable[[bytearray], bytes | bytearray]) -> Callable[[Topic], None]:
    def done(topic: Topic) -> None:
        path = topic.log / (topic.segments[number]["path"].removesuffix("log") + suffix)
        path.write_bytes(alter(bytearray(path.read_bytes())))

    return done


def without_file(suffix: str) -> Callable[[Topic], None]:
    return lambda topic: (topic.log / (topic.segments[1]["path"].removesuffix("log") + suffix)).unlink()


def other_topic_id(topic: Topic, topic_id: str) -> None:
    topic.topic["topic_id"] = topic_id
    for row in (*topic.partitions, *topic.segments):
        row["topic_id"] = topic_id


def resealed(batches: Sequence[Batch], **columns: Any) -> Callable[[Topic], None]:
    """The sealed segment has other batches of the offsets 100 to 103."""

    def done(topic: Topic) -> None:
        old = topic.segments[0]
        log = b"".join(one.data for one in batches)
        index, times = indexes(batches, 100, 100)
        stem = old["path"].removesuffix("log")
        for suffix, content in (("log", log), ("index", index), ("timeindex", times)):
            topic.write(stem + suffix, content)
        sizes = {"index_bytes": len(index), "time_index_bytes": len(times)}
        old |= {
            **topic.row(batches, old["path"], 100, 100, 0),
            **sizes,
            "state": "sealed",
            "next_offset": 104,
            **columns,
        }

    return done


def aborts_nothing(topic: Topic) -> None:
    """A .txnindex says that a committed transaction was aborted."""
    data = {"attributes": 0x10, "producer": (7, 0, 0), "leader_epoch": 0}
    batches = [changed(batch(100, 2), **data), marker(102, 7, 1), batch(103, leader_epoch=0)]
    entry = aborted(7, 100, 102, 103)
    resealed(batches, txn_index_bytes=len(entry))(topic)
    topic.write(topic.segments[0]["path"].removesuffix("log") + "txnindex", entry)


def aborts_not_told(topic: Topic) -> None:
    data = {"attributes": 0x10, "producer": (7, 0, 0), "leader_epoch": 0}
    resealed([changed(batch(100, 2), **data), marker(102, 7, 0), batch(103, leader_epoch=0)])(topic)


def without_rows(topic: Topic, number: int) -> None:
    del topic.segments[number]


def run_footer(topic: Topic, **other: Any) -> None:
    """The object has a footer that says something else."""
    one, two = topic.segments[2:]
    path = topic.log / one["path"]
    content = path.read_bytes()
    end = two["index_position"] + two["index_bytes"] + two["time_index_bytes"]
    runs = []
    for row in (one, two):
        sidecars = (row["index_position"], row["index_bytes"], row["time_index_bytes"])
        runs.append((row["partition"], row["position"], row["log_bytes"], *sidecars, 2, other.get("records", 2), 1))
    path.write_bytes(content[:end] + footer(runs, other.get("topic_id", TOPIC_ID)))


def compacted_twice(topic: Topic) -> None:
    """The clean tail has a key twice."""
    topic.config["cleanup.policy"] = "compact"
    same = [Batch([record(at, key=b"same")], at, leader_epoch=0) for at in (100, 101, 102, 103)]
    resealed(same)(topic)
    topic.partitions[0]["first_dirty_offset"] = 104


def hole(topic: Topic) -> None:
    """The log passes over offsets that nothing took."""
    resealed([batch(at, leader_epoch=0) for at in (100, 101)])(topic)


def twice(topic: Topic) -> None:
    one = {"topic_id": TOPIC_ID, "application_id": "feed", "committed_ms": START_MS}
    topic.transactions += [{**one, "version": 3}, {**one, "version": 4}]


def write_wrong(writer: Writer) -> None:
    late = changed(batch(102, leader_epoch=0), max_timestamp=START_MS)
    back = [
        batch(100, leader_epoch=0),
        batch(102, leader_epoch=0),
        batch(101, leader_epoch=0),
        batch(103, leader_epoch=0),
    ]
    epoch = [batch(at, leader_epoch=3 if at == 102 else 0) for at in (100, 101, 102, 103)]
    other = "orders-1/00000000000000000000.aa" + UNIQUE[2:] + ".log"

    def gap(topic: Topic) -> None:
        topic.partitions[1]["partition"] = topic.segments[3]["partition"] = 2

    def elsewhere(topic: Topic) -> None:
        for suffix in ("log", "index", "timeindex"):
            stem = topic.segments[1]["path"].removesuffix("log")
            topic.write(other.removesuffix("log") + suffix, (topic.log / f"{stem}{suffix}").read_bytes())
        topic.segments[1]["path"] = other

    def same_file(topic: Topic) -> None:
        row = dict(topic.segments[1])
        topic.segments.append({**row, "base_offset": 108, "next_offset": 110, "offset_of_max_timestamp": 109})
        topic.partitions[0] |= {"log_end_offset": 110, "last_stable_offset": 110}

    def zeros(topic: Topic) -> None:
        sidecar(0, "index", lambda data: data + bytes(8))(topic)
        topic.segments[0]["index_bytes"] += 8

    def false_entry(data: bytearray) -> bytearray:
        return set_bytes(data, 4, struct.pack(">i", 5))

    def later_time(data: bytearray) -> bytearray:
        return set_bytes(data, 0, struct.pack(">q", START_MS + 5))

    def shared_bytes(topic: Topic) -> None:
        topic.segments[3]["position"] = 0

    def chunk_first(topic: Topic) -> None:
        topic.segments[0]["state"], topic.segments[1]["state"] = "chunk", "sealed"

    def no_last_time(topic: Topic) -> None:
        sidecar(1, "timeindex", lambda data: data[:-12])(topic)
        topic.segments[1]["time_index_bytes"] -= 12

    epochs = [{"epoch": 3, "start_offset": 100}, {"epoch": 2, "start_offset": 102}]
    overlap = rows(1, base_offset=103, next_offset=105)
    cases: dict[str, tuple[str, str, Callable[[Topic], Any]]] = {
        "overlapping-rows": ("two rows have offset 103", "M20", overlap),
        "rows-apart": ("no row has offset 104", "M20", rows(1, base_offset=105, next_offset=106)),
        "log-end-beyond": ("the log end is above the last row's next offset", "M20", partition(log_end_offset=109)),
        "log-end-below": ("rows reach beyond the log end", "M20", partition(log_end_offset=107)),
        "log-start-below": ("no row has the first offsets", "M20", partition(log_start_offset=99)),
        "no-rows": ("a partition with offsets and without rows", "M20", lambda topic: without_rows(topic, 3)),
        "chunk-before-sealed": ("a sealed row behind a chunk", "M21", chunk_first),
        "first-dirty-beyond": ("a first dirty offset above the log end", "M12", partition(first_dirty_offset=109)),
        "last-stable-beyond": ("a last stable offset above the log end", "M12", partition(last_stable_offset=109)),
        "start-above-end": ("a log start above the log end", "M12", partition(log_start_offset=110)),
        "epochs-fall": ("leader epochs that do not rise", "M13", partition(leader_epoch=2, leader_epochs=epochs)),
        "epoch-not-last": ("a leader epoch that is not the last", "M13", partition(leader_epoch=4)),
        "bad-producer-snapshot": ("a producer snapshot that is none", "M14", partition(producer_snapshot=b"\0\1zz")),
        "far-future": ("a row that was created in the year 3000", "M17", rows(1, created_ms=FAR_MS)),
        "path-twice": ("two rows of the same file", "M23", same_file),
        "path-of-another": ("a row of partition 0 with a path of partition 1", "D5", elsewhere),
        "partition-gap": ("partitions 0 and 2", "D4", gap),
        "removed-without-time": (
            "a removed row without removed_ms",
            "M24",
            lambda topic: topic.segments.append(
                {**topic.segments[1], "path": f"orders-0/{0:020d}.ee{UNIQUE[2:]}.log", "state": "removed"}
            ),
        ),
        "live-with-time": ("a live row with removed_ms", "M24", rows(1, removed_ms=START_MS)),
        "transaction-twice": ("two rows of an application", "M25", twice),
        "unknown-role": ("a role that nobody knows", "M26", states(role="spectator")),
        "holes-that-are-none": ("an entry of holes that is no JSON", "M27", states(**{"holes.0": "[{"})),
        "unrecorded-hole": ("offsets 102 and 103 are missing", "M27", hole),
        "no-uuid": ("a topic id that is no UUID", "M29", lambda topic: other_topic_id(topic, "orders")),
        "bad-setting": (
            "retention.ms is no number",
            "M30",
            lambda topic: topic.config.update({"retention.ms": "soon"}),
        ),
        "offsets-fall": ("batches whose offsets do not rise", "B3", resealed(back)),
        "younger-record": (
            "a record above its batch's maxTimestamp",
            "B14",
            resealed([batch(100, leader_epoch=0), batch(101, leader_epoch=0), late, batch(103, leader_epoch=0)]),
        ),
        "wrong-epoch": ("a batch with the leader epoch of no offset", "W13", resealed(epoch)),
        "beyond-the-row": (
            "a batch behind the row's next offset",
            "M16",
            resealed([batch(at, leader_epoch=0) for at in (100, 101, 102, 103, 104)]),
        ),
        "chunk-ends-early": ("a chunk's next offset is not that of its file", "M20", rows(1, next_offset=105)),
        "missing-index": ("an .index that is not there", "I8", without_file("index")),
        "missing-time-index": ("a .timeindex that is not there", "I8", without_file("timeindex")),
        "false-index-entry": ("an .index entry within a batch", "I2", sidecar(0, "index", false_entry)),
        "lacking-time-index-entry": ("a .timeindex without its last entry", "I3", no_last_time),
        "false-time-index-entry": ("a .timeindex entry of another time", "I4", sidecar(0, "timeindex", later_time)),
        "zeros-behind-an-index": ("an .index that ends in zeros", "I9", zeros),
        "aborted-not-told": ("an aborted transaction that no .txnindex has", "I6", aborts_not_told),
        "committed-told-aborted": ("a .txnindex that says too much", "I6", aborts_nothing),
        "shared-bytes": ("two runs with the same bytes", "O2", shared_bytes),
        "footer-differs": ("a footer that counts other records", "O3", lambda topic: run_footer(topic, records=3)),
        "footer-of-another": ("a footer of another topic", "O3", lambda topic: run_footer(topic, topic_id="A" * 22)),
        "sealed-run": ("a run that was sealed by its row", "O5", rows(2, state="sealed")),
        "key-twice": ("a key twice below the first dirty offset", "W15", compacted_twice),
    }
    truths = {
        "records": 3, "batches": 2, "tombstones": 1, "max_timestamp_ms": START_MS + 500,
        "first_batch_max_timestamp_ms": START_MS, "offset_of_max_timestamp": 104, "delete_horizon_ms": START_MS,
        "file_base_offset": 1,
    }  # fmt: skip
    for column, value in truths.items():
        cases[f"wrong-{column.replace('_', '-')}"] = (
            f"a row whose {column} is not true",
            "M16",
            rows(1, **{column: value}),
        )
    for name, (about, rules, alter) in cases.items():
        writer.altered(name, about, rules, with_nothing(alter), findings=rules)


def with_nothing(alter: Callable[[Topic], Any]) -> Callable[[Topic], None]:
    def done(topic: Topic) -> None:
        alter(topic)

    return done


# What a writer does wrong in silence: an append that follows a commit without a fault


def appended(
    log: Path,
    batches: Sequence[Batch] = (),
    *,
    config: Mapping[str, str] = {},
    partition: Mapping[str, Any] = {},
    edit: Callable[[list[dict]], list[dict]] = list,
    is_noted: bool = True,
) -> Sequence[Vector]:
    """`partition`: columns of its row after the append that are not true. `edit`: changes the actions of the append."""
    topic = Topic(log)
    topic.config |= config
    topic.partition()
    topic.commit()
    path = log / f"_manifest/orders/_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    topic.write_commit(0, [_identified(0), *actions[1:]])
    files = topic.write_noted(0, "create", [], [], [action for action in actions if "add" in action])
    row = topic.chunk(batches or [batch(0, 3)], 0)
    end = row["next_offset"]
    after = {**topic.partitions[0], "log_end_offset": end, "last_stable_offset": end, **partition}
    added = [topic.add("partition", [after], "part-1"), topic.add("segment", [row])]
    removed = {"remove": {"path": "kind=partition/part-0.parquet", "dataChange": True, "deletionTimestamp": START_MS}}
    topic.write_commit(1, edit([_identified(1), *added, removed]))
    if is_noted:
        topic.write_noted(1, "append", files, [removed], added)
    return [read(topic.records)]


def _with_stats(**stats: Any) -> Callable[[list[dict]], list[dict]]:
    """The actions with other statistics of the file of segments."""

    def edit(actions: list[dict]) -> list[dict]:
        add = actions[2]["add"]
        add["stats"] = json.dumps({**json.loads(add["stats"]), **stats})
        return actions

    return edit


def _without_id(actions: list[dict]) -> list[dict]:
    del actions[0]["commitInfo"]["commitId"]
    return actions


def _with_record_attributes() -> Batch:
    one = batch(0)
    encoded = one.records[0].encoded(one.records[0].timestamp)
    return changed(one, section=encoded[:1] + b"\1" + encoded[2:])


def write_silent(writer: Writer) -> None:
    """What readers read all the same, and the judge of writers has to find."""
    large = Batch([Record(0, b"v" * 40)])
    two = [large, changed(large, base_offset=1)]
    keyless = Batch([Record(0, b"no key")])
    transactional = Batch([record(0)], attributes=0x10, producer=(7, 0, 0))
    false = {"partition": 77, "base_offset": 77, "created_ms": START_MS}
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "false-bounds": ("bounds that leave rows out", "M34", {"edit": _with_stats(minValues=false, maxValues=false)}),
        "false-count": ("statistics that count other rows", "M34", {"edit": _with_stats(numRecords=9)}),
        "no-note": ("a commit without a note", "W23", {"is_noted": False}),
        "no-commit-id": ("a commit without an id", "W24", {"edit": _without_id}),
        "low-last-stable-offset": ("records that stay hidden", "M35", {"partition": {"last_stable_offset": 0}}),
        "high-last-stable-offset": ("an open transaction that is shown", "M35", {"batches": [transactional]}),
        "no-epochs": ("a partition without epochs", "M13", {"partition": {"leader_epochs": []}}),
        "large-batch": ("a batch that is too large", "M30", {"batches": two, "config": {"max.message.bytes": "90"}}),
        "large-chunk": ("a chunk that is too large", "W9", {"batches": two, "config": {"segment.bytes": "200"}}),
        "no-key": (
            "no key in a compacted topic",
            "W12",
            {"batches": [keyless], "config": {"cleanup.policy": "compact"}},
        ),
        "unknown-attributes": ("bit 7 of a batch", "B17", {"batches": [changed(batch(0), attributes=0x80)]}),
        "record-attributes": ("attributes of a record", "B18", {"batches": [_with_record_attributes()]}),
    }
    for name, (about, rule, fault) in cases.items():
        write = partial(appended, **fault)
        requests = {"findings": [rule]}
        writer.whole(name, about, rule, write if rule != "M34" else partial(_unread, write), **requests)


def _unread(write: Callable[[Path], Sequence[Vector]], log: Path) -> Sequence[Vector]:
    """A directory that a reader may read in part."""
    write(log)
    return []


def write_parquet_codecs(log: Path) -> Sequence[Vector]:
    """The files of rows in each compression that a writer may choose."""
    topic = plain(log)
    for kind, codec in (("topic", "snappy"), ("partition", "none"), ("segment", "snappy")):
        topic.codecs[kind] = codec
    topic.commit()
    return [read(topic.records)]


def write_least_timestamps(log: Path) -> Sequence[Vector]:
    """Rows that say the least timestamp of their files."""
    topic = plain(log)
    topic.extra["segment"] = {"min_timestamp_ms": "long"}
    for row in topic.segments:
        inside = [one for one in topic.records if row["base_offset"] <= one["offset"] < row["next_offset"]]
        row["min_timestamp_ms"] = min(one["timestamp"] for one in inside if one["partition"] == row["partition"])
    topic.commit()
    at = {"request": "offset_for_time", "topic": "orders", "partition": 0, "timestamp": START_MS + 105}
    return [read(topic.records), {**at, "offset": [105, START_MS + 105]}]


def write_sidecar_files(log: Path) -> Sequence[Vector]:
    """A checkpoint of Delta's second kind: its rows of segments are named by a file of its own, by another action."""
    topic = plain(log)
    topic.commit()
    delta = log / "_manifest/orders/_delta_log"
    actions = [json.loads(line) for line in (delta / f"{0:020d}.json").read_text().splitlines()][1:]
    segments = [action for action in actions if "kind=segment" in action.get("add", {}).get("path", "")]
    _write_checkpoint(log, "orders", 0, segments)
    checkpoint = delta / f"{0:020d}.checkpoint.parquet"
    (delta / "_sidecars").mkdir()
    file = checkpoint.rename(delta / "_sidecars/016ae953-37a9-438e-8683-9a9a4a79a395.parquet")
    _write_checkpoint(log, "orders", 0, [action for action in actions if action not in segments])
    rows = pq.read_table(checkpoint)
    sidecar = {"path": file.name, "sizeInBytes": file.stat().st_size, "modificationTime": START_MS}
    types = [(name, pa.string() if name == "path" else pa.int64()) for name in sidecar]
    schema = rows.schema.append(pa.field("sidecar", pa.struct(types)))
    named = pa.Table.from_pylist([*rows.to_pylist(), {"sidecar": sidecar}], schema)
    pq.write_table(named, checkpoint, compression="snappy")
    return [read(topic.records, may_refuse=True)]


def write_object_in_two_commits(log: Path) -> Sequence[Vector]:
    """The rows of an object's two runs, each by a commit of its own."""
    topic = plain(log)
    later = topic.segments.pop()
    topic.partitions[1] |= {"log_end_offset": 0, "last_stable_offset": 0}
    topic.commit()
    path = log / f"_manifest/orders/_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    topic.write_commit(0, [_identified(0), *actions[1:]])
    files = topic.write_noted(0, "create", [], [], [action for action in actions if "add" in action])
    moved = {**topic.partitions[1], "log_end_offset": 2, "last_stable_offset": 2}
    added = [topic.add("partition", [topic.partitions[0], moved], "part-1"), topic.add("segment", [later], "part-1")]
    removed = {"remove": {"path": "kind=partition/part-0.parquet", "dataChange": True, "deletionTimestamp": START_MS}}
    topic.write_commit(1, [_identified(1), *added, removed])
    topic.write_noted(1, "append", files, [removed], added)
    return [read(topic.records)]


def _noted_appends(log: Path) -> Topic:
    """Two appends with notes, of which the second alone has a mark; a note of each writer that came too late for the
    second, or died before it had made a third.
    """
    topic, files = _noted_topic(log, "orders")
    for number in (1, 2):
        before = files
        removed, added = _appended_rows(topic, number, f"part-{number}")
        topic.write_commit(number, [_identified(number), *added, *removed])
        files = topic.write_noted(number, "append", before, removed, added, is_marked=number == 2)
    records = list(topic.records)
    for number, state, name in ((2, before, "late"), (3, files, "dead")):
        removed, added = _appended_rows(topic, number, name)
        other = f"{0xF0 + number:032x}-0"
        topic.write_noted(number, "append", state, removed, added, name=other, is_marked=False)
    topic.records[:] = records
    return topic


def _appended_rows(topic: Topic, number: int, name: str) -> tuple[list[dict], list[dict]]:
    """The actions, removing and adding, of the append that makes a version: two records more."""
    row = topic.chunk([batch(0, 2, first=2 * number - 2)], 2 * number - 2)
    after = {**topic.partitions[0], "log_end_offset": 2 * number, "last_stable_offset": 2 * number}
    path = f"kind=partition/part-{number - 1}.parquet"
    removed = {"remove": {"path": path, "dataChange": True, "deletionTimestamp": START_MS}}
    return [removed], [topic.add("partition", [after], name), topic.add("segment", [row], name)]


def write_unproven_note(log: Path) -> Sequence[Vector]:
    """Notes of appends that were not made, beside a manifest."""
    topic = _noted_appends(log)
    return [read(topic.records), {"request": "offsets", "topic": "orders", "offsets": {"0": [0, 4]}}]


def write_lost_manifest(log: Path) -> Sequence[Vector]:
    """The same notes without the manifest: what it said follows from the note of the first append, which the second
    one's proves, and from that one's, which has a mark.
    """
    topic = _noted_appends(log)
    shutil.rmtree(log / "_manifest/orders")
    rebuilt = {"request": "rebuild", "topic": "orders", "records": topic.records}
    return [{"request": "topics", "topics": []}, refused(), rebuilt]


def write_running(log: Path, *, is_merged: bool) -> Sequence[Vector]:
    """A partition that a broker cleans while it is read. `is_merged`: the cleaner makes one segment of two."""
    keys = {0: b"a", 1: b"b", 2: b"a", 3: b"c", 4: b"c"}

    def segment(base: int, *offsets: int, last: int) -> Batch:
        return Batch([changed_record(record(at, key=keys[at]), at - base) for at in offsets], base, last_delta=last)

    whole = {0: [segment(0, 0, 1, last=1)], 2: [segment(2, 2, 3, last=1)], 4: [segment(4, 4, last=0)]}
    cleaned = {0: [segment(0, 1, last=1)], 2: [segment(2, 2, last=1)], 4: whole[4]}
    if is_merged:
        cleaned = {0: [*cleaned[0], *cleaned.pop(2)], 4: whole[4]}
    for directory, segments in (("orders-0", whole), ("after", cleaned)):
        (log / directory).mkdir(parents=True)
        for base, batches in segments.items():
            (log / directory / f"{base:020d}.log").write_bytes(b"".join(one.data for one in batches))
    records = [{"partition": 0, **one} for batches in cleaned.values() for part in batches for one in part.read(0)]
    return [{"request": "read_running", "isolation_level": "read_uncommitted", "records": records}]


def write_for_other_writers(
    log: Path, *, protocol: Mapping[str, int], configuration: Mapping[str, str]
) -> list[Vector]:
    """A table that asks its writers for more: it is read all the same."""
    topic = plain(log)

    def edit(actions: list[dict]) -> list[dict]:
        for action in actions:
            action.get("protocol", {}).update(protocol)
            action.get("metaData", {"configuration": {}})["configuration"].update(configuration)
        return actions

    edited(topic, edit)
    return [read(topic.records)]


def write_overlapping(log: Path) -> Sequence[Vector]:
    """Kafka's files after a crash: a compacted segment beside one that it replaced."""
    compacted = [batch(0), batch(4, 2)]
    replaced = [batch(2, 2), batch(4, 2)]
    later = [batch(6, 2)]
    for batches in (compacted, replaced, later):
        path = log / f"orders-0/{batches[0].base_offset:020d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(one.data for one in batches))
    records = [{"partition": 0, **one} for part in (*compacted, *later) for one in part.read(0)]
    return [{"request": "read_kafka", "isolation_level": "read_uncommitted", "records": records}]


# Kafka's own directories, and the witness of the format version


def witness(name: str, about: str, rules: str) -> Vector:
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    records = f"{name}/records.jsonl.xz"
    asked: list[Vector] = [{"request": "topics", "topics": sorted(expected["topics"])}]
    for level in ("read_uncommitted", "read_committed"):
        asked += [read(records, topic, isolation_level=level) for topic in sorted(expected["topics"])]
    return {"name": name, "about": about, "rules": rules.split(), "log": f"{name}/log", "requests": asked}


def of_kafka() -> Iterator[Vector]:
    for name in [one for one in CLEAN_DIRECTORIES if one not in LARGE_DIRECTORIES] + [*LEGACY_DIRECTORIES, "live-0"]:
        asked = [_read_kafka(f"{name}.expected.jsonl.xz", start=500 if name == "broker-data/orders-0" else None)]
        if any("committed" in one for one in _lines(name, "expected")):
            asked.append({**asked[0], "isolation_level": "read_committed"})
        yield _kafka(f"kafka/{name}", "K1 K5" if len(asked) > 1 else "K1", name, asked)
    for name in ("cleaned-left", "swap-left", "swap-half", "swap-and-cleaned", "deleted-left"):
        [directory] = (GOLDEN / "cleaner-crash" / name).glob("*-0")
        cleaned = name in ("swap-left", "swap-half", "deleted-left")
        expected = f"latest-price/{'after-clean-1' if cleaned else 'before-clean'}/latest-price-0.expected.jsonl.xz"
        place = directory.relative_to(GOLDEN).as_posix()
        yield _kafka(f"kafka/cleaner-crash/{name}", "K2", place, [_read_kafka(expected)])


def _kafka(name: str, rules: str, directory: str, asked: list[Vector]) -> Vector:
    about = "a partition directory that Kafka wrote; tests/golden/README.md describes it"
    return {"name": name, "about": about, "rules": rules.split(), "kafka": directory, "requests": asked}


def _read_kafka(records: str, start: int | None = None) -> Vector:
    asked: Vector = {"request": "read_kafka", "isolation_level": "read_uncommitted", "records": records}
    return asked if start is None else {**asked, "from": start}


def main(directory: Path) -> None:
    writer = Writer(directory / "vectors")
    plain_rules = "D3 D6 M1 R1 R3 R8 R10 O1"
    writer.whole("plain", "a sealed segment, a chunk, a shared object", plain_rules, write_plain)
    writer.whole("first-append", "the literal example: a topic is made, and appended to", "M1 R7", write_first_append)
    writer.whole("noted", "an append with notes of its commits", "W23 W24", write_noted)
    writer.whole("codecs", "each form of a records section", "B7 B8 B9 B10", write_codecs)
    writer.whole("batches", "emptied batches, gaps, headers, timestamps", "B4 B5 B6", write_batches)
    writer.whole("legacy", "Kafka's messages of magic 0 and 1", "B15 B16", write_legacy)
    writer.whole("transactions", "aborted, committed and open transactions", "B12 R2 R4 R5", write_transactions)
    writer.whole("times", "look-ups by time", "I5 R9", write_times)
    writer.whole("checkpoint", "files in the order of no listing, a wrong hint", "M1 R7", write_checkpoint)
    writer.whole("rebuilt", "a manifest that was made anew", "M1 M2", write_rebuilt)
    writer.whole("topics", "what is a topic, and what is none", "D3 D6 D7 M11 M26", write_topics)
    write_snares(writer)
    write_refused(writer)
    write_wrong(writer)
    write_silent(writer)
    writer.whole("parquet-codecs", "each compression of files of rows", "M36", write_parquet_codecs)
    writer.whole("least-timestamps", "rows with the least timestamp of their files", "R11 M33", write_least_timestamps)
    newer = partial(write_for_other_writers, protocol={"minWriterVersion": 3}, configuration={})
    writer.whole("writer-version-3", "a table that asks writers for more", "M4", newer)
    only = partial(write_for_other_writers, protocol={}, configuration={"delta.appendOnly": "true"})
    writer.whole("append-only", "a table that takes no removals", "M32", only)
    sidecars = "a checkpoint that names a file of actions"
    writer.whole("sidecar-files", sidecars, "M6", write_sidecar_files)
    objects = "rows of an object in two commits"
    writer.whole("object-in-two-commits", objects, "O4", write_object_in_two_commits, findings=["O4"])
    writer.whole("unproven-notes", "notes of appends that were not made", "D10", write_unproven_note)
    writer.whole("lost-manifest", "what a rebuild of a lost manifest has", "D7 D10", write_lost_manifest)
    asked = list(write_overlapping(writer.directory / "overlapping"))
    overlapping = {"name": "overlapping", "about": "Kafka's segments that overlap", "rules": ["K3"]}
    writer.index.append({**overlapping, "kafka": "vectors/overlapping/orders-0", "requests": asked})
    for name, is_merged in (("running-cleaned", False), ("running-merged", True)):
        asked = list(write_running(writer.directory / name, is_merged=is_merged))
        running = {"name": name, "about": "a broker cleans a partition while it is read", "rules": ["K4"]}
        place = f"vectors/{name}"
        writer.index.append({**running, "kafka": f"{place}/orders-0", "then": f"{place}/after", "requests": asked})
    index = [witness("format-2", "a log directory of format version 2", "D8 R4 R5 O1")]
    index += [*writer.index, *of_kafka()]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in index)
    (directory / "vectors.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
