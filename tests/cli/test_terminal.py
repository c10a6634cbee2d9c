"""What others wrote gives no orders to a terminal; into a pipe it goes as it is. The terminal is a real one, a pty."""

from __future__ import annotations

import io
import json
import os
import tty
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.cli import main

ORDERS = {
    "a title of the window": "\x1b]0;owned\x07",
    "a colour": "\x1b[31m",
    "one byte of C1": "\x9b31m",
    "a command of C1": "\x90dcs\x9c",
    "the direction of a line": "abc\u202etxt.exe\u2066x\u2069",
    "a mark of direction": "\u200e\u200f\u061c",
    "a line written over": "secret\rpublic",
    "deletions": "abc\b\b\b\x7f",
    "an end of a line for browsers": "a\u2028b\u2029c",
    "zero": "\0",
}
HARMLESS = "Zürich \u3000 東京 👩\u200d💻 [bold]x[/bold] :smile: [/no]"
UNSAFE = {chr(one) for one in (*range(9), *range(11, 32), *range(127, 160))}
UNSAFE |= set("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Runs `segments` at a terminal and returns what the terminal was sent."""
    master, slave = os.openpty()
    tty.setraw(slave)

    def run(*arguments: str) -> str:
        with open(os.dup(slave), "wb", buffering=0) as file:
            monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(file), "utf-8", write_through=True))
            monkeypatch.setenv("TERM", "dumb")
            with pytest.raises(SystemExit) as ended:
                main([*arguments])
            assert not ended.value.code
        os.write(slave, b"\0END")
        sent = b""
        while not sent.endswith(b"\0END"):
            sent += os.read(master, 65536)
        return sent.removesuffix(b"\0END").decode()

    yield run
    os.close(slave)
    os.close(master)


@pytest.fixture
def uri(tmp_path: Any) -> str:
    return str(tmp_path / "log")


def write(uri: str, text: str) -> bytes:
    log = LogDir.create(uri)
    log.create_topic("orders")
    data = text.encode() + b"\xff\x9b"
    log.topic("orders").append([{"key": data, "value": data, "headers": [(text, data)]}])
    log.topic("orders").append([{"key": text, "value": json.dumps({"x": text}, ensure_ascii=False)}])
    return data


ALL = ("--property", "print.key=true", "--property", "print.headers=true")
COMMANDS = {
    "consume": lambda uri: ("consume", uri, "orders", *ALL),
    "consume -f": lambda uri: ("consume", uri, "orders", "-f", "%k %v %h %S %R\\n"),
    "consume --output json": lambda uri: ("consume", uri, "orders", "--output", "json"),
    "consume --value-format": lambda uri: ("consume", uri, "orders", "--value-format", "json", "--offset", "1"),
    "sql": lambda uri: ("sql", uri, "SELECT key, value, headers FROM orders"),
    "sql --output json": lambda uri: ("sql", uri, "SELECT * FROM orders", "--output", "json"),
    "sql --output csv": lambda uri: ("sql", uri, "SELECT key, value FROM orders", "--output", "csv"),
    "a name of a column": lambda uri: ("sql", uri, 'SELECT 1 AS "\x1b[31m\u202e"'),
    "dump": lambda uri: ("dump", *_files(uri), "--print-data-log"),
    "dump --output json": lambda uri: ("dump", *_files(uri), "--print-data-log", "--output", "json"),
}


def _files(uri: str) -> list[str]:
    return [f"{uri}/{path}" for path in os.listdir(uri) if path == "orders-0"]


@pytest.mark.cases(8)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("text", ORDERS.values(), ids=ORDERS)
def test_a_terminal_gets_no_orders(terminal, uri, text, command):
    write(uri, text)
    sent = terminal(*command(uri))
    assert sent
    assert not UNSAFE & set(sent), ascii(sent)


def test_a_terminal_gets_all_else_as_it_is(terminal, uri):
    LogDir.create(uri).create_topic("orders")
    LogDir.open(uri).topic("orders").append([{"value": HARMLESS + "\tb\nc"}])
    assert terminal("consume", uri, "orders") == HARMLESS + "\tb\nc\n"
    assert "[bold]x[/bold] :smile: [/no]" in terminal("sql", uri, "SELECT value FROM orders")


def test_what_a_user_puts_between_records_goes_as_it_is(terminal, uri):
    LogDir.create(uri).create_topic("orders")
    LogDir.open(uri).topic("orders").append([{"key": "order\x1b", "value": "v"}])
    assert terminal("consume", uri, "orders", "-f", "\\x1b[1m%k\\x1b[0m") == "\x1b[1morder\\x1b\x1b[0m"


def test_a_pipe_gets_the_bytes(segments, uri):
    data = write(uri, "".join(ORDERS.values()))
    assert segments("consume", uri, "orders", "-n", "1").output == data + b"\n"
    assert segments("consume", uri, "orders", "-f", "%k|%v", "-n", "1").output == data + b"|" + data


def test_json_with_escapes_is_the_same_json(segments, uri):
    text = "".join(ORDERS.values())
    write(uri, text)
    output = segments("consume", uri, "orders", "--output", "json").output
    assert not UNSAFE - {"\n"} & set(output.decode())
    last = json.loads(output.splitlines()[-1])
    assert last["key"] == text
    segments("topic", "create", uri, "copy")
    segments("append", uri, "copy", "--format", "json", stdin=output)
    both = [
        [one["value"] for batch in LogDir.open(uri).topic(t).scan().batches() for one in batch.to_pylist()]
        for t in ("orders", "copy")
    ]
    assert both[0] == both[1]


def test_parquet_is_nothing_for_a_terminal(uri, terminal, capsys):
    LogDir.create(uri).create_topic("orders")
    with pytest.raises(AssertionError):
        terminal("sql", uri, "SELECT 1", "--output", "parquet")
    assert "Parquet is nothing for a terminal" in capsys.readouterr().err


def test_damage_whose_name_gives_orders_is_shown_in_a_line(segments, run, uri):
    log = LogDir.create(uri)
    log.create_topic("orders", config={"cleanup.policy": "delete"})
    ran = run("consume", uri, "orders\x1b[31m")
    assert ran.code == 1
    assert "\x1b" not in ran.error
