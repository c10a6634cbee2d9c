from __future__ import annotations

import re

import pytest

import spark_segments

COMMANDS = [
    *(("topic", name) for name in ("create", "list", "alter", "delete", "history", "restore")),
    *(("groups", name) for name in ("list", "show", "reset", "delete")),
    *((name,) for name in ("offsets", "append", "consume", "sql", "delete-records")),
    *((name,) for name in ("roll", "retain", "compact", "vacuum", "erase", "index", "table", "maintain")),
    *((name,) for name in ("mirror", "promote")),
    *((name,) for name in ("doctor", "describe", "page", "explain", "verify")),
    *((name,) for name in ("dump", "mcp", "import", "export", "serve", "capture", "replay")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_fits_eighty_columns(segments, command):
    text = segments(*command, "--help").text
    assert f"Example: segments {' '.join(command)} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_command_is_in_the_help(segments):
    text = segments("--help").text + segments("topic", "--help").text + segments("groups", "--help").text
    shown = re.findall(r"^  ([a-z][a-z-]*)  ", text, re.MULTILINE)
    assert {name for command in COMMANDS for name in command} == set(shown)
    assert shown[0] == "topic"


@pytest.mark.parametrize("name", [["configs"], ["dump-log"], ["topic", "describe"]])
def test_a_command_that_has_another_name_names_it(run, name):
    ran = run(*name, "log")
    assert ran.code == 2 and f"There is no {name[-1]} here: segments " in ran.error


def test_version(segments):
    assert segments("--version").text == f"segments {spark_segments.__version__}\n"


@pytest.mark.parametrize("arguments", [["roll"], ["no-such-command"], ["topic", "list", "a", "--wrong"], ["dump"]])
def test_wrong_usage_is_exit_code_2(run, arguments):
    ran = run(*arguments)
    assert (ran.code, ran.output) == (2, b"")
    assert "Usage: segments" in ran.error


def test_every_error_begins_with_one_word(run, tmp_path):
    for arguments in (["topic", "list"], ["no-such-command"], ["topic", "list", tmp_path / "nothing"]):
        assert re.findall(r"(?mi)^error: ", run(*arguments).error) == ["error: "]


def test_an_error_is_one_line_and_exit_code_1(run, segments, tmp_path):
    segments("topic", "create", tmp_path / "log", "orders")
    for arguments in (
        ["topic", "list", tmp_path / "nothing"],
        ["topic", "create", tmp_path / "log", "orders"],
        ["topic", "create", tmp_path / "log", "prices", "--config", "retention.mss=1"],
        ["describe", tmp_path / "log", "prices"],
        ["consume", tmp_path / "log", "orders", "--partition", 7],
        ["consume", tmp_path / "log", "orders", "--offset", "first"],
        ["consume", tmp_path / "log", "orders", "--from-time", "some day"],
        ["consume", tmp_path / "log", "orders", "-f", "%q"],
        ["consume", tmp_path / "log", "orders", "-f", "%v", "--output", "json"],
        ["consume", tmp_path / "log", "orders", "--from-beginning", "-o", "5"],
        ["consume", tmp_path / "log", "orders", "--property", "print.keys=true"],
        ["offsets", tmp_path / "log", "orders", "--partitions", "0,x"],
        ["offsets", tmp_path / "log", "orders", "--partitions", "3"],
        ["append", tmp_path / "log", "orders", "--input", tmp_path / "nothing"],
        ["append", tmp_path / "log", "prices", "--input", "/dev/null"],
        ["append", tmp_path / "log", "orders", "--txn", "nightly"],
        ["append", tmp_path / "log", "orders", "--compression-codec", "rar"],
        ["delete-records", tmp_path / "log", "orders"],
        ["delete-records", tmp_path / "log", "orders", "--before-offset", 1],
        ["roll", tmp_path / "log", "prices"],
        ["describe", tmp_path / "log", "--html", tmp_path / "nothing" / "log.html"],
        ["dump", tmp_path / "nothing.log"],
        ["verify", tmp_path / "log", "prices"],
        ["import", tmp_path / "nothing", tmp_path / "log"],
        ["export", tmp_path / "log", tmp_path / "out", "--topic", "prices"],
    ):
        ran = run(*arguments, stdin=b"a\n")
        assert ran.code == 1, arguments
        assert re.fullmatch(r"error: .+\n", ran.error), arguments
