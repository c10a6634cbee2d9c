"""Each topic takes each batch of a streaming query once: repeats, lost replies, second drivers, old checkpoints."""

from __future__ import annotations

import functools

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_segments.errors import CommitConflictError, InvalidOptionError, SegmentsError, TransactionOrderError
from spark_segments.log.appending.append import commit_chunks
from spark_segments.spark.source import Source
from tests.spark import in_process
from tests.spark.streams import batches
from verification.world import topics
from verification.world.topics import texts

rows = functools.partial(topics.rows, partitions=[0])
TO_T = {"topic": "t"}


def files(log):
    """The files of the log: not the manifest, nor the notes of its commits."""
    found = [info.path for info in log.storage.list(recursive=True)]
    return [path for path in found if not path.startswith(("_manifest/", "_recovery/"))]


@pytest.fixture
def t(log):
    for topic in ("t", "u"):
        log.create_topic(topic, partitions=2)
    return log


def test_batches_are_appended_in_the_order_of_tasks(t):
    batches.run(t.uri, TO_T, [rows("a", "b"), rows("c")], batch=0)
    batches.run(t.uri, TO_T, [rows("d")], batch=1)
    assert texts(t, "t") == ["a", "b", "c", "d"]


def test_a_repeat_is_found_before_anything_is_encoded(t):
    batches.run(t.uri, TO_T, [rows("a")], batch=0)
    there, version = files(t), t.topic("t").snapshot.version
    messages = batches.write(t.uri, TO_T, [rows("a")], "q1", 0)
    batches.commit(t.uri, TO_T, [rows("a")], messages, 0)
    assert files(t) == there
    assert (texts(t, "t"), t.topic("t").snapshot.version) == (["a"], version)


def test_a_typed_value_of_a_repeat_is_not_encoded_either(t):
    options = TO_T | {"value.format": "json"}
    typed = pa.table({"key": ["k"], "value": pa.array([{"id": 1}])})
    batches.run(t.uri, options, [typed], batch=0)
    assert texts(t, "t") == ['{"id":1}']
    there = files(t)
    batches.run(t.uri, options, [typed], batch=0)
    assert files(t) == there


def test_every_batch_of_spark_is_taken_although_it_is_a_repeat(t):
    """A writer that leaves rows in the pipe ends its Python worker."""
    batches.run(t.uri, TO_T, [rows("a")], batch=0)
    taken = []

    def watched():
        for batch in [*rows("a").to_batches(), *rows("b").to_batches()]:
            taken.append(batch.num_rows)
            yield batch

    writer = Source({"path": t.uri, "topic": "t"}).stream_writer(
        StructType([StructField("value", StringType())]), overwrite=False
    )
    with batches.task_of({batches.QUERY_ID: "q1", batches.BATCH_ID: "0"}):
        message = writer.write(watched())
    assert taken == [1, 1]
    assert (message.chunks, message.repeated) == ((), ("t",))


def test_a_batch_below_the_last_comes_from_an_old_checkpoint(t):
    for batch in range(3):
        batches.run(t.uri, TO_T, [rows(str(batch))], batch=batch)
    there = files(t)
    with pytest.raises(TransactionOrderError, match=r"Batch 1 of the streaming query q1.*old checkpoint"):
        batches.run(t.uri, TO_T, [rows("1")], batch=1)
    assert (texts(t, "t"), files(t)) == (["0", "1", "2"], there)


def test_a_query_whose_checkpoint_was_deleted_is_a_new_query(t):
    batches.run(t.uri, TO_T, [rows("a")], query="q1", batch=0)
    batches.run(t.uri, TO_T, [rows("a")], query="q2", batch=0)
    assert texts(t, "t") == ["a", "a"]


def test_a_driver_taken_for_dead_commits_nothing_after_its_successor(t):
    """The second commit of the same batch adds nothing, and the commit of an earlier batch is refused."""
    mine = batches.write(t.uri, TO_T, [rows("a")], "q1", 0)
    batches.run(t.uri, TO_T, [rows("a")], batch=0)
    batches.commit(t.uri, TO_T, [rows("a")], mine, 0)
    assert texts(t, "t") == ["a"]
    late = batches.write(t.uri, TO_T, [rows("b")], "q1", 1)
    batches.run(t.uri, TO_T, [rows("b")], batch=1)
    batches.run(t.uri, TO_T, [rows("c")], batch=2)
    with pytest.raises(TransactionOrderError, match="Batch 1"):
        batches.commit(t.uri, TO_T, [rows("b")], late, 1)
    assert texts(t, "t") == ["a", "b", "c"]


