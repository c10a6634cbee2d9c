"""Imports of a log that goes on: in Kafka it grew, was cleaned or failed over, here it was rolled, cleaned or cut."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.maintenance import compact, restore, retain, roll, verify
from tests.log.followed_logs import COMPACTED, DAY_MS, LATER_MS, table_of, values
from tests.log.golden_reads import as_records, records_of, tree
from tests.log.kafka_copies import import_golden, topic_of
from tests.log.test_kafka_import import growing
from verification.world.kafka_bytes.golden_files import GOLDEN, LEGACY_DIRECTORIES, expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of, rebase
from verification.world.kafka_side import TOPIC, KafkaSide
from verification.world.manifest_rows import commit_append
from verification.world.topics import SegmentLimits, records

CHAINS = {
    "latest-price": ["before-clean", "after-clean-1"]
    + [f"{step}-clean-{number}" for number in (2, 3, 4) for step in ("before", "after")],
    "bigcompact-none": ["dirty", "clean-1", "dirty-2", "clean-2"],
    "txn-compact": ["dirty", "clean-1"] + [f"{step}-{number}" for number in (2, 3, 4) for step in ("dirty", "clean")],
}
TOPICS = {"latest-price": "latest-price", "bigcompact-none": "bigcompact", "txn-compact": "txnc"}


def stages() -> Iterator[ParameterSet]:
    """(name, before, after, here): steps of a chain that are up to two apart, and its first and last.

    Neighbours that are cleaned in between are in the gate, the others are proofs.
    """
    for name, steps in CHAINS.items():
        for (first, before), (second, after) in itertools.combinations(enumerate(steps), 2):
            if 2 < second - first < len(steps) - 1:
                continue
            for here in ("nothing", "roll", "clean"):
                is_near = second == first + 1 and here == "clean"
                yield pytest.param(name, before, after, here, marks=() if is_near else pytest.mark.proof)


def clean_here(log: LogDir) -> None:
    """Everything is rolled and cleaned, tombstones first get their horizon, then go."""
    for day in range(3):
        now_ms = LATER_MS + day * DAY_MS
        roll(log, now_ms=now_ms)
        report = compact(log, now_ms=now_ms).to_dict()
        assert not [one for one in report["partitions"] if one["action"] == "failed"]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "before", "after", "here"), list(stages()))
def test_a_value_that_was_deleted_stays_deleted(log, name, before, after, here):
    topic = TOPICS[name]
    log.import_kafka(str(GOLDEN / name / before), config=COMPACTED)
    if here == "roll":
        roll(log, now_ms=LATER_MS)
    elif here == "clean":
        clean_here(log)
    log.import_kafka(str(GOLDEN / name / after))
    kafka = LogDir.open(str(GOLDEN / name / after))
    assert log.topic(topic).offsets() == kafka.topic(topic).offsets()
    assert table_of(log, topic) == table_of(kafka, topic)
    assert verify(log, deep=True).errors == 0
    clean_here(log)
    assert table_of(log, topic) == table_of(kafka, topic)


def test_what_was_copied_dirty_stays_dirty(log):
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean-2"))
    partition = log.topic("latest-price").snapshot.partition(0)
    assert (partition.first_dirty_offset, partition.log_end_offset) == (0, 23)


def test_the_cleaner_checkpoint_of_a_copy_that_is_the_same_holds(log):
    log.import_kafka(str(GOLDEN / "latest-price" / "after-clean-1"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean-2"))
    assert log.topic("latest-price").snapshot.partition(0).first_dirty_offset == 19


def test_segments_give_way_to_a_log_that_was_cleaned_beyond_them(log):
    """A tombstone above our log end may be gone there, and the value that it hid be here."""
    name = "latest-price/after-clean-4/latest-price-0"
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "after-clean-4"))
    assert records_of(log.topic("latest-price").scan().batches()) == as_records(expected_records(name))
    assert log.topic("latest-price").snapshot.partition(0).first_dirty_offset == 27


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["plain-0", "txn-0", "multiappend-0", "zstd-0"])
def test_a_directory_that_grows_is_followed_over_rolls(log, tmp_path, name):
    (tmp_path / "kafka").mkdir()
    for log_end in growing(name, tmp_path / "kafka" / golden_dir(name).name):
        log.import_kafka(str(tmp_path / "kafka"))
        assert log.topic(topic_of(name)).offsets() == {0: (0, log_end)}
        roll(log, now_ms=LATER_MS)
    expected = as_records(expected_records(name))
    assert records_of(log.topic(topic_of(name)).scan(include_control=True).batches()) == expected
    assert verify(log, deep=True).errors == 0


@pytest.mark.cases(1)
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_old_magics_are_followed_over_rolls(log, tmp_path, name, rolled):
    topic = topic_of(name)
    directory = tmp_path / "kafka" / golden_dir(name).name
    shutil.copytree(golden_dir(name), directory)
    last = max(directory.glob("*.log"))
    content = last.read_bytes()
    positions = batches_of(content).byte_position
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex"), *directory.glob("*.snapshot")]:
        path.unlink()
    last.write_bytes(content[: positions[len(positions) // 2]])
    log.import_kafka(str(tmp_path / "kafka"))
    assert 0 < log.topic(topic).offsets()[0][1] < LogDir.open(str(golden_dir(name))).topic(topic).offsets()[0][1]
    if rolled:
        roll(log, now_ms=LATER_MS)
    last.write_bytes(content)
    log.import_kafka(str(tmp_path / "kafka"))
    expected = [(*row[:3], max(row[3], 0), *row[4:]) for row in as_records(expected_records(name))]
    assert records_of(log.topic(topic).scan().batches()) == expected
    assert verify(log, deep=True).errors == 0


def kafka_with(tmp_path: Path, batches: int) -> KafkaSide:
    kafka = KafkaSide(tmp_path / "kafka")
    for _ in range(batches):
        kafka.append([(b"a", True), (b"b", True), (b"c", True)])
    return kafka


@pytest.mark.parametrize("rolled", [False, True])
def test_a_log_that_was_truncated_and_went_on_is_refused(log, tmp_path, rolled):
    kafka = kafka_with(tmp_path, 10)
    log.import_kafka(kafka.write())
    if rolled:
        roll(log, now_ms=LATER_MS)
    kafka.fail_over(4)
    for _ in range(9):
        kafka.append([(b"a", True), (b"b", True), (b"c", True)])
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match="other records than the Kafka directory from offset 18 on"):
        log.import_kafka(kafka.write())
    assert tree(Path(log.uri)) == before


def test_a_batch_that_begins_below_the_log_end_is_refused(log, tmp_path):
    kafka = kafka_with(tmp_path, 10)
    log.import_kafka(kafka.write())
    roll(log, now_ms=LATER_MS)
    kafka.fail_over(1)
    kafka.written -= 3  # the same records are sent again, with others behind them in the batch
    kafka.epochs.pop()
    kafka.append([(b"a", True), (b"b", True), (b"c", True), (b"d", True)])
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match="other records than the Kafka directory from offset 30 on"):
        log.import_kafka(kafka.write())
    assert tree(Path(log.uri)) == before


def test_batches_of_another_leader_are_other_records(log, tmp_path):
    kafka = kafka_with(tmp_path, 10)
    log.import_kafka(kafka.write())
    roll(log, now_ms=LATER_MS)
    kafka.fail_over(1)
    kafka.written -= 3
    kafka.append([(b"a", True), (b"b", True), (b"c", True)])
    with pytest.raises(LogDirError, match="from offset 27 on"):
        log.import_kafka(kafka.write())


def test_a_log_that_became_shorter_is_refused_where_it_ends(log, tmp_path):
    kafka = kafka_with(tmp_path, 10)
    log.import_kafka(kafka.write())
    roll(log, now_ms=LATER_MS)
    kafka.fail_over(2)
    with pytest.raises(LogDirError, match="has records that the Kafka directory lacks, from offset 24 on"):
        log.import_kafka(kafka.write())


def test_other_records_in_a_cleaned_batch_are_found(log, tmp_path):
    kafka = kafka_with(tmp_path, 10)
    kafka.append([(b"d", True), (b"e", True)])
    log.import_kafka(kafka.write(), config=COMPACTED)
    kafka.fail_over(1)
    kafka.epochs.pop()  # the chains say nothing
    kafka.append([(b"d", True), (b"e", True)])
    kafka.append([(b"d", True)])
    kafka.roll()
    kafka.clean(merge=False)
    kafka.append([(b"a", True)])
    with pytest.raises(LogDirError, match="from offset 31 on"):
        log.import_kafka(kafka.write())


def test_a_prefix_that_was_removed_on_either_side_is_not_missed(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    for _ in range(4):
        kafka.roll()
        kafka.append([(b"a", True), (b"b", True)])
    log.import_kafka(kafka.write(), config={"retention.ms": "-1"})
    log.topic(TOPIC).delete_records({0: 13})
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.topic(TOPIC).offsets() == {0: (13, 21)}
    kafka.delete_records(17)
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.topic(TOPIC).offsets() == {0: (17, 22)}
    assert values(log) == {offset: record for offset, record in kafka.history.items() if offset >= 17}


def test_a_log_whose_records_are_all_new_is_taken(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    for _ in range(4):
        kafka.roll()
        kafka.append([(b"a", True), (b"b", True)])
    kafka.delete_records(17)
    log.import_kafka(kafka.write())
    assert log.topic(TOPIC).offsets() == {0: (17, 20)}
    assert values(log) == kafka.records()


def test_a_log_that_retention_emptied_here_goes_on(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config={"retention.ms": "1000"})
    roll(log, now_ms=LATER_MS)
    retain(log, now_ms=LATER_MS)
    assert log.topic(TOPIC).offsets() == {0: (12, 12)}
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.topic(TOPIC).offsets() == {0: (12, 13)}
    assert values(log) == {12: kafka.history[12]}


def test_an_empty_segment_comes_before_the_one_that_begins_where_it_does(log, tmp_path):
    """Kafka's active segment was empty when it was imported. What came then begins at the same offset."""
    kafka = kafka_with(tmp_path, 3)
    kafka.roll()
    log.import_kafka(kafka.write(), config=COMPACTED)
    compact(log)
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    log.topic(TOPIC).manifest.merge_files()
    snapshot = log.topic(TOPIC).snapshot
    assert [(row.base_offset, row.next_offset) for row in snapshot.live_of(0)] == [(0, 9), (9, 9), (9, 10)]
    assert verify(log, deep=True).ok
    kafka.append([(b"b", True)])
    log.import_kafka(kafka.write())
    [line] = restore(log, topics=[TOPIC], version=snapshot.version).partitions
    assert (line["log_start_offset"], line["log_end_offset"]) == (0, 11)
    assert values(log) == {offset: kafka.history[offset] for offset in (6, 7, 8, 9)}
    assert verify(log, deep=True).ok


