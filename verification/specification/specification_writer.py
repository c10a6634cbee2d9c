"""A writer of log directories, written from docs/format alone: byte by byte, and importing nothing of the package.

`Batch` makes record batches, `Topic` the files and the manifest of a topic, whose rows may be as wrong as its caller
wants them. What was written is known, so that readers are held against it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq

START_MS = 1_700_000_000_000
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
UNIQUE = "0123456789abcdef" * 2

TYPES = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
MAP = {"type": "map", "keyType": "string", "valueType": "string"}

# The columns of each kind of rows, by Delta's names of types.
TOPIC = {"topic_id": "string", "properties": MAP, "deleted_topics": MAP, "states": MAP}
PARTITION = {
    "topic_id": "string",
    "partition": "integer",
    **dict.fromkeys(("log_start_offset", "log_end_offset", "first_dirty_offset", "last_stable_offset"), "long"),
    "leader_epoch": "integer",
    "leader_epochs": {"epoch": "integer", "start_offset": "long"},
    "producer_snapshot": "binary",
}
SEGMENT = {
    "topic_id": "string",
    "partition": "integer",
    "base_offset": "long",
    "next_offset": "long",
    "path": "string",
    **dict.fromkeys(("file_base_offset", "log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes"), "long"),
    **dict.fromkeys(("records", "batches", "first_batch_max_timestamp_ms", "max_timestamp_ms"), "long"),
    **dict.fromkeys(("offset_of_max_timestamp", "tombstones", "delete_horizon_ms", "created_ms"), "long"),
    "state": "string",
    "removed_ms": "long",
    "position": "long",
    "index_position": "long",
}
TRANSACTION = {
    "topic_id": "string",
    "application_id": "string",
    "version": "long",
    "query_id": "string",
    "committed_ms": "long",
}
COLUMNS: dict[str, dict[str, Any]] = {
    "topic": TOPIC,
    "segment": SEGMENT,
    "partition": PARTITION,
    "transaction": TRANSACTION,
}


# Batches


@dataclass(frozen=True)
class Record:
    """A record as a reader gives it. `offset` counts from the batch's base offset."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = START_MS
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def encoded(self, base_timestamp: int) -> bytes:
        body = b"\0" + varint(self.timestamp - base_timestamp) + varint(self.offset)
        body += _bytes(self.key) + _bytes(self.value) + varint(len(self.headers))
        for name, value in self.headers:
            body += _bytes(name.encode()) + _bytes(value)
        return varint(len(body)) + body


@dataclass(frozen=True)
class Batch:
    """A record batch. `base_offset`: in the bytes of its file. `section`: the records section where it is another than
    that of the records. `producer`: id, epoch, base sequence.
    """

    records: Sequence[Record] = ()
    base_offset: int = 0
    codec: int = 0
    compress: Callable[[bytes], bytes] = bytes
    attributes: int = 0
    leader_epoch: int = -1
    producer: tuple[int, int, int] = (-1, -1, -1)
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    last_delta: int | None = None
    count: int | None = None
    section: bytes | None = None

    @property
    def last_offset(self) -> int:
        delta = max((record.offset for record in self.records), default=0)
        return self.base_offset + (delta if self.last_delta is None else self.last_delta)

    @property
    def largest(self) -> int:
        """maxTimestamp."""
        largest = max((record.timestamp for record in self.records), default=-1)
        return largest if self.max_timestamp is None else self.max_timestamp

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def data(self) -> bytes:
        first = self.records[0].timestamp if self.records else -1
        base = first if self.base_timestamp is None else self.base_timestamp
        section = b"".join(record.encoded(base) for record in self.records) if self.section is None else self.section
        count = len(self.records) if self.count is None else self.count
        rest = struct.pack(
            ">hiqq", self.attributes | self.codec, self.last_offset - self.base_offset, base, self.largest
        )
        rest += struct.pack(">qhii", *self.producer, count) + self.compress(section)
        head = struct.pack(">qiib", self.base_offset, 9 + len(rest), self.leader_epoch, 2)
        return head + struct.pack(">I", crc32c.crc32c(rest)) + rest

    def read(self, shift: int) -> list[dict[str, Any]]:
        """The records as the kit has them, at offsets of the log."""
        appended = self.attributes >> 3 & 1
        return [
            {
                "offset": self.base_offset + record.offset + shift,
                "timestamp": self.largest if appended else record.timestamp,
                "timestampType": appended,
                "key": text(record.key),
                "value": text(record.value),
                "headers": [[name, text(value)] for name, value in record.headers],
            }
            for record in self.records
        ]


