"""Confluent's wire format against Confluent's own serializers, with a registry over loopback."""

from __future__ import annotations

import datetime
import json
import pickle
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import InvalidOptionError, MissingExtraError, RegistryError, ValueFormatError
from spark_segments.values.batches import Decoder, Encoder, decoders, encoders
from spark_segments.values.format_options import column_formats
from spark_segments.values.protobuf import _compiled
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import Reference, Schema
from tests.values.registry_server import RegistryServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

VALUE = SerializationContext("orders", MessageField.VALUE)
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
PROTO = """syntax = "proto3";
package shop;
message Other { string x = 1; }
message Order {
  int64 id = 1;
  optional string customer = 2;
  repeated string tags = 3;
  message Line { int32 n = 1; }
  repeated Line lines = 4;
}
"""
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id"],
}
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
ROWS = [
    {"id": 1, "customer": "Ann", "tags": ["a", "b"]},
    {"id": 2**40, "customer": None, "tags": []},
]
AVRO_ROWS = [row | {"at": AT} for row in ROWS]


@pytest.fixture
def server() -> RegistryServer:
    return RegistryServer()


@pytest.fixture
def address(server: RegistryServer) -> Iterator[str]:
    with server.running() as address:
        yield address
        while CLIENTS:
            CLIENTS.pop().close()


CLIENTS: list[SchemaRegistryClient] = []


def client(address: str) -> SchemaRegistryClient:
    """A client of the registry at `address`, which closes it."""
    CLIENTS.append(SchemaRegistryClient({"url": address}))
    return CLIENTS[-1]


def options(value_format: str, address: str, **more: str) -> dict[str, str]:
    named = {f"value.{name.replace('_', '.')}": one for name, one in more.items()}
    return {"value.format": value_format, "schema.registry": address} | named


def reader(value_format: str, address: str, **more: str) -> Decoder:
    return decoders(column_formats(options(value_format, address, **more)), "orders")[0]


def writer(value_format: str, address: str, kind: pa.DataType | None = None, **more: str) -> Encoder:
    return encoders(column_formats(options(value_format, address, **more)), "orders", {"value": kind})[0]


def read(one: Decoder, values: list[bytes | None]) -> list[Any]:
    made, _ = one.decode(pa.array(values, pa.binary()))
    made.validate(full=True)
    assert made.type == one.codec.type
    return made.to_pylist()


def message_class(text: str, name: str) -> Any:
    found = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text, ()))
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_avro_of_confluents_serializer_is_read_and_written_to_the_byte(address):
    serializer = AvroSerializer(client(address), json.dumps(AVRO))
    values = [serializer(row, VALUE) for row in AVRO_ROWS]
    decoder = reader("avro", address)
    assert read(decoder, values) == AVRO_ROWS
    made, _ = decoder.decode(pa.array(values, pa.binary()))
    assert writer("avro", address).encode(made).to_pylist() == values


def test_avro_written_here_is_read_by_confluents_deserializer(address):
    kind = pa.struct([("id", pa.int64()), ("customer", pa.string()), ("tags", pa.list_(pa.string()))])
    values = writer("avro", address, kind).encode(pa.array([*ROWS, None], kind)).to_pylist()
    deserializer = AvroDeserializer(client(address))
    assert [deserializer(one, VALUE) for one in values[:2]] == ROWS
    assert values[2] is None


def protobuf_rows(order: Any) -> list[Any]:
    return [order(id=1, customer="Ann", tags=["a"], lines=[order.Line(n=5)]), order(id=2), order(customer="")]


PROTO_ROWS = [
    {"id": 1, "customer": "Ann", "tags": ["a"], "lines": [{"n": 5}]},
    {"id": 2, "customer": None, "tags": [], "lines": []},
    {"id": 0, "customer": "", "tags": [], "lines": []},
]


