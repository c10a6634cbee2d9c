"""Imports of a log that goes on: in Kafka it grew, was cleaned or failed over, here it was rolled, cleaned or cut."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.format.batches import scan_batches
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, retain, roll
from spark_segments.maintenance.removal.restore import restore
from tests.golden_files import GOLDEN, LEGACY_DIRECTORIES, expected_records, golden_dir
from tests.log.golden_reads import as_records, records_of, tree
from tests.log.kafka_copies import import_golden, topic_of
from tests.log.kafka_side import TOPIC, KafkaSide
from tests.log.test_kafka_import import growing
from tests.maintenance.appending import records

LATER_MS = 2_000_000_000_000
DAY_MS = 86_400_000
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "600000",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "131072",
}
CHAINS = {
    "latest-price": ["before-clean", "after-clean-1"]
    + [f"{step}-clean-{number}" for number in (2, 3, 4) for step in ("before", "after")],
    "bigcompact-none": ["dirty", "clean-1", "dirty-2", "clean-2"],
    "txn-compact": ["dirty", "clean-1"] + [f"{step}-{number}" for number in (2, 3, 4) for step in ("dirty", "clean")],
}
TOPICS = {"latest-price": "latest-price", "bigcompact-none": "bigcompact", "txn-compact": "txnc"}
PAIRS = [(name, *pair) for name, steps in CHAINS.items() for pair in itertools.combinations(steps, 2)]


def table_of(log: LogDir, topic: str) -> dict[bytes, bytes]:
    """The newest value of each key, as a reader who builds a table of the topic gets it."""
    found: dict[bytes, bytes | None] = {}
    for batch in log.read(topic, isolation_level="read_committed"):
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def clean_here(log: LogDir) -> None:
    """Everything is rolled and cleaned, tombstones first get their horizon, then go."""
    for day in range(3):
        now_ms = LATER_MS + day * DAY_MS
        roll(log, now_ms=now_ms)
        report = compact(log, now_ms=now_ms).to_dict()
        assert not [one for one in report["partitions"] if one["action"] == "failed"]


@pytest.mark.parametrize("here", ["nothing", "roll", "clean"])
@pytest.mark.parametrize(("name", "before", "after"), PAIRS)
def test_a_value_that_was_deleted_stays_deleted(log, name, before, after, here):
    topic = TOPICS[name]
    log.import_kafka(str(GOLDEN / name / before), config=COMPACTED)
    if here == "roll":
        roll(log, now_ms=LATER_MS)
    elif here == "clean":
        clean_here(log)
    log.import_kafka(str(GOLDEN / name / after))
    kafka = LogDir.open(str(GOLDEN / name / after))
    assert log.offsets(topic) == kafka.offsets(topic)
    assert table_of(log, topic) == table_of(kafka, topic)
    assert verify(log, deep=True).errors == 0
    clean_here(log)
    assert table_of(log, topic) == table_of(kafka, topic)


def test_what_was_copied_dirty_stays_dirty(log):
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean-2"))
    partition = log.snapshot("latest-price").partition(0)
    assert (partition.first_dirty_offset, partition.log_end_offset) == (0, 23)


def test_the_cleaner_checkpoint_of_a_copy_that_is_the_same_holds(log):
    log.import_kafka(str(GOLDEN / "latest-price" / "after-clean-1"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean-2"))
    assert log.snapshot("latest-price").partition(0).first_dirty_offset == 19


def test_segments_give_way_to_a_log_that_was_cleaned_beyond_them(log):
    """A tombstone above our log end may be gone there, and the value that it hid be here."""
    name = "latest-price/after-clean-4/latest-price-0"
    log.import_kafka(str(GOLDEN / "latest-price" / "before-clean"), config=COMPACTED)
    log.import_kafka(str(GOLDEN / "latest-price" / "after-clean-4"))
    assert records_of(log.read("latest-price")) == as_records(expected_records(name))
    assert log.snapshot("latest-price").partition(0).first_dirty_offset == 27


@pytest.mark.parametrize("name", ["plain-0", "txn-0", "multiappend-0", "zstd-0"])
def test_a_directory_that_grows_is_followed_over_rolls(log, tmp_path, name):
    (tmp_path / "kafka").mkdir()
    for log_end in growing(name, tmp_path / "kafka" / golden_dir(name).name):
        log.import_kafka(str(tmp_path / "kafka"))
        assert log.offsets(topic_of(name)) == {0: (0, log_end)}
        roll(log, now_ms=LATER_MS)
    expected = as_records(expected_records(name))
    assert records_of(log.read(topic_of(name), include_control=True)) == expected
    assert verify(log, deep=True).errors == 0


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_old_magics_are_followed_over_rolls(log, tmp_path, name, rolled):
    topic = topic_of(name)
    directory = tmp_path / "kafka" / golden_dir(name).name
    shutil.copytree(golden_dir(name), directory)
    last = max(directory.glob("*.log"))
    content = last.read_bytes()
    positions = scan_batches(content).batches.position
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex"), *directory.glob("*.snapshot")]:
        path.unlink()
    last.write_bytes(content[: positions[len(positions) // 2]])
    log.import_kafka(str(tmp_path / "kafka"))
    assert 0 < log.offsets(topic)[0][1] < LogDir.open(str(golden_dir(name))).offsets(topic)[0][1]
    if rolled:
        roll(log, now_ms=LATER_MS)
    last.write_bytes(content)
    log.import_kafka(str(tmp_path / "kafka"))
    expected = [(*row[:3], max(row[3], 0), *row[4:]) for row in as_records(expected_records(name))]
    assert records_of(log.read(topic)) == expected
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
    with pytest.raises(LogDirError, match="has records that the Kafka directory has not, from offset 24 on"):
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
    log.delete_records(TOPIC, {0: 13})
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.offsets(TOPIC) == {0: (13, 21)}
    kafka.delete_records(17)
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.offsets(TOPIC) == {0: (17, 22)}
    assert values(log) == {offset: record for offset, record in kafka.history.items() if offset >= 17}


def test_a_log_whose_records_are_all_new_is_taken(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    for _ in range(4):
        kafka.roll()
        kafka.append([(b"a", True), (b"b", True)])
    kafka.delete_records(17)
    log.import_kafka(kafka.write())
    assert log.offsets(TOPIC) == {0: (17, 20)}
    assert values(log) == kafka.records()


def test_a_log_that_retention_emptied_here_goes_on(log, tmp_path):
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config={"retention.ms": "1000"})
    roll(log, now_ms=LATER_MS)
    retain(log, now_ms=LATER_MS)
    assert log.offsets(TOPIC) == {0: (12, 12)}
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    assert log.offsets(TOPIC) == {0: (12, 13)}
    assert values(log) == {12: kafka.history[12]}


def test_an_empty_segment_comes_before_the_one_that_begins_where_it_does(log, tmp_path):
    """Kafka's active segment was empty when it was imported. What came then begins at the same offset."""
    kafka = kafka_with(tmp_path, 3)
    kafka.roll()
    log.import_kafka(kafka.write(), config=COMPACTED)
    compact(log)
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    log.manifest(TOPIC).merge_files()
    snapshot = log.snapshot(TOPIC)
    assert [(row.base_offset, row.next_offset) for row in snapshot.live_of(0)] == [(0, 9), (9, 9), (9, 10)]
    assert verify(log, deep=True).ok
    kafka.append([(b"b", True)])
    log.import_kafka(kafka.write())
    assert restore(log, TOPIC, snapshot.version) == {0: (0, 11)}
    assert values(log) == {offset: kafka.history[offset] for offset in (6, 7, 8, 9)}
    assert verify(log, deep=True).ok


