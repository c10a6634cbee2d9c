"""Where all of a partition has expired, a broker rolls the active segment and deletes it, and so does `maintain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.cli.jobs.explain import explanation_text
from spark_segments.cli.page.view import topic_view
from spark_segments.config import TopicConfig, topic_config
from spark_segments.face.in_order import jobs_in_order
from spark_segments.log import Report
from spark_segments.maintenance import restore, retain, roll
from spark_segments.maintenance.retention.retention_plan import emptied_partitions
from spark_segments.maintenance.rolling.roll_plan import EXPIRED
from tests.examples import examples
from tests.maintenance.rows import chunk, row, table
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Segment
from verification.world.topics import (
    DAY_MS,
    GOLDEN_MS,
    append_batches,
    append_one_by_one,
    assert_sound,
    contents,
    golden_batches,
    later,
    live,
    records,
    topic_with,
)

NOW_MS = 1000
HOUR_MS = 3_600_000

sizes = st.integers(0, 100) | st.just(0)
times = st.integers(0, 2 * NOW_MS) | st.just(-1)
segments = st.tuples(sizes, times, st.integers(0, NOW_MS), st.integers(0, 3))
partitions = st.tuples(st.lists(segments, max_size=5), st.lists(segments, max_size=3), st.integers(0, 12))
configs = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "retention.ms": st.integers(0, NOW_MS) | st.just(-1),
        "retention.bytes": st.integers(0, 200) | st.sampled_from([-1, 0]),
    }
)


@dataclasses.dataclass
class BrokerSegment:
    """A segment as a broker has it. `largest_ms` is LogSegment.largestTimestamp."""

    next_offset: int
    size: int
    largest_ms: int


def broker_deletes(inactive: Sequence[tuple], chunks: Sequence[tuple], start: int, config: TopicConfig) -> bool:
    """Whether a broker rolls and deletes the active segment: UnifiedLog.deleteOldSegments of Kafka 4.3, whose rules all
    come to deletableSegments. The high watermark is the log end.
    """
    log, offset = [], 0
    for size, timestamp, created, offsets in inactive:
        offset += offsets
        log.append(BrokerSegment(offset, size, timestamp if timestamp >= 0 else created))
    timestamp, created = (max((one[at] for one in chunks), default=-1) for at in (1, 2))
    offset += sum(one[3] for one in chunks)
    active = BrokerSegment(offset, sum(size for size, *_ in chunks), timestamp if timestamp >= 0 else created)
    log.append(active)

    def delete_while(predicate) -> None:
        while log:
            is_last = len(log) == 1
            if (is_last and log[0].size == 0) or not predicate(log[0], is_last):
                return
            log.pop(0)

    delete_while(lambda segment, is_last: not is_last and segment.next_offset <= start)
    if config.delete and config.retention_bytes >= 0:
        excess = sum(segment.size for segment in log) - config.retention_bytes

        def is_in_excess(segment: BrokerSegment, _: bool) -> bool:
            nonlocal excess
            if excess - segment.size < 0:
                return False
            excess -= segment.size
            return True

        delete_while(is_in_excess)
    if config.delete and config.retention_ms >= 0:
        delete_while(lambda segment, _: NOW_MS - segment.largest_ms > config.retention_ms)
    return not log


@examples(500)
@given(st.lists(partitions, min_size=1, max_size=4), configs)
def test_the_active_segment_is_rolled_where_a_broker_rolls_and_deletes_it(found, overrides):
    config, rows = topic_config(overrides), []
    for number, (inactive, chunks, _) in enumerate(found):
        offset = 0
        for at, (size, timestamp, created, offsets) in enumerate([*inactive, *chunks]):
            values = {"log_bytes": size, "max_timestamp_ms": timestamp, "created_ms": created, "records": offsets}
            state = Segment.SEALED if at < len(inactive) else Segment.CHUNK
            path = f"orders-{number}/{offset:020d}.{at}.log"
            rows.append(row(offset, offset + offsets, partition=number, state=state, path=path, **values))
            offset += offsets
    starts = np.array([start for _, _, start in found])
    emptied = set(emptied_partitions(table(rows), starts, config, NOW_MS).tolist())
    for number, (inactive, chunks, start) in enumerate(found):
        if sum(size for size, *_ in chunks):  # there is nothing to roll in an empty one
            assert (number in emptied) == broker_deletes(inactive, chunks, start, config)


def emptied(rows: list[Segment], **overrides: object) -> bool:
    config = topic_config({name.replace("_", "."): value for name, value in overrides.items()})
    return bool(len(emptied_partitions(table(rows), np.zeros(1, np.int64), config, NOW_MS)))


def test_one_young_record_keeps_all_of_the_active_segment():
    old, young = chunk(10, 20, max_timestamp_ms=0), chunk(20, 30, max_timestamp_ms=900)
    assert emptied([row(0, 10), old], retention_ms=500)
    assert not emptied([row(0, 10), old, young], retention_ms=500)
    assert not emptied([row(0, 10, max_timestamp_ms=900), old], retention_ms=500)  # a segment before it stays
    assert not emptied([old], retention_ms=500, cleanup_policy="compact")
    assert not emptied([chunk(0, 10, max_timestamp_ms=10**15)], retention_ms=0)  # a time to come


def test_an_active_segment_without_timestamps_is_as_old_as_its_last_append():
    untimed = {"max_timestamp_ms": -1, "first_batch_max_timestamp_ms": -1}
    assert emptied([chunk(0, 10, created_ms=0, **untimed), chunk(10, 20, created_ms=400, **untimed)], retention_ms=599)
    assert not emptied([chunk(0, 10, **untimed), chunk(10, 20, created_ms=401, **untimed)], retention_ms=599)


# What the jobs do


def maintained(log: LogDir, now_ms: int, **options: object) -> list[Report]:
    return [job(log, now_ms=now_ms, **options) for job in jobs_in_order()]


def orders_with(log: LogDir, count: int, *, time_ms: int, partitions: int = 1, **config: object) -> None:
    topic_with(log, "orders", {name.replace("_", "."): value for name, value in config.items()}, partitions)
    append_one_by_one(log, "orders", records(count, time_ms=time_ms))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_maintain_empties_a_partition_of_which_all_has_expired(log, policy):
    now_ms = log.storage.now_ms()
    orders_with(log, 3, time_ms=now_ms - 2 * DAY_MS, retention_ms=HOUR_MS, cleanup_policy=policy)
    assert retain(log, now_ms=now_ms).partitions == []  # it takes no active segment
    dry = maintained(log, now_ms, dry_run=True)
    rolled, retained, *_ = maintained(log, now_ms)
    assert [line["reasons"] for line in rolled.partitions] == [[EXPIRED]]
    assert rolled.details["expired_records"] == dry[0].details["expired_records"] == 3
    assert dict(retained.dropped) == dict(dry[1].dropped) == {"retention.ms": 3}
    assert log.topic("orders").offsets() == {0: (3, 3)} and live(log, "orders") == []
    assert maintained(log, now_ms)[0].partitions == []
    log.topic("orders").append(records(1))
    assert log.topic("orders").offsets() == {0: (3, 4)}
    assert_sound(log)


def test_a_young_record_appended_last_keeps_all_of_the_active_segment(log):
    now_ms = log.storage.now_ms()
    orders_with(log, 3, time_ms=now_ms - 2 * DAY_MS, retention_ms=HOUR_MS)
    log.topic("orders").append(records(1, first=3, time_ms=now_ms))
    rolled, retained, *_ = maintained(log, now_ms)
    assert rolled.partitions == [] and retained.partitions == [] and "expired_records" not in rolled.details
    maintained(log, now_ms + HOUR_MS + 1)
    assert log.topic("orders").offsets() == {0: (4, 4)}


def test_retention_bytes_of_0_empty_a_log(log):
    orders_with(log, 3, time_ms=log.storage.now_ms(), retention_bytes=0, retention_ms=-1)
    _, retained, *_ = maintained(log, log.storage.now_ms())
    assert dict(retained.dropped) == {"retention.bytes": 3} and log.topic("orders").offsets() == {0: (3, 3)}


def test_segments_before_the_active_one_go_with_it(log):
    now_ms = log.storage.now_ms()
    orders_with(log, 40, time_ms=now_ms - 2 * DAY_MS, retention_ms=-1, segment_bytes=2000)
    roll(log, now_ms=now_ms)
    assert {segment.state for segment in live(log, "orders")} == {Segment.SEALED, Segment.CHUNK}
    log.topic("orders").alter({"retention.ms": str(HOUR_MS)})
    maintained(log, now_ms)
    assert log.topic("orders").offsets() == {0: (40, 40)}


def test_runs_of_shared_objects_that_have_expired_go(log):
    now_ms = log.storage.now_ms()
    topic_with(log, "orders", {"retention.ms": HOUR_MS}, 12)
    log.topic("orders").append(records(36, time_ms=now_ms - 2 * DAY_MS, partitions=range(12)))
    log.topic("orders").append(records(1, first=36, time_ms=now_ms, partitions=[5]))
    assert any(segment.is_shared for segment in live(log, "orders"))
    maintained(log, now_ms)
    offsets = log.topic("orders").offsets()
    assert offsets.pop(5) == (0, 4) and set(offsets.values()) == {(3, 3)}
    assert len(contents(log, "orders")) == 4
    assert_sound(log)


def test_an_open_transaction_holds_nothing_back_as_in_kafka(log):
    topic_with(log, "orders", {"retention.ms": HOUR_MS, "segment.ms": 10**15})
    append_batches(log, "orders", golden_batches("txn-0")[-40:])
    end = log.topic("orders").offsets()[0][1]
    maintained(log, log.storage.now_ms())
    assert log.topic("orders").offsets() == {0: (end, end)}
    assert_sound(log)


def test_a_directory_that_a_broker_left_is_emptied_where_the_broker_would_and_exported_as_it_leaves_it(log, tmp_path):
    log.import_kafka(str(golden_dir("broker-data")), "retention")
    log.topic("retention").alter({"retention.bytes": "32768", "retention.ms": "-1", "segment.bytes": "16384"})
    roll(log, now_ms=GOLDEN_MS)
    retain(log, now_ms=GOLDEN_MS)
    assert log.topic("retention").offsets() == {0: (450, 800)}  # as the broker left it
    log.topic("retention").alter({"retention.bytes": "0"})
    roll(log, now_ms=GOLDEN_MS)
    retain(log, now_ms=GOLDEN_MS)
    assert log.topic("retention").offsets() == {0: (800, 800)}
    log.export_kafka(str(tmp_path / "kafka"), "retention")
    [left] = (tmp_path / "kafka").rglob("*.log")
    assert (left.name, left.stat().st_size) == (f"{800:020d}.log", 0)


def test_a_restore_brings_back_what_expired(log):
    now_ms = log.storage.now_ms()
    orders_with(log, 3, time_ms=now_ms - 2 * DAY_MS, retention_ms=HOUR_MS)
    version = log.topic("orders").snapshot.version
    maintained(log, now_ms)
    restore(log, topics=["orders"], version=version)
    assert len(contents(log, "orders")) == 3 and log.topic("orders").offsets() == {0: (0, 3)}
    maintained(log, now_ms)
    assert log.topic("orders").offsets() == {0: (3, 3)}


# What is said of it


def test_explain_and_the_page_say_when_all_expires_and_that_it_has(log):
    appended_ms = log.storage.now_ms()
    orders_with(log, 3, time_ms=appended_ms, retention_ms=DAY_MS)
    topic = log.topic("orders")
    text = explanation_text(topic.explain(0, 0, now_ms=appended_ms))
    assert "if nothing is appended: all of it has expired then" in text
    [view] = page_of(topic, appended_ms).partitions
    assert "because all of it has expired by then" in view.steps[0].text
    assert "retain takes it once roll has sealed it" in view.steps[1].text and view.warnings == ()
    late_ms = appended_ms + 3 * DAY_MS
    text = explanation_text(topic.explain(0, 0, now_ms=late_ms))
    assert "No rule keeps it any longer: the next roll seals it and the next retain removes it" in text
    [view] = page_of(topic, late_ms).partitions
    assert view.steps[0].due and any("roll has been due for" in warning for warning in view.warnings)
    [deletion] = page_of(topic, late_ms).deletions
    assert (deletion.records, deletion.at_ms) == (3, late_ms)


def page_of(topic, now_ms: int):
    return topic_view(topic.snapshot, topic.config, now_ms, 10)


def test_by_size_of_0_explain_says_that_it_is_due(log):
    orders_with(log, 1, time_ms=log.storage.now_ms(), retention_bytes=0, retention_ms=-1)
    assert "No rule keeps it any longer" in explanation_text(log.topic("orders").explain(0, 0, now_ms=later(log, 0)))


def test_the_command_says_first_what_has_expired(log, capsys):
    from tests.maintenance.test_planned import main_of

    orders_with(log, 3, time_ms=log.storage.now_ms() - 2 * DAY_MS, retention_ms=HOUR_MS)
    for options, does in ((["--dry-run"], "is sealed"), (["--yes"], "was sealed")):
        main_of(["maintain", log.uri, *options])
        first, *_ = capsys.readouterr().err.splitlines()
        assert first.startswith(f"All has expired in active segments with 3 records: this {does}")
