from __future__ import annotations

import json

import pytest

from spark_segments import LogDir
from verification.world.kafka_bytes.golden_files import GOLDEN, expected_records
from verification.world.topics import contents

START_MS = 1_700_000_000_000


@pytest.fixture
def uri(tmp_path, segments) -> str:
    uri = str(tmp_path / "log")
    segments("topic", "create", uri, "orders", "--partitions", 1)
    return uri


def timed(*offsets_ms: int) -> bytes:
    """A JSON line a record, its timestamp so long after START_MS, its value the number of the line."""
    rows = [{"value": str(number), "timestamp": START_MS + ms} for number, ms in enumerate(offsets_ms)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_lines_are_values(segments, uri):
    ran = segments("append", uri, "orders", "--output", "json", stdin=b"first\n\nthird\r\nlast without an end")
    assert ran.json | {"seconds": 0} == {
        "job": "append",
        "topic": "orders",
        "seconds": 0,
        "records": 4,
        "repeated": False,
        "partitions": [{"partition": 0, "first_offset": 0, "last_offset": 3}],
    }
    assert segments("consume", uri, "orders").output == b"first\n\nthird\nlast without an end\n"


def test_append_prints_the_offsets(segments, uri):
    segments("append", uri, "orders", stdin=b"a\n")
    done = segments("append", uri, "orders", stdin=b"b\nc\n")
    assert [line.split() for line in done.lines] == [["partition", "first_offset", "last_offset"], ["0", "1", "2"]]
    assert done.error.startswith("Appended 2 records to orders in ")


def test_bytes_that_are_not_text_come_out_as_they_went_in(segments, uri):
    segments("append", uri, "orders", stdin=b"\xff\xfe\x80\n")
    assert segments("consume", uri, "orders").output == b"\xff\xfe\x80\n"


def test_keys_and_headers_of_text_lines(segments, uri):
    segments(
        "append", uri, "orders",
        "--property", "parse.key=true", "--property", "key.separator=:",
        "--property", "parse.headers=true", "--property", "null.marker=NULL",
        stdin=b"h1:v1,h2:v2\tk:v:w\nNULL\tNULL:v\nh:\tk:NULL\n",
    )  # fmt: skip
    shown = segments(
        "consume", uri, "orders",
        "--property", "print.key=true", "--property", "print.headers=true", "--property", "print.offset=true",
        "--property", "print.partition=true", "--property", "key.separator=|",
    )  # fmt: skip
    assert shown.lines == [
        "Partition:0|Offset:0|h1:v1,h2:v2|k|v:w",
        "Partition:0|Offset:1|NO_HEADERS|null|v",
        "Partition:0|Offset:2|h:|k|null",
    ]


def test_headers_of_text_lines_are_split_at_their_first_separator(run, segments, uri):
    properties = ["--property", "parse.headers=true", "--property", "headers.key.separator==>"]
    text = b"a=>b=>c,=>x,key==>,d=>\xff,,\tv\n,\tx\n"
    segments("append", uri, "orders", *properties, stdin=text)
    read = [row["headers"] for row in contents(LogDir.open(uri), "orders")]
    headers = [("a", b"b=>c"), ("", b"x"), ("key=", b""), ("d", b"\xff")]
    assert read == [[{"key": key, "value": value} for key, value in headers], []]
    ran = run("append", uri, "orders", *properties, stdin=b"a=>\tv\na=>b,\xff=>c\tv\n")
    assert ran.code == 1 and "Line 2 has a header whose key is not UTF-8" in ran.error


_PARSED = ("parse.headers=true", "parse.key=true", "null.marker=NULL")


def test_the_null_marker_stands_for_headers_and_their_values(run, segments, uri):
    """KIP-810, and the rules of Kafka's LineMessageReader."""
    properties = [f"--property={text}" for text in _PARSED]
    lines = b"h1:v1,h2:NULL,h3:NULLS\tk\tv\nNULL\tNULL\tNULL\n"
    segments("append", uri, "orders", *properties, stdin=lines)
    first, second = contents(LogDir.open(uri), "orders")
    assert [(header["key"], header["value"]) for header in first["headers"]] == [
        ("h1", b"v1"),
        ("h2", None),
        ("h3", b"NULLS"),
    ]
    assert (second["headers"], second["key"], second["value"]) == ([], None, None)
    ran = run("append", uri, "orders", *properties, stdin=b"h1:v1\tk\tv\nNULL:v1\tk\tv\n")
    assert ran.code == 1 and "Line 2 has a header whose key is null.marker" in ran.error


def test_a_header_without_its_separator_is_an_error_that_names_the_line(run, segments, uri):
    properties = [f"--property={text}" for text in _PARSED]
    ran = run("append", uri, "orders", *properties, stdin=b"h:1\tk\tv\nh:1,secret\tk\tv\n")
    assert ran.code == 1 and "Line 2 has a header without a value" in ran.error and "secret" not in ran.error
    printed = run("append", uri, "orders", "--property", "print.headers=true", stdin=b"h:1,2\tv\n")
    assert printed.code == 1 and "Line 1 has a header without a value" in printed.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


@pytest.mark.parametrize("headers", [b"", b"h:1,,i:2", b",h:1"])
def test_empty_headers_are_errors_as_in_kafka(run, segments, uri, headers):
    properties = [f"--property={text}" for text in _PARSED]
    ran = run("append", uri, "orders", *properties, stdin=b"h:1\tk\tv\n" + headers + b"\tk\tv\n")
    assert ran.code == 1 and "Line 2 has a header without a value" in ran.error
    segments("append", uri, "orders", *properties, "--property=ignore.error=true", stdin=headers + b"\tk\tv\n")
    [row] = contents(LogDir.open(uri), "orders")
    assert {"key": "", "value": None} in row["headers"]


def test_an_empty_null_marker_stands_for_what_is_empty(segments, uri):
    """Kafka's reader has no marker until it is set."""
    parts = ["--property=parse.headers=true", "--property=parse.key=true"]
    segments("append", uri, "orders", *parts, "--property=null.marker=", stdin=b"\t\tv\nh:\tk\t\n")
    segments("append", uri, "orders", *parts, stdin=b"h:\t\t\n")
    rows = contents(LogDir.open(uri), "orders")
    headers = [[(header["key"], header["value"]) for header in row["headers"]] for row in rows]
    assert headers == [[], [("h", None)], [("h", b"")]]
    assert [(row["key"], row["value"]) for row in rows] == [(None, b"v"), (b"k", None), (b"", b"")]


EQUAL = (
    ("headers.delimiter", "headers.separator"),
    ("headers.delimiter", "headers.key.separator"),
    ("headers.separator", "headers.key.separator"),
    ("null.marker", "key.separator"),
    ("null.marker", "headers.delimiter"),
    ("null.marker", "headers.separator"),
    ("null.marker", "headers.key.separator"),
)


@pytest.mark.cases(2)
@pytest.mark.parametrize("names", EQUAL, ids=" ".join)
def test_equal_separators_are_refused_as_kafka_refuses_them(run, uri, names):
    properties = [f"--property={name}=|" for name in names]
    ran = run("append", uri, "orders", "--property=parse.headers=true", *properties, stdin=b"h:1\tv\n")
    assert ran.code == 1 and all(name in ran.error for name in names), ran.error


def test_lines_whose_parts_lack_separators_are_taken_where_errors_are_ignored(run, segments, uri):
    properties = [f"--property={text}" for text in (*_PARSED, "ignore.error=true")]
    lines = b"h1:v1,h2\tk\tv\nh:1\tno key\nvalue alone\nNULL\tk\tNULL\n"
    segments("append", uri, "orders", *properties, stdin=lines)
    rows = contents(LogDir.open(uri), "orders")
    headers = [[(header["key"], header["value"]) for header in row["headers"]] for row in rows]
    assert headers == [[("h1", b"v1"), ("h2", None)], [("h", b"1")], [], []]
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"k", b"v"),
        (None, b"no key"),
        (None, b"value alone"),
        (b"k", None),
    ]
    ran = run("append", uri, "orders", "--property", "print.key=true", "--property", "ignore.error=true", stdin=b"x\n")
    assert ran.code == 1 and "found ignore.error" in ran.error


