"""Typed keys and values through a log directory: reading, appending, and an archive that decodes itself."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, RegistryError, UnknownTopicError, ValueFormatError
from spark_segments.log import LogDirectory, Scan, Snapshot, append
from spark_segments.log.typed import Decoders, Encoders, ValueFormats, value_provider
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.registry import RecordsRegistry
from tests.values.registry_directory import write_registry
from tests.values.registry_server import RegistryServer
from tests.values.test_confluent import message_class
from verification.world.topics import contents

ORDER = pa.struct([("id", pa.int64()), ("customer", pa.string())])
ROWS = [{"id": 1, "customer": "Ann"}, {"id": 2, "customer": None}, None]
TABLE = pa.table({"key": pa.array([1, 2, 3]), "value": pa.array(ROWS, ORDER)})


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    return log


def avro(tmp_path: Path) -> dict[str, str]:
    return {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}


def test_typed_columns_come_back_as_they_were_appended(log, tmp_path):
    log.topic("orders").append(TABLE, formats=avro(tmp_path))
    found = contents(log, "orders", formats=avro(tmp_path), columns=["key", "value"])
    assert found == TABLE.to_pylist()
    raw = contents(log, "orders", columns=["value"])
    assert [one["value"] and one["value"][:5] for one in raw] == [b"\0\0\0\0\x01"] * 2 + [None]


def test_the_latest_view_has_the_typed_columns(log, tmp_path):
    formats = avro(tmp_path)
    for batch in (TABLE, TABLE.slice(0, 1)):
        log.topic("orders").append(batch, formats=formats)
    found = contents(log, "orders", formats=formats, columns=["offset", "key", "value"], view="latest")
    assert found == [
        {"offset": 1, "key": 2, "value": ROWS[1]},
        {"offset": 2, "key": 3, "value": None},
        {"offset": 3, "key": 1, "value": ROWS[0]},
    ]


class Strings:
    """Formats of another package: every value is text, whatever the options say."""

    options = ("value.format",)

    def open(self, log: LogDirectory) -> Strings:
        self.opened = log
        return self

    def decoders(self, snapshot: Snapshot, formats: Mapping[str, str]) -> Decoders:
        return self.opened_by_the_package.decoders(snapshot, {"value.format": "string"})

    def encoders(
        self, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> Encoders:
        return self.opened_by_the_package.encoders(topic, {"value.format": "string"}, types)

    @property
    def opened_by_the_package(self) -> ValueFormats:
        return value_provider().open(self.opened)


def test_a_log_directory_reads_and_writes_by_the_formats_that_it_is_given(log):
    other = LogDirectory(log.storage, values=Strings())
    append(other, "orders", pa.table({"value": ["tea"]}), formats={"value.format": "their own"})
    snapshot = other.snapshot("orders")
    decoders = other.values.decoders(snapshot, {"value.format": "their own"})
    assert Scan.of(other.storage, snapshot, decoders=decoders).select(["value"]).to_table().to_pylist() == [
        {"value": "tea"}
    ]
    assert contents(log, "orders", columns=["value"]) == [{"value": b"tea"}]


def test_the_columns_asked_for_come_in_their_order(log, tmp_path):
    log.topic("orders").append(TABLE, formats=avro(tmp_path))
    (batch,) = log.topic("orders").scan(columns=["offset", "value"], formats=avro(tmp_path)).batches()
    assert batch.schema.names == ["offset", "value"]


def test_a_value_that_cannot_be_read_is_named_by_its_place(log):
    log.topic("orders").append(pa.table({"value": [b'{"id": 1}', None, b"{", b"["]}))
    formats = {"value.format": "json", "value.schema": "id bigint"}
    with pytest.raises(ValueFormatError, match="topic orders, partition 0, offset 2"):
        contents(log, "orders", formats=formats)


def test_a_value_that_cannot_be_read_may_be_null_with_its_bytes_beside_it(log):
    log.topic("orders").append(pa.table({"value": [b'{"id": 1}', None, b"{", b'{"id": 4}', b"["]}))
    formats = {"value.format": "json", "value.schema": "id bigint", "value.errors": "null"}
    formats["value.raw.column"] = "undecodable"
    assert contents(log, "orders", formats=formats, columns=["value"]) == [
        {"value": {"id": 1}, "undecodable": None},
        {"value": None, "undecodable": None},
        {"value": None, "undecodable": b"{"},
        {"value": {"id": 4}, "undecodable": None},
        {"value": None, "undecodable": b"["},
    ]


def test_connects_envelope_tells_the_type_by_the_first_record(log):
    log.topic("orders").append(
        pa.table({"value": pa.array([None, *ROWS], ORDER)}), formats={"value.format": "connect-json"}
    )
    assert [one["value"] for one in contents(log, "orders", formats={"value.format": "connect-json"})] == [None, *ROWS]


def test_a_schema_may_be_a_file(log, tmp_path):
    file = tmp_path / "order.ddl"
    file.write_text("id bigint, customer string\n")
    formats = {"value.format": "csv", "value.schema": str(file)}
    log.topic("orders").append(TABLE.select(["value"]), formats=formats)
    assert [one["value"] for one in contents(log, "orders", formats=formats)] == ROWS


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"value.format": "avor"}, "Unknown value.format"),
        ({"value.format": "protobuf"}, "needs a schema registry"),
        ({"value.format": "csv"}, "needs value.schema"),
        ({"value.format": "csv", "value.schema": "id bigintt"}, "The text is no type"),
        ({"value.schema": "id bigint"}, "needs value.format"),
        ({"value.format": "json", "value.errors": "skip"}, "fail or null"),
        ({"value.format": "json", "json.fail.invalid.schema": "true"}, "goes with the format jsonschema"),
        ({"value.format": "json", "value.raw.column": "raw"}, "value.errors=null"),
        ({"value.format": "json", "value.errors": "null", "value.raw.column": "offset"}, "a column that already"),
    ],
)
def test_options_that_cannot_be_are_refused(log, formats, message):
    with pytest.raises(InvalidOptionError, match=message):
        contents(log, "orders", formats=formats)


def test_nothing_is_registered_for_a_topic_that_is_not_there(log, tmp_path):
    with pytest.raises(UnknownTopicError):
        log.topic("missing").append(TABLE, formats=avro(tmp_path))
    assert not (tmp_path / "registry").exists()


# The topic _schemas


def cluster(tmp_path: Path) -> tuple[LogDir, Path]:
    """A log directory with a registry's topic and records of two schema ids, and the Kafka directory it was exported
    to.
    """
    server = RegistryServer()
    log = LogDir.create(str(tmp_path / "cluster"))
    log.create_topic("orders", config={"cleanup.policy": "compact"})
    log.create_topic("_schemas", config={"cleanup.policy": "compact"})
    with server.running() as address:
        server.register("other-value", {"schema": '"long"'})
        formats = {"key.format": "long", "value.format": "avro", "schema.registry": address}
        log.topic("orders").append(TABLE, formats=formats)
        newer = {
            "type": "record",
            "name": "Value",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "customer", "type": ["null", "string"], "default": None},
                {"name": "country", "type": "string", "default": "NL"},
            ],
        }
        text = json.dumps(newer)
        more = pa.table({"key": [4], "value": [{"id": 4, "customer": "Bo", "country": "DE"}]})
        log.topic("orders").append(more, formats=formats | {"value.schema": text})
    noop = (b'{"keytype":"NOOP","magic":0}', None)
    keys, values = zip(noop, *server.records, strict=True)
    log.topic("_schemas").append(pa.table({"key": pa.array(keys), "value": pa.array(values, pa.binary())}))
    (tmp_path / "kafka").mkdir()
    log.export_kafka(str(tmp_path / "kafka"))
    return log, tmp_path / "kafka"


EXPECTED = [
    {"id": 1, "customer": "Ann", "country": "NL"},
    {"id": 2, "customer": None, "country": "NL"},
    None,
    {"id": 4, "customer": "Bo", "country": "DE"},
]


def values(log: LogDir, registry: str) -> list[Any]:
    formats = {"value.format": "avro", "schema.registry": registry}
    return [one["value"] for one in contents(log, "orders", formats=formats)]


def test_an_archive_of_a_cluster_decodes_itself(tmp_path):
    _, kafka = cluster(tmp_path)
    archive = LogDir.create(str(tmp_path / "archive"))
    archive.import_kafka(str(kafka))
    assert values(archive, "_schemas") == EXPECTED
    assert values(LogDir.open(str(kafka)), "_schemas") == EXPECTED  # as the broker left it
    assert values(archive, str(kafka)) == EXPECTED  # by another directory's topic


def test_ids_versions_and_subjects_stay_on_import_and_export(tmp_path):
    source, kafka = cluster(tmp_path)
    archive = LogDir.create(str(tmp_path / "archive"))
    archive.import_kafka(str(kafka))
    assert archive.registry({}).subjects() == {"orders-value": {1: 2, 2: 3}, "other-value": {1: 1}}
    assert archive.registry({}).subjects() == source.registry({}).subjects()
    read = [list(one.topic("_schemas").scan().batches()) for one in (source, archive)]
    assert pa.Table.from_batches(read[0]).equals(pa.Table.from_batches(read[1]))


DEBIT, CREDIT = ({"name": name, "type": "long"} for name in ("debit", "credit"))


def of_two_contexts() -> RegistryServer:
    """Id 1 is one schema in the default context, and the one with its fields the other way round in `.west`."""
    server = RegistryServer()
    for subject, fields in (("orders-value", [DEBIT, CREDIT]), (":.west:orders-value", [CREDIT, DEBIT])):
        assert server.register(subject, {"schema": json.dumps({"type": "record", "name": "E", "fields": fields})}) == 1
    return server


@pytest.mark.parametrize("kind", ["topic", "http", "directory"])
def test_an_id_is_that_of_its_subjects_context(log, tmp_path, kind):
    server = of_two_contexts()
    log.topic("orders").append(pa.table({"value": [b"\0\0\0\0\1" + bytes([200, 1, 10])]}))  # 100, then 5
    log.create_topic("_schemas")
    keys, records = zip(*server.records, strict=True)
    log.topic("_schemas").append(pa.table({"key": pa.array(keys), "value": pa.array(records)}))
    with server.running() as address:
        files = write_registry(tmp_path / "registry", log.registry({}))
        where = {"topic": "_schemas", "http": address, "directory": files}[kind]
        formats = {"value.format": "avro", "schema.registry": where}
        for subject, expected in (("orders-value", (100, 5)), (":.west:orders-value", (5, 100))):
            [record] = contents(log, "orders", formats=formats | {"value.subject": subject})
            assert (record["value"]["debit"], record["value"]["credit"]) == expected


def test_an_id_of_two_contexts_asks_for_the_context():
    server = RegistryServer()
    for context, kind in ((".east", '"long"'), (".west", '"string"')):
        server.register(f":{context}:orders-value", {"schema": kind})
    registry = RecordsRegistry(server.records)
    with pytest.raises(RegistryError, match=r"another schema in each of the contexts \.east, \.west"):
        registry.schema(1)
    assert registry.schema(1, ":.west:any").text == '"string"'
    assert RecordsRegistry(server.records[:1]).schema(1).text == '"long"'  # the only one: there is no doubt


@pytest.mark.parametrize("kind", ["topic", "directory"])
@pytest.mark.parametrize("subject", ["com.example.Order", "deleted"])
def test_a_record_names_its_schema_where_the_topic_has_no_subject(log, tmp_path, kind, subject):
    formats = avro(tmp_path) | {"value.subject": subject}
    log.topic("orders").append(TABLE, formats=formats)
    directory = DirectoryRegistry(str(tmp_path / "registry"))
    value = json.dumps({"subject": subject, "version": 1, "id": 1, "schema": directory.schema(1).text})
    key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
    rows = [{"key": json.dumps(key), "value": value}]
    if subject == "deleted":
        rows.append({"key": json.dumps(key), "value": json.dumps(json.loads(value) | {"deleted": True})})
        (tmp_path / "registry" / "subjects.json").write_text('{"subjects": {}}')
    log.create_topic("_schemas")
    log.topic("_schemas").append(rows)
    where = {"topic": "_schemas", "directory": directory.address}[kind]
    formats = {"key.format": "long", "value.format": "avro", "schema.registry": where}
    assert contents(log, "orders", formats=formats, columns=["key", "value"]) == TABLE.to_pylist()


def test_a_later_record_names_its_schema_where_the_first_is_of_no_registry(log, tmp_path):
    log.topic("orders").append([{"value": "no schema"}])
    formats = avro(tmp_path) | {"value.subject": "com.example.Order"}
    log.topic("orders").append(TABLE, formats=formats)
    formats = formats | {"value.subject": "unknown", "value.errors": "null"}
    rows = contents(log, "orders", formats={**formats, "key.format": "binary"}, columns=["value"])
    assert [row["value"] for row in rows] == [None, *ROWS]


def wrong(log: LogDir, formats: dict[str, str]) -> str:
    with pytest.raises(ValueFormatError) as caught:
        contents(log, "orders", formats=formats)
    assert "topic orders, partition 0, offset 0" in str(caught.value)
    return str(caught.value)


def test_a_wrong_format_names_the_schema_that_the_registry_has(tmp_path):
    log, _ = cluster(tmp_path)
    as_json = {"value.format": "json", "value.schema": "id bigint"}
    assert "found Confluent's wire format, schema id 2. Set value.format=avro, protobuf or" in wrong(log, as_json)
    assert "found Confluent Avro, schema id 2. Set value.format=avro;" in wrong(
        log, as_json | {"schema.registry": "_schemas"}
    )
    other = {"value.format": "jsonschema", "value.schema": "id bigint", "schema.registry": "_schemas"}
    assert "expected jsonschema, found Confluent Avro, schema id 2. Set value.format=avro;" in wrong(log, other)


def test_an_error_of_the_registry_never_hides_the_error_of_the_value(log, tmp_path):
    log.topic("orders").append(pa.table({"value": [b"\0\0\0\0\x07\x0e"]}))
    as_json = {"value.format": "json", "value.schema": "id bigint"}
    for registry, found in [
        (str(tmp_path / "none"), "schema id 7, which the registry does not have"),
        ("odd://none", "Confluent's wire format, schema id 7. Set"),
    ]:
        assert found in wrong(log, as_json | {"schema.registry": registry})
    assert (
        contents(log, "orders", formats=as_json | {"schema.registry": "odd://none", "value.errors": "null"})[0]["value"]
        is None
    )


def test_decoders_that_name_schemas_travel_to_tasks(tmp_path):
    log, _ = cluster(tmp_path)
    formats = {"value.format": "json", "value.schema": "id bigint", "schema.registry": "_schemas"}
    (decoder,) = pickle.loads(pickle.dumps(log.topic("orders").decoders(formats)))
    with pytest.raises(ValueFormatError, match="Confluent Avro, schema id 2"):
        decoder.decode(next(iter(log.topic("orders").scan(columns=["value"]).batches())).column("value"))


def test_the_topic_of_schemas_cannot_be_registered_in(tmp_path):
    log, _ = cluster(tmp_path)
    formats = {"value.format": "avro", "schema.registry": "_schemas", "value.subject": "new"}
    with pytest.raises(RegistryError, match="read-only"):
        log.topic("orders").append(TABLE, formats=formats | {"key.format": "long"})


def _record(kind: str, subject: str | None, value: dict[str, Any] | None, version: int | None = None) -> Any:
    key = {"keytype": kind, "subject": subject, "magic": 1} | ({} if version is None else {"version": version})
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def _schema(subject: str, version: int, schema_id: int, deleted: bool = False) -> Any:
    value = {"subject": subject, "version": version, "id": schema_id, "schema": '"long"', "deleted": deleted}
    return _record("SCHEMA", subject, value, version)


def test_deletions_in_the_topic_of_schemas_are_followed_and_ids_stay():
    registry = RecordsRegistry(
        [
            *(_schema("a", 1, 1), _schema("a", 2, 2), _schema("a", 3, 3), _schema("b", 1, 1), _schema("c", 1, 4)),
            _schema("a", 3, 3, deleted=True),
            _record("DELETE_SUBJECT", "b", {"subject": "b", "version": 1}),
            _record("SCHEMA", "c", None, 1),
            _record("CONFIG", "a", {"compatibilityLevel": "FULL"}),
            _record("CONFIG", None, {"compatibilityLevel": "NONE"}),
        ]
    )
    assert registry.subjects() == {"a": {1: 1, 2: 2}}
    newest = registry.version("a")
    assert newest is not None and newest.id == 2
    assert [registry.schema(one).id for one in (1, 2, 3)] == [1, 2, 3]
    assert registry.levels == {"a": "FULL", None: "NONE"}


def serialized(kind: str, address: str) -> list[tuple[bytes, list[tuple[str, bytes]]]]:
    """(value, headers) of Confluent's own serializer, which says the GUID of the schema in a header."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    rows: list[Any] = [{"id": 7, "name": "a"}, {"id": 8, "name": "b"}]
    settings = {"schema.id.serializer": header_schema_id_serializer}
    with SchemaRegistryClient({"url": address}) as client:
        if kind == "avro":
            fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
            schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
            serializer = AvroSerializer(client, schema, conf=settings)
        elif kind == "jsonschema":
            properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
            schema = json.dumps({"title": "Order", "type": "object", "properties": properties})
            serializer = JSONSerializer(schema, client, conf=settings)
        else:
            text = "message Other { int32 x = 1; } message Order { int64 id = 1; string name = 2; }"
            order = message_class(f'syntax = "proto3"; {text}', "Order")
            serializer = ProtobufSerializer(order, client, settings | {"use.deprecated.format": False})
            rows = [order(**row) for row in rows]
        made = []
        for row in rows:
            headers: list[tuple[str, bytes]] = []
            made.append((serializer(row, SerializationContext("orders", MessageField.VALUE, headers)), headers))
    return made


