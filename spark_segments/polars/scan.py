"""`scan_topic`: the records of a topic as a Polars LazyFrame, read as the query asks for them."""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import MissingExtraError
from spark_segments.face.conditions import narrowed
from spark_segments.face.logdir import LogDir
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.lake.as_one import AsOne, as_one
from spark_segments.log import Scan
from spark_segments.quantities import Time

try:
    import polars as pl
    from polars.io.plugins import register_io_source

    from spark_segments.polars.topic_frame import frame_of
except ImportError as error:
    raise MissingExtraError("polars", "Frames of Polars", "polars") from error


def scan_topic(
    uri: str,
    topic: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    timestamp: Time | None = None,
    isolation: str = "read_uncommitted",
    formats: Mapping[str, str] | None = None,
    view: str | None = None,
    include_tombstones: bool = True,
    threads: int | None = None,
    tables: bool = True,
) -> pl.LazyFrame:
    """The records of a topic as a lazy frame. Arguments as for `LogDir.open` and `Topic.scan`.

    The snapshot is the newest at the time of this call, or that of the `version` or `timestamp`. It stays the same
    whenever and however often the frame is collected. A query reads the columns it uses and stops at its `head`.
    Conditions on partition, offset and timestamp, and on key (`==`, `is_in`, also joined by `|`), limit what is read;
    other conditions filter the rows that were read. An index of keys is asked where there is one. Rows come partition
    by partition and by offset.

    Where the topic knows a table (`segments table`), the frame is of the table's files, which Polars reads, and of the
    log's tail, as long as they are the topic's records; a warning says why they are not. Its rows come in no order.
    Nobody may delete these files before the frame is collected. `tables`: whether they are read at all.

    Raises what `LogDir.open` and `Topic.scan` raise; errors in the data come from the query as Polars' ComputeError.
    """
    log = LogDir.open(uri, storage_options)
    scan = log.topic(topic, version, timestamp).scan(
        view=view,
        isolation=isolation,
        include_tombstones=include_tombstones,
        formats=formats,
        value_type="binary" if formats else "binary_view",
    )
    one = AsOne.by_log(scan)
    if tables and version is None and timestamp is None:
        one = as_one(log, scan, formats)
        if one.why is not None:
            _logger.warning("topic %s is read by its log alone: %s", topic, one.why)
    return frame_of(one, _schema(scan), partial(_log_frame, log=log, formats=formats, threads=threads))


def _schema(scan: Scan) -> pl.Schema:
    return _frame(scan.schema.empty_table()).schema


def _log_frame(scan: Scan, log: LogDir, formats: Mapping[str, str] | None, threads: int | None) -> pl.LazyFrame:
    """The frame of a scan of the log."""
    narrowing = partial(narrowed, log, formats=formats)
    return register_io_source(partial(_frames, scan, narrowing, threads), schema=_schema(scan), is_pure=True)


def _frames(
    scan: Scan,
    narrowing: Callable[..., Scan],
    threads: int | None,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """The frames that Polars asks for: the first `n_rows` rows, without rows that do not satisfy the predicate."""
    names = with_columns if with_columns is not None else scan.schema.names
    used = names if predicate is None else [*names, *predicate.meta.root_names()]
    # The first rows of a range are not the first rows of the topic.
    condition = None if predicate is None or n_rows is not None else condition_of(predicate, scan.schema)
    scan = scan if condition is None else narrowing(scan, condition)
    left = n_rows
    for batch in scan.select(used).to_reader(threads):
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


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


_logger = logging.getLogger(__name__)

_FLIPPED = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_INTEGERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_COMPARED: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "Eq": operator.eq,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
}
_PER_MICROSECOND = {"Nanoseconds": 1000, "Microseconds": 1}


def condition_of(predicate: pl.Expr, schema: pa.Schema) -> pc.Expression | None:
    """What a predicate asks of partition, offset, timestamp and key, as Arrow says it; None: nothing that is known.

    Whatever satisfies the predicate satisfies the condition.
    """
    return _condition(json.loads(predicate.meta.serialize(format="json")), schema)


