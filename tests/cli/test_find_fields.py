"""`index --on` and `consume --where`: the records that a filter of all leaves, and what was looked at for them."""

from __future__ import annotations

import json

import pytest

from spark_segments import LogDir

TRACE = "header.trace-id"
JSON = ("--value-format", "json", "--value-schema", "id bigint, order struct<id: string>")


@pytest.fixture
def log(tmp_path):
    """Half of the records have one trace; every fifth has no JSON."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 2)
    for number in range(4):
        log.topic("orders").append([row(number, at) for at in range(30)])
    return log


def row(number, at):
    value = json.dumps({"id": number * 30 + at, "order": {"id": f"o{at % 4}"}}) if at % 5 else "{"
    return {"key": f"k{at % 3}", "value": value, "headers": {"trace-id": "often" if at % 2 else f"t={at % 6}"}}


def places(log, has):
    rows = log.topic("orders").scan().to_table().to_pylist()
    return [f"{row['partition']}-{row['offset']}" for row in rows if has(row)]


def has_trace(*values):
    return lambda row: row["headers"][0]["value"] in values


def has_order(value):
    return lambda row: row["value"] != b"{" and json.loads(row["value"])["order"]["id"] == value


def found(segments, log, *options):
    ran = segments("consume", log.uri, "orders", "-f", "%p-%o;", *options)
    return ran.text.split(";")[:-1], ran.error


@pytest.mark.parametrize("is_indexed", [False, True])
def test_the_records_of_a_header_and_of_a_field_are_those_of_a_filter(segments, log, is_indexed):
    if is_indexed:
        segments("index", log.uri, "orders", "--on", TRACE, "--on", "value.order.id", *JSON)
    looked_at = "answered for 120 offsets" if is_indexed else "120 offsets scanned"
    for options, has in [
        (("--where", f"{TRACE}=often"), has_trace(b"often")),
        (("--where", f"{TRACE}=t=4"), has_trace(b"t=4")),
        (("--where", f"{TRACE}=t=4", "--where", f"{TRACE}=t=2"), has_trace(b"t=4", b"t=2")),
        (("--where", "value.order.id=o3", *JSON), has_order("o3")),
    ]:
        expected = places(log, has)
        lines, error = found(segments, log, *options)
        assert lines == expected != [] and looked_at in error
        assert segments("consume", log.uri, "orders", "--count", *options).text == f"{len(expected)}\n"
    both = found(segments, log, "--where", f"{TRACE}=t=2", "--where", "value.order.id=o2", "--key", "k2", *JSON)[0]
    assert both == places(log, lambda row: has_trace(b"t=2")(row) and has_order("o2")(row) and row["key"] == b"k2")
    assert "offset" not in found(segments, log, "--where", f"{TRACE}=often", "--quiet")[1]


def test_the_newest_records_of_their_keys_with_a_header(segments, log):
    segments("index", log.uri, "orders", "--on", TRACE)
    rows = log.topic("orders").scan(view="latest").to_table().to_pylist()
    for value in (b"often", b"t=4", b"t=2"):
        expected = [f"{row['partition']}-{row['offset']}" for row in rows if has_trace(value)(row)]
        assert found(segments, log, "--where", f"{TRACE}={value.decode()}", "--latest")[0] == expected


def test_an_index_on_a_field_is_built_kept_and_dropped(segments, log):
    built = segments("index", log.uri, "orders", "--on", "value.order.id", *JSON)
    assert "value.order.id of 120 of 120 offsets is indexed, 96 values in" in built.error
    assert "24 records of orders cannot be decoded" in built.error
    described = segments("describe", log.uri, "orders")
    assert "value.order.id of 120 of 120 offsets is indexed" in described.text
    assert "24 records could not be decoded" in described.text and "keys of" not in described.text
    log.topic("orders").append([row(9, 1)])
    assert "value.order.id of 121 of 121 offsets" in segments("maintain", log.uri).error
    state = segments("describe", log.uri, "orders", "--output", "json").json["field_indexes"]["value.order.id"]
    assert (state["entries"], state["undecodable"]) == (97, 24)
    dropped = segments("index", log.uri, "orders", "--drop", "--on", "value.order.id", "--output", "json").json
    assert {line["on"] for line in dropped["partitions"]} == {"value.order.id"}
    assert "indexed" not in segments("describe", log.uri, "orders").text


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("consume", "--where", "header.trace-id"), "FIELD=VALUE"),
        (("consume", "--where", "offset=7"), "names no field"),
        (("consume", "--where", "value.id=x", *JSON), "int64"),
        (("consume", "--where", f"{TRACE}=x", "--group", "g"), "--where"),
        (("index", "--on", "value.id"), "value.format"),
        (("index", "--on", "value.order", *JSON), "not looked for"),
        (("index", *JSON), "--on"),
        (("index", "--on", ""), "names no field"),
        (("index", "--on", TRACE, "--on", ""), "names no field"),
        (("index", "--drop", "--on", "offset"), "names no field"),
    ],
)
def test_what_is_no_field_is_one_error(run, log, command, problem):
    name, *options = command
    ran = run(name, log.uri, "orders", *options)
    assert ran.code != 0 and problem in ran.error
    assert "Traceback" not in ran.error


def test_an_empty_name_of_a_field_drops_no_index(run, segments, log):
    segments("index", log.uri, "orders")
    segments("index", log.uri, "orders", "--on", TRACE)
    ran = run("index", log.uri, "orders", "--drop", "--on", "")
    assert ran.code != 0 and "names no field" in ran.error
    described = segments("describe", log.uri, "orders").text
    assert "keys of 120 of 120 offsets" in described and f"{TRACE} of 120 of 120 offsets" in described


def test_a_drop_of_an_index_that_does_not_exist_names_those_that_do(segments, log):
    nothing = segments("index", log.uri, "orders", "--drop").error
    assert "no index on keys to drop. Indexes: none" in nothing
    segments("index", log.uri, "orders", "--on", TRACE)
    for options, what in (((), "keys"), (("--on", "header.zzz"), "header.zzz")):
        ran = segments("index", log.uri, "orders", "--drop", *options)
        assert f"no index on {what} to drop. Indexes: orders: {TRACE}" in ran.error
    assert "warning" not in segments("index", log.uri, "--drop", "--on", TRACE).error
