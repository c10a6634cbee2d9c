"""Kafka's directories through an import and an export, and topics of our own as other clients decode them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiokafka.record.memory_records
import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, UnknownTopicError
from spark_segments.format.sidecars.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    REPLICATION_OFFSETS_FILE,
    parse_offsets,
)
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.exporting import export_topics
from spark_segments.kafka.jobs import import_all
from spark_segments.maintenance import compact, roll, verify
from spark_segments.storage import Storage
from tests.log.golden_reads import records_of
from tests.log.kafka_copies import (
    assert_same_checkpoints,
    assert_same_partition,
    files,
    import_golden,
    kafka_directory_of,
    offsets,
    topic_of,
)
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, GOLDEN, golden_dir
from verification.world.kafka_bytes.segment_bytes import HEADERS_TYPE, batches_of
from verification.world.kafka_side import KafkaSide
from verification.world.opened import LocalFiles
from verification.world.topics import records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
CLIENTS = {
    "aiokafka": aiokafka.record.memory_records.MemoryRecords,
    "kafka-python": kafka.record.memory_records.MemoryRecords,
}
BROKER = GOLDEN / "broker-data"
LATER_MS = 2_000_000_000_000  # every segment is idle by then

Decoded = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def decoded(directory: Path, client: Any) -> list[Decoded]:
    """The records of a partition directory as another client reads them out of its .log files."""
    found = []
    for name, content in files(directory, ".log").items():
        batches = client(content)
        last = int(name.split(".")[0]) - 1
        while (batch := batches.next_batch()) is not None:
            assert batch.validate_crc()
            assert batch.base_offset > last
            for record in batch:
                headers = [(key, None if value is None else bytes(value)) for key, value in record.headers]
                found.append((record.offset, record.timestamp, _bytes(record.key), _bytes(record.value), headers))
                last = record.offset
    return found


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def test_an_empty_active_segment_and_what_was_imported_since_are_one_segment(log, tmp_path):
    """Kafka cleaned the segments before it meanwhile, so it stays; what came after is larger than segment.bytes."""
    kafka = KafkaSide(tmp_path / "kafka")
    for _ in range(2):
        kafka.append([(b"a", True)])
        kafka.roll()
    log.import_kafka(kafka.write(), config={"segment.bytes": "1500", "retention.ms": "-1"})
    kafka.clean(merge=False)
    kafka.append([(b"b", True)] * 200)
    log.import_kafka(kafka.write())
    live = log.topic("prices").snapshot.live_of(0)
    assert [(row.base_offset, row.log_bytes > 1500) for row in live[-2:]] == [(2, False), (2, True)]
    log.export_kafka(str(tmp_path / "out"))
    [*_, (name, exported)] = files(tmp_path / "out" / "prices-0", ".log").items()
    assert exported == files(tmp_path / "kafka" / "prices-0", ".log")[name]


def keyed(numbers: Iterable[int]) -> pa.Table:
    """A record a number, which is its key."""
    numbers = list(numbers)
    return pa.table(
        {
            "key": pa.array([b"%d" % number for number in numbers]),
            "value": pa.array([(b"%d " % number).ljust(100, b".") for number in numbers]),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % number}, {"key": "none"}] for number in numbers], HEADERS_TYPE
            ),
            "timestamp": pa.array([1_700_000_000_000 + number for number in numbers], pa.timestamp("ms")),
        }
    )


def as_decoded(log: LogDir, topic: str, partition: int) -> list[Decoded]:
    rows = records_of(log.topic(topic).scan(partition=partition).batches())
    return [(offset, timestamp, key, value, headers) for _, offset, timestamp, _, key, value, headers in rows]


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", [*CLEAN_DIRECTORIES, "live-0"])
def test_what_was_imported_comes_out_as_it_was(log, tmp_path, name):
    import_golden(log, name)
    log.export_kafka(str(tmp_path / "out"), topic_of(name))
    assert_same_partition(golden_dir(name), tmp_path / "out" / golden_dir(name).name)
    assert_same_checkpoints(kafka_directory_of(name), tmp_path / "out", topic_of(name))


def test_a_brokers_directory_comes_out_whole(log, tmp_path):
    log.import_kafka(str(BROKER))
    log.export_kafka(str(tmp_path / "out"))
    directories = sorted(path.name for path in BROKER.iterdir() if path.is_dir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == directories
    for name in directories:
        assert_same_partition(BROKER / name, tmp_path / "out" / name)
    for path in BROKER.glob("*-checkpoint"):
        assert offsets(tmp_path / "out" / path.name) == offsets(path), path.name


def test_topics_exported_one_by_one_share_the_checkpoints(log, tmp_path):
    log.import_kafka(str(BROKER))
    for topic in log.topics():
        log.export_kafka(str(tmp_path / "out"), topic)
    for path in BROKER.glob("*-checkpoint"):
        assert offsets(tmp_path / "out" / path.name) == offsets(path), path.name


def test_a_compacted_partition_has_a_line_for_the_cleaner_though_nothing_of_it_is_clean(log, tmp_path):
    """It takes the place of the line that the broker has of before, by which these records would be clean."""
    log.create_topic("own", 2, {"cleanup.policy": "compact,delete"})
    log.create_topic("deleted", 1, {"cleanup.policy": "delete"})
    log.topic("own").append(records(10, partitions=[0]))
    log.topic("own").delete_records({0: 7})
    log.export_kafka(str(tmp_path / "out"))
    lines = (tmp_path / "out" / CLEANER_OFFSETS_FILE).read_text().splitlines()
    assert lines == ["0", "2", "own 0 7", "own 1 0"]


def test_tiered_storage_comes_out_under_kafkas_names(log, tmp_path):
    log.import_kafka(str(GOLDEN / "tiered" / "kafka-tiered-storage"))
    log.export_kafka(str(tmp_path / "out"))
    theirs = files(golden_dir("txn-0"), ".log")
    del theirs[max(theirs)]  # the active one is not in tiered storage
    assert files(tmp_path / "out" / "txn-0", ".log") == theirs
    for suffix in (".index", ".timeindex", ".txnindex"):
        sealed = {name: data for name, data in files(golden_dir("txn-0"), suffix).items() if data}
        ours = {name: data for name, data in files(tmp_path / "out" / "txn-0", suffix).items() if data}
        assert ours.items() <= sealed.items(), suffix
        assert len(ours) >= len(theirs) - 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_what_is_exported(log, tmp_path, codec, client):
    log.create_topic("own", 2, {"segment.bytes": "16384", "segment.ms": "1000"})
    options = ProducerOptions(codec, 1000)
    for first in range(0, 2000, 500):
        log.topic("own").append(records(500, first=first), options=options)
    roll(log, now_ms=LATER_MS)
    log.topic("own").append(records(300, first=2000), options=options)
    log.topic("own").append(records(200, first=2300), options=options)
    assert len(log.topic("own").snapshot.live_of(0)) > 3
    log.export_kafka(str(tmp_path / "out"))
    rows = [decoded(tmp_path / "out" / f"own-{partition}", client) for partition in (0, 1)]
    assert rows == [as_decoded(log, "own", partition) for partition in (0, 1)]
    assert sum(map(len, rows)) == 2500


@pytest.mark.cases(2)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_compacted_topics_with_gaps_and_empty_batches(log, tmp_path, codec, client):
    log.create_topic("own", 1, {"segment.bytes": "16384", "segment.ms": "1000"})
    options = ProducerOptions(codec, 500)
    for first in (0, 50, 0):  # the last append takes the place of the first, so that whole batches go
        log.topic("own").append(keyed(range(first, first + 100)), options=options)
        roll(log, now_ms=LATER_MS)
    log.topic("own").append(pa.table({"value": pa.array([b"has no key, goes"])}), options=options)
    roll(log, now_ms=LATER_MS)
    log.topic("own").append(keyed([999]), options=options)
    log.topic("own").alter({"cleanup.policy": "compact"})
    compact(log, now_ms=LATER_MS, force=True)
    log.export_kafka(str(tmp_path / "out"))
    rows = decoded(tmp_path / "out" / "own-0", client)
    assert rows == as_decoded(log, "own", 0)
    assert [offset for offset, *_ in rows] == [*range(150, 300), 301]
    logs = files(tmp_path / "out" / "own-0", ".log").values()
    counts = [count for content in logs for count in batches_of(content).count.tolist()]
    assert counts[-2:] == [0, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_an_export_opens_and_verifies_as_a_kafka_directory(log, tmp_path, codec):
    log.create_topic("own", 1, {"segment.bytes": "16384"})
    for first in range(0, 1000, 250):
        log.topic("own").append(records(250, first=first), options=ProducerOptions(codec, 1000))
    log.topic("own").delete_records({0: 100})
    log.export_kafka(str(tmp_path / "out"))
    kafka_log = LogDir.open(str(tmp_path / "out"))
    assert verify(kafka_log, deep=True).findings == []
    assert kafka_log.topic("own").snapshot.topic_id == log.topic("own").snapshot.topic_id
    assert kafka_log.topic("own").offsets() == {0: (100, 1000)}
    assert records_of(kafka_log.topic("own").scan().batches()) == records_of(log.topic("own").scan().batches())


def test_what_was_appended_to_an_import_is_exported_with_it(log, tmp_path):
    import_golden(log, "txn-0")
    log.topic("txn").append(keyed(range(10)))
    log.topic("txn").append(keyed(range(10, 20)))
    log.export_kafka(str(tmp_path / "out"))
    kafka_log = LogDir.open(str(tmp_path / "out"))
    assert records_of(kafka_log.topic("txn").scan().batches()) == records_of(log.topic("txn").scan().batches())
    for isolation_level in ("read_committed", "read_uncommitted"):
        ours = records_of(log.topic("txn").scan(isolation=isolation_level).batches())
        assert records_of(kafka_log.topic("txn").scan(isolation=isolation_level).batches()) == ours
    assert verify(kafka_log, deep=True).findings == []


def test_an_export_can_be_imported_again(log, tmp_path):
    log.create_topic("own", 2, {"segment.bytes": "16384"})
    log.topic("own").append(records(1000))
    log.export_kafka(str(tmp_path / "out"))
    again = LogDir.create(str(tmp_path / "again"))
    again.import_kafka(str(tmp_path / "out"))
    assert records_of(again.topic("own").scan().batches()) == records_of(log.topic("own").scan().batches())
    assert again.topic("own").offsets() == log.topic("own").offsets()


def test_an_empty_partition_keeps_its_log_end(log, tmp_path):
    log.create_topic("own", 2)
    log.topic("own").append(records(10, partitions=[0]))
    log.topic("own").delete_records({0: -1})
    log.export_kafka(str(tmp_path / "out"))
    for name in (RECOVERY_POINTS_FILE, REPLICATION_OFFSETS_FILE):
        ends = parse_offsets((tmp_path / "out" / name).read_bytes(), path=name)
        assert ends == {("own", 0): 10, ("own", 1): 0}
    starts = parse_offsets((tmp_path / "out" / LOG_START_OFFSETS_FILE).read_bytes(), path=LOG_START_OFFSETS_FILE)
    assert starts == {("own", 0): 10}
    assert list(files(tmp_path / "out" / "own-1", ".log").items()) == [("00000000000000000000.log", b"")]


def test_a_partition_that_is_there_already_is_left_alone(log, tmp_path):
    log.create_topic("own", 1)
    log.topic("own").append(records(10))
    log.export_kafka(str(tmp_path / "out"))
    before = files(tmp_path / "out" / "own-0", ".log")
    with pytest.raises(LogDirError, match="The partition directory already exists"):
        log.export_kafka(str(tmp_path / "out"))
    assert files(tmp_path / "out" / "own-0", ".log") == before


def test_an_old_log_start_hides_nothing_of_a_repeated_export(log, tmp_path):
    """The export of a cleaned topic made anew: nothing of what the checkpoints said of the partition before holds."""
    out = tmp_path / "out"
    for name in ("own", "other"):
        log.create_topic(name, 2, {"cleanup.policy": "compact,delete"})
        log.topic(name).append(records(10, partitions=[0]))
        log.topic(name).delete_records({0: 7})
        log.export_kafka(str(out), name)
    assert parse_offsets((out / LOG_START_OFFSETS_FILE).read_bytes(), path="") == {("own", 0): 7, ("other", 0): 7}
    log.delete_topic("own")
    log.create_topic("own", 1)
    log.topic("own").append(records(10))
    shutil.rmtree(out / "own-0")
    shutil.rmtree(out / "own-1")
    log.export_kafka(str(out), "own")
    found = {file.name: parse_offsets(file.read_bytes(), path="") for file in out.glob("*checkpoint")}
    assert found == {
        LOG_START_OFFSETS_FILE: {("other", 0): 7},
        CLEANER_OFFSETS_FILE: {("other", 0): 7, ("other", 1): 0},
        RECOVERY_POINTS_FILE: {("other", 0): 10, ("other", 1): 0, ("own", 0): 10},
        REPLICATION_OFFSETS_FILE: {("other", 0): 10, ("other", 1): 0, ("own", 0): 10},
    }
    assert records_of(LogDir.open(str(out)).topic("own").scan().batches()) == records_of(
        log.topic("own").scan().batches()
    )


def test_checkpoints_of_a_partition_that_stays_are_kept(log, tmp_path):
    """A directory may hold partitions of a topic that another export, or a broker, has put there."""
    (tmp_path / "out" / "own-5").mkdir(parents=True)
    (tmp_path / "out" / "own-5" / "00000000000000000003.log").write_bytes(b"")
    (tmp_path / "out" / LOG_START_OFFSETS_FILE).write_text("0\n1\nown 5 3\n")
    log.create_topic("own", 1)
    log.export_kafka(str(tmp_path / "out"))
    starts = parse_offsets((tmp_path / "out" / LOG_START_OFFSETS_FILE).read_bytes(), path="")
    assert starts == {("own", 5): 3}


class Dying(LocalFiles):
    """Local files of a process that is gone before its next change of a file, so many changes from now."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def stream(self, path: str, *, unique: bool = False) -> Any:
        self._change()
        return super().stream(path)

    def delete(self, paths: Sequence[str]) -> None:
        self._change()
        super().delete(paths)

    def replace(self, path: str, data: Any) -> None:
        self._change()
        super().replace(path, data)


