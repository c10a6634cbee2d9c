"""Avro's binary encoding against fastavro: the same bytes both ways, for every type and logical type."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import uuid

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_segments.values.avro import schema as avro_schema
from spark_segments.values.avro.evolution import LEVELS, incompatibility, resolve
from spark_segments.values.avro.read import reader_of
from spark_segments.values.avro.recursive import RecursiveReader
from spark_segments.values.avro.write import write
from spark_segments.values.undecodable import Undecodable

UTC = datetime.UTC
_MS = st.integers(-(10**11), 10**12)
_US = st.integers(-(10**14), 10**15)
_EPOCH = datetime.datetime(1970, 1, 1)


def _text() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def _moment(microseconds: int, tz: datetime.tzinfo | None) -> datetime.datetime:
    return (_EPOCH + datetime.timedelta(microseconds=microseconds)).replace(tzinfo=tz)


def _leaves() -> list[tuple[object, st.SearchStrategy]]:
    """(schema, values as fastavro and Arrow both have them)."""
    milli_time = st.integers(0, 86_399_999).map(lambda ms: (_EPOCH + datetime.timedelta(milliseconds=ms)).time())
    micro_time = st.integers(0, 86_399_999_999).map(lambda us: (_EPOCH + datetime.timedelta(microseconds=us)).time())
    cents = st.integers(-(10**9), 10**9).map(lambda n: decimal.Decimal(n).scaleb(-2))
    long_, int_ = "long", "int"

    def logical(kind: object, name: str, **more: object) -> dict[str, object]:
        return {"type": kind, "logicalType": name, **more}

    return [
        ("boolean", st.booleans()),
        ("int", st.integers(-(2**31), 2**31 - 1)),
        ("long", st.integers(-(2**63), 2**63 - 1)),
        ("float", st.floats(width=32, allow_nan=False)),
        ("double", st.floats(allow_nan=False)),
        ("bytes", st.binary(max_size=20)),
        ("string", _text()),
        (logical(int_, "date"), st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))),
        (logical(int_, "time-millis"), milli_time),
        (logical(long_, "time-micros"), micro_time),
        (logical(long_, "timestamp-millis"), _MS.map(lambda ms: _moment(ms * 1000, UTC))),
        (logical(long_, "timestamp-micros"), _US.map(lambda us: _moment(us, UTC))),
        (logical(long_, "local-timestamp-millis"), _MS.map(lambda ms: _moment(ms * 1000, None))),
        (logical(long_, "local-timestamp-micros"), _US.map(lambda us: _moment(us, None))),
        (logical("bytes", "decimal", precision=12, scale=2), cents),
        (logical("string", "uuid"), st.uuids().map(str)),
    ]


_counter = iter(range(10**9))


def _schemas(depth: int = 2) -> st.SearchStrategy[tuple[object, st.SearchStrategy]]:
    leaf = st.sampled_from(_leaves()) | st.builds(_named_leaf, st.integers(1, 9))
    if depth == 0:
        return leaf
    below = _schemas(depth - 1)
    return st.one_of(
        leaf,
        below.map(lambda one: ({"type": "array", "items": one[0]}, st.lists(one[1], max_size=4))),
        below.map(lambda one: ({"type": "map", "values": one[0]}, st.dictionaries(_text(), one[1], max_size=3))),
        below.filter(lambda one: not isinstance(one[0], list)).map(lambda one: (["null", one[0]], st.none() | one[1])),
        below.filter(lambda one: not isinstance(one[0], list)).map(lambda one: ([one[0], "null"], st.none() | one[1])),
        st.lists(below, max_size=4).map(_record),
    )


def _named_leaf(size: int) -> tuple[object, st.SearchStrategy]:
    number = next(_counter)
    if size < 4:
        return {"type": "fixed", "name": f"F{number}", "size": size}, st.binary(min_size=size, max_size=size)
    if size < 6:
        schema = {"type": "fixed", "name": f"D{number}", "size": 8, "logicalType": "decimal"}
        cents = st.integers(-(10**11), 10**11).map(lambda n: decimal.Decimal(n).scaleb(-3))
        return schema | {"precision": 14, "scale": 3}, cents
    return {"type": "enum", "name": f"E{number}", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")


def _record(fields: list[tuple[object, st.SearchStrategy]]) -> tuple[object, st.SearchStrategy]:
    named = [{"name": f"f{at}", "type": schema} for at, (schema, _) in enumerate(fields)]
    values = st.fixed_dictionaries({f"f{at}": value for at, (_, value) in enumerate(fields)})
    return {"type": "record", "name": f"R{next(_counter)}", "fields": named}, values


def _fast_bytes(schema: object, rows: list[object]) -> list[bytes]:
    parsed, out = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        out.append(stream.getvalue())
    return out


def _read(schema: object, rows: list[bytes]) -> pa.Array:
    """By the kernel, which reads what plain code reads, and refuses what that refuses."""
    array = pa.array(rows, pa.binary())
    ends = np.frombuffer(array.buffers()[1], np.int32).astype(np.int64)
    node = schema if isinstance(schema, avro_schema.Node) else avro_schema.parse(json.dumps(schema))
    arguments = array.buffers()[2], ends[:-1], ends[1:]
    try:
        made = reader_of(node).read(*arguments)
    except Undecodable:
        with pytest.raises(Undecodable):
            RecursiveReader(node).read(*arguments)
        raise
    made.validate(full=True)
    plain = RecursiveReader(node).read(*arguments)
    assert plain.type == made.type
    assert plain.equals(made) or repr(plain.to_pylist()) == repr(made.to_pylist())  # NaN equals nothing
    return made


def _plain(value: object) -> object:
    if isinstance(value, list):  # Arrow gives a map as pairs
        pairs = value and all(isinstance(one, tuple) for one in value)
        return {key: _plain(one) for key, one in value} if pairs else [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _empty_maps(value: object) -> object:
    """fastavro's values with an empty map as an empty list, as `_plain` cannot tell Arrow's apart."""
    if isinstance(value, dict):
        return {key: _empty_maps(one) for key, one in value.items()} or []
    return [_empty_maps(one) for one in value] if isinstance(value, list) else value


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_schema_reads_and_writes_as_fastavro_does(data):
    schema, values = data.draw(_schemas(), label="schema")
    rows = data.draw(st.lists(values, min_size=1, max_size=5), label="rows")
    encoded = _fast_bytes(schema, rows)
    array = _read(schema, encoded)
    assert [_empty_maps(_plain(one)) for one in array.to_pylist()] == [_empty_maps(one) for one in rows]
    node = avro_schema.parse(json.dumps(schema))
    if isinstance(schema, dict) and "map" in json.dumps(schema):  # the order of a map's entries is kept
        assert _read(schema, write(array, node).to_pylist()).equals(array)
    assert write(array, node).to_pylist() == encoded
    assert write(array[1:], node, b"head").to_pylist() == [b"head" + one for one in encoded[1:]]


def test_a_union_of_several_types_is_a_struct_of_members():
    schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["null", "int", "string", "boolean"]}]}
    rows = [{"u": 7}, {"u": None}, {"u": "x"}, {"u": True}]
    encoded = _fast_bytes(schema, rows)
    array = _read(schema, encoded)
    assert array.to_pylist() == [
        {"u": {"member0": 7, "member1": None, "member2": None}},
        {"u": None},
        {"u": {"member0": None, "member1": "x", "member2": None}},
        {"u": {"member0": None, "member1": None, "member2": True}},
    ]
    assert write(array, avro_schema.parse(json.dumps(schema))).to_pylist() == encoded


def test_a_union_with_a_null_in_its_members_or_of_nullable_types_goes_both_ways():
    schema = ["null", {"type": "map", "values": ["null", "long"]}, {"type": "array", "items": ["int", "string"]}]
    rows = [{"a": None, "b": 5}, [1, "x"], None, {}, []]
    encoded = _fast_bytes(schema, rows)
    array = _read(schema, encoded)
    assert write(array, avro_schema.parse(json.dumps(schema))).to_pylist() == encoded


def test_a_union_of_int_and_long_is_a_long():
    assert _read(["int", "long"], [b"\x00\x0e", b"\x02\x80\x80\x80\x80\x80\x01"]).type == pa.int64()


_BESIDE = [
    ("int", "date", {}, -5),
    ("int", "time-millis", {}, 86_399_999),
    ("long", "time-micros", {}, 86_399_999_999),
    ("long", "timestamp-millis", {}, 1_700_000_000_000),
    ("long", "timestamp-micros", {}, -1),
    ("long", "timestamp-nanos", {}, 1),
    ("long", "local-timestamp-millis", {}, 2**62),
    ("long", "local-timestamp-micros", {}, 1),
    ("bytes", "decimal", {"precision": 4, "scale": 2}, b"\x01\x00"),
    ("string", "uuid", {}, "not a UUID"),
]


@pytest.mark.parametrize(("kind", "logical", "more", "value"), _BESIDE, ids=lambda one: one if type(one) is str else "")
@pytest.mark.parametrize("optional", [False, True])
def test_a_logical_type_beside_the_type_is_an_attribute_of_the_field(kind, logical, more, value, optional):
    """What fastavro reads, and Java's Avro, which warns that the attribute is ignored."""
    declared = ["null", kind] if optional else kind
    attribute = {"name": "beside", "type": declared, "logicalType": logical, **more}
    schema = {"type": "record", "name": "R", "fields": [attribute, {"name": "after", "type": "string"}]}
    rows = [{"beside": value, "after": "a"}]
    [encoded] = _fast_bytes(schema, rows)
    read = fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(json.loads(json.dumps(schema))), None)
    assert read == rows[0]
    array = _read(schema, [encoded])
    assert array.type.field("beside").type == avro_schema.TYPES[kind] and array.to_pylist() == rows
    assert write(array, avro_schema.parse(json.dumps(schema))).to_pylist() == [encoded]


