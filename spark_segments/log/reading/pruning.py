"""Which offsets a condition can hold for, found by Arrow's own simplification of the condition.

Arrow says whether an expression can be true where a guarantee holds, such as `offset < 100`. Whatever part of an
expression Arrow does not understand can be true. So each end of the range is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from spark_segments.log.reading.clip import Offsets, within
from spark_segments.log.reading.times import offsets_before_time
from spark_segments.storage import Storage

_FORMAT = ds.IpcFileFormat()  # of a file that nobody opens
_FILES = LocalFileSystem()
_EARLIEST_US = FIRST_MS * 1000
_LATEST_US = LAST_MS * 1000


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
    offsets: Offsets,
    condition: pc.Expression,
    schema: pa.Schema,
    *,
    is_view: bool,
) -> Offsets:
    """The part of these offsets with all records for which the condition holds.

    The end of a view is not moved: the newest record of a key below an end is not the newest of the topic. Where keys
    may have records in several partitions, no offset is left out: any of them may have the newest record.
    """
    if is_view and Eras.of(snapshot) is not None:
        return offsets
    rule = _Condition.of(condition, schema)
    offsets = {number: ranges for number, ranges in offsets.items() if ranges and rule.can_hold_in(number)}
    if not offsets:
        return {}
    offsets = _of_offsets(offsets, rule, is_view=is_view)
    if rule.holds_before_all_times() and (is_view or rule.holds_after_all_times()):
        return offsets  # of any time
    return _of_times(storage, snapshot.narrowed(offsets), offsets, rule, is_view=is_view)


def _of_offsets(offsets: Offsets, rule: _Condition, *, is_view: bool) -> Offsets:
    """The offsets from the first to the last for which the condition can hold, whatever the partition."""
    least = min(ranges[0][0] for ranges in offsets.values())
    most = max(ranges[-1][1] for ranges in offsets.values())
    first = _last_where(partial(rule.none_below, "offset"), least, most)
    end = most if is_view else _first_where(partial(rule.none_from, "offset"), first, most)
    return {number: within(ranges, first, end) for number, ranges in offsets.items()}


def _of_times(storage: Storage, snapshot: Snapshot, offsets: Offsets, rule: _Condition, *, is_view: bool) -> Offsets:
    """The offsets without some whose records are all too early or too late for the condition."""
    rows = snapshot.live
    if not rows.num_rows:
        return offsets
    least_us = max(pc.min(_least_ms(rows)).as_py(), FIRST_MS) * 1000
    most_us = min(pc.max(rows.column("max_timestamp_ms")).as_py() + 1, LAST_MS) * 1000
    earliest_us = _last_where(partial(rule.none_below, "timestamp"), least_us, most_us)
    if earliest_us > least_us:
        # A record has whole ms. Rounded up: a record of any ms before that is earlier than the time.
        offsets = offsets_before_time(storage, snapshot, offsets, -(-earliest_us // 1000))
    latest_us = most_us if is_view else _first_where(partial(rule.none_from, "timestamp"), earliest_us, most_us)
    if latest_us < most_us:
        ends = {number: _end_of_time(snapshot.live_table(number), latest_us) for number in offsets}
        offsets = {number: within(ranges, 0, ends[number]) for number, ranges in offsets.items()}
    return offsets


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition over columns of a schema, and what Arrow says of where it can hold."""

    expression: pc.Expression
    schema: pa.Schema

    @classmethod
    def of(cls, expression: pc.Expression, schema: pa.Schema) -> _Condition:
        """A condition over the columns of a schema, to which the columns of a record are added that it lacks."""
        others = [field for field in RECORD_SCHEMA if field.name not in schema.names]
        return cls(expression, pa.schema([*schema, *others]))

    def can_hold(self, guarantee: pc.Expression) -> bool:
        fragment = _FORMAT.make_fragment("", _FILES, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self.schema, _FORMAT, _FILES)
        return next(iter(dataset.get_fragments(filter=self.expression)), None) is not None

    def can_hold_in(self, partition: int) -> bool:
        return self.can_hold(pc.field("partition") == _value("partition", partition))

    def none_below(self, name: str, number: int) -> bool:
        """Whether no record with a smaller number in this column meets the condition."""
        return not self.can_hold(pc.field(name) < _value(name, number))

    def none_from(self, name: str, number: int) -> bool:
        """Whether no record with this number in the column, or a larger one, meets the condition."""
        return not self.can_hold(pc.field(name) >= _value(name, number))

    def holds_before_all_times(self) -> bool:
        return not self.none_below("timestamp", _EARLIEST_US + 1)

    def holds_after_all_times(self) -> bool:
        return not self.none_from("timestamp", _LATEST_US)


def _value(name: str, number: int) -> pa.Scalar:
    return pa.scalar(number, RECORD_SCHEMA.field(name).type)


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