def test_tasks_that_ran_before_and_after_the_other_drivers_commit_add_nothing(t):
    early = batches.write(t.uri, TO_T, [rows("a")], "q1", 0)
    batches.run(t.uri, TO_T, [rows("a"), rows("b")], batch=0)
    late = batches.write(t.uri, TO_T, [rows("b")], "q1", 0)
    batches.commit(t.uri, TO_T, [rows("a")], [*early, *late], 0)
    assert texts(t, "t") == ["a", "b"]


def test_of_several_topics_each_takes_the_batch_once(t):
    tasks = [rows("a", "b", topic=["t", "u"])]
    messages = batches.write(t.uri, {}, tasks, "q1", 0)
    commit_chunks(t, "t", [chunks for chunks in messages[0].chunks if chunks.topic == "t"], messages[0].txn)
    assert (texts(t, "t"), texts(t, "u")) == (["a"], [])  # the driver died between two commits
    there = files(t)
    batches.run(t.uri, {}, tasks, batch=0)
    assert (texts(t, "t"), texts(t, "u")) == (["a"], ["b"])
    assert all("/" not in path or path.startswith("u-") for path in set(files(t)) - set(there))
    batches.run(t.uri, {}, [rows("c", "d", topic=["u", "u"])], batch=1)
    batches.run(t.uri, {}, [rows("e", "f", topic=["t", "u"])], batch=2)
    assert (texts(t, "t"), texts(t, "u")) == (["a", "e"], ["b", "c", "d", "f"])


def test_a_topic_made_anew_between_tasks_and_commit_fails_the_batch(t):
    batches.run(t.uri, TO_T, [rows("a")], batch=0)
    repeated = batches.write(t.uri, TO_T, [rows("a")], "q1", 0)
    t.delete_topic("t")
    t.create_topic("t", partitions=2)
    with pytest.raises(CommitConflictError, match=r"held the transaction.*made again"):
        batches.commit(t.uri, TO_T, [rows("a")], repeated, 0)
    batches.run(t.uri, TO_T, [rows("a")], batch=0)
    assert texts(t, "t") == ["a"]


def test_a_batch_without_rows_leaves_nothing_behind(t):
    version = t.topic("t").snapshot.version
    batches.run(t.uri, TO_T, [rows("a").slice(0, 0)], batch=0)
    assert (t.topic("t").snapshot.version, files(t)) == (version, [])


def test_the_commit_of_another_batch_is_refused(t):
    messages = batches.write(t.uri, TO_T, [rows("a")], "q1", 0)
    with pytest.raises(SegmentsError, match=r"several batches.*expected batch 1"):
        batches.commit(t.uri, TO_T, [rows("a")], messages, 1)
    assert texts(t, "t") == []


def test_output_mode_complete_and_a_transaction_of_the_user_are_refused(t):
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(InvalidOptionError, match=r"output mode complete.*foreachBatch"):
        Source({"path": t.uri, "topic": "t"}).stream_writer(schema, overwrite=True)
    with pytest.raises(InvalidOptionError, match=r"appendOnce, txnAppId and txnVersion.*foreachBatch"):
        given = {"path": t.uri, "topic": "t", "txnAppId": "copy", "txnVersion": "1"}
        Source(given).stream_writer(schema, overwrite=False)


def test_a_server_that_names_no_query_is_refused_before_anything_is_written(t):
    writer = Source({"path": t.uri, "topic": "t"}).stream_writer(
        StructType([StructField("value", StringType())]), overwrite=False
    )
    with pytest.raises(SegmentsError, match=r"exactly once.*foreachBatch"):
        writer.write(iter(rows("a").to_batches()))
    assert files(t) == []


def test_asynchronous_progress_is_refused(t):
    """With it a restarted query may give the id of a batch to other rows."""
    given = {"path": t.uri, "topic": "t", "asyncprogresstrackingenabled": "true"}
    with pytest.raises(InvalidOptionError, match="asyncProgressTrackingEnabled"):
        Source(given).stream_writer(StructType([StructField("value", StringType())]), overwrite=False)


