"""The specification is complete: a reader written from docs/format alone agrees with Kafka and with this package.

What Kafka wrote is held against what Kafka's own reader says of it; what this package wrote, against the records that
were appended and against `Topic.scan`.
"""

from __future__ import annotations

import ast
import base64
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.format.record_columns import WRITER_SCHEMA
from spark_segments.maintenance import compact, restore, retain, roll, vacuum
from verification.specification import specification_reader as specification
from verification.specification.specification_reader import KafkaPartition, ManagedLog, Record
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    GOLDEN,
    LEGACY_DIRECTORIES,
    damaged_dir,
    expected_records,
    golden_dir,
)

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WITNESS = GOLDEN / "format-2"
KAFKA_DIRECTORIES = [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES, "live-0"]
OF_EACH_KIND = ["mixed-0", "zstd-0", "logappend-0", "txn-0", "legacy-v0-0", "legacy-v1-0", "broker-data/payments-0"]
"""Directories whose batches are compared, too. The records of the others are the conformance kit's."""
TRANSACTIONAL = [name for name in CLEAN_DIRECTORIES if name == "txn-0" or name.startswith("txn-compact/")]


def test_it_imports_nothing_of_the_package():
    tree = ast.parse(Path(specification.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    others = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"crc32c", "pyarrow", "zstandard"}


# Directories that Kafka wrote


def _b64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _as_kafka_says(name: str, partition: KafkaPartition) -> list[dict]:
    """What `expected_records` has of these records; the transactional directories say what is committed, too."""
    committed = {record.offset for _, record in partition.records(committed=True)}
    found = []
    for batch, record in partition.records(control=True):
        first = batch.base_sequence + record.offset - batch.base_offset if batch.base_sequence >= 0 else -1
        row = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[record.timestamp_type],
            "key": _b64(record.key),
            "value": _b64(record.value),
            "headers": [[key, _b64(value)] for key, value in record.headers],
            "isControl": batch.is_control,
            "magic": batch.magic,
            "batchBaseOffset": batch.base_offset,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "sequence": first,
            "leaderEpoch": batch.leader_epoch,
            "isTransactional": batch.is_transactional,
        }
        if name in TRANSACTIONAL:
            row["committed"] = record.offset in committed
        if batch.magic < 2:
            row.pop("batchBaseOffset")  # of a wrapper Kafka says the last offset, too
        found.append(row)
    return found


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_kafkas_batches_are_read_as_kafka_reads_them(name):
    partition = KafkaPartition(golden_dir(name))
    found = _as_kafka_says(name, partition)

    # Kafka's tool prints what is in the files; the log starts where the checkpoint says.
    expected = [record for record in expected_records(name) if record["offset"] >= partition.log_start_offset]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == {key: theirs[key] for key in mine}


def _index_lines() -> dict[str, dict[str, int]]:
    """{directory: {"logEndOffset", "LSO" …}} as Kafka said when it closed them."""
    lines = {}
    for line in (GOLDEN / "index.txt").read_text().splitlines():
        name, _, facts = line.partition("\t")
        pairs = (fact.split("=", 1) for fact in facts.split() if "=" in fact)
        lines[name] = {key: int(value) for key, value in pairs if value.isdigit()}
    return lines


@pytest.mark.parametrize("name", [name for name in KAFKA_DIRECTORIES if "LSO" in _index_lines().get(name, {})])
def test_log_end_and_last_stable_offset_are_kafkas(name):
    partition, kafka = KafkaPartition(golden_dir(name)), _index_lines()[name]

    assert (partition.log_end_offset, partition.last_stable_offset) == (kafka["logEndOffset"], kafka["LSO"])


