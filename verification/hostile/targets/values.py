"""Values of every format that strangers wrote: what comes of them is opened by those who read tables."""

from __future__ import annotations

import json
import os
import re
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.errors import SegmentsError
from verification.hostile.mutations import NO_TEXT, mutated
from verification.hostile.targets import Run
from verification.hostile.targets.contents import AVRO, AVRO_TREE, CONNECT, JSON_SCHEMA, mutated_json

TABLES = 500
"""One of so many inputs becomes a table beside a topic, by the command's own way."""

GROUP = 10
"""So many inputs share a file."""

WIDE = (
    "a string, b array<string>, c map<string,string>, i int, l bigint, d double, t timestamp, dt date, "
    "n decimal(10,2), x binary, f boolean, s struct<y:string,z:double>"
)
FLAT = "a string, i int, d double, t timestamp, n decimal(10,2)"
_ROW = (
    '{"a": "caf\u00e9", "b": ["x", null], "c": {"k": "v"}, "i": 7, "l": -1, "d": 1.5, "t": "2026-01-01T00:00:00Z", '
    '"dt": "2026-01-01", "n": 1.25, "x": "YQ==", "f": true, "s": {"y": "z", "z": 1e3}}'
).encode()
_PAYLOAD = {"id": 7, "at": 1_700_000_000_000, "price": "AQ==", "tags": ["x"], "more": {"k": 1.5}}
_ENVELOPE = json.dumps({"schema": json.loads(CONNECT), "payload": _PAYLOAD}).encode()
_OTHER_ENVELOPE = (
    b'{"schema":{"type":"struct","fields":[{"field":"id","type":"string"}]},"payload":{"id":"caf\xc3\xa9"}}'
)
_ORDER = b'{"id": 7, "line": {"n": 1}, "tags": ["x", null], "more": {"k": 1.5}}'
PROTOS = [
    """syntax = "proto2"; message M { optional int32 a = 1; optional group G = 2 { optional string x = 1; }
    repeated group R = 3 { required int32 n = 1; } optional string s = 4; }""",
    """edition = "2023"; message M { int32 a = 1; string b = 2; repeated int32 d = 4; map<string, string> m = 5; }""",
    """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/struct.proto";
    message M { google.protobuf.Timestamp t = 1; google.protobuf.Value v = 3; uint64 u = 4; M more = 5; }""",
]
_BODIES = ("0805130a026869141b08031c1b08041c220161", "", "0801220201022a060a016b120178")
_MORE_BODIES = ("0a020803200018ffffffffffffffffff01", "1a031a0178", "2a042a022001")
_MESSAGES = [bytes.fromhex(body) for body in (*_BODIES, *_MORE_BODIES)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A format with its options, good values of it, and whether the values are JSON."""

    options: dict[str, str]
    values: list[bytes]
    is_json: bool = False

    @property
    def as_null(self) -> dict[str, str]:
        return self.options | {"value.errors": "null", "value.raw.column": "raw"}


def _text_kinds(registry: str) -> list[_Kind]:
    connect, by_id = {"value.format": "connect-json"}, {"value.format": "jsonschema", "schema.registry": registry}
    orders = by_id | {"value.subject": "json"}
    return [
        _Kind({"value.format": "string"}, ["café".encode(), b"", b"x" * 20]),
        _Kind({"value.format": "uuid"}, [b"523e709f-f16a-4d78-ab10-04af559458d7"]),
        _Kind({"value.format": "json"}, [_ROW, b"[1]", b'"x"', b"null", b"1e400"], True),
        _Kind({"value.format": "json", "value.schema": WIDE}, [_ROW, b'{"a": null}', b"{}"], True),
        _Kind({"value.format": "json", "value.schema": "array<struct<a:int,b:string>>"}, [b'[{"a":1,"b":"x"}]'], True),
        _Kind({"value.format": "json", "value.schema": "map<string,string>"}, [b'{"k":"v","l":null}'], True),
        _Kind({"value.format": "csv", "value.schema": FLAT}, [b"x,7,1.5,2026-01-01T00:00:00Z,1.25", b'"a,""",,,,']),
        _Kind(connect, [_ENVELOPE, _ENVELOPE, _OTHER_ENVELOPE], True),
        _Kind(connect | {"value.schemas.enable": "false", "value.schema": WIDE}, [_ROW], True),
        _Kind(orders, [b"\0\0\0\0\1" + _ORDER, b"\0\0\0\0\1{}"]),
        _Kind(orders | {"json.fail.invalid.schema": "true"}, [b"\0\0\0\0\1" + _ORDER]),
    ]


