"""JSON strings and base64 as Python's own modules write them, by the kernels compiled and uncompiled."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import escaped_json
from spark_segments.values.text import base64 as base64_text
from spark_segments.values.text import json_write
from spark_segments.values.undecodable import Undecodable
from tests.format.uncompiled import granted, uncompiled

EDGES = '\0\x1f\x20"\\/\b\f\n\r\t\x7e\x7f\x80\x9f\xa0\u061b\u061c\u200d\u200e\u2010\u2027\u2028\u202e\u202f\u2065\u2069'
TEXTS = st.text(st.one_of(st.sampled_from(EDGES + "\u206a\ud7ff\ue000\uffff\U00010000\U0010ffff"), st.characters()))
PIECES = [b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5"]
CUT = [text.encode()[:-1] for text in ("é", "€", "\U0001f600")]
BYTES = st.lists(st.one_of(TEXTS.map(str.encode), st.sampled_from(PIECES + CUT), st.binary(max_size=4)), max_size=4)
ROWS = st.lists(st.one_of(st.none(), BYTES.map(b"".join)), max_size=6)


@pytest.fixture(params=["compiled", "uncompiled"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "uncompiled":
        module = uncompiled("values.text.text_kernels")
        monkeypatch.setattr(json_write, "json_strings", module.json_strings)
        for name in ("base64_text", "base64_bytes"):
            monkeypatch.setattr(base64_text, name, getattr(module, name))
    with granted():
        yield


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _json(value: bytes | None, *, is_safe: bool) -> bytes | None:
    try:
        text = json.dumps(value.decode(), ensure_ascii=False) if value is not None else None
    except UnicodeDecodeError:
        return None
    return None if text is None else (escaped_json(text) if is_safe else text).encode()


@given(ROWS, st.booleans(), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_strings_are_those_of_python_and_null_where_bytes_are_no_text(rows, is_safe, kind):
    array = pa.array([b"before", *rows], kind)[1:]
    assert json_write.quoted(array, is_safe=is_safe).to_pylist() == [_json(one, is_safe=is_safe) for one in rows]


@given(st.lists(TEXTS, max_size=4))
def test_json_without_orders_is_the_same_json(texts):
    made = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    assert json_write.without_orders(pa.array(made, pa.string())).to_pylist() == [
        escaped_json(one).encode() for one in made
    ]


@given(ROWS)
def test_base64_is_that_of_python(rows):
    expected = [None if one is None else _base64(one) for one in rows]
    assert base64_text.encode(pa.array([b"before", *rows], pa.binary())[1:]).to_pylist() == expected


@given(st.lists(st.one_of(st.none(), st.text("AZaz09+/=*\u00e9", max_size=9), st.binary(max_size=7).map(_base64))))
def test_bytes_of_base64_are_those_of_python(rows):
    try:
        expected = [None if one is None else base64.b64decode(one, validate=True) for one in rows]
    except ValueError:
        with pytest.raises(Undecodable):
            base64_text.decode(pa.array(rows, pa.string()))
        return
    assert base64_text.decode(pa.array(["AAAA", *rows], pa.string())[1:]).to_pylist() == expected


def test_bytes_under_a_null_do_not_count():
    offsets, data = np.array([0, 2, 3], np.int32), b"\xff\xffa"
    content = [pa.py_buffer(b"\x02"), pa.py_buffer(offsets), pa.py_buffer(data)]
    assert json_write.quoted(pa.Array.from_buffers(pa.binary(), 2, content)).to_pylist() == [None, b'"a"']