def test_an_export_killed_between_any_two_files_keeps_the_checkpoints_of_other_topics(log, tmp_path):
    for name in ("own", "other"):
        log.create_topic(name, 1, {"cleanup.policy": "compact,delete"})
        log.topic(name).append(records(10))
        log.topic(name).delete_records({0: 7})
    log.export_kafka(str(tmp_path / "other"), "other")
    snapshots = [(log.topic("own").snapshot, log.topic("own").config)]
    changes, killed = 0, True
    while killed:
        out = Path(shutil.copytree(tmp_path / "other", tmp_path / f"out-{changes}"))
        killed = False
        try:
            export_topics(log.storage, Storage(str(out), filesystem=Dying(changes)), snapshots)
        except KeyboardInterrupt:
            killed = True
        found = {file.name: parse_offsets(file.read_bytes(), path="") for file in out.glob("*checkpoint")}
        assert {name: found[name]["other", 0] for name in found} == {
            LOG_START_OFFSETS_FILE: 7,
            CLEANER_OFFSETS_FILE: 7,
            RECOVERY_POINTS_FILE: 10,
            REPLICATION_OFFSETS_FILE: 10,
        }
        changes += 1
    assert changes > 8


class Misreading(LocalFiles):
    """Local files of which a single read of a .log, so many from now, has a wrong bit in its last byte."""

    def __init__(self, reads: int) -> None:
        self.left = reads

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        data = super().read(path, offset, length)
        if not path.endswith(".log") or not data.size:
            return data
        self.left -= 1
        if self.left != -1:
            return data
        wrong = bytearray(data)
        wrong[-1] ^= 1
        return pa.py_buffer(wrong)


