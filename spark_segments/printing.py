"""How a log directory and what is in it print themselves, in a terminal and in a notebook."""

from __future__ import annotations

import base64
import datetime
import decimal
import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import SegmentsError
from spark_segments.quantities import Bytes, human_bytes

MOST_ROWS = 20
"""Rows that are printed at most."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What is printed: a line of facts, and a table below it."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()

    def text(self) -> str:
        """For a terminal. Numbers stand at the right."""
        lines = [f"{self.title}({', '.join(f'{name}={value!r}' for name, value in self.facts.items())})"]
        shown, columns = self.rows[:MOST_ROWS], range(len(self.columns))
        table = [list(self.columns), *([_shown(cell) for cell in row] for row in shown)]
        widths = [max(len(row[at]) for row in table) for at in columns]
        numeric = [all(isinstance(row[at], int) for row in shown) for at in columns]
        for row in table if shown else []:
            cells = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            )
            lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join([*lines, *self._left_out()])

    def html(self) -> str:
        """For a notebook."""
        facts = ", ".join(f"{html.escape(name)}: {html.escape(_shown(value))}" for name, value in self.facts.items())
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows[:MOST_ROWS]
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.rows else ""
        return f"<div><b>{html.escape(self.title)}</b> {facts}{table}{''.join(self._left_out())}</div>"

    def _left_out(self) -> Iterator[str]:
        if len(self.rows) > MOST_ROWS:
            yield f"  and {len(self.rows) - MOST_ROWS:,} more"


def _shown(cell: Any) -> str:
    if isinstance(cell, Bytes):
        return human_bytes(cell)
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


class Prints:
    """Prints itself as its `_printed` says, and what it is and the error where that cannot be read."""

    __slots__ = ()

    def _printed(self) -> Printed:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._or_error().text()

    def _repr_html_(self) -> str:
        return self._or_error().html()

    def _or_error(self) -> Printed:
        try:
            return self._printed()
        except (SegmentsError, OSError) as error:
            return Printed(type(self).__name__, {"error": str(error)})


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The rows, with values of Python; a time that Python does not have is text."""
    for batch in batches:
        yield from zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # a time that Python does not have, such as microseconds written as ms
        if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
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
        if pa.types.is_date(value.type):
            return str(np.datetime64(value.cast(pa.int32()).as_py(), "D"))
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
        return {name: finite(member) for name, member in value.items()}
    return [finite(member) for member in value] if isinstance(value, (list, tuple)) else value
