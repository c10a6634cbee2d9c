"""The data source: from options to a reader or a writer. Spark makes an object per load or write and keeps it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.typed import Decoders
from spark_segments.spark import PYSPARK
from spark_segments.spark.options import (
    ReadOptions,
    is_read,
    load_options,
    read_options,
    stream_options,
    write_options,
)
from spark_segments.spark.options.ignored import ignored_by_reader, ignored_by_stream, ignored_by_writer
from spark_segments.spark.schema import as_given, as_struct, is_on_sail, record_schema, typed_schema
from spark_segments.spark.shown_errors import without_traceback
from spark_segments.spark.tables import query_options, table_options, with_options
from spark_segments.spark.worker import freeze_imports

# Spark starts a process for each thing that it asks of a source, and each imports this module: what one of them needs
# is imported where that is asked.
if TYPE_CHECKING:
    from spark_segments.spark.reader import Reader
    from spark_segments.spark.row_writer import Writer
    from spark_segments.spark.streams.stream_writer import StreamWriter

_log = logging.getLogger(__name__)


class Source:
    """The implementation of `spark.read.format("segments")`.

    It pins the snapshots of its topics when Spark makes it, so that all actions on a DataFrame read the same log. That
    is the log at the time of the load. With `.schema(...)` Spark does not ask for a schema and makes this object at the
    first action: then it is the log at that time. A table of Spark's catalog is pinned when a query on it is planned.
    """

    @without_traceback
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._snapshots: dict[str, Snapshot] | None = None
        self._readers: dict[str, Decoders] = {}
        self._table = table_options(options)
        if self._table is not None or not is_read(options):
            return  # a new or existing table, a write, or a read that `schema` refuses
        chosen = load_options(options)
        try:
            self._snapshots, self._readers = _opened(chosen)
        except UnknownTopicError:
            if chosen.fail_on_data_loss or chosen.formats:
                raise  # a stream goes on without a topic that was deleted; a batch read raises this again in `reader`
        freeze_imports()

    @without_traceback
    def schema(self) -> StructType | pa.Schema:
        return as_given(self._schema())

    def _schema(self) -> StructType:
        if self._table is not None:
            chosen = load_options(self._table)
            _, readers = _opened(chosen)  # refuses a table of a topic that does not exist
            return with_options(record_schema(chosen.include_headers, typed_schema(readers)), self._table)
        return record_schema(load_options(self._options).include_headers, typed_schema(self._readers))

    @without_traceback
    def reader(self, schema: StructType | pa.Schema) -> Reader:
        from spark_segments.spark.reader import Reader

        all_options = query_options(self._options, as_struct(schema))
        options = read_options(all_options)
        for sentence in ignored_by_reader(all_options):
            _log.warning(sentence)
        # Spark sends this object to every task. Tasks need neither the snapshots nor the decoders kept here.
        snapshots = self._snapshots
        self._snapshots = None
        readers = self._readers
        self._readers = {}
        if snapshots is None:
            snapshots, readers = _opened(options)
        if is_on_sail():
            from spark_segments.spark.sail_reader import SailReader

            return SailReader(options, snapshots, schema, readers)
        return Reader(options, snapshots, schema, readers)

    @without_traceback
    def stream_reader(self, schema: StructType | pa.Schema) -> DataSourceStreamReader:
        """Raises nothing: the reader raises what is wrong, which Spark then shows as the error of the query."""
        from spark_segments.spark.streams.stream_reader import RefusedStream, StreamReader, refuse_limits

        # Spark sends this object to every task, too.
        self._snapshots = None
        self._readers = {}
        try:
            struct = as_struct(schema)
            all_options = query_options(self._options, struct)
            options = stream_options(all_options)
            for sentence in ignored_by_stream(all_options):
                _log.warning(sentence)
            if PYSPARK >= (4, 2):
                from spark_segments.spark.streams.limited_stream_reader import LimitedStreamReader

                return LimitedStreamReader(options, struct)
            refuse_limits(options)
            return StreamReader(options, struct)
        except SegmentsError as error:
            return RefusedStream(error)

    @without_traceback
    def writer(self, schema: StructType | pa.Schema, overwrite: bool) -> Writer:
        from spark_segments.spark.row_writer import Writer

        schema = as_struct(schema)
        return Writer(write_options(self._write_options(schema)), schema, overwrite)

    @without_traceback
    def stream_writer(self, schema: StructType | pa.Schema, overwrite: bool) -> StreamWriter:
        from spark_segments.spark.streams.stream_writer import StreamWriter, refuse_asynchronous_progress

        schema = as_struct(schema)
        options = self._write_options(schema)
        refuse_asynchronous_progress(options)
        return StreamWriter(write_options(options), schema, overwrite)

    def _write_options(self, schema: StructType) -> dict[str, str]:
        options = query_options(self._options, schema, is_write=True)
        for sentence in ignored_by_writer(options):
            _log.warning(sentence)
        return options


def _opened(options: ReadOptions) -> tuple[dict[str, Snapshot], dict[str, Decoders]]:
    """(the topics' snapshots as of now, the decoders of their keys and values), both by topic."""
    log = LogDirectory.open(options.location.uri, options.location.storage_options)
    names = options.topics.chosen(log.topics)
    snapshots = {name: log.snapshot(name, options.version, options.timestamp_ms) for name in names}
    if not options.formats:
        return snapshots, {}
    values = log.values
    return snapshots, {name: values.decoders(snapshot, options.formats) for name, snapshot in snapshots.items()}
