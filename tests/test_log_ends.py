"""Where the last offsets of a log are a hole, whoever reads to the log end comes to it, and reads on from there."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir, maintenance
from spark_segments.cli import main
from spark_segments.duckdb import TopicDatabase
from spark_segments.polars import scan_topic
from tests.log_ends import ENDS, LOG_END, TOPIC, append_new
from verification.world.clock import store_clock
from verification.world.opened import opened
from verification.world.topics import DAY_MS, column

Ended = tuple[LogDir, list[int]]


@pytest.fixture(params=ENDS)
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Ended:
    """A log that ends with a hole, and the offsets that its topic has."""
    make, offsets = ENDS[request.param]
    log = make(str(tmp_path / "log"))
    assert log.topic(TOPIC).offsets()[0][1] == LOG_END
    return log, [*offsets]


def segments(*arguments: object) -> list[str]:
    """The lines that the command prints."""
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as output:
        with contextlib.suppress(SystemExit):
            main([str(argument) for argument in arguments])
        output.flush()
        return output.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]


def consumed(log: LogDir, *options: object) -> list[int]:
    """The offsets that `segments consume` prints."""
    return [json.loads(line)["offset"] for line in segments("consume", log.uri, TOPIC, "--output", "json", *options)]


def lag(log: LogDir) -> tuple[int, int, int]:
    """Position, log end and lag of the group."""
    _, row = segments("groups", "show", log.uri, "audit")
    position, log_end, lag = row.split("\t")[-3:]
    return int(position), int(log_end), int(lag)


@pytest.mark.cases(2)
def test_a_reader_in_a_group_has_no_lag_at_the_log_end(ended):
    log, offsets = ended
    assert consumed(log, "--group", "audit") == offsets
    assert lag(log) == (LOG_END, LOG_END, 0)
    assert consumed(log, "--group", "audit") == []
    append_new(log)
    assert lag(log) == (LOG_END, LOG_END + 1, 1)
    assert consumed(log, "--group", "audit", "--follow", "--max-messages", 1) == [LOG_END]
    assert lag(log) == (LOG_END + 1, LOG_END + 1, 0)


@pytest.mark.cases(2)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_reader_to_the_log_end_stops(ended, isolation):
    log, offsets = ended
    options = ("--isolation-level", isolation)
    assert consumed(log, "--end-offset", LOG_END, *options) == offsets
    assert consumed(log, "--offset", -LOG_END, *options) == offsets
    assert consumed(log, "--tail", 5, *options) == offsets[-5:]
    for start in (LOG_END - 1, LOG_END, "end"):
        assert consumed(log, "--offset", start, *options) == []
    append_new(log)
    assert consumed(log, "--offset", LOG_END, *options) == [LOG_END]


@pytest.mark.cases(2)
@pytest.mark.parametrize("options", [{}, {"archive": True}], ids=["table", "archive"])
def test_a_table_is_in_step_at_the_log_end(ended, tmp_path, options):
    log, offsets = ended
    uri = str(tmp_path / "table")

    def updated() -> tuple[int, list[int]]:
        report = maintenance.table(log, topics=[TOPIC], table_uri=uri, **options)
        assert report.failed == []
        table = DeltaTable(uri)
        return table.version(), sorted(table.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())

    first = updated()
    assert first[1] == offsets
    assert updated() == first
    append_new(log)
    assert updated() == (first[0] + 1, [*offsets, LOG_END])


@pytest.mark.cases(2)
def test_a_follower_is_in_step_at_the_log_end(ended, tmp_path):
    log, offsets = ended
    copy = LogDir.create(str(tmp_path / "copy"))

    def mirrored() -> tuple[dict[int, tuple[int, int]], list[int]]:
        assert maintenance.mirror(copy, leader=log).failed == []
        return copy.topic(TOPIC).offsets(), read(copy)

    for _ in range(2):
        assert mirrored() == (log.topic(TOPIC).offsets(), offsets)
    append_new(log)
    assert mirrored() == (log.topic(TOPIC).offsets(), [*offsets, LOG_END])
    maintenance.promote(copy, topics=[TOPIC])
    append_new(copy)
    assert read(copy) == [*offsets, LOG_END, LOG_END + 1]


@pytest.mark.cases(2)
def test_a_query_to_the_log_end_has_what_is_there(ended):
    log, offsets = ended
    for added in ([], [LOG_END]):
        if added:
            append_new(log)
        frame = scan_topic(log.uri, TOPIC).select("offset")
        for where, last in ((0, [*offsets, *added]), (LOG_END - 1, added)):
            assert frame.filter(pl.col("offset") >= where).collect()["offset"].to_list() == last
            assert queried(log, f'SELECT "offset" FROM {TOPIC} WHERE "offset" >= {where} ORDER BY 1') == last
        assert frame.tail(1).collect()["offset"].to_list() == [*offsets, *added][-1:]


def queried(log: LogDir, query: str) -> list[int]:
    with TopicDatabase(log) as database:
        return database.sql(query).to_table().column(0).to_pylist()


def read(log: LogDir) -> list[int]:
    return column(opened(log), TOPIC, "offset")


@pytest.mark.cases(2)
def test_jobs_leave_the_log_end_where_it_is(ended):
    log, offsets = ended
    log.topic(TOPIC).alter({"segment.ms": "1"})
    now_ms = log.storage.now_ms()
    for day in range(1, 4):
        now_ms += DAY_MS
        with store_clock(now_ms):
            for job in (maintenance.roll, maintenance.retain, maintenance.compact, maintenance.vacuum):
                assert job(log, now_ms=now_ms).failed == [], day
        assert (log.topic(TOPIC).offsets()[0][1], read(log)) == (LOG_END, offsets)
    append_new(log)
    assert read(log) == [*offsets, LOG_END]


@pytest.mark.cases(2)
def test_a_manifest_that_is_made_anew_has_the_log_end(ended):
    log, offsets = ended
    bounds = log.topic(TOPIC).offsets()
    shutil.rmtree(Path(log.uri, "_manifest", TOPIC))
    segments("verify", log.uri, TOPIC, "--repair", "--yes")
    again = opened(log)
    assert (again.topic(TOPIC).offsets(), read(again)) == (bounds, offsets)
    append_new(again)
    assert read(again) == [*offsets, LOG_END]


def test_a_record_that_was_never_here_is_not_said_to_be_kept(tmp_path):
    log = ENDS["captured"][0](str(tmp_path / "log"))
    said = [segments("explain", log.uri, TOPIC, "--offset", offset)[:1] for offset in (99, 100, LOG_END - 1)]
    assert said[0] == [f"Offset 99 of {TOPIC}-0 is in the active segment."]
    assert said[1:] == [[f"Offset {offset} of {TOPIC}-0 is gone: no file has it any more."] for offset in (100, 199)]
