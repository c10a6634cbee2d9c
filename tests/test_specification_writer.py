"""Log directories written by hand, from docs/format alone, are read, rolled and appended to by this package.

There is one of each format version of topics; that of version 2 has a shared object in place of a chunk's own files.
Nothing of the package writes here: the batch, its sidecars, the Parquet files and the commit are made byte by byte.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from tests.specification_reader import ManagedLog

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
START_MS = 1_700_000_000_000
VALUES = [b"tea", b"rice", None]

TYPES = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
TOPIC = {"topic_id": "string", "properties": {"type": "map", "keyType": "string", "valueType": "string"}}
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
}
# What format version 2 has besides.
MAP = TOPIC["properties"]
TOPIC_2 = {**TOPIC, "deleted_topics": MAP, "states": MAP}
SEGMENT_2 = {**SEGMENT, "position": "long", "index_position": "long"}
TRANSACTION = {
    "topic_id": "string",
    "application_id": "string",
    "version": "long",
    "query_id": "string",
    "committed_ms": "long",
}


def _varint(number: int) -> bytes:
    zigzag, out = number << 1 ^ number >> 63, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _batch(values: list[bytes | None]) -> bytes:
    """A batch at offset 0 without compression: keys are numbers, a record a millisecond."""
    records = b""
    for number, value in enumerate(values):
        body = b"\0" + _varint(number) + _varint(number) + _bytes(b"%d" % number) + _bytes(value) + _varint(0)
        records += _varint(len(body)) + body
    last = len(values) - 1
    rest = struct.pack(">hiqqqhii", 0, last, START_MS, START_MS + last, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c.crc32c(rest)) + rest


def _delta_type(kind: str | dict) -> str | dict:
    if isinstance(kind, str):
        return kind
    if "keyType" in kind:
        return {**kind, "valueContainsNull": True}
    return {"type": "array", "elementType": {"type": "struct", "fields": _fields(kind)}, "containsNull": True}


def _fields(columns: dict) -> list[dict]:
    return [
        {"name": name, "type": _delta_type(kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]


def _arrow(columns: dict) -> pa.Schema:
    types = []
    for name, kind in columns.items():
        if isinstance(kind, str):
            types.append((name, TYPES[kind]))
        elif "keyType" in kind:
            types.append((name, pa.map_(pa.string(), pa.string())))
        else:
            types.append((name, pa.list_(pa.struct([(key, TYPES[inner]) for key, inner in kind.items()]))))
    return pa.schema(types)


def _add(table: Path, kind: str, columns: dict, rows: list[dict]) -> dict:
    """Writes the rows of a kind, and gives the action that adds them."""
    path = f"kind={kind}/part-0.parquet"
    (table / path).parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, _arrow(columns)), table / path, compression="zstd")
    size = (table / path).stat().st_size
    return {
        "add": {
            "path": path,
            "partitionValues": {"kind": kind},
            "size": size,
            "modificationTime": START_MS,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
    }


def _footer(log_bytes: int, time_index_bytes: int) -> bytes:
    """The footer of a shared object with one run, of partition 0."""
    footer = struct.pack(">hqih", 1, START_MS, 1, len(TOPIC_ID)) + TOPIC_ID.encode()
    footer += struct.pack(">iqqqiiqqq", 0, 0, log_bytes, log_bytes, 0, time_index_bytes, len(VALUES), len(VALUES), 1)
    return footer + struct.pack(">Ii", crc32c.crc32c(footer), len(footer)) + b"SEGRUNS\n"


@pytest.fixture(params=[1, 2])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log directory with topic orders: one partition, one chunk of three records that stands at offset 100."""
    version = request.param
    batch, last = _batch(VALUES), len(VALUES) - 1
    time_index = struct.pack(">qi", START_MS + last, last)
    manifest, place = tmp_path / "log" / "_manifest", "orders-0" if version == 1 else "orders-shared"
    (tmp_path / "log" / place).mkdir(parents=True)
    stem = "00000000000000000000." + "0123456789abcdef" * 2
    path = tmp_path / "log" / place / f"{stem}.log"
    if version == 1:
        path.write_bytes(batch)
        path.with_suffix(".index").write_bytes(b"")
        path.with_suffix(".timeindex").write_bytes(time_index)
    else:
        path.write_bytes(batch + time_index + _footer(len(batch), len(time_index)))

    table = manifest / "orders"
    (table / "_delta_log").mkdir(parents=True)
    (manifest / "log-directory.json").write_text('{"format.version": 1}')
    segment = {
        "topic_id": TOPIC_ID,
        "partition": 0,
        "base_offset": 100,
        "next_offset": 103,
        "path": f"{place}/{stem}.log",
        "file_base_offset": 0,
        "log_bytes": len(batch),
        "index_bytes": 0,
        "time_index_bytes": 12,
        "txn_index_bytes": 0,
        "records": 3,
        "batches": 1,
        "first_batch_max_timestamp_ms": START_MS + last,
        "max_timestamp_ms": START_MS + last,
        "offset_of_max_timestamp": 102,
        "tombstones": 1,
        "created_ms": START_MS,
        "state": "chunk",
    }
    if version == 2:
        segment |= {"position": 0, "index_position": len(batch)}
    topic_columns, segment_columns = (TOPIC, SEGMENT) if version == 1 else (TOPIC_2, SEGMENT_2)
    columns = {"kind": "string", **topic_columns, **segment_columns, **PARTITION}
    offsets = {"log_start_offset": 100, "log_end_offset": 103, "first_dirty_offset": 100, "last_stable_offset": 103}
    epochs = {"leader_epoch": 0, "leader_epochs": [{"epoch": 0, "start_offset": 100}]}
    properties = [("format.version", str(version)), ("retention.ms", "-1")]
    topic = {"topic_id": TOPIC_ID, "properties": properties}
    if version == 2:
        columns |= TRANSACTION
        topic |= {"deleted_topics": [], "states": [("role", "leader")]}
    actions = [
        {"commitInfo": {"timestamp": START_MS, "operation": "WRITE", "commitId": "first", "attempt": 0}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a8b5f1c2-0000-4000-8000-000000000000",
                "name": "orders",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": _fields(columns)}),
                "partitionColumns": ["kind"],
                "configuration": {"delta.enableExpiredLogCleanup": "false"},
                "createdTime": START_MS,
            }
        },
        _add(table, "topic", topic_columns, [topic]),
        _add(table, "partition", PARTITION, [{"topic_id": TOPIC_ID, "partition": 0, **offsets, **epochs}]),
        _add(table, "segment", segment_columns, [segment]),
        {"txn": {"appId": f"feed@{TOPIC_ID}", "version": 7}},
    ]
    if version == 2:
        transaction = {"topic_id": TOPIC_ID, "application_id": "feed", "version": 7, "committed_ms": START_MS}
        actions.append(_add(table, "transaction", TRANSACTION, [transaction]))
    commit = table / "_delta_log" / "00000000000000000000.json"
    commit.write_text("\n".join(json.dumps(action) for action in actions))
    return tmp_path / "log"


def _read(log: LogDir) -> list[tuple[int, bytes | None]]:
    batches = log.read("orders", columns=["offset", "value"])
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_it_is_read_and_has_no_fault(directory: Path) -> None:
    log = LogDir.open(str(directory))

    assert log.topics() == ["orders"] and log.offsets("orders") == {0: (100, 103)}
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None)]
    assert log.offsets_for_times("orders", START_MS + 1) == {0: (101, START_MS + 1)}
    assert verify(log, deep=True).errors == 0


def test_it_is_appended_to_and_rolled(directory: Path) -> None:
    log, table = LogDir.open(str(directory)), pa.table({"key": [b"k"], "value": [b"figs"]})

    assert log.append("orders", table, txn=("feed", 7)) == {}
    assert log.append("orders", table, txn=("feed", 8)) == {0: (103, 103)}
    assert ManagedLog(directory).snapshot("orders").transactions[f"feed@{TOPIC_ID}"] == 8
    roll(log, now_ms=START_MS + 10**12)
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None), (103, b"figs")]
    assert verify(log, deep=True).errors == 0
    assert {segment["state"] for segment in ManagedLog(directory).snapshot("orders").segments[0]} == {"sealed"}