@pytest.mark.cases(3)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["http", "topic", "directory"])
@pytest.mark.parametrize("kind", ["avro", "jsonschema", "protobuf"])
def test_ids_in_headers_are_those_of_the_value(log, tmp_path, kind, where):
    server = RegistryServer()
    with server.running() as address:
        made = serialized(kind, address)
        assert all(headers[0][0] == "__value_schema_id" and headers[0][1][0] == 1 for _, headers in made)
        (indexes,) = {headers[0][1][17:] for _, headers in made}
        by_number = ("__value_schema_id", b"\0\0\0\0\1" + indexes)
        in_front = (by_number[1] + made[0][0], [])
        other = ("__key_schema_id", b"\1" + bytes(16))
        later = (made[1][0], [("__value_schema_id", b"\1" + bytes(16)), other, by_number])
        rows = [*made, (made[0][0], [("x", b"y"), by_number]), in_front, later, (None, made[0][1])]
        log.topic("orders").append([{"value": value, "headers": headers} for value, headers in rows])
        log.create_topic("_schemas")
        log.topic("_schemas").append([{"key": key, "value": value} for key, value in server.records])
        files = write_registry(tmp_path / "registry", log.registry({"schema.registry": address}))
        address = {"http": address, "topic": "_schemas", "directory": files}[where]
        message = {"value.message": "Order"} if kind == "protobuf" else {}
        formats = {"value.format": kind, "schema.registry": address, **message}
        read = contents(log, "orders", formats=formats, columns=["value"])
    first, second = {"id": 7, "name": "a"}, {"id": 8, "name": "b"}
    assert [row["value"] for row in read] == [first, second, first, first, second, None]


