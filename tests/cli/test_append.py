"""`segments append` of files: lines, JSON, CSV, Parquet and Delta tables, without Spark."""

from __future__ import annotations

import datetime
import gzip
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_segments import LogDir
from verification.world.topics import contents

DAY_MS = 86_400_000
MOMENT = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def uri(tmp_path, monkeypatch) -> str:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # an import of Spark is an error
    return str(tmp_path / "log")


def records(uri: str) -> list[tuple]:
    return [(row["key"], row["value"]) for row in contents(LogDir.open(uri), "orders")]


def test_lines_of_text_are_values(segments, uri, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first\n\nthird\r\n\xff")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed\n"))
    (tmp_path / "_left.txt").write_bytes(b"left out\n")
    report = segments(
        "append",
        uri,
        "orders",
        "--partitions",
        1,
        "--format",
        "text",
        "--input",
        tmp_path / "*.txt*",
        "--output",
        "json",
    ).json
    assert [value for _, value in records(uri)] == [b"first", b"", b"third", b"\xff", b"packed"]
    assert report["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 4}]
    assert report["repeated"] is False


def test_a_json_line_is_the_value_as_it_stands(segments, uri, tmp_path):
    lines = ['{"id": 7,  "at": "2026-03-01T12:00:00Z", "n": 123456789012345678901234567890}', '{"id": 8, "at": null}']
    (tmp_path / "a.json").write_text("\n".join(lines) + "\n\n")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json", "--key-column", "id")
    assert records(uri) == [(b"7", lines[0].encode()), (b"8", lines[1].encode())]


def test_a_byte_order_mark_begins_no_value(segments, uri, tmp_path):
    (tmp_path / "a.json").write_text('\ufeff{"value": "a"}\n', "utf-8")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json")
    assert records(uri) == [(None, b"a")]


@pytest.mark.parametrize(("form", "text"), [("text", "a\n"), ("json", '{"n": 1}\n'), ("csv", "value\na\n")])
def test_a_byte_order_mark_is_no_part_of_a_value(segments, uri, form, text):
    segments("append", uri, "orders", "--partitions", 1, "--format", form, stdin=b"\xef\xbb\xbf" + text.encode())
    expected = text.splitlines()[-1].encode()
    assert {value for _, value in records(uri)} == {expected}


def test_columns_of_json_become_parts_of_a_record(segments, uri, tmp_path):
    rows = [
        {"value": "v", "key": "k", "at": int(MOMENT.timestamp() * 1000), "p": 2},
        {"value": None, "key": "k", "at": int(MOMENT.timestamp() * 1000), "p": 0, "later": [1]},
    ]
    (tmp_path / "in" / "day").mkdir(parents=True)
    (tmp_path / "in" / "day" / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    segments(
        "append",
        uri,
        "orders",
        "--partitions",
        3,
        "--input",
        tmp_path / "in",
        "--value-column",
        "value",
        "--timestamp-column",
        "at",
        "--partition-column",
        "p",
    )
    read = contents(LogDir.open(uri), "orders")
    assert [(row["partition"], row["key"], row["value"], row["timestamp"]) for row in read] == [
        (0, b"k", None, MOMENT),
        (2, b"k", b"v", MOMENT),
    ]


def test_a_part_of_a_record_may_come_late(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "orders")
    (tmp_path / "a.json").write_text('{"value": "a", "topic": "its key is not here"}\n')
    (tmp_path / "b.json").write_text('{"value": "b", "key": "k"}\n')
    segments("append", uri, "orders", "--input", tmp_path / "*.json")
    segments("append", uri, "orders", "--input", tmp_path / "*.json", "--key-column", "value")
    assert records(uri) == [(None, b"a"), (b"k", b"b"), (b"a", b"a"), (b"b", b"b")]


def test_an_object_without_a_value_is_named_by_its_place_in_the_file(run, segments, uri, tmp_path, limits):
    limits(INPUT_BLOCK_BYTES=64)
    segments("topic", "create", uri, "orders")
    (tmp_path / "a.json").write_text('{"value": "a"}\n\n' * 20 + '{"key": "k"}\n')
    ran = run("append", uri, "orders", "--input", tmp_path / "a.json")
    assert ran.code == 1 and "Object 21 of the file is not a record: no value" in ran.error and "a.json" in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def test_keys_and_values_that_are_null_so_far_are_text(segments, uri, tmp_path):
    (tmp_path / "a.json").write_text('{"key": "k", "value": null, "note": null}\n{"key": "l", "value": null}\n')
    (tmp_path / "b.json").write_text('{"key": "k", "value": "b", "note": {"any": "thing"}}\n')
    value = ("--value-column", "value")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "*.json", *value)
    assert records(uri) == [(b"k", None), (b"l", None), (b"k", b"b")]


def test_members_that_make_no_part_of_a_record_may_be_anything(segments, uri, tmp_path, limits):
    limits(INPUT_BLOCK_BYTES=40)
    lines = ['{"value": "a", "note": 1}', '{"note": "x", "value": "b"}', '{"value": "c", "note": {"any": ["thing"]}}']
    (tmp_path / "a.json").write_text("\n".join(lines))
    value = ("--value-column", "value")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json", *value)
    assert [value for _, value in records(uri)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("key", ['"k"', "7", '"\\u006b"'])
def test_a_tombstone_says_that_its_value_is_null(run, segments, uri, tmp_path, key):
    lines = [
        f'{{"key": {key}, "value": null}}',
        f'{{"value_base64": null, "key": {key}}}',
        f'{{"key": {key}, "headers": [{{"key": "h", "value": "v"}}], "value": null}}',
        f'{{"key": {key}, "x": {{"y": [1]}}, "v\\u0061lue": null}}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json", "--value-column", "value")
    assert [value for _, value in records(uri)] == [None] * 4
    for number, line in enumerate(['{"x": {"value": null}}', '{"headers": [{"key": "value", "value": "v"}]}', "{}"]):
        (tmp_path / "b.json").write_text(f"{lines[0]}\n{line}\n")
        ran = run("append", uri, "orders", "--input", tmp_path / "b.json")
        assert ran.code == 1 and "Object 2 of the file is not a record: no value" in ran.error, number


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        (["12345678901234567890", "12345678901234567891"], ["--key-column", "id"]),
        (["9007199254740993", "1.5", "9007199254740992"], ["--key-column", "id"]),
        (["1", "1.50", "1.5", "1e0", "-0", "0"], ["--key-column", "id"]),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_numbers_as_keys_keep_their_digits(segments, uri, limits, keys, columns, block_bytes):
    limits(INPUT_BLOCK_BYTES=block_bytes)
    lines = [f'{{"id": {key}, "item": {{"id": 7}}}}' for key in keys]
    append = ("append", uri, "orders", "--partitions", 1, "--format", "json")
    segments(*append, *columns, stdin="\n".join(lines).encode())
    assert records(uri) == [(key.encode(), line.encode()) for key, line in zip(keys, lines, strict=True)]
    whole = "\n".join(f'{{"key": {key}, "value": "v"}}' for key in [*keys, '"text"'])
    segments(*append, stdin=whole.encode())
    assert [key for key, _ in records(uri)[len(keys) :]] == [key.encode() for key in [*keys, "text"]]


def test_a_key_beside_a_typed_value_keeps_its_digits(segments, uri):
    lines = b'{"id": 1.50, "n": 1}\n{"id": 9007199254740992, "n": 2}\n'
    append = ("append", uri, "orders", "--partitions", 1, "--format", "json", "--value-format", "json")
    segments(*append, "--key-column", "id", stdin=lines)
    assert [key for key, _ in records(uri)] == [b"1.50", b"9007199254740992"]


@pytest.mark.parametrize("number", ["12345678901234567890", "9007199254740993"])
def test_a_number_of_a_typed_row_that_cannot_be_kept_is_an_error_with_its_line(run, segments, uri, number):
    segments("topic", "create", uri, "orders")
    lines = f'{{"id": 1.5}}\n{{"id": {number}}}\n'.encode()
    ran = run("append", uri, "orders", "--format", "json", "--value-format", "json", stdin=lines)
    assert ran.code == 1 and "object 2 has a number that a double does not hold" in ran.error
    assert records(uri) == []


@pytest.mark.parametrize("lines", ['{"a":\n{"b":1}}\n', '{"a":1}{"c":\n{"b":1}}\n', '{"a":1} {"b":2}\n\n'])
def test_an_object_that_is_not_a_line_is_an_error(run, segments, uri, lines):
    segments("topic", "create", uri, "orders")
    ran = run("append", uri, "orders", "--format", "json", stdin=lines.encode())
    assert ran.code == 1 and "object 1 is no JSON" in ran.error and ran.error.count("\n") == 1
    assert records(uri) == []


def test_a_line_of_any_depth_is_stored_or_an_error(run, segments, uri):
    append = ("append", uri, "orders", "--partitions", 1, "--format", "json")
    ran = run(*append, stdin=b"[" * 200_000 + b"]" * 200_000 + b"\n")
    assert ran.code == 1 and "no JSON (nested too deeply)" in ran.error
    deep = b'{"id": 7, "a": ' + b"[" * 200_000 + b"]" * 200_000 + b', "value": {"x": "[{"}}'
    segments(*append, "--key-column", "id", stdin=b'{"id": 1}\n%b\n' % deep)
    segments(*append, stdin=deep)
    assert records(uri) == [(b"1", b'{"id": 1}'), (b"7", deep), (None, deep)]
    ran = run(*append, "--value-format", "json", stdin=deep)
    assert ran.code == 1 and ran.error.count("\n") == 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1 << 20])
def test_lines_are_the_same_in_blocks_of_any_size(segments, uri, tmp_path, limits, block_bytes):
    limits(INPUT_BLOCK_BYTES=block_bytes)
    rows = [{"key": f"k{number}", "value": "x" * number} for number in range(70)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content))
    (tmp_path / "b.json").write_bytes(content.removesuffix(b"\n"))
    expected = [(row["key"].encode(), row["value"].encode()) for row in rows]
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json.gz")
    segments("append", uri, "orders", "--input", tmp_path / "b.json")
    segments("append", uri, "orders", "--format", "json", stdin=content)
    text = b"".join(b"%b\t%b\n" % one for one in expected)
    segments("append", uri, "orders", "--property", "parse.key=true", stdin=text)
    assert records(uri) == expected * 4


