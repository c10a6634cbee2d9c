"""Where Spark finds `format("segments")`: it imports every module named `pyspark_*` and registers its `DefaultSource`.

An import error here would break every look-up of every data source, so nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    import spark_segments.spark  # noqa: F401  # says which PySpark it needs

    raise


class DefaultSource(DataSource):
    """Topics of a log directory as DataFrames, for reading and appending."""

    @classmethod
    def name(cls) -> str:
        return "segments"

    def __init__(self, options: Any) -> None:
        from spark_segments.spark.source import Source

        super().__init__(options)
        self._source = Source(options)

    def schema(self) -> Any:
        return self._source.schema()

    def reader(self, schema: Any) -> Any:
        return self._source.reader(schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return self._source.stream_writer(schema, overwrite)

    def streamReader(self, schema: Any) -> Any:
        return self._source.stream_reader(schema)