def test_protobuf_of_confluents_serializer_is_read_and_written_to_the_byte(address):
    order = message_class(PROTO, "shop.Order")
    serializer = ProtobufSerializer(order, client(address), {"use.deprecated.format": False})
    values = [serializer(row, VALUE) for row in protobuf_rows(order)]
    assert values[0][5:7] == b"\x02\x02"  # one index, the second message
    # Confluent's client registers a descriptor in base64; a registry of a cluster has text, and so has this one.
    decoder = reader("protobuf", address, message="shop.Order")
    assert read(decoder, values) == PROTO_ROWS
    made, _ = decoder.decode(pa.array(values, pa.binary()))
    assert writer("protobuf", address, message="Order").encode(made).to_pylist() == values


def test_protobuf_written_here_is_read_by_confluents_deserializer(address):
    open_registry(address).register("orders-value", Schema("PROTOBUF", PROTO))
    encoder = writer("protobuf", address, message="Order")
    values = encoder.encode(pa.array(PROTO_ROWS, encoder.codec.type)).to_pylist()
    order = message_class(PROTO, "shop.Order")
    deserializer = ProtobufDeserializer(order, {"use.deprecated.format": False})
    assert [deserializer(one, VALUE) for one in values] == protobuf_rows(order)


def test_the_first_message_has_the_short_form_of_its_place(address):
    open_registry(address).register("orders-value", Schema("PROTOBUF", PROTO))
    encoder = writer("protobuf", address)
    values = encoder.encode(pa.array([{"x": "a"}], encoder.codec.type)).to_pylist()
    assert values == [b"\0\0\0\0\x01" + b"\0" + b"\x0a\x01a"]
    assert read(reader("protobuf", address), values) == [{"x": "a"}]


def test_messages_of_another_type_are_refused(address):
    open_registry(address).register("orders-value", Schema("PROTOBUF", PROTO))
    other = writer("protobuf", address, message="Order")
    values = other.encode(pa.array(PROTO_ROWS[:1], other.codec.type)).to_pylist()
    with pytest.raises(ValueFormatError, match=r"a message shop\.Order, and here shop\.Other is read"):
        read(reader("protobuf", address), values)


def test_json_schema_of_confluents_serializer_is_read_and_written_to_the_byte(address):
    serializer = JSONSerializer(
        json.dumps(JSON_SCHEMA), client(address), json_encode=lambda row: json.dumps(row, separators=(",", ":"))
    )
    values = [serializer(row, VALUE) for row in ROWS]
    decoder = reader("jsonschema", address)
    assert read(decoder, values) == ROWS
    made, _ = decoder.decode(pa.array(values, pa.binary()))
    written = writer("jsonschema", address).encode(made).to_pylist()
    assert written == values
    deserializer = JSONDeserializer(json.dumps(JSON_SCHEMA), schema_registry_client=client(address))
    assert [deserializer(one, VALUE) for one in written] == ROWS


@pytest.mark.parametrize("column", [{"id": "7"}, {"id": 7, "other": 1}, {"id": 7, "tags": [1]}, {"id": 7.5}])
def test_a_column_that_does_not_fit_its_json_schema_is_refused(address, column):
    open_registry(address).register("orders-value", Schema("JSON", json.dumps(JSON_SCHEMA)))
    with pytest.raises(InvalidOptionError, match="does not fit the JSON Schema"):
        writer("jsonschema", address).encode(pa.array([column]))


STRICT = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1, "exclusiveMaximum": 5, "multipleOf": 2},
        "name": {"type": ["string", "null"], "pattern": "^a", "minLength": 2, "maxLength": 3, "format": "date"},
        "kind": {"type": "string", "enum": ["x", "y"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
    },
    "required": ["id", "name"],
}
STRICT_ROWS = st.fixed_dictionaries(
    {
        "id": st.sampled_from([2, 2, 4, 0, 3, 6, None]),
        "name": st.sampled_from(["ab", "abc", "a", "abcd", "ba", None]),
        "kind": st.sampled_from(["x", "y", "z"]),
        "tags": st.sampled_from([["a"], ["a", "b"], ["a", "a"], []]),
    }
)


