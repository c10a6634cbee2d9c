"""A topic as a DataFrame of Spark: of the log alone, or of a table's files and the log's tail as one.

Spark reads the files by its own Parquet reader, with the columns and conditions of the query. A Python source cannot
have two ways of reading, so that `format("segments")` itself reads the log alone.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_segments.lake.as_one import AsOne, TableHalf, as_one
from spark_segments.log import LogDirectory, Scan
from spark_segments.spark.schema import record_schema, typed_schema
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MOST_BROADCAST_OFFSETS = 100_000
"""A tail of so many offsets has few keys: each executor gets them, and the table's rows stay where they are."""


def newest_frame(
    spark: SparkSession, log: LogDirectory, scan: Scan, formats: Mapping[str, str]
) -> tuple[DataFrame, str | None]:
    """(the records of a topic by the log and the tables that it knows, why no table is read). Where others have deleted
    a file since, the topic is planned again once, then read by its log alone.
    """
    why = None
    for _ in range(2):
        one = as_one(log, scan, formats)
        if one.half is None:
            return frame_of(spark, one, formats), one.why
        try:
            return frame_of(spark, one, formats), None
        except FileNotFoundError as error:
            why = " ".join(str(error).split())
    return frame_of(spark, AsOne.by_log(scan), formats), why


def frame_of(spark: SparkSession, one: AsOne, formats: Mapping[str, str]) -> DataFrame:
    """The records of a topic, of one snapshot, with the columns of Spark's Kafka source and their headers. Raises
    FileNotFoundError where a file of the table is gone: Spark looks for each.
    """
    scan = one.scan
    half = one.half
    if half is None:
        return _log_frame(spark, scan, formats)
    readers = {} if scan.decoders is None else {scan.snapshot.topic: scan.decoders}
    schema = record_schema(True, typed_schema(readers))
    rows = _rows(spark, half, schema)
    if half.is_latest and one.has_tail:
        rows = _without_keys_of_tail(spark, rows, one, half.key_column)
    # Topics have no quotes in their names.
    constants = {"topic": f"'{scan.snapshot.topic}'", "timestampType": str(half.timestamp_type)}
    names = schema.names
    rows = rows.selectExpr(*(f"{constants[name]} AS {name}" if name in constants else f"`{name}`" for name in names))
    if one.has_tail:
        rows = rows.unionAll(_log_frame(spark, one.tail, formats).select(*names))
    if scan.selection.view is not None and not half.is_latest:
        newest = "row_number() OVER (PARTITION BY partition, key ORDER BY offset DESC) AS place"
        rows = rows.where("key IS NOT NULL").selectExpr("*", newest).where("place = 1").select(*names)
        if not scan.selection.include_tombstones:
            rows = rows.where("value IS NOT NULL")
    return rows


def _without_keys_of_tail(spark: SparkSession, rows: DataFrame, one: AsOne, key_column: str) -> DataFrame:
    """The rows of a latest table that no record of the tail outdoes."""
    keys = _log_frame(spark, one.tail_keys, {}).selectExpr("partition AS tail_partition", "key AS tail_key")
    if sum(end - start for ranges in one.tail.offsets.values() for start, end in ranges) <= MOST_BROADCAST_OFFSETS:
        keys = keys.hint("broadcast")
    same = rows[key_column] == keys["tail_key"]
    if not one.across:
        same = same & (rows["partition"] == keys["tail_partition"])
    return rows.join(keys, same, "left_anti")


def _rows(spark: SparkSession, half: TableHalf, schema: StructType) -> DataFrame:
    """The rows of the table that count, with those of its columns that are asked for."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import BinaryType, StructType

    names = half.table.schema.names
    columns = StructType([field for field in schema if field.name in names])
    if half.key_column not in columns.names and half.key_column in names:
        columns = columns.add(half.key_column, BinaryType())
    if not half.files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("__globPaths__", "false")  # as a table of Spark's catalog names files
    # Others may delete or damage a file once the query is planned. A session that ignores that would miss its rows.
    reader = reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    try:
        rows = reader.parquet(*(_address(half.table.storage, path) for path in half.addresses))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise FileNotFoundError(errno.ENOENT, str(error), half.table.storage.uri) from error
    for partition, start in half.log_starts.items():
        rows = rows.where(f"NOT (partition = {partition} AND offset < {start})")
    return rows


def _address(storage: Storage, path: str) -> str:
    """The address of a file by Hadoop's names."""
    if storage.is_local:
        return f"file://{path}"
    return path.replace("s3://", "s3a://", 1)


def _log_frame(spark: SparkSession, scan: Scan, formats: Mapping[str, str]) -> DataFrame:
    """The records of a scan by the data source."""
    selection = scan.selection
    snapshot = scan.snapshot
    starts = {str(number): ranges[0][0] for number, ranges in scan.offsets.items()}
    options = {
        "subscribe": snapshot.topic,
        "startingOffsets": json.dumps({snapshot.topic: starts}),
        "versionAsOf": str(snapshot.version),
        "isolation.level": selection.isolation,
        "includeHeaders": "true",
        **formats,
        **{f"storage.{name}": value for name, value in scan.storage.storage_options.items()},
    }
    if selection.view is not None:
        options |= {"view": selection.view, "includeTombstones": str(selection.include_tombstones).lower()}
    return spark.read.format("segments").options(**options).load(scan.storage.uri)
