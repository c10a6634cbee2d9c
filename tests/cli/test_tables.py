"""Tables at terminals of 80 and 120 columns, and in a pipe: no number and no word is broken."""

from __future__ import annotations

import contextlib
import io

import pytest

from spark_segments.cli.output import Bytes, Output, ShownTime, print_report, print_table
from spark_segments.maintenance import Report

ROWS = [["orders", 0, ShownTime(1_700_000_000_000), Bytes(46_137_344), 119_497], ["prices", 11, None, Bytes(0), 55]]
COLUMNS = ["topic", "partition", "committed", "size", "records"]


class Terminal(io.StringIO):
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
    assert printed(lambda: print_report(report(), Output.TEXT), Terminal())[:3] == [
        "topic   partition  action   records       bytes               dropped",
        "orders          0  compact  119,497 → 55  44.0 MiB → 2.1 KiB  119,442 superseded",
        "orders          1  compact  7             900 B               -",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 250])
def test_every_cell_is_whole_at_any_width(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(lambda: print_report(report(), Output.WIDE), Terminal())
    words = " ".join(lines).split()
    for whole in ("119,497", "first_dirty_offset", "2.1", "KiB", "tombstones_kept", "superseded", "119442"):
        assert whole in words
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("compact:"))]
    assert width < 40 or max(map(len, table)) <= width


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
        "committed  2023-11-14 22:13:20",
        "size       44.0 MiB",
        "records    119,497",
        "",
        "topic      prices",
        "partition  11",
        "committed  -",
        "size       0 B",
        "records    55",
    ]
