"""Protobuf as others write it: groups, editions, and names that differ in case alone. Bytes are written out by hand."""

from __future__ import annotations

import base64
import subprocess
import sys

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from spark_segments.values.protobuf import message_of
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.registry import Schema
from verification.world.topics import contents

GROUPS = """syntax = "proto2";
message M { optional int32 a = 1; optional group G = 2 { optional string x = 1; }
            repeated group R = 3 { required int32 n = 1; } }"""
EDITION = """edition = "2023";
message M { int32 a = 1; string b = 2 [features.field_presence = IMPLICIT];
            I c = 3 [features.message_encoding = DELIMITED];
            repeated int32 d = 4; map<string, int32> m = 5; E e = 6; }
message I { string x = 1; }
enum E { ZERO = 0; ONE = 1; }"""
KNOWN_TYPES = """edition = "2024";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message M { google.protobuf.Timestamp t = 1; google.protobuf.Int32Value w = 2; uint64 u = 3; }"""
TREE = 'syntax = "proto3"; message Tree { int32 n = 1; Tree left = 2; repeated Tree more = 3; }'
OPEN = """syntax = "proto3"; import "google/protobuf/struct.proto";
message M { int32 n = 1; google.protobuf.Struct s = 2; google.protobuf.Value v = 3; }"""
NAMES = 'syntax = "proto3"; message M { int32 Id = 1; int32 id = 2; }'

CASES = [
    (GROUPS, "0805 130a02686914 1b08031c 1b08041c", {"a": 5, "g": {"x": "hi"}, "r": [{"n": 3}, {"n": 4}]}),
    (GROUPS, "", {"a": None, "g": None, "r": []}),
    (
        EDITION,
        "0805 1b0a02696e1c 22020102 2a050a016b1003 3001",
        {"a": 5, "b": "", "c": {"x": "in"}, "d": [1, 2], "m": [("k", 3)], "e": "ONE"},
    ),
    (EDITION, "3007", {"a": None, "b": "", "c": None, "d": [], "m": [], "e": "7"}),
    (KNOWN_TYPES, "0a020803 12020804 18ffffffffffffffffff01", {"t": 3_000_000, "w": 4, "u": 2**64 - 1}),
    (NAMES, "0801 1002", {"Id": 1, "id": 2}),
    (TREE, "0801 120608021202 0803", {"n": 1, "left": '{"n":2,"left":{"n":3}}', "more": []}),
    (TREE, "1a020804 1a00", {"n": 0, "left": None, "more": ['{"n":4}', "{}"]}),
    (OPEN, "0801 12090a070a01611202 2001 1a031a0178", {"n": 1, "s": '{"a":true}', "v": '"x"'}),
]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("text", "body", "expected"), CASES)
def test_messages_of_any_syntax_are_read_whole(tmp_path, capfd, text, body, expected):
    registry = DirectoryRegistry(str(tmp_path / "registry"))
    registry.register("orders-value", Schema("PROTOBUF", text))
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    log.topic("orders").append(pa.table({"value": [b"\0\0\0\0\1\0" + bytes.fromhex(body), b"\0\0\0\0\1\0\xff"]}))
    formats = {"value.format": "protobuf", "schema.registry": registry.address, "value.errors": "null"}
    (row,), (damaged,) = ([one["value"]] for one in contents(log, "orders", formats=formats))
    if "t" in row:
        row["t"] = int(row["t"].timestamp() * 1_000_000)
    assert row == expected and damaged is None
    assert capfd.readouterr().err == ""  # a library that panics says so


def test_a_message_with_groups_is_only_read():
    message = message_of(GROUPS)
    with pytest.raises(InvalidOptionError, match="only read"):
        message.write(pa.array([{"a": 1}]))