def test_a_duration_is_three_unsigned_numbers():
    schema = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    row = b"\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff"
    array = _read(schema, [row])
    assert array.to_pylist() == [{"months": 1, "days": 2, "milliseconds": 2**32 - 1}]
    assert write(array, avro_schema.parse(json.dumps(schema))).to_pylist() == [row]


def test_a_uuid_of_sixteen_bytes_is_text():
    schema = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    one = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
    array = _read(schema, [one.bytes])
    assert array.to_pylist() == [str(one)]
    assert write(array, avro_schema.parse(json.dumps(schema))).to_pylist() == [one.bytes]


def test_negative_block_counts_carry_the_size_of_the_block():
    assert _read({"type": "array", "items": "int"}, [b"\x03\x04\x02\x04\x00"]).to_pylist() == [[1, 2]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_as_fastavro_does(data, garbage):
    schema, _ = data.draw(_schemas(), label="schema")
    try:
        _read(schema, [garbage])
    except Undecodable:
        return
    stream = io.BytesIO(garbage)  # what is read here, fastavro reads too, to the last byte
    fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), None)
    assert stream.read() == b""


@pytest.mark.parametrize(
    ("schema", "row", "reason"),
    [
        ("long", b"\x80", "end within"),
        ("string", b"\x08abc", "end within"),
        ("string", b"\x02\xff", "UTF-8"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "32 bits"),
        ("boolean", b"\x02", "neither"),
        (["null", "int"], b"\x04", "no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no such symbol"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00", "more items"),
        ("int", b"\x02\x02", "left behind"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x7f\xff", "recision"),
    ],
)
def test_bytes_that_are_not_of_the_schema_are_refused(schema, row, reason):
    with pytest.raises(Undecodable, match=reason):
        _read(schema, [row])


_TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "x",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "left", "type": ["null", "Tree"]},
        {"name": "others", "type": {"type": "array", "items": "Tree"}},
        {"name": "by_name", "type": {"type": "map", "values": ["x.Tree", "long"]}},
    ],
}