def marker(base_offset: int, producer_id: int, kind: int, *, leader_epoch: int = 0) -> Batch:
    """A control batch: 0 aborts the producer's transaction, 1 commits it."""
    record = Record(0, struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))
    return Batch([record], base_offset, attributes=0x30, producer=(producer_id, 0, -1), leader_epoch=leader_epoch)


def text(data: bytes | None) -> str | None:
    """Bytes as base64."""
    return None if data is None else base64.b64encode(data).decode()


def varint(number: int) -> bytes:
    zigzag, out = number << 1 ^ number >> 63, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


# Sidecars


def indexes(batches: Sequence[Batch], name_offset: int, interval_bytes: int) -> tuple[bytes, bytes]:
    """The .index and the .timeindex of a file."""
    index, times = [], []
    position = since = 0
    largest, offset = -1, -1
    for batch in batches:
        if batch.largest > largest:
            largest, offset = batch.largest, batch.last_offset - name_offset
        if since > interval_bytes:
            index.append(struct.pack(">ii", batch.last_offset - name_offset, position))
            if not times or largest > times[-1][0]:
                times.append((largest, offset))
            since = 0
        since += len(batch.data)
        position += len(batch.data)
    if largest > (times[-1][0] if times else -1):
        times.append((largest, offset))
    return b"".join(index), b"".join(struct.pack(">qi", *entry) for entry in times)


def aborted(producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int) -> bytes:
    """An entry of a .txnindex."""
    return struct.pack(">hqqqq", 0, producer_id, first_offset, last_offset, last_stable_offset)


def footer(runs: Sequence[tuple[int, ...]], topic_id: str = TOPIC_ID) -> bytes:
    """The footer of a shared object. A run: the nine fields of an entry."""
    found = struct.pack(">hqih", 1, START_MS, len(runs), len(topic_id)) + topic_id.encode()
    found += b"".join(struct.pack(">iqqqiiqqq", *run) for run in runs)
    return found + struct.pack(">Ii", crc32c.crc32c(found), len(found)) + b"SEGRUNS\n"


# Topics


