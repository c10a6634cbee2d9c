"""A scan: what is read of a topic, as a value that plans, reads and is cut into parts for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_segments.ahead import MOST_AHEAD_BYTES, read_ahead, reading_threads
from spark_segments.errors import InvalidOptionError
from spark_segments.format.decoding.decode import record_schema
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.log.key_offsets import Key, KeyCoverage, KeyOffsets, KeyRanges, normal_keys
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.clip import OffsetRanges, Offsets, clipped
from spark_segments.log.reading.field_condition import FieldCondition
from spark_segments.log.reading.read import Indexes, pieces_of, read_part
from spark_segments.log.reading.scan_plan import EVERYTHING, Part, ScanPart, Selection
from spark_segments.log.reading.time_range import TimeRange
from spark_segments.log.segment.file import FIRST_WINDOW_BYTES
from spark_segments.printing import Printed, Prints
from spark_segments.quantities import Bytes, Time
from spark_segments.storage import Storage

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.compute as pc

    from spark_segments.log.typed import Columns, Decoders, RecordField

Bounds = tuple[int | None, int | None]
"""(start, end exclusive) of a partition, None where there is no bound."""
Decoded = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_MOST_OF_ONE_THREAD = 100_000
"""Offsets that the caller's thread reads alone, if their files have no more than _MOST_BYTES_OF_ONE_THREAD."""

