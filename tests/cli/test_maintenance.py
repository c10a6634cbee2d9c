from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll
from verification.world.log_copies import copy_of

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LATER_MS = 2_000_000_000_000  # long after any test runs: segments that nothing was appended to are idle then


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log = LogDir.create(str(tmp_path_factory.mktemp("prices") / "log"))
    log.create_topic("prices", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    for day in range(5):
        at = pa.scalar(START_MS + day * DAY_MS, pa.timestamp("ms", tz="UTC"))
        log.topic("prices").append(
            pa.table({"key": [b"a", b"b"], "value": [f"{key}{day}".encode() for key in "ab"], "timestamp": [at, at]})
        )
    return log


@pytest.fixture
def uri(prices: LogDir, tmp_path: Path) -> str:
    """A compacted topic of ten records of two keys in five appends, a day apart."""
    return copy_of(prices, tmp_path / "log").uri


def values(segments, uri: str) -> list[str]:
    return segments("consume", uri, "prices").lines


def state(uri: str) -> tuple[int, int]:
    """(version, live files): what a dry run must leave as it is."""
    snapshot = LogDir.open(uri).topic("prices").snapshot
    return snapshot.version, snapshot.live.num_rows


def rolled(segments, uri: str) -> None:
    segments("topic", "alter", uri, "prices", "--config", f"segment.ms={DAY_MS // 2}")
    segments("roll", uri, "prices", "--now-ms", LATER_MS)
    segments("append", uri, "prices", "--property", "parse.key=true", stdin=b"c\tc\n")


@pytest.mark.parametrize("job", ["roll", "retain", "compact", "vacuum"])
def test_a_dry_run_changes_nothing(segments, uri, job):
    rolled(segments, uri)
    before = state(uri)
    report = segments(job, uri, "--dry-run", "--output", "json", "--now-ms", LATER_MS).json
    assert (report["job"], report["dry_run"]) == (job, True)
    assert segments(job, uri, "prices", "--dry-run").error.startswith(f"{job} (dry run): ")
    assert state(uri) == before


@pytest.mark.parametrize("job", ["roll", "retain", "compact", "vacuum"])
def test_a_report_says_what_was_done_as_json_and_as_text(segments, uri, job):
    report = segments(job, uri, "--output", "json").json
    assert report["records_in"] == report["records_out"] + sum(report["dropped"].values())
    assert segments(job, uri).error.startswith(f"{job}: ")


def test_roll_seals_by_the_clock_given(segments, uri):
    segments("roll", uri, "prices", "--now-ms", LATER_MS)
    described = segments("describe", uri, "prices", "--output", "json").json["partitions"][0]
    assert (described["segments"], described["chunks"]) == (1, 0)
    assert len(values(segments, uri)) == 10


def test_compact_leaves_the_newest_record_of_each_key(segments, uri):
    rolled(segments, uri)
    report = segments("compact", uri, "prices", "--output", "json").json
    assert report["dropped"] == {"superseded": 8}
    assert values(segments, uri) == ["a4", "b4", "c"]


def test_compact_is_not_due_unless_forced(segments, uri):
    rolled(segments, uri)
    segments("compact", uri, "prices")
    segments("topic", "alter", uri, "prices", "--config", "min.cleanable.dirty.ratio=1")
    segments("append", uri, "prices", "--property", "parse.key=true", stdin=b"c\tagain\n")
    segments("roll", uri, "prices", "--now-ms", LATER_MS)
    segments("compact", uri, "prices")
    assert values(segments, uri) == ["a4", "b4", "c", "again"]
    segments("compact", uri, "prices", "--force")
    assert values(segments, uri) == ["a4", "b4", "again"]


def test_max_partitions_takes_so_many(segments, uri):
    rolled(segments, uri)
    segments("topic", "create", uri, "other", "--partitions", 2, "--config", "cleanup.policy=compact,segment.ms=1")
    for partition in (0, 1):
        for value in (b"k\t1\n", b"k\t2\n"):
            segments("append", uri, "other", "--partition", partition, "--property", "parse.key=true", stdin=value)
    segments("roll", uri, "other", "--now-ms", LATER_MS)
    report = segments("compact", uri, "--max-partitions", 1, "--output", "json").json
    assert len(report["partitions"]) == 1


def test_retain_takes_whole_segments_of_old_records(segments, uri):
    segments("topic", "alter", uri, "prices", "--config", "cleanup.policy=delete", "--config", f"retention.ms={DAY_MS}")
    rolled(segments, uri)
    report = segments("retain", uri, "prices", "--output", "json", "--now-ms", START_MS + int(4.5 * DAY_MS)).json
    assert sum(report["dropped"].values()) == 8
    assert values(segments, uri) == ["a4", "b4", "c"]


def test_vacuum_deletes_the_files_that_left_the_log(segments, uri, tmp_path):
    rolled(segments, uri)
    segments("compact", uri, "prices")
    files = tmp_path / "log" / "prices-0"
    before = len(list(files.glob("*.log")))
    segments("vacuum", uri, "prices")
    assert len(list(files.glob("*.log"))) == before
    segments("vacuum", uri, "prices", "--yes", "--now-ms", LogDir.open(uri).storage.now_ms() + 2 * DAY_MS)
    assert len(list(files.glob("*.log"))) == state(uri)[1] < before
    assert values(segments, uri) == ["a4", "b4", "c"]


@pytest.mark.parametrize("job", ["retain", "compact", "vacuum", "maintain"])
def test_a_time_to_come_is_taken_by_who_says_yes(segments, run, uri, job):
    before, future_ms = state(uri), LogDir.open(uri).storage.now_ms() + 9 * DAY_MS
    ran = run(job, uri, "--now-ms", future_ms)
    assert ran.code == 1 and "--dry-run, or --yes to take it now, found 9.0 days from now" in ran.error
    assert state(uri) == before
    segments(job, uri, "--now-ms", future_ms, "--dry-run")


def test_what_maintain_takes_at_a_time_to_come_can_be_restored(segments, uri):
    rolled(segments, uri)
    records = [row["key"] for row in LogDir.open(uri).topic("prices").scan().to_table().to_pylist()]
    version = LogDir.open(uri).topic("prices").version
    segments("topic", "alter", uri, "prices", "--config", "cleanup.policy=delete,retention.ms=1")
    segments("maintain", uri, "--yes", "--now-ms", LogDir.open(uri).storage.now_ms() + 99 * DAY_MS)
    assert LogDir.open(uri).topic("prices").scan().to_table().num_rows < len(records)
    segments("topic", "restore", uri, "prices", "--version", version)
    assert [row["key"] for row in LogDir.open(uri).topic("prices").scan().to_table().to_pylist()] == records


def test_maintain_is_all_of_them(segments, uri):
    rolled(segments, uri)
    reports = [json.loads(line) for line in segments("maintain", uri, "--output", "json").lines]
    assert [report["job"] for report in reports] == ["roll", "retain", "compact", "vacuum"]
    assert values(segments, uri) == ["a4", "b4", "c"]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log = LogDir.create(str(tmp_path_factory.mktemp("orders") / "log"))
    config = {"retention.ms": "-1", "compression.type": "uncompressed", "segment.ms": str(DAY_MS // 2)}
    log.create_topic("orders", 1, config)
    for day in range(5):
        at = pa.scalar(START_MS + day * DAY_MS, pa.timestamp("ms", tz="UTC"))
        log.topic("orders").append(pa.table({"value": [b"v" * 1000], "timestamp": [at]}))
    roll(log)
    return log


@pytest.fixture
def old_orders(orders: LogDir, tmp_path: Path) -> str:
    """A topic of five days, each a sealed segment but the last."""
    return copy_of(orders, tmp_path / "log").uri


def test_max_bytes_that_nothing_exceeds_is_nothing_to_do(segments, old_orders):
    ran = segments("retain", old_orders, "--max-bytes", "1TiB", "--now-ms", START_MS + DAY_MS)
    assert ran.error.startswith("retain: nothing to do, ")


def test_max_bytes_shortens_retention_and_says_how_far(segments, old_orders):
    now_ms = START_MS + 5 * DAY_MS
    before = LogDir.open(old_orders).topic("orders").snapshot.version
    limit = ("--max-bytes", "2.5KiB", "--now-ms", now_ms, "--output", "json")
    report = segments("retain", old_orders, *limit, "--dry-run").json
    assert LogDir.open(old_orders).topic("orders").snapshot.version == before
    assert report["dropped"]["max-bytes"] > 0 and report["details"]["max_bytes"] == 2560
    done = segments("retain", old_orders, *limit).json
    assert (
        done["partitions"] == report["partitions"] and done["details"]["live_bytes"] == report["details"]["live_bytes"]
    )
    (line,) = done["partitions"]
    assert line["shortened_to_ms"] == now_ms - (START_MS + (line["log_start_offset"] - 1) * DAY_MS) - 1
    text = segments("retain", old_orders, "--max-bytes", "1GiB", "--now-ms", now_ms).error.splitlines()[-1]
    assert text.startswith("--max-bytes 1.0 GiB: ") and text.endswith(" waiting for vacuum")


def test_a_size_that_cannot_be_reached_is_a_warning_and_exit_code_0(segments, old_orders):
    now_ms = START_MS + 5 * DAY_MS
    ran = segments("retain", old_orders, "--max-bytes", "0", "--min-retention", "2d12h", "--now-ms", now_ms)
    warning = ran.error.splitlines()[0]
    assert warning.startswith("warning: ") and "above --max-bytes 0 B: " in warning
    assert "are younger than --min-retention" in warning and "in active segments" in warning
    assert len(segments("consume", old_orders, "orders").lines) == 2


@pytest.mark.parametrize(
    "options, message",
    [
        (["--max-bytes", "many"], "Not a size"),
        (["--max-bytes", "1G", "--min-retention", "long"], "Not a duration"),
        (["orders", "--max-bytes", "1G"], "whole log directory"),
    ],
)
def test_a_wrong_limit_is_an_error_in_one_line(run, old_orders, options, message):
    ran = run("retain", old_orders, *options)
    assert ran.code == 1 and message in ran.error and len(ran.error.splitlines()) == 1


def test_a_defaults_file_counts_where_a_topic_says_nothing(segments, run, old_orders, tmp_path):
    file = tmp_path / "segments.properties"
    file.write_text("log.retention.hours=24\n")
    arguments = ("retain", old_orders, "--defaults", file, "--now-ms", START_MS + 10 * DAY_MS, "--output", "json")
    assert segments(*arguments).json["partitions"] == []
    segments("topic", "alter", old_orders, "orders", "--delete-config", "retention.ms")
    assert segments(*arguments).json["dropped"] == {"retention.ms": 4}
    file.write_text("log.retension.hours=24\n")
    ran = run(*arguments)
    assert ran.code == 1 and "line 1" in ran.error and "Did you mean log.retention.hours?" in ran.error


@pytest.mark.proof
def test_the_report_of_a_roll_shows_the_first_and_last_of_many_sealed_segments(segments, tmp_path):
    uri = str(tmp_path / "many")
    log = LogDir.create(uri)
    log.create_topic("orders", config={"segment.bytes": "250"})
    for number in range(30):
        log.topic("orders").append(pa.table({"key": [f"k{number}"], "value": ["x" * 80]}))
    copy = shutil.copytree(uri, tmp_path / "copy")
    (line,) = segments("roll", uri, "--output", "json").json["partitions"]
    first, last = ", ".join(map(str, line["sealed"][:5])), ", ".join(map(str, line["sealed"][5:]))
    assert line["sealed_segments"] > 10
    assert any(f"{first} … {last}" in row for row in segments("roll", str(copy)).lines)
