"""Imports that are repeated, that go on, that are refused, and that were killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.kafka.internal_topics.consumer_offsets import groups_of_records
from spark_segments.maintenance import mirror, retain, roll, vacuum, verify
from tests.conftest import ROOT
from tests.log.golden_reads import as_records, records_of, tree
from tests.log.kafka_copies import assert_same_partition, import_golden, topic_of
from tests.log.overlapping import TOPIC, Batch, SegmentOf, served, write_partition
from tests.log.test_overlaps import each
from verification.simulation.broker.disk import ABORT, COMMIT, PlayedBatch
from verification.world.kafka_bytes.golden_files import (
    GOLDEN,
    LEGACY_DIRECTORIES,
    damaged_dir,
    expected_batches,
    expected_records,
    golden_dir,
    log_files,
)
from verification.world.kafka_bytes.legacy_messages import message, wrapper
from verification.world.kafka_bytes.segment_bytes import batches_of, rebuild
from verification.world.topics import records

DAY_MS = 86_400_000
LATER_MS = 2_000_000_000_000


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    """A directory to put partitions of Kafka's into."""
    directory = tmp_path / "kafka"
    directory.mkdir()
    return directory


def exported(log: LogDir, tmp_path: Path, name: str) -> Path:
    log.export_kafka(str(tmp_path / "exported"), topic_of(name))
    return tmp_path / "exported" / golden_dir(name).name


