"""Imports of a log whose segments begin elsewhere than the copy's: of another replica, or rolled since."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.maintenance import roll, verify
from tests.log.followed_logs import LATER_MS, values
from verification.kafka_protocol.serving import serving
from verification.world.kafka_side import TOPIC, KafkaSide
from verification.world.topics import append_numbers

BATCHES = 5
ENDS = range(3, 3 * BATCHES + 1, 3)
"""Where a segment may end, by its offset: behind each batch of three records."""


def kafka_with(place: Path, batches: int = BATCHES) -> KafkaSide:
    kafka = KafkaSide(place)
    for _ in range(batches):
        kafka.append([(b"a", True), (b"b", True), (b"c", True)])
    return kafka


def numbers(log: LogDir, topic: str) -> list[str]:
    return [value.decode() for value in log.topic(topic).scan().to_table().column("value").to_pylist()]


@pytest.mark.parametrize("first", [(), (6,), (3, 12), (15,)])
@pytest.mark.parametrize("second", [(3,), (9, 12), (12,), (6, 15), (15,)])
@pytest.mark.parametrize("more", [0, 1])
def test_a_copy_keeps_its_records_when_another_replica_is_imported(log, tmp_path, first, second, more):
    kafka = kafka_with(tmp_path / "kafka")
    kafka.move_to_replica(first)
    log.import_kafka(kafka.write())
    kafka.move_to_replica(second)
    for _ in range(more):
        kafka.append([(b"d", True)])
    for _ in range(2):
        log.import_kafka(kafka.write())
        assert values(log) == kafka.records()
        assert log.topic(TOPIC).offsets() == {0: (0, kafka.log_end_offset)}
        assert verify(log, deep=True).findings == []


def test_a_copy_keeps_its_records_when_the_source_is_rolled_after_an_export(tmp_path):
    source, log = LogDir.create(str(tmp_path / "source")), LogDir.create(str(tmp_path / "log"))
    source.create_topic("orders", config={"segment.bytes": "1000000"})
    append_numbers(source, range(31), each=1)
    source.export_kafka(str(tmp_path / "first"))
    log.import_kafka(str(tmp_path / "first"))
    source.topic("orders").alter(config={"segment.bytes": "100"})
    roll(source, now_ms=LATER_MS)
    source.export_kafka(str(tmp_path / "second"))
    assert len([*(tmp_path / "second" / "orders-0").glob("*.log")]) > 1
    log.import_kafka(str(tmp_path / "second"))
    assert numbers(log, "orders") == numbers(source, "orders")


def test_a_copy_keeps_what_a_capture_brought_between_two_imports(tmp_path):
    source, log = LogDir.create(str(tmp_path / "source")), LogDir.create(str(tmp_path / "log"))
    source.create_topic("orders", config={"segment.bytes": "1000000"})
    source.export_kafka(str(tmp_path / "first"))
    log.import_kafka(str(tmp_path / "first"))
    append_numbers(source, range(31), each=1)
    with serving(source, interval_seconds=0) as broker:
        capture(log, f"127.0.0.1:{broker.port}")
    source.topic("orders").alter(config={"segment.bytes": "100"})
    roll(source, now_ms=LATER_MS)
    source.export_kafka(str(tmp_path / "second"))
    log.import_kafka(str(tmp_path / "second"))
    assert numbers(log, "orders") == numbers(source, "orders")
