"""Avro's kernels as Python runs them: as the compiled ones, and with no memory that is not theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spark_segments.values import rows
from spark_segments.values.avro import read, write
from spark_segments.values.avro import schema as avro_schema
from spark_segments.values.undecodable import Undecodable
from tests.examples import examples
from tests.format.uncompiled import granted, uncompiled
from tests.values.test_avro import _fast_bytes, _read, _schemas

FUZZ = examples(120, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def _checked() -> Iterator[None]:
    """Uncompiled kernels in place of the compiled. Those of writing get the buffers of their plan's arrays, too."""
    kernels = uncompiled("values.avro.avro_kernels")
    plans: list[Any] = []

    class Plan(write._WritePlan):
        def __init__(self) -> None:
            super().__init__()
            plans.append(self)

    def write_rows(*arguments: Any) -> Any:
        memory = [(one.address, one.address + one.size) for buffers in plans[-1]._alive for one in buffers if one]
        with granted(*memory):
            return kernels.write_rows(*arguments)

    def read_rows(*arguments: Any) -> Any:
        with granted():
            return kernels.read_rows(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read, "avro_kernels", SimpleNamespace(read_rows=read_rows))
        patched.setattr(write, "avro_kernels", SimpleNamespace(write_rows=write_rows))
        patched.setattr(write, "_WritePlan", Plan)
        yield


def _outcome(schema: object, encoded: list[bytes]) -> Any:
    """The rows read, or why not, and the same rows written again."""
    node = avro_schema.parse(json.dumps(schema))
    try:
        array = _read(schema, encoded)
    except Undecodable as error:
        return str(error), error.row
    return array, write.write(array, node, b"head").to_pylist(), write.write(array[1:], node).to_pylist()


@FUZZ
@given(st.data(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2))
def test_rows_whole_and_damaged_are_read_and_written_alike(data, flips):
    schema, values = data.draw(_schemas(), label="schema")
    encoded = _fast_bytes(schema, data.draw(st.lists(values, min_size=1, max_size=4), label="rows"))
    last = bytearray(encoded[-1])
    for place, byte in flips:
        if last:
            last[place % len(last)] = byte
    encoded[-1] = bytes(last)
    expected = _outcome(schema, encoded)
    with _checked():
        assert _outcome(schema, encoded) == expected


@FUZZ
@given(st.data(), st.binary(max_size=40))
def test_any_bytes_are_read_alike(data, garbage):
    schema, _ = data.draw(_schemas(), label="schema")
    expected = _outcome(schema, [garbage])
    with _checked():
        assert _outcome(schema, [garbage]) == expected


def test_rows_are_cut_alike(monkeypatch):
    array = pa.array([b"head-one", b"head-", b"head-three"], pa.binary())[1:]
    assert rows.without(array, 4, 1).to_pylist() == [b"", b"-thre"]
    copies = uncompiled("format.kernels.copies")
    monkeypatch.setattr(rows, "gather", copies.gather)
    with granted():
        assert rows.without(array, 4, 1).to_pylist() == [b"", b"-thre"]


def test_a_span_outside_of_its_buffer_is_not_copied():
    for start, size, room in ((8, 3, 9), (-1, 2, 9), (0, 10, 9)):
        with pytest.raises(ValueError, match="span 0 of 1"):
            rows.gather(b"0123456789", np.array([start]), np.array([size]), np.empty(room, np.uint8))
