"""A log directory with work for every job, and what roll, retain, compact and vacuum leave of it, whoever ran them."""

from __future__ import annotations

from pathlib import Path

from spark_segments import LogDir
from verification.world.topics import append_one_by_one, contents, live, records, topic_with


def busy_log(log: LogDir) -> LogDir:
    """The log directory with work for every job, in two topics."""
    common = {"segment.bytes": 2000, "retention.ms": -1}
    topic_with(log, "orders", {**common, "retention.bytes": 4000}, partitions=2)
    topic_with(log, "latest", {**common, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    for topic, partition in (("orders", 0), ("orders", 1), ("latest", 0)):
        append_one_by_one(log, topic, records(40, time_ms=log.storage.now_ms()), partition=partition)
    return log


def all_records(log: LogDir) -> dict[str, list[dict]]:
    """Topic -> its records."""
    return {topic: contents(log, topic) for topic in log.topics()}


def assert_maintained(log: LogDir, reports: list[dict], before: dict[str, list[dict]]) -> None:
    """`before` are all records before the four jobs, which gave these reports."""
    assert [report["job"] for report in reports] == ["roll", "retain", "compact", "vacuum"]
    roll, retain, compact, _ = reports
    assert {line["action"] for line in roll["partitions"]} == {"roll"} and len(roll["partitions"]) == 3
    assert roll["records_in"] == roll["records_out"] > 0
    assert retain["dropped"]["retention.bytes"] > 0
    for number in (0, 1):
        start = log.topic("orders").offsets()[number][0]
        left = [one for one in before["orders"] if one["partition"] == number and one["offset"] >= start]
        assert start > 0 and contents(log, "orders", partition=number) == left
    assert_compacted(log, compact, before["latest"])
    assert {segment.state for segment in live(log, "latest")} == {"sealed", "chunk"}


def assert_compacted(log: LogDir, report: dict, before: list[dict]) -> None:
    """Of every key the newest record is left, and older ones only in the active segment, which is not compacted."""
    after = contents(log, "latest")
    newest = {one["key"]: one for one in before}
    assert all(one in after for one in newest.values())
    active = min(segment.base_offset for segment in live(log, "latest") if segment.state == "chunk")
    assert [one for one in after if one["offset"] >= active] == [one for one in before if one["offset"] >= active]
    assert report["dropped"] == {"superseded": len(before) - len(after)} and len(after) < len(before)


def assert_vacuumed(log: LogDir) -> None:
    """With no delete delay, the only segments are those of the log."""
    found = {str(file.relative_to(log.uri)) for file in Path(log.uri).rglob("*.log")}
    partitions = [(topic, number) for topic in log.topics() for number in log.topic(topic).offsets()]
    assert found == {segment.path for topic, number in partitions for segment in live(log, topic, number)}