def test_a_version_from_before_a_topic_was_imported_anew_is_not_restored(log, tmp_path):
    """The topic has Kafka's id both times. What was deleted with the first does not come back in the second."""
    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write())
    before = log.snapshot(TOPIC).version
    log.delete_topic(TOPIC)
    log.import_kafka(kafka.write())
    kafka.append([(b"a", True)])
    log.import_kafka(kafka.write())
    with pytest.raises(LogDirError, match=f"Version {before} is of another topic"):
        restore(log, TOPIC, before)
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
    states = [row.state for row in log.snapshot(TOPIC).live_of(0)]
    assert states == sorted(states, reverse=True)  # sealed ones, then chunks
    roll(log, now_ms=LATER_MS)
    assert verify(log, deep=True).errors == 0


def test_a_topic_that_was_compacted_while_it_was_imported_is_left(log, tmp_path, monkeypatch):
    from spark_segments.log.kafka import importing

    kafka = kafka_with(tmp_path, 4)
    log.import_kafka(kafka.write(), config=COMPACTED)
    kafka.append([(b"a", True)])
    run = importing.run_tasks

    def run_and_clean(*args, **options):
        rows = run(*args, **options)
        clean_here(log)
        return rows

    monkeypatch.setattr(importing, "run_tasks", run_and_clean)
    with pytest.raises(SegmentsError, match="changed while it was imported"):
        log.import_kafka(kafka.write())
    monkeypatch.undo()
    log.import_kafka(kafka.write())
    assert table_of(log, TOPIC) == table_of(LogDir.open(kafka.write()), TOPIC)


def test_records_appended_here_are_found_behind_a_roll(log):
    import_golden(log, "plain-0")
    log.append("plain", records(1))
    roll(log, now_ms=LATER_MS)
    with pytest.raises(LogDirError, match="has records that the Kafka directory has not, from offset 5000 on"):
        import_golden(log, "plain-0")