def _trees(depth: int) -> st.SearchStrategy:
    below = _trees(depth - 1) if depth else st.none()
    return st.fixed_dictionaries(
        {
            "name": st.text(max_size=5),
            "raw": st.none() | st.binary(max_size=3),
            "cost": st.decimals(-999, 999, places=2),
            "left": st.none() | below,
            "others": st.lists(below, max_size=2 if depth else 0),
            "by_name": st.dictionaries(st.text(max_size=2), below if depth else st.integers(-9, 9), max_size=2),
        }
    )


def _json(value: object) -> object:
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, decimal.Decimal) else value


@given(st.lists(_trees(2), min_size=1, max_size=3))
def test_a_record_within_itself_is_json_text(rows):
    read = _read(_TREE, _fast_bytes(_TREE, rows)).to_pylist()
    for row, given_row in zip(read, rows, strict=True):
        assert (row["name"], row["raw"], row["cost"]) == (given_row["name"], given_row["raw"], given_row["cost"])
        assert json.loads(row["left"] or "null") == _json(given_row["left"])
        assert [json.loads(text) for text in row["others"]] == _json(given_row["others"])
        by_name = {key: item["member1"] if item["member0"] is None else item["member0"] for key, item in row["by_name"]}
        given_by_name = _json(given_row["by_name"])
        assert {
            key: json.loads(item) if isinstance(item, str) else item for key, item in by_name.items()
        } == given_by_name


