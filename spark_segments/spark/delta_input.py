"""A Delta table as a DataFrame: read by Delta's reader where Spark has its jar, else by deltalake in Spark's tasks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError, LogDirError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSION = "versionAsOf"
_MAVEN = ("repo1.maven.org", 443)
_MAVEN_SECONDS = 2.0
_HINT = "Run the job by spark-submit --packages io.delta:delta-spark_4.2_2.13:VERSION, whose reader knows all features"


def delta_packages(master: str | None) -> dict[str, str]:
    """Settings that add Delta's jar to a Spark session that this package starts on `master`.

    {} where delta-spark is missing or Maven's repository cannot be reached, because Spark does not start with a package
    that it cannot resolve. {}, too, where Spark is started elsewhere or packages are configured: they are not replaced.
    """
    if _is_configured_elsewhere(master):
        return {}
    try:
        from delta.pip_utils import configure_spark_with_delta_pip

        with socket.create_connection(_MAVEN, timeout=_MAVEN_SECONDS):
            pass
    except (ImportError, OSError):
        return {}
    from pyspark.sql import SparkSession

    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    return {"spark.jars.packages": builder._options["spark.jars.packages"]}


def _is_configured_elsewhere(master: str | None) -> bool:
    if "PYSPARK_GATEWAY_PORT" in os.environ or (master or "").startswith("sc://"):
        return True
    if "--packages" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return True
    home = os.environ.get("SPARK_HOME")
    directory = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    defaults = None if directory is None else Path(directory) / "spark-defaults.conf"
    return defaults is not None and defaults.is_file() and "spark.jars.packages" in defaults.read_text()


def read_delta(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """A Delta table, at its latest version or at the option versionAsOf.

    Without Delta's jar, all other options are storage options in delta-rs's names. Raises InvalidOptionError for more
    than one path, LogDirError for a table that neither reader can read.
    """
    if len(paths) != 1:
        raise InvalidOptionError("A Delta table is read by itself", expected="one --input", found=", ".join(paths))
    try:
        return spark.read.format("delta").options(**options).load(paths[0])
    except _spark_errors() as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
    spark.dataSource.register(DeltaInput)
    version = _open(paths[0], options).version()  # all tasks read the same version
    given = {**options, _VERSION: str(version)}
    return spark.read.format(DeltaInput.name()).options(path=paths[0], given=json.dumps(given)).load()


class DeltaInput(DataSource):
    """Reads a Delta table with deltalake: a task per file of the table, which is read batch by batch."""

    @classmethod
    def name(cls) -> str:
        return "segments-delta-input"

    def schema(self) -> StructType:
        return from_arrow_schema(self._dataset().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"], json.loads(self.options["given"]), schema)

    def _dataset(self) -> Any:
        return _dataset(self.options["path"], json.loads(self.options["given"]))


class _File(InputPartition):
    """The number of a file in the table's version."""


class _Reader(DataSourceReader):
    def __init__(self, path: str, options: Mapping[str, str], schema: StructType) -> None:
        self._path, self._options, self._schema = path, dict(options), schema

    def partitions(self) -> list[InputPartition]:
        return [_File(number) for number, _ in enumerate(_dataset(self._path, self._options).get_fragments())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyarrow.dataset import FileSystemDataset

        dataset = _dataset(self._path, self._options)
        fragments = list(dataset.get_fragments())
        if not fragments:
            return  # Spark asks for one task of a table without files
        one = FileSystemDataset([fragments[partition.value]], dataset.schema, dataset.format, dataset.filesystem)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for batch in one.to_batches():
            yield from pa.Table.from_batches([batch]).select(wanted.names).cast(wanted).to_batches()


def _open(path: str, options: Mapping[str, str]) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    storage = {name: value for name, value in options.items() if name != _VERSION}
    text = options.get(_VERSION)
    if text is not None and not (text.isascii() and text.isdigit()):
        raise InvalidOptionError("The text is no version of a Delta table", expected="a number from 0 on", found=text)
    try:
        return DeltaTable(path, version=None if text is None else int(text), storage_options=storage or None)
    except (DeltaError, OSError, ValueError) as error:
        raise LogDirError(f"The Delta table cannot be read: {_in_one_line(error)}", path=path, hint=_HINT) from error


def _dataset(path: str, options: Mapping[str, str]) -> Any:
    """The table's files as a pyarrow dataset. LogDirError where the table has features that deltalake cannot read."""
    from deltalake.exceptions import DeltaError

    try:
        return _open(path, options).to_pyarrow_dataset()
    except (DeltaError, OSError, ValueError) as error:
        raise LogDirError(f"The Delta table cannot be read: {_in_one_line(error)}", path=path, hint=_HINT) from error


def _spark_errors() -> tuple[type[Exception], ...]:
    """The errors of a Spark session: PySpark's, and py4j's for errors of Java that PySpark does not convert.

    pyspark-client, which knows Spark Connect only, comes without py4j.
    """
    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return (PySparkException,)
    return (PySparkException, Py4JError)


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
