"""`segments explain` on the command line: sentences for people, figures for scripts."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.cli.jobs.explain import exactly
from spark_segments.maintenance import compact, retain, roll, vacuum
from verification.world.clock import store_clock
from verification.world.topics import append_one_by_one, records, topic_with

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 1_900_000_000_000  # 2030-03-17 17:46:40, after the files were made


@pytest.fixture
def orders(log) -> LogDir:
    """A topic whose records are three segments' worth."""
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": 10 * DAY_MS, "file.delete.delay.ms": HOUR_MS})
    append_one_by_one(log, "orders", records(30, time_ms=NOW_MS))
    return log


def said(segments, log: LogDir, *arguments: object) -> list[str]:
    return segments("explain", log.uri, "orders", *arguments).lines


def test_the_active_segment_is_rolled_first(segments, log):
    topic_with(log, "orders", {"retention.ms": HOUR_MS, "segment.ms": DAY_MS})
    append_one_by_one(log, "orders", records(1, time_ms=NOW_MS))
    lines = said(segments, log, "--offset", 0, "--now-ms", NOW_MS)
    assert lines[:2] == [
        "Offset 0 of orders-0 is in the active segment.",
        "It is kept because no job removes records from the active segment.",
    ]
    assert lines[2] == (
        "It leaves the log at the earliest 2030-03-17 18:46:40Z (in 1 h), "
        "at the latest 2030-03-18 19:46:40Z (in 1 d 2 h)."
    )
    assert lines[5] == "Next steps, if each job runs every 1 h:"
    assert [line.split(":")[0] for line in lines[6:]] == ["  roll", "  retain", "  vacuum"]
    assert (
        "which has 171 B, is rolled once it has segment.bytes (1.0 GiB), or once segment.ms (1 d) has passed"
        in lines[6]
    )


def test_a_sealed_segment_waits_for_retention(segments, orders):
    roll(orders, now_ms=NOW_MS)
    lines = said(segments, orders, "--offset", 3, "--every", "30m", "--now-ms", NOW_MS)
    assert lines[0] == "Offset 3 of orders-0 is in the sealed segment with offsets 0 to 10."
    assert lines[1] == "It is kept by retention.ms."
    assert "(in 10 d), at the latest" in lines[2]
    assert (
        "once all its records are older than retention.ms (10 d); its largest timestamp is 2030-03-17 17:46:40Z"
        in lines[6]
    )
    lines = said(segments, orders, "--offset", 3, "--now-ms", NOW_MS + 11 * DAY_MS)
    assert lines[1] == "No rule keeps it any longer: the next run of retain removes it."
    assert lines[2].startswith("It leaves the log at the earliest now, at the latest 2030-03-28 18:46:40Z")


def test_what_is_removed_and_what_is_gone(segments, orders):
    later_ms = NOW_MS + 11 * DAY_MS
    with store_clock(NOW_MS):
        roll(orders, now_ms=NOW_MS)
    with store_clock(later_ms):
        retain(orders, now_ms=later_ms)
    lines = said(segments, orders, "--offset", 3, "--now-ms", later_ms)
    assert "has left the log at 2030-03-28 17:46:40Z (now). The file with offsets 0 to 10 is kept" in lines[0]
    assert lines[1] == "Its file is kept by file.delete.delay.ms."
    vacuum(orders, now_ms=later_ms + 2 * HOUR_MS)
    assert said(segments, orders, "--offset", 3) == ["Offset 3 of orders-0 is gone: no file has it any more."]
    unwritten = segments("explain", orders.uri, "orders", "--offset", 30)
    assert (unwritten.text, unwritten.error) == ("", "Offset 30 of orders-0 is not written yet.\n")


def test_a_time_finds_the_record_and_json_is_what_explain_says(segments, orders):
    ran = segments(
        "explain", orders.uri, "orders", "--time", "2030-03-17T17:46:40.005Z", "--output", "json", "--now-ms", NOW_MS
    )
    assert ran.json == orders.topic("orders").explain(0, timestamp_ms=NOW_MS + 5, now_ms=NOW_MS).to_dict()
    assert (ran.json["offset"], ran.json["timestamp_ms"], ran.json["every_ms"]) == (5, NOW_MS + 5, HOUR_MS)
    assert (
        "Offset 5 of orders-0, with timestamp 2030-03-17 17:46:40Z, is"
        in said(segments, orders, "--time", NOW_MS + 5)[0]
    )