@pytest.mark.proof
def test_json_is_checked_as_confluents_serializer_and_deserializer_check_it(address):
    text = json.dumps(STRICT)
    serializer = JSONSerializer(text, client(address))
    unchecked = JSONSerializer(text, client(address), conf={"validate": False})
    decoder = reader("jsonschema", address, subject="orders-value", schema=text)
    checked = {"json.fail.invalid.schema": "true"}
    given_options = column_formats(options("jsonschema", address, schema=text) | checked)
    encoder = encoders(given_options, "orders", {"value": None})[0]
    strict = decoders(given_options, "orders")[0]
    verdicts = set()

    @given(STRICT_ROWS)
    def agree(row: dict[str, Any]) -> None:
        bytes_of_row = unchecked(row, VALUE)
        try:
            serializer(row, VALUE)
            valid = True
        except SerializationError:
            valid = False
        verdicts.add(valid)
        column = pa.array([row], encoder.codec.type)
        assert read(decoder, [bytes_of_row]) == [row]  # by default only types are checked
        if valid:
            assert read(strict, encoder.encode(column).to_pylist()) == read(strict, [bytes_of_row]) == [row]
            return
        with pytest.raises(ValueFormatError, match=r"written as jsonschema .not valid by its JSON Schema's "):
            encoder.encode(column)
        with pytest.raises(ValueFormatError, match=r"read as jsonschema .not valid by its JSON Schema's "):
            read(strict, [bytes_of_row])

    agree()
    assert verdicts == {True, False}


def test_a_reference_of_a_json_schema_is_checked_by_the_registry_and_never_by_the_network(address):
    registry = open_registry(address)
    registry.register("name", Schema("JSON", '{"type": "string", "minLength": 2}'))
    properties = {"name": {"$ref": "name.json"}, "id": {"type": "integer"}}
    text = json.dumps({"type": "object", "properties": properties})
    registry.register("orders-value", Schema("JSON", text, (Reference("name.json", "name", 1),)))
    registry.register("elsewhere-value", Schema("JSON", text.replace("name.json", f"{address}/name.json")))
    values = [b"\0\0\0\0\x02" + one for one in (b'{"name": "Ann"}', b'{"name": "A"}')]
    checked = {"json.fail.invalid.schema": "true", "value.schema": "name string", "value.errors": "null"}
    decoder = decoders(column_formats(options("jsonschema", address) | checked), "orders")[0]
    assert read(decoder, values) == [{"name": "Ann"}, None]
    with pytest.raises(InvalidOptionError, match="The JSON Schema cannot be used"):
        read(decoder, [b"\0\0\0\0\x03{}"])


def test_a_check_without_its_library_names_the_extra(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    given_options = options("jsonschema", address, schema='{"title": "Only", "type": "integer"}')
    column = pa.array([7])
    (unchecked,) = encoders(column_formats(given_options), "orders", {"value": column.type})
    assert unchecked.encode(column)[0].as_py()[5:] == b"7"
    (checked,) = encoders(
        column_formats(given_options | {"json.fail.invalid.schema": "true"}), "orders", {"value": column.type}
    )
    with pytest.raises(MissingExtraError, match=r"not installed.*spark-segments\[jsonschema\]"):
        checked.encode(column)


def test_a_batch_may_mix_schema_ids_and_reads_as_the_newest(address):
    old = AvroSerializer(client(address), json.dumps(AVRO))
    newer = json.loads(json.dumps(AVRO))
    newer["fields"].insert(1, {"name": "country", "type": "string", "default": "NL"})
    values = [old(row, VALUE) for row in AVRO_ROWS]
    new = AvroSerializer(client(address), json.dumps(newer))
    values = [values[0], new(AVRO_ROWS[1] | {"country": "DE"}, VALUE), None, values[1]]
    assert read(reader("avro", address), values) == [
        AVRO_ROWS[0] | {"country": "NL"},
        AVRO_ROWS[1] | {"country": "DE"},
        None,
        AVRO_ROWS[1] | {"country": "NL"},
    ]


def test_a_type_in_ddl_picks_fields_by_name(address):
    serializer = AvroSerializer(client(address), json.dumps(AVRO))
    values = [serializer(row, VALUE) for row in AVRO_ROWS]
    found = read(reader("avro", address, schema="tags array<string>, id decimal(20,0)"), values)
    assert found == [{"tags": row["tags"], "id": row["id"]} for row in ROWS]


def test_avro_schemas_may_refer_to_others(address):
    registry = open_registry(address)
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]}
    registry.register("line", Schema("AVRO", json.dumps(line)))
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "shop.Line"}]}
    registry.register("orders-value", Schema("AVRO", json.dumps(order), (Reference("shop.Line", "line", 1),)))
    encoder = writer("avro", address)
    values = encoder.encode(pa.array([{"line": {"n": 7}}], encoder.codec.type)).to_pylist()
    assert values == [b"\0\0\0\0\x02\x0e"]
    assert AvroDeserializer(client(address))(values[0], VALUE) == {"line": {"n": 7}}
    assert read(reader("avro", address), values) == [{"line": {"n": 7}}]


