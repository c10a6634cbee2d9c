"""Truncate events of Debezium (`op` is t). They have no key, so no view `latest` has them: a latest table keeps rows
that the database has lost. An update says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.quantities import iso, plural
from spark_segments.values.batches import Decoder
from spark_segments.values.format_options import NULL

_OPERATION = "op"
_TRUNCATE = "t"
_ROWS = ("before", "after")
"""Fields of an envelope that have the database's row before and after a change. One tells an envelope from other values
with an `op`.
"""


@dataclass(frozen=True, slots=True)
class Truncates:
    """Truncate events of a topic: how many (`count`), (partition, offset) of the `first`, and the largest timestamp in
    ms since 1970 (`last_ms`; None: no event has a time).
    """

    count: int = 0
    first: tuple[int, int] | None = None
    last_ms: int | None = None

    def joined(self, other: Truncates) -> Truncates:
        """Both together."""
        firsts = [place for place in (self.first, other.first) if place is not None]
        times = [time for time in (self.last_ms, other.last_ms) if time is not None]
        return Truncates(self.count + other.count, min(firsts, default=None), max(times, default=None))

    def warnings(self, topic: str, log_bounds: Mapping[int, tuple[int, int]]) -> Iterator[str]:
        """A line that names the events and says what to do. None where there is no event, and where the log begins with
        the only one: then its records of before were deleted. `log_bounds`: {partition: (log start, log end)}.
        """
        if self.first is None:
            return
        partition, offset = self.first
        log_start = log_bounds[partition][0]
        if self.count == 1 and offset == log_start > 0:
            return
        bound = f"--partition {partition} --before-offset {offset}"
        if self.last_ms is not None:
            bound = f"--before-time {iso(self.last_ms) or self.last_ms}"
        yield (
            f"{topic}-{partition}: {plural(self.count, 'truncate event')} of Debezium (op t), the first at offset "
            f"{offset}. A truncate event has no key, so the table still has the rows from before it. "
            f"segments delete-records LOG_DIR {topic} {bound} deletes their records, which needs delete in the topic's "
            "cleanup.policy. The next run then deletes the rows"
        )


def envelopes(readers: Sequence[Decoder]) -> Decoder | None:
    """What decodes values that are Debezium's envelopes, and reads others as null; None: the values have no column
    `op`, or no row beside it.
    """
    for reader in readers:
        kind = reader.codec.type
        if reader.chosen.column != "value" or not pa.types.is_struct(kind):
            continue
        names = [field.name for field in kind]
        if names.count(_OPERATION) == 1 and kind.field(_OPERATION).type == pa.string() and {*_ROWS}.intersection(names):
            return replace(reader, chosen=replace(reader.chosen, errors=NULL, raw_column=None))
    return None


def truncates_in(records: pa.RecordBatch, reader: Decoder) -> Truncates:
    """The truncate events among records of a partition, by offset, with their values as they are stored."""
    values, _ = reader.decode(records.column("value"), records)
    events = records.filter(pc.fill_null(pc.equal(pc.struct_field(values, _OPERATION), _TRUNCATE), False))
    if not events.num_rows:
        return Truncates()
    first = (events.column("partition")[0].as_py(), events.column("offset")[0].as_py())
    last_us = pc.max(events.column("timestamp").cast(pa.int64())).as_py()
    return Truncates(events.num_rows, first, None if last_us is None else last_us // 1000)