def _node_of(kind: object) -> dict[str, object]:
    fields = [{"name": "v", "type": ["null", kind]}, {"name": "next", "type": ["null", "Node"]}]
    return {"type": "record", "name": "Node", "fields": fields}


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "long", "logicalType": "time-micros"},
        {"type": "int", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "string",
    ],
    ids=lambda kind: kind["logicalType"] if isinstance(kind, dict) else kind,
)
def test_a_value_out_of_range_within_a_record_within_itself_is_refused(kind):
    schema = _node_of(kind)
    far = {"long": 2**62, "int": 2**31 - 1, "bytes": b"\x7f" * 20, "string": b"\xff"}
    plain = kind["type"] if isinstance(kind, dict) else "bytes"
    raw = _node_of(plain)  # the bytes that no writer of the schema makes
    rows = _fast_bytes(raw, [{"v": None}, {"next": {"v": far[plain if isinstance(kind, dict) else "string"]}}])
    with pytest.raises(Undecodable) as raised:
        _read(schema, rows)
    assert raised.value.row == 1 and raised.value.reason


def test_what_json_has_no_number_for_is_text_within_a_record_within_itself():
    numbers = [float("nan"), float("inf"), float("-inf"), 1.5]
    read = _read(_node_of("double"), _fast_bytes(_node_of("double"), [{"next": {"v": number}} for number in numbers]))
    texts = [json.loads(row["next"], parse_constant=pytest.fail)["v"] for row in read.to_pylist()]
    assert texts == ["NaN", "Infinity", "-Infinity", 1.5]


def test_records_within_records_have_a_bound():
    chain = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    assert _read(chain, [bytes([2] * 90 + [0])]).to_pylist()[0]["next"].count("next") == 90
    with pytest.raises(Undecodable, match="more than 100 levels") as raised:
        _read(chain, [b"\0", bytes([2] * 100_000 + [0])])
    assert raised.value.row == 1
    with pytest.raises(Undecodable, match="end within a value"):
        _read(chain, [bytes([2] * 20)])


def test_a_column_without_a_schema_gets_the_one_that_spark_would_write():
    kind = pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])
    schema = avro_schema.schema_of(kind, "Order")
    rows = [{"id": 1, "at": _moment(5, UTC), "tags": ["a"]}, {"id": None, "at": None, "tags": None}]
    assert write(pa.array(rows, kind), avro_schema.parse(json.dumps(schema))).to_pylist() == _fast_bytes(schema, rows)


@pytest.mark.parametrize("reader", ["long", "double", ["int", "long"], ["null", "double"]])
def test_a_union_of_numbers_is_read_plainly_and_evolved_in_one_process(reader):
    writer = ["int", "long"]
    rows = [b"\x00\x0e", b"\x02\x80\x80\x80\x80\x80\x01"]
    numbers = [7, 2**34]
    assert _read(writer, rows).to_pylist() == numbers
    assert _evolved(writer, reader, rows) == numbers
    assert _read(writer, rows).to_pylist() == numbers


# Evolution

_OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "gone", "type": "string"},
        {"name": "who", "type": "string"},
        {"name": "sub", "type": {"type": "record", "name": "Sub", "fields": [{"name": "x", "type": "float"}]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "Z"]}},
        {"name": "many", "type": {"type": "array", "items": "int"}},
        {"name": "maybe", "type": ["null", "long"]},
    ],
}
_NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "aliases": ["who"], "type": ["null", "string"], "default": None},
        {"name": "extra", "type": {"type": "array", "items": "string"}, "default": ["none"]},
        {
            "name": "sub",
            "type": {
                "type": "record",
                "name": "Sub",
                "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "string", "default": "why"}],
            },
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["B", "A", "C"], "default": "C"}},
        {"name": "many", "type": {"type": "array", "items": ["double", "null"]}},
        {"name": "maybe", "type": ["null", "double"], "default": None},
    ],
}


def _evolved(old: object, new: object, rows: list[bytes]) -> list[object]:
    step = resolve(avro_schema.parse(json.dumps(old)), avro_schema.parse(json.dumps(new)))
    made = step.convert(_read(step.node, rows))
    made.validate(full=True)
    assert made.type == avro_schema.parse(json.dumps(new)).type
    return made.to_pylist()


def test_rows_of_an_old_schema_are_read_as_a_new_one_as_fastavro_does():
    row = {"id": 1, "gone": "g", "who": "w", "sub": {"x": 1.5}, "kind": "Z", "many": [1, 2], "maybe": 5}
    encoded = _fast_bytes(_OLD, [row, row | {"kind": "A", "maybe": None, "many": []}])
    old, new = (fastavro.parse_schema(json.loads(json.dumps(one))) for one in (_OLD, _NEW))
    expected = [fastavro.schemaless_reader(io.BytesIO(one), old, new) for one in encoded]
    assert _evolved(_OLD, _NEW, encoded) == expected


_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_SAMPLES = {
    "null": None,
    "boolean": True,
    "int": 7,
    "long": 7,
    "float": 1.5,
    "double": 2.5,
    "bytes": b"b",
    "string": "s",
}


@pytest.mark.parametrize("writer", [*_PRIMITIVES, ["null", "int"], ["string", "null"], ["null", "int", "string"]])
@pytest.mark.parametrize("reader", [*_PRIMITIVES, ["null", "long"], ["null", "bytes"], ["null", "long", "string"]])
def test_every_pair_of_schemas_resolves_as_fastavro_does(writer, reader):
    branches = writer if isinstance(writer, list) else [writer]
    for branch in branches:
        encoded = _fast_bytes(writer, [_SAMPLES[branch]])
        try:
            expected = [fastavro.schemaless_reader(io.BytesIO(encoded[0]), writer, reader)]
        except (fastavro.read.SchemaResolutionError, ValueError):
            expected = None
        try:
            found = _evolved(writer, reader, encoded)
        except Exception as error:
            assert type(error).__name__ in ("Incompatible", "Undecodable"), error
            found = None
        if found and isinstance(found[0], dict):
            found = [next(one for one in found[0].values() if one is not None)]
        assert found == expected


def _record_schema(*fields: object) -> avro_schema.Node:
    return avro_schema.parse(json.dumps({"type": "record", "name": "R", "fields": list(fields)}))


@pytest.mark.parametrize("level", LEVELS)
def test_compatibility_levels_say_who_must_be_able_to_read_whom(level):
    a = {"name": "a", "type": "int"}
    plain, required = _record_schema(a), _record_schema(a, {"name": "b", "type": "int"})
    optional = _record_schema(a, {"name": "b", "type": "int", "default": 1})
    adds_required = incompatibility(required, [plain], level)
    assert (adds_required is None) == level.startswith(("NONE", "FORWARD"))
    drops_required = incompatibility(plain, [required], level)
    assert (drops_required is None) == level.startswith(("NONE", "BACKWARD"))
    assert incompatibility(optional, [plain], level) is None
    # Against all, not the newest alone: b was an int once, is gone, comes back as text.
    back = _record_schema(a, {"name": "b", "type": "string", "default": ""})
    assert (incompatibility(back, [optional, plain], level) is None) != level.endswith("_TRANSITIVE")