def test_a_property_may_have_escapes_beside_any_text(run, segments, uri):
    segments("append", uri, "orders", "--property", "parse.key=true", stdin=b"k\tv\n")
    shown = segments("consume", uri, "orders", "--property", "print.key=true", "--property", r"key.separator=é→\t")
    assert shown.text == "ké→\tv\n"
    ran = run("consume", uri, "orders", "--property", "line.separator=\\")
    assert (ran.code, ran.error.count("\n")) == (1, 1) and "line.separator" in ran.error


def test_a_tab_separates_keys_by_default(segments, uri):
    segments("append", uri, "orders", "--property", "parse.key=true", stdin=b"k\tv\n")
    assert segments("consume", uri, "orders", "--property", "print.key=true").output == b"k\tv\n"


def test_a_line_without_its_key_is_an_error_that_names_the_line(run, uri):
    ran = run("append", uri, "orders", "--property", "parse.key=true", stdin=b"k\tv\nvalue\n")
    assert ran.code == 1
    assert "Line 2 has no key" in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


@pytest.mark.parametrize("name", ["key.separator", "headers.delimiter", "headers.separator", "headers.key.separator"])
def test_an_empty_separator_is_an_error(run, uri, name):
    properties = [f"--property={one}" for one in ("parse.key=true", "parse.headers=true", f"{name}=")]
    ran = run("append", uri, "orders", *properties, stdin=b"h:1\tk\tv\n")
    assert ran.code == 1 and f"Property {name} is empty" in ran.error