def test_a_repeated_write_of_foreach_batch_encodes_nothing(t):
    options = TO_T | {"txnAppId": "copy", "txnVersion": "3"}
    with batches.task_of({batches.QUERY_ID: "q1"}):
        in_process.save(t.uri, options, [rows("a")])
        there = files(t)
        in_process.save(t.uri, options, [rows("a")])
    assert (texts(t, "t"), files(t)) == (["a"], there)


def test_foreach_batch_of_another_query_under_the_same_application_is_an_error(t):
    """A query whose checkpoint was deleted counts from 0 again: to skip its batches would lose their rows."""
    options = TO_T | {"txnAppId": "copy"}
    for query, batch in (("q1", 0), ("q1", 1)):
        with batches.task_of({batches.QUERY_ID: query}):
            in_process.save(t.uri, options | {"txnVersion": str(batch)}, [rows(f"{query} {batch}")])
    there = files(t)
    for batch in (0, 1):
        with (
            batches.task_of({batches.QUERY_ID: "q2"}),
            pytest.raises(TransactionOrderError, match=r"copy in topic t.*another streaming query.*txnAppId"),
        ):
            in_process.save(t.uri, options | {"txnVersion": str(batch)}, [rows("lost")])
    assert (texts(t, "t"), files(t)) == (["q1 0", "q1 1"], there)


def test_a_write_of_several_topics_with_a_key_goes_into_each_once(t, caplog):
    written = [rows("a", "b", topic=["t", "u"]), rows("c", topic=["t"])]
    for day in (2, 1, 2, 1):
        in_process.save(t.uri, {"appendOnce": f"landing/{day}"}, written)
    assert (texts(t, "t"), texts(t, "u")) == (["a", "c", "a", "c"], ["b", "b"])
    assert [record.message for record in caplog.records] == [
        f"Nothing appended: {topic} has idempotency key landing/{day} already" for day in (2, 1) for topic in "tu"
    ]


def test_of_a_write_that_reached_one_topic_the_other_topic_takes_the_repeat(t):
    t.topic("t").append(rows("a"), once="landing/1")
    in_process.save(t.uri, {"appendOnce": "landing/1"}, [rows("a", "b", topic=["t", "u"])])
    assert (texts(t, "t"), texts(t, "u")) == (["a"], ["b"])


def test_two_writes_at_once_with_a_key_are_added_once(t):
    """Both tasks have written before either commits."""
    options = TO_T | {"appendOnce": "landing/1"}
    schema = StructType([StructField("value", StringType())])
    writers = [Source({"path": t.uri} | options).writer(schema, overwrite=False) for _ in range(2)]
    messages = [[writer.write(iter(pa.table({"value": ["a"]}).to_batches()))] for writer in writers]
    for writer, written in zip(writers, messages, strict=True):
        writer.commit(written)
    assert texts(t, "t") == ["a"]


def test_a_key_in_foreach_batch_is_one_whichever_query_sends_it(t):
    for query in ("q1", "q2"):
        with batches.task_of({batches.QUERY_ID: query}):
            in_process.save(t.uri, TO_T | {"appendOnce": "landing/1"}, [rows("a")])
    assert texts(t, "t") == ["a"]


def test_a_version_below_the_last_of_a_write_is_an_error(t):
    in_process.save(t.uri, TO_T | {"txnAppId": "landing", "txnVersion": "2"}, [rows("a")])
    there = files(t)
    with pytest.raises(
        TransactionOrderError, match=r"version 2 again, or a later version, found version 1.*appendOnce"
    ):
        in_process.save(t.uri, TO_T | {"txnAppId": "landing", "txnVersion": "1"}, [rows("b")])
    assert (texts(t, "t"), files(t)) == (["a"], there)


@pytest.mark.parametrize("also", [{"txnAppId": "landing", "txnVersion": "1"}, {"appendOnce": ""}])
def test_a_key_that_is_none_or_beside_a_transaction_is_refused(t, also):
    with pytest.raises(InvalidOptionError, match=r"appendOnce|idempotency key"):
        in_process.save(t.uri, TO_T | {"appendOnce": "landing/1"} | also, [rows("a")])


def test_a_stream_cannot_pass_for_a_foreach_batch(t):
    """A stream's application is its query id: whatever else is written, its batches are its own."""
    with batches.task_of({batches.QUERY_ID: "q1"}):
        in_process.save(t.uri, TO_T | {"txnAppId": "copy", "txnVersion": "7"}, [rows("a")])
    batches.run(t.uri, TO_T, [rows("b")], query="q1", batch=0)
    assert texts(t, "t") == ["a", "b"]
