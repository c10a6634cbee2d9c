"""`scan_topic`: the records of a topic as a Polars LazyFrame, read as the query asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_segments.errors import MissingExtraError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.reading.isolation import READ_UNCOMMITTED
from spark_segments.log.reading.records import BINARY, BINARY_VIEW, Wanted, check_reading, record_reader
from spark_segments.log.reading.times import offsets_for_times
from spark_segments.log.typed.columns import Columns
from spark_segments.storage import Storage

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
    isolation_level: str = READ_UNCOMMITTED,
    formats: Mapping[str, str] | None = None,
    view: str | None = None,
    include_tombstones: bool = True,
    threads: int | None = None,
) -> pl.LazyFrame:
    """The records of a topic as a lazy frame; the arguments are those of `LogDir.open` and `LogDir.reader`.

    The log is that of this moment, whenever and however often the frame is collected. A query reads the columns it
    uses and stops at its `head`. Conditions on partition and offset, and lower bounds of timestamp, choose what is
    read; all others are applied to what was. Rows come partition by partition and by offset.

    Raises what `LogDir.open` and `LogDir.reader` raise; errors in the data come from the query as Polars' ComputeError.
    """
    log = LogDir.open(uri, storage_options)
    names = check_reading(None, isolation_level, view, False, include_tombstones)
    readers = log.value_readers(topic, formats, version) if formats else []
    typed = Columns(names, readers) if readers else None
    scan = _Scan(
        log.storage,
        log.snapshot(topic, version),
        Wanted(
            columns=names,
            isolation_level=isolation_level,
            latest=view is not None,
            include_tombstones=include_tombstones,
            value_type=BINARY_VIEW if typed is None else BINARY,
        ),
        typed,
        threads,
    )
    return register_io_source(scan.frames, schema=scan.schema(), is_pure=True)


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a frame scans."""

    storage: Storage
    snapshot: Snapshot
    wanted: Wanted
    typed: Columns | None
    threads: int | None

    def schema(self) -> pl.Schema:
        return _frame(self._stream(replace(self.wanted, offsets={}), self.typed).read_all()).schema

    def frames(
        self, with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        """The frames that Polars asks for: the first `n_rows` rows, of them those that satisfy the predicate."""
        names = with_columns if with_columns is not None else list(self.schema())
        used = names if predicate is None else list(dict.fromkeys([*names, *predicate.meta.root_names()]))
        typed, wanted = self._projected(used)
        # The first rows of a range are not the first rows of the topic.
        bounds = Bounds() if predicate is None or n_rows is not None else bounds_of(predicate)
        left = n_rows
        for batch in self._stream(replace(wanted, offsets=self._offsets(bounds)), typed):
            frame = _frame(batch)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame if frame.columns == names else frame.select(names)
            if left == 0:
                return

    def _projected(self, used: list[str]) -> tuple[Columns | None, Wanted]:
        """What reads the columns `used`: names of records, or of columns that hold undecodable bytes."""
        raw = {one.chosen.raw_column: one.chosen.column for one in (self.typed.readers if self.typed else ())}
        names = list(dict.fromkeys(raw.get(name, name) for name in used)) or ["offset"]
        typed = None if self.typed is None else Columns(names, self.typed.readers)
        return typed, replace(self.wanted, columns=names)

    def _stream(self, wanted: Wanted, typed: Columns | None) -> pa.RecordBatchReader:
        return record_reader(self.storage, self.snapshot, wanted, typed=typed, threads=self.threads)

    def _offsets(self, bounds: Bounds) -> dict[int, tuple[int, int]]:
        """{partition: (start, end)} of the rows within the bounds."""
        found = {}
        for number, (start, end) in offset_bounds(self.snapshot).items():
            if bounds.partitions is not None and number not in bounds.partitions:
                continue
            start = start if bounds.start_offset is None else max(start, bounds.start_offset)
            # The newest record of a key below an end is not the newest of the topic.
            if bounds.end_offset is not None and not self.wanted.latest:
                end = min(end, bounds.end_offset)
            found[number] = (start, end)
        if bounds.first_timestamp_us is not None:
            target_ms = -(-bounds.first_timestamp_us // 1000)
            firsts = offsets_for_times(self.storage, self.snapshot, dict.fromkeys(found, target_ms))
            found = {
                number: (max(start, first[0]), end)
                for number, (start, end) in found.items()
                if (first := firsts[number]) is not None
            }
        return found


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame
