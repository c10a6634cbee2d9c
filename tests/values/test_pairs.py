"""Every serializer read by every deserializer: what comes of each pair, as docs/values.md says it.

Outcomes: `=` the same value; `≈` a value of another type that holds the same bytes or text; `!` an error that says what
was found, where, and what to set; `~` a value that means something else, which no reader can tell from its bytes.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka.serializer import Serializer

from spark_segments import LogDir
from spark_segments.errors import ValueFormatError
from spark_segments.values.format_options import FORMATS
from tests.conftest import ROOT
from tests.values.registry_server import RegistryServer

PAGE = ROOT / "docs" / "values.md"
AVRO = '{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}'
PROTO = 'syntax = "proto3"; message Row { int64 id = 1; }'
JSON_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
ROW = {"id": 300}
UUID = "12345678-9abc-def0-1234-56789abcdef0"

# What each serializer writes: the value, as an Arrow array of its type, and its options.
WRITERS: dict[str, tuple[pa.Array, dict[str, str]]] = {
    "binary": (pa.array([b"\xff\xfe\x01"]), {}),
    "string": (pa.array(["text"]), {}),
    "json": (pa.array([ROW]), {"value.schema": "id bigint"}),
    "short": (pa.array([300], pa.int16()), {}),
    "int": (pa.array([300], pa.int32()), {}),
    "long": (pa.array([300], pa.int64()), {}),
    "float": (pa.array([1.5], pa.float32()), {}),
    "double": (pa.array([1.5], pa.float64()), {}),
    "uuid": (pa.array([UUID]), {}),
    "avro": (pa.array([ROW]), {"value.subject": "avro"}),
    "protobuf": (pa.array([ROW]), {"value.subject": "protobuf"}),
    "jsonschema": (pa.array([ROW]), {"value.subject": "jsonschema"}),
    "connect-json": (pa.array([ROW]), {}),
    "csv": (pa.array([ROW]), {"value.schema": "id bigint"}),
}
READERS = {name: options for name, (_, options) in WRITERS.items()} | {
    "connect-json": {"value.schema": "id bigint"},
}

# Rows are serializers, columns deserializers, in the order of FORMATS; the page has the same table.
OUTCOMES = """
binary        =  !  !  !  !  !  !  !  !  !  !  !  !  !
string        ≈  =  !  !  ~  !  ~  !  !  !  !  !  !  !
json          ≈  ≈  =  !  !  !  !  !  !  !  !  !  !  !
short         ≈  ≈  !  =  !  !  !  !  !  !  !  !  !  !
int           ≈  ≈  !  !  =  !  ~  !  !  !  !  !  !  !
long          ≈  ≈  !  !  !  =  !  ~  !  !  !  !  !  !
float         ≈  !  !  !  ~  !  =  !  !  !  !  !  !  !
double        ≈  !  !  !  !  ~  !  =  !  !  !  !  !  !
uuid          ≈  ≈  !  !  !  !  !  !  =  !  !  !  !  !
avro          ≈  !  !  !  !  !  !  !  !  =  !  !  !  !
protobuf      ≈  !  !  !  !  !  !  !  !  !  =  !  !  !
jsonschema    ≈  ≈  !  !  !  !  !  !  !  !  !  =  !  !
connect-json  ≈  ≈  ~  !  !  !  !  !  !  !  !  !  =  !
csv           ≈  ≈  !  !  !  !  !  !  !  !  !  !  !  =
"""


def _table(text: str) -> dict[tuple[str, str], str]:
    found = {}
    for line in text.strip().splitlines():
        name, *outcomes = line.replace("|", " ").replace("`", "").split()
        found |= {(name, reader): one for reader, one in zip(FORMATS, outcomes, strict=True)}
    return found


EXPECTED = _table(OUTCOMES)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LogDir, str]]:
    """A topic for each serializer, with one record."""
    server = RegistryServer()
    server.register("avro", {"schema": AVRO})
    server.register("protobuf", {"schema": PROTO, "schemaType": "PROTOBUF"})
    server.register("jsonschema", {"schema": JSON_SCHEMA, "schemaType": "JSON"})
    log = LogDir.create(str(tmp_path_factory.mktemp("pairs") / "log"))
    with server.running() as address:
        for name, (array, options) in WRITERS.items():
            log.create_topic(name)
            log.topic(name).append(pa.table({"value": array}), formats=_formats(name, options, address))
        yield log, address


def _formats(name: str, options: dict[str, str], address: str) -> dict[str, str]:
    return {} if name == "binary" else {"value.format": name, "schema.registry": address, **options}


@pytest.mark.cases(40)
@pytest.mark.parametrize("reader", FORMATS)
@pytest.mark.parametrize("writer", FORMATS)
def test_a_pair_has_the_outcome_of_the_table(log, writer, reader):
    opened, address = log
    written = WRITERS[writer][0][0].as_py()
    try:
        batches = list(opened.topic(writer).scan(formats=_formats(reader, READERS[reader], address)).batches())
    except ValueFormatError as error:
        assert re.search(rf"topic {writer}, partition 0, offset 0", str(error))
        assert f"read as {reader} " in str(error)
        assert f"expected {reader}, found " in str(error)
        assert re.search(r"(Set|Check) value\.format", error.hint or "")
        if writer in ("avro", "protobuf", "jsonschema"):
            assert re.search(r"schema id \d", str(error))
        assert EXPECTED[writer, reader] == "!"
        return
    found: Any = batches[0].column("value")[0].as_py()
    raw = next(iter(opened.topic(writer).scan(columns=["value"]).batches())).column("value")[0].as_py()
    same_bytes = found == raw or (isinstance(found, str) and found.encode() == raw)
    if writer == reader:
        assert found == written
        assert EXPECTED[writer, reader] == "="
    else:
        assert EXPECTED[writer, reader] == ("≈" if same_bytes else "~"), found


def test_the_page_has_this_table():
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| `[a-z-]+` \| [=≈!~] \|", line)]
    assert _table("\n".join(rows)) == EXPECTED


# Kafka's own serializers of single values: kafka-python has an interface and no numbers, Java's are big-endian.


class _Plain(Serializer):  # type: ignore[misc]
    """org.apache.kafka.common.serialization's ShortSerializer to DoubleSerializer, by their documented bytes."""

    def __init__(self, code: str) -> None:
        self._code = code

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        return None if data is None else struct.pack(self._code, data)


