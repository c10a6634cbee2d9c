"""Tables at terminals of 80 and 120 columns, and in a pipe: no number is broken, and no word that fits its column."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir, maintenance
from spark_segments.cli import main
from spark_segments.cli.output import Output, ShownTime, print_report, print_table, print_text
from spark_segments.maintenance import Report
from spark_segments.quantities import Bytes
from verification.world.kafka_bytes.golden_files import GOLDEN

ROWS = [["orders", 0, ShownTime(1_700_000_000_000), Bytes(46_137_344), 119_497], ["prices", 11, None, Bytes(0), 55]]
COLUMNS = ["topic", "partition", "committed", "size", "records"]


class Terminal(io.StringIO):
    buffer = None  # rows of text are no bytes

    def isatty(self) -> bool:
        return True


def report() -> dict:
    found = Report("compact", dry_run=False)
    found.add(
        "orders", 0, "compact", records_in=119_497, records_out=55, bytes_in=46_137_344, bytes_out=2_100,
        dropped={"superseded": 119_442}, rounds=1, indexed=119_497, segments_in=12, segments_out=1,
        written_bytes=2_100, reduction=0.9999, tombstones_kept=0, first_dirty_offset=119_497,
    )  # fmt: skip
    found.add("orders", 1, "compact", records_in=7, records_out=7, bytes_in=900, bytes_out=900, rounds=1)
    return found.to_dict() | {"seconds": 1.25}


def printed(work, file: io.StringIO) -> list[str]:
    with contextlib.redirect_stdout(file):
        work()
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_report_has_what_changed_at_a_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert printed(lambda: print_report(report(), Output.TEXT), Terminal()) == [
        "topic   partition  records       bytes               dropped",
        "orders          0  119,497 → 55  44.0 MiB → 2.1 KiB  119,442 superseded",
        "orders          1  7             900 B               -",
    ]


def test_a_report_of_indexes_has_what_was_indexed_at_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    found = Report("index", dry_run=False)
    for on in ({}, {"on": "header.trace-id"}):
        for partition in range(2):
            figures = {"start": 0, "end": 1_200, "entries": 1_200, "index_bytes": 12_288}
            found.add("orders", partition, "index", **on, **figures)
    assert printed(lambda: print_report(found.to_dict(), Output.TEXT), Terminal()) == [
        "topic   partition  index            offsets     entries  index_bytes",
        "orders          0  keys             0 to 1,199    1,200     12.0 KiB",
        "orders          1  keys             0 to 1,199    1,200     12.0 KiB",
        "orders          0  header.trace-id  0 to 1,199    1,200     12.0 KiB",
        "orders          1  header.trace-id  0 to 1,199    1,200     12.0 KiB",
    ]
    assert "index: 2 indexes, 2 partitions, " in capsys.readouterr().err
    planned = Report("index", dry_run=True)
    planned.add("orders", 0, "index", start=0, end=60, log_bytes=2_048)
    assert printed(lambda: print_report(planned.to_dict(), Output.TEXT), Terminal()) == [
        "topic   partition  index  offsets  log_bytes",
        "orders          0  keys   0 to 59    2.0 KiB",
    ]
    assert "index (dry run): 1 index, 1 partition, " in capsys.readouterr().err


@pytest.mark.parametrize("width", [20, 40, 80, 120, 250])
def test_every_cell_is_whole_at_any_width(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(lambda: print_report(report(), Output.WIDE), Terminal())
    words = " ".join(lines).split()
    for whole in ("119,497", "first_dirty_offset", "2.1", "KiB", "tombstones_kept", "superseded", "119442"):
        assert whole in words
    assert width < 40 or max(map(len, lines)) <= width


def test_a_row_is_a_line_of_plain_numbers_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    lines = printed(lambda: print_table(COLUMNS, ROWS), io.StringIO())
    assert lines == [
        "topic\tpartition\tcommitted\tsize\trecords",
        "orders\t0\t2023-11-14T22:13:20Z\t46137344\t119497",
        "prices\t11\t-\t0\t55",
    ]
    assert sum(int(line.split("\t")[4]) for line in lines[1:]) == 119_552


def test_a_table_that_is_too_wide_is_stacked(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert printed(lambda: print_table(COLUMNS, ROWS), Terminal()) == [
        "topic      orders",
        "partition  0",
        "committed  2023-11-14 22:13:20Z",
        "size       44.0 MiB",
        "records    119,497",
        "",
        "topic      prices",
        "partition  11",
        "committed  -",
        "size       0 B",
        "records    55",
    ]


def test_a_long_name_leaves_a_table_a_table(segments, tmp_path, monkeypatch):
    log = LogDir.create(str(tmp_path / "log"))
    long = "orders-of-all-shops-by-region-and-by-week-of-the-year-2"
    for name in ("orders", "prices", long):
        log.create_topic(name)
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), pytest.raises(SystemExit):
        main(["topic", "list", log.uri, "--output", "wide"])
    lines = terminal.getvalue().splitlines()
    names = [line.partition(" ")[0] for line in lines]
    assert names[:2] == ["topic", "orders"]
    assert "".join(names[2:-1]) == long, "the rest of the name is in the lines below"
    assert names[-1] == "prices" and max(map(len, lines)) <= 80


def test_words_of_the_longest_column_stay_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "32")
    rows = [[1, "the active segment has expired"], [20, "-"]]
    assert printed(lambda: print_table(["records", "reason"], rows), Terminal()) == [
        "records  reason",
        "      1  the active segment has",
        "         expired",
        "     20  -",
    ]


@pytest.fixture(scope="module")
def uri(tmp_path_factory) -> str:
    log = LogDir.create(str(tmp_path_factory.mktemp("tables") / "log"))
    log.create_topic("orders", 2, {"cleanup.policy": "compact", "segment.ms": "1"})
    for number in range(3):
        rows = {"key": [b"key"] * 2000, "value": [b"%d" % number] * 2000, "partition": [0, 1] * 1000}
        log.topic("orders").append(pa.table(rows))
    log.group("billing").commit(log.group("billing").positions(), {"orders": {0: 1200}})
    maintenance.roll(log, topics=["orders"])
    log.create_topic("spare")
    return log.uri


TABLES = {
    "topic history": ["topic", "history", "orders"],
    "groups show": ["groups", "show", "billing"],
    "groups reset": ["groups", "reset", "billing", "orders", "--to", "latest", "--dry-run"],
    "compact --dry-run": ["compact", "orders", "--force", "--dry-run"],
    "retain": ["retain", "orders", "--dry-run"],
    "erase --dry-run": ["erase", "orders", "--key", "key", "--dry-run"],
    "describe": ["describe", "orders"],
    "describe --output wide": ["describe", "orders", "--output", "wide"],
    "topic list": ["topic", "list", "--output", "wide"],
    "append": ["append", "spare", "--input", str(GOLDEN / "README.md")],
    "sql": ["sql", "SELECT partition, count(*) AS records, max(timestamp) AS newest FROM orders GROUP BY ALL"],
    "vacuum": ["vacuum", "--dry-run", "--now-ms", "4000000000000"],
    "mirror": ["mirror", "TMP/follower", "--once"],
    "export": ["export", "TMP/exported", "--topic", "orders"],
    "import": ["import", str(GOLDEN / "broker-data"), "TMP/imported", "--topic", "orders"],
    "table": ["table", "orders", "TMP/table"],
}
SENTENCES = {
    "explain": ["explain", "orders", "--partition", "0", "--offset", "10"],
    "doctor": ["doctor"],
    "topic restore": ["topic", "restore", "orders", "--version", "1", "--dry-run"],
}


def with_log(words: list[str], uri: str, tmp_path: Path) -> list[str]:
    """The words of a command with the log directory in its place, and a directory for TMP."""
    at = 2 if words[0] in ("topic", "groups") else 1
    words = [word.replace("TMP", str(tmp_path)) for word in words]
    return [*words[:at], uri, *words[at:]] if words[0] != "import" else words


@pytest.mark.cases(6)
@pytest.mark.parametrize("words", TABLES.values(), ids=TABLES)
def test_a_pipe_gets_rows_alone(segments, uri, words, tmp_path):
    lines = segments(*with_log(words, uri, tmp_path)).lines
    lines = lines[words[0] == "describe" :]  # the topic, above its partitions
    assert len({line.count("\t") for line in lines}) <= 1, lines
    assert not [line for line in lines if re.search(r"[0-9],[0-9]{3}|[0-9] [KM]?i?B\b|[0-9]+:[0-9]+ ", line)]


@pytest.mark.cases(12)
@pytest.mark.parametrize("words", (TABLES | SENTENCES).values(), ids=TABLES | SENTENCES)
@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_lines_that_fit(uri, words, width, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", str(width))

    def run():
        with pytest.raises(SystemExit) as ended:
            main(with_log(words, uri, tmp_path))
        assert not ended.value.code

    lines = printed(run, Terminal())
    assert all(len(line) <= width for line in lines), lines


@pytest.mark.parametrize(
    ("name", "first"), [("topic history", "version"), ("describe", "partition"), ("erase --dry-run", "topic")]
)
def test_eighty_columns_are_enough_for_a_line_a_row(uri, name, first, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), pytest.raises(SystemExit):
        main(with_log(TABLES[name], uri, tmp_path))
    [head] = [line.split() for line in terminal.getvalue().splitlines() if line.startswith(f"{first} ")]
    assert len(head) > 5


def test_a_sentence_goes_on_further_in_and_no_word_is_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "  roll: its segment /data/log/orders-0/00000000000000000000.log is rolled"
    assert printed(lambda: print_text(text), Terminal()) == [
        "  roll: its segment",
        "    /data/log/orders-0/00000000000000000000.log",
        "    is rolled",
    ]
    assert printed(lambda: print_text(text), io.StringIO()) == [text]


def test_a_dry_run_of_an_erasure_says_how_many_records_would_go(segments, uri):
    said = segments("erase", uri, "orders", "--key", "key", "--dry-run").error
    assert re.search(r": 2 partitions, 6,000 records would be erased, 2 tombstones would be appended, ", said)
    assert "nothing to do" in segments("retain", uri, "orders", "--dry-run").error


def test_a_dry_run_of_a_compaction_says_what_it_would_read(segments, uri):
    ran = segments("compact", uri, "orders", "--force", "--dry-run", "--output", "json")
    found = ran.json
    dirty = [line["cleanable_bytes"] for line in found["partitions"]]
    assert len(dirty) == 2 and found["details"] == {"clean_bytes": 0, "cleanable_bytes": sum(dirty)}
    assert "to clean beside 0 B that are clean" in segments("compact", uri, "--force", "--dry-run").error
