"""Lines taken apart as Python does it, and records as Arrow's reader of JSON has them, by kernels compiled and
uncompiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_segments.values.text import lines
from tests.format.uncompiled import granted, uncompiled

TEXTS = st.text(
    st.one_of(st.sampled_from('a"\\/\0\n\r\t\x1f\x7fü\u2028\ud7ff\ue000\uffff\U0001f600'), st.characters(codec="utf-8"))
)
NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-(10**19), 10**19), st.integers(-(10**18), 10**18))
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=3,
)
SPACE = st.sampled_from(["", "", "", " ", "\t", "\r", "  "])
TEXT_OR_NULL = st.one_of(st.none(), TEXTS)
HEADER = st.fixed_dictionaries({"key": TEXTS}, optional={"value": TEXT_OR_NULL, "value_base64": TEXT_OR_NULL})
WHOLE = st.one_of(st.none(), st.integers(1 - 10**18, 10**18 - 1))
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "key": TEXT_OR_NULL, "key_base64": TEXT_OR_NULL, "value_base64": TEXT_OR_NULL, "timestamp": WHOLE,
    "partition": WHOLE, "headers": st.one_of(st.none(), st.lists(HEADER, max_size=3)),
    "topic": TEXTS, "offset": WHOLE, "timestampType": st.booleans(),
}  # fmt: skip
RECORD = st.fixed_dictionaries({"value": TEXT_OR_NULL}, optional=OPTIONAL)
NAMES = st.one_of(st.sampled_from([*lines.RECORD_SCHEMA.names, "topic", "values", "ke"]), TEXTS)


@pytest.fixture(params=["compiled", "uncompiled"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "uncompiled":
        module = uncompiled("values.text.line_kernels")
        for name in ("count_lines", "split_lines", "record_spans"):
            monkeypatch.setattr(lines, name, getattr(module, name))
    with granted():
        yield


@st.composite
def _written(draw: st.DrawFn, value: Any) -> str:
    """JSON of a value, with white space and escapes of any kind; members of an object are pairs."""
    before, behind = draw(SPACE), draw(SPACE)
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        pairs = [f"{draw(_written(name))}:{draw(_written(one))}" for name, one in value]
        return f"{before}{{{','.join(pairs)}}}{behind}"
    if isinstance(value, list):
        return f"{before}[{draw(SPACE)}{','.join(draw(_written(one)) for one in value)}]{behind}"
    return before + json.dumps(value, ensure_ascii=draw(st.booleans())) + behind


@st.composite
def _mutated(draw: st.DrawFn, line: bytes) -> bytes:
    at = draw(st.integers(0, len(line)))
    cut = draw(st.integers(0, 2))
    added = draw(
        st.one_of(st.binary(max_size=2), st.sampled_from([b'"', b"\\u12aB", b"\\ud83d", b"-0", b"07", b"{", b"]"]))
    )
    return line[:at] + added + line[at + cut :]


VALID = RECORD.flatmap(_written).map(str.encode)
OBJECTS = st.lists(st.tuples(NAMES, st.one_of(TEXT_OR_NULL, ANY, OPTIONAL["headers"])), min_size=1, max_size=4)
LINE = st.one_of(VALID, OBJECTS.flatmap(_written).map(str.encode), VALID.flatmap(_mutated), st.binary(max_size=6))
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"])


def _blocks(line: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    ended = st.tuples(line, ENDS).map(b"".join)
    return st.tuples(st.lists(ended, max_size=3).map(b"".join), line).map(b"".join)


def _by_arrow(block: bytes) -> pa.RecordBatch | None:
    options = pa.json.ParseOptions(explicit_schema=lines.RECORD_SCHEMA, unexpected_field_behavior="ignore")
    try:
        block.decode()  # Arrow takes other bytes, too
        table = pa.json.read_json(pa.BufferReader(block), pa.json.ReadOptions(use_threads=False), options)
    except (UnicodeDecodeError, pa.ArrowInvalid):
        return None
    return table.combine_chunks().to_batches()[0] if table.num_rows else None


def _filled(block: bytes) -> int:
    return sum(bool(line.strip(b" \t\r")) for line in block.split(b"\n"))


@given(_blocks(LINE))
@example(b'{"value": "\\ud83d\\ude00"}')
@example(b'{"value": "\\ude00"}')
@example(b'{"value": "", "partition": -0}')
@example(b'{"value": ""}{"value": ""}')
@example(b'{"value": "", "value": "b"}')
def test_a_record_that_is_taken_is_that_of_arrow(block: bytes) -> None:
    found = lines.records(pa.py_buffer(block), _filled(block))
    if found is not None and found.num_rows:
        found.validate(full=True)
        expected = _by_arrow(block)
        assert expected is not None and found.equals(expected)


@given(st.lists(RECORD, min_size=1, max_size=4), st.data())
def test_records_are_taken(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    block = "\n".join(data.draw(_written(row)) for row in rows).encode()
    found = lines.records(pa.py_buffer(block), len(rows))
    wanted = [{name: row.get(name) for name in lines.RECORD_SCHEMA.names} for row in rows]
    for row in wanted:
        if row["headers"] is not None:
            row["headers"] = [{"value": None, "value_base64": None} | one for one in row["headers"]]
    assert found is not None and found.to_pylist() == wanted


@pytest.mark.parametrize(
    "line", ['{"key": "k"}', "{}", "[]", '{"value": 1}', '{"value": "a", "x": {}}', '{"value": "a"']
)
def test_what_records_seldom_have_is_left_to_arrow(line: str) -> None:
    assert lines.records(pa.py_buffer(line.encode()), 1) is None


PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"=", b"=>", b"\n", b"\r\n", b"\r", b"\t", b"\xff"]), min_size=1, max_size=12
)
SEPARATORS = st.lists(st.sampled_from([b"=", b"=>", b"\t", b"=>=>", b"ab"]), max_size=2)


@given(PIECES.map(b"".join), SEPARATORS)
def test_lines_are_split_as_python_splits_them(block: bytes, separators: list[bytes]) -> None:
    texts = block.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
    expected = []
    for row, text in enumerate(texts):
        parts, rest = [], text
        for number, separator in enumerate(separators):
            part, there, behind = rest.partition(separator)
            if not there:
                with pytest.raises(lines.Unseparated) as error:
                    lines.split(pa.py_buffer(block), separators)
                assert (error.value.row, error.value.separator, error.value.size) == (row, number, len(rest))
                return
            parts.append(part)
            rest = behind
        expected.append([*parts, rest])
    found = [column.to_pylist() for column in lines.split(pa.py_buffer(block), separators)]
    assert [list(parts) for parts in zip(*found, strict=True)] == expected
    braces = sum(text.startswith(b"{") for text in texts)
    assert lines.count_lines(block) == (len(texts), braces)