def _binary_kinds(registry: str) -> list[_Kind]:
    body = b"\x0e\x02\x00\x00" + b"523e709ff16a4d78" + b"\x02\x01" + b"\x04\x02\x02x\x00\x00"
    numbers = [
        struct.pack(">h", 7),
        struct.pack(">i", -1),
        struct.pack(">q", 2**40),
        struct.pack(">d", 1.5),
        b"\x7f\xc0\0\0",
    ]
    kinds = [_Kind({"value.format": name}, numbers) for name in ("short", "int", "long", "float", "double")]
    kinds.append(_Kind({"value.format": "avro", "value.schema": AVRO}, [body]))
    leaf = b"\x80\x80\x01\x04\x01\x02" + struct.pack("<d", 0.5) + b"\0\0"
    tree = b"\0\2\x07" + struct.pack("<d", -1.0) + b"\2" + leaf + b"\4\0\2x\2" + leaf + b"\0"
    kinds.append(_Kind({"value.format": "avro", "value.schema": AVRO_TREE}, [leaf, tree]))
    kinds.append(
        _Kind(
            {"value.format": "avro", "schema.registry": registry, "value.subject": "avro"},
            [b"\0\0\0\0\2" + body, b"\0\0\0\0\2" + body, b"\0\0\0\0\3\x06\x06abc"],
        )
    )
    kinds += [
        _Kind({"value.format": "protobuf", "value.schema": text, "value.message": "M"}, _MESSAGES) for text in PROTOS
    ]
    kinds.append(
        _Kind(
            {"value.format": "protobuf", "schema.registry": registry, "value.subject": "proto"},
            [b"\0\0\0\0\4\0" + message for message in _MESSAGES],
        )
    )
    return kinds


def _registry() -> str:
    """A directory with schemas 1 to 4."""
    from spark_segments.values.registries.directory import DirectoryRegistry
    from spark_segments.values.registries.registry import Schema

    directory = tempfile.mkdtemp()
    Path(directory, "subjects.json").write_text('{"compatibility": "NONE"}')
    registry = DirectoryRegistry(directory)
    small = '{"type":"record","name":"Small","fields":[{"name":"id","type":"long"},{"name":"s","type":"string"}]}'
    texts = [
        ("json", "JSON", JSON_SCHEMA),
        ("avro", "AVRO", AVRO),
        ("avro", "AVRO", small),
        ("proto", "PROTOBUF", PROTOS[0]),
    ]
    for number, (subject, kind, text) in enumerate(texts, 1):
        assert registry.register(subject, Schema(kind, text)) == number
    return directory


class _Engines:
    """Who opens a Parquet file as a stranger would: pyarrow, Polars, DuckDB."""

    def __init__(self) -> None:
        os.environ["POLARS_MAX_THREADS"] = "1"
        import duckdb
        import polars

        self._polars, self._duckdb = polars, duckdb.connect(config={"threads": "1"})
        self._waiting: dict[int, list[pa.Table]] = defaultdict(list)
        self._path = str(Path(tempfile.mkdtemp(), "value.parquet"))

    def add(self, kind: int, table: pa.Table) -> None:
        """Puts the rows into a file with others of their kind, which is opened when it has those of GROUP inputs."""
        waiting = self._waiting[kind]
        waiting.append(table)
        if len(waiting) < GROUP:
            return
        self._waiting[kind] = []
        try:
            self.check(pa.concat_tables(waiting))
        except Exception as error:
            for rows in waiting:
                try:
                    self.check(rows)
                except Exception as error_of_rows:
                    raise AssertionError(f"{error_of_rows}: {rows.to_pylist()}") from error
            raise

    def check(self, table: pa.Table) -> None:
        if any(_has_empty_struct(kind) for kind in table.schema.types):  # Parquet has none
            return
        pq.write_table(table, self._path)
        self.check_file(self._path, table.num_rows)

    def check_file(self, path: str, rows: int) -> None:
        read = pq.read_table(path, partitioning=None)
        read.validate(full=True)
        frame = self._polars.read_parquet(path, hive_partitioning=False)
        shown = self._duckdb.execute("SELECT * FROM read_parquet(?)", [path]).to_arrow_table()
        assert read.num_rows == frame.height == shown.num_rows == rows
        frame.to_arrow().validate(full=True)
        shown.validate(full=True)


