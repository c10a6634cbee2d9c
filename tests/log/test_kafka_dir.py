"""Directories that Kafka wrote, whole: every golden directory reads as Kafka's own reader says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, UnknownTopicError
from spark_segments.kafka.directory import is_kafka_directory
from spark_segments.kafka.listing import base_offset
from spark_segments.storage import Storage
from tests.log.golden_reads import as_records, records_of, tree
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    GOLDEN,
    LEGACY_DIRECTORIES,
    expected_batches,
    expected_records,
    golden_dir,
    queries,
    text,
)

LIVE_DIRECTORIES = ["live-0"]
DIRECTORIES = [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES, *LIVE_DIRECTORIES]
TIERED = GOLDEN / "tiered" / "kafka-tiered-storage"
ORDERS_LOG_START = 500  # broker-data/log-start-offset-checkpoint


def topic_partition(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")[2].rpartition("-")
    return topic, int(partition)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_partition_directory_reads_as_kafka_reads_it(name):
    topic, partition = topic_partition(name)
    log = LogDir.open(str(golden_dir(name)))
    log_start = ORDERS_LOG_START if name == "broker-data/orders-0" else 0
    assert log.topics() == [topic]
    expected = as_records(expected_records(name), partition, lambda line: line["offset"] >= log_start)
    assert records_of(log.topic(topic).scan(include_control=True).batches()) == expected
    assert log.topic(topic).snapshot.report.cuts == ()


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_condition_on_times_loses_no_record_of_a_directory(name):
    topic, partition = topic_partition(name)
    scan = LogDir.open(str(golden_dir(name))).topic(topic).scan(include_control=True)
    log_start = ORDERS_LOG_START if name == "broker-data/orders-0" else 0
    records = as_records(expected_records(name), partition, lambda line: line["offset"] >= log_start)
    times = sorted({record[2] for record in records})
    for first in (*times[:: max(len(times) // 8, 1)], *times[-1:], *(time + 1 for time in times[-1:])):
        wanted = [record[1] for record in records if record[2] >= first]
        since = pc.field("timestamp") >= pa.scalar(first * 1000, pa.timestamp("us", "UTC"))
        found = scan.where(since).to_table().filter(since).column("offset").to_pylist()
        assert found == wanted


@pytest.mark.parametrize("name", DIRECTORIES)
def test_rows_say_what_kafka_says_of_the_batches(name):
    topic, partition = topic_partition(name)
    snapshot = LogDir.open(str(golden_dir(name))).topic(topic).snapshot
    batches = expected_batches(name)
    for row in snapshot.live_of(partition):
        own = [batch for batch in batches if batch["segment"] == row.base_offset]
        assert row.batches == len(own)
        assert row.log_bytes == sum(batch["size"] for batch in own)
        assert row.records == sum(batch["recordsIterated"] for batch in own)
        largest = max((batch["maxTimestamp"] for batch in own), default=-1)
        assert row.max_timestamp_ms == largest
        first = next((batch for batch in own if batch["maxTimestamp"] == largest), None)
        assert row.offset_of_max_timestamp == (first["lastOffset"] if first and largest >= 0 else -1)
        assert row.first_batch_max_timestamp_ms == (own[0]["maxTimestamp"] if own else -1)
        horizons = [batch["deleteHorizonMs"] for batch in own if batch.get("deleteHorizonMs") is not None]
        assert row.delete_horizon_ms == min(horizons, default=None)


def index_lines() -> dict[str, dict[str, int]]:
    said = {}
    for line in (GOLDEN / "index.txt").read_text().splitlines():
        name, words = line.split("\t")
        said[name] = {key: int(end) for key, end in re.findall(r"(logEndOffset|LSO)=(\d+)", words)}
    return said


@pytest.mark.parametrize(("name", "said"), index_lines().items())
def test_the_log_end_and_the_last_stable_offset_are_those_of_kafka(name, said):
    topic, partition = topic_partition(name)
    snapshot = LogDir.open(str(golden_dir(name))).topic(topic).snapshot
    row = snapshot.partition(partition)
    assert row.log_end_offset == said["logEndOffset"]
    assert row.last_stable_offset == said.get("LSO", said["logEndOffset"])


@pytest.mark.parametrize("name", DIRECTORIES)
def test_the_sidecars_of_an_undamaged_directory_are_all_true(name):
    topic, partition = topic_partition(name)
    snapshot = LogDir.open(str(golden_dir(name))).topic(topic).snapshot
    if "txn-compact" not in name:  # the cleaner keeps entries of transactions whose data it took
        assert snapshot.report.notes == ()
    assert snapshot.offset_indexes == {}
    assert snapshot.aborted == {}
    for row in snapshot.live_of(partition):
        directory = golden_dir(name)
        if name not in LIVE_DIRECTORIES:
            assert row.index_bytes == (directory / row.index_path).stat().st_size
            assert row.time_index_bytes == (directory / row.time_index_path).stat().st_size


def test_of_the_preallocated_indexes_of_a_live_directory_only_the_entries_are_used():
    rows = LogDir.open(str(golden_dir("live-0"))).topic("live").snapshot.live_of(0)
    dump = text("live-0", "dump.txt")
    assert (golden_dir("live-0") / rows[-1].index_path).stat().st_size == 8192
    assert rows[-1].index_bytes // 8 == _entries_in(dump, "00000000000000002094.index") == 10
    assert rows[-1].time_index_bytes // 12 == 10


def _entries_in(dump: str, file: str) -> int:
    section = dump.partition(f"{file}\n")[2].partition("Dumping ")[0]
    return sum(1 for line in section.splitlines() if line.startswith("offset: ") and not line.endswith("position: 0"))


def test_a_whole_log_dirs_directory_opens():
    log = LogDir.open(str(golden_dir("broker-data")))
    assert log.topics() == [
        "__cluster_metadata",
        "__consumer_offsets",
        "__transaction_state",
        "latest",
        "orders",
        "payments",
        "retention",
    ]
    assert log.topic("orders").offsets() == {0: (500, 1590), 1: (0, 1410)}
    assert log.topic("retention").offsets() == {0: (450, 800)}
    assert log.topic("__transaction_state").offsets() == {0: (0, 22), 1: (0, 0)}
    for topic in log.topics():
        if topic == "__cluster_metadata":
            assert sum(batch.num_rows for batch in log.topic(topic).scan(include_control=True).batches()) == 181
            continue
        expected = [
            record
            for partition, (start, _) in log.topic(topic).offsets().items()
            for record in as_records(expected_records(f"broker-data/{topic}-{partition}"), partition)
            if record[1] >= start
        ]
        assert records_of(log.topic(topic).scan(include_control=True).batches()) == expected, topic


def test_checkpoints_of_the_log_directory_count():
    log = LogDir.open(str(golden_dir("broker-data")))
    assert log.topic("latest").snapshot.partition(0).first_dirty_offset == 37
    orders = log.topic("orders").snapshot.partition(0)
    assert (orders.log_start_offset, orders.first_dirty_offset) == (500, 500)
    assert orders.leader_epochs == ((0, 500),)
    assert log.topic("orders").snapshot.topic_id == "uktUxqojQxac0EBXhok4Vg"  # partition.metadata


def test_a_partition_directory_takes_the_checkpoints_of_the_directory_above_it():
    log = LogDir.open(str(golden_dir("broker-data/orders-0")))
    assert log.topic("orders").offsets() == {0: (500, 1590)}
    assert log.topic("orders").snapshot.live_of(0)[0].path == "00000000000000000000.log"


def test_leader_epochs_are_those_of_the_checkpoint():
    row = LogDir.open(str(golden_dir("plain-0"))).topic("plain").snapshot.partition(0)
    assert row.leader_epochs == ((0, 0), (3, 2001), (5, 4009))
    assert row.leader_epoch == 5


def test_tiered_storage_reads_as_the_segments_that_were_copied():
    log = LogDir.open(str(TIERED))
    snapshot = log.topic("txn").snapshot
    end = snapshot.partition(0).log_end_offset
    expected = expected_records("txn-0")
    assert snapshot.topic_id == "JMdByjGA9XmGgRTUWES0Fg"
    assert end == 3156
    assert {row.state for row in snapshot.live_of(0)} == {"sealed"}
    assert snapshot.report.notes == ()
    assert snapshot.partition(0).leader_epochs == ((0, 0),)
    records = records_of(log.topic("txn").scan(include_control=True).batches())
    assert records == as_records(expected, where=lambda line: line["offset"] < end)
    assert records_of(log.topic("txn").scan(offsets=(2600, 2610)).batches()) == [
        record for record in as_records(expected, where=lambda line: not line["isControl"]) if 2600 <= record[1] < 2610
    ]


def test_one_tiered_partition_opens_by_itself():
    [directory] = TIERED.iterdir()
    log = LogDir.open(str(directory))
    assert log.topics() == ["txn"]
    assert log.topic("txn").offsets() == {0: (0, 3156)}


def test_of_two_uploads_of_one_tiered_segment_the_longer_is_read(tmp_path):
    [directory] = TIERED.iterdir()
    copy = tmp_path / directory.name
    shutil.copytree(directory, copy)
    whole = next(copy.glob("00000000000000000649-*.log"))
    (copy / "00000000000000000649-BBBSNFZ4kKwP7cuph2VDIQ.log").write_bytes(whole.read_bytes()[:5000])
    log = LogDir.open(str(tmp_path))
    assert log.topic("txn").offsets() == {0: (0, 3156)}
    assert log.topic("txn").snapshot.report.cuts == ()
    assert [note.path.rpartition("/")[2] for note in log.topic("txn").snapshot.report.notes] == [
        "00000000000000000649-BBBSNFZ4kKwP7cuph2VDIQ.log"
    ]


def test_directories_that_kafka_has_set_aside_are_not_topics(tmp_path):
    source = golden_dir("canary300dense-0")
    for name in (
        "orders-0",
        "orders-1.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-delete",
        "orders-2.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-future",
        "orders-3.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-stray",
        "lost+found",
    ):
        shutil.copytree(source, tmp_path / name)
    log = LogDir.open(str(tmp_path))
    assert log.topics() == ["orders"]
    assert log.topic("orders").offsets() == {0: (0, 200)}


@pytest.mark.parametrize(("name", "found"), [
    ("topic-with-dashes-3", ("topic-with-dashes", 3)),
    ("a.topic_with.periods-0", ("a.topic_with.periods", 0)),
    ("a-2147483647", ("a", 2**31 - 1)),
    *((name, None) for name in (
        "foo.bar-0.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-delete",  # a period in the name of a deleted topic
        "topic3", "topic3.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-delete",  # no separator
        "-3", "-3.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-delete",  # no topic
        "topic-", "topic-.5f5b6a1d2c3e4f5a6b7c8d9e0f1a2b3c-delete",  # no partition
        "topic-1a", "topic-one", "topic-1 ", "non_kafka_dir", "non-kafka-dir",
    )),
])  # fmt: skip
def test_a_directorys_name_says_which_partition_it_is_or_that_it_is_none(name, found, tmp_path):
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / "orders-0")
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / name)
    log = LogDir.open(str(tmp_path))
    others = [topic for topic in log.topics() if topic != "orders"]
    assert [(topic, *log.topic(topic).offsets()) for topic in others] == ([found] if found else [])


@pytest.mark.parametrize("offset", [0, 23423423, 2**63 - 1])
def test_the_base_offset_is_in_the_name_of_every_file_of_a_segment(offset):
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        for state in ("", ".deleted", ".cleaned", ".swap"):
            assert base_offset(f"{offset:020d}{suffix}{state}") == offset
    for name in ("partition.metadata", "leader-epoch-checkpoint", f"{offset}", f"{offset:020d}", f"{offset:019d}log"):
        assert base_offset(name) is None


def test_a_broker_may_have_some_partitions_of_a_topic_only(tmp_path):
    for number in (2, 5):
        shutil.copytree(golden_dir("canary300dense-0"), tmp_path / f"orders-{number}")
    log = LogDir.open(str(tmp_path))
    assert log.topic("orders").offsets() == {2: (0, 200), 5: (0, 200)}
    lines = expected_records("canary300dense-0")
    expected = [*as_records(lines, 2), *as_records(lines, 5)]
    assert records_of(log.topic("orders").scan().batches()) == expected
    assert records_of(log.topic("orders").scan(partition=5).batches()) == expected[200:]
    assert [row["partition"] for row in log.topic("orders").describe()["partitions"]] == [2, 5]
    assert [row["records"] for row in log.topic("orders").describe()["partitions"]] == [200, 200]
    assert log.topic("orders").offsets_for_times(0) == {2: (0, 1700000000000), 5: (0, 1700000000000)}
    with pytest.raises(UnknownTopicError, match="one of 2, 5"):
        log.topic("orders").scan(partition=0).batches()


def test_a_partition_directory_must_be_named_as_one(tmp_path):
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / "backup")
    with pytest.raises(LogDirError, match="<topic>-<partition>"):
        LogDir.open(str(tmp_path / "backup"))


def test_two_directories_of_one_partition_are_an_error(tmp_path):
    [directory] = TIERED.iterdir()
    for topic_id in ("JMdByjGA9XmGgRTUWES0Fg", "KMdByjGA9XmGgRTUWES0Fg"):
        shutil.copytree(directory, tmp_path / f"txn-0-{topic_id}")
    log = LogDir.open(str(tmp_path))
    with pytest.raises(LogDirError, match="Two directories are partition 0 of topic txn"):
        log.topic("txn").offsets()


def test_an_unknown_topic_is_named_with_those_that_are_there():
    with pytest.raises(UnknownTopicError, match="payments"):
        LogDir.open(str(golden_dir("broker-data"))).topic("order").offsets()


def test_directories_without_kafkas_files_are_not_kafkas(tmp_path):
    (tmp_path / "results-2024").mkdir()
    (tmp_path / "results-2024" / "part-0.csv").write_text("a,b")
    assert not is_kafka_directory(Storage(str(tmp_path)))
    with pytest.raises(LogDirError, match="Not a log directory"):
        LogDir.open(str(tmp_path))


def test_a_partition_directory_without_segments_is_an_empty_partition(tmp_path):
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / "orders-0")
    (tmp_path / "orders-1").mkdir()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 1 77\n")
    log = LogDir.open(str(tmp_path))
    assert log.topic("orders").offsets() == {0: (0, 200), 1: (77, 77)}
    assert sum(batch.num_rows for batch in log.topic("orders").scan().batches()) == 200


def timestamp_queries() -> list[str]:
    return sorted(path.name.removesuffix(".queries.jsonl.xz") for path in GOLDEN.glob("*.queries.jsonl.xz"))


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", timestamp_queries())
def test_offsets_for_timestamps_are_those_of_kafka(name):
    topic, partition = topic_partition(name)
    log = LogDir.open(str(golden_dir(name)))
    start, end = log.topic(topic).offsets()[partition]
    for query in queries(name):
        if query["query"] != "offsetForTimestamp":
            continue
        if query["target"] == -1:
            assert query["offset"] == end
        elif query["target"] in (-2, -4):
            assert query["offset"] == start
        elif query["target"] >= 0:
            answer = None if query["offset"] in (-1, None) else (query["offset"], query["timestamp"])
            assert log.topic(topic).offsets_for_times(query["target"]) == {partition: answer}, query


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", timestamp_queries())
def test_a_read_begins_in_the_batch_where_kafkas_does(name):
    topic, partition = topic_partition(name)
    log = LogDir.open(str(golden_dir(name)))
    records = as_records(expected_records(name), partition)
    offsets = [record[1] for record in records]
    for query in queries(name):
        if query["query"] != "read" or query.get("lastCompleteBatchLastOffset") is None:
            continue
        last = query["lastCompleteBatchLastOffset"]
        found = records_of(log.topic(topic).scan(offsets=(query["offset"], last + 1), include_control=True).batches())
        first = next(number for number, offset in enumerate(offsets) if offset >= query["offset"])
        assert found == [record for record in records[first:] if record[1] <= last], query


@pytest.mark.parametrize("name", ["plain-0", "broker-data", "cleaner-crash/swap-half", "live-0"])
def test_reading_touches_no_file(name, tmp_path):
    directory = tmp_path / Path(name).name
    shutil.copytree(golden_dir(name), directory)
    before = tree(directory)
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        log = LogDir.open(str(directory))
        for topic in log.topics():
            log.topic(topic).describe()
            log.topic(topic).offsets_for_times(1700000000000)
            for level in ("read_committed", "read_uncommitted"):
                assert all(batch.num_rows for batch in log.topic(topic).scan(isolation=level).batches())
        with pytest.raises(LogDirError, match="read-only"):
            log.topic(log.topics()[0]).delete_records({0: 1})
        assert tree(directory) == before
    finally:
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
