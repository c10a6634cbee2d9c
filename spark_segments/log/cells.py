"""Rows of Arrow as people and JSON have them: bytes are text where they are UTF-8, else base64."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The rows, with values of Python; a time that Python does not have is text."""
    for batch in batches:
        yield from zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # a time that Python does not have, such as microseconds written as ms
        if not pa.types.is_timestamp(column.type):
            raise
        values = [_moment(value) for value in column]
    if pa.types.is_interval(column.type):  # a tuple, of which JSON would make a list
        return [None if value is None else plain(value) for value in values]
    return values


def _moment(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        # Arrow's own text has years of 16 bits.
        return f"{np.datetime64(value.value, value.type.unit)}{'' if value.type.tz is None else '+00:00'}"


def cell_of(value: Any) -> Any:
    """A value in a table: what is nested is JSON."""
    if isinstance(value, (dict, list)):
        return json.dumps(finite(value), default=plain, ensure_ascii=False)
    return value if isinstance(value, (str, int, float, type(None))) else plain(value)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, pa.MonthDayNano):
        return f"P{value.months}M{value.days}DT{decimal.Decimal(value.nanoseconds).scaleb(-9).normalize():f}S"
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)


def finite(value: Any) -> Any:
    """A value with NaN, Infinity and -Infinity as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value