def test_a_line_without_a_key_on_a_compacted_topic_is_an_error_that_names_the_line(run, segments, uri):
    segments("topic", "create", uri, "prices", "--config", "cleanup.policy=compact")
    lines = b'{"key": "a", "value": "1"}\n{"value": "2"}\n'
    ran = run("append", uri, "prices", "--format", "json", stdin=lines)
    assert ran.code == 1
    assert ran.error.startswith("error: Topic prices is compacted") and "no key in row 2" in ran.error
    assert segments("offsets", uri, "prices").lines == ["prices:0:0"]


def test_json_lines_round_trip(segments, uri):
    rows = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}]},
        {"key": None, "value": None, "headers": []},
        {"key_base64": "//4=", "value_base64": "AP8=", "headers": [{"key": "ü", "value_base64": "/w=="}]},
        {"key": "", "value": "", "headers": []},
    ]  # fmt: skip
    for number, row in enumerate(rows):
        row["timestamp"] = START_MS + number
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    segments("append", uri, "orders", "--format", "json", stdin=lines)
    shown = segments("consume", uri, "orders", "--output", "json").output
    place = {"topic": "orders", "partition": 0, "timestampType": 0}
    assert [json.loads(line) for line in shown.splitlines()] == [
        row | place | {"offset": number} for number, row in enumerate(rows)
    ]
    segments("topic", "create", uri, "copy")
    segments("append", uri, "copy", "--format", "json", stdin=shown)
    again = segments("consume", uri, "copy", "--output", "json").output
    assert again == shown.replace(b'"topic": "orders"', b'"topic": "copy"')


