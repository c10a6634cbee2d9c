"""The data source: from options to a reader or a writer. Spark makes one object a load or a write and keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.spark.offsets import topic_names
from spark_segments.spark.options import is_read, read_options, write_options
from spark_segments.spark.reader import Reader
from spark_segments.spark.schema import record_schema, typed_schema
from spark_segments.spark.worker import freeze_imports
from spark_segments.spark.writer import Writer

if TYPE_CHECKING:
    from spark_segments.values.batches import Decoder


class Source:
    """What `spark.read.format("segments")` stands for.

    The snapshots of its topics are taken here, so that all actions on a DataFrame read the same log: that of its load
    or, where `.schema(...)` spares Spark from asking for one, that of the first action, which is when Spark makes this.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._snapshots: dict[str, Snapshot] | None = None
        self._readers: dict[str, list[Decoder]] = {}
        if not is_read(options):
            return  # a write, or a read that will be refused when Spark asks for its schema
        chosen = read_options(options)
        log = LogDir.open(chosen.location.uri, chosen.location.storage_options)
        names = topic_names(chosen.topics, log.topics)
        self._snapshots = {name: log.snapshot(name, chosen.version) for name in names}
        if chosen.formats:
            self._readers = {name: log.value_readers(name, chosen.formats, chosen.version) for name in names}
        freeze_imports()

    def schema(self) -> StructType:
        return record_schema(read_options(self._given).include_headers, typed_schema(self._readers))

    def reader(self, schema: StructType) -> Reader:
        options = read_options(self._given)
        # This object goes to every task, which need neither of them; a reader goes with what decodes.
        snapshots, self._snapshots = self._snapshots, None
        readers, self._readers = self._readers, {}
        return Reader(options, snapshots or {}, schema, readers)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(write_options(self._given), schema, overwrite)