def test_what_consume_prints_can_be_appended(segments, uri, tmp_path):
    segments("topic", "create", uri, "first")
    segments("append", uri, "first", stdin=b"a\nb\n")
    (tmp_path / "a.json").write_bytes(segments("consume", uri, "first", "--output", "json").output)
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json")
    assert records(uri) == [(None, b"a"), (None, b"b")]


@pytest.mark.parametrize(
    "content",
    [
        b'{"value": "a"}\n{"value": "\xff"}\n',
        b'{"\xff": "a"}\n',
        b"null\n",
        b'{"value": "a", "partition": 1.5}\n',
        b"\xff\xfe{\0",
    ],
)
def test_what_is_no_text_or_no_partition_is_an_error_in_one_line(run, segments, uri, tmp_path, content):
    segments("topic", "create", uri, "orders")
    (tmp_path / "a.json").write_bytes(content)
    ran = run("append", uri, "orders", "--input", tmp_path / "a.json")
    assert ran.code == 1 and ran.error.startswith("error: ") and ran.error.count("\n") == 1
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def test_a_null_among_objects_is_an_error(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "orders")
    (tmp_path / "a.json").write_text('{"value": "a"}\n\nnull\n')
    ran = run("append", uri, "orders", "--input", tmp_path / "a.json")
    assert ran.code == 1 and ran.error.count("\n") == 1 and "value 2 is no object" in ran.error