def test_values_of_json_lines_may_be_json(segments, uri):
    lines = b'{"key": "k", "value": {"id": 1, "items": [2]}}\n'
    segments("append", uri, "orders", "--format", "json", "--value-column", "value", stdin=lines)
    shown = segments("consume", uri, "orders", "--property", "print.key=true")
    assert shown.text == 'k\t{"id":1,"items":[2]}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[1]",
        b'{"value_base64": "?"}',
        b'{"value": "a", "headers": [{}]}',
        b'{"value": "a", "partition": "x"}',
        b'{"value": "a", "timestamp": "x"}',
        b'{"value": "a", "partition": 4294967296}',
        b'{"value": "a", "headers": [{"key": 1}]}',
        b'{"value": [1e999]}',
        b'{"value": ' + b"[" * 100_000,
        b'{"value": "a", "headers": 3}',
        b'{"key": "a", "Value": "b"}',
    ],
)
def test_a_json_line_that_is_no_record_is_an_error(run, uri, line):
    ran = run("append", uri, "orders", "--format", "json", stdin=b'{"value": "a"}\n' + line + b"\n")
    assert ran.code == 1
    assert ran.error.startswith("error: ") and ran.error.count("\n") == 1
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def test_a_json_line_with_a_column_twice_names_the_column(run, uri):
    ran = run("append", uri, "orders", "--format", "json", stdin=b'{"value": "a", "value": "b"}\n')
    assert ran.code == 1 and "Column(/value) was specified twice" in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def test_a_file_in_a_codec(segments, uri, tmp_path):
    (tmp_path / "lines").write_bytes(b"a\n" * 1000)
    segments("append", uri, "orders", "--input", tmp_path / "lines", "--compression-codec", "gzip")
    log_file = next((tmp_path / "log" / "orders-0").glob("*.log"))
    assert "compresscodec: gzip" in segments("dump", log_file).text
    assert segments("consume", uri, "orders").output == b"a\n" * 1000


def test_a_transaction_is_appended_once(segments, uri):
    segments("append", uri, "orders", "--txn", "nightly:1", stdin=b"a\n")
    again = segments("append", uri, "orders", "--txn", "nightly:1", stdin=b"a\n")
    assert again.error == "Nothing appended: orders has transaction nightly:1 already.\n"
    assert segments("consume", uri, "orders").lines == ["a"]


@pytest.mark.parametrize("version", ["9223372036854775808", "-1", "²"])
def test_a_transaction_version_that_cannot_be_kept_is_an_error(run, segments, uri, version):
    ran = run("append", uri, "orders", "--txn", f"app:{version}", stdin=b"a\n")
    assert ran.code == 1 and ran.error.startswith("error: ") and len(ran.error.splitlines()) == 1
    assert segments("offsets", uri, "orders").lines == ["orders:0:0"]


def test_no_lines_are_a_transaction_too(segments, uri):
    empty = segments("append", uri, "orders", "--txn", "app:1", "--output", "json", stdin=b"")
    assert (empty.json["partitions"], empty.json["repeated"]) == ([], False)
    again = segments("append", uri, "orders", "--txn", "app:1", "--output", "json", stdin=b"late\n")
    assert (again.json["partitions"], again.json["repeated"]) == ([], True)
    assert segments("offsets", uri, "orders").lines == ["orders:0:0"]


def test_the_partition_option_beats_the_key(segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders", "--partitions", 3)
    segments("append", uri, "orders", "--partition", 2, "--property", "parse.key=true", stdin=b"a\t1\nb\t2\nc\t3\n")
    assert segments("offsets", uri, "orders").lines == ["orders:0:0", "orders:1:0", "orders:2:3"]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--offset", 3], "34"),
        (["--offset", "earliest", "--end-offset", 2], "01"),
        (["--offset", "latest"], ""),
        (["--offset", "-2"], "34"),
        (["--offset", "-99"], "01234"),
        (["-n", 2], "01"),
        (["--max-messages", 0], ""),
        (["--from-time", START_MS + 200], "234"),
        (["--from-time", "2023-11-14T22:13:20.300Z"], "34"),
        (["--from-time", "2023-11-14T22:13:20.300"], "34"),
        (["--to-time", START_MS + 200], "01"),
        (["--from-time", START_MS + 100, "--to-time", START_MS + 300, "-n", 1], "1"),
        (["--from-time", START_MS + 9999], ""),
        (["--to-time", START_MS + 9999], "01234"),
    ],
)  # fmt: skip
def test_where_consume_begins_and_ends(segments, uri, arguments, values):
    segments("append", uri, "orders", "--format", "json", stdin=timed(0, 100, 200, 300, 400))
    assert "".join(segments("consume", uri, "orders", *arguments).lines) == values