def test_a_guid_that_no_registry_has_is_an_error_or_null(log, tmp_path):
    formats = avro(tmp_path)
    log.topic("orders").append(TABLE, formats=formats)
    value = {"value": b"\2", "headers": [("__value_schema_id", b"\1" + bytes(16))]}
    log.topic("orders").append([value | {"key": None}])
    with pytest.raises(ValueFormatError, match="No schema has the GUID 00000000-0000-0000-0000-000000000000") as raised:
        contents(log, "orders", formats=formats)
    assert f"offset {TABLE.num_rows}" in str(raised.value)
    assert contents(log, "orders", formats=formats | {"value.errors": "null"})[-1]["value"] is None


def test_values_of_glues_serializer_are_read_with_schemas_in_a_directory(log, tmp_path):
    version = "12345678-1234-1234-1234-123456789abc"
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / f"{version}.avsc").write_text(
        json.dumps({"type": "record", "name": "E", "fields": [DEBIT]})
    )
    guid = bytes.fromhex(version.replace("-", ""))
    rows = [b"\3\0" + guid + b"\x02", b"\3\5" + guid + zlib.compress(b"\x04"), None]
    log.topic("orders").append([{"value": value} for value in rows])
    formats = {"value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    read = contents(log, "orders", formats=formats, columns=["value"])
    assert [row["value"] for row in read] == [{"debit": 1}, {"debit": 2}, None]
    log.topic("orders").append([{"value": b"\3\5" + guid + b"no zlib"}])
    with pytest.raises(ValueFormatError, match=r"no id in a header.*offset 3"):
        contents(log, "orders", formats=formats)
    read = contents(log, "orders", formats=formats | {"value.errors": "null"})
    assert [row["value"] for row in read] == [{"debit": 1}, {"debit": 2}, None, None]