def test_proto_files_may_import_others(address):
    registry = open_registry(address)
    registry.register("line", Schema("PROTOBUF", 'syntax = "proto3"; message Line { int32 n = 1; }'))
    text = """syntax = "proto3"; import "shop/line.proto"; import "google/protobuf/timestamp.proto";
    message Order { Line line = 1; google.protobuf.Timestamp at = 2; }"""
    registry.register("orders-value", Schema("PROTOBUF", text, (Reference("shop/line.proto", "line", 1),)))
    encoder = writer("protobuf", address)
    rows = [{"line": {"n": 7}, "at": AT}, {"line": None, "at": None}]
    assert read(reader("protobuf", address), encoder.encode(pa.array(rows, encoder.codec.type)).to_pylist()) == rows


# The registry


def test_credentials_open_the_registry_and_stand_in_no_error():
    server = RegistryServer("ann:s3cret")
    server.register("orders-value", {"schema": '"long"'})
    with server.running() as address:
        given = options("avro", address) | {"schema.registry.basic.auth.user.info": "ann:s3cret"}
        assert read(decoders(column_formats(given), "orders")[0], [b"\0\0\0\0\x01\x0e"]) == [7]
        inside = address.replace("//", "//ann:s3cret@")
        assert read(reader("avro", inside), [b"\0\0\0\0\x01\x0e"]) == [7]
        with pytest.raises(RegistryError, match="401") as refused:
            reader("avro", address.replace("//", "//ann:wr0ng@"))
    for secret in ("s3cret", "wr0ng", "ann"):
        assert secret not in str(refused.value)
        assert secret not in repr(column_formats(given))


def test_a_registry_that_fails_for_a_moment_is_asked_again(server, address):
    server.register("orders-value", {"schema": '"long"'})
    server.failures = 2
    assert read(reader("avro", address), [b"\0\0\0\0\x01\x0e"]) == [7]


def test_a_schema_is_asked_for_once(server, address):
    server.register("orders-value", {"schema": '"long"'})
    decoder = reader("avro", address)
    read(decoder, [b"\0\0\0\0\x01\x0e"])
    asked = server.requests
    for _ in range(5):
        read(decoder, [b"\0\0\0\0\x01\x0e"] * 3)
    assert server.requests == asked


@pytest.mark.parametrize("name", ["avro", "protobuf", "jsonschema"])
def test_what_decodes_and_encodes_travels_to_tasks(address, name, tmp_path):
    texts = {"avro": json.dumps(AVRO), "protobuf": PROTO, "jsonschema": json.dumps(JSON_SCHEMA)}
    kinds = {"avro": "AVRO", "protobuf": "PROTOBUF", "jsonschema": "JSON"}
    for place in (address, str(tmp_path)):
        open_registry(place).register("orders-value", Schema(kinds[name], texts[name]))
        encoder = pickle.loads(pickle.dumps(writer(name, place)))
        decoder = pickle.loads(pickle.dumps(reader(name, place)))
        kind = encoder.codec.type
        values = {"avro": AVRO_ROWS, "protobuf": [{"x": "a"}], "jsonschema": ROWS}[name]
        assert read(decoder, encoder.encode(pa.array(values, kind)).to_pylist()) == values


