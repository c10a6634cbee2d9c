"""`scan_topic`: the records of a topic as a Polars LazyFrame, read as the query asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from spark_segments.errors import MissingExtraError
from spark_segments.face.logdir import LogDir
from spark_segments.log import Eras, Scan, offsets_for_times

try:
    import polars as pl
    from polars.io.plugins import register_io_source
except ImportError as error:
    raise MissingExtraError("polars", "scan_topic", "polars") from error


def scan_topic(
    uri: str,
    topic: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    timestamp: datetime | int | None = None,
    isolation: str = "read_uncommitted",
    formats: Mapping[str, str] | None = None,
    view: str | None = None,
    include_tombstones: bool = True,
    threads: int | None = None,
) -> pl.LazyFrame:
    """The records of a topic as a lazy frame; the arguments are those of `LogDir.open` and `Topic.scan`.

    The log is that of this moment, or of the `version` or `timestamp`, whenever and however often the frame is
    collected. A query reads the columns it uses and stops at its `head`. Conditions on partition and offset, and lower
    bounds of timestamp, choose what is read; all others are applied to what was. Rows come partition by partition and
    by offset.

    Raises what `LogDir.open` and `Topic.scan` raise; errors in the data come from the query as Polars' ComputeError.
    """
    scan = (
        LogDir.open(uri, storage_options)
        .topic(topic, version, timestamp)
        .scan(
            view=view,
            isolation=isolation,
            include_tombstones=include_tombstones,
            formats=formats,
            value_type="binary" if formats else "binary_view",
        )
    )
    return register_io_source(
        partial(_frames, scan, threads), schema=_frame(scan.schema.empty_table()).schema, is_pure=True
    )


def _frames(
    scan: Scan,
    threads: int | None,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """The frames that Polars asks for: the first `n_rows` rows, of them those that satisfy the predicate."""
    names = with_columns if with_columns is not None else scan.schema.names
    used = names if predicate is None else [*names, *predicate.meta.root_names()]
    # The first rows of a range are not the first rows of the topic, and what is newest there may be older than a record
    # of another partition.
    is_whole = n_rows is not None or (scan.selection.view is not None and Eras.of(scan.snapshot) is not None)
    bounds = Bounds() if predicate is None or is_whole else bounds_of(predicate)
    left = n_rows
    for batch in replace(scan.select(used), offsets=_offsets(scan, bounds)).to_reader(threads):
        frame = _frame(batch) if used else pl.DataFrame(height=batch.num_rows)
        if left is not None:
            frame = frame.head(left)
            left -= frame.height
        if predicate is not None:
            frame = frame.filter(predicate)
        if not names:  # a plan that needs no column, such as that of row numbers, needs rows all the same
            frame = pl.DataFrame(height=frame.height)
        yield frame if frame.columns == names else frame.select(names)
        if left == 0:
            return


def _offsets(scan: Scan, bounds: Bounds) -> dict[int, tuple[int, int]]:
    """{partition: (start, end)} of the rows within the bounds."""
    ranges = {}
    for number, (start, end) in scan.offsets.items():
        if bounds.partitions is not None and number not in bounds.partitions:
            continue
        start = start if bounds.start_offset is None else max(start, bounds.start_offset)
        # The newest record of a key below an end is not the newest of the topic.
        if bounds.end_offset is not None and scan.selection.view is None:
            end = min(end, bounds.end_offset)
        ranges[number] = (start, end)
    if bounds.first_timestamp_us is not None:
        target_ms = -(-bounds.first_timestamp_us // 1000)
        firsts = offsets_for_times(scan.storage, scan.snapshot, dict.fromkeys(ranges, target_ms))
        ranges = {
            number: (max(start, first[0]), end)
            for number, (start, end) in ranges.items()
            if (first := firsts[number]) is not None
        }
    return ranges


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


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
