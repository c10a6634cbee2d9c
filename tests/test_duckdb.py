"""Topics as tables of DuckDB, and `segments sql`."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.duckdb import TopicDatabase
from spark_segments.errors import CorruptBatchError, InvalidOptionError, QueryError, SegmentsError
from spark_segments.log.reading.scan import Scan
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.opened import opened
from verification.world.stores.played_log import Play


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 2)
    log.create_topic("odd-name.1")
    values = [b"%d" % number for number in range(100)]
    keys = [b"%d" % (number % 10) for number in range(100)]
    partitions = pa.array([number % 2 for number in range(100)], pa.int32())
    log.topic("orders").append(pa.table({"key": keys, "value": values, "partition": partitions}))
    return log


def rows(log: LogDir, query: str, **options) -> list[tuple]:
    with TopicDatabase(log, **options) as database:
        batches = database.sql(query).batches()
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_topics_and_their_latest_views_are_tables(log):
    assert rows(log, "SELECT count(*), sum(value::VARCHAR::INT) FROM orders") == [(100, 4950)]
    assert rows(log, 'SELECT count(*), min(value::VARCHAR::INT) FROM "orders$latest"') == [(10, 90)]
    assert rows(log, 'SELECT count(*) FROM "odd-name.1"') == [(0,)]


def test_a_table_can_be_scanned_several_times_in_a_query(log):
    query = """SELECT count(*) FROM orders a JOIN "orders$latest" b ON a.partition = b.partition
               AND a."offset" = b."offset" JOIN orders c ON c.value = a.value"""
    assert rows(log, query) == [(10,)]


def test_a_statement_opens_the_topics_that_it_names_once(log):
    play = Play()
    with TopicDatabase(opened(log, open_delta_log=play)) as database:
        database.sql("SELECT count(*) FROM orders").to_table()
        assert set(play.opened) == {"orders"}
        play.opened.clear()
        for _ in range(2):
            database.sql("SELECT count(*) FROM orders").to_table()
        database.sql("SELECT 1").to_table()
    assert play.opened == []


def test_topics_of_a_directory_that_kafka_wrote_are_tables():
    kafka = LogDir.open(str(GOLDEN))
    assert rows(kafka, "SELECT count(*) > 0 FROM txn") == [(True,)]
    assert kafka.is_there("txn") and not kafka.is_there("orders")


def test_whole_rows_are_those_of_a_read(log):
    expected = [tuple(row.values()) for batch in log.topic("orders").scan().batches() for row in batch.to_pylist()]
    assert rows(log, 'SELECT * FROM orders ORDER BY partition, "offset"') == expected


def test_only_the_columns_of_a_query_are_read(log, reads):
    rows(log, "SELECT max(timestamp) FROM orders WHERE partition = 1")
    rows(log, "SELECT a.value FROM orders a JOIN orders b ON a.key = b.key")
    assert [set(scan.schema.names) for scan in reads] == [{"timestamp", "partition"}, {"key"}, {"key", "value"}]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ('"offset" >= 10 AND "offset" < 13', {0: (10, 13), 1: (10, 13)}),
        ('"offset" BETWEEN 10 AND 12 AND partition = 1', {1: (10, 13)}),
        ('"offset" IN (7, 30) AND partition IN (1, 5)', {1: (7, 31)}),
        ("\"offset\" = 3 OR key = '3'::BLOB", {0: (0, 50), 1: (0, 50)}),
        ('"offset" % 2 = 0', {0: (0, 50), 1: (0, 50)}),
        ("timestamp >= '2100-01-01'", {}),
    ],
)
def test_a_condition_chooses_the_offsets_that_are_read(log, reads, condition, offsets):
    found = rows(log, f"SELECT * FROM orders WHERE {condition} ORDER BY ALL")
    assert reads[-1].offsets == {number: (ends,) for number, ends in offsets.items()}
    assert found == rows(log, f"SELECT * FROM (SELECT * FROM orders OFFSET 0) WHERE {condition} ORDER BY ALL")
    assert reads[-1].offsets == {0: ((0, 50),), 1: ((0, 50),)}


def test_a_condition_on_the_latest_view_hides_no_newer_record(log, reads):
    assert rows(log, 'SELECT count(*) FROM "orders$latest" WHERE "offset" < 40') == [(0,)]
    assert rows(log, 'SELECT count(*) FROM "orders$latest" WHERE "offset" >= 47') == [(6,)]
    assert [scan.offsets[0] for scan in reads] == [((0, 50),), ((47, 50),)]


@pytest.mark.proof
def test_a_limit_does_not_read_the_whole_topic(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 150)
    for first in range(0, 150, 5):  # so few partitions get files of their own
        numbers = pa.array(range(first, first + 5), pa.int32())
        log.topic("t").append(pa.table({"value": [bytes(100)] * 5, "partition": numbers}))
    for number in range(100, 150):  # a read that went so far would fail
        (chunk,) = (tmp_path / "log" / f"t-{number}").glob("*.log")
        chunk.unlink()
    assert len(rows(log, "SELECT value FROM t LIMIT 3", threads=2)) == 3
    with pytest.raises(SegmentsError, match="t-1"):
        rows(log, "SELECT count(value) FROM t", threads=2)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT * FROM orders LIMIT 0", 8),
        ("SELECT value, key FROM orders WHERE false", 2),
        ("SELECT * EXCLUDE (value) FROM orders LIMIT 1", 7),
        ('SELECT a.value, b.* FROM orders a LEFT JOIN "odd-name.1" b ON false LIMIT 1', 9),
        ("SELECT count(*) AS n FROM orders a JOIN orders b USING (partition)", 1),
    ],
)
def test_columns_that_no_row_needs_are_in_the_result(log, query, columns):
    with TopicDatabase(log) as database:
        result = database.sql(query)
        schema, batches = result.schema, result.batches()
        assert len(schema) == len(set(schema.names)) == columns
        assert all(batch.schema == schema for batch in batches)


def test_the_columns_of_a_topic_are_described(log):
    assert [row[0] for row in rows(log, "DESCRIBE orders")] == log.topic("orders").scan().to_reader().schema.names
    assert ("odd-name.1$latest",) in rows(log, "SHOW TABLES")


def test_topics_whose_names_differ_by_case_are_told_apart_or_refused(log):
    log.create_topic("Orders")
    log.topic("Orders").append([{"value": "one"}])
    for name, count in [('"Orders"', 1), ("orders", 100), ('"Orders$latest"', 0)]:
        assert rows(log, f"SELECT count(*) FROM {name}") == [(count,)]
    for query in ['SELECT * FROM orders, "Orders"', "SELECT * FROM ORDERS"]:
        with pytest.raises(InvalidOptionError, match="found Orders, orders"):
            rows(log, query)


def test_times_are_of_utc_wherever_a_query_runs(log, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        query = "SELECT current_setting('TimeZone'), strftime(TIMESTAMPTZ '2026-01-31 01:00:00+00', '%d')"
        assert rows(log, query) == [("UTC", "31")]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_several_statements_give_the_result_of_the_last(log):
    query = "CREATE TABLE kept AS SELECT * FROM orders; SELECT count(DISTINCT value) FROM kept"
    assert rows(log, query) == [(100,)]
    with pytest.raises(InvalidOptionError, match="no statement"):
        rows(log, " ; ")


def test_a_view_of_a_topic_has_what_is_there_now(log):
    with TopicDatabase(log) as database:
        database.sql("CREATE VIEW counted AS SELECT count(*) AS n FROM orders")
        log.topic("orders").append([{"key": "k", "value": "v"}])
        assert next(database.sql("SELECT n FROM counted").batches()).to_pylist() == [{"n": 101}]


def test_a_result_prints_its_first_rows_and_runs_whenever_it_is_asked(log):
    with TopicDatabase(log) as database:
        counted = database.sql("SELECT count(*) AS n, 'a' || repeat('b', 99) AS long FROM orders")
        assert repr(counted) == f"Result(rows=1)\n    n  long\n  100  a{'b' * 59}…"
        log.topic("orders").append([{"key": "k", "value": "v"}])
        assert "<td>101</td>" in counted._repr_html_()
        every = database.sql('SELECT value, "offset" FROM orders ORDER BY ALL')
        assert repr(every).startswith("Result(rows='more than 20')\n") and len(repr(every).splitlines()) == 22
        assert every.to_table().num_rows == len(every.to_pandas()) == pa.table(every).num_rows == 101
        assert "a value does not fit" in repr(database.sql("SELECT value::INT FROM orders"))


def test_what_is_no_query_runs_once(log):
    with TopicDatabase(log) as database:
        added = database.sql("CREATE TABLE t (i INT); INSERT INTO t VALUES (1) RETURNING i")
        assert database.sql("SELECT i FROM t").to_table().to_pylist() == added.to_table().to_pylist() == [{"i": 1}]


def test_a_query_that_is_not_read_to_its_end_stops_no_other(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("many")
    log.topic("many").append([{"value": "x"}] * 40_000)
    with TopicDatabase(log) as database:
        first = database.sql("SELECT value FROM many")
        batches = first.batches()
        assert next(batches).num_rows
        assert database.sql("SELECT count(*) AS n FROM many").to_table().to_pylist() == [{"n": 40_000}]
        with pytest.raises(InvalidOptionError, match="not read to their end"):
            next(batches)
        assert first.to_table().num_rows == 40_000


def test_queries_see_what_is_appended_between_them(log):
    with TopicDatabase(log) as database:
        count = "SELECT count(*) AS n FROM orders"
        before = next(database.sql(count).batches()).to_pylist()
        log.topic("orders").append(pa.table({"key": ["k"], "value": ["v"]}))
        assert (before, next(database.sql(count).batches()).to_pylist()) == ([{"n": 100}], [{"n": 101}])


def test_values_are_typed(log, tmp_path):
    log.create_topic("typed")
    log.topic("typed").append(pa.table({"key": ["a"], "value": ['{"id": 7, "tags": ["x"]}']}))
    formats = {"value.format": "json", "value.schema": "id int, tags array<string>"}
    assert rows(log, "SELECT value.id, value.tags[1] FROM typed", formats=formats) == [(7, "x")]


def test_avro_has_the_columns_of_its_schema_in_a_directory(log, tmp_path):
    log.create_topic("typed")
    formats = {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    log.topic("typed").append(pa.table({"key": [7, 8], "value": [{"id": 1, "tags": ["x"]}, None]}), formats=formats)
    query = "SELECT key, value.id, value.tags[1] FROM typed ORDER BY key"
    assert rows(log, query, formats=formats) == [(7, 1, "x"), (8, None, None)]


def test_text_that_is_json_has_fields_whatever_it_is_read_as(log):
    log.create_topic("json")
    log.topic("json").append(pa.table({"value": ['{"city": "Ulm", "n": [1, 2]}', None, '{"city": "Bern"}']}))
    for formats in (None, {"value.format": "string"}, {"value.format": "json"}):
        found = rows(log, "SELECT value->>'city', value->>'$.n[1]' FROM json", formats=formats)
        assert found == [("Ulm", "2"), (None, None), ("Bern", None)]
    typed = {"formats": {"value.format": "json"}}
    assert rows(log, "SELECT value.city, typeof(value) FROM json LIMIT 1", **typed) == [('"Ulm"', "JSON")]
    assert rows(log, "SELECT \"offset\" FROM json WHERE value->>'city' = 'Bern'", **typed) == [(2,)]
    with pytest.raises(QueryError, match="does not fit"):
        rows(log, "SELECT value->>'city' FROM (SELECT '\\xFF'::BLOB AS value FROM json)")


@pytest.mark.parametrize(
    ("query", "formats", "words"),
    [
        (
            "SELECT * FROM orders WHERE \"offset\" = 'x1'",
            None,
            "string 'x1' to INT64\n\nLINE 1: SELECT",
        ),
        ("SELECT * FROM orders WHERE timestamp > 'nonsense'", None, 'invalid timestamp field format: "nonsense"'),
        ("SELECT offset FROM orders", None, 'write "offset" with quotes'),
        ("SELECT * FROM orders", {"value.format": "jso"}, "Unknown value.format: expected binary, string, json"),
        ("SELECT * FROM orders", {"value.format": "avro"}, "Set schema.registry"),
        ("SELECT * FROM orders", {"value.format": "json", "value.schema": "a strin"}, "expected Spark's DDL"),
    ],
)
def test_an_error_of_a_query_says_what_is_wrong(log, query, formats, words):
    with pytest.raises(InvalidOptionError) as caught:
        rows(log, query, formats=formats)
    assert words in str(caught.value)


def test_an_interrupt_ends_a_query(log, monkeypatch):
    reader = Scan.to_reader

    def interrupted(scan: Scan, threads: int | None = None) -> pa.RecordBatchReader:
        os.kill(os.getpid(), signal.SIGINT)
        return reader(scan, threads)

    monkeypatch.setattr(Scan, "to_reader", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            rows(log, "SELECT count(*) FROM orders, range(100000000), range(100000)")
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert rows(log, "SELECT count(*) FROM orders") == [(100,)]


def test_a_wrong_query_is_one_clear_error(log):
    with pytest.raises(InvalidOptionError, match="nothere"):
        rows(log, "SELECT nothere FROM orders")
    with pytest.raises(InvalidOptionError, match=r"statement does not exist.*The topics are: odd-name.1, orders"):
        rows(log, "SELECT * FROM statement")  # a variable of the module


def test_the_command_shows_the_lines_of_a_wrong_query(log, capsys):
    with pytest.raises(SystemExit):
        main(["sql", log.uri, "SELECT key FRM orders"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: The query cannot be run")
    assert lines[2].startswith("LINE 1: SELECT key FRM") and lines[3].strip(" ^") == ""


def run(capsysbinary, *arguments: str) -> bytes:
    with pytest.raises(SystemExit) as end:
        main(["sql", *arguments])
    assert not end.value.code
    return capsysbinary.readouterr().out


QUERY = """SELECT partition, count(*) AS n, min(value) AS least, to_timestamp(0) AT TIME ZONE 'UTC' AS t
           FROM orders GROUP BY partition ORDER BY partition"""


def test_the_command_prints_rows_in_every_output(log, capsysbinary):
    text = run(capsysbinary, log.uri, QUERY).decode()
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["partition", "n", "least"],
        ["0", "50", "0"],
        ["1", "50", "1"],
    ]
    lines = run(capsysbinary, log.uri, QUERY, "--output", "json").splitlines()
    expected = [{"partition": n, "n": 50, "least": str(n), "t": "1970-01-01T00:00:00"} for n in (0, 1)]
    assert [json.loads(line) for line in lines] == expected
    table = pa.csv.read_csv(io.BytesIO(run(capsysbinary, log.uri, QUERY, "--output", "csv")))
    assert table.select(["partition", "n", "least"]).to_pylist() == [
        {"partition": 0, "n": 50, "least": 0},
        {"partition": 1, "n": 50, "least": 1},
    ]
    parquet = run(capsysbinary, log.uri, QUERY, "--output", "parquet")
    assert pa.parquet.read_table(io.BytesIO(parquet)).column("least").to_pylist() == [b"0", b"1"]


@pytest.mark.parametrize("query", ["SELECT count(key) FROM orders", "SELECT key FROM orders"])
def test_damage_is_told_as_by_a_read(log, tmp_path, query):
    for path in (tmp_path / "log" / "orders-1").glob("*.log"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="orders-1"):
        rows(log, query)


def test_every_row_is_json_with_all_of_its_columns(log, capsysbinary):
    query = """SELECT 'nan'::DOUBLE AS x, ['-inf'::DOUBLE] AS x, INTERVAL '1 month 2 days 1500 ms' AS gap, a.value,
               b.value FROM orders a JOIN orders b USING (partition, "offset") ORDER BY a.value LIMIT 1"""
    row = json.loads(run(capsysbinary, log.uri, query, "--output", "json"), parse_constant=pytest.fail)
    assert row == {"x": "NaN", "x_1": ["-Infinity"], "gap": "P1M2DT1.5S", "value": "0", "value_1": "0"}


@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_a_time_after_the_year_9999_is_printed(log, capsysbinary, output):
    log.create_topic("far")
    log.topic("far").append([{"value": "microseconds as ms", "timestamp": 1_700_000_000_000_000}, {"value": "b"}])
    printed = run(capsysbinary, log.uri, "SELECT timestamp FROM far", "--output", output).decode()
    assert "55840-11-08" in printed


@pytest.mark.parametrize(("day", "shown"), [("290000-01-01", "290000-01-01"), ("4000-01-01 (BC)", "-3999-01-01")])
def test_a_date_that_python_does_not_have_is_printed(log, capsysbinary, day, shown):
    assert run(capsysbinary, log.uri, f"SELECT DATE '{day}' AS day", "--output", "csv").decode() == f"day\n{shown}\n"


@pytest.mark.parametrize("query", ["SELECT INTERVAL '1 day'", "SELECT '\udcff'", "UPDATE EXTENSIONS"])
def test_what_parquet_duckdb_and_utf_8_do_not_have_is_an_error_in_one_line(log, capsys, query):
    with pytest.raises(SystemExit) as end:
        main(["sql", log.uri, query, "--output", "parquet"])
    assert end.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_duckdb_the_error_names_the_extra(log, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for name in ("spark_segments.duckdb", "spark_segments.duckdb.topic_database"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as end:
        main(["sql", log.uri, "SELECT 1"])
    assert end.value.code == 1
    assert "pip install 'spark-segments[duckdb]'" in capsys.readouterr().err


FORBIDDEN = [
    "COPY orders TO '{place}/stolen.csv'",
    "COPY (SELECT 1) TO '{place}/stolen.parquet' (FORMAT parquet)",
    "ATTACH '{place}/stolen.db'",
    "EXPORT DATABASE '{place}/stolen'",
    "SELECT * FROM read_text('{place}/secret.txt')",
    "SELECT * FROM '{place}/secret.txt'",
    "SELECT * FROM read_csv('{place}/secret.txt')",
    "SELECT * FROM glob('{place}/*')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CREATE SECRET (TYPE s3)",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET lock_configuration = false",
    "SET temp_directory = '{place}'",
    "SET python_enable_replacements = true",
    "PRAGMA profiling_output = '{place}/stolen.json'",
    "CALL enable_logging(storage = 'file', storage_path = '{place}/stolen')",
    "UPDATE EXTENSIONS",
]


@pytest.mark.cases(8)
@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_safe_statement_has_the_topics_alone(log, tmp_path, statement):
    place = tmp_path / "place"
    place.mkdir()
    (place / "secret.txt").write_text("a secret")
    with pytest.raises(InvalidOptionError):
        rows(log, statement.format(place=place), safe=True)
    with pytest.raises(InvalidOptionError):
        rows(log, f"SELECT 1; {statement.format(place=place)}; SELECT 2", safe=True)
    assert [path.name for path in place.iterdir()] == ["secret.txt"]


@pytest.mark.cases(8)
def test_a_safe_statement_reads_topics(log, capsysbinary):
    assert rows(log, "SELECT count(*) FROM orders", safe=True) == [(100,)]
    assert rows(log, "CREATE TABLE t AS SELECT * FROM orders; SELECT count(*) FROM t", safe=True) == [(100,)]
    assert run(capsysbinary, log.uri, "SELECT 7 AS n", "--safe", "--output", "csv") == b"n\n7\n"
    with pytest.raises(SystemExit) as end:
        main(["sql", log.uri, "SELECT * FROM read_text('/etc/hostname')", "--safe"])
    assert end.value.code == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT decode(value)::DATE FROM orders",
        "SELECT decode(value)::TINYINT * 100 FROM orders WHERE decode(value) = '77'",
        "SELECT strptime(decode(value), '%Y-%m') FROM orders",
        "SELECT error(decode(value)) FROM orders WHERE decode(value) = '77'",
    ],
)
def test_an_error_of_a_query_shows_no_value(log, query):
    with pytest.raises(SegmentsError) as caught:
        rows(log, query)
    text = "".join(traceback.format_exception(caught.value)).replace("= '77'", "")
    assert "a value does not fit" in str(caught.value) and "77" not in text


@pytest.mark.proof
def test_a_query_that_is_killed_leaves_nothing_behind(log, tmp_path):
    """What does not fit in memory goes below $TMPDIR, and the next query deletes what a killed one left."""
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    program = """
import sys
from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
with TopicDatabase(LogDir.open(sys.argv[1])) as database:
    database.sql("SET memory_limit = '60MB'; SET threads = 1")
    database.sql("CREATE TABLE big AS SELECT range AS n, md5(range::VARCHAR) AS text FROM range(3000000)")
    print("spilt", flush=True)
    sys.stdin.read()