def test_a_compacted_topic_tells_of_cleaning_and_tombstones(segments, log):
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": DAY_MS}
    topic_with(log, "orders", config)
    table = records(3, time_ms=NOW_MS)
    append_one_by_one(log, "orders", table.set_column(1, "value", [[b"v", None, b"v"]]))
    lines = said(segments, log, "--offset", 1, "--now-ms", NOW_MS)
    assert lines[0] == "Offset 1 of orders-0 is in the active segment."
    assert lines[4] == "No latest time can be given: the newest record of a key stays."
    assert "or once max.compaction.lag.ms (1 d) has passed" in lines[7]
    assert "if it finds a newer record of its key; it has looked for such a record by 2030-03-18 19:46:40Z" in lines[8]
    after_ms = NOW_MS + 2 * DAY_MS
    roll(log, now_ms=after_ms)
    compact(log, now_ms=after_ms)
    lines = said(segments, log, "--offset", 1, "--now-ms", after_ms)
    assert lines[0].endswith("in the sealed segment with offsets 0 to 2, if cleaning has not dropped it yet.")
    assert lines[1] == "It is kept because cleaning has found no newer record of its key."
    assert "cleaning has read the log up to 3 and kept the record" in lines[7]
    assert "delete.retention.ms (1 d) after its first cleaning; the first delete horizon of its segment is" in lines[8]


def test_each_way_to_go_is_told(segments, log):
    settings = {"segment.bytes": 2000, "retention.ms": -1, "retention.bytes": 10_000}
    topic_with(log, "orders", settings, partitions=2)
    append_one_by_one(log, "orders", records(30, time_ms=NOW_MS), partition=1)
    text = "\n".join(said(segments, log, "--partition", 1, "--offset", 3, "--now-ms", NOW_MS))
    assert "the active segment is due to be rolled (segment.bytes): at the earliest now, at the latest" in text
    last = "\n".join(said(segments, log, "--partition", 1, "--offset", 29, "--now-ms", NOW_MS))
    assert "(segment.bytes), but the record may be in the part that stays active: at the earliest now" in last
    assert "is removed once retention.bytes (9.8 KiB) are appended after it: at the earliest now" in text
    roll(log, now_ms=NOW_MS)
    text = "\n".join(said(segments, log, "--partition", 1, "--offset", 3, "--now-ms", NOW_MS))
    assert "more are appended: then the log has retention.bytes (9.8 KiB) without it" in text
    assert "more records must be appended first" in text
    log.topic("orders").alter({"retention.bytes": "100"})
    text = "\n".join(said(segments, log, "--partition", 1, "--offset", 3, "--now-ms", NOW_MS))
    assert "because the log has retention.bytes (100 B) without it: at the earliest now, at the latest" in text
    log.topic("orders").alter({"retention.bytes": "-1"})
    never = "It does not leave the log under the topic's present settings."
    assert never in said(segments, log, "--partition", 1, "--offset", 3)
    log.topic("orders").alter({"retention.bytes": "10000", "retention.ms": DAY_MS})
    lines = said(segments, log, "--partition", 1, "--offset", 3, "--now-ms", NOW_MS)
    assert lines[1] == (
        "Rules that the next retain applies: retention.bytes, retention.ms. "
        "Any one of them can remove it; none does yet."
    )
    log.topic("orders").delete_records({1: 15})
    text = "\n".join(said(segments, log, "--partition", 1, "--offset", 3, "--now-ms", NOW_MS))
    assert "below the log start: readers do not see it" in text and "It leaves the log" not in text
    assert "because all of it lies below the log start" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "orders"],
        ["log", "orders", "--offset", "1", "--time", "5"],
        ["log", "orders", "--key", "a", "--key-base64", "YQ=="],
        ["log", "--offset", "1"],
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_wrong_usage(run, arguments):
    ran = run("explain", *arguments)
    assert (ran.code, ran.output) == (2, b"") and "Usage: segments explain" in ran.error


def test_errors_are_one_line(run, segments, log):
    topic_with(log, "orders", {}, partitions=2)
    for arguments, message in (
        ([log.uri, "orders", "--offset", 1], "The topic has several partitions: expected --partition 0 to 1"),
        ([log.uri, "orders", "--offset", 1, "--partition", 2], "no such partition"),
        ([log.uri, "prices", "--offset", 1], "prices"),
        ([log.uri, "orders", "--offset", 1, "--partition", 0, "--every", "soon"], "Not a duration"),
    ):
        ran = run("explain", *arguments)
        assert ran.code == 1 and message in ran.error and ran.error.count("\n") == 1, ran.error


@pytest.mark.parametrize(
    "length_ms, text",
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (25 * HOUR_MS, "25 h"),
        (169 * HOUR_MS, "7 d 1 h"),
        (90_061_001, "1 d 1 h 1 min 1 s 1 ms"),
    ],
)
def test_durations_are_exact(length_ms, text):
    assert exactly(length_ms) == text