def test_consume_goes_partition_by_partition_and_stops_at_n_over_all(segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders", "--partitions", 2)
    for partition in (1, 0):
        segments("append", uri, "orders", "--partition", partition, stdin=f"{partition}a\n{partition}b\n".encode())
    assert segments("consume", uri, "orders").lines == ["0a", "0b", "1a", "1b"]
    assert segments("consume", uri, "orders", "-n", 3).lines == ["0a", "0b", "1a"]
    assert segments("consume", uri, "orders", "--partition", 1).lines == ["1a", "1b"]


def test_consume_prints_the_timestamp_and_its_type(segments, uri):
    segments("append", uri, "orders", "--format", "json", stdin=timed(7))
    shown = segments("consume", uri, "orders", "--property", "print.timestamp=true", "--property", "print.value=false")
    assert shown.lines == [f"CreateTime:{START_MS + 7}"]


def test_consume_at_an_earlier_version(segments, uri):
    segments("append", uri, "orders", stdin=b"a\n")
    version = LogDir.open(uri).topic("orders").snapshot.version
    segments("append", uri, "orders", stdin=b"b\n")
    assert segments("consume", uri, "orders", "--version", version).lines == ["a"]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [([], "01234"), (["-o", -2], "34"), (["--tail", 1], "4"), (["--from-time", START_MS + 100, "-n", 1], "1")],
)
def test_consume_at_a_version_has_the_bounds_of_that_version(segments, uri, arguments, values):
    segments("append", uri, "orders", "--format", "json", stdin=timed(0, 100, 200, 300, 400))
    version = LogDir.open(uri).topic("orders").snapshot.version
    segments("delete-records", uri, "orders", "--before-offset", 3)
    segments("topic", "alter", uri, "orders", "--partitions", 2)
    segments("append", uri, "orders", stdin=b"later\n")
    assert "".join(segments("consume", uri, "orders", "--version", version, *arguments).lines) == values


def test_consume_reads_a_kafka_directory(segments):
    expected = [record["offset"] for record in expected_records("broker-data/orders-0") if record["offset"] >= 500]
    shown = segments(
        "consume", GOLDEN / "broker-data", "orders", "--partition", 0,
        "--property", "print.offset=true", "--property", "print.value=false",
    )  # fmt: skip
    assert shown.lines == [f"Offset:{offset}" for offset in expected]


def test_read_committed_leaves_aborted_transactions_out(segments):
    committed = [record["offset"] for record in expected_records("txn-0") if record["committed"]]
    shown = segments(
        "consume", GOLDEN / "txn-0", "txn", "--isolation-level", "read_committed",
        "--property", "print.offset=true", "--property", "print.value=false",
    )  # fmt: skip
    assert shown.lines == [f"Offset:{offset}" for offset in committed]


@pytest.mark.parametrize(
    ("time", "offsets"),
    [
        ("-1", "5"), ("latest", "5"), ("-2", "1"), ("earliest", "1"),
        (START_MS + 150, "2"), ("2023-11-14T22:13:20.4Z", "4"), (START_MS + 9999, ""),
        (10**20, ""), (-(10**20), "1"),
    ],
)  # fmt: skip
def test_offsets(segments, uri, time, offsets):
    segments("append", uri, "orders", "--format", "json", stdin=timed(0, 100, 200, 300, 400))
    segments("delete-records", uri, "orders", "--before-offset", 1)
    assert segments("offsets", uri, "orders", "--time", time).lines == [f"orders:0:{offsets}"]
    expected = [{"partition": 0, "offset": int(offsets) if offsets else None}]
    shown = segments("offsets", uri, "orders", "--time", time, "--output", "json").json
    assert shown == {"topic": "orders", "partitions": expected}


@pytest.mark.parametrize("time", ["-3", "max-timestamp", "-5"])
def test_offsets_that_only_kafka_has_are_refused(run, uri, time):
    ran = run("offsets", uri, "orders", "--time", time)
    assert ran.code == 1 and "is not there" in ran.error


