"""`scan_topic`: the records of a topic as a Polars LazyFrame, read as the query asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

import pyarrow as pa

from spark_segments.errors import MissingExtraError
from spark_segments.log.logdir import LogDir
from spark_segments.log.reading.isolation import READ_UNCOMMITTED
from spark_segments.log.reading.plan import BINARY, BINARY_VIEW
from spark_segments.log.reading.scan import Scan
from spark_segments.log.reading.times import offsets_for_times

try:
    import polars as pl
    from polars.io.plugins import register_io_source

    from spark_segments.polars.predicate import Bounds, bounds_of
except ImportError as error:
    raise MissingExtraError("polars", "scan_topic", "polars") from error


def scan_topic(
    uri: str,
    topic: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    timestamp: datetime | int | None = None,
    isolation: str = READ_UNCOMMITTED,
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
            value_type=BINARY if formats else BINARY_VIEW,
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
    # The first rows of a range are not the first rows of the topic.
    bounds = Bounds() if predicate is None or n_rows is not None else bounds_of(predicate)
    left = n_rows
    for batch in replace(scan.select(used), offsets=_offsets(scan, bounds)).to_reader(threads):
        frame = _frame(batch)
        if left is not None:
            frame = frame.head(left)
            left -= frame.height
        if predicate is not None:
            frame = frame.filter(predicate)
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