def test_a_version_from_before_a_topic_was_imported_anew_is_not_restored(log, tmp_path):
    """The topic has Kafka's id both times. What was deleted with the first does not come back in the second."""
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    before = log.topic(TOPIC).snapshot.version
    log.delete_topic(TOPIC)
    log.import_kafka(kafka.write())
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    with pytest.raises(LogDirError, match=f"Version {before} is of another topic"):
        restore(log, topics=[TOPIC], version=before)
    assert values(log) == kafka.records()


def test_a_topic_that_was_deleted_here_can_be_imported_again(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    kafka.fail_over(2)
    kafka.append([(b"a", True)])
    log.delete_topic(TOPIC)
    log.import_kafka(kafka.write())
    assert values(log) == kafka.records()
    assert verify(log, deep=True).errors == 0


def test_a_segment_that_was_rolled_there_follows_one_that_is_active_here(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config=COMPACTED)
    kafka.append([(b"a", True)])
    kafka.roll()
    kafka.append([(b"b", True)])
    kafka.roll()
    kafka.append([(b"c", True)])
    kafka.clean(merge=True)
    log.import_kafka(kafka.write())
    states = [row.state for row in log.topic(TOPIC).snapshot.live_of(0)]
    assert states == sorted(states, reverse=True)  # sealed ones, then chunks
    roll(log, now_ms=LATER_MS)
    assert verify(log, deep=True).errors == 0


def append_shared(log: LogDir, data: bytes) -> None:
    """Appends a batch of Kafka's as the run of a shared object, as a merge of small chunks leaves it."""
    buffer = np.frombuffer(data, np.uint8).copy()
    rebase(buffer, batches_of(buffer), -int.from_bytes(data[:8]), None)
    limits, topic_id = SegmentLimits.of(log.topic(TOPIC).config), log.topic(TOPIC).snapshot.topic_id
    with SharedObjectWriter(log.storage, TOPIC, topic_id, limits) as writer:
        writer.begin(0, log.storage.now_ms())
        writer.append(buffer, batches_of(buffer))
        chunks = writer.close()
    commit_append(log.topic(TOPIC).manifest, chunks)


def test_segments_above_a_run_of_a_shared_object_are_refused_until_it_is_rolled(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    kafka.append([(b"a", True)])
    append_shared(log, kafka.segments[-1][1][-1].to_bytes())
    assert log.topic(TOPIC).snapshot.live_of(0)[-1].is_shared
    kafka.roll()
    kafka.append([(b"b", True)])
    kafka.roll()
    kafka.append([(b"c", True)])
    before = log.topic(TOPIC).snapshot
    with pytest.raises(LogDirError, match="roll the topic, then import again") as refused:
        log.import_kafka(kafka.write())
    assert before.live_of(0)[-1].path in str(refused.value)
    assert (log.topic(TOPIC).snapshot.version, log.topic(TOPIC).offsets()) == (before.version, {0: (0, 13)})

    roll(log, now_ms=LATER_MS)
    log.import_kafka(kafka.write())

    there = LogDir.open(kafka.write())
    assert log.topic(TOPIC).offsets() == there.topic(TOPIC).offsets() == {0: (0, 15)}
    assert records_of(log.topic(TOPIC).scan().batches()) == records_of(there.topic(TOPIC).scan().batches())
    assert verify(log, deep=True).errors == 0


def test_a_topic_that_was_compacted_while_it_was_imported_is_left(log, tmp_path, monkeypatch):
    from spark_segments.kafka import importing

    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config=COMPACTED)
    kafka.append([(b"a", True)])
    run = importing.try_tasks

    def run_and_clean(*args, **options):
        rows = run(*args, **options)
        clean_here(log)
        return rows

    monkeypatch.setattr(importing, "try_tasks", run_and_clean)
    with pytest.raises(SegmentsError, match="changed while it was imported"):
        log.import_kafka(kafka.write())
    monkeypatch.undo()
    log.import_kafka(kafka.write())
    assert table_of(log, TOPIC) == table_of(LogDir.open(kafka.write()), TOPIC)


@pytest.mark.parametrize(
    ("cleaned", "stage"),
    [("after-clean-3", "before-clean-4"), ("after-clean-4", "after-clean-4")],
    ids=["new records", "nothing new"],
)
def test_a_topic_that_was_restored_while_it_was_imported_is_left(log, tmp_path, monkeypatch, cleaned, stage):
    """The restore brings back what Kafka's cleaner has removed, and the plan of the import knows nothing of it."""
    from spark_segments.kafka import importing

    stages = GOLDEN / "latest-price"
    log.import_kafka(str(stages / "before-clean"), config=COMPACTED)
    uncleaned = log.topic("latest-price").snapshot.version
    log.import_kafka(str(stages / cleaned))
    plan = importing.plan_import

    def plan_and_restore(*args, **options):
        plans = plan(*args, **options)
        restore(log, topics=["latest-price"], version=uncleaned)
        return plans

    monkeypatch.setattr(importing, "plan_import", plan_and_restore)
    copy = shutil.copytree(stages / stage, tmp_path / "kafka", copy_function=shutil.copyfile)  # files of another time
    with pytest.raises(SegmentsError, match="changed while it was imported"):
        log.import_kafka(str(copy))
    monkeypatch.undo()
    assert log.topic("latest-price").snapshot.partition(0).first_dirty_offset == 0
    log.import_kafka(str(stages / stage))
    assert log.topic("latest-price").offsets() == LogDir.open(str(stages / stage)).topic("latest-price").offsets()
    assert verify(log, deep=True).errors == 0


@pytest.mark.parametrize("grows", [False, True], ids=["nothing new", "new records"])
@pytest.mark.parametrize("stays", [False, True], ids=["and deleted", "and kept"])
def test_a_topic_that_was_appended_to_while_it_was_imported_is_left(log, tmp_path, monkeypatch, grows, stays):
    """An append between the plan and the commit takes offsets that the directory gives to other records."""
    from spark_segments.kafka import importing

    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config={"cleanup.policy": "delete"})
    kafka.delete_records(2)
    if grows:
        kafka.roll()
        kafka.append([(b"a", True)])
    plan = importing.plan_import

    def plan_and_append(*args, **options):
        plans = plan(*args, **options)
        log.topic(TOPIC).append([{"key": b"own", "value": b"own", "partition": 0}] * 2)
        if not stays:
            log.topic(TOPIC).delete_records({0: -1})
        return plans

    monkeypatch.setattr(importing, "plan_import", plan_and_append)
    end = log.topic(TOPIC).offsets()[0][1]
    with pytest.raises(SegmentsError, match="changed while it was imported") as refused:
        log.import_kafka(kafka.write())
    assert f"expected a log end of {end}," in str(refused.value) and f"found a log end of {end + 2}," in str(
        refused.value
    )
    assert refused.value.hint is not None
    assert log.topic(TOPIC).offsets() == {0: (0 if stays else end + 2, end + 2)}


def test_segments_that_take_the_place_of_cleaned_ones_are_dirty_where_nothing_says_otherwise(log, tmp_path):
    """A copy of Kafka's directory without cleaner-offset-checkpoint. The import itself puts the offset back."""
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean"), config=COMPACTED)
    clean_here(log)
    assert log.topic("latest-price").snapshot.partition(0).first_dirty_offset == 20
    kafka = shutil.copytree(GOLDEN / "latest-price" / "after-clean-4", tmp_path / "kafka")
    (kafka / "cleaner-offset-checkpoint").unlink()
    log.import_kafka(str(kafka))
    assert log.topic("latest-price").snapshot.partition(0).first_dirty_offset == 0
    assert table_of(log, "latest-price") == table_of(LogDir.open(str(kafka)), "latest-price")


def test_records_appended_here_are_found_behind_a_roll(log):
    import_golden(log, "plain-0")
    log.topic("plain").append(records(1))
    roll(log, now_ms=LATER_MS)
    with pytest.raises(LogDirError, match="has records that the Kafka directory lacks, from offset 5000 on"):
        import_golden(log, "plain-0")
