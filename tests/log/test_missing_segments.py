"""Imports of a compacted Kafka directory whose last segments are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_segments.errors import LogDirError
from tests.log.followed_logs import COMPACTED, table_of, values
from tests.log.golden_reads import tree
from verification.world.kafka_side import TOPIC, KafkaSide


def uncleaned(tmp_path: Path) -> KafkaSide:
    kafka = KafkaSide(tmp_path / "kafka")
    kafka.append([(b"a", True), (b"b", True), (b"c", True)])
    return kafka


def cleaned_for_later_segments(tmp_path: Path) -> KafkaSide:
    """Segments from offsets 0 (a, b and c), 3 (a), 4 (b) and 5 (d, active), of which the first lost its a and its b."""
    kafka = uncleaned(tmp_path)
    kafka.roll()
    kafka.append([(b"a", True)])
    kafka.roll()
    kafka.append([(b"b", True)])
    kafka.roll()
    kafka.append([(b"d", True)])
    kafka.clean(merge=False)
    return kafka


def lacks_the_last(kafka: KafkaSide, count: int) -> Path:
    """The directory as a stale listing shows it, or an early end of a copy."""
    directory = Path(kafka.write())
    for path in sorted(directory.glob(f"{TOPIC}-0/*.log"))[-count:]:
        path.unlink()
    return directory


@pytest.mark.parametrize("again", [True, False])
def test_segments_that_lack_what_kafkas_cleaner_has_seen_are_refused(log, tmp_path, again):
    """The value of b that is here has left Kafka's first segment, and the newer value of b is not listed."""
    if again:
        log.import_kafka(uncleaned(tmp_path).write(), config=COMPACTED)
    before = tree(Path(log.uri))
    kafka = cleaned_for_later_segments(tmp_path)
    with pytest.raises(LogDirError, match="Kafka's cleaner has removed") as error:
        log.import_kafka(str(lacks_the_last(kafka, 2)))
    assert error.value.expected == "a log end of at least 5, the partition's offset in cleaner-offset-checkpoint"
    assert error.value.found == 4
    assert tree(Path(log.uri)) == before
    log.import_kafka(kafka.write(), config=COMPACTED)
    assert table_of(log, TOPIC) == {b"a": b"4", b"b": b"5", b"c": b"3", b"d": b"6"}


def test_segments_that_lack_what_kafkas_cleaner_has_seen_are_taken_where_that_is_asked_for(log, tmp_path):
    kafka = cleaned_for_later_segments(tmp_path)
    log.import_kafka(str(lacks_the_last(kafka, 2)), config=COMPACTED, recovery="kafka")
    assert table_of(log, TOPIC) == {b"a": b"4", b"c": b"3"}


def test_segments_that_kafkas_cleaner_has_not_seen_may_come_later(log, tmp_path):
    kafka = cleaned_for_later_segments(tmp_path)
    log.import_kafka(str(lacks_the_last(kafka, 1)), config=COMPACTED)
    assert table_of(log, TOPIC) == {b"a": b"4", b"b": b"5", b"c": b"3"}


@pytest.mark.parametrize("line", [None, 0])
def test_a_segment_that_is_missing_where_nothing_is_clean_is_a_hole(log, tmp_path, line):
    """An export has a line of the cleaner also for a log that nobody has cleaned."""
    kafka = uncleaned(tmp_path)
    for _ in range(2):
        kafka.roll()
        kafka.append([(b"a", True)])
    kafka.first_dirty_offset = line
    (Path(kafka.write()) / f"{TOPIC}-0" / f"{3:020d}.log").unlink()
    [hole] = log.import_kafka(str(kafka.directory), config=COMPACTED).details["holes"]
    assert (hole["start_offset"], hole["end_offset"]) == (3, 4)


def test_records_that_are_here_stay_where_a_directory_that_was_never_cleaned_lost_them(log, tmp_path):
    kafka = uncleaned(tmp_path)
    for _ in range(2):
        kafka.roll()
        kafka.append([(b"d", True)])
    log.import_kafka(kafka.write())
    for _ in range(2):
        kafka.roll()
        kafka.append([(b"e", True), (b"f", True)])
    kafka.roll()
    kafka.append([(b"g", True)])
    directory = Path(kafka.write())
    for base_offset in (3, 5):
        (directory / f"{TOPIC}-0" / f"{base_offset:020d}.log").unlink()
    log.import_kafka(str(directory))
    assert values(log).keys() == {*range(5), *range(7, 10)}