def values(log: LogDir) -> dict[int, tuple[bytes, bytes | None]]:
    return {row[1]: (row[4], row[5]) for row in records_of(log.read(TOPIC))}


class Play:
    """Kafka goes on, this side rolls, cleans and deletes; imports in between."""

    def __init__(self, place: Path) -> None:
        self.kafka = KafkaSide(place / "kafka")
        self.log = LogDir.create(str(place / "log"))
        self.had: dict[int, tuple[bytes, bytes | None]] | None = None  # Kafka's history at the last import
        self.is_cleaned = False
        self.now_ms = LATER_MS

    def grow(self, number: int) -> None:
        choice = random.Random(number)
        for _ in range(choice.randint(1, 3)):
            self.kafka.append(
                [(choice.choice([b"a", b"b", b"c", b"d"]), choice.random() < 0.7) for _ in range(number % 3 + 1)]
            )

    def grow_and_roll(self, number: int) -> None:
        self.grow(number)
        self.kafka.roll()

    def fail_over(self, number: int) -> None:
        self.kafka.fail_over(number % 3)

    def clean_there(self, number: int) -> None:
        self.is_cleaned |= len(self.kafka.segments) > 1
        for _ in range(1 + number % 3):
            self.kafka.clean(merge=number % 2 == 0)

    def delete_records_there(self, number: int) -> None:
        self.kafka.delete_records(self.kafka.log_start_offset + number % 5)

    def roll_here(self, number: int) -> None:
        if self.had is not None:
            self.now_ms += DAY_MS
            roll(self.log, now_ms=self.now_ms)

    def clean_here(self, number: int) -> None:
        if self.had is not None:
            self.is_cleaned = True
            self.roll_here(number)
            compact(self.log, now_ms=self.now_ms)

    def delete_records_here(self, number: int) -> None:
        if self.had is not None:
            start, end = self.log.offsets(TOPIC)[0]
            self.log.delete_records(TOPIC, {0: min(start + number % 5, end)})

    def import_it(self, number: int = 0) -> None:
        path = self.kafka.write()
        difference = self.first_difference()
        if difference is None:
            config = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "-1"}
            self.log.import_kafka(path, config=config)
            self.had = dict(self.kafka.history)
            self.check_equal()
            return
        before = tree(Path(self.log.uri))
        with pytest.raises(LogDirError, match="from offset") as error:
            self.log.import_kafka(path)
        assert tree(Path(self.log.uri)) == before
        found = int(re.search(r"from offset (\d+) on", str(error.value)).group(1))
        # What a cleaner took cannot be told apart, but it is of another leader, and every later offset differs, too.
        assert found == difference or (self.is_cleaned and found > difference)
        self.log.delete_topic(TOPIC)
        self.had = None

    def first_difference(self) -> int | None:
        if self.had is None:
            return None
        start, end = self.log.offsets(TOPIC)[0]
        for offset in range(max(start, self.kafka.log_start_offset), min(end, self.kafka.log_end_offset)):
            if self.had[offset] != self.kafka.history[offset]:
                return offset
        return self.kafka.log_end_offset if end > self.kafka.log_end_offset else None

    def check_equal(self) -> None:
        start, end = self.log.offsets(TOPIC)[0]
        assert (start, end) == (max(start, self.kafka.log_start_offset), self.kafka.log_end_offset)
        ours, theirs = values(self.log), self.kafka.records()
        assert all(self.kafka.history[offset] == record for offset, record in ours.items())
        if not self.is_cleaned:
            assert ours == {offset: record for offset, record in theirs.items() if offset >= start}
        self.check_table(start)
        assert [str(one) for one in verify(self.log, deep=True).findings] == []

    def check_table(self, start: int) -> None:
        newest = {key: value for offset, (key, value) in sorted(self.kafka.records().items()) if offset >= start}
        assert table_of(self.log, TOPIC) == {key: value for key, value in newest.items() if value is not None}

    def end(self) -> None:
        """What is here by now is cleaned, and shows what Kafka's side does."""
        self.import_it()
        if self.had is None:
            self.import_it()
        self.is_cleaned = True
        for _ in range(3):
            self.clean_here(0)
        self.check_table(self.log.offsets(TOPIC)[0][0])


OFTEN = ("import_it", "grow", "grow_and_roll", "clean_there", "roll_here", "fail_over")
SELDOM = ("clean_here", "delete_records_there", "delete_records_here")
STEP = st.tuples(st.sampled_from([*OFTEN, *OFTEN, *SELDOM]), st.integers(0, 59))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, min_size=10, max_size=30))
def test_an_import_equals_kafkas_log_or_is_refused_at_the_first_difference(tmp_path_factory, steps):
    play = Play(tmp_path_factory.mktemp("play"))
    for action, number in steps:
        getattr(play, action)(number)
    play.end()