def _condition(node: Any, schema: pa.Schema) -> pc.Expression | None:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return _both(_condition(left, schema), _condition(right, schema))
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            first = _condition(left, schema)
            second = _condition(right, schema)
            return None if first is None or second is None else first | second
        case {"BinaryExpr": {"left": {"Column": name}, "op": operation, "right": {"Literal": literal}}}:
            return _compared(name, operation, literal, schema)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": operation, "right": {"Column": name}}}:
            return _compared(name, _FLIPPED.get(operation, ""), literal, schema)
        case {
            "Function": {
                "input": [{"Column": name}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": _}},
            }
        }:  # of an open interval as of the closed one, which has more
            return _both(_compared(name, "GtEq", low, schema), _compared(name, "LtEq", high, schema))
        case {
            "Function": {
                "input": [{"Column": name}, {"Literal": {"Scalar": {"List": stream}}}],
                "function": {"Boolean": {"IsIn": {"nulls_equal": False}}},
            }
        }:
            return _among(name, stream, schema)
    return None


def _both(first: pc.Expression | None, second: pc.Expression | None) -> pc.Expression | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _compared(name: str, operation: str, literal: Any, schema: pa.Schema) -> pc.Expression | None:
    """`name operation literal`."""
    if name == "key" and operation == "Eq":
        key = _key(literal, schema)
        return None if key is None else pc.field(name) == key
    if name == "timestamp":
        time_us = _time_us(literal)
        if time_us is None or operation not in _COMPARED:
            return None
        # A record has whole microseconds, and the time is rounded down: what is above it may be equal to it.
        time = pa.scalar(time_us, RECORD_SCHEMA.field(name).type)
        at_least = pc.field(name) >= time if operation in ("Eq", "Gt", "GtEq") else None
        at_most = pc.field(name) <= time if operation in ("Eq", "Lt", "LtEq") else None
        return _both(at_least, at_most)
    number = _integer(literal)
    if name not in ("partition", "offset") or operation not in _COMPARED or number is None:
        return None
    try:
        return _COMPARED[operation](pc.field(name), pa.scalar(number, RECORD_SCHEMA.field(name).type))
    except (OverflowError, pa.ArrowInvalid):  # beyond any that a record can have
        return None


def _among(name: str, stream: list[int], schema: pa.Schema) -> pc.Expression | None:
    """`name` is one of the values of a list, which Polars writes as an Arrow stream."""
    if name not in ("partition", "key"):
        return None
    with pa.ipc.open_stream(bytes(stream)) as batches:
        column = batches.read_all().column(0).combine_chunks()
    values = column.flatten() if pa.types.is_nested(column.type) else column
    if name == "partition" and pa.types.is_integer(values.type):
        return pc.field(name).isin(values.cast(pa.int64()).drop_null())
    key_type = schema.field("key").type
    if name == "key" and any(is_kind(key_type) and is_kind(values.type) for is_kind in (_is_bytes, _is_text)):
        return pc.field(name).isin(values.cast(key_type).drop_null())  # views of bytes cannot drop theirs
    return None


def _key(literal: Any, schema: pa.Schema) -> pa.Scalar | None:
    """A literal as a key, where it is of the keys' type."""
    key_type = schema.field("key").type
    match literal:
        case {"Scalar": {"Binary": [*numbers]}} if _is_bytes(key_type):
            return pa.scalar(bytes(numbers), key_type)
        case {"Scalar": {"String": str(text)}} if _is_text(key_type):
            return pa.scalar(text, key_type)
    number = _integer(literal)
    if number is None or not pa.types.is_integer(key_type):
        return None
    try:
        return pa.scalar(number, key_type)
    except (OverflowError, pa.ArrowInvalid):  # beyond any that a key can have
        return None


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


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
