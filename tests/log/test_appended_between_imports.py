"""Records that were appended to an imported copy, and that compaction has removed before the next import."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.difference import History
from spark_segments.errors import LogDirError
from spark_segments.kafka.erasures_here import check_appended
from spark_segments.kafka_protocol import capture
from spark_segments.kafka_protocol.serving.views import Views
from spark_segments.log import Change, Segment
from spark_segments.log.report import Report
from spark_segments.maintenance import compact, mirror, promote, roll, verify
from tests.log.followed_logs import COMPACTED, DAY_MS, LATER_MS, values
from tests.log.golden_reads import tree
from verification.kafka_protocol.played import playing
from verification.world.kafka_side import TOPIC, KafkaSide

ADA, BOB, EVE = (b"ada", True), (b"bob", True), (b"eve", True)
OWN_TOMBSTONE = {"key": b"own", "value": None, "partition": 0}


@pytest.fixture
def kafka(tmp_path: Path) -> KafkaSide:
    """A sealed segment of ada, bob, eve; the active one has ada."""
    kafka = KafkaSide(tmp_path / "kafka")
    kafka.append([ADA, BOB, EVE])
    kafka.roll()
    kafka.append([ADA])
    return kafka


def clean_here(log: LogDir) -> None:
    for day in range(4):
        now_ms = LATER_MS + day * DAY_MS
        roll(log, now_ms=now_ms)
        compact(log, force=True, now_ms=now_ms)


def captured(log: LogDir, kafka: KafkaSide, place: Path) -> Report:
    """A capture of what the source has, from a served log directory."""
    broker = LogDir.open(str(place)) if place.exists() else LogDir.create(str(place))
    broker.import_kafka(kafka.write(), config=COMPACTED)
    with playing(Views(broker, interval_seconds=0)) as address:
        return capture(log, address)


def test_no_record_is_lost_below_a_tombstone_that_compaction_has_removed(log, kafka):
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    clean_here(log)
    assert log.topic(TOPIC).offsets() == {0: (0, 5)} and 4 not in values(log)
    kafka.append([(b"source", True)])
    kafka.append([BOB])
    path = kafka.write()
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match=r"had records appended here, from offset 4 on.*offset 4 of") as error:
        log.import_kafka(path)
    assert "expected a log end of 4 here" in str(error.value) and "found a log end of 5" in str(error.value)
    assert "delete the topic here first" in error.value.hint
    assert tree(Path(log.uri)) == before


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_no_record_is_lost_below_a_log_start_that_was_moved_over_appended_records(log, kafka, policy):
    """A segment below the log start here need not be scanned again, if it was here: this one was not."""
    log.import_kafka(kafka.write(), config={**COMPACTED, "cleanup.policy": policy})
    log.topic(TOPIC).append([{"key": b"own", "value": b"own", "partition": 0}])
    log.topic(TOPIC).delete_records({0: -1})
    kafka.append([(b"source", True)])
    kafka.roll()
    kafka.append([BOB])
    path = kafka.write()
    before = tree(Path(log.uri))
    with pytest.raises(LogDirError, match=r"had records appended here, from offset 4 on.*offset 4 of"):
        log.import_kafka(path)
    assert tree(Path(log.uri)) == before


def test_the_first_record_of_an_empty_partition_is_not_lost_either(log, tmp_path):
    kafka = KafkaSide(tmp_path / "kafka")
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    clean_here(log)
    assert values(log) == {}
    kafka.append([ADA])
    kafka.append([BOB])
    with pytest.raises(LogDirError, match="had records appended here, from offset 0 on"):
        log.import_kafka(kafka.write())


def test_a_copy_that_compaction_alone_has_changed_is_added_to(log, kafka):
    log.import_kafka(kafka.write(), config=COMPACTED)
    for _ in range(2):
        kafka.append([BOB, (b"eve", False)])
        kafka.roll()
        kafka.append([ADA])
        log.import_kafka(kafka.write())
        clean_here(log)
    kafka.append([BOB])
    log.import_kafka(kafka.write())
    assert {key: value for key, value in values(log).values()} == {
        key: value for key, value in values(LogDir.open(kafka.write())).values() if key != b"eve"
    }
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_an_own_log_comes_back_from_an_export(log, kafka, tmp_path, cleaned):
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([{"key": b"bob", "value": b"own", "partition": 0}])
    log.topic(TOPIC).append([{"key": b"bob", "value": b"newest", "partition": 0}])
    log.export_kafka(str(tmp_path / "exported"))
    if cleaned:
        clean_here(log)
        assert 4 not in values(log)
    before = values(log)
    log.import_kafka(str(tmp_path / "exported"))
    assert values(log) == before


def test_an_export_whose_appended_records_have_all_left_this_log_is_refused(log, kafka, tmp_path):
    """Nothing would be lost; but nothing says so: another record may be at their offset in the directory."""
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    log.export_kafka(str(tmp_path / "exported"))
    clean_here(log)
    with pytest.raises(LogDirError, match="may be another one, and would be lost") as error:
        log.import_kafka(str(tmp_path / "exported"))
    assert "An export of this topic can be imported for as long as" in error.value.hint


def test_a_copy_that_an_earlier_version_made_goes_on(log, kafka):
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).manifest.commit(
        lambda at: Change("alter", topic=dataclasses.replace(at.topic_row, states={"partitions_added": "[]"}))
    )
    clean_here(log)
    kafka.append([EVE])
    log.import_kafka(kafka.write())
    assert values(log)[4][0] == b"eve"
    assert log.topic(TOPIC).snapshot.states["copied_end.0"] == "5"


def test_a_promoted_follower_of_a_copy_knows_where_the_copy_ended(log, kafka, tmp_path):
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    clean_here(log)
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=log)
    promote(follower, former=log)
    kafka.append([(b"source", True)])
    kafka.append([BOB])
    with pytest.raises(LogDirError):
        follower.import_kafka(kafka.write())


def test_imports_and_captures_go_on_behind_each_other(log, kafka, tmp_path):
    log.import_kafka(kafka.write(), config=COMPACTED)
    for key in (b"bob", b"eve"):
        kafka.append([(key, True)])
        assert captured(log, kafka, tmp_path / "broker").failed == []
        clean_here(log)
        kafka.append([(key, True)])
        log.import_kafka(kafka.write())
        clean_here(log)
    assert log.topic(TOPIC).offsets() == {0: (0, 8)}
    assert values(log)[5][0] == b"bob" and values(log)[7][0] == b"eve"
    assert log.topic(TOPIC).snapshot.states["copied_end.0"] == "8"


def test_an_import_stops_where_a_tombstone_was_appended_behind_a_capture(log, kafka, tmp_path):
    assert captured(log, kafka, tmp_path / "broker").failed == []
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    clean_here(log)
    kafka.append([(b"source", True)])
    kafka.append([BOB])
    with pytest.raises(LogDirError, match="had records appended here, from offset 4 on"):
        log.import_kafka(kafka.write())


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_capture_stops_where_a_record_was_appended_behind_an_import(log, kafka, tmp_path, cleaned):
    log.import_kafka(kafka.write(), config=COMPACTED)
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    if cleaned:
        clean_here(log)
    kafka.append([(b"source", True)])
    kafka.append([BOB])
    [line] = captured(log, kafka, tmp_path / "broker").failed
    assert "has records that were appended here, from offset 4 on" in line["error"]
    assert 5 not in values(log)


def test_a_capture_stops_where_a_record_was_appended_before_its_first(log, tmp_path):
    kafka = KafkaSide(tmp_path / "kafka")
    assert captured(log, kafka, tmp_path / "broker").failed == []
    log.topic(TOPIC).append([OWN_TOMBSTONE])
    kafka.append([ADA])
    kafka.append([BOB])
    [line] = captured(log, kafka, tmp_path / "broker").failed
    assert "has records that were appended here, from offset 0 on" in line["error"]


class CountedRow:
    """A segment's row that counts the looks at its offsets."""

    def __init__(self, row: Segment, looks: Counter[str]) -> None:
        self._row = row
        self._looks = looks

    def __getattr__(self, name: str) -> object:
        if name in ("base_offset", "next_offset"):
            self._looks[name] += 1
        return getattr(self._row, name)


