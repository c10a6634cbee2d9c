"""Truncate events of Debezium, which have no key: a latest table keeps its rows, and the report says so once."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_segments.maintenance import table
from verification.kills.table_rows import content
from verification.world.topics import GOLDEN_MS, append

FIELDS = "op string, after struct<id int, name string>"
JSON = {"value.format": "json", "value.schema": FIELDS}
AVRO = {"value.format": "avro", "value.schema": FIELDS}
CONNECT = {"value.format": "connect-json"}
SOURCE = {"version": "3.2.0.Final", "connector": "postgresql", "schema": "public", "table": "customers"}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


def change(op, name=None):
    """The value of a change, as Debezium's JSON has it without schemas."""
    row = None if name is None else {"id": 1, "name": name}
    return json.dumps({"before": None, "after": row, "source": SOURCE, "op": op, "ts_ms": GOLDEN_MS}).encode()


def with_schema(value):
    """The value in the envelope of Connect's JsonConverter."""
    row = [{"field": "id", "type": "int32"}, {"field": "name", "type": "string"}]
    fields = [
        {"field": "after", "type": "struct", "optional": True, "fields": row},
        {"field": "op", "type": "string"},
    ]
    payload = {name: json.loads(value)[name] for name in ("after", "op")}
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload}).encode()


def changes(log, *pairs, partitions=(0,), **columns):
    """A topic with a record for each (key, value), in these partitions in turn."""
    log.create_topic("orders", partitions=len(partitions))
    append(log, *pairs, partitions=partitions, **columns)


def update(log, uri, **options):
    """The warnings of an update of the latest table of the topic."""
    report = table(log, topics=["orders"], table_uri=uri, **options)
    assert report.failed == []
    return report.warnings


def test_a_truncate_event_is_a_warning_with_its_place_and_what_to_do(log, uri):
    pairs = [(b"1", change("c", "ada")), (b"2", change("c", "ben")), (None, change("t")), (b"3", change("c", "cem"))]
    changes(log, *pairs, time_ms=[GOLDEN_MS, GOLDEN_MS + 1, GOLDEN_MS + 5, GOLDEN_MS + 9])
    (warning,) = update(log, uri, view="latest", formats=JSON)
    assert "orders-0: 1 truncate event of Debezium (op t), the first at offset 2" in warning
    assert "segments delete-records LOG_DIR orders --before-time 2023-11-14T22:13:20.005Z" in warning
    assert [row["key"] for row in content(uri)] == [b"1", b"2", b"3"]
    # After what the warning says to do, the table has the rows from behind the event alone.
    log.topic("orders").delete_records({0: 2})
    assert update(log, uri) == []
    assert [row["key"] for row in content(uri)] == [b"3"]
    append(log, (b"4", change("c", "dan")))
    assert update(log, uri) == []


def test_the_events_of_all_partitions_are_one_warning(log, uri):
    events = [(None, change("t"))] * 4
    changes(log, (b"1", change("c", "ada")), *events, partitions=[1, 0, 2], time_ms=GOLDEN_MS)
    (warning,) = update(log, uri, view="latest", formats=JSON)
    assert "orders-0: 4 truncate events of Debezium (op t), the first at offset 0" in warning


def test_an_event_is_seen_where_keys_may_be_in_several_partitions(log, uri):
    changes(log, (b"1", change("c", "ada")), (b"2", change("c", "ben")), time_ms=GOLDEN_MS)
    log.topic("orders").alter(partitions=2)
    append(log, (b"1", change("u", "eve")), (None, change("t")), partitions=[1], time_ms=GOLDEN_MS)
    (warning,) = update(log, uri, view="latest", formats=JSON)
    assert "orders-1: 1 truncate event of Debezium (op t), the first at offset 1" in warning
    assert [(row["key"], row["partition"]) for row in content(uri)] == [(b"2", 0), (b"1", 1)]


def test_an_event_in_the_envelope_of_connect_is_seen(log, uri):
    changes(log, (b"1", with_schema(change("c", "ada"))), (None, with_schema(change("t"))))
    (warning,) = update(log, uri, view="latest", formats=CONNECT)
    assert "orders-0: 1 truncate event of Debezium (op t), the first at offset 1" in warning


def test_an_event_in_avro_is_seen(log, uri):
    log.create_topic("orders")
    kind = pa.struct([("op", pa.string()), ("after", pa.struct([("id", pa.int32()), ("name", pa.string())]))])
    envelopes = [{"op": "c", "after": {"id": 1, "name": "ada"}}, {"op": "t", "after": None}]
    log.topic("orders").append(
        pa.table({"key": pa.array([b"1", None], pa.binary()), "value": pa.array(envelopes, kind)}), formats=AVRO
    )
    (warning,) = update(log, uri, view="latest", formats=AVRO)
    assert "orders-0: 1 truncate event of Debezium (op t), the first at offset 1" in warning


def test_a_record_without_a_key_that_cannot_be_decoded_hides_no_event_and_is_no_error(log, uri):
    changes(log, (b"1", change("c", "ada")), (None, b"{"), (None, change("t")), (None, None))
    (warning,) = update(log, uri, view="latest", formats=JSON)
    assert "orders-0: 1 truncate event of Debezium (op t), the first at offset 2" in warning
    assert [row["key"] for row in content(uri)] == [b"1"]


@pytest.mark.parametrize(
    "formats",
    [{}, {"value.format": "string"}, {"value.format": "json"}, {"value.format": "json", "value.schema": "id int"}],
    ids=["bytes", "text", "json without a schema", "json without op"],
)
def test_values_without_the_column_op_have_no_warning(log, uri, formats):
    changes(log, (b"1", b'{"id": 1}'), (None, change("t")))
    assert update(log, uri, view="latest", formats=formats) == []


def test_an_op_that_is_not_beside_the_rows_of_a_change_has_no_warning(log, uri):
    changes(log, (b"1", b'{"op": "c"}'), (None, b'{"op": "t", "amount": 3}'))
    assert update(log, uri, view="latest", formats=JSON | {"value.schema": "op string, amount int"}) == []


def test_other_changes_and_other_records_without_a_key_have_no_warning(log, uri):
    changes(log, (b"1", change("c", "ada")), (b"1", change("d")), (None, change("r", "ben")), (None, None))
    assert update(log, uri, view="latest", formats=JSON) == []


def test_a_table_of_all_records_has_the_event_as_a_row_and_no_warning(log, uri):
    changes(log, (b"1", change("c", "ada")), (None, change("t")))
    assert update(log, uri, formats=JSON) == []
    assert [row["value"]["op"] for row in content(uri)] == ["c", "t"]