def growing(name: str, directory: Path) -> Iterator[int]:
    """Copies a partition's segments one after another, each first to its half, as a live broker's is, then whole.
    Yields the log end offset after each step.
    """
    source = golden_dir(name)
    ends = {(batch["segment"], batch["position"]): batch["lastOffset"] + 1 for batch in expected_batches(name)}
    directory.mkdir()
    for file in (path for path in source.iterdir() if not path.name.startswith("0000")):
        shutil.copy(file, directory)
    (directory / "leader-epoch-checkpoint").unlink()
    for log_file in log_files(name):
        base = int(log_file.stem)
        positions = sorted(position for segment, position in ends if segment == base)
        half = positions[len(positions) // 2]
        (directory / log_file.name).write_bytes(log_file.read_bytes()[:half])
        for suffix in (".index", ".timeindex"):  # a live broker's are allocated in full
            (directory / f"{log_file.stem}{suffix}").write_bytes(bytes(12 * 8 * 10))
        if half:
            yield ends[base, positions[len(positions) // 2 - 1]]
        for file in source.glob(f"{log_file.stem}.*"):
            shutil.copy(file, directory)
        yield ends[base, positions[-1]]
    for file in source.iterdir():
        shutil.copy(file, directory)
    yield max(ends.values())


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["plain-0", "txn-0", "multiappend-0"])
def test_a_directory_that_grows_is_followed(log, tmp_path, kafka, name):
    directory = kafka / golden_dir(name).name
    imported = 0
    for log_end in growing(name, directory):
        log.import_kafka(str(kafka))
        assert log.topic(topic_of(name)).offsets() == {0: (0, log_end)}
        imported += 1
    assert imported > 4
    log.import_kafka(str(kafka))
    assert_same_partition(golden_dir(name), exported(log, tmp_path, name))
    assert verify(log, deep=True).findings == []


def test_what_is_there_already_is_not_copied_again(log, kafka):
    directory = kafka / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    hidden = [*directory.glob("*4885*"), directory / "00000000000000005000.snapshot"]
    last = {path: path.read_bytes() for path in hidden}
    for path in hidden:
        path.unlink()
    first = log.import_kafka(str(kafka)).partitions[0]
    for path, content in last.items():
        path.write_bytes(content)
    second = log.import_kafka(str(kafka)).partitions[0]
    third = log.import_kafka(str(kafka)).partitions[0]
    assert [one["segments"] for one in (first, second, third)] == [7, 2, 0]  # the active one again, when it is sealed
    assert [one["records_in"] for one in (first, second, third)] == [4885, 5000 - 4184, 0]
    assert log.topic("plain").offsets() == {0: (0, 5000)}


def test_an_import_that_adds_nothing_commits_nothing(log):
    import_golden(log, "plain-0")
    version = log.topic("plain").snapshot.version
    import_golden(log, "plain-0")
    assert log.topic("plain").snapshot.version == version


def test_a_new_partition_comes_with_the_next_import(log, kafka):
    shutil.copytree(GOLDEN / "broker-data" / "orders-0", kafka / "orders-0")
    log.import_kafka(str(kafka))
    shutil.copytree(GOLDEN / "broker-data" / "orders-1", kafka / "orders-1")
    log.import_kafka(str(kafka))
    assert log.topic("orders").offsets() == {0: (0, 1590), 1: (0, 1410)}


def test_the_last_segment_stays_the_active_one(log):
    import_golden(log, "plain-0")
    rows = log.topic("plain").snapshot.live_of(0)
    assert [row.state for row in rows] == ["sealed"] * 7 + ["chunk"]


def test_nothing_expires_for_having_been_imported(log):
    import_golden(log, "plain-0")
    assert log.topic("plain").snapshot.config == {"retention.ms": "-1"}
    roll(log, now_ms=LATER_MS)
    assert retain(log, now_ms=LATER_MS).records_out == retain(log, now_ms=LATER_MS).records_in
    assert log.topic("plain").offsets() == {0: (0, 5000)}


def test_the_configuration_of_the_caller_wins(log):
    import_golden(log, "plain-0", config={"retention.ms": "1000", "cleanup.policy": "compact"})
    assert log.topic("plain").snapshot.config == {"retention.ms": "1000", "cleanup.policy": "compact"}


def test_jobs_go_on_with_what_was_imported(log):
    import_golden(log, "plain-0")
    expected = as_records(expected_records("plain-0"))
    log.topic("plain").append(records(10), options=ProducerOptions("none"))
    roll(log, now_ms=LATER_MS)
    vacuum(log, now_ms=LATER_MS)
    rows = records_of(log.topic("plain").scan().batches())
    assert rows[:5000] == expected
    assert [row[1] for row in rows[5000:]] == list(range(5000, 5010))
    assert verify(log, deep=True).findings == []


def test_a_topic_with_another_id_is_refused(log):
    log.create_topic("plain", 1)
    with pytest.raises(LogDirError, match="is not the topic of the Kafka directory"):
        import_golden(log, "plain-0")
    assert log.topic("plain").offsets() == {0: (0, 0)}


def test_an_unrelated_topic_of_the_same_name_is_refused(log, kafka):
    import_golden(log, "canary-0")
    shutil.copytree(golden_dir("plain-0"), kafka / "canary-0")
    (kafka / "canary-0" / "partition.metadata").unlink()  # as in a directory of a Kafka that knew no ids
    before = tree(Path(log.uri) / "canary-0")
    with pytest.raises(LogDirError):
        log.import_kafka(str(kafka))
    assert tree(Path(log.uri) / "canary-0") == before


def test_a_topic_that_was_appended_to_is_refused(log):
    import_golden(log, "plain-0")
    log.topic("plain").append(records(1))
    with pytest.raises(LogDirError, match="has records that the Kafka directory lacks"):
        import_golden(log, "plain-0")


def test_a_topic_that_was_appended_to_is_refused_also_when_the_directory_has_more(log, kafka):
    directory = kafka / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    for path in [*directory.glob("*4885*"), *directory.glob("*5000*")]:
        path.unlink()
    log.import_kafka(str(kafka))
    log.topic("plain").append(records(1))
    with pytest.raises(LogDirError, match="holds other records than the Kafka directory"):
        import_golden(log, "plain-0")


def test_an_unknown_topic_is_an_error(log):
    with pytest.raises(UnknownTopicError):
        log.import_kafka(str(GOLDEN / "broker-data"), "nothing")


def test_a_directory_without_topics_is_an_error(log, kafka):
    with pytest.raises(LogDirError):
        log.import_kafka(str(kafka))
    assert log.topics() == []


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "damage", ["torn-tail", "torn-header", "zero-tail", "missing-index", "corrupt-index", "missing-snapshot"]
)
def test_what_a_crash_leaves_is_imported(log, tmp_path, damage):
    source = damaged_dir(damage, tmp_path)
    log.import_kafka(str(source))
    kafka_log = LogDir.open(str(source))
    assert records_of(log.topic("plain").scan().batches()) == records_of(kafka_log.topic("plain").scan().batches())
    assert log.topic("plain").offsets() == kafka_log.topic("plain").offsets()
    assert log.topic("plain").offsets()[0][1] >= 4986
    assert verify(log, deep=True).findings == []


def test_a_flipped_byte_is_refused(log, tmp_path):
    with pytest.raises(LogDirError, match="recovery=kafka") as error:
        log.import_kafka(str(damaged_dir("flipped-byte", tmp_path)))
    assert "00000000000000002773.log: 32793 bytes from position 31654" in str(error.value)
    assert log.topics() == [] and list(Path(log.uri).rglob("*.log")) == []


def test_a_flipped_byte_is_cut_where_that_is_asked_for(log, tmp_path):
    log.import_kafka(str(damaged_dir("flipped-byte", tmp_path)), recovery="kafka")
    assert log.topic("plain").offsets() == {0: (0, 3116)}
    expected = as_records(expected_records("plain-0"), where=lambda line: line["offset"] < 3116)
    assert records_of(log.topic("plain").scan().batches()) == expected
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("position", [0, 500, 11_000])
def test_a_flipped_byte_in_the_last_segment_is_refused_too(log, tmp_path, position):
    source = damaged_dir("missing-snapshot", tmp_path)  # plain-0 with an undamaged log
    last = max(source.glob("*.log"))
    content = bytearray(last.read_bytes())
    content[position + 61] ^= 0x40
    last.write_bytes(content)
    with pytest.raises(LogDirError, match="recovery=kafka"):
        log.import_kafka(str(source))


@pytest.mark.rule("W3")
@pytest.mark.parametrize("indexes", [False, True], ids=["without indexes", "indexes of what fits"])
def test_a_segment_with_offsets_beyond_an_int32_is_read_and_not_imported(log, tmp_path, indexes):
    """Cleaners before Kafka 1.1.1 could write it; a broker since then splits it when it loads it."""
    far = 2**31
    segments = [each(0, [0, 1, 2, far - 1, far, far + 5]), each(far + 9, [far + 9])]
    directory = write_partition(tmp_path / "kafka", segments, indexes=False)
    if indexes:
        batches = batches_of((directory / f"{0:020d}.log").read_bytes())
        index, time_index = rebuild(batches.take(slice(4)), 0, interval_bytes=1)
        (directory / f"{0:020d}.index").write_bytes(index)
        (directory / f"{0:020d}.timeindex").write_bytes(time_index)
    kafka = LogDir.open(str(tmp_path / "kafka"))
    assert records_of(kafka.topic(TOPIC).scan().batches()) == served(segments, 0)[0]
    assert [one[1] for one in records_of(kafka.topic(TOPIC).scan(offsets=(far, None)).batches())] == [
        far,
        far + 5,
        far + 9,
    ]
    with pytest.raises(LogDirError, match=f"offset.*{0:020d}.log at position.*2147483647 above.*found {far}") as raised:
        log.import_kafka(str(tmp_path / "kafka"))
    assert "splits the segment" in (raised.value.hint or "")
    assert log.topics() == []
    write_partition(tmp_path / "split", [each(0, [0, 1, 2, far - 1]), each(far, [far, far + 5]), segments[1]])
    log.import_kafka(str(tmp_path / "split"))
    assert [one[1] for one in records_of(log.topic(TOPIC).scan().batches())] == [
        0,
        1,
        2,
        far - 1,
        far,
        far + 5,
        far + 9,
    ]


def test_a_batch_that_ends_beyond_an_int32_is_not_imported(log, tmp_path):
    """Only its last offset is too far away: its records are not."""
    far = 2**31
    wide = Batch(far - 5, far, each(0, [far - 5]).batches[0].records)
    write_partition(tmp_path / "kafka", [SegmentOf(0, (wide,)), each(far + 9, [far + 9])], indexes=False)
    assert len(records_of(LogDir.open(str(tmp_path / "kafka")).topic(TOPIC).scan().batches())) == 2
    with pytest.raises(LogDirError, match=r"at position 0.*splits the segment"):
        log.import_kafka(str(tmp_path / "kafka"))
    assert log.topics() == []


def test_only_kafkas_recovery_is_known(log):
    with pytest.raises(InvalidOptionError):
        import_golden(log, "plain-0", recovery="best-effort")


def test_importing_writes_nothing_into_the_directory(log, tmp_path):
    source = damaged_dir("torn-tail", tmp_path)
    before = tree(source)
    log.import_kafka(str(source))
    assert tree(source) == before


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_old_magics_are_converted_record_for_record(log, name):
    import_golden(log, name)
    # Magic 2 cannot say that a timestamp has no type: it is a create time, of -1, as Kafka's own conversion has it.
    expected = [(*row[:3], max(row[3], 0), *row[4:]) for row in as_records(expected_records(name))]
    assert records_of(log.topic(topic_of(name)).scan().batches()) == expected
    for row in log.topic(topic_of(name)).snapshot.live_of(0):
        assert log.storage.read(row.path, 16, 1).to_pybytes() == b"\x02"
    assert verify(log, deep=True).findings == []


def steps_of(log_dir: Path, last: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "verification.kills.killed_import",
        str(golden_dir("txn-0")),
        str(log_dir),
        str(last),
    ]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.cases(1)
@pytest.mark.parametrize("step", [2, 9, 40, -1])
def test_an_import_that_was_killed_goes_on_and_ends_equal(tmp_path, python_environment, step):
    if step < 0:  # between the last segment's file and its commit
        step += int(steps_of(tmp_path / "counted", 0, python_environment).stdout) - 3
    assert steps_of(tmp_path / "log", step, python_environment).returncode == -signal.SIGKILL
    log = LogDir.create(str(tmp_path / "log"))
    import_golden(log, "txn-0")
    assert records_of(log.topic("txn").scan(include_control=True).batches()) == as_records(expected_records("txn-0"))
    assert_same_partition(golden_dir("txn-0"), exported(log, tmp_path, "txn-0"))
    vacuum(log, now_ms=log.storage.now_ms())
    assert verify(log, deep=True).errors == 0


def test_a_segment_that_goes_on_with_transactions_after_old_messages_keeps_what_was_aborted(kafka, tmp_path):
    """A topic whose message format was raised: old messages first, then a producer that aborts and one that commits."""
    batches = [
        message(0, b"old", timestamp=1),
        PlayedBatch(1, 1, 0, {1: (b"a", b"undone")}, producer=1).data,
        PlayedBatch(2, 2, 0, {}, producer=1, marker=ABORT).data,
        PlayedBatch(3, 3, 0, {3: (b"a", b"kept")}, producer=2).data,
        PlayedBatch(4, 4, 0, {}, producer=2, marker=COMMIT).data,
    ]
    (kafka / "prices-0").mkdir()
    (kafka / "prices-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(kafka))
    read = {
        isolation: [row["value"] for row in log.topic("prices").scan(isolation=isolation).to_table().to_pylist()]
        for isolation in ("read_uncommitted", "read_committed")
    }
    assert read == {"read_uncommitted": [b"old", b"undone", b"kept"], "read_committed": [b"old", b"kept"]}
    assert verify(log, deep=True).errors == 0


def test_a_mirror_finds_damage_in_old_messages_that_it_copies_as_they_are(kafka, tmp_path):
    """A topic whose message format was lowered: behind a batch of magic 2, an import leaves old messages."""
    inside = message(0, b"b") + message(1, b"c")
    data = PlayedBatch(0, 0, 0, {0: (None, b"a")}, producer=-1).data + wrapper(2, inside) + message(3, b"d")
    (kafka / "prices-0").mkdir()
    for suffix, content in {"log": data, "index": b"", "timeindex": b""}.items():
        (kafka / "prices-0" / f"{0:020d}.{suffix}").write_bytes(content)
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(kafka))
    assert [row["value"] for row in log.topic("prices").scan().to_table().to_pylist()] == [b"a", b"b", b"c", b"d"]
    (path,) = (tmp_path / "log").rglob("*.log")
    assert path.read_bytes() == data
    path.write_bytes(data[:-1] + b"x")
    follower = LogDir.create(str(tmp_path / "follower"))
    [failed] = mirror(follower, leader=log).failed
    assert "the CRC-32 of a message does not match" in failed["error"] and not follower.topics()
    path.write_bytes(data)
    assert not mirror(follower, leader=log).failed
    (row,) = follower.topic("prices").snapshot.live_of(0)
    assert (tmp_path / "follower" / row.path).read_bytes() == data


def test_groups_come_with_their_topics(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(GOLDEN / "broker-data"), "orders", groups=["g*"])
    assert log.group("g1").positions().offsets == {"orders": {0: 1590, 1: 1410}}  # and in payments, which is not here
    assert log.group("g2").positions()["orders", 0].metadata == "via txn"  # committed by a transaction
    log.import_kafka(str(GOLDEN / "broker-data"), "payments", groups=["g1"])
    assert log.group("g1").positions().offsets == {"orders": {0: 1590, 1: 1410}, "payments": {0: 36}}
    with pytest.raises(InvalidOptionError, match="no group g3"):
        log.import_kafka(str(GOLDEN / "broker-data"), "orders", groups=["g3"])


def broker_without(place: Path, *partitions: str) -> str:
    """The directory of a broker that does not hold these partitions."""
    shutil.copytree(GOLDEN / "broker-data", place)
    for name in partitions:
        shutil.rmtree(place / name)
    return str(place)


def test_groups_of_one_broker_keep_their_positions_and_get_those_in_its_partitions(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    first = log.import_kafka(broker_without(tmp_path / "1", "orders-1", "payments-0"), groups=["g1"])
    assert log.group("g1").positions().offsets == {"orders": {0: 1590}}
    assert first.details["positions_elsewhere"] == [
        {"group": "g1", "topic": "orders", "partition": 1, "offset": 1410},
        {"group": "g1", "topic": "payments", "partition": 0, "offset": 36},
    ]
    [warning] = [text for text in first.warnings if text.startswith("group g1")]
    assert "orders-1, payments-0 are not imported" in warning
    second = log.import_kafka(broker_without(tmp_path / "2", "orders-0"), groups=["g1"])
    assert log.group("g1").positions().offsets == {"orders": {0: 1590, 1: 1410}, "payments": {0: 36}}
    assert [position["partition"] for position in second.details["positions_elsewhere"]] == [0]
    assert log.import_kafka(str(GOLDEN / "broker-data"), groups=["g1"]).details["positions_elsewhere"] == []


def test_a_directory_without_groups_is_imported_and_says_so(tmp_path):
    """As one of several log.dirs, of which another has the partitions of __consumer_offsets."""
    one = tmp_path / "disk1"
    shutil.copytree(GOLDEN / "broker-data", one, ignore=shutil.ignore_patterns("__consumer_offsets-*"))
    log = LogDir.create(str(tmp_path / "log"))
    report = log.import_kafka(str(one), "orders", groups=["g1"])
    assert report.warnings == [
        f"no group is imported: {one} has no partition of __consumer_offsets, another log.dirs may have"
    ]
    assert log.groups() == [] and log.topic("orders").scan().to_table().num_rows > 0


@pytest.mark.parametrize(
    "value",
    [
        "0000 {} 0002 6869 {}",
        "0001 {} 0002 6869 {} {}",
        "0002 {} 0002 6869 {}",
        "0003 {} 00000007 0002 6869 {}",
        "0004 {} 00000007 03 6869 {} 00",
    ],
)
def test_positions_of_groups_are_read_in_each_version(value):
    key = bytes.fromhex("0001 0001 67 0001 74 00000003")  # OffsetCommitKey: group g, topic t, partition 3
    data = bytes.fromhex(value.format(*[f"{n:016x}" for n in (42, 1_700_000_000_000, 1_800_000_000_000)]))
    members = bytes.fromhex("0002 0001 67")
    assert groups_of_records([(members, b""), (key, data)]) == {"g": {("t", 3): (42, "hi")}}
    with pytest.raises(LogDirError, match="__consumer_offsets cannot be read"):
        groups_of_records([(key, data[:-20])])
    with pytest.raises(LogDirError, match="begins with nothing"):
        groups_of_records([(b"", data)])


def test_a_directory_of_another_program_is_no_partition(tmp_path):
    for name in ("dbus-1", "polkit-1", "orders-0"):
        (tmp_path / "etc" / name).mkdir(parents=True)
        (tmp_path / "etc" / name / "system.conf").write_text("x")
    log = LogDir.create(str(tmp_path / "log"))
    with pytest.raises(LogDirError, match="no such topic to import"):
        log.import_kafka(str(tmp_path / "etc"))
    assert log.topics() == []
    (tmp_path / "etc" / "orders-0" / "00000000000000000000.log").touch()
    log.import_kafka(str(tmp_path / "etc"))
    assert log.topics() == ["orders"]
