"""Floats in a table: no engine that goes by the bounds of its files passes over a row with NaN, which all of them order
above every number.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import GreaterThan

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.maintenance import table
from spark_segments.polars import scan_topic
from verification.kills.table_histories import rewrite
from verification.kills.table_rows import iceberg_table, is_iceberg, update

DOUBLES = {"value.format": "double"}
RECORDS = {
    "value.format": "avro",
    "value.schema": '{"type": "record", "name": "r", "fields": [{"name": "x", "type": "double"},'
    ' {"name": "y", "type": {"type": "array", "items": "float"}}, {"name": "z", "type": {"type": "map",'
    ' "values": "double"}}]}',
}
NAN_OFFSET = 1
KINDS = {"plain": {}, "latest": {"view": "latest"}, "by day": {"partition_by": "day"}}


@pytest.fixture(params=["delta", "iceberg"])
def uri(tmp_path, request):
    return str(tmp_path / request.param / "table")


def double(number: float) -> bytes:
    return struct.pack(">d", number)


def record(number: float) -> bytes:
    """The number as Avro's record of RECORDS, in each of its fields."""
    x = struct.pack("<d", number)
    y = b"\x02" + struct.pack("<f", number) + b"\0"  # one element, and the end
    z = b"\x02\x02k" + struct.pack("<d", number) + b"\0"
    return x + y + z


def with_numbers(log: LogDir, value, numbers=(1.0, math.nan, 2.0)) -> LogDir:
    """The log directory with a topic of a value for each number, with a key for each."""
    log.create_topic("orders")
    for number in numbers:
        log.topic("orders").append([{"key": str(number).encode(), "value": value(number)}])
    return log


def answers(log: LogDir, formats, column: str, view: str | None = None, *, tables: bool) -> list:
    """Offsets by conditions of DuckDB and of Polars that NaN fulfils, and the greatest value by both."""
    name = "orders" if view is None else f"orders${view}"
    results = []
    with TopicDatabase(log, formats=formats, tables=tables) as database:
        for condition in (f"{column} > 5", f"{column} = 'nan'::DOUBLE", f"NOT {column} <= 2", f"{column} <> 1"):
            query = f'SELECT "offset" FROM "{name}" WHERE {condition} ORDER BY ALL'
            results.append([offset for (offset,) in database.sql(query).fetchall()])
        results += database.sql(f'SELECT max({column}) FROM "{name}"').fetchone()
    field = pl.col("value").struct.field("x") if "." in column else pl.col("value")
    frame = scan_topic(log.uri, "orders", formats=formats, view=view, tables=tables)
    for rows in (field > 5, field == math.nan, ~(field <= 2), field != 1):
        results.append(frame.filter(rows).select("offset").sort("offset").collect()["offset"].to_list())
    results.append(frame.select(field.nan_max()).collect().item())
    return results


def expected(next_offset: int = 3) -> list:
    found = [[NAN_OFFSET], [NAN_OFFSET], [NAN_OFFSET], [NAN_OFFSET, 2], math.nan]
    return [*found, *found]


def same(first, second) -> bool:
    return repr(first) == repr(second)  # nan is no nan to Python


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("formats", "value", "column"), [(DOUBLES, double, "value"), (RECORDS, record, "value.x")], ids=["double", "struct"]
)
def test_conditions_find_nan_in_a_table(log, uri, kind, formats, value, column):
    view = KINDS[kind].get("view")
    for number, content in enumerate((1.0, math.nan, 2.0)):
        if number == 0:
            with_numbers(log, value, [content])
        else:
            log.topic("orders").append([{"key": b"%d" % number, "value": value(content)}])
        update(log, uri, formats=formats, **KINDS[kind])
    assert same(answers(log, formats, column, view, tables=False), expected())
    assert same(answers(log, formats, column, view, tables=True), expected())
    assert reads_table(log, formats)[view]
    if not is_iceberg(uri):
        assert update(log, uri, optimize_from=2)["files_joined"] == 3
        assert same(answers(log, formats, column, view, tables=True), expected())
        assert reads_table(log, formats)[view]
    log.topic("orders").append([{"key": b"t", "value": value(1.0)}])
    log.topic("orders").append([{"key": b"t", "value": value(1.0)}])
    assert same(answers(log, formats, column, view, tables=True), expected())


