"""What deletes says what it takes, asks on a terminal, and says what brings it back. The terminal is a pty."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.cli import main


@pytest.fixture
def uri(tmp_path: Any) -> str:
    uri = str(tmp_path / "log")
    log = LogDir.create(uri)
    log.create_topic("orders", 2)
    log.topic("orders").append([{"value": b"%d" % number, "partition": number % 2} for number in range(10)])
    return uri


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Any]]:
    """Runs `segments` with a person at the keyboard, who answers a question; returns (exit code, output, question)."""
    master, slave = os.openpty()

    def run(text: str, *arguments: str) -> tuple[object, str, str]:
        os.write(master, text.encode() + b"\n")
        with os.fdopen(os.dup(slave), "r") as keyboard:
            monkeypatch.setattr("sys.stdin", keyboard)
            with pytest.raises(SystemExit) as ended:
                main([*arguments])
        return ended.value.code or 0, *capfd.readouterr()

    yield run
    os.close(slave)
    os.close(master)


def bounds(uri: str) -> dict[int, tuple[int, int]]:
    return LogDir.open(uri).topic("orders").offsets()


def test_a_topic_is_deleted_after_a_yes(answer, uri):
    code, _, asked = answer("n", "topic", "delete", uri, "orders")
    assert code == 1 and "Delete topic orders: 2 partitions, 10 records, " in asked
    assert LogDir.open(uri).topics() == ["orders"]
    code, output, _ = answer("y", "topic", "delete", uri, "orders")
    assert (code, output.strip()) == (0, "Deleted topic orders.")
    assert LogDir.open(uri).topics() == []


@pytest.mark.parametrize("command", [("topic", "delete"), ("delete-records", "--before-offset", "3")])
def test_with_yes_nothing_is_asked(answer, uri, command):
    words, options = [one for one in command[:2] if not one.startswith("-")], command[len(command) - 2 :]
    more = options if "--before-offset" in options else ()
    code, _, asked = answer("n", *words, uri, "orders", *more, "--yes")
    assert code == 0 and "[y/N]" not in asked


def test_records_are_deleted_after_a_yes(answer, uri):
    code, _, asked = answer("n", "delete-records", uri, "orders", "--before-offset", "-1")
    assert code == 1 and "Move the log start of orders, partition 0: 0 to 5, 1: 0 to 5?" in asked
    assert bounds(uri) == {0: (0, 5), 1: (0, 5)}
    code, _, _ = answer("y", "delete-records", uri, "orders", "--before-offset", "2", "--partition", "1")
    assert code == 0 and bounds(uri) == {0: (0, 5), 1: (2, 5)}


def test_keys_are_erased_after_a_yes(answer, uri):
    log = LogDir.open(uri)
    log.create_topic("people", 1, {"cleanup.policy": "compact"})
    log.topic("people").append([{"key": b"ada", "value": b"secret"}, {"key": b"bob", "value": b"x"}])
    erase = ("erase", uri, "people", "--key", "ada")
    code, output, asked = answer("n", *erase)
    assert code == 1 and "people" in asked and "Erase 1 key from people?" in asked and not output.strip()
    assert log.topic("people").offsets() == {0: (0, 2)}
    code, _, said = answer("y", *erase)
    assert code == 0 and log.topic("people").offsets() == {0: (0, 3)}
    [way_back] = re.findall(r"segments (topic restore \S+ people --version \d+ --including-erased)", said)
    answer("y", *way_back.split())
    assert log.topic("people").offsets() == {0: (0, 3)}
    records = log.topic("people").scan().to_table().to_pylist()
    assert [(record["key"], record["value"]) for record in records] == [(b"ada", b"secret"), (b"bob", b"x")]


def test_a_dry_run_deletes_nothing(segments, uri):
    assert "10 records" in segments("topic", "delete", uri, "orders", "--dry-run").text
    ran = segments("delete-records", uri, "orders", "--before-offset", 3, "--dry-run")
    assert ran.lines == ["partition: orders-0\tlow_watermark: 3", "partition: orders-1\tlow_watermark: 3"]
    assert "Nothing was deleted" in ran.error
    assert bounds(uri) == {0: (0, 5), 1: (0, 5)}


@pytest.mark.parametrize("command", [["delete-records", "--before-offset", "3"], ["topic", "delete"]])
def test_the_command_that_is_named_brings_everything_back(segments, uri, command):
    named = [one for one in command if one in ("delete-records", "topic", "delete")]
    ran = segments(*named, uri, "orders", *command[len(named) :])
    [way_back] = re.findall(r"segments (topic restore \S+ orders --version \d+)", ran.error)
    segments(*way_back.split())
    assert bounds(uri) == {0: (0, 5), 1: (0, 5)}


def test_an_unknown_setting_cannot_be_taken_away(run, uri):
    ran = run("topic", "alter", uri, "orders", "--delete-config", "retention.msec")
    assert ran.code == 1 and "Did you mean retention.ms?" in ran.error