@pytest.mark.parametrize(
    ("name", "code", "values"),
    [
        ("short", ">h", [0, 1, -1, 2**15 - 1, -(2**15), None]),
        ("int", ">i", [0, 1, -1, 2**31 - 1, -(2**31), None]),
        ("long", ">q", [0, 1, -1, 2**63 - 1, -(2**63), None]),
        ("float", ">f", [0.0, -0.0, 1.5, float("inf"), None]),
        ("double", ">d", [0.1, -1e300, float("-inf"), None]),
    ],
)
def test_numbers_have_the_bytes_of_kafkas_serializers(tmp_path, name, code, values):
    log = LogDir.create(str(tmp_path))
    log.create_topic("numbers")
    formats = {"value.format": name, "key.format": name}
    kind = log.topic("numbers").decoders(formats)[0].codec.type
    log.topic("numbers").append(
        pa.table({"key": pa.array(values, kind), "value": pa.array(values, kind)}), formats=formats
    )
    raw = pa.Table.from_batches(log.topic("numbers").scan().batches())
    serializer = _Plain(code)
    assert (
        raw["value"].to_pylist() == raw["key"].to_pylist() == [serializer.serialize("numbers", [], v) for v in values]
    )
    typed = pa.Table.from_batches(log.topic("numbers").scan(formats=formats).batches())
    assert typed["value"].to_pylist() == typed["key"].to_pylist() == values


def test_a_uuid_is_the_text_that_kafkas_serializer_writes(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("ids")
    one = str(uuid.UUID(UUID))
    log.topic("ids").append(pa.table({"value": [one]}), formats={"value.format": "uuid"})
    assert next(iter(log.topic("ids").scan().batches())).column("value").to_pylist() == [one.encode()]
    with pytest.raises(ValueFormatError, match="not a UUID"):
        log.topic("ids").append(pa.table({"value": ["no"]}), formats={"value.format": "uuid"})