"""
    place = {"cwd": tmp_path / "cwd", "env": os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.getcwd()}}
    command = [sys.executable, "-c", program, log.uri]
    with subprocess.Popen(command, **place, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"spilt\n"
        [left] = (tmp_path / "tmp").iterdir()
        assert list((left / "duckdb").iterdir())
        killed.kill()
    subprocess.run([sys.executable, "-c", program, log.uri], **place, input=b"", check=True, stdout=subprocess.PIPE)
    assert [list((tmp_path / name).iterdir()) for name in ("cwd", "tmp")] == [[], []]


def test_topics_that_are_left_out_of_the_tables_are_named(tmp_path, caplog):
    log = LogDir.create(str(tmp_path / "log"))
    for name in ("orders", "Orders", "other"):
        log.create_topic(name)
    with TopicDatabase(log) as database:
        names = [row[0] for row in database.sql("SHOW TABLES").to_table().to_pydict().values()]
    assert names == ["other"]
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["Orders, orders"]


def test_results_have_the_methods_of_duckdb(log):
    with TopicDatabase(log) as database:
        result = database.sql('SELECT "offset" AS n, key FROM orders WHERE partition = 0 ORDER BY n LIMIT 2')
        assert result.fetchall() == [(0, b"0"), (1, b"2")]
        assert [result.fetchone() for _ in range(4)] == [(0, b"0"), (1, b"2"), None, None]
        assert result.arrow() == result.to_table()
        assert result.df()["n"].to_list() == result.pl()["n"].to_list() == [0, 1]
