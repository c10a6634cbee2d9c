"""The data source: from options to a reader or a writer. Spark makes one object a load or a write and keeps it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.spark.offsets import topic_names
from spark_segments.spark.options import (
    ReadOptions,
    ignored_by_reader,
    ignored_by_writer,
    is_read,
    read_options,
    write_options,
)
from spark_segments.spark.reader import Reader
from spark_segments.spark.schema import record_schema, typed_schema
from spark_segments.spark.tables import query_options, table_options, with_options
from spark_segments.spark.worker import freeze_imports
from spark_segments.spark.writer import Writer

if TYPE_CHECKING:
    from spark_segments.values.batches import Decoder

_log = logging.getLogger(__name__)


class Source:
    """What `spark.read.format("segments")` stands for.

    The snapshots of its topics are taken here, so that all actions on a DataFrame read the same log: that of its load
    or, where `.schema(...)` spares Spark from asking for one, that of the first action, which is when Spark makes this.
    A table of Spark's catalog is read as it is when a query on it is planned.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._snapshots: dict[str, Snapshot] | None = None
        self._readers: dict[str, list[Decoder]] = {}
        self._table = table_options(options)
        if self._table is not None or not is_read(options):
            return  # a table to be made or read, a write, or a read that is refused when Spark asks for its schema
        self._snapshots, self._readers = _opened(read_options(options))
        for sentence in ignored_by_reader(options):
            _log.warning(sentence)
        freeze_imports()

    def schema(self) -> StructType:
        if self._table is not None:
            chosen = read_options(self._table)
            _, readers = _opened(chosen)  # a table of a topic that is not there is refused
            return with_options(record_schema(chosen.include_headers, typed_schema(readers)), self._table)
        return record_schema(read_options(self._given).include_headers, typed_schema(self._readers))

    def reader(self, schema: StructType) -> Reader:
        options = read_options(query_options(self._given, schema))
        # This object goes to every task, which need neither of them; a reader goes with what decodes.
        snapshots, self._snapshots = self._snapshots, None
        readers, self._readers = self._readers, {}
        if snapshots is None:
            snapshots, readers = _opened(options)
        return Reader(options, snapshots, schema, readers)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        given = query_options(self._given, schema)
        for sentence in ignored_by_writer(given):
            _log.warning(sentence)
        return Writer(write_options(given), schema, overwrite)


def _opened(options: ReadOptions) -> tuple[dict[str, Snapshot], dict[str, list[Decoder]]]:
    """The snapshots of the topics, pinned now, and what decodes their keys and values, both by topic."""
    log = LogDir.open(options.location.uri, options.location.storage_options)
    names = topic_names(options.topics, log.topics)
    if options.timestamp_ms is not None:
        snapshots = {name: log.snapshot_at(name, options.timestamp_ms) for name in names}
    else:
        snapshots = {name: log.snapshot(name, options.version) for name in names}
    if not options.formats:
        return snapshots, {}
    pinned = options.version is not None or options.timestamp_ms is not None
    return snapshots, {
        name: log.value_readers(name, options.formats, snapshot.version if pinned else None)
        for name, snapshot in snapshots.items()
    }
