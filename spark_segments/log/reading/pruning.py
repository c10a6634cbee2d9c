"""Which offsets a condition can hold for, found by Arrow's own simplification of the condition.

Arrow says whether an expression can be true where a guarantee holds, such as `offset < 100`. Whatever part of an
expression Arrow does not understand can be true. So each end of the range is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from spark_segments.format.decoding.fields import FIRST_MS, LAST_MS
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.times import offsets_before_time
from spark_segments.storage import Storage

_FORMAT, _FILES = ds.IpcFileFormat(), LocalFileSystem()  # of a file that nobody opens
_EARLIEST_US, _LATEST_US = FIRST_MS * 1000, LAST_MS * 1000


def columns_of_condition(condition: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """The names of the schema's columns that the condition looks at: without them Arrow refuses it."""

    def is_known(names: Iterable[str]) -> bool:
        without = pa.schema([schema.field(name) for name in names])
        try:
            list(ds.FileSystemDataset([], without, _FORMAT, _FILES).get_fragments(filter=condition))
        except (pa.ArrowInvalid, KeyError):
            return False
        return True

    return frozenset(name for name in schema.names if not is_known(set(schema.names) - {name}))


def offsets_of_condition(
    storage: Storage,
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    condition: pc.Expression,
    schema: pa.Schema,
    *,
    is_view: bool,
) -> dict[int, tuple[int, int]]:
    """{partition: (start, end exclusive)}: the part of these offsets with all records for which the condition holds.

    The end of a view is not moved: the newest record of a key below an end is not the newest of the topic. Where keys
    may have records in several partitions, no offset is left out: any of them may have the newest record.
    """
    if is_view and Eras.of(snapshot) is not None:
        return dict(offsets)
    schema = pa.schema([*schema, *(field for field in RECORD_SCHEMA if field.name not in schema.names)])

    def can_hold(guarantee: pc.Expression) -> bool:
        fragment = _FORMAT.make_fragment("", _FILES, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], schema, _FORMAT, _FILES)
        return next(iter(dataset.get_fragments(filter=condition)), None) is not None

    def value(name: str, number: int) -> pa.Scalar:
        return pa.scalar(number, RECORD_SCHEMA.field(name).type)

    def none_below(name: str, number: int) -> bool:
        return not can_hold(pc.field(name) < value(name, number))

    def none_from(name: str, number: int) -> bool:
        return not can_hold(pc.field(name) >= value(name, number))

    ranges = {
        number: bounds
        for number, bounds in offsets.items()
        if can_hold(pc.field("partition") == value("partition", number))
    }
    if not ranges:
        return {}
    least, most = min(start for start, _ in ranges.values()), max(end for _, end in ranges.values())
    first = _last_where(partial(none_below, "offset"), least, most)
    end = most if is_view else _first_where(partial(none_from, "offset"), first, most)
    ranges = {number: (max(start, first), min(stop, end)) for number, (start, stop) in ranges.items()}
    if can_hold(pc.field("timestamp") < value("timestamp", _EARLIEST_US + 1)) and (
        is_view or can_hold(pc.field("timestamp") >= value("timestamp", _LATEST_US))
    ):
        return ranges  # of any time
    snapshot = snapshot.narrowed(ranges)
    rows = snapshot.live
    if not rows.num_rows:
        return ranges
    least_us = max(pc.min(_least_ms(rows)).as_py(), FIRST_MS) * 1000
    most_us = min(pc.max(rows.column("max_timestamp_ms")).as_py() + 1, LAST_MS) * 1000
    earliest_us = _last_where(partial(none_below, "timestamp"), least_us, most_us)
    if earliest_us > least_us:
        # A record has whole ms. Rounded up: a record of any ms before that is earlier than the time.
        ranges = offsets_before_time(storage, snapshot, ranges, -(-earliest_us // 1000))
    latest_us = most_us if is_view else _first_where(partial(none_from, "timestamp"), earliest_us, most_us)
    if latest_us < most_us:
        ends = {number: _end_of_time(snapshot.live_table(number), latest_us) for number in ranges}
        ranges = {number: (start, min(end, ends[number])) for number, (start, end) in ranges.items()}
    return ranges


def _least_ms(live: pa.Table) -> pa.ChunkedArray:
    return live.column("min_timestamp_ms").fill_null(FIRST_MS)


def _end_of_time(live: pa.Table, latest_us: int) -> int:
    """The offset from which on the rows of a partition say that no record is earlier than a time."""
    # Rounded up: a record of the ms in which the time lies can be earlier. Rounded down, its segment would be cut off,
    # and a condition that holds for it would not find it. The last early row counts: timestamps need not rise.
    early = np.flatnonzero(_least_ms(live).to_numpy() < -(-latest_us // 1000))
    return int(live.column("next_offset")[early[-1]].as_py()) if len(early) else 0


def _last_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number of low … high where `holds`, which is true up to a number and false from there on; of `low` it is
    taken to be true.
    """
    if low >= high or not holds(low + 1):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high if holds(high) else low


def _first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number of low … high where `holds`, which is false up to a number and true from there on; of `high` it
    is taken to be true.
    """
    return -_last_where(lambda value: holds(-value), -high, -low)
