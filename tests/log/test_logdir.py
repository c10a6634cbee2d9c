"""LogDir: topics, appends, reads and offsets as a user meets them, on real files."""

from __future__ import annotations

import dataclasses
import json

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    RecordTooLargeError,
    StorageError,
    TopicExistsError,
    TransactionOrderError,
    UnknownTopicError,
)
from spark_segments.log.marker import MARKER
from spark_segments.maintenance import verify
from verification.world.kafka_bytes import golden_files
from verification.world.manifest_rows import Change
from verification.world.opened import opened
from verification.world.stores.played_log import Play
from verification.world.topics import GOLDEN_MS, records


def read(log: LogDir, topic: str, *names: str, version: int | None = None, **options) -> list[tuple]:
    batches = log.topic(topic, version).scan(columns=list(names), **options).batches()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_an_empty_log_directory_exists_and_has_no_topics(tmp_path):
    LogDir.create(str(tmp_path / "log"))
    assert LogDir.open(str(tmp_path / "log")).topics() == []


def test_creating_a_log_directory_twice_opens_the_first(log):
    log.create_topic("orders")
    assert LogDir.create(log.uri).topics() == ["orders"]


def test_a_location_that_is_no_log_directory_is_refused(tmp_path):
    (tmp_path / "something").mkdir()
    with pytest.raises(LogDirError, match="Not a log directory"):
        LogDir.open(str(tmp_path))


def test_a_location_without_open_or_create_is_an_error_that_names_them(log, tmp_path):
    with pytest.raises(LogDirError, match=r"expected LogDir.open\(uri\) or LogDir.create\(uri\), found"):
        LogDir(str(tmp_path))


def test_a_newer_format_is_refused(log, tmp_path):
    (tmp_path / "log" / MARKER).write_text(json.dumps({"format.version": 99}))
    with pytest.raises(LogDirError, match="newer format"):
        LogDir.open(log.uri)


def test_a_kafka_directory_is_neither_created_in_nor_written_to():
    kafka = str(golden_files.GOLDEN / "broker-data")
    with pytest.raises(LogDirError, match="import"):
        LogDir.create(kafka)
    with pytest.raises(LogDirError, match="read-only"):
        LogDir.open(kafka).topic("orders").append(records(1))


