"""What a Polars predicate says of partition, offset and timestamp: bounds outside of which no row can satisfy it.

The bounds only ever save reading. The predicate is applied to every row in any case, and a part of it that is not
understood bounds nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

_FLIPPED = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_INTEGERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_PER_MICROSECOND = {"Nanoseconds": 1000, "Microseconds": 1}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Rows that may satisfy a predicate: of these partitions, with offsets in [start, end), not older than
    `first_timestamp_us`. None: not bounded.
    """

    partitions: frozenset[int] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    first_timestamp_us: int | None = None

    def both(self, other: Bounds) -> Bounds:
        """Rows within these bounds and within the others."""
        sets = [one for one in (self.partitions, other.partitions) if one is not None]
        return Bounds(
            frozenset.intersection(*sets) if sets else None,
            max(_given(self.start_offset, other.start_offset), default=None),
            min(_given(self.end_offset, other.end_offset), default=None),
            max(_given(self.first_timestamp_us, other.first_timestamp_us), default=None),
        )

    def either(self, other: Bounds) -> Bounds:
        """Bounds of the rows within these bounds or within the others."""
        unbounded = self.partitions is None or other.partitions is None
        return Bounds(
            None if unbounded else frozenset((*(self.partitions or ()), *(other.partitions or ()))),
            _of_both(min, self.start_offset, other.start_offset),
            _of_both(max, self.end_offset, other.end_offset),
            _of_both(min, self.first_timestamp_us, other.first_timestamp_us),
        )


def _given(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def _of_both(choose: Any, first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else choose(first, second)


def bounds_of(predicate: pl.Expr) -> Bounds:
    """The bounds of the rows that can satisfy a predicate."""
    return _bounds(json.loads(predicate.meta.serialize(format="json")))


def _bounds(node: Any) -> Bounds:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return _bounds(left).both(_bounds(right))
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            return _bounds(left).either(_bounds(right))
        case {"BinaryExpr": {"left": {"Column": name}, "op": operator, "right": {"Literal": literal}}}:
            return _compared(name, operator, literal)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": operator, "right": {"Column": name}}}:
            return _compared(name, _FLIPPED.get(operator, ""), literal)
        case {
            "Function": {
                "input": [{"Column": name}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": _}},
            }
        }:  # of an open interval as of the closed one, which has more
            return _compared(name, "GtEq", low).both(_compared(name, "LtEq", high))
        case {
            "Function": {
                "input": [{"Column": "partition"}, {"Literal": {"Scalar": {"List": values}}}],
                "function": {"Boolean": {"IsIn": _}},
            }
        }:
            return Bounds(partitions=_numbers(values))
    return Bounds()


def _compared(name: str, operator: str, literal: Any) -> Bounds:
    """Bounds of `name operator literal`."""
    if name == "timestamp":
        time_us = _time_us(literal)
        return Bounds(first_timestamp_us=time_us) if operator in ("Eq", "Gt", "GtEq") else Bounds()
    number = _integer(literal)
    if number is None:
        return Bounds()
    if name == "partition" and operator == "Eq":
        return Bounds(partitions=frozenset((number,)))
    if name != "offset":
        return Bounds()
    start = {"Eq": number, "GtEq": number, "Gt": number + 1}.get(operator)
    end = {"Eq": number + 1, "LtEq": number + 1, "Lt": number}.get(operator)
    return Bounds(start_offset=start, end_offset=end)


def _integer(literal: Any) -> int | None:
    found: Any = None
    match literal:
        case {"Dyn": {"Int": number}}:
            found = number
        case {"Scalar": {**kinds}} if kinds.keys() <= _INTEGERS:
            found = next(iter(kinds.values()), None)
    return found if isinstance(found, int) else None


def _time_us(literal: Any) -> int | None:
    """Microseconds since 1970 of a literal, rounded down."""
    match literal:
        case {"Scalar": {"Datetime": [int(number), str(unit), *_]}}:
            if unit == "Milliseconds":
                return number * 1000
            return number // _PER_MICROSECOND[unit] if unit in _PER_MICROSECOND else None
    return None


def _numbers(stream: list[int]) -> frozenset[int] | None:
    """The numbers of a list, which Polars writes as an Arrow stream; None where they are no integers."""
    with pa.ipc.open_stream(bytes(stream)) as batches:
        column = batches.read_all().column(0).combine_chunks()
    values = column.flatten() if pa.types.is_nested(column.type) else column
    return frozenset(values.drop_null().to_pylist()) if pa.types.is_integer(values.type) else None