def test_a_bit_that_is_read_wrong_never_becomes_a_copys(log, tmp_path):
    log.create_topic("own", 1, {"segment.bytes": "1000"})
    for _ in range(3):
        log.topic("own").append(records(10))
    roll(log, now_ms=LATER_MS)
    log.export_kafka(str(tmp_path / "kafka"), "own")
    snapshots = [(log.topic("own").snapshot, log.topic("own").config)]
    expected = records_of(log.topic("own").scan().batches())

    def exported(files: Misreading, out: Path) -> LogDir:
        export_topics(Storage(log.uri, filesystem=files), Storage(str(out)), snapshots)
        return LogDir.open(str(out))

    def imported(files: Misreading, out: Path) -> LogDir:
        found = LogDir.create(str(out))
        source = KafkaDirectory(Storage(str(tmp_path / "kafka"), filesystem=files))
        import_all(source, found, ["own"])
        return found

    for copied in (exported, imported):
        reads = refused = 0
        while True:
            files = Misreading(reads)
            try:
                copy = copied(files, tmp_path / f"{copied.__name__}-{reads}")
            except SegmentsError:
                assert files.left < 0
                refused += 1
            else:
                assert records_of(copy.topic("own").scan().batches()) == expected, (copied, reads)
            if files.left >= 0:
                break
            reads += 1
        assert refused > 0