@pytest.mark.rule("K5")
@pytest.mark.parametrize("name", [*TRANSACTIONAL, "broker-data/payments-0"])
def test_aborted_transactions_are_those_of_the_txnindex(name):
    partition = KafkaPartition(golden_dir(name))

    cleaned = set(TRANSACTIONAL) - {"txn-0", "txn-compact/dirty/txnc-0"}
    found = {(one.producer_id, one.last_offset): one for one in partition.aborted}
    for entry in partition.indexed_aborts():
        # Compaction took the data of some; of others the first batches, so that what is left begins later.
        mine = found.pop((entry.producer_id, entry.last_offset), None)
        assert mine is not None or name in cleaned
        assert mine is None or mine == entry or name in cleaned
    assert not found


@pytest.mark.parametrize("name", [name for name in KAFKA_DIRECTORIES if name not in LEGACY_DIRECTORIES])
def test_kafkas_index_entries_lead_to_what_they_promise(name):
    for log in sorted(golden_dir(name).glob("*.log")):
        data, base = log.read_bytes(), int(log.stem)
        _assert_look_ups(data, log.with_suffix(".index"), log.with_suffix(".timeindex"), base)


def _assert_look_ups(data: bytes, index_path: Path, time_index_path: Path, name_offset: int) -> None:
    """No look-up of an offset or a time passes over what it looks for, and each begins at a batch."""
    found = list(specification.batches(data))
    index = specification.offset_index(index_path.read_bytes())
    times = specification.time_index(time_index_path.read_bytes())
    starts = {batch.position for batch in found}
    assert all(position in starts for _, position in index)
    for batch in found:
        for offset in (batch.base_offset, batch.last_offset):
            assert specification.position_of_offset(index, offset - name_offset) <= batch.position
    largest, targets = -1, []
    for batch in found:  # the first batch of each new maximum is where a time before it is found
        if batch.max_timestamp > largest:
            targets.append((largest + 1, batch.position))
            targets.append((batch.max_timestamp, batch.position))
            largest = batch.max_timestamp
    for target, position in targets:
        assert specification.position_of_time(times, index, target) <= position
    assert not times or times[-1][0] <= largest


DAMAGED = ("flipped-byte", "torn-header", "torn-tail", "zero-tail", "corrupt-index", "missing-index")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_log_ends_where_the_package_says_that_it_ends(name, tmp_path):
    directory = damaged_dir(name, tmp_path)
    [(start, end)] = LogDir.open(str(tmp_path)).topic("plain").offsets().values()

    partition = KafkaPartition(directory)
    assert (partition.log_start_offset, partition.log_end_offset) == (start, end)
    assert [record.offset for _, record in partition.records()] == list(range(start, end))


# Log directories with a manifest


def _json(topic: str, partition: int, record: Record) -> dict:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
        "key": _b64(record.key),
        "value": _b64(record.value),
        "headers": [[key, _b64(value)] for key, value in record.headers],
    }


def all_records(log: ManagedLog, topic: str, *, committed: bool = False, control: bool = False) -> list[dict]:
    snapshot = log.snapshot(topic)
    return [
        _json(topic, number, record)
        for number in sorted(snapshot.partitions)
        for record in log.records(snapshot, number, committed=committed, control=control)
    ]


