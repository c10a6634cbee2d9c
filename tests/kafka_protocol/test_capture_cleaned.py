"""Captures of a topic that the cluster's cleaner shortens between two passes, or for good while nobody looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.maintenance import roll, verify
from tests.kafka_protocol.cleaned_cluster import TOPIC, cluster, data
from tests.log.memory_store import memory_log


@pytest.fixture
def log() -> LogDir:
    return memory_log("/captured")


def values(log: LogDir, isolation: str = "read_committed") -> list[str]:
    read = log.topic(TOPIC).scan(isolation=isolation, columns=["value"]).to_table()
    return [value.decode() for value in read.column("value").to_pylist()]


def test_a_compacted_topic_that_was_cleaned_between_two_passes_is_whole(log: LogDir, tmp_path: Path) -> None:
    with cluster(tmp_path / "first", [data(0, "a", "b"), data(2, "c")]) as address:
        capture(log, address)
    log.topic(TOPIC).alter({"cleanup.policy": "compact"})
    with cluster(tmp_path / "second", [data(2, "c"), data(5, "d"), data(9, "e")]) as address:
        capture(log, address)
        assert verify(log, deep=True).findings == []
    with cluster(tmp_path / "third", [data(9, "e"), data(13, "f")]) as address:
        capture(log, address)
    assert values(log) == ["a", "b", "c", "d", "e", "f"]
    assert verify(log, deep=True).findings == []
    roll(log, now_ms=log.storage.now_ms() + 30 * 86_400_000)
    assert values(log) == ["a", "b", "c", "d", "e", "f"]
    assert verify(log, deep=True).findings == []
