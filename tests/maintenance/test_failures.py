"""One damaged partition, or topic: every job does the others' work, says what failed, and leaves that as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.maintenance import Report, compact, retain, roll, vacuum
from verification.world.clock import store_clock
from verification.world.manifest_rows import forget_rows
from verification.world.opened import opened
from verification.world.stores.played_log import CommitFailedError, Play
from verification.world.topics import DAY_MS, GOLDEN_MS, append_one_by_one, contents, live, records, topic_with

DAMAGED = 1
COPIES = sys.modules["spark_segments.maintenance.rolling.copies"]


@pytest.fixture(params=["process", "spark"])
def session(request):
    return request.getfixturevalue("spark") if request.param == "spark" else None


@pytest.fixture
def orders(log) -> LogDir:
    """Three partitions to be rolled."""
    topic_with(log, "orders", {"segment.bytes": 2000, "cleanup.policy": "compact"}, partitions=3)
    for number in range(3):
        append_one_by_one(log, "orders", records(40), partition=number)
    return log


def path_of(log: LogDir, path: str) -> Path:
    return Path(log.storage.location(path))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def rows_of(log: LogDir, number: int) -> list:
    return log.topic("orders").snapshot.load_segments({number}).to_pylist()


def actions(report: Report) -> dict[int | None, str]:
    return {line["partition"]: line["action"] for line in report.partitions}


@pytest.mark.proof
def test_a_damaged_chunk_stops_the_rolling_of_its_partition_only(orders, session):
    chunk = live(orders, "orders", DAMAGED)[5]
    flip(path_of(orders, chunk.path), 70)
    before = rows_of(orders, DAMAGED)
    report = roll(orders, spark=session, now_ms=GOLDEN_MS)
    assert actions(report) == {0: "roll", DAMAGED: "failed", 2: "roll"}
    assert rows_of(orders, DAMAGED) == before
    for number in (0, 2):
        assert {row.state for row in live(orders, "orders", number)} == {"sealed", "chunk"}
        assert len(contents(orders, "orders", partition=number)) == 40
    (line,) = report.failed
    assert line["topic"] == "orders" and "\n" not in line["error"]
    for part in (chunk.path, "at position 0", "expected", "found", "Run segments verify"):
        assert part in line["error"]
    assert report.to_dict()["failed"] == 1


def test_a_chunk_whose_header_is_damaged_fails_before_anything_is_copied(orders):
    flip(path_of(orders, live(orders, "orders", DAMAGED)[25].path), 11)  # the batch's length
    report = roll(orders, now_ms=GOLDEN_MS)
    assert actions(report) == {0: "roll", DAMAGED: "failed", 2: "roll"}
    assert {row.state for row in live(orders, "orders", DAMAGED)} == {"chunk"}


def test_a_missing_file_is_one_clear_line(orders, session):
    chunk = live(orders, "orders", DAMAGED)[5]
    path_of(orders, chunk.path).unlink()
    report = roll(orders, spark=session, now_ms=GOLDEN_MS)
    assert actions(report) == {0: "roll", DAMAGED: "failed", 2: "roll"}
    error = report.failed[0]["error"]
    assert error.startswith(f"A file that the log named when it was loaded is gone in {path_of(orders, chunk.path)}. ")
    assert error.endswith("A file that is still missing was lost: run segments verify")


def test_a_damaged_segment_stops_the_compaction_of_its_partition_only(orders, session):
    roll(orders, now_ms=GOLDEN_MS)
    segment = live(orders, "orders", DAMAGED)[1]
    flip(path_of(orders, segment.path), segment.log_bytes - 1)
    before = rows_of(orders, DAMAGED)
    report = compact(orders, spark=session, now_ms=GOLDEN_MS, force=True)
    assert actions(report) == {0: "compact", DAMAGED: "failed", 2: "compact"}
    assert report.dropped["superseded"] > 0
    assert rows_of(orders, DAMAGED) == before
    assert segment.path in report.failed[0]["error"]


def test_an_error_of_programming_is_raised(orders, monkeypatch):
    monkeypatch.setattr(COPIES, "copy_batches", lambda *_, **__: None + 1)
    with pytest.raises(TypeError):
        roll(orders, now_ms=GOLDEN_MS)


@pytest.mark.cases(1)
@pytest.mark.parametrize("damaged", ["_delta_log/00000000000000000001.json", "kind=segment"])
def test_a_topic_whose_manifest_is_damaged_stops_no_job_of_the_others(tmp_path, damaged):
    config = {"segment.bytes": 2000, "retention.ms": -1, "retention.bytes": 4000, "cleanup.policy": "compact,delete"}
    uri = str(tmp_path / "log")
    for topic in ("broken", "orders"):
        log = LogDir.create(uri)
        topic_with(log, topic, config)
        append_one_by_one(log, topic, records(40))
    files = sorted(path.name for path in (tmp_path / "log" / "broken-0").iterdir())
    path = tmp_path / "log" / "_manifest" / "broken" / damaged
    for one in [*path.glob("*.parquet")] or [path]:
        one.write_bytes(one.read_bytes()[:100])
    forget_rows()  # of what this process has written
    log = LogDir.open(uri)
    for days, job in enumerate((roll, retain, compact, vacuum)):
        now_ms = GOLDEN_MS + days * DAY_MS
        with store_clock(now_ms):
            report = job(log, now_ms=now_ms)
        (line,) = report.failed
        assert (line["topic"], line["partition"]) == ("broken", None)
        assert str(tmp_path / "log" / "_manifest" / "broken") in line["error"] and "\n" not in line["error"]
        assert [one["topic"] for one in report.partitions if one["action"] == job.__name__] == ["orders"]
    assert sorted(path.name for path in (tmp_path / "log" / "broken-0").iterdir()) == files


@pytest.mark.proof
def test_a_commit_that_fails_stops_no_job_of_the_other_topics(orders):
    topic_with(orders, "payments", {"segment.bytes": 2000})
    append_one_by_one(orders, "payments", records(40))
    before = orders.topic("orders").snapshot.version

    def fails(topic, go):
        if topic == "orders":
            raise CommitFailedError("no answer")
        go()

    play = Play()
    play.always("commit_on", fails)
    report = roll(opened(orders, open_delta_log=play), now_ms=GOLDEN_MS)
    assert [(line["topic"], line["action"]) for line in report.partitions] == [
        *[("orders", "failed")] * 3,
        ("payments", "roll"),
    ]
    assert orders.topic("orders").snapshot.version == before
    assert "no answer" in report.failed[0]["error"]


def test_a_topic_that_is_deleted_meanwhile_is_no_failure(orders, monkeypatch):
    copy_batches = COPIES.copy_batches

    def then_delete(*arguments, **options):
        if "orders" in orders.topics():
            orders.delete_topic("orders")
        return copy_batches(*arguments, **options)

    monkeypatch.setattr(COPIES, "copy_batches", then_delete)
    report = roll(orders, now_ms=GOLDEN_MS)
    assert set(actions(report).values()) == {"lost to another job"} and report.failed == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("command", ["roll", "maintain"])
def test_the_command_names_what_failed_and_exits_with_1(orders, command, output, capsys):
    chunk = live(orders, "orders", DAMAGED)[5]
    flip(path_of(orders, chunk.path), 70)
    with pytest.raises(SystemExit) as ended:
        main([command, orders.uri, "--output", output, "--now-ms", str(GOLDEN_MS)])
    printed = capsys.readouterr()
    assert ended.value.code == 1
    (line,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: orders-1: ") and chunk.path in line
    if output == "text":
        assert "3 partitions (1 failed)" in printed.err
    else:
        assert '"action": "failed"' in printed.out and '"failed": 1' in printed.out
    jobs = ["roll", "retain", "compact", "vacuum"] if command == "maintain" else ["roll"]
    assert all(job in printed.out + printed.err for job in jobs)


@pytest.mark.proof
def test_a_later_round_that_fails_keeps_what_the_rounds_before_did_in_the_report(orders, session):
    """Eleven records a segment, seven keys, and a map that takes two of these: a round is a few offsets."""
    roll(orders, now_ms=GOLDEN_MS)
    segment = live(orders, "orders", DAMAGED)[2]
    flip(path_of(orders, segment.path), segment.log_bytes - 1)
    before = len(contents(orders, "orders", partition=DAMAGED, offsets=(None, segment.base_offset)))
    small = LogDir.open(orders.uri, defaults={"log.cleaner.dedupe.buffer.size": "72"})
    report = compact(small, spark=session, now_ms=GOLDEN_MS, force=True)
    assert actions(report) == {0: "compact", DAMAGED: "failed", 2: "compact"}
    (line,) = report.failed
    assert line["partition"] == DAMAGED and segment.path in line["error"]
    assert line.get("rounds", 0) > 0
    assert line["records_in"] == line["records_out"] + line["dropped"]["superseded"]
    row = orders.topic("orders").snapshot.partition(DAMAGED)
    assert 0 < line["first_dirty_offset"] == row.first_dirty_offset <= segment.base_offset
    after = contents(orders, "orders", partition=DAMAGED, offsets=(None, segment.base_offset))
    assert before - len(after) == line["dropped"]["superseded"] > 0
    assert report.dropped["superseded"] == sum(one["dropped"]["superseded"] for one in report.partitions)


def files(log: LogDir) -> set[str]:
    return {file.path for number in range(3) for file in log.storage.list(f"orders-{number}")}


@pytest.mark.proof
def test_a_partition_that_roll_fails_with_leaves_no_files(orders, session):
    chunk = live(orders, "orders", DAMAGED)[15]
    flip(path_of(orders, chunk.path), 70)
    roll(orders, spark=session, now_ms=GOLDEN_MS)
    before = files(orders)
    assert len({path for path in before if path.startswith("orders-1/")}) == 3 * 40
    assert roll(orders, spark=session, now_ms=GOLDEN_MS).failed
    assert files(orders) == before
    assert len(contents(orders, "orders", partition=0)) == 40


@pytest.mark.cases(1)
@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_partition_that_compact_fails_with_leaves_no_files(orders, session, by_tasks, limits):
    roll(orders, now_ms=GOLDEN_MS)
    segment = live(orders, "orders", DAMAGED)[2]
    flip(path_of(orders, segment.path), segment.log_bytes - 1)
    if by_tasks:
        limits(LARGE_PARTITION_BYTES=0, LARGE_SHARE=0)
    before = {path for path in files(orders) if path.startswith("orders-1/")}
    small = LogDir.open(orders.uri, defaults={"log.cleaner.threads": "2"})
    assert actions(compact(small, spark=session, now_ms=GOLDEN_MS, force=True))[DAMAGED] == "failed"
    assert {path for path in files(orders) if path.startswith("orders-1/")} == before