def test_offsets_of_some_partitions(segments, tmp_path):
    uri = tmp_path / "log"
    segments("topic", "create", uri, "orders", "--partitions", 3)
    assert segments("offsets", uri, "orders", "--partitions", "2,0").lines == ["orders:0:0", "orders:2:0"]


@pytest.mark.parametrize(
    ("arguments", "low_watermark"),
    [
        (["--before-offset", 3], 3),
        (["--before-offset", -1], 5),
        (["--before-time", START_MS + 150], 2),
        (["--before-time", "2030-01-01"], 5),
    ],
)
def test_delete_records(segments, uri, arguments, low_watermark):
    segments("append", uri, "orders", "--format", "json", stdin=timed(0, 100, 200, 300, 400))
    ran = segments("delete-records", uri, "orders", *arguments)
    assert ran.text == f"partition: orders-0\tlow_watermark: {low_watermark}\n"
    assert LogDir.open(uri).topic("orders").offsets() == {0: (low_watermark, 5)}
    assert "".join(segments("consume", uri, "orders").lines) == "01234"[low_watermark:]


def test_delete_records_takes_kafkas_file(segments, uri, tmp_path):
    segments("append", uri, "orders", stdin=b"a\nb\n")
    entries = [{"topic": "orders", "partition": 0, "offset": 1}, {"topic": "other", "partition": 0, "offset": 9}]
    (tmp_path / "offsets.json").write_text(json.dumps({"partitions": entries, "version": 1}))
    ran = segments("delete-records", uri, "orders", "--offset-json-file", tmp_path / "offsets.json", "--output", "json")
    assert ran.json == {"topic": "orders", "partitions": [{"partition": 0, "low_watermark": 1}]}


def test_delete_records_deletes_from_no_partition_but_those_that_are_named(run, segments, uri, tmp_path):
    segments("append", uri, "orders", stdin=b"a\nb\n")
    entries = [{"topic": "orders", "partition": 0, "offset": 1}]
    (tmp_path / "offsets.json").write_text(json.dumps({"partitions": entries}))
    for arguments, message in [
        (["--partition", 0, "--offset-json-file", tmp_path / "offsets.json"], "--partition or --offset-json-file"),
        (["--partition", 9, "--before-time", "2030-01-01"], "no such partition"),
    ]:
        ran = run("delete-records", uri, "orders", *arguments)
        assert (ran.code, ran.error.count("\n")) == (1, 1) and message in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 2)}


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "{}",
        '{"partitions": [{"topic": "orders"}]}',
        '{"partitions": [{"topic": "other", "partition": 0, "offset": 1}]}',
    ],
)
def test_a_file_that_is_not_kafkas_is_an_error(run, uri, tmp_path, content):
    (tmp_path / "offsets.json").write_text(content)
    ran = run("delete-records", uri, "orders", "--offset-json-file", tmp_path / "offsets.json")
    assert (ran.code, ran.error.count("\n")) == (1, 1)


def test_an_offset_past_the_end_is_named(segments, uri):
    segments("append", uri, "orders", stdin=b"a\nb\n")
    ran = segments("consume", uri, "orders", "-o", 7)
    assert ran.output == b"" and ran.error == "Offset 7 is past the log end: orders-0 ends at 2\n"
    assert segments("consume", uri, "orders", "-o", 2).error == ""


def test_a_time_after_all_records_is_named(segments, uri):
    segments("append", uri, "orders", stdin=b"a\n")
    ran = segments("consume", uri, "orders", "--from-time", "2999-01-01")
    assert ran.output == b"" and ran.error == "No record of orders is of 2999-01-01 or later\n"


@pytest.mark.parametrize("command", [("append", "LOG", "orders", "--input"), ("dump",)])
def test_a_file_that_is_not_there_is_named_without_a_number(run, uri, tmp_path, command):
    place = str(tmp_path / "nothing.log")
    ran = run(*(uri if one == "LOG" else one for one in command), place)
    assert ran.code == 1 and place in ran.error and "Errno" not in ran.error
