"""docs/design/kafka-connector-cases.md: each case of the connector's suites has a row, each test exists."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.test_kafka_cases import CANNOT_APPLY, NAMED, names_in

PAGE = ROOT / "docs" / "design" / "kafka-connector-cases.md"
CASES = 212


def rows() -> list[tuple[str, str, str]]:
    """(number, name, tests) of all tables."""
    lines = re.findall(r"^\| \d+ \|.*$", PAGE.read_text(), flags=re.MULTILINE)
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))) for line in lines]  # type: ignore[misc]


def test_every_case_has_one_row():
    assert [int(number) for number, _, _ in rows()] == list(range(1, CASES + 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: " ".join(row[:2]))
def test_every_row_names_tests_that_exist_or_why_there_is_none(row):
    _, name, shown = row
    assert name
    if shown.startswith(CANNOT_APPLY):
        assert len(shown) > len(CANNOT_APPLY) and shown.endswith(".")
        return
    for one in shown.split("<br>"):
        match = NAMED.fullmatch(one)
        assert match, one
        assert match[2] in names_in(match[1]), one
