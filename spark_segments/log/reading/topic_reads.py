"""Reading the records of a log directory's topics: the part of `LogDir` that gives Arrow batches and streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.reading.isolation import READ_UNCOMMITTED
from spark_segments.log.reading.plan import BINARY, Selection
from spark_segments.log.reading.scan import Scan
from spark_segments.log.typed.typed_log import typed_columns

if TYPE_CHECKING:
    from spark_segments.log.typed.columns import Log as TypedTopics

    class Log(TypedTopics, Protocol):
        """The part of a log directory that this module uses."""

        def snapshot(self, topic: str, version: int | None = None) -> Snapshot: ...


class TopicReads:
    """The part of `LogDir` that reads records."""

    def read(
        self: Log,
        topic: str,
        partition: int | None = None,
        start_offset: int | None = None,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        isolation_level: str = READ_UNCOMMITTED,
        include_control: bool = False,
        *,
        formats: Mapping[str, str] | None = None,
        view: str | None = None,
        include_tombstones: bool = True,
        threads: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records of a topic, partition by partition and by offset, in batches of a few MiB.

        `end_offset` is exclusive; offsets are clipped to what is there. `columns` are names of RECORD_SCHEMA, in the
        wanted order. The log is that of this moment, or of an earlier `version`: appends that come later are not seen.
        `formats` are options such as value.format: what the bytes of key and value are read as, so that these columns
        are typed. What cannot be read so raises ValueFormatError.

        The `view` latest is the newest record of each key in the range, partition by partition: what cleaning would
        leave of it. Records without a key and aborted data are not in it; tombstones are, unless told otherwise.

        `threads` read ahead of the caller, with their results in the same order and about 128 MiB of batches that wait,
        at most; by default the caller's own thread reads, and 16 threads where it is an object store. The latest view
        of several partitions takes a map's memory for each thread.
        """
        chosen = Selection(
            tuple(RECORD_SCHEMA.names if columns is None else columns),
            isolation_level,
            view,
            include_control,
            include_tombstones,
        )
        readers = typed_columns(self).readers(topic, formats, version) if formats else []
        bounds = start_offset, end_offset
        scan = Scan.of(self.storage, self.snapshot(topic, version), partition, bounds, chosen, readers)
        return scan.batches(threads)

    def reader(
        self: Log,
        topic: str,
        partition: int | None = None,
        start_offset: int | None = None,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
        value_type: str = BINARY,
        *,
        version: int | None = None,
        isolation_level: str = READ_UNCOMMITTED,
        formats: Mapping[str, str] | None = None,
        view: str | None = None,
        include_tombstones: bool = True,
        threads: int | None = None,
    ) -> pa.RecordBatchReader:
        """The records that `read` gives, as an Arrow stream: whatever takes one can read a topic, such as DuckDB.

        Nothing is read before the first batch is asked for, and no more than about 128 MiB ahead of what was. With the
        `value_type` binary_view, values above 12 bytes are views of the bytes that were read or decompressed, and are
        not copied: a value keeps about 8 MiB in memory as long as it is used. `threads` are as many as there are cores,
        and 16 at least on an object store.
        """
        chosen = Selection(
            tuple(RECORD_SCHEMA.names if columns is None else columns),
            isolation_level,
            view,
            include_tombstones=include_tombstones,
            value_type=value_type,
        )
        readers = typed_columns(self).readers(topic, formats, version) if formats else []
        bounds = start_offset, end_offset
        scan = Scan.of(self.storage, self.snapshot(topic, version), partition, bounds, chosen, readers)
        return scan.to_reader(threads)
