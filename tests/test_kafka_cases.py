"""docs/design/kafka-log-cases.md: each case of Kafka's has a row, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "design" / "kafka-log-cases.md"
LIST = "All cases"
CANNOT_APPLY = "cannot apply: "
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def sections() -> dict[str, str]:
    """{heading: text}"""
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(set(parts[::2])) == len(parts) // 2, "a suite has one section"
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(section: str) -> list[tuple[str, str, str]]:
    """(case, statement, tests) of a suite's table."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| case | what it states | our test |", "| --- | --- | --- |"]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]  # type: ignore[misc]


def cases() -> dict[str, list[str]]:
    """{suite: its cases}, from the list at the end."""
    lines = [line for line in sections()[LIST].splitlines() if line.startswith("* ")]
    return {suite: names.split(", ") for suite, _, names in (line[2:].partition(": ") for line in lines)}


@cache
def names_in(path: str) -> set[str]:
    """The names of the test functions of a file, which is not run."""
    file = ROOT / path
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


SUITES = [suite for suite in sections() if suite != LIST]


def test_the_list_has_the_suites_of_the_tables():
    assert list(cases()) == SUITES


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_has_one_row(suite):
    assert sorted(case for case, _, _ in rows(sections()[suite])) == sorted(cases()[suite])
    assert len(set(cases()[suite])) == len(cases()[suite])


@pytest.mark.parametrize("suite", SUITES)
def test_every_row_states_something_and_names_tests_that_exist_or_why_there_is_none(suite):
    for case, statement, shown in rows(sections()[suite]):
        assert statement.endswith("."), case
        reason, *more = re.split(r"<br>", shown) if shown.startswith(CANNOT_APPLY) else ("", *shown.split("<br>"))
        assert more or len(reason) > len(CANNOT_APPLY), case
        for one in more:
            match = NAMED.fullmatch(one)
            assert match, f"{case}: {one}"
            assert Path(ROOT / match[1]).is_file(), f"{case}: {match[1]}"
            assert match[2] in names_in(match[1]), f"{case}: {one}"