def counted_sides(place: Path, segments: int) -> tuple[History, History, Counter[str]]:
    """A log, its source of so many segments, and the looks at the rows of both. All but the first segment have left the
    log.
    """
    kafka = KafkaSide(place)
    for _ in range(segments):
        kafka.append([ADA])
        kafka.roll()
    source = LogDir.open(kafka.write())
    history = History.of(source.topic(TOPIC).snapshot, source.storage, 0)
    looks = Counter()
    rows = tuple(CountedRow(row, looks) for row in history.segments)
    return dataclasses.replace(history, segments=rows[:1]), dataclasses.replace(history, segments=rows), looks


def test_an_import_of_many_segments_with_nothing_to_check_looks_at_none(tmp_path):
    ours, theirs, looks = counted_sides(tmp_path / "kafka", 20)
    check_appended(ours, theirs, 20)
    assert looks.total() == 0


def test_a_check_of_twice_the_segments_looks_at_hardly_more_than_twice_the_rows(tmp_path):
    """A look at all rows for each row would be four times as many."""
    totals = []
    for segments in (20, 40):
        ours, theirs, looks = counted_sides(tmp_path / f"{segments}", segments)
        with pytest.raises(LogDirError, match="had records appended here"):
            check_appended(ours, theirs, 0)
        totals.append(looks.total())
    assert 40 < totals[1] < 3 * totals[0]