def test_an_id_that_is_unknown_is_a_value_that_cannot_be_read(server, address):
    server.register("orders-value", {"schema": '"long"'})
    values = [b"\0\0\0\0\x01\x0e", b"\0\0\0\0\x09\x0e"]
    with pytest.raises(ValueFormatError, match="No schema has the id 9"):
        read(reader("avro", address), values)
    assert read(reader("avro", address, errors="null"), values) == [7, None]


@pytest.mark.proof
def test_a_registry_that_does_not_answer_is_never_read_as_null(server):
    server.register("orders-value", {"schema": '"long"'})
    with server.running() as address:
        decoder = reader("avro", address, errors="null")
    with pytest.raises(RegistryError, match="does not answer"):
        read(decoder, [b"\0\0\0\0\x02\x0e"])


def test_a_directory_is_a_registry_that_keeps_ids_and_versions(tmp_path):
    encoder = writer("avro", str(tmp_path / "registry"), pa.struct([("id", pa.int64())]))
    values = encoder.encode(pa.array([{"id": 5}])).to_pylist()
    assert values[0][:5] == b"\0\0\0\0\x01"
    assert sorted(path.name for path in (tmp_path / "registry").glob("[!.]*")) == ["1.avsc", "subjects.json"]
    wider = writer("avro", str(tmp_path / "registry"), schema=(tmp_path / "registry/1.avsc").read_text())
    assert wider.encode(pa.array([{"id": 5}])).to_pylist() == values  # the same schema has the same id
    assert open_registry(str(tmp_path / "registry")).subjects() == {"orders-value": {1: 1}}
    assert read(reader("avro", str(tmp_path / "registry")), values) == [{"id": 5}]


def test_a_directory_refuses_what_its_readers_could_not_read(tmp_path):
    registry = open_registry(str(tmp_path))
    registry.register("orders-value", Schema("AVRO", json.dumps(AVRO)))
    newer = json.loads(json.dumps(AVRO))
    newer["fields"].append({"name": "country", "type": "string"})
    with pytest.raises(RegistryError, match=r"not compatible \(BACKWARD\).*country"):
        registry.register("orders-value", Schema("AVRO", json.dumps(newer)))
    index = json.loads((tmp_path / "subjects.json").read_text())
    index["subjects"]["orders-value"]["compatibility"] = "FORWARD"
    (tmp_path / "subjects.json").write_text(json.dumps(index))
    assert registry.register("orders-value", Schema("AVRO", json.dumps(newer))) == 2


def test_writers_that_register_at_the_same_moment_never_get_the_same_id(tmp_path):
    texts = [json.dumps({"type": "fixed", "name": "F", "size": size}) for size in range(1, 9)]

    def register(number: int) -> int:
        registry = open_registry(str(tmp_path))  # an object each, as processes have
        return registry.register(f"subject-{number % 16}", Schema("AVRO", texts[number % 8]))

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(register, range(64)))
    assert sorted(set(ids)) == list(range(1, 9))
    assert len({(number % 8, one) for number, one in enumerate(ids)}) == 8
    registry = open_registry(str(tmp_path))
    assert [registry.schema(ids[number]).text for number in range(8)] == texts
    assert len(registry.subjects()) == 16


def test_auto_register_can_be_switched_off(tmp_path):
    given = options("avro", str(tmp_path)) | {"auto.register.schemas": "false"}
    with pytest.raises(RegistryError, match=r"auto\.register\.schemas"):
        encoders(column_formats(given), "orders", {"value": pa.int64()})


def test_a_subject_that_is_missing_is_named(address):
    with pytest.raises(InvalidOptionError, match=r"orders-value.*value\.schema or value\.subject"):
        reader("avro", address)


@pytest.mark.parametrize("package", ["ptars", "grpc_tools"])
def test_a_library_that_is_absent_is_named_with_its_extra(package, address, monkeypatch):
    text = f'syntax = "proto3"; message Only_{package} {{ int32 n = 1; }}'
    open_registry(address).register("orders-value", Schema("PROTOBUF", text))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"not installed.*spark-segments\[protobuf\]"):
        reader("protobuf", address)
