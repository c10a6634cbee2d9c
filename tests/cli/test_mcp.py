"""`segments mcp`, asked by the client of the protocol's SDK."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from spark_segments import LogDir
from spark_segments.cli.mcp.tools import MOST_BYTES, Tools

START_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", partitions=2)
    rows = [{"partition": n % 2, "key": f"k{n}", "value": str(n), "timestamp": START_MS + n} for n in range(10)]
    log.topic("orders").append(rows)
    return log


def _asked(source: Any, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """The text of each call's answer; that of an error begins with `error: `."""

    async def ask() -> list[str]:
        async with Client(source) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [("error: " if answer.is_error else "") + answer.content[0].text for answer in answers]

    return anyio.run(ask)


def _tools(log: LogDir, sql_seconds: float = 60.0) -> Any:
    return Tools(log, {}, sql_seconds).server()


def _files(log: LogDir) -> dict[str, tuple[int, int]]:
    paths = [path for path in Path(log.uri).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def test_an_assistant_reads_a_log_directory_and_writes_nothing(log, python_environment):
    before = _files(log)
    arguments = ["-m", "spark_segments", "mcp", log.uri]
    process = stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=python_environment))
    described, explained, consumed, counted, verified = _asked(
        process,
        ("describe", {"topic": "orders"}),
        ("explain", {"topic": "orders", "partition": 1, "offset": 3}),
        ("consume", {"topic": "orders", "partition": 1, "offset": "-2"}),
        ("sql", {"query": 'SELECT count(*) AS records, max("offset") AS last FROM orders'}),
        ("verify", {"deep": True}),
    )
    topic, *partitions = map(json.loads, described.splitlines())
    assert topic["config"]["cleanup.policy"] == "delete"
    assert [(row["partition"], row["log_end_offset"], row["records"]) for row in partitions] == [(0, 5, 5), (1, 5, 5)]
    assert "No rule keeps it any longer: the next roll seals it and the next retain removes it" in explained
    records = list(map(json.loads, consumed.splitlines()))
    assert [(row["offset"], row["key"], row["value"]) for row in records] == [(3, "k7", "7"), (4, "k9", "9")]
    assert json.loads(counted) == {"records": 10, "last": 4}
    assert "2 partitions" in verified and "no faults" in verified
    assert _files(log) == before


def test_every_tool_says_that_it_only_reads(log):
    async def listed() -> list[Any]:
        async with Client(_tools(log)) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(listed)
    assert [tool.name for tool in tools] == ["describe", "explain", "consume", "sql", "verify"]
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in tools)


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("describe", {}, '{"topic": "orders", "partitions": 2, "segments": 0, "records": 10,'),
        ("consume", {"topic": "orders", "newest": True, "count": 1}, '{"topic": "orders", "partition": 1, "offset": 4'),
        ("consume", {"topic": "orders", "from_time": f"{START_MS + 9}"}, '{"topic": "orders", "partition": 1, "off'),
        ("consume", {"topic": "orders", "offset": "latest"}, "no record is in these bounds\npartition 0 has 0 to 5"),
        ("explain", {"topic": "orders", "key": "k7"}, "Key 'k7' of topic orders"),
        ("sql", {"query": "SELECT 1 WHERE false"}, "no rows"),
        ("describe", {"topic": "order"}, "error: Error executing tool describe: Unknown topic 'order'"),
        ("consume", {"topic": "orders", "partition": 7}, "error: Error executing tool consume: "),
        ("consume", {"topic": "orders", "count": 5000}, "error: Error executing tool consume: "),
        ("explain", {"topic": "orders"}, "error: Error executing tool explain: offset, time or key must name"),
        ("sql", {"query": "SELECT * FROM read_text('/etc/hostname')"}, "error: Error executing tool sql: The query"),
        ("sql", {"query": "COPY orders TO 'orders.csv'"}, "error: Error executing tool sql: The query"),
        ("sql", {"query": "SET enable_external_access = true"}, "error: Error executing tool sql: The query"),
    ],
)  # fmt: skip
def test_an_answer_or_an_error_is_told(log, tool, arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [answer] = _asked(_tools(log), (tool, arguments))
    assert answer.startswith(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_an_answer_has_a_bound_and_whole_lines(log):
    log.topic("orders").append([{"partition": 0, "key": "wide", "value": "x" * 9000} for _ in range(20)])
    log.create_topic("wide", partitions=1000)
    log.create_topic("long", partitions=1)
    log.topic("long").append([{"value": "y" * 2 * MOST_BYTES}])
    cut, long, endless, wide = _asked(
        _tools(log),
        ("consume", {"topic": "orders", "partition": 0, "count": 1000}),
        ("consume", {"topic": "long"}),
        ("sql", {"query": "SELECT * FROM range(1000000000000)"}),
        ("describe", {"topic": "wide"}),
    )
    for answer in (cut, endless, wide):
        *lines, note = answer.splitlines()
        assert all(json.loads(line) for line in lines) and sum(map(len, lines)) <= MOST_BYTES
        assert note.startswith("… cut after 60,000 bytes")
    assert long.startswith('{"topic": "long", "partition": 0, "offset": 0,') and len(long) < MOST_BYTES + 100


def test_a_statement_that_takes_too_long_is_ended(log):
    server = _tools(log, sql_seconds=0.3)
    ended, counted = _asked(
        server,
        ("sql", {"query": "SELECT count(*) FROM range(1000000000000)"}),
        ("sql", {"query": "SELECT count(*) AS records FROM orders"}),
    )
    assert ended == "error: Error executing tool sql: The statement takes too long: expected 0.3 seconds at most"
    assert json.loads(counted) == {"records": 10}
