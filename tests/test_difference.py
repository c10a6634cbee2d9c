"""Where two logs of a partition differ first, asked of logs themselves."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_segments import LogDir, difference
from spark_segments.difference import Comparison, History
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance import restore, roll
from tests.log.kafka_copies import import_golden, topic_of
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, golden_dir
from verification.world.kafka_side import TOPIC, KafkaSide

LATER_MS = 2_000_000_000_000


def history(log: LogDir, topic: str) -> History:
    return History.of(log.topic(topic).snapshot, log.storage, 0)


@pytest.mark.parametrize(
    "name", ["plain-0", "mixed-0", "txn-0", "legacy-v1-0", "latest-price/after-clean-3/latest-price-0"]
)
def test_a_copy_that_was_rolled_is_the_same(log, name):
    import_golden(log, name)
    roll(log, now_ms=LATER_MS)
    kafka = LogDir.open(str(golden_dir(name)))
    found = history(log, topic_of(name)).compare(history(kafka, topic_of(name)))
    assert found == Comparison(None, identical=True)


def test_batches_of_old_messages_may_have_other_bounds(log, limits):
    import_golden(log, "legacy-v1-0")
    limits(RUN_BYTES=200)  # the copy has larger ones
    kafka = LogDir.open(str(golden_dir("legacy-v1-0")))
    assert history(log, "legacy-v1").compare(history(kafka, "legacy-v1")) == Comparison(None, identical=False)


def test_what_nobody_cleaned_is_not_decoded(log, monkeypatch):
    import_golden(log, "gzip-0")
    roll(log, now_ms=LATER_MS)
    monkeypatch.delattr(difference, "decode_batches")
    assert history(log, "gzip").compare(history(LogDir.open(str(golden_dir("gzip-0"))), "gzip")).identical


def test_files_that_both_name_are_not_read(log, monkeypatch):
    """A copy of a log directory of ours names the same files, which never change."""
    import_golden(log, "plain-0")
    monkeypatch.delattr(SegmentFile, "windows")
    assert history(log, "plain").compare(history(log, "plain")) == Comparison(None, True)


def test_segments_with_kafkas_names_are_read(tmp_path):
    """Every Kafka directory has a 00000000000000000000.log."""
    sides = [KafkaSide(tmp_path / name) for name in ("one", "other")]
    for number, side in enumerate(sides):
        side.append([(b"a", True)] * 3)
        side.written += number
        side.append([(b"a", True)] * 3)
    one, other = (history(LogDir.open(side.write()), TOPIC) for side in sides)
    assert one.compare(other) == other.compare(one) == Comparison(3, False)


def test_the_first_record_that_differs_is_named_not_its_batch(tmp_path):
    sides = [KafkaSide(tmp_path / name) for name in ("one", "other")]
    for number, side in enumerate(sides):
        side.append([(b"a", True)] * 2)
        side.append([(b"a", True), (b"b", True), (b"c", number == 0), (b"d", True)])
    one, other = (history(LogDir.open(side.write()), TOPIC) for side in sides)
    assert one.compare(other) == other.compare(one) == Comparison(4, False)


def test_a_batch_on_one_side_only_is_of_the_leader_that_the_other_knows(tmp_path):
    """What a cleaner took cannot be compared; its leader epoch can."""
    sides = [KafkaSide(tmp_path / name) for name in ("one", "other")]
    for number, side in enumerate(sides):
        side.append([(b"a", True)])
        side.append([(b"b", True)])
        if number:
            side.fail_over(1)
            side.append([(b"b", True)])
        side.append([(b"b", True)])
        side.roll()
        if number:
            side.clean(merge=False)
    one, other = (history(LogDir.open(side.write()), TOPIC) for side in sides)
    assert [entry[1] for entry in other.partition.leader_epochs] == [0, 1]
    assert one.compare(other).first_difference == 1
    unknown = replace(other, partition=replace(other.partition, leader_epochs=()))
    assert one.compare(unknown).first_difference == 2


def led_anew(one: History, *epochs: tuple[int, int]) -> History:
    """The same log, whose records came from leaders of these epochs."""
    return replace(one, partition=replace(one.partition, leader_epoch=epochs[-1][0], leader_epochs=epochs))


def test_the_same_record_from_two_leaders_is_a_difference(log, monkeypatch):
    """Both leaders took a record at offset 5. That the records are alike, or the files the same, is chance."""
    log.create_topic("orders")
    log.topic("orders").append(pa.table({"value": [b"a"] * 9}))
    ours = history(log, "orders")
    theirs = led_anew(ours, (0, 0), (1, 5))
    assert ours.compare(theirs) == theirs.compare(ours) == Comparison(5, False)
    monkeypatch.delattr(SegmentFile, "windows")
    assert led_anew(ours, (0, 0), (1, 9)).compare(theirs).first_difference == 5


def test_a_copy_is_foreign_to_its_leader_from_where_they_differ_or_the_leader_ends(log):
    log.create_topic("orders")
    log.topic("orders").append(pa.table({"value": [b"a"] * 9}))
    short = history(log, "orders")
    log.topic("orders").append(pa.table({"value": [b"b"] * 4}))
    long = history(log, "orders")
    assert short.first_foreign_offset(long) is None
    assert long.first_foreign_offset(short) == 9
    assert long.first_foreign_offset(led_anew(short, (0, 0), (1, 7))) == 7
    assert short.first_foreign_offset(led_anew(long, (0, 0), (1, 9))) is None


def test_what_a_restore_took_from_the_leader_is_not_foreign_in_a_copy_from_before(log):
    """A restore keeps the offsets: a batch without records stands for several, and may reach beyond the copy."""
    log.create_topic("orders")
    log.topic("orders").append(pa.table({"value": [b"a"] * 2}))
    kept = log.topic("orders").snapshot.version
    copies = []
    for count in (2, 4, 2):
        log.topic("orders").append(pa.table({"value": [b"b"] * count}))
        copies.append(history(log, "orders"))
    restore(log, topics=["orders"], version=kept)
    log.topic("orders").append(pa.table({"value": [b"c"]}))
    leader = history(log, "orders")
    assert [copy.first_foreign_offset(leader) for copy in copies] == [None] * 3
    assert copies[0].compare(leader) == leader.compare(copies[0]) == Comparison(None, False)


def test_records_that_the_leader_has_let_go_are_not_the_leaders_for_that(log):
    """Its retention has passed the end of a copy that parted from it before. Its leader epochs still tell."""
    log.create_topic("orders", config={"cleanup.policy": "delete"})
    log.topic("orders").append(pa.table({"value": [b"a"] * 9}))
    copy = history(log, "orders")
    log.topic("orders").append(pa.table({"value": [b"b"] * 9}))
    log.topic("orders").delete_records({0: 15})
    leader = history(log, "orders")
    assert copy.first_foreign_offset(leader) is None
    assert copy.first_foreign_offset(led_anew(leader, (0, 0), (1, 7))) == 7


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", [name for name in CLEAN_DIRECTORIES if "clean" not in name and "broker" not in name])
def test_small_windows_find_what_large_ones_do(log, limits, name):
    """Windows of the two sides end at different offsets."""
    import_golden(log, name)
    kafka = LogDir.open(str(golden_dir(name)))
    limits(WINDOW_BYTES=700)
    ours = history(log, topic_of(name))
    assert ours.compare(history(kafka, topic_of(name))) == Comparison(None, True)
