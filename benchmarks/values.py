"""Keys and values by format: reading a topic's records typed as a share of reading their bytes, and the same values in
a loop of plain Python over compiled fastavro, protobuf, json, csv and struct.

A loop makes Python objects of values, and values of plain Python rows; Protobuf's only parses, and looks at no field.
What is measured against it ends in Arrow columns and begins with them.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import struct
import tempfile
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.measure import in_turns
from spark_segments import LogDir
from spark_segments.values.protobuf import _compiled
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.registry import Schema
from spark_segments.values.typed import TypedColumns

RECORDS = 1_000_000
HEADER_BYTES = 5
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string customer = 2; double amount = 3; optional string note = 4; repeated string tags = 5;
  google.protobuf.Timestamp at = 6;
}"""
DDL = "id bigint, customer string, amount double, note string, tags array<string>, at timestamp"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=["avro", "protobuf", "jsonschema", "json", "csv", "long"])


def rows(count: int) -> pa.Array:
    """Orders, as a column."""
    numbers = np.arange(count)
    start = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000
    return pa.StructArray.from_arrays(
        [
            pa.array(numbers),
            pa.array([f"customer {n % 1000}" for n in range(count)]),
            pa.array(numbers * 1.5),
            pa.array([None if n % 3 else "to the back door" for n in range(count)]),
            pa.array([["new", "gift"] if n % 2 else [] for n in range(count)]),
            pa.array(start + numbers, pa.timestamp("us", tz="UTC")),
        ],
        names=[field["name"] for field in AVRO["fields"]],
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    count = arguments.records
    orders = rows(count)
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(f"{directory}/log")
        registry = DirectoryRegistry(f"{directory}/registry")
        registry.register("avro-value", Schema("AVRO", json.dumps(AVRO)))
        registry.register("protobuf-value", Schema("PROTOBUF", PROTO))
        for name in arguments.formats:
            log.create_topic(name)
            values = pa.array(range(count), pa.int64()) if name == "long" else orders
            formats = {"value.format": name}
            if name in ("avro", "protobuf", "jsonschema"):
                formats["schema.registry"] = registry.address
            elif name in ("json", "csv"):
                formats["value.schema"] = DDL
            if name == "csv":
                values = pa.StructArray.from_arrays(
                    [values.field(at) for at in (0, 1, 2, 3, 5)], names=["id", "customer", "amount", "note", "at"]
                )
                formats["value.schema"] = "id bigint, customer string, amount double, note string, at timestamp"
            table = pa.table({"value": values})
            log.topic(name).append(table, formats=formats)
            measured = _measure(log, name, formats, table, arguments.turns)
            for what, rate in measured.items():
                figures[f"{name}: {what} records/s"] = round(rate)
            ratios[f"{name}: read typed as a share of read as bytes"] = round(
                measured["read typed"] / measured["read as bytes"], 3
            )
            ratios[f"{name}: decode, times the loop"] = round(measured["decode"] / measured["loop decode"], 2)
            ratios[f"{name}: encode, times the loop"] = round(measured["encode"] / measured["loop encode"], 2)
    return {"records": count, "turns": arguments.turns, "figures": figures, "ratios": ratios}


def _measure(log: LogDir, topic: str, formats: dict[str, str], table: pa.Table, turns: int) -> dict[str, float]:
    """Records a second of each case."""
    batches = list(log.topic(topic).scan(columns=["value"]).batches())
    decoder = log.topic(topic).decoders(formats)[0]
    typed = [decoder.decode(batch.column("value"))[0] for batch in batches]
    encoder = TypedColumns(log).writers(topic, formats, {"value": typed[0].type})[0]
    loop_decode, loop_encode = _loops(topic, [one for batch in batches for one in batch.column("value").to_pylist()])
    cases: dict[str, Callable[[], object]] = {
        "read as bytes": lambda: [batch.num_rows for batch in log.topic(topic).scan(columns=["value"]).batches()],
        "read typed": lambda: [
            batch.num_rows for batch in log.topic(topic).scan(columns=["value"], formats=formats).batches()
        ],
        "decode": lambda: [decoder.decode(batch.column("value")) for batch in batches],
        "encode": lambda: [encoder.encode(one) for one in typed],
        "loop decode": loop_decode,
        "loop encode": loop_encode,
    }
    timings = in_turns(cases, turns=turns)
    return {name: timings.rate(name, table.num_rows) for name in cases}


def _loops(name: str, values: list[bytes]) -> tuple[Callable[[], object], Callable[[], object]]:
    """(decoding, encoding) value by value with compiled libraries."""
    if name == "avro":
        schema = fastavro.parse_schema(AVRO)
        objects = [fastavro.schemaless_reader(io.BytesIO(one[HEADER_BYTES:]), schema, None) for one in values]

        def write(row: Any) -> bytes:
            out = io.BytesIO()
            out.write(b"\0\0\0\0\x01")
            fastavro.schemaless_writer(out, schema, row)
            return out.getvalue()

        return (
            lambda: [fastavro.schemaless_reader(io.BytesIO(one[HEADER_BYTES:]), schema, None) for one in values],
            lambda: [write(row) for row in objects],
        )
    if name == "protobuf":
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(_compiled(PROTO, ())).file:
            pool.Add(file)
        order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
        names = ("id", "customer", "amount", "note", "tags", "at")
        messages = [order.FromString(one[HEADER_BYTES + 1 :]) for one in values]
        plain = [
            {name: getattr(one, name) for name in names if name != "tags"} | {"tags": list(one.tags)}
            for one in messages
        ]
        return (
            lambda: [order.FromString(one[HEADER_BYTES + 1 :]) for one in values],
            lambda: [b"\0\0\0\0\x01\0" + order(**row).SerializeToString() for row in plain],
        )
    if name == "long":
        numbers = [struct.unpack(">q", one)[0] for one in values]
        return (
            lambda: [struct.unpack(">q", one)[0] for one in values],
            lambda: [struct.pack(">q", one) for one in numbers],
        )
    if name == "csv":
        import csv

        texts = [one.decode() for one in values]
        split = list(csv.reader(texts))

        def write_csv() -> None:
            writer = csv.writer(io.StringIO())
            for row in split:
                writer.writerow(row)

        return lambda: list(csv.reader(one.decode() for one in values)), write_csv
    head = HEADER_BYTES if name == "jsonschema" else 0
    rows_of = [json.loads(one[head:]) for one in values]
    return lambda: [json.loads(one[head:]) for one in values], lambda: [json.dumps(row).encode() for row in rows_of]
