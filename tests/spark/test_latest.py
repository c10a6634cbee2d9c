"""Option view=latest of the Spark reader."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_segments import LogDir
from tests.log.test_latest import COLUMNS, Histories, newest


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Twenty partitions with clean tails and dirty heads of all sizes."""
    log = LogDir.create(str(tmp_path_factory.mktemp("latest") / "log"))
    histories = Histories(log, "orders", 11, partitions=20)
    histories.run(steps=8)
    return histories


@pytest.fixture
def load(spark, histories):
    def load(**options):
        reader = spark.read.format("segments").options(subscribe="orders", view="latest", **options)
        return reader.load(histories.log.uri)

    return load


def rows(frame):
    table = frame.select(COLUMNS).toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def test_the_frame_is_the_newest_record_of_each_key(load, histories):
    assert rows(load()) == newest(histories.appended)


def test_tombstones_are_left_out_on_request(load, histories):
    alive = [record for record in newest(histories.appended) if record[3] is not None]
    assert rows(load(includeTombstones="false")) == alive != newest(histories.appended)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "split", [{"minPartitions": "60"}, {"maxRecordsPerPartition": "7"}, {"maxPartitionBytes": "100"}]
)
def test_it_is_the_same_however_it_is_split(load, histories, split):
    frame = load(**split)
    assert frame.rdd.getNumPartitions() > load().rdd.getNumPartitions() or "maxPartitionBytes" in split
    assert rows(frame) == newest(histories.appended)


def test_a_schema_is_a_projection_of_it(spark, histories):
    reader = spark.read.format("segments").schema("value binary").options(subscribe="orders", view="latest")
    values = [row.value for row in reader.option("includeTombstones", "false").load(histories.log.uri).collect()]
    expected = [record[3] for record in newest(histories.appended) if record[3] is not None]
    assert sorted(map(bytes, values)) == sorted(expected)


def test_a_range_is_reduced_to_its_own_newest_records(load, histories):
    ends = {"orders": {str(number): min(9, end) for number, end in enumerate(histories.ends)}}
    frame = load(endingOffsets=json.dumps(ends))
    plain = histories.log.topic("orders").scan(offsets=(None, 9), columns=COLUMNS).batches()
    table = pa.Table.from_batches(plain)
    inside = list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
    assert rows(frame) == newest(inside)
