"""Retention under a size for a whole log directory: against a plain model, against the files, and in a race."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.config import topic_config
from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.maintenance import Report, mirror, retain, roll, vacuum
from spark_segments.maintenance.retention.max_bytes import plan_max_bytes, topic_sizes, with_max_bytes
from spark_segments.maintenance.retention.retention_plan import REASONS, plan_retention
from tests.examples import examples
from tests.maintenance.rows import chunk, row, run, table
from verification.world.clock import PATIENCE_SECONDS
from verification.world.log_copies import copy_of
from verification.world.manifest_rows import Segment
from verification.world.opened import opened
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, append_one_by_one, contents, later, live, records, topic_with

RETAIN = sys.modules["spark_segments.maintenance.retention.retain"]
NOW_MS = 1000
START_MS = 1_700_000_000_000
LATER_MS = START_MS + 100 * DAY_MS

segments = st.tuples(
    st.integers(0, 100),  # bytes of the .log
    st.integers(0, 20),  # of the sidecars
    st.integers(0, NOW_MS // 10).map(lambda time: 10 * time) | st.integers(0, 2 * NOW_MS) | st.just(-1),
    st.integers(0, NOW_MS),  # created
)
partitions = st.tuples(st.lists(segments, max_size=8), st.lists(segments, max_size=2))
topics = st.tuples(
    st.lists(partitions, min_size=1, max_size=3),
    st.sampled_from(["delete", "delete", "compact,delete", "compact"]),
    st.sampled_from([-1, -1, 700]),
)


def rows_of(number: int, sealed: Sequence[tuple], chunks: Sequence[tuple]) -> list[Segment]:
    rows: list[Segment] = []
    for state, found in (("sealed", sealed), ("chunk", chunks)):
        for log_bytes, index_bytes, largest, created in found:
            sizes = {"log_bytes": log_bytes, "index_bytes": index_bytes, "time_index_bytes": 0, "txn_index_bytes": 1}
            times = {"max_timestamp_ms": largest, "created_ms": created}
            base = 10 * len(rows)
            rows.append(row(base, base + 10, partition=number, state=state, **sizes, **times))
    return rows


def size(one: Segment) -> int:
    return one.log_bytes + one.index_bytes + one.time_index_bytes + one.txn_index_bytes


def newest(one: Segment) -> int:
    return one.max_timestamp_ms if one.max_timestamp_ms >= 0 else one.created_ms


def taken(
    topics: Sequence[tuple[list[list[Segment]], dict[str, str]]], max_bytes: int, min_retention_ms: int
) -> list[list[tuple[str, str]]]:
    """[(path, reason)] of what goes of each topic, by the plan."""
    planned, shares = [], []
    for parts, overrides in topics:
        there, config = table(one for part in parts for one in part), topic_config(overrides)
        expired = plan_retention(there, np.zeros(len(parts), np.int64), config, NOW_MS)
        shares.append(topic_sizes(there, expired, config, NOW_MS, min_retention_ms, len(parts)))
        planned.append((there, expired))
    assert sum(share.live_bytes for share in shares) == sum(
        size(one) for parts, _ in topics for part in parts for one in part
    ) - sum(
        int(there.column(name).to_numpy()[expired.rows].sum())
        for there, expired in planned
        for name in ("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes")
    )
    found = []
    for (there, expired), ends in zip(planned, plan_max_bytes(shares, max_bytes), strict=True):
        all_of_it = with_max_bytes(there, expired, ends)
        paths = there.column("path").to_pylist()
        found.append([(paths[at], REASONS[why]) for at, why in zip(all_of_it.rows, all_of_it.reason, strict=True)])
    return found


def model(
    topics: Sequence[tuple[list[list[Segment]], dict[str, str]]], max_bytes: int, min_retention_ms: int
) -> list[list[tuple[str, str]]]:
    """The same by taking one segment after the other: what has expired, then the oldest head of all partitions."""
    left = [[list(part) for part in parts] for parts, _ in topics]
    gone: list[list[tuple[str, str]]] = [[] for _ in topics]
    for number, (_, overrides) in enumerate(topics):
        retention_ms = int(overrides["retention.ms"])
        if "delete" in overrides["cleanup.policy"] and retention_ms >= 0:
            for part in left[number]:
                while part and part[0].state == Segment.SEALED and NOW_MS - newest(part[0]) > retention_ms:
                    gone[number].append((part.pop(0).path, "retention.ms"))
    while sum(size(one) for parts in left for part in parts for one in part) > max_bytes:
        heads = [
            (newest(part[0]), number, owner)
            for number, (_, overrides) in enumerate(topics)
            if "delete" in overrides["cleanup.policy"]
            for owner, part in enumerate(left[number])
            if part and part[0].state == Segment.SEALED and NOW_MS - newest(part[0]) > min_retention_ms
        ]
        if not heads:
            break
        _, number, owner = min(heads)
        gone[number].append((left[number][owner].pop(0).path, "max-bytes"))
    return gone


@examples(400)
@given(found=st.lists(topics, min_size=1, max_size=3), max_bytes=st.integers(0, 1500), floor=st.integers(0, NOW_MS))
def test_the_oldest_go_first_and_no_more_than_need_be(found, max_bytes, floor):
    all_topics = [
        (
            [rows_of(number, sealed, chunks) for number, (sealed, chunks) in enumerate(parts)],
            {"cleanup.policy": policy, "retention.ms": str(retention_ms)},
        )
        for parts, policy, retention_ms in found
    ]
    gone = taken(all_topics, max_bytes, floor)
    assert [sorted(one) for one in gone] == [sorted(one) for one in model(all_topics, max_bytes, floor)]
    live_bytes, forced = 0, []
    for (parts, overrides), of_topic in zip(all_topics, gone, strict=True):
        reasons = dict(of_topic)
        for part in parts:
            flags = [one.path in reasons for one in part]
            assert flags == sorted(flags, reverse=True), "a prefix goes"
            live_bytes += sum(size(one) for one in part if one.path not in reasons)
            for one in part:
                if reasons.get(one.path) == "max-bytes":
                    assert one.state == Segment.SEALED and "delete" in overrides["cleanup.policy"]
                    assert NOW_MS - newest(one) > floor, "the floor holds"
                    forced.append(one)
    if forced:
        assert live_bytes + max(map(size, forced)) > max_bytes, "no more than need be"


def test_a_segment_goes_with_those_before_it_not_by_itself():
    parts = [
        [row(0, 10, max_timestamp_ms=500), row(10, 20, max_timestamp_ms=1, partition=0), chunk(20, 30)],
        run([1000, 1000], partition=1, max_timestamp_ms=400, time_index_bytes=0),
    ]
    topic = (parts, {"cleanup.policy": "delete", "retention.ms": "-1"})
    gone = [path for path, _ in taken([topic], 3100, 0)[0]]
    assert gone == [parts[1][0].path, parts[1][1].path][: len(gone)] and len(gone) == 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log = LogDir.create(str(tmp_path_factory.mktemp("made") / "log"))
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": -1}, partitions=2)
    topic_with(log, "payments", {"segment.bytes": 2000, "retention.ms": 1000 * DAY_MS})
    topic_with(log, "prices", {"segment.bytes": 2000, "cleanup.policy": "compact"})
    for topic, partition, first_day in (("orders", 0, 0), ("orders", 1, 30), ("payments", 0, 10), ("prices", 0, 0)):
        table_of = records(40, time_ms=START_MS + first_day * DAY_MS, step_ms=DAY_MS)
        append_one_by_one(log, topic, table_of, partition=partition)
    roll(log, now_ms=START_MS)
    return log


@pytest.fixture
def full(made: LogDir, tmp_path: Path) -> LogDir:
    """Two topics to be deleted from, a record a day, and a compacted one; sealed but for the last records."""
    return copy_of(made, tmp_path / "log")


def sizes(log: LogDir) -> tuple[int, int]:
    """(bytes of live files, bytes of all files), as they are on the disk."""
    files = {
        info.path: info.size
        for name in log.storage.directories()
        if not name.startswith("_")
        for info in log.storage.list(name)
    }
    live_paths = {
        path
        for topic in log.topics()
        for number in log.topic(topic).offsets()
        for one in live(log, topic, number)
        for path in (one.path, one.index_path, one.time_index_path, one.txn_index_path)
    }
    return sum(size for path, size in files.items() if path in live_paths), sum(files.values())


def bases(log: LogDir) -> dict[tuple[str, int], list[int]]:
    return {
        (topic, number): [one.base_offset for one in live(log, topic, number)]
        for topic in log.topics()
        for number in log.topic(topic).offsets()
    }


@pytest.mark.proof
def test_the_size_is_that_of_the_live_files_and_what_is_removed_waits_for_vacuum(full):
    live_bytes, all_bytes = sizes(full)
    limit = live_bytes * 2 // 3
    report = retain(full, now_ms=LATER_MS, max_bytes=limit).to_dict()
    after_bytes, still_bytes = sizes(full)
    assert after_bytes <= limit < live_bytes and still_bytes == all_bytes
    assert (
        report["details"]["live_bytes"] == after_bytes and report["details"]["waiting_bytes"] == all_bytes - after_bytes
    )
    assert (report["details"]["max_bytes"], report["details"]["over_bytes"]) == (limit, 0)
    assert report["records_in"] == report["records_out"] + report["dropped"]["max-bytes"]
    vacuum(full, now_ms=later(full, 2))
    assert sizes(full) == (after_bytes, after_bytes)
    assert retain(full, now_ms=LATER_MS, max_bytes=limit).to_dict()["details"]["waiting_bytes"] == 0


def test_the_oldest_of_all_topics_go_and_the_report_says_how_far(full):
    before = {one: contents(full, one[0], partition=one[1]) for one in bases(full)}
    limit = sizes(full)[0] * 2 // 3
    report = retain(full, now_ms=LATER_MS, max_bytes=limit)
    lines = {(line["topic"], line["partition"]): line for line in report.partitions}
    assert lines.keys() == {("orders", 0), ("payments", 0)}, "orders-1 is younger, and prices is only compacted"
    oldest_kept_ms = min(
        one.max_timestamp_ms
        for where in [*lines, ("orders", 1)]
        for one in live(full, *where)
        if one.state == Segment.SEALED
    )
    for (topic, number), line in lines.items():
        gone = [one for one in before[topic, number] if one["offset"] < line["log_start_offset"]]
        youngest_ms = max(int(one["timestamp"].timestamp() * 1000) for one in gone)
        assert youngest_ms <= oldest_kept_ms
        assert line["dropped"] == {"max-bytes": len(gone)}
        assert line["shortened_to_ms"] == LATER_MS - youngest_ms - 1


def test_retention_ms_as_short_as_reported_takes_the_same(full, tmp_path):
    limit = sizes(full)[0] * 2 // 3
    (line, *_) = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True).partitions
    for shorter, same in ((line["shortened_to_ms"], True), (line["shortened_to_ms"] + 1, False)):
        full.topic("orders").alter({"retention.ms": str(shorter)})
        found = [
            one
            for one in retain(full, topics=["orders"], now_ms=LATER_MS, dry_run=True).partitions
            if one["partition"] == line["partition"]
        ]
        assert bool(found and found[0]["segments"] == line["segments"]) is same


def test_a_size_that_cannot_be_reached_is_said_with_what_is_in_its_way(full):
    now_ms = START_MS + 45 * DAY_MS  # most of orders-1 is not a day old
    report = retain(full, now_ms=now_ms, max_bytes=0).to_dict()
    live_bytes, _ = sizes(full)
    assert report["details"]["over_bytes"] == report["details"]["live_bytes"] == live_bytes > 0
    held = [report["details"][f"held_{why}_bytes"] for why in ("active", "young", "compacted")]
    assert sum(held) == live_bytes and all(held)
    assert bases(full)["prices", 0][0] == 0
    for number in (0, 1):
        assert all(
            one.state != Segment.SEALED or one.max_timestamp_ms >= now_ms - DAY_MS
            for one in live(full, "orders", number)
        )
    assert retain(full, now_ms=now_ms, max_bytes=0).partitions == []


def test_the_floor_is_what_is_asked_for(full):
    now_ms = START_MS + 70 * DAY_MS
    expected = {
        (topic, number): [
            one.base_offset for one in live(full, topic, number) if one.max_timestamp_ms >= now_ms - 50 * DAY_MS
        ]
        for topic, number in (("orders", 0), ("orders", 1), ("payments", 0))
    }
    retain(full, now_ms=now_ms, max_bytes=0, min_retention_ms=50 * DAY_MS)
    assert expected.items() <= bases(full).items() and full.topic("orders").offsets()[1] == (0, 40)


def test_a_dry_run_says_what_would_go_and_changes_nothing(full):
    before = bases(full), [full.topic(topic).snapshot.version for topic in full.topics()]
    limit = sizes(full)[0] // 2
    dry = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True).to_dict()
    assert (bases(full), [full.topic(topic).snapshot.version for topic in full.topics()]) == before
    done = retain(full, now_ms=LATER_MS, max_bytes=limit).to_dict()
    assert {**dry, "seconds": 0, "dry_run": False} == {**done, "seconds": 0}
    assert done["details"]["live_bytes"] == sizes(full)[0] <= limit


def test_ordinary_retention_comes_first_and_may_be_enough(full):
    full.topic("payments").alter({"retention.ms": str(DAY_MS)})
    limit = sizes(full)[0] - 3000
    report = retain(full, now_ms=LATER_MS, max_bytes=limit)
    assert report.dropped.keys() == {"retention.ms"} and sizes(full)[0] <= limit
    assert "shortened_to_ms" not in report.partitions[0]


def calls_of(function, work) -> int:
    """How often a function is called while `work` is done, in this thread."""
    code, calls = function.__code__, []
    sys.setprofile(lambda frame, event, _: calls.append(event) if event == "call" and frame.f_code is code else None)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_retention_is_planned_once_for_each_topic_of_a_run(full):
    limit, topics = sizes(full)[0] // 2, len(full.topics())
    for options in ({"max_bytes": limit, "dry_run": True}, {"max_bytes": limit}, {}):
        assert calls_of(plan_retention, lambda given=options: retain(full, now_ms=LATER_MS, **given)) == topics


def meanwhile(monkeypatch: pytest.MonkeyPatch, work) -> None:
    """Has `work` done after a run has planned, before it commits."""
    plan_log_directory = RETAIN.plan_log_directory

    def plan_then(*arguments):
        found = plan_log_directory(*arguments)
        monkeypatch.setattr(RETAIN, "plan_log_directory", plan_log_directory)
        work()
        return found

    monkeypatch.setattr(RETAIN, "plan_log_directory", plan_then)


def test_two_at_once_take_what_one_would_take(full, tmp_path, monkeypatch):
    limit = sizes(full)[0] // 2
    expected = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True).to_dict()
    reports = []
    meanwhile(monkeypatch, lambda: reports.append(retain(full, now_ms=LATER_MS, max_bytes=limit)))
    late = retain(full, now_ms=LATER_MS, max_bytes=limit)
    assert reports[0].to_dict()["partitions"] == expected["partitions"]
    assert (
        late.partitions == []
        and late.to_dict()["details"]["live_bytes"] == expected["details"]["live_bytes"] == sizes(full)[0]
    )


def test_many_at_once_take_what_one_would_take(full):
    limit = sizes(full)[0] // 2
    expected = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True).to_dict()
    begin = threading.Barrier(4)

    def work(_: int) -> Report:
        begin.wait(timeout=PATIENCE_SECONDS)
        return retain(LogDir.open(full.uri), now_ms=LATER_MS, max_bytes=limit)

    with ThreadPoolExecutor(4) as pool:
        reports = [*pool.map(work, range(4))]
    assert not any(report.failed for report in reports)
    assert sum((report.dropped for report in reports), Counter()) == Counter(expected["dropped"])
    assert sizes(full)[0] == expected["details"]["live_bytes"]


def test_a_run_that_meets_another_half_way_takes_the_rest_and_no_more(full, monkeypatch):
    limit = sizes(full)[0] // 2
    expected = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True)

    def fails(topic, go):
        raise StorageError("The store does not answer")

    def half():
        play = Play()
        play.commits(lambda go: go())  # the first topic's; none after it
        play.always("commit_on", fails)
        played = opened(full, open_delta_log=play)
        report = retain(played, now_ms=LATER_MS, max_bytes=limit)
        assert [line["topic"] for line in report.failed] == ["payments"]
        assert report.to_dict()["details"]["live_bytes"] == sizes(full)[0]

    meanwhile(monkeypatch, half)
    report = retain(full, now_ms=LATER_MS, max_bytes=limit)
    assert {line["topic"] for line in report.partitions} == {"payments"}
    assert sizes(full)[0] == expected.to_dict()["details"]["live_bytes"]


def test_a_lost_race_is_planned_anew_on_what_is_there(full, monkeypatch):
    """An append comes between the plan and the commit: the new records stay, the planned segments go."""
    limit = sizes(full)[0] // 2
    expected = retain(full, now_ms=LATER_MS, max_bytes=limit, dry_run=True)
    meanwhile(monkeypatch, lambda: append_one_by_one(full, "orders", records(3, first=40, time_ms=START_MS)))
    report = retain(full, now_ms=LATER_MS, max_bytes=limit)
    assert [(line["topic"], line["partition"], line["segments"]) for line in report.partitions] == [
        (line["topic"], line["partition"], line["segments"]) for line in expected.partitions
    ]
    assert full.topic("orders").offsets()[0][1] == 43 and report.to_dict()["details"]["live_bytes"] == sizes(full)[0]


def test_a_topic_that_is_altered_or_made_again_meanwhile_is_left(full, monkeypatch):
    def change():
        full.topic("orders").alter({"cleanup.policy": "compact"})
        full.delete_topic("payments")
        topic_with(full, "payments", {"segment.bytes": 2000, "retention.ms": -1})
        append_one_by_one(full, "payments", records(40, time_ms=START_MS))
        roll(full, topics=["payments"], now_ms=START_MS)

    meanwhile(monkeypatch, change)
    report = retain(full, now_ms=LATER_MS, max_bytes=0)
    assert report.partitions == []
    assert full.topic("orders").offsets() == {0: (0, 40), 1: (0, 40)} and full.topic("payments").offsets() == {
        0: (0, 40)
    }


def test_partitions_that_are_added_meanwhile_are_left(full, monkeypatch):
    meanwhile(monkeypatch, lambda: full.topic("orders").alter(partitions=4))
    topic = {"topic": "orders"}
    found = {
        line["partition"]
        for line in retain(full, now_ms=LATER_MS, max_bytes=0).partitions
        if topic.items() <= line.items()
    }
    assert found == {0, 1}


def test_files_of_deleted_topics_wait_for_vacuum(full):
    live_bytes, all_bytes = sizes(full)
    full.delete_topic("payments")
    report = retain(full, now_ms=LATER_MS, max_bytes=live_bytes).to_dict()
    assert report["partitions"] == [] and report["details"]["live_bytes"] == sizes(full)[0] < live_bytes
    assert report["details"]["waiting_bytes"] == all_bytes - report["details"]["live_bytes"]


def test_a_follower_counts_towards_no_limit_and_is_warned_of(full, tmp_path):
    follower = LogDir.create(str(tmp_path / "follower"))
    assert not mirror(follower, leader=full).failed
    report = retain(follower, now_ms=LATER_MS, max_bytes=0).to_dict()
    assert report["partitions"] == [] and not report["failed"]
    assert report["details"]["live_bytes"] == report["details"]["waiting_bytes"] == 0
    assert "3 followers (orders, payments, prices) not counted by max_bytes" in report["warnings"][0]


def test_a_topic_or_a_limit_that_makes_no_sense_is_an_error(full):
    with pytest.raises(InvalidOptionError, match="whole log directory"):
        retain(full, topics=["orders"], max_bytes=1)
    for wrong in ({"max_bytes": -1}, {"max_bytes": 1, "min_retention_ms": -1}):
        with pytest.raises(InvalidOptionError, match="below 0"):
            retain(full, **wrong)
