"""Option keys of the Spark reader: the rows are those that a filter of a full read leaves."""

from __future__ import annotations

import base64
import json
import shutil

import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.job import index
from spark_segments.spark.options import read_options, stream_options
from verification.world.kafka_bytes.golden_files import golden_dir

COLUMNS = ["topic", "partition", "offset", "key", "value"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Topics with an index, with a part of one, and without; one of Kafka's transactions; one of typed keys."""
    log = LogDir.create(str(tmp_path_factory.mktemp("keys")))
    log.import_kafka(str(golden_dir("txn-0")), "txn")
    for name in ("indexed", "stale", "bare"):
        log.create_topic(name, 3)
        for number in range(3):
            keys = [None if row == 7 else "" if row == 8 else f"k{row % 5}" for row in range(40)]
            log.topic(name).append([{"key": key, "value": f"{number} {row}"} for row, key in enumerate(keys)])
    log.create_topic("typed", 2)
    log.topic("typed").append([{"key": row % 5, "value": "v"} for row in range(20)], formats={"key.format": "long"})
    index(log, topics=["indexed", "stale", "txn", "typed"])
    log.topic("stale").append([{"key": "k1", "value": "later", "partition": number} for number in range(3)])
    return log


def rows(frame):
    table = frame.select(COLUMNS).toArrow().sort_by([(name, "ascending") for name in COLUMNS[:3]])
    return [tuple(row.values()) for row in table.to_pylist()]


def option(keys):
    texts = [key if isinstance(key, str) else {"base64": base64.b64encode(key).decode()} for key in keys]
    return json.dumps(texts)


@pytest.mark.parametrize("view", [{}, {"view": "latest"}])
def test_the_records_of_keys_are_those_of_a_filter(spark, log, view):
    reader = spark.read.format("segments").options(subscribe="indexed,stale,bare", **view)
    everything = rows(reader.load(log.uri))
    for keys in (["k2", b"k3", "k2", "", "none"], []):
        stored = [key.encode() if isinstance(key, str) else key for key in keys]
        expected = [row for row in everything if row[3] in stored]
        assert rows(reader.option("keys", option(keys)).load(log.uri)) == expected


def test_keys_go_with_offsets_transactions_and_tasks(spark, log):
    reader = spark.read.format("segments").options(subscribe="txn", minPartitions="4")
    for level in ("read_uncommitted", "read_committed"):
        everything = rows(reader.option("isolation.level", level).load(log.uri))
        key = next(row[3] for row in everything if row[3] is not None)
        found = rows(reader.options(**{"isolation.level": level, "keys": option([bytes(key)])}).load(log.uri))
        assert found == [row for row in everything if row[3] == key] != []
    ends = json.dumps({"bare": {"0": 20, "1": 20, "2": 20}})
    reader = spark.read.format("segments").options(subscribe="bare", endingOffsets=ends)
    expected = [row for row in rows(reader.load(log.uri)) if row[3] == b"k1"]
    assert rows(reader.option("keys", option(["k1"])).load(log.uri)) == expected


def test_typed_keys_are_values_of_their_format(spark, log):
    reader = spark.read.format("segments").options(subscribe="typed", **{"key.format": "long", "keys": '[3, "4"]'})
    assert sorted(row.key for row in reader.load(log.uri).select("key").collect()) == [3] * 4 + [4] * 4


def test_executors_build_the_bytes_that_one_process_builds(spark, tmp_path, limits):
    limits(INDEX_RANGE_RECORDS=100, MOST_MERGED_RUNS=2)
    log = LogDir.create(str(tmp_path / "process"))
    log.create_topic("t", 2)
    for number in range(3):
        log.topic("t").append([{"key": f"k{row % 90}", "value": f"{number} {row}"} for row in range(300)])
    shutil.copytree(tmp_path / "process", tmp_path / "executors")
    by_executors = LogDir.open(str(tmp_path / "executors"))
    assert index(log).ok and index(by_executors, spark=spark).ok
    assert index(log).details == index(by_executors).details
    runs = {place: runs_of(tmp_path / place) for place in ("process", "executors")}
    assert runs["process"] == runs["executors"]
    assert len(runs["process"]) > 2


def runs_of(path):
    """{a run's partition and offsets: its bytes, and whether they are in the index}; the rest of its name is random."""
    listed = {run.path for run in IndexFiles(LogDir.open(str(path)).storage, "t").newest_list().runs}
    files = path.glob("_keys/t/key/runs/*.run")
    return {file.name.partition(".")[0]: (file.read_bytes(), str(file.relative_to(path)) in listed) for file in files}


def test_a_stream_of_keys_is_refused():
    options = {"path": "log", "subscribe": "t", "keys": '["a"]'}
    with pytest.raises(InvalidOptionError, match="keys is not valid in streams"):
        stream_options(options)
    with pytest.raises(InvalidOptionError, match="Option keys cannot be used"):
        read_options(options | {"keys": "[null]"})