def _as_the_package_reads(log: LogDir, topic: str, **options) -> list[dict]:
    found = []
    for batch in log.topic(topic).scan(**options).batches():
        milliseconds = [value // 1000 for value in batch.column("timestamp").cast(pa.int64()).to_pylist()]
        for row, timestamp in zip(batch.drop_columns(["timestamp"]).to_pylist(), milliseconds, strict=True):
            record = Record(
                row["offset"],
                timestamp,
                row["timestampType"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"]),
            )
            found.append(_json(topic, row["partition"], record))
    return found


def test_transactions_of_writers_are_in_the_witness():
    said = json.loads((WITNESS / "expected.json").read_text())["transactions"]
    log = ManagedLog(WITNESS / "log")

    for topic, applications in said.items():
        snapshot = log.snapshot(topic)
        topic_id = snapshot.topic["topic_id"]
        assert {f"{name}@{topic_id}": version for name, version in applications.items()}.items() <= (
            snapshot.transactions.items()
        )


def _append(log: LogDir, topic: str, appended: list[dict], *, seed: int, rows: int = 120) -> None:
    """Appends rows with keys, tombstones, headers and disorderly timestamps, in a codec of their own; notes them."""
    choose = random.Random(seed)
    partitions = len(log.topic(topic).offsets())
    headers = [{"key": "seed", "value": b"%d" % seed}, {"key": "", "value": None}]
    made = [
        {
            "key": None if topic == "plain" and choose.random() < 0.1 else b"key-%d" % choose.randrange(20),
            "value": None if choose.random() < 0.1 else b"%d-" % number + b"x" * choose.randrange(90),
            "headers": headers[: choose.randrange(3)],
            "partition": choose.randrange(partitions),
            "timestamp": (START_MS + seed * 60_000 + choose.randrange(-30_000, 30_000)) * 1000,
        }
        for number in range(rows)
    ]
    table = pa.Table.from_pylist(made, WRITER_SCHEMA.remove(WRITER_SCHEMA.get_field_index("topic")))
    ends = {number: end for number, (_, end) in log.topic(topic).offsets().items()}
    log.topic(topic).append(table, options=ProducerOptions(CODECS[seed % len(CODECS)], 1000))
    for row in made:
        number = row["partition"]
        pairs = tuple((header["key"], header["value"]) for header in row["headers"])
        record = Record(ends[number], row["timestamp"] // 1000, 0, row["key"], row["value"], pairs)
        appended.append(_json(topic, number, record))
        ends[number] += 1


def _sorted(records: list[dict]) -> list[dict]:
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


def _assert_agree(log: LogDir, topic: str) -> list[dict]:
    """Both readers give the same records, and look-ups by offset and time give the same answers. Returns them."""
    mine = ManagedLog(Path(log.uri))
    found = all_records(mine, topic)
    assert found == _as_the_package_reads(log, topic)
    assert all_records(mine, topic, control=True) == _as_the_package_reads(log, topic, include_control=True)
    committed = all_records(mine, topic, committed=True)
    assert committed == _as_the_package_reads(log, topic, isolation="read_committed")
    snapshot = mine.snapshot(topic)
    for number, row in snapshot.partitions.items():
        start, end = row["log_start_offset"], row["log_end_offset"]
        assert (start, end) == log.topic(topic).offsets()[number]
        for low in range(start, end, max(1, (end - start) // 7)):
            window = [record.offset for record in mine.records(snapshot, number, low, low + 25)]
            whole = [one["offset"] for one in found if one["partition"] == number]
            assert window == [offset for offset in whole if low <= offset < low + 25]
        for segment in snapshot.segments[number]:
            stem = Path(log.uri) / segment["path"].removesuffix(".log")
            name_offset = specification.name_offset(segment)
            _assert_look_ups(mine.read(segment, "log"), Path(f"{stem}.index"), Path(f"{stem}.timeindex"), name_offset)
    for minutes in range(-1, 14):
        target = START_MS + minutes * 60_000
        answers = {number: mine.offset_for_time(snapshot, number, target) for number in snapshot.partitions}
        assert answers == log.topic(topic).offsets_for_times(target)
    return found


def test_what_was_appended_is_read_before_and_after_it_is_rolled(log):
    log.create_topic("plain", partitions=2, config={"segment.bytes": "4000", "index.interval.bytes": "500"})
    appended: list[dict] = []
    for seed in range(6):
        _append(log, "plain", appended, seed=seed)
    assert _assert_agree(log, "plain") == _sorted(appended)

    roll(log, now_ms=START_MS)
    for seed in range(6, 9):
        _append(log, "plain", appended, seed=seed)
    states = {row["state"] for rows in ManagedLog(Path(log.uri)).snapshot("plain").segments.values() for row in rows}
    assert states == {"sealed", "chunk"}
    assert _assert_agree(log, "plain") == _sorted(appended)


@pytest.mark.proof
def test_what_retention_left_is_read_and_old_versions_too(log):
    config = {"segment.bytes": "4000", "retention.bytes": "12000", "retention.ms": "-1"}
    log.create_topic("plain", partitions=2, config=config)
    appended: list[dict] = []
    for seed in range(8):
        _append(log, "plain", appended, seed=seed)
    roll(log, now_ms=START_MS)
    version = log.topic("plain").describe()["version"]
    retain(log, now_ms=START_MS)
    log.topic("plain").delete_records({1: log.topic("plain").offsets()[1][0] + 3})
    starts = {number: start for number, (start, _) in log.topic("plain").offsets().items()}
    assert all(starts.values())

    left = [record for record in _sorted(appended) if record["offset"] >= starts[record["partition"]]]
    assert _assert_agree(log, "plain") == left
    mine = ManagedLog(Path(log.uri))
    before = mine.snapshot("plain", version)
    assert sum(1 for number in before.partitions for _ in mine.records(before, number)) == len(appended)

    restore(log, topics=["plain"], version=version)
    assert _assert_agree(log, "plain") == _sorted(appended)


@pytest.mark.proof
def test_what_compaction_left_is_read(log):
    config = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.01"}
    log.create_topic("latest", partitions=2, config={**config, "delete.retention.ms": "1000"})
    appended: list[dict] = []
    for round_number in range(3):
        for seed in range(round_number * 4, round_number * 4 + 4):
            _append(log, "latest", appended, seed=seed)
        now_ms = START_MS + round_number * DAY_MS
        roll(log, now_ms=now_ms)
        compact(log, now_ms=now_ms)
        vacuum(log, now_ms=now_ms)
        found = _assert_agree(log, "latest")
        newest = {(record["partition"], record["key"]): record for record in _sorted(appended)}
        assert all(record in appended for record in found)
        assert all(record in found for record in newest.values() if record["value"] is not None)
    assert len(found) < len(appended) // 2


def test_a_topic_that_is_made_again_has_no_rows_of_the_one_before(log):
    appended: list[dict] = []
    log.create_topic("plain", partitions=3)
    _append(log, "plain", [], seed=1)
    log.delete_topic("plain")
    assert ManagedLog(Path(log.uri)).topics() == []

    log.create_topic("plain", partitions=2)
    _append(log, "plain", appended, seed=2)
    assert ManagedLog(Path(log.uri)).topics() == ["plain"]
    assert _assert_agree(log, "plain") == _sorted(appended)


def test_many_small_chunks_that_were_merged_are_read(log):
    log.create_topic("plain", partitions=1)
    appended: list[dict] = []
    for seed in range(12):
        _append(log, "plain", appended, seed=seed, rows=10)
    before = ManagedLog(Path(log.uri)).snapshot("plain").segments[0]
    roll(log, now_ms=START_MS)

    [merged] = ManagedLog(Path(log.uri)).snapshot("plain").segments[0]
    assert len(before) == 12 and merged["state"] == "chunk"
    assert _assert_agree(log, "plain") == _sorted(appended)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["txn-0", "txn-compact/clean-2/txnc-0", "broker-data/payments-0"])
def test_kafkas_transactions_stay_what_they_were_behind_appends_and_rolls(name, log):
    directory = golden_dir(name)
    topic = directory.name.rpartition("-")[0]
    log.import_kafka(str(directory.parent), topic=topic, config={"segment.bytes": "20000"})
    kafka = KafkaPartition(directory)
    for _ in range(2):
        _assert_agree(log, topic)
        mine = ManagedLog(Path(log.uri))
        found = [record["offset"] for record in all_records(mine, topic, committed=True) if record["partition"] == 0]
        stable = [record.offset for _, record in kafka.records(committed=True)]
        assert found[: len(stable)] == stable
        log.topic(topic).append(pa.table({"value": [b"later"], "key": [b"k"], "partition": pa.array([0], pa.int32())}))
        roll(log, now_ms=START_MS + 365 * DAY_MS)


def test_a_newer_format_is_refused_by_name(log):
    marker = Path(log.uri) / "_manifest" / "log-directory.json"
    marker.write_text('{"format.version": 2}')

    with pytest.raises(ValueError, match=r"format\.version 2 is not 1"):
        ManagedLog(Path(log.uri))