@pytest.mark.parametrize("at", ["2026-03-01T12:00:00Z", "2026-03-01 12:00:00", "2026-03-01T14:00:00+02:00"])
def test_a_time_may_be_text(segments, uri, tmp_path, at):
    (tmp_path / "a.json").write_text(json.dumps({"at": at}) + "\n")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json", "--timestamp-column", "at")
    [row] = contents(LogDir.open(uri), "orders")
    assert row["timestamp"] == MOMENT


def test_rows_of_parquet_are_json_or_records(segments, uri, tmp_path):
    pq.write_table(pa.table({"id": [7, 8], "item": ["a", None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"key": ["k"], "value": [b"\xff"], "timestamp": [MOMENT]}), tmp_path / "b.parquet")
    for name in ("a", "b"):
        path = tmp_path / f"{name}.parquet"
        segments("append", uri, "orders", "--partitions", 1, "--format", "parquet", "--input", path)
    (_, first), (_, second), third = records(uri)
    assert [json.loads(first), json.loads(second)] == [{"id": 7, "item": "a"}, {"id": 8, "item": None}]
    assert third == (b"k", b"\xff")


def views_in_parquet() -> list[pa.Array]:
    """Text in views, where this pyarrow makes such files: the oldest that is supported makes none."""
    values = pa.array(["a", "b"], pa.string_view())
    try:
        pq.write_table(pa.table({"value": values}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return []
    return [values]


@pytest.mark.parametrize(
    "values",
    [pa.array(["a", "b"]).dictionary_encode(), pa.array([b"a", b"b"], pa.binary(1)), *views_in_parquet()],
    ids=lambda values: str(values.type),
)
def test_values_of_parquet_are_text_or_bytes_in_whatever_layout(segments, uri, tmp_path, values):
    pq.write_table(pa.table({"key": ["k", "l"], "value": values}), tmp_path / "a.parquet")
    segments(
        "append", uri, "orders", "--partitions", 1, "--format", "parquet", "--input", tmp_path / "a.parquet"
    )  # fmt: skip
    assert records(uri) == [(b"k", b"a"), (b"l", b"b")]


def test_typed_rows_are_encoded(segments, uri, tmp_path):
    (tmp_path / "a.json").write_text('{"id": 7, "name": "x"}\n{"id": 8, "name": "y"}\n')
    segments(
        "append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.json", "--value-format", "json",
        "--key-column", "id", "--key-format", "long",
    )  # fmt: skip
    assert records(uri)[0] == ((7).to_bytes(8, "big"), b'{"id":7,"name":"x"}')


def test_what_cannot_be_read_is_an_error_that_names_the_file_and_appends_nothing(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "orders")
    (tmp_path / "a.json").write_text('{"id": 7}\n{"id": \n')
    ran = run("append", uri, "orders", "--input", tmp_path / "a.json", "--key-column", "id")
    assert ran.code == 1 and "a.json" in ran.error and "df.write" in ran.error
    (tmp_path / "b.json").write_text('{"id": 7}\n')
    ran = run("append", uri, "orders", "--input", tmp_path / "b.json", "--key-column", "nothing")
    assert ran.code == 1 and "There is no column nothing" in ran.error
    (tmp_path / "c.json").write_bytes(b'{"id": "\xff"}\n')
    ran = run("append", uri, "orders", "--input", tmp_path / "c.json")
    assert ran.code == 1 and "c.json" in ran.error
    assert run("append", uri, "orders", "--input", tmp_path / "nothing").code == 1
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"id": 7}\n' * 1000)[:-9])
    ran = run("append", uri, "orders", "--input", tmp_path / "cut.json.gz")
    assert ran.code == 1 and "cut.json.gz" in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def test_a_file_of_defaults_counts(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "orders")
    (tmp_path / "small.properties").write_text("message.max.bytes=10\n")
    arguments = ["append", uri, "orders"]
    ran = run(*arguments, "--defaults", tmp_path / "small.properties", stdin=b"a\n")
    assert ran.code == 1 and "max.message.bytes" in ran.error
    segments(*arguments, stdin=b"a\n")


def test_a_backfill_in_reverse_order_and_cleared_runs_append_each_day_once(segments, uri):
    append = ("append", uri, "orders", "--partitions", 1)
    for day in (3, 1, 2):
        segments(*append, "--once", f"landing/2026-01-0{day}", stdin=b"%d\n" % day)
    for day in (1, 3, 2):
        again = segments(*append, "--once", f"landing/2026-01-0{day}", stdin=b"%d\n" % day)
        assert again.error == f"Nothing appended: orders has idempotency key landing/2026-01-0{day} already.\n"
    assert [value for _, value in records(uri)] == [b"3", b"1", b"2"]


def test_a_version_below_the_last_is_an_error_that_names_both(run, segments, uri):
    append = ("append", uri, "orders", "--partitions", 1, "--txn")
    segments(*append, "landing:1767312000", stdin=b"2\n")
    ran = run(*append, "landing:1767225600", stdin=b"1\n")
    assert ran.code == 1 and "version 1767312000 again, or a later version, found version 1767225600" in ran.error
    assert "--once" in ran.error
    assert records(uri) == [(None, b"2")]


def test_a_key_and_a_transaction_do_not_go_together(run, segments, uri):
    ran = run("append", uri, "orders", "--partitions", 1, "--once", "a", "--txn", "a:1", stdin=b"1\n")
    assert ran.code == 1 and "not both" in ran.error


@pytest.mark.parametrize("head_bytes", [20, 1 << 20])
def test_csv_comes_from_standard_input(segments, uri, limits, head_bytes):
    limits(CSV_HEAD_BYTES=head_bytes)
    rows = "".join(f'k{number},"a ""line""\n{number}"\n' for number in range(200))
    segments("append", uri, "orders", "--partitions", 1, "--format", "csv", stdin=f"key,value\n{rows}".encode())
    assert records(uri) == [(b"k%d" % number, b'a "line"\n%d' % number) for number in range(200)]


@pytest.mark.parametrize(
    ("form", "text", "name"),
    [
        ("json", '{"Key": "a", "value": "b"}\n', "Key"),
        ("json", '{"key": "a", "value": "b"}\n{"kye": "a", "value": "b"}\n', "kye"),
        ("json", '{"key": "a", "Value": "b"}\n', "value"),
        ("json", '{"value": "b", "headers": [{"key": "h", "vaule": "x"}]}\n', "a header has other members"),
        ("csv", "kye,value\na,b\n", "kye"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_a_misspelt_column_is_an_error(run, segments, uri, limits, form, text, name, block_bytes):
    limits(INPUT_BLOCK_BYTES=block_bytes)
    segments("topic", "create", uri, "orders")
    ran = run("append", uri, "orders", "--format", form, stdin=text.encode())
    assert ran.code == 1 and ran.error.count("\n") == 1
    assert ("Did you mean key?" if name.lower() in ("key", "kye") else name) in ran.error
    assert records(uri) == []


def test_columns_that_no_record_has_are_an_error_unless_the_value_is_chosen(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "orders")
    pq.write_table(pa.table({"key": ["k"], "value": ["v"], "amount": [1]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("key,value,amount\nk,v,1\n")
    (tmp_path / "a.json").write_text('{"key": "k", "value": "v", "amount": 1}\n')
    for name in ("a.parquet", "a.csv", "a.json"):
        append = ("append", uri, "orders", "--input", tmp_path / name)
        ran = run(*append)
        assert ran.code == 1 and "--value-column value" in ran.error
        assert ("it has a member that no record has" if name == "a.json" else "'amount'") in ran.error
        segments(*append, "--value-column", "value")
    assert records(uri) == [(b"k", b"v")] * 3
    (tmp_path / "b.csv").write_text("kye,value,amount\nk,v,1\n")
    ran = run("append", uri, "orders", "--input", tmp_path / "b.csv", "--value-column", "value")
    assert ran.code == 1 and "Did you mean key?" in ran.error


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.tsv", "id\tname\n007\tAnn\n", []),
        ("a.csv", "id\tname\n007\tAnn\n", ["sep=\t"]),
        ("a.csv", "id\tname\n007\tAnn\n", [r"sep=\t"]),
        ("a.csv", "id name\n007 Ann\n", ["sep= "]),
        ("a.csv", "id,name\n007,Ann\n", []),
    ],
)
def test_csv_has_any_separator_of_one_character(segments, uri, tmp_path, name, text, options):
    (tmp_path / name).write_text(text)
    (tmp_path / f"b{name[1:]}").write_text("\n")  # no records, and no columns
    given = [word for option in options for word in ("--option", option)]
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / f"*{name[1:]}", *given)
    assert records(uri) == [(None, b'{"id":"007","name":"Ann"}')]


def test_csv_without_quotes_has_them_in_its_text(segments, uri):
    append = ("append", uri, "orders", "--partitions", 1, "--format", "csv", "--option", "quote=")
    segments(*append, stdin=b'value\n5" pipe\n')
    assert records(uri) == [(None, b'5" pipe')]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (b"a,a\n1,2\n", [], "the same name in -: found a"),
        (b"a||b\n1||2\n", ["sep=||"], "no single character: expected such as ; or \\t, found ||"),
        (b"a,b\n1,2\n", ["sep="], "Option sep of CSV is empty"),
        (b"a,b,c\n1,2,3\n1,2,3,4\n", [], "Expected 3 columns, got 4 in -"),
        (b"caf\xe9,b\n1,2\n", [], "the names of its columns are not UTF-8 in -"),
    ],
)
def test_csv_that_cannot_be_read_is_one_error(run, segments, uri, text, options, said):
    segments("topic", "create", uri, "orders")
    given = [word for option in options for word in ("--option", option)]
    ran = run("append", uri, "orders", "--format", "csv", *given, stdin=text)
    assert ran.code == 1 and said in ran.error and ran.error.count("\n") == 1
    assert records(uri) == []


def test_numbers_that_are_none_are_appended_and_printed_as_text(segments, uri, tmp_path):
    pq.write_table(pa.table({"x": [float("nan"), float("-inf"), 1.5]}), tmp_path / "a.parquet")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.parquet")
    printed = segments("consume", uri, "orders", "--value-format", "json", "--value-schema", "x double").lines
    assert printed == ['{"x":"NaN"}', '{"x":"-Infinity"}', '{"x":1.5}']


def test_a_nested_value_beside_a_key_is_json(segments, uri, tmp_path):
    rows = pa.table({"key": ["a", "b"], "value": [{"x": 1}, None]})
    pq.write_table(rows, tmp_path / "a.parquet")
    segments("append", uri, "orders", "--partitions", 1, "--input", tmp_path / "a.parquet")
    assert records(uri) == [(b"a", b'{"x":1}'), (b"b", None)]


def test_an_object_beside_a_key_is_its_value_whatever_further_members_come_later(segments, uri, tmp_path, limits):
    limits(INPUT_BLOCK_BYTES=256)
    values = [{"x": number} for number in range(60)] + [{"x": 60, "later": [1]}]
    lines = [{"key": str(value["x"]), "value": value} for value in values]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    named = [{"id": line["key"], "payload": line["value"]} for line in lines]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in named))
    append = ("append", uri, "orders", "--partitions", 1, "--input")
    segments(*append, tmp_path / "a.jsonl")
    segments(*append, tmp_path / "b.jsonl", "--key-column", "id", "--value-column", "payload")
    found = [
        (key.decode(), {name: part for name, part in json.loads(value).items() if part}) for key, value in records(uri)
    ]
    assert found == [(line["key"], {name: part for name, part in line["value"].items() if part}) for line in lines * 2]


def test_rows_of_csv_are_text(run, segments, uri, tmp_path):
    (tmp_path / "a.csv").write_text('id;item;target\n007;"an apple;\n red";2\n08;;0\n')
    csv = ("append", uri, "orders", "--partitions", 3, "--input", tmp_path / "a.csv", "--option", "sep=;")
    segments(*csv, "--key-column", "id", "--value-column", "item", "--partition-column", "target")
    assert records(uri) == [(b"08", None), (b"007", b"an apple;\n red")]
    segments(*csv, "--partition", 1)
    assert [json.loads(value) for _, value in records(uri)[1:3]] == [
        {"id": "007", "item": "an apple;\n red", "target": "2"}, {"id": "08", "item": None, "target": "0"},
    ]  # fmt: skip
    ran = run(*csv, "--option", "escape=x")
    assert ran.code == 1 and "Unknown option of the format csv" in ran.error


def test_a_delta_table_is_appended_at_any_version(run, segments, uri, tmp_path):
    table = str(tmp_path / "table")
    for day in range(3):
        rows = {"id": list(range(day * 10, day * 10 + 10)), "item": [f"i{day}"] * 9 + [None], "day": [day] * 10}
        write_deltalake(table, pa.table(rows), mode="append", partition_by=["day"])
    DeltaTable(table).delete("id >= 25")
    append = ("append", uri, "orders", "--partitions", 1, "--input", table, "--key-column", "id")
    segments(*append)
    expected = {str(row["id"]).encode(): row for row in DeltaTable(table).to_pyarrow_table().to_pylist()}
    assert {key: json.loads(value) for key, value in records(uri)} == expected and len(expected) == 25
    segments("append", uri, "earlier", *append[3:], "--option", "versionAsOf=1")
    assert LogDir.open(uri).topic("earlier").offsets() == {0: (0, 20)}
    ran = run(*append, "--option", "versionAsOf=7")
    assert ran.code == 1 and ran.error.count("\n") == 1 and table in ran.error

    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, datetime.UTC)
    rows = pa.table({"key": [b"k\xff"], "value": [b"\x00v"], "timestamp": pa.array([at], pa.timestamp("us", tz="UTC"))})
    write_deltalake(str(tmp_path / "records"), rows)
    segments("append", uri, "records", "--partitions", 1, "--input", tmp_path / "records")
    [row] = contents(LogDir.open(uri), "records")
    assert (row["key"], row["value"], row["timestamp"]) == (b"k\xff", b"\x00v", at)


def test_records_that_the_next_retain_takes_are_warned_about(segments, uri):
    segments("topic", "create", uri, "orders", "--config", f"retention.ms={DAY_MS}")
    now_ms = LogDir.open(uri).storage.now_ms()
    rows = [{"value": "old", "timestamp": now_ms - 2 * DAY_MS}] * 3 + [{"value": "new", "timestamp": now_ms}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    ran = segments("append", uri, "orders", "--format", "json", stdin=lines)
    assert "warning: 3 of 4 records are older than retention.ms" in ran.error
    segments("topic", "alter", uri, "orders", "--config", "retention.ms=-1")
    assert "warning" not in segments("append", uri, "orders", "--format", "json", stdin=lines).error