@pytest.mark.parametrize("below", ["orders-0", "_manifest", "_manifest/orders", "deep/down"])
def test_nothing_is_made_or_exported_inside_a_log_directory(log, tmp_path, below):
    log.create_topic("orders")
    place = f"{log.uri}/{below}"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogDirError, match=f"inside a log directory.*{log.uri}"):
        LogDir.create(place)
    with pytest.raises(LogDirError, match="inside a log directory"):
        log.export_kafka(place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_log_directory_is_neither_imported_nor_exported_into(log, tmp_path):
    log.create_topic("orders")
    log.topic("orders").append(records(3))
    other = LogDir.create(str(tmp_path / "other"))
    with pytest.raises(LogDirError, match=f"segments mirror {log.uri} {other.uri}"):
        other.import_kafka(log.uri)
    assert other.topics() == []
    with pytest.raises(LogDirError, match="is a log directory, and none of Kafka's"):
        log.export_kafka(other.uri)


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\tb", "a\x1bb", "a\x7fb", "a%41b"])
def test_a_place_where_no_manifest_could_lie_is_refused_before_anything_is_made(tmp_path, name):
    with pytest.raises(InvalidOptionError, match=r"cannot lie at this path.*use another directory"):
        LogDir.create(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


def test_odd_but_possible_places_hold_a_log(tmp_path):
    for name in (" a b ", "a#b?c", "'\"`$&;", "100%", "ä日\u202e", "*[x]{y}"):
        log = LogDir.create(f"{tmp_path}/{name}")
        log.create_topic("orders")
        log.topic("orders").append(records(2))
        assert LogDir.open(f"{tmp_path}/{name}").topic("orders").offsets() == {0: (0, 2)}


def test_offsets_are_dense_and_returned_inclusive(log):
    log.create_topic("orders", partitions=1)
    assert log.topic("orders").append(records(10)) == {0: (0, 9)}
    assert log.topic("orders").append(records(5, first=10)) == {0: (10, 14)}
    assert log.topic("orders").offsets() == {0: (0, 15)}
    assert read(log, "orders", "offset", "value") == list(enumerate(records(15)["value"].to_pylist()))


def test_a_repeated_transaction_adds_nothing_and_an_older_one_is_an_error(log):
    log.create_topic("orders")
    assert log.topic("orders").append(records(3), txn=("app", 7)) == {0: (0, 2)}
    assert log.topic("orders").append(records(3), txn=("app", 7)) == {}
    with pytest.raises(TransactionOrderError, match="version 7 again, or a later version, found version 6"):
        log.topic("orders").append(records(3), txn=("app", 6))
    assert log.topic("orders").append(records(3), txn=("app", 8)) == {0: (3, 5)}
    assert log.topic("orders").append(records(3), txn=("other", 1)) == {0: (6, 8)}


def test_an_append_of_nothing_adds_nothing(log):
    log.create_topic("orders")
    assert log.topic("orders").append(records(0)) == {}
    assert log.topic("orders").describe()["version"] == 0


def test_same_key_same_partition_and_the_partition_column_wins(log):
    log.create_topic("orders", partitions=5)
    log.topic("orders").append(records(700))
    seen: dict[bytes, set[int]] = {}
    for key, partition in read(log, "orders", "key", "partition"):
        seen.setdefault(key, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in seen.values())
    log.create_topic("chosen", partitions=5)
    assert log.topic("chosen").append(records(4).append_column("partition", pa.array([3, 3, 1, None]))).keys() >= {1, 3}
    with pytest.raises(InvalidOptionError, match="no such partition"):
        log.topic("chosen").append(records(1).append_column("partition", pa.array([5])))


def test_records_without_key_stay_with_a_partition_for_batch_size_bytes(log):
    log.create_topic("orders", partitions=4)
    value = "x" * 1000
    log.topic("orders").append(pa.table({"value": [value] * 2000}))
    ends = [end for _, end in log.topic("orders").offsets().values()]
    assert sum(ends) == 2000
    assert max(ends) - min(ends) <= 132  # 2 MB in turns of 131072 bytes


def test_columns_come_in_the_order_asked_for_and_with_their_types(log):
    log.create_topic("orders")
    headers = pa.array([[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None])
    log.topic("orders").append(pa.table({"value": pa.array([b"v", None]), "headers": headers}))
    (batch,) = log.topic("orders").scan(columns=["headers", "value", "topic", "timestampType", "key"]).batches()
    assert batch.schema.names == ["headers", "value", "topic", "timestampType", "key"]
    assert batch.to_pylist() == [
        {"headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}], "value": b"v", "topic": "orders",
         "timestampType": 0, "key": None},
        {"headers": [], "value": None, "topic": "orders", "timestampType": 0, "key": None},
    ]  # fmt: skip
    with pytest.raises(InvalidOptionError, match="Unknown columns"):
        log.topic("orders").scan(columns=["vlaue"]).batches()


def test_reads_are_clipped_to_what_is_there(log):
    log.create_topic("orders")
    log.topic("orders").append(records(10))
    assert read(log, "orders", "offset", offsets=(7, 99)) == [(7,), (8,), (9,)]
    assert read(log, "orders", "offset", offsets=(3, 5)) == [(3,), (4,)]
    assert read(log, "orders", "offset", offsets=(50, None)) == []
    assert read(log, "orders", "offset", partition=0, offsets=(None, 1)) == [(0,)]
    with pytest.raises(UnknownTopicError):
        log.topic("orders").scan(partition=1).batches()


def test_a_time_is_not_found_in_an_empty_log(log):
    log.create_topic("orders")
    assert log.topic("orders").offsets_for_times(0) == {0: None}
    log.topic("orders").append(records(3))
    assert log.topic("orders").offsets_for_times(0)[0] is not None
    log.topic("orders").delete_records({0: -1})
    assert log.topic("orders").offsets_for_times(0) == {0: None}


def test_a_reader_keeps_the_log_that_it_began_with(log):
    log.create_topic("orders")
    log.topic("orders").append(records(3))
    batches = log.topic("orders").scan(columns=["offset"]).batches()
    log.topic("orders").append(records(3))
    assert sum(batch.num_rows for batch in batches) == 3
    assert len(read(log, "orders", "offset", version=1)) == 3
    assert len(read(log, "orders", "offset")) == 6


def test_missing_and_existing_topics_are_said_to_be(log):
    log.create_topic("orders")
    with pytest.raises(TopicExistsError):
        log.create_topic("orders")
    topic = log.topic("ordres")
    for call in (topic.describe, topic.offsets, lambda: log.delete_topic("ordres"), lambda: topic.config):
        with pytest.raises(UnknownTopicError, match="ordres"):
            call()
    with pytest.raises(UnknownTopicError):
        log.topic("ordres").append(records(1))


def test_a_topic_made_again_is_another_one(log):
    log.create_topic("orders")
    log.topic("orders").append(records(5))
    before = log.topic("orders").describe()["topic_id"]
    log.delete_topic("orders")
    assert log.topics() == []
    log.create_topic("orders", partitions=2)
    assert log.topic("orders").describe()["topic_id"] != before
    assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}
    assert read(log, "orders", "offset") == []


def test_alter_sets_and_takes_away_configuration_and_raises_partitions(log):
    log.create_topic("orders", config={"retention.ms": 1000})
    log.topic("orders").alter(config={"segment.bytes": "1048576", "retention.ms": None}, partitions=3)
    described = log.topic("orders").describe()
    assert described["config"]["segment.bytes"] == "1048576"
    assert described["config"]["retention.ms"] == "604800000"
    assert len(described["partitions"]) == 3
    with pytest.raises(InvalidOptionError, match="only be raised"):
        log.topic("orders").alter(partitions=2)
    with pytest.raises(InvalidOptionError, match=r"retention\.ms"):
        log.topic("orders").alter(config={"retention.m": "1"})


def test_a_record_above_max_message_bytes_is_refused_and_nothing_is_appended(log):
    log.create_topic("orders", config={"max.message.bytes": "1000", "compression.type": "uncompressed"})
    with pytest.raises(RecordTooLargeError):
        log.topic("orders").append(pa.table({"value": ["small", "x" * 5000]}))
    assert log.topic("orders").offsets() == {0: (0, 0)}


def test_log_append_time_is_the_clock_of_the_append(log):
    log.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    log.topic("orders").append(records(3))
    stamped = read(log, "orders", "timestamp", "timestampType")
    assert {kind for _, kind in stamped} == {1}
    assert all(time.timestamp() * 1e6 > 1000 * GOLDEN_MS + 10**12 for time, _ in stamped)


def test_delete_records_moves_the_log_start_only_up(log):
    log.create_topic("orders")
    log.topic("orders").append(records(10))
    assert log.topic("orders").delete_records({0: 4}) == {0: 4}
    assert log.topic("orders").delete_records({0: 2}) == {0: 4}
    assert read(log, "orders", "offset", offsets=(None, 6)) == [(4,), (5,)]
    with pytest.raises(OffsetOutOfRangeError):
        log.topic("orders").delete_records({0: 11})
    assert log.topic("orders").delete_records({0: -1}) == {0: 10}
    assert log.topic("orders").offsets() == {0: (10, 10)}


@pytest.mark.parametrize("policy", ["compact", ""])
def test_delete_records_is_refused_where_the_policy_is_without_delete(log, policy):
    log.create_topic("prices", config={"cleanup.policy": policy})
    log.topic("prices").append(records(10))
    with pytest.raises(PolicyViolationError, match=r"prices.*expected a cleanup.policy with delete") as raised:
        log.topic("prices").delete_records({0: 4})
    assert raised.value.found == (policy or "none")
    assert "compact,delete" in (raised.value.hint or "")
    assert log.topic("prices").offsets() == {0: (0, 10)}
    log.topic("prices").alter({"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    assert log.topic("prices").delete_records({0: 4}) == {0: 4}


def test_delete_records_takes_the_last_stable_offset_along(log):
    """An open transaction holds it; below the log start there is nothing left of that to hold it."""
    log.import_kafka(str(golden_files.golden_dir("txn-0")), config={"cleanup.policy": "delete", "retention.ms": "-1"})
    (topic,) = log.topics()
    end = log.topic(topic).offsets()[0][1]
    held = dataclasses.replace(log.topic(topic).snapshot.partition(0), last_stable_offset=5)
    log.topic(topic).manifest.commit(lambda _: Change("test", partitions=[held]))
    assert log.topic(topic).delete_records({0: 8}) == {0: 8}
    assert log.topic(topic).snapshot.partition(0).last_stable_offset == 8
    assert read(log, topic, "offset", isolation="read_committed") == []
    assert log.topic(topic).delete_records({0: -1}) == {0: end}
    assert log.topic(topic).snapshot.partition(0).last_stable_offset == end
    log.topic(topic).append(records(3))
    assert len(read(log, topic, "offset", isolation="read_committed")) == 3
    assert verify(log, topics=[topic]).errors == 0


def test_what_moves_a_log_start_takes_the_other_offsets_along(log):
    log.create_topic("orders")
    log.topic("orders").append(records(10))
    moved = dataclasses.replace(
        log.topic("orders").snapshot.partition(0), log_start_offset=7, first_dirty_offset=2, last_stable_offset=3
    )
    done = log.topic("orders").manifest.commit(lambda _: Change("test", partitions=[moved]))
    row = log.topic("orders").snapshot.partition(0)
    assert (row.log_start_offset, row.first_dirty_offset, row.last_stable_offset) == (7, 7, 7)
    assert done.bounds() == log.topic("orders").offsets() == {0: (7, 10)}


def test_delete_records_answers_though_the_log_cannot_be_read_any_more(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("orders")
    log.topic("orders").append(records(10))

    def commit_and_go_down(go) -> None:
        go()
        play.always("open", down)

    def down(topic, go):
        raise StorageError("the network is down")

    play.commits(commit_and_go_down)
    assert log.topic("orders").delete_records({0: 4}) == {0: 4}


def test_large_appends_are_cut_into_chunks_of_segment_bytes(log):
    log.create_topic("orders", config={"segment.bytes": "100000", "compression.type": "uncompressed"})
    log.topic("orders").append(pa.table({"value": [b"x" * 900] * 500 + [None] * 10}))
    segments = log.topic("orders").snapshot.live_of(0)
    assert len(segments) == 5
    assert all(segment.log_bytes <= 100_000 for segment in segments)
    assert [segment.base_offset for segment in segments[1:]] == [segment.next_offset for segment in segments[:-1]]
    assert sum(segment.tombstones for segment in segments) == 10
    assert read(log, "orders", "offset") == [(n,) for n in range(510)]