def reads_table(log: LogDir, formats) -> dict[str | None, bool]:
    """{view: whether DuckDB reads the files of a table}"""
    reads = {}
    for view, name in ((None, "orders"), ("latest", "orders$latest")):
        with TopicDatabase(log, formats=formats) as database:
            reads[view] = "READ_PARQUET" in str(database.sql(f'EXPLAIN SELECT * FROM "{name}"').fetchall())
    return reads


def bounded(file: str | Path) -> dict[str, bool]:
    """{column of a Parquet file, however deep: whether it has bounds, of groups of rows or of pages}"""
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.is_stats_set or column.has_column_index for column in columns}


def test_floats_alone_have_no_bounds(log, uri):
    with_numbers(log, record)
    update(log, uri, formats=RECORDS)
    update(log, uri, optimize_from=1) if not is_iceberg(uri) else None
    (file,) = Path(uri).rglob("rows-*.parquet")
    has_bounds = bounded(file)
    assert {path for path, has in has_bounds.items() if not has} == {
        "value.x",
        "value.y.list.element",
        "value.z.key_value.value",
    }
    assert has_bounds["offset"] and has_bounds["value.z.key_value.key"]


def test_readers_of_the_table_itself_find_nan(log, uri):
    with_numbers(log, double)
    update(log, uri, formats=DOUBLES)
    if is_iceberg(uri):
        rows = iceberg_table(uri).scan().to_arrow()
        assert rows.num_rows == 3
        files = [task.file for task in iceberg_table(uri).scan(GreaterThan("value", 5.0)).plan_files()]
        assert len(files) == 1
        return
    rows = pl.scan_delta(uri).filter(pl.col("value") > 5).select("offset").collect()
    assert rows["offset"].to_list() == [NAN_OFFSET]
    actions = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    assert actions["min.value"].to_pylist() == actions["max.value"].to_pylist() == [None]


def test_files_of_other_programs_are_not_read_for_floats_until_they_are_written_again(log, uri, caplog):
    with_numbers(log, double, [1.0])
    update(log, uri, formats=DOUBLES)
    log.topic("orders").append([{"key": b"b", "value": double(math.nan)}])
    update(log, uri)
    log.topic("orders").append([{"key": b"c", "value": double(2.0)}])
    update(log, uri)
    rewrite(uri) if is_iceberg(uri) else DeltaTable(uri).optimize.compact()
    assert not reads_table(log, DOUBLES)[None]
    assert any(re.search("read by its log alone.*NaN.*--optimize", message) for message in caplog.messages)
    assert same(answers(log, DOUBLES, "value", tables=True), expected())
    if not is_iceberg(uri):
        assert update(log, uri, optimize_from=99)["files_joined"] == 1
        assert reads_table(log, DOUBLES)[None]
        assert same(answers(log, DOUBLES, "value", tables=True), expected())
        assert update(log, uri, optimize_from=2).get("files_joined") is None


def test_files_of_other_programs_are_read_where_a_topic_has_no_floats(log, tmp_path):
    uri = str(tmp_path / "table")
    with_numbers(log, double)
    update(log, uri)
    log.topic("orders").append([{"key": b"d", "value": double(3.0)}])
    update(log, uri)
    DeltaTable(uri).optimize.compact()
    assert reads_table(log, None)[None]


def test_small_files_of_which_one_is_gone_stay_and_the_run_warns(log, tmp_path):
    uri = str(tmp_path / "table")
    with_numbers(log, double, [1.0, 2.0])
    update(log, uri)
    log.topic("orders").append([{"key": b"c", "value": double(3.0)}])
    update(log, uri)
    next(Path(uri).glob("rows-*.parquet")).unlink()
    report = table(log, topics=["orders"], table_uri=uri, optimize_from=2)
    assert report.failed == [] and any("cannot be read" in warning for warning in report.warnings)
    assert len(DeltaTable(uri).file_uris()) == 2
