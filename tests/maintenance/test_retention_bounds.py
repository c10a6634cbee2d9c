"""How long a record stays at most: the sums of docs/how-to/provable-retention.md."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.maintenance.explained import NOW_MS, explained
from tests.maintenance.rows import chunk

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000}


def _ms(text: str) -> int:
    return sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(r"(\d+) (d|h|min)", text))


def _bounds(retention_ms: int, segment_ms: int, every_ms: int, delay_ms: int) -> tuple[int, int]:
    """(how long a record can be read, how long a file can hold it) at most, in ms."""
    readable_ms = segment_ms + max(retention_ms, every_ms) + every_ms
    return readable_ms, readable_ms + delay_ms + every_ms


def test_the_table_of_the_page_has_the_sums():
    page = (ROOT / "docs" / "how-to" / "provable-retention.md").read_text()
    rows = re.findall(r"^\| ((?:(?:\d+ (?:d|h|min) ?)+\| ?){6})$", page, re.MULTILINE)
    assert len(rows) >= 3
    for row in rows:
        *settings, readable_ms, deleted_ms = map(_ms, row.split("|")[:6])
        assert _bounds(*settings) == (readable_ms, deleted_ms), row


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 500), st.integers(0, 5000))
def test_the_first_record_of_a_segment_is_told_these_sums(retention_ms, segment_ms, every_ms, delay_ms):
    readable_ms, deleted_ms = _bounds(retention_ms, segment_ms, every_ms, delay_ms)
    settings = {"retention.ms": retention_ms, "segment.ms": segment_ms, "file.delete.delay.ms": delay_ms}
    one = explained([chunk(0, 10, max_timestamp_ms=NOW_MS, created_ms=NOW_MS)], every_ms=every_ms, **settings)
    # Each rule wants a ms more than its setting.
    assert 0 <= one.leaves_log.latest_ms - NOW_MS - readable_ms <= 1
    assert 1 <= one.files_deleted.latest_ms - NOW_MS - deleted_ms <= 2