def test_an_unknown_topic_is_an_error(log, tmp_path):
    with pytest.raises(UnknownTopicError):
        log.export_kafka(str(tmp_path / "out"), "nothing")


def test_progress_is_told(log, tmp_path):
    told: list[tuple[int, int]] = []
    log.import_kafka(str(GOLDEN / "plain-0"), progress=lambda *figures: told.append(figures))
    sizes = [row["log_bytes"] for row in log.topic("plain").snapshot.live.to_pylist()]
    assert len(told) == 8 and told[-1] == (sum(sizes), sum(sizes)) and told == sorted(told)
    told.clear()
    log.export_kafka(str(tmp_path / "out"), progress=lambda *figures: told.append(figures))
    assert len(told) == 8 and told[-1] == (sum(sizes), sum(sizes)) and told == sorted(told)
    told.clear()
    verify(log, deep=True, progress=lambda *figures: told.append(figures))
    assert told[-1] == (sum(sizes), sum(sizes)) and told == sorted(told)


def test_an_export_for_a_new_cluster_has_its_ids_and_begins_at_leader_epoch_0(log, tmp_path):
    log.import_kafka(str(BROKER), ["orders", "payments"])
    log.import_kafka(str(golden_dir("plain-0")))  # of leader epochs 0, 3 and 5
    names = ("orders", "payments", "plain")
    ids = dict(zip(names, (f"AAAAAAAAAAAAAAAAAAAAA{end}" for end in "Qgw"), strict=True))
    log.topic("orders").append(records(3))
    log.export_kafka(str(tmp_path / "same"), names)
    log.export_kafka(str(tmp_path / "new"), names, topic_ids=ids)
    epochs = [batches_of(file.read_bytes()).leader_epoch for file in (tmp_path / "same/plain-0").glob("*.log")]
    assert {epoch for one in epochs for epoch in one.tolist()} == {0, 3, 5}
    new, same = (LogDir.open(str(tmp_path / name)) for name in ("new", "same"))
    for topic, topic_id in ids.items():
        for number, (start, _) in new.topic(topic).offsets().items():
            directory = tmp_path / "new" / f"{topic}-{number}"
            assert (directory / "partition.metadata").read_text() == f"version: 0\ntopic_id: {topic_id}"
            assert (directory / "leader-epoch-checkpoint").read_text() == f"0\n1\n0 {start}\n"
            for file in directory.glob("*.log"):
                assert set(batches_of(file.read_bytes()).leader_epoch.tolist()) <= {0}
            assert decoded(directory, CLIENTS["aiokafka"]) == decoded(
                tmp_path / "same" / f"{topic}-{number}", CLIENTS["aiokafka"]
            )
        for isolation in ("read_committed", "read_uncommitted"):
            assert records_of(new.topic(topic).scan(isolation=isolation, include_control=True).batches()) == records_of(
                same.topic(topic).scan(isolation=isolation, include_control=True).batches()
            )
    assert verify(new, deep=True).findings == []
    with pytest.raises(InvalidOptionError, match="payments has no id"):
        log.export_kafka(str(tmp_path / "half"), topic_ids={"orders": ids["orders"]})
    for refused in (
        "",
        "+AAAAAAAAAAAAAAAAAAAAA",
        "Az/AAAAAAAAAAAAAAAAAAA",
        "AzAAAAAAAAAAAAAAAAAAAA==",
        "A" * 22,
        "00000000-0000-0000-0000-000000000001",
    ):
        with pytest.raises(InvalidOptionError, match="none that a broker takes"):
            log.export_kafka(str(tmp_path / "half"), ["orders"], topic_ids={"orders": refused})
    assert not (tmp_path / "half").exists()
