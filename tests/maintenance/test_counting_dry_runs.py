"""Dry runs of erase and compact count what the run then drops, and change nothing."""

from __future__ import annotations

import pytest

from spark_segments.maintenance import compact, erase, roll
from verification.world.topics import DAY_MS, append, contents, live

FIGURES = ("topic", "partition", "records_in", "records_out", "dropped")
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}


def figures(report, *more: str) -> list[dict]:
    return [{name: line[name] for name in (*FIGURES, *more) if name in line} for line in report.partitions]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_dry_run_of_erase_counts_what_the_run_erases(log, policy):
    log.create_topic("orders", config={"cleanup.policy": policy})
    append(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    append(log, (b"a", b"3"))
    version = log.topic("orders").snapshot.version
    dry = erase(log, topics=["orders"], keys=[b"a"], dry_run=True)
    assert log.topic("orders").snapshot.version == version
    done = erase(log, topics=["orders"], keys=[b"a"])
    assert dict(dry.dropped) == dict(done.dropped) == {"erased": 3}
    assert figures(dry) == figures(done)


def test_a_dry_run_of_compact_counts_what_the_run_drops(log):
    log.create_topic("orders", partitions=2, config=COMPACTED)
    for number in range(3):
        append(log, (b"a", b"%d" % number), (b"b", b"1"), (b"c%d" % number, None))
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    files = {info.path for info in log.storage.list("")}
    for clock in (later_ms, later_ms + DAY_MS):
        before = contents(log, "orders")
        dry = compact(log, now_ms=clock, force=True, dry_run=True)
        assert {info.path for info in log.storage.list("")} == files and contents(log, "orders") == before
        done = compact(log, now_ms=clock, force=True)
        assert figures(dry, "bytes_in", "bytes_out") == figures(done, "bytes_in", "bytes_out")
        assert dict(dry.dropped) == dict(done.dropped) and dry.dropped
        files = {info.path for info in log.storage.list("")}
    assert all(segment.state == "sealed" for segment in live(log, "orders"))