def test_google_reads_what_ptars_reads():
    """The two ways to read have the same types and values, where both can."""
    from spark_segments.values.protobuf_rows import read_messages, type_of_message

    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    import "google/protobuf/wrappers.proto";
    message M { int32 a = 1; optional int32 b = 2; uint32 c = 3; uint64 d = 4; bytes e = 5; repeated string f = 6;
      map<int64, M2> g = 7; E h = 8; google.protobuf.Timestamp i = 9; google.protobuf.Duration j = 10;
      google.protobuf.StringValue k = 11; oneof o { float l = 12; double m = 13; } sint64 n = 14; bool p = 15; }
    message M2 { fixed32 x = 1; } enum E { ZERO = 0; ONE = 1; }"""
    message = message_of(text)
    assert type_of_message(message.descriptor) == message.type
    bodies = [
        "",
        "0805 1000 18ffffffff0f 20ffffffffffffffffff01 2a01ff 320161 320162 3a0908011205 0d07000000 4001".replace(
            " ", ""
        ),
        "4a0408011001 5205080110e807 5a030a0161 6500000040 7003 7801".replace(" ", ""),
        "4009",
    ]
    rows = pa.array([bytes.fromhex(body) for body in bodies], pa.binary())
    assert message.read(rows).to_pylist() == read_messages(rows, message.descriptor, message.type).to_pylist()


@pytest.mark.parametrize(
    ("imported", "field", "body", "expected"),
    [
        ("confluent/meta.proto", 'int32 a = 1 [(confluent.field_meta).doc = "x"]', "0805", 5),
        ("confluent/type/decimal.proto", "confluent.type.Decimal a = 1", "0a070a01011005 1802", (b"\1", 5, 2)),
        ("google/type/money.proto", "google.type.Money a = 1", "0a070a03455552 1003", ("EUR", 3, 0)),
    ],
)
def test_what_registries_have_built_in_can_be_imported(imported, field, body, expected):
    message = message_of(f'syntax = "proto3"; import "{imported}"; message M {{ {field}; }}')
    [row] = message.read(pa.array([bytes.fromhex(body)])).to_pylist()
    assert (tuple(row["a"].values()) if isinstance(row["a"], dict) else row["a"]) == expected


@pytest.mark.parametrize("kind", ["text", "proto", "descriptors"])
def test_messages_need_no_registry(tmp_path, kind):
    text = 'syntax = "proto3"; import "money.proto"; message Other { } message M { int32 a = 1; shop.Money m = 2; }'
    if kind != "descriptors":
        text = text.replace(' import "money.proto";', "").replace("shop.", "") + " message Money { string c = 1; }"
    (tmp_path / "orders.proto").write_text(text)
    (tmp_path / "money.proto").write_text('syntax = "proto3"; package shop; message Money { string c = 1; }')
    schema = {"text": text, "proto": f"{tmp_path}/orders.proto", "descriptors": f"{tmp_path}/all.desc"}[kind]
    if kind == "descriptors":
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", "--include_imports"]
        subprocess.run([*command, f"--descriptor_set_out={schema}", "orders.proto"], check=True)
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    formats = {"value.format": "protobuf", "value.schema": schema, "value.message": "M"}
    log.topic("orders").append(pa.table({"value": [bytes.fromhex("0805 12050a03455552")]}))
    rows = [{"a": 5, "m": {"c": "EUR"}}]
    assert [row["value"] for row in contents(log, "orders", formats=formats)] == rows
    kind_of_value = pa.struct([("a", pa.int32()), ("m", pa.struct([("c", pa.string())]))])
    log.topic("orders").append(pa.table({"value": pa.array(rows, kind_of_value)}), formats=formats)
    assert [row["value"] for row in contents(log, "orders", columns=["value"])] == [
        bytes.fromhex("0805 12050a03455552")
    ] * 2


def test_descriptors_without_their_imports_say_what_is_missing(tmp_path):
    (tmp_path / "a.proto").write_text('syntax = "proto3"; import "b.proto"; message M { B b = 1; }')
    (tmp_path / "b.proto").write_text('syntax = "proto3"; message B { int32 a = 1; }')
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--descriptor_set_out={tmp_path}/a.pb"]
    subprocess.run([*command, "a.proto"], check=True)
    with pytest.raises(InvalidOptionError, match=r"found b.proto\. Make them by protoc --include_imports"):
        message_of(base64.b64encode((tmp_path / "a.pb").read_bytes()).decode())
