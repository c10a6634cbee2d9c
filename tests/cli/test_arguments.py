"""Durations and sizes as people write them."""

from __future__ import annotations

import datetime

import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import duration_ms, moment_ms, size_bytes


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("1500", 1500),
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("7 days", 604_800_000),
        ("1 hour 30 mins", 5_400_000),
        ("1500us", 2),
    ],
)
def test_a_duration_has_units_or_is_in_ms(text, expected):
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "d", "-1", "-1d", "1h30", "1y", "1e3", "½h", "٣d", "٣"])
def test_what_is_no_duration_is_an_error(text):
    with pytest.raises(InvalidOptionError, match="Not a duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("10B", 10),
        ("500GiB", 500 << 30),
        ("500gib", 500 << 30),
        ("2 TiB", 2 << 40),
        ("1.5TB", 1_500_000_000_000),
        ("3kB", 3000),
        ("64K", 64 << 10),
        ("1P", 1 << 50),
    ],
)
def test_a_size_has_units_or_is_in_bytes(text, expected):
    assert size_bytes(text) == expected


def test_a_megabyte_is_what_the_caller_says():
    assert [size_bytes("64MB", kilobyte) for kilobyte in (1000, 1024)] == [64_000_000, 64 << 20]


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.GiB", "500 gigabytes", "5iB", "1e9", "٣"])
def test_what_is_no_size_is_an_error(text):
    with pytest.raises(InvalidOptionError, match="Not a size"):
        size_bytes(text)


@pytest.mark.parametrize("text, expected", [("0", 0), ("-1", -1), ("1700000000000", 1_700_000_000_000)])
def test_a_time_is_a_number_of_ms(text, expected):
    assert moment_ms(text) == expected


NOW = moment_ms("2026-03-01T10:30:00Z")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2026-03-01", "2026-03-01T00:00:00Z"),
        ("2026-03-01T12:00", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00+02:00", "2026-03-01T10:00:00Z"),
        ("now", "2026-03-01T10:30:00Z"),
        ("today", "2026-03-01T00:00:00Z"),
        ("Yesterday", "2026-02-28T00:00:00Z"),
        ("2 hours ago", "2026-03-01T08:30:00Z"),
        ("in 2 hours", "2026-03-01T12:30:00Z"),
        ("in a day and 1 hour", "2026-03-02T11:30:00Z"),
        ("tomorrow", "2026-03-02T00:00:00Z"),
        ("an hour ago", "2026-03-01T09:30:00Z"),
        ("1 day and 30 minutes ago", "2026-02-28T10:00:00Z"),
        ("3 weeks ago", "2026-02-08T10:30:00Z"),
        ("90 seconds ago", "2026-03-01T10:28:30Z"),
        ("1h30m ago", "2026-03-01T09:00:00Z"),
        ("Friday", "2026-03-06T00:00:00Z"),
        ("monday", "2026-03-02T00:00:00Z"),
        ("sunday", "2026-03-08T00:00:00Z"),  # it is Sunday
        ("last sunday", "2026-02-22T00:00:00Z"),
        ("last saturday", "2026-02-28T00:00:00Z"),
    ],
)
def test_a_time_is_written_as_people_say_it(text, expected):
    assert moment_ms(text, NOW) == moment_ms(expected)


@pytest.mark.parametrize("expected", [-62_135_596_800_000, -19_999, 1_089_437_283_120, 253_402_300_799_999])
def test_an_iso_time_is_exact_to_the_millisecond(expected):
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=expected)
    assert moment_ms(moment.isoformat()) == moment_ms(moment) == moment_ms(moment.replace(tzinfo=None)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "-", "--5", "²", "٣", "next month", "last day", "2 months ago", "hours ago", "2 hours", "in 2 hours ago"],
)
def test_what_is_no_time_is_an_error(text):
    with pytest.raises(InvalidOptionError, match=r"Not a (time|duration)"):
        moment_ms(text)