def digest(paths: Iterable[str]) -> str:
    """The state of a manifest in a note."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


def note(
    topic: str,
    version: int,
    commit: str,
    operation: str,
    committed_ms: int,
    *,
    before: Iterable[str],
    removed: Sequence[str],
    added: Sequence[tuple[str, str, int, bytes]],
) -> bytes:
    """The note of a commit. `commit`: its id and try. `before`: the paths of the files of the version before it.
    `added`: path, kind, number of rows and content of each file.
    """
    files = set(before)
    after = (files - set(removed)) | {path for path, *_ in added}
    payload = b"".join(content for *_, content in added)
    head = {"format.version": 1, "topic": topic, "version": version, "commit": commit, "operation": operation}
    head |= {"committed_ms": committed_ms, "before": digest(files), "after": digest(after), "removed": list(removed)}
    names = ("path", "kind", "rows", "size")
    head["added"] = [dict(zip(names, (*file[:3], len(file[3])), strict=True)) for file in added]
    head |= {"transactions": {}, "crc32": zlib.crc32(payload)}
    line = json.dumps(head).encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line) + payload


@dataclass
class Topic:
    """A topic that is being written: its rows as they come, and the files that they name, at once."""

    log: Path
    name: str = "orders"
    config: dict[str, str | None] = field(default_factory=lambda: {"retention.ms": "-1", "index.interval.bytes": "100"})
    topic: dict[str, Any] = field(default_factory=dict)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    transactions: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further columns, by kind of rows."""
    codecs: dict[str, str] = field(default_factory=dict)
    """The compression of the files of rows, by kind; zstd where nothing is said."""
    _files: int = 0

    def partition(self, number: int = 0, start: int = 0, **columns: Any) -> dict[str, Any]:
        """A partition's row. Its log end is that of the last segment, where nothing else is said."""
        ends = [row["next_offset"] for row in self.segments if row["partition"] == number and _is_live(row)]
        end = max([start, *ends])
        offsets = {"log_start_offset": start, "log_end_offset": end, "first_dirty_offset": start}
        row = {"topic_id": TOPIC_ID, "partition": number, **offsets, "last_stable_offset": end, "leader_epoch": 0}
        self.partitions.append({**row, "leader_epochs": [{"epoch": 0, "start_offset": start}], **columns})
        return self.partitions[-1]

    def sealed(self, batches: Sequence[Batch], partition: int = 0, *, aborts: bytes = b"", **columns: Any) -> dict:
        """A sealed segment, whose file has the offsets of the log."""
        base = batches[0].base_offset
        return self.own(batches, base, base, partition, aborts=aborts, **{"state": "sealed", **columns})

    def chunk(self, batches: Sequence[Batch], base_offset: int, partition: int = 0, **columns: Any) -> dict:
        """A chunk with files of its own."""
        return self.own(batches, base_offset, 0, partition, **columns)

    def own(
        self,
        batches: Sequence[Batch],
        base_offset: int,
        name_offset: int,
        partition: int = 0,
        *,
        aborts: bytes = b"",
        **columns: Any,
    ) -> dict[str, Any]:
        """A segment with files of its own, and its row. `columns`: what the row says instead of the truth."""
        path = self._path(f"{self.name}-{partition}", name_offset)
        log = b"".join(batch.data for batch in batches)
        index, times = indexes(batches, name_offset, self._interval)
        contents = {"log": log, "index": index, "timeindex": times, "txnindex": aborts}
        for suffix, content in contents.items():
            if content or suffix != "txnindex":
                self.write(f"{path}.{suffix}", content)
        sizes = {"index_bytes": len(index), "time_index_bytes": len(times), "txn_index_bytes": len(aborts)}
        row = self.row(batches, f"{path}.log", base_offset, name_offset, partition)
        return self._add({**row, **sizes, **columns}, batches)

    def shared(self, runs: Mapping[int, tuple[int, Sequence[Batch]]]) -> list[dict[str, Any]]:
        """A shared object. `runs`: by partition, the base offset in the log and the batches."""
        path = self._path(f"{self.name}-shared", 0) + ".log"
        log = b"".join(batch.data for _, batches in runs.values() for batch in batches)
        sidecars, entries, rows, position = b"", [], [], 0
        for partition, (base_offset, batches) in runs.items():
            index, times = indexes(batches, 0, self._interval)
            row = self.row(batches, path, base_offset, 0, partition)
            row |= {"position": position, "index_position": len(log) + len(sidecars)}
            row |= {"index_bytes": len(index), "time_index_bytes": len(times)}
            counts = (batches[-1].last_offset + 1, row["records"], row["batches"])
            places = (position, row["log_bytes"], row["index_position"], len(index), len(times))
            entries.append((partition, *places, *counts))
            rows.append(self._add(row, batches))
            sidecars, position = sidecars + index + times, position + row["log_bytes"]
        self.write(path, log + sidecars + footer(entries))
        return rows

    def row(
        self, batches: Sequence[Batch], path: str, base_offset: int, name_offset: int, partition: int
    ) -> dict[str, Any]:
        """The row of a segment that is all of these batches, in the state of a chunk."""
        largest = max((batch.largest for batch in batches), default=-1)
        shift = base_offset - name_offset
        at = next((batch.last_offset + shift for batch in batches if batch.largest == largest >= 0), -1)
        horizons = [batch.base_timestamp for batch in batches if batch.attributes & 0x40]
        counted = [record for batch in batches for record in batch.records if not batch.is_control]
        return {
            "topic_id": TOPIC_ID,
            "partition": partition,
            "base_offset": base_offset,
            "next_offset": batches[-1].last_offset + shift + 1,
            "path": path,
            "file_base_offset": name_offset,
            "log_bytes": sum(len(batch.data) for batch in batches),
            "index_bytes": 0,
            "time_index_bytes": 0,
            "txn_index_bytes": 0,
            "records": sum(len(batch.records) for batch in batches),
            "batches": len(batches),
            "first_batch_max_timestamp_ms": batches[0].largest,
            "max_timestamp_ms": largest,
            "offset_of_max_timestamp": at,
            "tombstones": sum(record.value is None for record in counted),
            "delete_horizon_ms": min(horizons, default=None),
            "created_ms": START_MS,
            "state": "chunk",
            "removed_ms": None,
            "position": 0,
            "index_position": None,
        }

    def _add(self, row: dict[str, Any], batches: Sequence[Batch]) -> dict[str, Any]:
        self.segments.append(row)
        if not _is_live(row):
            return row
        shift = row["base_offset"] - row["file_base_offset"]
        for batch in batches:
            if not batch.is_control:
                inside = [one for one in batch.read(shift) if row["base_offset"] <= one["offset"] < row["next_offset"]]
                self.records += [{"partition": row["partition"], **one} for one in inside]
        return row

    def write(self, path: str, content: bytes) -> None:
        """A file of the log directory."""
        (self.log / path).parent.mkdir(parents=True, exist_ok=True)
        (self.log / path).write_bytes(content)

    def _path(self, directory: str, name_offset: int) -> str:
        self._files += 1
        return f"{directory}/{name_offset:020d}.{self._files:02x}{UNIQUE[2:]}"

    @property
    def _interval(self) -> int:
        return int(self.config.get("index.interval.bytes") or "4096")

    # The manifest

    def commit(self, number: int = 0, *, more: Sequence[dict] = (), stats: bool = True) -> None:
        """Writes all rows, and the commit of this number that adds them; commit 0 makes the table."""
        marker_file = self.log / "_manifest" / "log-directory.json"
        if not marker_file.exists():
            self.write("_manifest/log-directory.json", b'{"format.version": 1}')
        properties = {"format.version": "2", **self.config}
        properties = {name: value for name, value in properties.items() if value is not None}
        topic = {"topic_id": TOPIC_ID, "properties": properties, "deleted_topics": {}, "states": {}, **self.topic}
        actions: list[dict] = [commit_info(number), *(table(self.name) if number == 0 else ())]
        kinds = {"topic": [topic], "partition": self.partitions, "segment": self.segments}
        kinds |= {"transaction": self.transactions} if self.transactions else {}
        actions += [self.add(kind, rows, stats=stats) for kind, rows in kinds.items() if rows]
        self.write_commit(number, [*actions, *more])

    def add(self, kind: str, rows: Sequence[dict[str, Any]], name: str = "part-0", *, stats: bool = True) -> dict:
        """Writes a Parquet file of rows, and gives the action that adds it."""
        columns = {**COLUMNS[kind], **self.extra.get(kind, {})}
        wanted = [{column: _plain(row.get(column)) for column in columns} for row in rows]
        path = f"kind={kind}/{name}.parquet"
        place = f"_manifest/{self.name}/{path}"
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_pylist(wanted, arrow(columns)),
            sink,
            compression=self.codecs.get(kind, "zstd"),
            store_schema=False,
        )
        self.write(place, sink.getvalue().to_pybytes())
        return add_action(path, kind, (self.log / place).stat().st_size, rows if stats else None)

    def write_noted(
        self,
        number: int,
        operation: str,
        before: Sequence[str],
        removed: Sequence[dict],
        added: Sequence[dict],
        *,
        name: str | None = None,
        is_marked: bool = True,
    ) -> list[str]:
        """Writes the note of a commit and, where it was made and its writer lived on, the mark. `removed`, `added`:
        actions. `name`: its id, of 32 digits, and its try. Returns the paths of the version that it makes.
        """
        name = name or f"{number:032x}-0"
        gone = [action["remove"]["path"] for action in removed]
        files = []
        for action in (action["add"] for action in added):
            rows = json.loads(action["stats"])["numRecords"]
            content = (self.log / f"_manifest/{self.name}/{action['path']}").read_bytes()
            files.append((action["path"], action["partitionValues"]["kind"], rows, content))
        path = f"_recovery/{self.name}/{number:020d}.{name}"
        content = note(self.name, number, name, operation, START_MS, before=before, removed=gone, added=files)
        self.write(f"{path}.note", content)
        if is_marked:
            self.write(f"{path}.made", b"{}\n")
        return [*(one for one in before if one not in gone), *(file[0] for file in files)]

    def write_commit(self, number: int, actions: Sequence[dict]) -> None:
        lines = "\n".join(json.dumps(action) for action in actions)
        self.write(f"_manifest/{self.name}/_delta_log/{number:020d}.json", lines.encode())


