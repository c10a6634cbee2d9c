"""Streaming queries that write topics, run by Spark: restarts, output modes, progress, and what reaches the user."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from verification.world.topics import texts

FILES = 3


@pytest.fixture
def lines(tmp_path):
    """A directory of text files, of which a stream takes a file a batch."""
    directory = tmp_path / "lines"
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number}.txt").write_text(f"{number}-a\n{number}-b\n")
    return directory


@pytest.fixture
def t(log):
    log.create_topic("t")
    return log


def start(spark, lines, log, *, checkpoint, mode="append", frame=None, **options):
    frame = spark.readStream.option("maxFilesPerTrigger", "1").text(str(lines)) if frame is None else frame
    writer = frame.writeStream.format("segments").options(topic="t", checkpointLocation=str(checkpoint), **options)
    return writer.outputMode(mode).trigger(availableNow=True).start(log.uri)


def run(*arguments, **options):
    query = start(*arguments, **options)
    query.awaitTermination()
    return query


ALL = [f"{number}-{letter}" for number in range(FILES) for letter in "ab"]


def test_a_restarted_query_replays_its_last_batch_and_adds_nothing(spark, lines, t, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    query = run(spark, lines, t, checkpoint=checkpoint)
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress] == [2] * FILES
    assert sorted(texts(t, "t")) == ALL
    assert [batch["operation"] for batch in t.topic("t").manifest.history()[1:]] == ["append"] * FILES
    # As after a crash between the commit to the topic and the note of the batch in the checkpoint.
    for path in (checkpoint / "commits").glob(f"*{FILES - 1}*"):
        path.unlink()
    version = t.topic("t").snapshot.version
    (lines / "3.txt").write_text("3-a\n")
    run(spark, lines, t, checkpoint=checkpoint)
    assert (sorted(texts(t, "t")), t.topic("t").snapshot.version) == ([*ALL, "3-a"], version + 1)


def test_an_old_checkpoint_and_asynchronous_progress_are_refused(spark, lines, t, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    run(spark, lines, t, checkpoint=checkpoint)
    for kept in ("commits", "offsets"):
        for path in (checkpoint / kept).iterdir():
            if not path.name.strip(".").startswith("0"):
                path.unlink()
    with pytest.raises(StreamingQueryException, match=r"TransactionOrderError.*Batch 1 .*old checkpoint"):
        run(spark, lines, t, checkpoint=checkpoint)
    with pytest.raises((PySparkException, StreamingQueryException), match=r"(?i)async"):
        run(spark, lines, t, checkpoint=tmp_path / "other", asyncProgressTrackingEnabled="true")
    assert sorted(texts(t, "t")) == ALL


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("mode", "why"), [("complete", "output mode complete"), ("update", "does not support Update mode")]
)
def test_other_output_modes_are_refused(spark, lines, t, tmp_path, mode, why):
    counts = spark.readStream.text(str(lines)).groupBy("value").count().selectExpr("value", "string(count) as key")
    with pytest.raises(StreamingQueryException, match=why):
        run(spark, lines, t, checkpoint=tmp_path / "checkpoint", mode=mode, frame=counts)
    assert sorted(texts(t, "t")) == []


@pytest.mark.proof
def test_an_update_is_written_batch_by_batch_in_foreach_batch(spark, lines, t, tmp_path):
    def write(frame, number):
        options = {"topic": "t", "txnAppId": "counts of lines", "txnVersion": str(number)}
        frame.write.format("segments").mode("append").options(**options).save(t.uri)

    def count():
        source = spark.readStream.option("maxFilesPerTrigger", "1").text(str(lines))
        counts = source.groupBy("value").count().selectExpr("value as key", "string(count) as value")
        query = counts.writeStream.outputMode("update").foreachBatch(write)
        checkpoint = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        checkpoint.start().awaitTermination()

    count()
    for path in (tmp_path / "checkpoint" / "commits").glob(f"*{FILES - 1}*"):
        path.unlink()
    count()
    assert sorted(texts(t, "t")) == ["1"] * len(ALL)
