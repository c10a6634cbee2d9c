"""Look-ups of a header, or of a field of the decoded value: what has an entry, and when an index is believed."""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, ValueFormatError
from spark_segments.keys.index_list import IndexFiles, index_name
from spark_segments.keys.job import index
from spark_segments.keys.run_file import RunFile
from spark_segments.maintenance import compact, erase, mirror, roll, vacuum
from spark_segments.values.fields import encoded
from tests.keys.test_races import CONFIG, FIRST_RUN_STEPS, stepped
from verification.world.kafka_bytes.golden_files import GOLDEN

TRACE = "header.trace-id"
FORMATS = {"value.format": "json", "value.schema": "id bigint, order struct<id: string>"}
ORDER = "value.order.id"
ENCODINGS = json.loads((GOLDEN / "key-index" / "encodings.json").read_text())


@pytest.fixture
def log(tmp_path):
    """Half of the records have one trace and one order; every tenth cannot be decoded."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2, CONFIG)
    for number in range(4):
        log.topic("t").append([row(number, at) for at in range(50)])
    return log


def row(number, at):
    order = {"id": "often" if at % 2 else f"o{at % 8}"}
    value = "{" if at % 10 == 0 else json.dumps({"id": number * 50 + at, "order": order})
    headers = [("trace-id", b"often")] if at % 2 else [("trace-id", b"%d" % (at % 6)), ("trace-id", None), ("x", b"y")]
    return {"key": f"k{at % 5}", "value": value, "headers": headers}


def offsets(scan):
    table = scan.to_table()
    return list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def by_headers(topic, name, *values):
    """The places of records with a header, by Python."""
    rows = topic.scan().to_table().to_pylist()
    return [
        (row["partition"], row["offset"])
        for row in rows
        if any(header["key"] == name and header["value"] in values for header in row["headers"])
    ]


def live_runs(log, on, name="t"):
    return IndexFiles(log.storage, name, index_name(on)).newest_list().runs


def entries(log, on, name="t"):
    """The places of all entries of the live runs of an index."""
    newest = IndexFiles(log.storage, name, index_name(on)).newest_list()
    return {
        (run.partition, run.base_offset + offset)
        for run in newest.runs
        for part in RunFile(log.storage, run, newest.topic_id).all_records()
        for offset in part.offsets.tolist()
    }


@pytest.mark.parametrize("is_indexed", [False, True])
def test_each_value_of_each_header_of_a_name_is_found(log, is_indexed):
    headers = [
        [("trace-id", b"a"), ("trace-id", b"b"), ("trace-id", b"a")],
        [("trace-id", b"")],
        [("trace-id", None)],
        [("Trace-Id", b"a"), ("", b"a"), ("trace-id.x", b"a")],
        [],
    ]
    log.topic("t").append([{"value": "v", "headers": own, "partition": 0} for own in headers])
    if is_indexed:
        index(log, on=[TRACE, "header.", "header.trace-id.x"])
    topic = log.topic("t")
    for name in ("trace-id", "Trace-Id", "", "trace-id.x", "none"):
        for value in (b"a", b"b", b"", b"often", b"2"):
            scan = topic.scan(where={f"header.{name}": value})
            assert offsets(scan) == by_headers(topic, name, value)
    scan = topic.scan(where={TRACE: ["a", b"2", "none"]})
    assert offsets(scan) == by_headers(topic, "trace-id", b"a", b"2")
    assert scan.coverage.scanned_offsets == (0 if is_indexed else 205)
    assert not offsets(topic.scan(where={TRACE: []}))


def test_an_index_on_a_header_reads_few_offsets(log):
    report = index(log, on=[TRACE])
    assert report.ok and {line["on"] for line in report.partitions} == {TRACE}
    assert report.details["t"]["field_indexes"][TRACE]["offsets_indexed"] == 200
    scan = log.topic("t").scan(where={TRACE: "4"})
    read = sum(end - start for ranges in scan.offsets.values() for start, end in ranges)
    assert scan.coverage.indexed_offsets == 200 and read <= 200
    assert log.topic("t").scan(keys="k1").coverage.indexed_offsets == 0, "that of keys is another one"
    index(log, on=[TRACE], drop=True)
    assert log.topic("t").scan(where={TRACE: "4"}).coverage.indexed_offsets == 0


def test_names_of_headers_are_in_no_path(log, tmp_path):
    index(log, on=[TRACE])
    assert not [path for path in (tmp_path / "log").rglob("*") if "trace" in path.name]


def test_a_field_of_a_decoded_value_is_found_by_its_value_or_its_text(log):
    report = index(log, on=[ORDER, "value.id"], formats=FORMATS)
    assert report.details["t"]["field_indexes"][ORDER]["undecodable"] == 20
    assert [f"20 records of t cannot be decoded: a look-up of {on}" in " ".join(report.warnings) for on in (ORDER,)]
    topic = log.topic("t")
    rows = topic.scan(formats=FORMATS | {"value.errors": "null"}).to_table().to_pylist()
    for on, value, text in ((ORDER, "often", "often"), (ORDER, "o4", "o4"), ("value.id", 117, "117")):
        names = on.split(".")[1:]
        expected = [(own["partition"], own["offset"]) for own in rows if field(own["value"], names) == value]
        assert expected
        for asked in (value, text, [text, "7000"]):
            scan = topic.scan(where={on: asked}, formats=FORMATS)
            assert offsets(scan) == expected and scan.coverage.scanned_offsets == 0
        both = topic.scan(where={on: value, TRACE: "often"}, keys=["k1", "k2"], formats=FORMATS)
        keyed = {(own["partition"], own["offset"]) for own in rows if own["key"] in (b"k1", b"k2")}
        assert offsets(both) == [at for at in expected if at in {*by_headers(topic, "trace-id", b"often")} & keyed]
    assert not topic.verify(deep=True).findings


def field(value, names):
    for name in names:
        value = None if value is None else value[name]
    return value


def test_the_view_latest_has_its_own_records_with_a_field(log):
    index(log, on=[TRACE])
    log.topic("t").append([{"key": "k1", "value": "no header"}])
    topic = log.topic("t")
    rows = topic.scan(view="latest").to_table().to_pylist()
    for value in (b"often", b"2", b"4"):
        expected = [
            (own["partition"], own["offset"]) for own in rows if {"key": "trace-id", "value": value} in own["headers"]
        ]
        assert offsets(topic.scan(view="latest", where={TRACE: value})) == expected


@pytest.mark.parametrize("vector", ENCODINGS, ids=lambda vector: f"{vector['type']}: {vector['text']}")
def test_a_value_has_one_encoding(tmp_path, vector):
    """What the pages of the format say of it, and what a look-up by the value and by its text compares."""
    log = LogDir.create(str(tmp_path))
    log.create_topic("t")
    other = {"v": None} if vector["json"] != vector["other"] else {}
    for value in ({"v": vector["json"]}, {"v": vector["other"]}, other):
        log.topic("t").append([{"value": json.dumps(value)}])
    formats = {"value.format": "json", "value.schema": f"v {vector['type']}"}
    index(log, on=["value.v"], formats=formats)
    topic = log.topic("t")
    value = topic.scan(formats=formats).to_table().column("value").combine_chunks().field("v").slice(0, 1)
    assert encoded(value).to_pylist() == [base64.b64decode(vector["encoded"])]
    for asked in (value[0].as_py(), *([] if vector["text"] is None else [vector["text"]])):
        scan = topic.scan(where={"value.v": asked}, formats=formats)
        assert scan.coverage.scanned_offsets == 0
        assert scan.to_table().column("offset").to_pylist() == [0]


def test_a_uuid_is_its_text_and_a_whole_value_has_no_path(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("t")
    one = uuid.UUID(int=7)
    log.topic("t").append(
        [{"key": 5, "value": str(own)} for own in (one, uuid.UUID(int=8))], formats={"key.format": "int"}
    )
    formats = {"value.format": "uuid", "key.format": "int"}
    index(log, on=["value", "key"], formats=formats)
    assert log.topic("t").scan(where={"value": one}, formats=formats).to_table().num_rows == 1
    scan = log.topic("t").scan(where={"key": 5}, formats=formats)
    assert (scan.to_table().num_rows, scan.coverage.indexed_offsets) == (2, 2)


@pytest.mark.parametrize(
    ("on", "value", "problem"),
    [
        ("header.a", 7, "text or bytes"),
        ("header.a", None, "text or bytes"),
        ("value.id", "x", "int64"),
        ("value.id", True, "int64"),
        ("value.id", 1.5, "int64"),
        ("value.id", 1 << 70, "int64"),
        ("value.id", None, "int64"),
        ("header.a", "\udcff", "text or bytes"),
        ("header.\udcff", "a", "UTF-8"),
        ("value.\udcff", "a", "UTF-8"),
        ("value.order.id", "\udcff", "string"),
        ("value.none", 7, "no field"),
        ("value.order", 7, "not looked for"),
        ("value.f", 1.5, "not looked for"),
        ("value.id.x", 7, "no field"),
        ("value.", 7, "names no field"),
        ("value..id", 7, "names no field"),
        ("offset", 7, "names no field"),
        ("key", "k", "key.format"),
        ("value.day", datetime.datetime(2026, 1, 1), "date32"),
        ("value.price", Decimal("1.005"), "decimal"),
    ],
)
def test_what_is_no_field_and_no_value_of_one_is_refused(log, on, value, problem):
    ddl = "id bigint, order struct<id: string>, f double, day date, price decimal(9,2)"
    with pytest.raises(InvalidOptionError, match=problem):
        log.topic("t").scan(where={on: value}, formats={"value.format": "json", "value.schema": ddl})


@pytest.mark.parametrize("on", ["header.\udcff", "value.\udcff", "\udcff"])
@pytest.mark.parametrize("drop", [False, True])
def test_an_index_on_a_name_that_utf_8_cannot_write_is_refused(log, on, drop):
    with pytest.raises(InvalidOptionError, match="UTF-8"):
        index(log, on=[on], formats=FORMATS, drop=drop)


# Values, and what is looked for among them. Beside a row of NaN or of a number the first ones once decoded otherwise.
BESIDE_OTHERS = {
    "json": (
        {"value.schema": "id bigint, x double"},
        ['{"id": 1.0}', '{"id": 5, "x": "NaN"}', '{"id": 2, "id": 1}', '{"id": 1}'],
        [1, 5],
        [1, 3],
    ),
    "connect-json": (
        {"value.schemas.enable": "false", "value.schema": "id decimal(38,0)"},
        ['{"id": "1234"}', '{"id": 7}', '{"id": "BNI="}', '{"id": 1234}'],
        [1234],
        [2, 3],
    ),
}


@pytest.mark.parametrize("name", BESIDE_OTHERS)
@pytest.mark.parametrize("errors", [{}, {"value.errors": "null"}])
def test_an_index_has_the_records_of_a_full_scan_whatever_lies_beside_them(tmp_path, name, errors):
    options, values, looked_for, expected = BESIDE_OTHERS[name]
    formats = {"value.format": name} | options | errors
    log = LogDir.create(str(tmp_path))
    log.create_topic("t", config=CONFIG)
    log.topic("t").append([{"value": value} for value in [*values, *["{}"] * 1000]])
    by_scan = log.topic("t").scan(where={"value.id": looked_for}, formats=formats)
    assert [offset for _, offset in offsets(by_scan)] == expected
    index(log, on=["value.id"], formats=formats)
    by_index = log.topic("t").scan(where={"value.id": looked_for}, formats=formats)
    assert offsets(by_index) == offsets(by_scan)
    assert by_index.coverage.indexed_offsets == 1004


def test_a_condition_reads_what_it_cannot_decode_as_null_and_the_columns_of_its_records_by_their_own_setting(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("t")
    log.topic("t").append([{"key": "k", "value": '{"id": 1}'}, {"key": "k", "value": "{"}, {"value": '{"id": 1}'}])
    formats = {"value.format": "json", "value.schema": "id bigint"}
    found = log.topic("t").scan(where={"value.id": 1}, formats=formats)
    assert offsets(found) == [(0, 0), (0, 2)]
    with pytest.raises(ValueFormatError, match="offset 1"):
        log.topic("t").scan(where={"key": "k"}, formats=formats | {"key.format": "string"}).to_table()


@pytest.mark.parametrize("where", ["header.trace-id=4", [("header.trace-id", "4")], {7: "4"}, ""])
def test_conditions_that_are_no_mapping_of_fields_are_refused(log, where):
    with pytest.raises(InvalidOptionError, match="such as"):
        log.topic("t").scan(where=where)


def test_a_name_with_a_dot_stands_in_backticks(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("t")
    log.topic("t").append([{"value": json.dumps({"a.b": {"c": 1}, "a": {"b": 2}})}])
    formats = {"value.format": "json", "value.schema": "`a.b` struct<c: int>, a struct<b: int>"}
    index(log, on=["value.`a.b`.c"], formats=formats)
    for on, value in (("value.`a.b`.c", 1), ("value.a.b", 2)):
        assert log.topic("t").scan(where={on: value}, formats=formats).to_table().num_rows == 1


def test_control_records_have_no_fields(log):
    with pytest.raises(InvalidOptionError, match="Control records"):
        log.topic("t").scan(where={TRACE: "a"}, include_control=True)


# Formats


def test_an_index_of_other_formats_is_not_asked_and_says_so_and_is_built_again(log):
    index(log, on=[ORDER], formats=FORMATS)
    other = FORMATS | {"value.schema": "order struct<id: string>"}
    topic = log.topic("t")
    expected = offsets(topic.scan(where={ORDER: "o4"}, formats=FORMATS))
    scan = topic.scan(where={ORDER: "o4"}, formats=other)
    assert scan.coverage.scanned_offsets == 200
    assert scan.coverage.index_error == (
        "The index on value.order.id has other formats: expected value.schema id bigint, order struct<id: string>, "
        "found value.schema order struct<id: string>. Until it is built again, look-ups scan the log: segments index "
        "LOG_DIR t --on value.order.id --value-format json --value-schema 'order struct<id: string>'"
    )
    assert offsets(scan) == expected
    before = live_runs(log, ORDER)
    assert index(log, on=[ORDER]).ok and live_runs(log, ORDER) == before, "without formats: those of the index"
    assert index(log, on=[ORDER], formats=other).ok
    assert not {run.path for run in before} & {run.path for run in live_runs(log, ORDER)}
    assert offsets(topic.scan(where={ORDER: "o4"}, formats=other)) == expected
    assert topic.scan(where={ORDER: "o4"}, formats=other).coverage.scanned_offsets == 0
    with_errors = other | {"value.errors": "null", "value.raw.column": "raw"}
    assert topic.scan(where={ORDER: "o4"}, formats=with_errors).coverage.scanned_offsets == 0


@pytest.mark.parametrize("schema", ["id  bigint", "id: bigint", "struct<id:bigint>", " id bigint\n"])
def test_one_schema_in_other_words_is_the_same_formats(log, schema):
    index(log, on=["value.id"], formats=FORMATS | {"value.schema": "id bigint"})
    formats = FORMATS | {"value.schema": schema}
    scan = log.topic("t").scan(where={"value.id": 7}, formats=formats)
    assert scan.coverage.scanned_offsets == 0 and scan.to_table().num_rows == 1
    other = log.topic("t").scan(where={"value.id": 7}, formats=FORMATS | {"value.schema": "id int"})
    assert other.coverage.scanned_offsets == 200


def test_one_schema_of_avro_in_other_words_is_the_same_formats(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    formats = {"value.format": "avro", "value.schema": json.dumps(schema)}
    log.topic("t").append(pa.table({"value": [{"id": 7}, {"id": 8}]}), formats=formats)
    index(log, on=["value.id"], formats=formats)
    scan = log.topic("t").scan(where={"value.id": 7}, formats=formats | {"value.schema": json.dumps(schema, indent=1)})
    assert scan.coverage.scanned_offsets == 0 and scan.to_table().num_rows == 1


def test_a_registry_by_a_relative_path_is_the_same_from_any_directory(tmp_path, monkeypatch):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    (tmp_path / "registry").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    formats = {"value.format": "avro", "schema.registry": "./registry"}
    log.topic("t").append(pa.table({"value": [{"id": 7}]}), formats=formats)
    assert index(log, on=["value.id"], formats=formats).ok
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.topic("t").append(pa.table({"value": [{"id": 8}]}), formats=formats | {"schema.registry": "../registry"})
    assert index(log, existing=True).ok
    for path in ("../registry", str(tmp_path / "registry")):
        scan = log.topic("t").scan(where={"value.id": 8}, formats=formats | {"schema.registry": path})
        assert scan.coverage.scanned_offsets == 0 and scan.to_table().num_rows == 1
    (tmp_path / "registry").rename(tmp_path / "moved")
    [failed] = index(log, existing=True).failed
    command = f"segments index LOG_DIR t --on value.id --schema-registry {tmp_path / 'registry'} --value-format avro"
    assert "the index on value.id remembers" in failed["error"] and command in failed["error"]


def test_the_user_in_the_address_of_a_registry_is_in_no_index(tmp_path, log):
    formats = {"value.format": "json", "value.schema": "id bigint", "schema.registry": "http://me:secret@host:81/"}
    index(log, on=["value.id"], formats=formats)
    lists = [path.read_bytes() for path in (tmp_path / "log" / "_keys").rglob("*.json")]
    assert lists and not any(b"secret" in content for content in lists)


@pytest.mark.parametrize(
    ("on", "formats", "hint"),
    [
        ("value.id", {"value.format": "json"}, "--value-schema"),
        ("value.a.b", FORMATS | {"value.schema": "`a.b` struct<c: int>, a struct<c: int>"}, "'value.`a.b`'"),
        ("value.o.a.b.c", FORMATS | {"value.schema": "o struct<`a.b`: struct<c: int>>"}, "'value.o.`a.b`.c'"),
        ("value.id.x", FORMATS, "no field"),
    ],
)
def test_a_path_that_leads_to_no_field_has_a_hint(log, on, formats, hint):
    with pytest.raises(InvalidOptionError, match=re.escape(hint)):
        log.topic("t").scan(where={on: 7}, formats=formats)


def test_verify_names_the_commands_that_build_an_index_on_a_field_again(log, tmp_path):
    index(log)
    index(log, on=[ORDER], formats=FORMATS)
    for name in ("key", index_name(ORDER)):
        run = min((tmp_path / "log/_keys/t" / name).rglob("*.run"))
        run.write_bytes(b"x" * run.stat().st_size)
    messages = [finding.message for finding in log.topic("t").verify(deep=True).findings]
    field_commands = (
        f"segments index LOG_DIR t --drop --on {ORDER}, then segments index LOG_DIR t --on {ORDER} --value-"
    )
    assert sum(field_commands in message for message in messages) == 1
    assert sum("segments index LOG_DIR t --drop, then segments index LOG_DIR t," in own for own in messages) == 1
    index(log, on=[ORDER], drop=True)
    index(log, on=[ORDER], formats=FORMATS)
    assert len(log.topic("t").verify(deep=True).findings) == 1


def test_an_index_of_a_new_schema_of_its_subject_is_built_again_by_maintain(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    formats = {"value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    (tmp_path / "registry").mkdir()
    for number in range(2):
        table = pa.table({"value": [{"id": 7} | ({"more": 1} if number else {})]})
        log.topic("t").append(table, formats=formats)
        if not number:
            assert index(log, on=["value.id"], formats=formats).ok
            assert log.topic("t").scan(where={"value.id": 7}, formats=formats).coverage.scanned_offsets == 0
            (tmp_path / "registry" / "subjects.json").unlink()
    coverage = log.topic("t").scan(where={"value.id": 7}, formats=formats).coverage
    assert "the schema of the subject is new" in coverage.index_error
    assert [report.ok for report in log.maintain() if report.job == "index"] == [True]
    scan = log.topic("t").scan(where={"value.id": 7}, formats=formats)
    assert scan.coverage.scanned_offsets == 0 and scan.to_table().num_rows == 2


def test_a_record_whose_schema_comes_later_is_found(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    registry = tmp_path / "registry"
    registry.mkdir()
    formats = {"value.format": "avro", "schema.registry": str(registry)}
    log.topic("t").append(pa.table({"value": [{"id": 7}, {"id": 8}]}), formats=formats)
    [schema] = registry.glob("*.avsc")
    [first, _] = log.topic("t").scan().to_table().column("value").to_pylist()
    later = registry / "77.avsc"
    log.topic("t").append([{"value": b"\0" + (77).to_bytes(4, "big") + first[5:]}])
    report = index(log, on=["value.id"], formats=formats)
    assert report.details["t"]["field_indexes"]["value.id"]["undecodable"] == 1
    shutil.copy(schema, later)
    scan = log.topic("t").scan(where={"value.id": 7}, formats=formats)
    assert scan.coverage.scanned_offsets == 0
    assert scan.to_table().column("offset").to_pylist() == [0, 2]
    assert not log.topic("t").verify(deep=True).findings


def test_credentials_are_in_no_index(tmp_path, log):
    registry = tmp_path / "registry"
    registry.mkdir()
    formats = {"value.format": "avro", "value.schema": "id bigint", "schema.registry": str(registry)}
    secret = {"schema.registry.basic.auth.user.info": "me:secret"}
    index(log, on=["value.id"], formats=formats | secret)
    lists = [path.read_bytes() for path in (tmp_path / "log" / "_keys").rglob("*.json")]
    assert lists and not any(b"secret" in content for content in lists)
    assert log.topic("t").scan(where={"value.id": 1}, formats=formats).coverage.scanned_offsets == 0


# Erasure


def places(log, key):
    return {
        (own["partition"], own["offset"]) for own in log.topic("t").scan().to_table().to_pylist() if own["key"] == key
    }


@pytest.mark.parametrize("on", [TRACE, ORDER])
def test_erased_records_leave_an_index_on_a_field_in_the_erasure(log, tmp_path, on):
    index(log, on=[on], formats=FORMATS)
    before = {run.path for run in live_runs(log, on)}
    erased = places(log, b"k1")
    assert erased & entries(log, on)
    erase(log, topics=["t"], keys=[b"k1"])
    assert not erased & entries(log, on)
    vacuum(log)
    left = {str(path.relative_to(tmp_path / "log")) for path in (tmp_path / "log/_keys/t").rglob("*.run")}
    assert left == {run.path for run in live_runs(log, on)} < before, "and the other partition's stays"
    index(log, existing=True)
    assert not erased & entries(log, on)
    assert log.topic("t").scan(where={on: "often"}, formats=FORMATS).coverage.scanned_offsets == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 16, 2))
def test_an_erasure_beside_the_job_leaves_no_entry_in_an_index_on_a_header(tmp_path, step, after):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, CONFIG)
    log.topic("t").append([{"key": key, "value": b"v", "headers": [("trace-id", b"x")]} for key in (b"a", b"b")])
    happened = []

    def happen():
        happened.append(True)
        erase(LogDir.open(log.uri), topics=["t"], keys=[b"a"])

    index(stepped(log.uri, step, happen, after=after), on=[TRACE])
    # The job has fewer steps than the last of these.
    assert happened or step > FIRST_RUN_STEPS
    if not happened:
        happen()
    assert entries(log, TRACE) <= {(0, 1)}
    assert offsets(LogDir.open(log.uri).topic("t").scan(where={TRACE: "x"})) == [(0, 1)]


def test_records_of_an_erased_key_that_left_the_log_before_leave_the_index_here_and_at_a_follower(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2, CONFIG | {"cleanup.policy": "compact"})
    log.topic("t").append([{"key": "other", "value": "v", "partition": 1}])
    erase(log, topics=["t"], keys=[b"other"])  # what it rewrote says nothing of partition 0
    for number in range(3):
        rows = [{"key": key, "value": str(number), "headers": [("trace-id", key)]} for key in ("a", "b", f"c{number}")]
        rows = [row | {"partition": 0} for row in rows]
        log.topic("t").append(rows)
    rows = [{"key": "a", "value": None}, {"key": "b", "value": "newest"}]
    log.topic("t").append([row | {"partition": 0} for row in rows])
    roll(log)
    index(log, on=[TRACE])
    copy = LogDir.create(str(tmp_path / "copy"))
    mirror(copy, leader=log)
    index(copy, on=[TRACE])
    log.topic("t").append([{"key": "z", "value": "last", "partition": 0}])
    roll(log)
    log.topic("t").alter({"delete.retention.ms": "0"})
    for _ in range(3):
        compact(log, force=True)
    mirror(copy, leader=log)
    assert (0, 0) in entries(log, TRACE) & entries(copy, TRACE), "of a record that compaction took"
    erase(log, topics=["t"], keys=[b"a"])
    mirror(copy, leader=log)
    for own in (log, copy):
        assert (0, 0) not in entries(own, TRACE)
        index(own, existing=True)
        assert (0, 0) not in entries(own, TRACE)
        assert offsets(own.topic("t").scan(where={TRACE: ["a", "c1"]})) == [(0, 5)]


# Lists


def damage(path, on):
    directory = path / "log/_keys/t" / index_name(on)
    for file in directory.glob("*.json"):
        file.write_bytes(b"{}")


def test_a_damaged_list_of_which_earlier_ones_are_left_is_built_again_by_maintain(log, tmp_path):
    for _ in range(2):
        index(log, on=[ORDER], formats=FORMATS)
        log.topic("t").append([row(9, 1)])
    directory = tmp_path / "log/_keys/t" / index_name(ORDER)
    for file in (max(directory.glob("0*.json")), directory / "newest.json"):
        file.write_bytes(b"{}")
    assert "damaged" in log.topic("t").scan(where={ORDER: "o4"}, formats=FORMATS).coverage.index_error
    assert "damaged" in log.topic("t").describe()["field_indexes"][ORDER]["error"]
    assert index(log, existing=True).ok
    assert log.topic("t").scan(where={ORDER: "o4"}, formats=FORMATS).coverage.scanned_offsets == 0


def test_an_index_of_which_nobody_can_tell_the_field_is_built_by_its_name_alone(log, tmp_path):
    index(log, on=[TRACE])
    erased = places(log, b"k1")
    damage(tmp_path, TRACE)
    [failed] = index(log, existing=True).failed
    assert "damaged" in failed["error"]
    erase(log, topics=["t"], keys=[b"k1"])
    vacuum(log)
    assert not list((tmp_path / "log/_keys/t").rglob("*.run"))
    assert index(log, existing=True).details == {}
    assert index(log, on=[TRACE]).ok
    assert not erased & entries(log, TRACE)
    assert log.topic("t").scan(where={TRACE: "4"}).coverage.scanned_offsets == 0


def test_a_program_that_knows_keys_alone_leaves_an_index_on_a_field_alone(log, tmp_path):
    """It could not take out of it what is erased: the list's version is above that of a list of keys."""
    index(log, on=[TRACE])
    index(log)
    versions = {
        path.parent.name: json.loads(path.read_text().splitlines()[0])["format.version"]
        for path in (tmp_path / "log/_keys/t").glob("*/newest.json")
    }
    assert versions == {"key": 1, index_name(TRACE): 2}


def test_maintain_keeps_all_indexes_of_a_topic(log):
    index(log)
    index(log, on=[TRACE])
    log.topic("t").append([row(9, 1)])
    assert all(report.ok for report in log.maintain())
    topic = log.topic("t")
    assert topic.scan(keys="k1").coverage.scanned_offsets == 0
    assert topic.scan(where={TRACE: "4"}).coverage.scanned_offsets == 0
    assert topic.describe()["key_index"]["offsets_indexed"] == 201