_MOST_BYTES_OF_ONE_THREAD = 4 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Scan(Prints):
    """The records at `offsets` of a snapshot ({partition: ranges of (start, end exclusive)}), by partition and offset.

    Offsets are clipped to the log here: whatever reads a part of the scan trusts them. `decoders` decode keys and
    values. Nothing is read before a batch is wanted. `coverage`: what a look-up of keys looked at.
    """

    storage: Storage
    snapshot: Snapshot
    offsets: Offsets
    selection: Selection = EVERYTHING
    decoders: Decoders | None = None
    coverage: KeyCoverage | None = None

    def __post_init__(self) -> None:
        bounds = self.snapshot.offset_bounds(self.selection.isolation)
        object.__setattr__(self, "offsets", clipped(self.offsets, bounds))
        if self.decoders and self.selection.include_control:
            raise InvalidOptionError("Control records have no values", hint="Read them without value.format")
        if self.selection.value_type == Selection.BINARY_VIEW:
            typed = self.columns
            if typed is not None and typed.types("value"):
                raise InvalidOptionError("value_type is the type of values without a format", hint="Leave it out")

    @classmethod
    def of(
        cls,
        storage: Storage,
        snapshot: Snapshot,
        partition: int | None = None,
        offsets: Mapping[int, Bounds] | Bounds | None = None,
        selection: Selection = EVERYTHING,
        decoders: Decoders | None = None,
    ) -> Scan:
        """A scan of all partitions or of one. `offsets`: (start, end exclusive), None where there is no bound, or such
        bounds by partition.

        Raises UnknownTopicError for a partition that is not there, InvalidOptionError for bounds that are none.
        """
        log_bounds = snapshot.offset_bounds()
        everywhere = (None, None) if offsets is None else offsets
        by_partition = everywhere if isinstance(everywhere, Mapping) else dict.fromkeys(log_bounds, everywhere)
        for number in {*by_partition, *(() if partition is None else (partition,))} - log_bounds.keys():
            snapshot.check_partition(number)
        ranges: dict[int, OffsetRanges] = {}
        for number, bounds in by_partition.items():
            start, end = _checked(bounds)
            log_start, log_end = log_bounds[number]
            if partition is None or number == partition:
                ranges[number] = ((log_start if start is None else start, log_end if end is None else end),)
        return cls(storage, snapshot, ranges, selection, decoders)

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types: the selected columns, then the columns of undecodable bytes."""
        typed = self.columns
        if typed is not None:
            return typed.schema
        return record_schema(self.selection.columns, view_values=self.selection.value_type == Selection.BINARY_VIEW)

    def select(self, names: Iterable[str]) -> Scan:
        """The same scan of these columns alone, at least of one; a column of undecodable bytes comes with its own."""
        stored = self.decoders.stored(names) if self.decoders else tuple(dict.fromkeys(names)) or ("offset",)
        return replace(self, selection=replace(self.selection, columns=stored))

    def where(self, condition: pc.Expression) -> Scan:
        """The same scan of fewer offsets, which have all records for which the condition may hold.

        The scan still returns records for which it does not hold. Conditions on partition and offset and lower bounds
        of timestamp limit what is read. The latest view never returns a record that is not the newest of its key.
        """
        from spark_segments.log.reading.pruning import offsets_of_condition

        is_view = self.selection.view is not None
        offsets = offsets_of_condition(
            self.storage, self.snapshot, self.offsets, condition, self.schema, is_view=is_view
        )
        return replace(self, offsets=offsets)

    def of_keys(self, keys: Iterable[bytes], index: KeyOffsets) -> Scan:
        """The same scan of the records with any of these keys alone. What the index does not have is scanned, so the
        records are those of a full scan; `coverage` says how much that is. The index is asked in this call. Of a scan
        of keys these are the records with a key that both have.
        """
        sorted_keys = normal_keys(keys)
        if self.selection.keys is not None:
            sorted_keys = normal_keys({*sorted_keys}.intersection(self.selection.keys))
        selection = replace(self.selection, keys=sorted_keys)
        ranges = index.of_keys(self.snapshot, self.offsets, sorted_keys)
        coverage = ranges.coverage if self.coverage is None else ranges.coverage.with_earlier(self.coverage)
        return replace(self, offsets=ranges.offsets, selection=selection, coverage=coverage)

    def of_field(self, field: RecordField, values: Iterable[bytes], index: KeyOffsets) -> Scan:
        """The same scan of the records alone of which the field has any of these values, in its encoding. As in
        `of_keys` what the index does not have is scanned. Of a view these are the records of the view with such a
        field: each is compared with newer ones that may lack it, so all offsets are read.
        """
        condition = FieldCondition(field, normal_keys(values))
        selection = replace(self.selection, where=(*self.selection.where, condition))
        if self.selection.view is None:
            ranges = index.of_field(self.snapshot, self.offsets, field, condition.values)
        else:
            ranges = KeyRanges.scanned(self.offsets)
        coverage = ranges.coverage if self.coverage is None else ranges.coverage.with_earlier(self.coverage)
        return replace(self, offsets=ranges.offsets, selection=selection, coverage=coverage)

    def keys_of(self, condition: pc.Expression) -> frozenset[Key] | None:
        """The values of the column key for which a condition can hold, of the column's type; None: any."""
        from spark_segments.log.reading.condition_keys import keys_of_condition

        names = self.columns_of(condition)
        if "key" not in names:
            return None
        return keys_of_condition(condition, pa.schema([self.schema.field(name) for name in sorted(names)]))

    def of_times(self, times: tuple[Time | None, Time | None] | str) -> Scan:
        """The same scan of the records with a timestamp in the range alone: (start, end exclusive), None where there is
        no bound, or a text START..END. Segments that can have none are not read. Of a scan of times these are the
        records in both ranges.
        """
        time_range = TimeRange.of(times)
        if self.selection.times is not None:
            time_range = time_range.within(self.selection.times)
        return replace(self, selection=replace(self.selection, times=time_range))

    def columns_of(self, condition: pc.Expression) -> frozenset[str]:
        """The names of the columns that a condition looks at."""
        from spark_segments.log.reading.pruning import columns_of_condition

        return columns_of_condition(condition, self.schema)

    def parts(self, max_bytes: int | None = None, *, within_partitions: bool = False) -> Iterator[ScanPart]:
        """The parts of the scan, by partition and offset, each of about `max_bytes` (None: as large as they come).

        A part can be pickled, and `read` reads it wherever the files can be reached. No part crosses from one range to
        another that begins where it ends. The call plans at once; parts of a large log are made one by one.
        `within_partitions`: a part of a view compares no records of several partitions.
        """
        typed = self.columns
        selection = self.selection if typed is None else replace(self.selection, columns=tuple(typed.wanted))
        if selection.view is None:
            return Part.planned(self.snapshot, self.offsets, selection, max_bytes)
        if within_partitions:
            from spark_segments.log.reading.latest import LatestPart

            return LatestPart.planned(self.snapshot, self.offsets, selection, max_bytes)
        from spark_segments.log.reading.across import view_parts

        return view_parts(self.snapshot, self.offsets, selection, max_bytes)

    def batches(self, threads: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records in batches of a few MiB.

        `threads` read ahead of the caller, with their results in the same order and about 128 MiB of batches that wait,
        at most; by default the caller's own thread reads, and 16 threads where it is an object store. The latest view
        of several partitions takes a map's memory for each thread. What cannot be decoded raises ValueFormatError.
        """
        if threads is None:
            own = self.storage.is_local or self.selection.view is not None
            threads = 1 if own else reading_threads(self.storage)
        if threads < 1:
            raise InvalidOptionError("A read has at least one thread", expected="threads ≥ 1", found=threads)
        return Scan.read(
            self.storage,
            self.parts(),
            threads,
            decoded=lambda _: None if self.columns is None else self.columns.decoded,
            indexes=self.snapshot.offset_indexes,
            first_window_bytes=FIRST_WINDOW_BYTES,
        )

    def to_reader(self, threads: int | None = None) -> pa.RecordBatchReader:
        """The batches as an Arrow stream, which DuckDB and other libraries can read.

        Nothing is read before the first batch is asked for, and at most about 128 MiB are read ahead. With the
        value_type binary_view, values above 12 bytes are views of the bytes that were read or decompressed, and are
        not copied: a value keeps about 8 MiB in memory as long as it is used. `threads`: by default one for each core,
        and 16 at least on an object store; the caller's own for little of a local disk.
        """
        if threads is None:
            threads = 1 if self.storage.is_local and self._is_little() else reading_threads(self.storage)
        batches = self.batches(threads)
        typed = self.columns
        if typed is not None:
            batches = typed.conformed(batches)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_table(self) -> pa.Table:
        """All records in memory, as an Arrow table."""
        return self.to_reader().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """All records in memory, as a data frame of pandas."""
        return self.to_table().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All records in memory, as a data frame of Polars. `spark_segments.polars.scan_topic` gives a lazy one."""
        import polars as pl

        frame = pl.from_arrow(self.to_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """The records as a relation of DuckDB, read once, as a query of it asks for them."""
        import duckdb

        reader = self.to_reader()
        return duckdb.from_arrow(reader) if connection is None else connection.from_arrow(reader)

    def _printed(self) -> Printed:
        chosen = self.selection
        fields = {"topic": self.snapshot.topic, "version": self.snapshot.version}
        fields |= {"view": chosen.view} if chosen.view is not None else {}
        facts = fields | {"isolation": chosen.isolation, "columns": ", ".join(self.schema.names)}
        rows = [
            [number, start, end, Bytes(_file_bytes(self.snapshot, number, start, end, chosen.times))]
            for number, ranges in sorted(self.offsets.items())
            for start, end in ranges
        ]
        return Printed("Scan", facts, ("partition", "start", "end", "bytes"), rows)

    def _is_little(self) -> bool:
        """Whether threads would cost more than they bring: each begins with memory and decompressors of its own."""
        ranges = [(number, start, end) for number, ranges in self.offsets.items() for start, end in ranges]
        if sum(end - start for _, start, end in ranges) > _MOST_OF_ONE_THREAD:
            return False
        sizes = (_file_bytes(self.snapshot, number, start, end, self.selection.times) for number, start, end in ranges)
        return sum(sizes) <= _MOST_BYTES_OF_ONE_THREAD

    @property
    def columns(self) -> Columns | None:
        """The columns that are read, where keys or values are decoded; else None."""
        return self.decoders.columns(self.selection.columns) if self.decoders else None

    @staticmethod
    def read(
        storage: Storage,
        parts: Iterable[ScanPart],
        threads: int = 1,
        *,
        most_bytes: int = MOST_AHEAD_BYTES,
        decoded: Callable[[str], Decoded | None] = lambda topic: None,
        indexes: Indexes | None = None,
        first_window_bytes: int = WINDOW_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """The records of parts, in their order. `decoded`: by topic, what decodes keys and values; None: nothing.

        More than one of `threads` read ahead, in pieces that are each a single read, up to `most_bytes` of batches. The
        first read is of `first_window_bytes`. `indexes` in memory stand in for missing files.
        """
        if threads > 1:
            parts = pieces_of(storage, parts, indexes, first_window_bytes=first_window_bytes)

        def batches(part: ScanPart) -> Iterator[pa.RecordBatch]:
            decode = decoded(part.topic)
            records = _records(storage, part)
            return records if decode is None else decode(records)

        return read_ahead((partial(batches, part) for part in parts), threads, most_bytes=most_bytes)


def _checked(bounds: Bounds) -> Bounds:
    """The bounds that a caller gives. Raises InvalidOptionError."""
    is_pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2
    if not (is_pair and all(end is None or isinstance(end, Integral) for end in bounds)):
        expected = "(start, end), each a whole number or None, or such bounds by partition"
        raise InvalidOptionError("offsets", expected=expected, found=repr(bounds))
    return bounds


def _records(storage: Storage, part: ScanPart) -> Iterator[pa.RecordBatch]:
    """The records of a part with stored keys and values: nothing is decoded."""
    if isinstance(part, Part):
        return read_part(storage, part)
    from spark_segments.log.reading.across import AcrossPart, read_across
    from spark_segments.log.reading.latest import LatestPart, read_latest

    if isinstance(part, LatestPart):
        return read_latest(storage, part)
    assert isinstance(part, AcrossPart), "a scan has no other parts"
    return read_across(storage, part)


def _file_bytes(snapshot: Snapshot, partition: int, start: int, end: int, times: TimeRange | None) -> int:
    """The bytes of the files that have any of these offsets, and can have a record of these times."""
    live = snapshot.live_table(partition)
    live = live if times is None else times.segments(live)
    base, following = (live.column(name).to_numpy() for name in ("base_offset", "next_offset"))
    return int(live.column("log_bytes").to_numpy()[(base < end) & (following > start)].sum())
