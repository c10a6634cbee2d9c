"""Into a log directory and out again: what Kafka wrote comes out as it went in, and what we wrote is read by others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import LogDirError
from spark_segments.maintenance import compact, roll
from tests.log.kafka_copies import offsets
from verification.world.kafka_bytes import golden_files

CHECKPOINTS = ("log-start-offset-checkpoint", "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint",
               "replication-offset-checkpoint")  # fmt: skip


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def all_records(log: LogDir, topic: str) -> list[dict]:
    return [row for batch in log.topic(topic).scan(include_control=True).batches() for row in batch.to_pylist()]


def is_stray_snapshot(name: str, names: dict[str, bytes], end: int) -> bool:
    """A producer snapshot that belongs to no segment and not to the log end: Kafka deletes it when it loads the log."""
    stem = name.removesuffix(".snapshot")
    return name.endswith(".snapshot") and f"{stem}.log" not in names and int(stem) != end


@pytest.mark.cases(14)
@pytest.mark.parametrize("name", golden_files.CLEAN_DIRECTORIES)
def test_what_kafka_wrote_comes_out_byte_for_byte(log, tmp_path, name):
    directory = golden_files.golden_dir(name)
    topic = directory.name.rpartition("-")[0]
    log.import_kafka(str(directory))
    log.export_kafka(str(tmp_path / "out"))
    before, after = files(directory), files(tmp_path / "out" / directory.name)
    end = max(end for _, end in log.topic(topic).offsets().values())
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in differing if not is_stray_snapshot(name, before, end)} == set()
    assert log.import_kafka(str(directory)).partitions[0]["segments"] == 0


def test_a_whole_log_dirs_keeps_its_checkpoints(log, tmp_path):
    source = golden_files.GOLDEN / "broker-data"
    log.import_kafka(str(source))
    log.export_kafka(str(tmp_path / "out"))
    for name in CHECKPOINTS:
        ours = offsets(tmp_path / "out" / name)
        # What the controller's own log has in the checkpoints is not a topic's.
        assert {at: offset for at, offset in ours.items() if at[0] != "__cluster_metadata"} == offsets(source / name)
    assert log.topic("orders").offsets()[0] == (500, 1590)
    assert log.topic("orders").config.retention_ms == -1


def test_a_live_directory_comes_out_without_what_was_preallocated(log, tmp_path):
    directory = golden_files.golden_dir("live-0")
    log.import_kafka(str(directory))
    log.export_kafka(str(tmp_path / "out"))
    after = files(tmp_path / "out" / "live-0")
    for name, content in files(directory).items():
        if name.endswith(".log") or not name.startswith("00000000000000002094."):
            assert after[name] == content, name
        else:
            assert content.startswith(after[name]) or name.endswith(".snapshot")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", golden_files.LEGACY_DIRECTORIES)
def test_old_magics_are_converted_record_for_record(log, name):
    directory = golden_files.golden_dir(name)
    topic = directory.name.rpartition("-")[0]
    log.import_kafka(str(directory))
    converted, original = all_records(log, topic), all_records(LogDir.open(str(directory)), topic)
    if name == "legacy-v0-0":  # magic 0 has no timestamps; magic 2 says so by -1
        original = [row | {"timestampType": 0} for row in original]
    assert converted == original
    assert log.import_kafka(str(directory)).partitions[0]["segments"] == 0


def test_a_directory_that_has_grown_adds_what_is_new(log, tmp_path):
    full = golden_files.golden_dir("plain-0")
    growing = tmp_path / "kafka" / "plain-0"
    bases = sorted(path.stem for path in full.glob("*.log"))
    for count in (1, 3, len(bases)):
        shutil.rmtree(growing, ignore_errors=True)
        growing.mkdir(parents=True)
        for path in full.iterdir():
            if path.name.partition(".")[0] in bases[:count] or not path.name[0].isdigit():
                shutil.copy(path, growing)
        if count < len(bases):  # Kafka is in the middle of its last segment
            last = growing / f"{bases[count - 1]}.log"
            batches = [
                batch for batch in golden_files.expected_batches("plain-0") if batch["segment"] == int(last.stem)
            ]
            last.write_bytes(last.read_bytes()[: batches[len(batches) // 2]["position"]])
        log.import_kafka(str(tmp_path / "kafka"))
        assert all_records(log, "plain") == all_records(LogDir.open(str(tmp_path / "kafka")), "plain")
    log.export_kafka(str(tmp_path / "out"))
    after = files(tmp_path / "out" / "plain-0")
    assert {name: after[name] for name in after if name.endswith(".log")} == {
        name: content for name, content in files(full).items() if name.endswith(".log")
    }


def test_another_topic_of_the_name_is_refused(log):
    log.create_topic("plain")
    with pytest.raises(LogDirError, match="is not the topic of"):
        log.import_kafka(str(golden_files.golden_dir("plain-0")))


def test_a_topic_that_was_appended_to_is_refused(log):
    directory = str(golden_files.golden_dir("plain-0"))
    log.import_kafka(directory)
    log.topic("plain").append(pa.table({"value": ["ours"]}))
    with pytest.raises(LogDirError, match="lacks"):
        log.import_kafka(directory)


@pytest.mark.parametrize("damage", ["torn-tail", "torn-header", "zero-tail"])
def test_what_an_interrupted_write_leaves_is_imported(log, tmp_path, damage):
    directory = golden_files.damaged_dir(damage, tmp_path)
    log.import_kafka(str(directory))
    assert log.topic("plain").offsets() == LogDir.open(str(directory)).topic("plain").offsets()


def test_a_flipped_bit_stops_the_import_unless_kafkas_cut_is_asked_for(log, tmp_path):
    directory = golden_files.damaged_dir("flipped-byte", tmp_path)
    with pytest.raises(LogDirError, match="recovery=kafka"):
        log.import_kafka(str(directory))
    assert log.topics() == []
    log.import_kafka(str(directory), recovery="kafka")
    assert log.topic("plain").offsets() == LogDir.open(str(directory)).topic("plain").offsets()


@pytest.mark.proof
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_our_own_topics_are_read_by_another_client(log, tmp_path, codec):
    log.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": "4000", "segment.ms": "1000000000"})
    rows = pa.table(
        {"key": [f"k{n % 40}" for n in range(2000)], "value": [f"value {n} {'x' * (n % 60)}" for n in range(2000)]}
    )
    for start in range(0, 2000, 200):
        log.topic("t").append(rows.slice(start, 200), options=ProducerOptions(codec, 1000))
    roll(log)
    compact(log)
    log.topic("t").append(rows.slice(0, 10), options=ProducerOptions(codec, 1000))
    log.export_kafka(str(tmp_path / "out"))
    seen = []
    for path in sorted((tmp_path / "out" / "t-0").glob("*.log")):
        decoder = MemoryRecords(path.read_bytes())
        while (batch := decoder.next_batch()) is not None:
            assert batch.validate_crc()
            seen += [(record.offset, record.key, record.value) for record in batch]
        assert decoder.size_in_bytes() == path.stat().st_size
    ours = [(row["offset"], row["key"], row["value"]) for row in all_records(log, "t")]
    assert seen == ours
    assert len(ours) < 2010
    assert all_records(LogDir.open(str(tmp_path / "out")), "t") == all_records(log, "t")


def test_a_directory_that_is_there_is_not_written_over(log, tmp_path):
    log.import_kafka(str(golden_files.golden_dir("canary-0")))
    log.export_kafka(str(tmp_path / "out"))
    with pytest.raises(LogDirError, match="already"):
        log.export_kafka(str(tmp_path / "out"))