def _has_empty_struct(kind: pa.DataType) -> bool:
    is_empty = pa.types.is_struct(kind) and not kind.num_fields
    return is_empty or any(_has_empty_struct(kind.field(at).type) for at in range(kind.num_fields))


def text_values() -> Run:
    return _values(_text_kinds)


def binary_values() -> Run:
    return _values(_binary_kinds)


def _values(kinds_of: Callable[[str], list[_Kind]]) -> Run:
    kinds, engines, tables = kinds_of(_registry()), _Engines(), _Tables()
    readers = [(_decoder(kind.as_null, kind), _decoder(kind.options, kind)) for kind in kinds]

    def run(random: Random) -> None:
        number = random.randrange(len(kinds))
        kind, (either, strict) = kinds[number], readers[number]
        values = [_value(kind, random) for _ in range(random.randint(1, 4))]
        rows = _context(values)
        made, raw = either.decode(rows.column("value"), rows)
        assert raw is not None and len(made) == len(raw) == len(values)
        made.validate(full=True)
        bad = [value for value in raw.to_pylist() if value is not None]
        engines.add(number, pa.table({"value": made, "raw": raw}))
        if random.randrange(TABLES) == 0:
            tables.check(engines, kind.as_null, values)
        try:
            whole, _ = strict.decode(rows.column("value"), rows)
        except SegmentsError as error:
            offset = re.search(r"offset (\d+)", str(error))
            assert bad and offset is not None and values[int(offset[1]) - 100] == bad[0], f"{error}: {bad}"
            raise
        assert not bad and str(whole) == str(made)

    return run


def _value(kind: _Kind, random: Random) -> bytes | None:
    value, way = random.choice(kind.values), random.randrange(10)
    if way == 0:
        return None
    if way <= 4:
        return value
    if way == 5 and kind.is_json:
        return json.dumps(mutated_json(json.loads(value), random)).encode()
    if way <= 7:  # bytes that are no text, in place of a letter or between two
        at = random.randint(0, len(value))
        return value[:at] + random.choice(NO_TEXT) + value[at + random.randint(0, 1) :]
    return mutated(value, random, kind.values)


def _context(values: list[bytes | None]) -> pa.RecordBatch:
    from spark_segments.format.layout import HEADERS_TYPE

    size = len(values)
    return pa.record_batch(
        {
            "topic": pa.array(["rows"] * size),
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(range(100, 100 + size), pa.int64()),
            "headers": pa.array([[]] * size, HEADERS_TYPE),
            "value": pa.array(values, pa.binary()),
        }
    )


def _decoder(options: dict[str, str], kind: _Kind) -> Any:
    from spark_segments.values.batches import decoders
    from spark_segments.values.format_options import column_formats

    [decoder] = decoders(column_formats(options), "rows", lambda column: iter([_context([kind.values[0]])]))
    return decoder


class _Tables:
    """A topic's table, as `segments table` makes it."""

    def __init__(self) -> None:
        self._root, self._count = Path(tempfile.mkdtemp()), 0

    def check(self, engines: _Engines, options: dict[str, str], values: list[bytes | None]) -> None:
        from spark_segments import LogDir, maintenance

        self._count += 1
        log = LogDir.create(str(self._root / f"log-{self._count}"))
        log.create_topic("rows")
        log.topic("rows").append(pa.table({"value": pa.array(values, pa.binary())}))
        target = self._root / f"table-{self._count}"
        report = maintenance.table(log, topics=["rows"], table_uri=str(target), formats=options)
        if report.failed:  # the first envelope of a topic says its type, or nothing does
            assert options["value.format"] == "connect-json" and "value.schema" not in options, report
            return
        sizes: list[Any] = [pq.read_metadata(path).num_rows for path in target.rglob("*.parquet")]
        assert sum(sizes) == len(values)
        for path, size in zip(target.rglob("*.parquet"), sizes, strict=True):
            engines.check_file(str(path), size)
