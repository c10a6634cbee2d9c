"""Imports into a topic that keys were erased from: the erased records stay away, or the import says why it stops."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.log import Change, Snapshot
from spark_segments.maintenance import compact, erase, roll, verify
from tests.log.followed_logs import COMPACTED, DAY_MS, LATER_MS, table_of, values
from tests.log.golden_reads import tree
from verification.world.kafka_side import TOPIC, KafkaSide

ADA, BOB, EVE = (b"ada", True), (b"bob", True), (b"eve", True)
NO_ADA = (b"ada", False)


@pytest.fixture
def kafka(tmp_path: Path) -> KafkaSide:
    """Two sealed segments of ada, bob, eve and of bob, eve; the active one is empty."""
    kafka = KafkaSide(tmp_path / "kafka")
    kafka.append([ADA, BOB, EVE])
    kafka.roll()
    kafka.append([BOB, EVE])
    kafka.roll()
    return kafka


def cleaned(kafka: KafkaSide, *new: tuple[bytes, bool]) -> str:
    """New records in a sealed segment, two of them for bob, of which Kafka's cleaner removes the first."""
    kafka.append([BOB, *new])
    kafka.append([BOB])
    kafka.roll()
    kafka.append([EVE])
    kafka.clean(merge=False)
    return kafka.write()


def erased(log: LogDir, *keys: bytes) -> None:
    erase(log, topics=[TOPIC], keys=list(keys))


def forget_offsets(log: LogDir) -> None:
    """Version 0.3.0 noted that there was an erasure, and not where."""

    def plan(current: Snapshot) -> Change:
        states = {name: value for name, value in current.states.items() if not name.startswith("erased_offsets.")}
        return Change("alter", topic=dataclasses.replace(current.topic_row, states=states))

    log.topic(TOPIC).manifest.commit(plan)


@pytest.mark.parametrize("of_earlier_version", [False, True])
def test_an_erased_record_does_not_come_back_with_a_cleaned_log(log, kafka, of_earlier_version):
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    if of_earlier_version:
        forget_offsets(log)
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match="has records that were erased here, from offset 0 on") as error:
        log.import_kafka(cleaned(kafka))
    assert "a tombstone of each erased key" in error.value.hint
    assert tree(Path(log.uri)) == before


def test_erased_bytes_below_kafkas_log_start_do_not_come_back_either(log, kafka):
    """The log start lies within the segment that had the key: the segment would be copied whole."""
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    kafka.delete_records(2)
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match="has records that were erased here, from offset 0 on"):
        log.import_kafka(cleaned(kafka))
    assert tree(Path(log.uri)) == before


def test_a_log_start_beyond_the_log_end_here_brings_new_records_and_nothing_erased(log, tmp_path):
    """The segment that has Kafka's log start has the erased record, too. It is copied from the log end here on."""
    kafka = KafkaSide(tmp_path / "kafka")
    kafka.append([ADA, BOB, EVE])
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    kafka.append([BOB, EVE, BOB])
    kafka.delete_records(5)
    path = kafka.write()
    log.import_kafka(path)
    assert values(log) == values(LogDir.open(path))
    assert values(log).keys() == {5}
    topic = log.topic(TOPIC)
    assert not any(b"ada" in Path(log.uri, row.path).read_bytes() for row in topic.snapshot.live_of(0))
    assert b"ada" in (tmp_path / "kafka" / f"{TOPIC}-0" / f"{0:020d}.log").read_bytes()
    assert verify(log, deep=True).findings == []


def test_a_tombstone_in_kafka_is_the_way_on(log, kafka):
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    cleaned(kafka)
    path = cleaned(kafka, NO_ADA)
    log.import_kafka(path)
    assert values(log) == values(LogDir.open(path))
    assert (b"ada", b"1") not in values(log).values()
    assert verify(log, deep=True).findings == []


def test_a_new_value_of_an_erased_key_comes(log, kafka):
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    path = cleaned(kafka, ADA)
    log.import_kafka(path)
    assert values(log) == values(LogDir.open(path))
    assert [offset for offset, (key, _) in values(log).items() if key == b"ada"] == [6]


def test_new_records_come_and_erased_ones_do_not_where_no_cleaner_ran(log, kafka):
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    kafka.append([EVE, BOB])
    kafka.roll()
    log.import_kafka(kafka.write())
    assert values(log).keys() == {1, 2, 3, 4, 5, 6}


def test_an_erasure_in_segments_that_retention_has_taken_keeps_nothing_back(log, kafka):
    log.import_kafka(kafka.write())
    erased(log, b"ada")
    kafka.delete_records(4)
    path = cleaned(kafka)
    log.import_kafka(path)
    assert values(log) == values(LogDir.open(path))


@pytest.mark.parametrize("has_grown", [False, True])
def test_an_import_stops_at_the_tombstone_of_an_erasure_here(log, kafka, has_grown):
    """It has the offset that Kafka gives to its next record."""
    log.import_kafka(kafka.write(), config=COMPACTED)
    erased(log, b"ada")
    if has_grown:
        kafka.append([EVE, BOB])
    with pytest.raises(LogDirError, match="has tombstones that an erasure appended here, from offset 5 on") as error:
        log.import_kafka(kafka.write())
    assert "Delete the topic here, import it again, and erase the keys again" in error.value.hint


def test_no_record_is_lost_below_a_tombstone_of_an_erasure_that_compaction_has_removed(log, kafka):
    log.import_kafka(kafka.write(), config=COMPACTED)
    erased(log, b"ada")
    for day in range(3):
        roll(log, now_ms=LATER_MS + day * DAY_MS)
        compact(log, force=True, now_ms=LATER_MS + day * DAY_MS)
    assert table_of(log, TOPIC).keys() == {b"bob", b"eve"} and 5 not in values(log)
    kafka.append([EVE])
    kafka.append([BOB])
    with pytest.raises(LogDirError, match="has tombstones that an erasure appended here, from offset 5 on"):
        log.import_kafka(kafka.write())


def test_tombstones_of_an_erasure_below_the_log_start_of_kafka_keep_nothing_back(log, kafka):
    log.import_kafka(kafka.write(), config=COMPACTED)
    erased(log, b"ada")
    kafka.append([EVE])
    kafka.append([BOB])
    kafka.delete_records(6)
    path = kafka.write()
    log.import_kafka(path)
    assert values(log) == values(LogDir.open(path))


def test_an_erasure_behind_a_tombstone_of_kafka_lets_imports_go_on(log, kafka):
    kafka.append([NO_ADA])
    kafka.roll()
    log.import_kafka(kafka.write(), config=COMPACTED)
    erased(log, b"ada")
    assert 0 not in values(log)
    kafka.append([EVE])
    log.import_kafka(kafka.write())
    assert 0 not in values(log) and 6 in values(log)
    path = cleaned(kafka)
    log.import_kafka(path)
    assert table_of(log, TOPIC) == table_of(LogDir.open(path), TOPIC)
    assert verify(log, deep=True).findings == []


def test_what_was_erased_before_an_export_is_imported_as_it_is(log, kafka, tmp_path):
    log.import_kafka(kafka.write(), config=COMPACTED)
    erased(log, b"ada")
    log.export_kafka(str(tmp_path / "exported"))
    log.import_kafka(str(tmp_path / "exported"))
    other = LogDir.create(str(tmp_path / "other"))
    other.import_kafka(str(tmp_path / "exported"))
    assert values(other) == values(log)
