"""Jobs send OpenLineage events, which its own client reads and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError
from spark_segments.lineage import datasets
from spark_segments.maintenance import compact, roll, table


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"cleanup.policy": "compact"})
    log.topic("orders").append([{"key": b"a", "value": b"1"}, {"key": b"a", "value": b"2"}])
    return log


@pytest.fixture
def events(tmp_path, monkeypatch):
    """Events go to a file; called, it returns them."""
    path = tmp_path / "lineage.jsonl"
    settings = {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def names(of: list[dict]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in of]


def test_a_table_is_a_run_with_its_topic_and_its_offsets(log, tmp_path, events):
    table(log, topics=["orders"], table_uri=str(tmp_path / "table"))
    start, complete = events()
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["name"] == f"table segments://{tmp_path}/log"
    assert names(complete["inputs"]) == [(f"segments://{tmp_path}/log", "orders")]
    assert names(complete["outputs"]) == [("file", f"{tmp_path}/table")]
    (output,) = complete["outputs"]
    assert output["facets"]["segments_offsets"]["partitions"] == [{"partition": 0, "start": 0, "end": 2}]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_an_error_is_a_failed_run_and_a_dry_run_is_none(log, tmp_path, events):
    roll(log, dry_run=True)
    assert events() == []
    with pytest.raises(UnknownTopicError) as raised:
        compact(log, topics=["nope"])
    assert [event["eventType"] for event in events()] == ["START", "FAIL"]
    assert events()[1]["run"]["facets"]["errorMessage"]["message"] == str(raised.value)


@pytest.mark.parametrize(
    "settings", [{"TYPE": "http", "URL": "http://127.0.0.1:1", "RETRY": '{"total": 0}'}, {"TYPE": "no such transport"}]
)
def test_a_backend_that_does_not_answer_and_a_wrong_configuration_are_warnings(log, monkeypatch, caplog, settings):
    for name, value in settings.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    (line,) = roll(log, now_ms=log.storage.now_ms() + 8 * 86_400_000).partitions
    assert line["records_out"] == 2 and "No lineage of roll" in caplog.text


@pytest.mark.parametrize(
    ("job", "log_dir", "other", "inputs", "outputs"),
    [
        ("capture", "s3://b/log", "k:9092,l:9092", [("kafka://k:9092", "t")], [("segments://b/log", "t")]),
        ("replay", "/log/", "k:9092", [("segments:///log", "t")], [("kafka://k:9092", "t")]),
        ("mirror", "/log", "s3://b/leader", [("segments://b/leader", "t")], [("segments:///log", "t")]),
        ("import", "/log", "s3://b/kafka/", [("s3://b", "kafka")], [("segments:///log", "t")]),
        ("table", "/log", "gs://b/x/{topic}", [("segments:///log", "t")], [("gs://b", "x/t")]),
        ("verify", "file:///log", "", [("segments:///log", "t")], []),
    ],
)
def test_datasets_have_the_names_of_their_kind(job, log_dir, other, inputs, outputs):
    found = datasets(job, log_dir, other, [{"topic": "t"}])
    assert tuple([(dataset.namespace, dataset.name) for dataset in side] for side in found) == (inputs, outputs)


def test_a_promotion_reads_the_former_leader_that_its_report_names():
    inputs, outputs = datasets("promote", "/log", "", [{"topic": "t", "former_uri": "s3://b/former"}])
    assert [(dataset.namespace, dataset.name) for dataset in inputs + outputs] == [
        ("segments://b/former", "t"),
        ("segments:///log", "t"),
    ]


@pytest.mark.spark
@pytest.mark.proof
def test_a_write_of_spark_and_a_batch_of_a_stream_are_runs(log, tmp_path, events, python_environment):
    script = f"""
from spark_segments import spark_session
spark = spark_session()
path = {str(tmp_path / "log")!r}
spark.range(3).selectExpr("string(id) AS key", "string(id) AS value").write.format("segments").mode("append").option(
    "topic", "orders").save(path)
options = {{"subscribe": "orders", "startingOffsets": "earliest"}}
rows = spark.readStream.format("segments").options(**options).load(path)
query = rows.select("key", "value").writeStream.format("segments").option("topic", "copy").option(
    "checkpointLocation", {str(tmp_path / "checkpoint")!r}).trigger(availableNow=True).start(path)
query.awaitTermination()
"""
    log.create_topic("copy")
    subprocess.run([sys.executable, "-c", script], env=python_environment, cwd=Path(tmp_path), check=True)
    done = [event for event in events() if event["eventType"] == "COMPLETE"]
    assert [event["job"]["name"].split()[0::2] for event in done] == [["append", "orders"], ["append", "copy"]]
    ranges = [event["outputs"][0]["facets"]["segments_offsets"]["partitions"] for event in done]
    assert ranges == [[{"partition": 0, "start": 2, "end": 5}], [{"partition": 0, "start": 0, "end": 5}]]