def _is_live(row: Mapping[str, Any]) -> bool:
    return row["topic_id"] == TOPIC_ID and row["state"] in ("chunk", "sealed")


def _plain(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def commit_info(number: int) -> dict:
    info = {
        "timestamp": START_MS,
        "operation": "WRITE",
        "commitId": f"commit-{number}",
        "attempt": 0,
        "change": "append" if number else "create",
    }
    return {"commitInfo": info}


def add_action(path: str, kind: str, size: int, rows: Sequence[Mapping[str, Any]] | None) -> dict:
    """`rows`: those of the file; None: it gets no statistics."""
    add = {"path": path, "partitionValues": {"kind": kind}, "size": size, "modificationTime": START_MS}
    add |= {"dataChange": True}
    if rows is not None:
        found: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
        for name in ("partition", "base_offset", "created_ms"):
            values = [row[name] for row in rows if name in row]
            if values:
                found["minValues"][name], found["maxValues"][name] = min(values), max(values)
                found["nullCount"][name] = 0
        add["stats"] = json.dumps(found)
    return {"add": add}


def table(name: str, *, reader: int = 1, features: Sequence[str] = ()) -> list[dict]:
    """The actions that make a table."""
    columns = {"kind": "string"}
    for of_kind in COLUMNS.values():
        columns |= of_kind
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": 2}
    if features:
        protocol |= {"minWriterVersion": 7, "readerFeatures": list(features), "writerFeatures": list(features)}
    configuration = {
        "delta.enableExpiredLogCleanup": "false",
        "delta.deletedFileRetentionDuration": "interval 0 seconds",
        "delta.dataSkippingStatsColumns": "partition,base_offset,created_ms",
    }
    metadata = {
        "id": "a8b5f1c2-0000-4000-8000-000000000000",
        "name": name,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields(columns)}),
        "partitionColumns": ["kind"],
        "createdTime": START_MS,
        "configuration": configuration,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def fields(columns: Mapping[str, Any]) -> list[dict]:
    """Columns as Delta's schema has them."""
    return [
        {"name": name, "type": _delta_type(kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]


def _delta_type(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if "keyType" in kind:
        return {**kind, "valueContainsNull": True}
    return {"type": "array", "elementType": {"type": "struct", "fields": fields(kind)}, "containsNull": True}


def arrow(columns: Mapping[str, Any]) -> pa.Schema:
    """Columns as the Parquet files have them."""
    types = []
    for name, kind in columns.items():
        if isinstance(kind, str):
            types.append((name, TYPES[kind]))
        elif "keyType" in kind:
            types.append((name, pa.map_(pa.string(), pa.string())))
        else:
            types.append((name, pa.list_(pa.struct([(key, TYPES[inner]) for key, inner in kind.items()]))))
    return pa.schema(types)


def changed(batch: Batch, **fields: Any) -> Batch:
    """The batch with other fields."""
    return dataclasses.replace(batch, **fields)
