"""Lines as Python takes them apart, and JSON as Python reads it: what `segments append` makes of an input."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_segments.cli.records.input_rows import Format, Input
from spark_segments.cli.records.record_text import Properties
from spark_segments.errors import InvalidOptionError

TEXTS = st.text(
    st.one_of(st.sampled_from('a"\\/\0\n\r\t\x1f\x7fü\u2028\ud7ff\ue000\uffff\U0001f600'), st.characters(codec="utf-8"))
)
NUMBERS = st.one_of(
    st.integers(-9, 9).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["1.50", "-0", "0.10", "1e3", "1E-2", "12345678901234567890.5"]),
)
TEXT_OR_NULL = st.one_of(st.none(), TEXTS)
BYTES_OR_NULL = st.one_of(st.none(), st.binary(max_size=5).map(lambda data: base64.b64encode(data).decode()))
HEADER = st.fixed_dictionaries({"key": TEXTS}, optional={"value": TEXT_OR_NULL})
RECORD = st.fixed_dictionaries(
    {"value": TEXT_OR_NULL},
    optional={
        "key": TEXT_OR_NULL,
        "value_base64": BYTES_OR_NULL,
        "headers": st.one_of(st.none(), st.lists(HEADER, max_size=3)),
        "topic": TEXTS,
        "offset": st.integers(0, 10**18),
    },
)
SPACE = st.sampled_from(["", "", " ", "\t", "  "])


def rows_of(
    content: bytes, form: Format, columns: dict[str, str], properties: Iterable[str] = ()
) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        made = Input.of([file.name], form, [], columns, Properties.of([*properties]))
        return [row for batch in made.batches(lambda done, total: None) for row in batch.to_pylist()]


def as_bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


@given(st.lists(RECORD, min_size=1, max_size=4), st.data())
def test_records_are_those_of_python(records, data):
    lines = [data.draw(SPACE) + json.dumps(one, ensure_ascii=data.draw(st.booleans())) for one in records]
    found = rows_of("\n".join(lines).encode(), Format.JSON, {})
    assert len(found) == len(records)
    for row, record in zip(found, records, strict=True):
        encoded = record.get("value_base64")
        expected = base64.b64decode(encoded) if encoded is not None else as_bytes(record["value"])
        assert as_bytes(row["value"]) == expected
        assert as_bytes(row["key"]) == as_bytes(record.get("key"))
        headers = [(one["key"], as_bytes(one["value"])) for one in row["headers"] or []]
        assert headers == [(one["key"], as_bytes(one.get("value"))) for one in record.get("headers") or []]


@given(
    st.lists(st.one_of(NUMBERS, TEXTS.map(json.dumps)), min_size=1, max_size=5), st.sampled_from(["id", 'a"b', "ü."])
)
def test_a_number_as_a_key_has_the_digits_that_are_written(keys, name):
    lines = [f'{{"n": {{"x": "{{1"}}, {json.dumps(name, ensure_ascii=False)} : {key} , "z": 1}}' for key in keys]
    found = rows_of("\n".join(lines).encode(), Format.JSON, {"key": name})
    assert [row["key"] for row in found] == [json.loads(key) if key.startswith('"') else key for key in keys]
    assert [row["value"] for row in found] == lines


PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"=", b"=>", b"\n", b"\r\n", b"\r", b"\t", b"\xff", b"\x02"]), min_size=1, max_size=12
)
SEPARATORS = st.lists(st.sampled_from(["=", "=>", "\t", "=>=>", "ab"]), max_size=2)


@given(PIECES.map(b"".join), SEPARATORS)
def test_lines_are_split_as_python_splits_them(block, separators):
    """A key with one separator; a header, and a key with two."""
    names = [("headers", "headers.delimiter"), ("key", "key.separator")][2 - len(separators) :]
    properties = ["headers.separator=\x01", "headers.key.separator=\x02"]
    for (name, separator), text in zip(names, separators, strict=True):
        properties += [f"parse.{name}=true", f"{separator}={text}"]
    expected = []
    for line in block.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n"):
        parts = []
        for text in separators:
            part, there, line = line.partition(text.encode())
            parts += [part] if there else []
        expected.append([*parts, line])
    lacking = [number for number, line in enumerate(expected, 1) if len(line) <= len(separators)]
    names = [line[0].partition(b"\x02") for line in expected if len(separators) == 2]
    if lacking or any(not there or b"\xff" in name for name, there, _ in names):
        with pytest.raises(
            InvalidOptionError,
            match=r"Line \d+ has (no (headers|key)|a header (whose key is not UTF-8|without a value))",
        ):
            rows_of(block, Format.TEXT, {}, properties)
        return
    found = []
    for row in rows_of(block, Format.TEXT, {}, properties):
        headers = [b"\x02".join([one["key"].encode(), one["value"]]) for one in row.get("headers", ())]
        found.append([*headers, row.get("key"), row["value"]])
    assert found == [line if separators else [None, *line] for line in expected]


@pytest.mark.parametrize("key", ['{"a": 12345678901234567890}', '{"a": 0.12345678901234567890}'])
def test_a_number_in_a_nested_key_that_a_double_does_not_hold_is_an_error_with_its_line(key):
    lines = f'{{"id": {{"a": 1.5}}}}\n\n{{"id": {{"a": 2}}}}\n{{"id": {key}}}\n'.encode()
    with pytest.raises(InvalidOptionError, match="object 3 has a number that a double does not hold"):
        rows_of(lines, Format.JSON, {"key": "id"})


def test_numbers_that_doubles_hold_are_in_nested_keys():
    lines = b'{"id": {"a": 9007199254740993, "b": 1.5}}\n{"id": {"a": 1, "b": 123456789012345.25}}\n'
    keys = [json.loads(row["key"]) for row in rows_of(lines, Format.JSON, {"key": "id"})]
    assert keys == [{"a": 9007199254740993, "b": 1.5}, {"a": 1, "b": 123456789012345.25}]


TOKENS = st.lists(
    st.sampled_from(['{"a":1}', "{", "}", "[", "]", '"a"', '"', ":", ",", "1", " ", "\n", "\n", '{"a":', "null", "\\"]),
    min_size=1,
    max_size=14,
).map("".join)


@given(TOKENS)
@example('{"a":"}\n{"}\n')
@example('{"a":1}{"a":\n{"a":1}}')
@example('{"a":[{"b":1}\n{"c":1}]}')
@example('null,{"a":1}')
def test_what_is_taken_is_an_object_a_line(text):
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        found = rows_of(text.encode(), Format.JSON, {})
    except InvalidOptionError:
        return
    assert [row["value"] for row in found] == lines
    assert all(isinstance(json.loads(line), dict) for line in lines)


@pytest.mark.parametrize(
    "line", ['{"a": [null, 1]}', '{"a": [[null, "b"]]}', '{"a": {"b": [null, {"c": [null, 1.5]}]}}']
)
def test_a_list_that_begins_with_null_is_a_list(line):
    lines = ['{"id": 1}', line, '{"id": 2, "a": null}']
    found = rows_of("\n".join(lines).encode(), Format.JSON, {"key": "a"})
    assert [row["value"] for row in found] == lines
    keys = [None if row["key"] is None else json.loads(row["key"]) for row in found]
    assert keys == [json.loads(line).get("a") for line in lines]
