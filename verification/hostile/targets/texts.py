"""Options of readers and writers, settings, and arguments of the command."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from random import Random

from spark_segments.config import KEYS, normal_overrides, parse_overrides, topic_config, validate_topic_name
from spark_segments.config.rules import read_properties
from spark_segments.quantities import duration_ms, moment_ms, size_bytes
from spark_segments.storage.locations import parse_location
from verification.hostile.mutations import NO_TEXT, mutated, mutated_text
from verification.hostile.targets import Run

WORDS = [
    *[
        "",
        "0",
        "-1",
        "-2",
        "9" * 25,
        "1e400",
        "NaN",
        "٣",
        "1_000",
        "+1",
        "0x10",
        " 5 ",
        "true",
        "null",
        "{}",
        "[]",
        "..",
    ],
    *[
        "../x",
        "/etc/passwd",
        "%2e%2e%2f",
        "a\0b",
        "\n",
        "\u202e",
        "\ud7ff",
        "'",
        '"',
        "\\",
        "$(x)",
        "-",
        "--",
        "=",
        ",",
    ],
    *["[", "(", "(a+)+$", "*", "2024-13-45", "99999-01-01", "1d", "5 fortnights ago", "earliest", "latest", "x" * 300],
    *['{"orders":{"0":-5}}', '{"orders":{"x":1}}', '{"orders":{"0":1e400}}', "s3://", "gs:///x", "file://h/x", "a:0-3"],
]

_OPTIONS = {
    "path": "/data/log",
    "subscribe": "orders,payments",
    "subscribePattern": "ord.*",
    "assign": '{"orders":[0,1]}',
    "startingOffsets": '{"orders":{"0":23,"1":-2}}',
    "endingOffsets": '{"orders":{"0":50,"1":-1}}',
    "startingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": '{"orders":{"0":1700000000000}}',
    "endingTimestamp": "1700000000000",
    "minPartitions": "10",
    "maxRecordsPerPartition": "1000",
    "maxPartitionBytes": "64m",
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "versionAsOf": "3",
    "timestampAsOf": "2024-01-31T12:00:00Z",
    "isolation.level": "read_committed",
    "view": "latest",
    "maxOffsetsPerTrigger": "1000",
    "maxTriggerDelay": "15m",
    "value.format": "json",
    "topic": "orders",
    "compression.type": "zstd",
    "batch.size": "16384",
    "txnAppId": "app",
    "txnVersion": "7",
}


def options() -> Run:
    from spark_segments.spark.options import read_options, stream_options, write_options

    def run(random: Random) -> None:
        given = {name: _OPTIONS[name] for name in random.sample(list(_OPTIONS), random.randint(1, 5))}
        if random.random() < 0.7:
            given = {"path": "/data/log", "subscribe": "orders"} | given
        for name in random.sample(list(given), random.randint(1, len(given))):
            given[name] = mutated_text(given[name], random, WORDS)
        if random.random() < 0.1:
            given[mutated_text("subscribe", random, WORDS)] = "x"
        random.choice((read_options, stream_options, write_options))(given)

    return run


def settings() -> Run:
    names = list(KEYS)
    goods = ["1000", "compact,delete", "0.5", "true", "zstd", "CreateTime", "producer"]
    place = Path(tempfile.mkdtemp()) / "server.properties"

    def run(random: Random) -> None:
        name, text = random.choice(names), mutated_text(random.choice(goods), random, WORDS)
        way = random.randrange(8)
        if way == 0:
            topic_config({name: text})
        elif way == 1:
            normal_overrides({mutated_text(name, random, WORDS): text})
        elif way == 2:
            parse_overrides([mutated_text(f"{name}={text}", random, WORDS)])
        elif way == 3:
            validate_topic_name(mutated_text("orders", random, WORDS))
        elif way == 4:
            uri = random.choice(("/data/log", "s3://bucket/key", "abfss://c@a.x/y"))
            parse_location(mutated_text(uri, random, WORDS), {mutated_text("aws_region", random, WORDS): text})
        elif way == 5:
            moment_ms(
                mutated_text(random.choice(("2024-01-31T12:00:00Z", "2 hours ago", "1700")), random, WORDS), 10**12
            )
        elif way == 6:
            random.choice((duration_ms, size_bytes))(
                mutated_text(random.choice(("15m", "64k", "7 days")), random, WORDS)
            )
        else:
            text = mutated_text("log.retention.hours=24\nlog.segment.bytes = 1\\\n00\n", random, WORDS)
            place.write_bytes(text.encode("utf-8", "replace"))
            read_properties(place)

    return run


_RECORDS = [
    b'{"topic": "t", "offset": 7, "timestamp": 17, "key": "k", "value": "{\\"a\\": \\"\\u00e9\\"}", "headers": []}',
    b'{"value": null, "headers": [{"key": "h", "value": "\\ud83d\\ude00"}, {"key": "i", "value_base64": "YQ=="}]}\r',
    b'{"key_base64": "YQ==", "partition": -1, "value_base64": "", "x": true}',
    b"k\tv",
    b"",
]
_ENVELOPES = [
    b'{"topic":"t","partition":0,"offset":7,"tstype":"create","ts":17,"broker":1,"headers":["h",null],"key":"k","payload":"v"}',
    b'{"key":"azE=","keyIsArray":true,"value":{"a":1.50},"headers":{"h":1},"metadata":{"timestamp":17,"partition":0}}',
    b'{"key":"k","value":"dg==","timestamp":"2026-01-01T00:00:00Z","headers":[{"key":"h","value":"YQ=="}]}',
]
_PRINTED = [
    b"CreateTime:17\tPartition:0\tOffset:7\th:1,n:null\tk\tv",
    b"NO_TIMESTAMP\tPartition:0\tOffset:8\tNO_HEADERS\tnull\tnull",
    b"",
]
_CSV = [b"key,value", b'azE=,"a ""b"""', b"YQ==,", b"", b"\xef\xbb\xbf"]
_PRINT = [f"print.{part}=true" for part in ("timestamp", "partition", "offset", "headers", "key")]
_INPUTS: list[tuple[str, list[bytes], list[str], list[str]]] = [
    ("text", _RECORDS, [], []),
    ("text", _RECORDS, [], ["parse.key=true", "parse.headers=true"]),
    ("text", _PRINTED, [], _PRINT),
    ("json", _RECORDS, [], []),
    ("envelope", _ENVELOPES, [], []),
    ("envelope", _ENVELOPES, ["base64=value,headers"], []),
    ("csv", _CSV, [], []),
    ("csv", _CSV, ["base64=key"], []),
]
_WRITTEN = [
    {"value.format": "json", "value.schema": "a double, b string"},
    {"value.format": "csv", "value.schema": "a double, b string"},
    {"value.format": "avro", "value.schema": "a double, b string"},
    {"value.format": "string"},
    {"value.format": "long"},
]
"""Formats that lines of text are written in."""


def lines() -> Run:
    """Lines of an input: taken apart, read as a command reads them, and written in a format of values."""
    from spark_segments.cli.records.input_rows import Format, Input
    from spark_segments.cli.records.record_text import Properties
    from spark_segments.cli.records.value_text import encoded
    from spark_segments.values.batches import encoders
    from spark_segments.values.format_options import column_formats

    place = Path(tempfile.mkdtemp()) / "lines"
    writers = [encoders(column_formats(options), None, {"value": None}) for options in _WRITTEN]

    def run(random: Random) -> None:
        form, known, options, properties = random.choice(_INPUTS)
        rows = random.choices(known, k=random.randint(1, 4))
        rows = [known[0], *rows] if form == "csv" else rows
        content = mutated(b"\n".join(rows), random, known)
        if random.random() < 0.3:
            at = random.randint(0, len(content))
            content = content[:at] + random.choice(NO_TEXT) + content[at:]
        place.write_bytes(content)
        batches = list(
            Input.of([str(place)], Format(form), options, {}, Properties.of(properties)).batches(
                lambda done, total: None
            )
        )
        for batch in batches:
            batch.validate(full=True)
        if form in ("text", "envelope") and random.random() < 0.2:
            for batch in encoded(batches, random.choice(writers)):
                batch.validate(full=True)

    return run


_COMMANDS = [
    ["topic", "list", "LOG"],
    ["topic", "create", "LOG", "new", "--partitions", "2", "--config", "retention.ms=5"],
    ["describe", "LOG", "orders"],
    ["topic", "alter", "LOG", "orders", "--config", "retention.ms=5"],
    ["topic", "history", "LOG", "orders"],
    ["topic", "restore", "LOG", "orders", "--version", "1", "--dry-run"],
    ["topic", "delete", "LOG", "other"],
    ["offsets", "LOG", "orders", "--time", "latest"],
    ["groups", "show", "LOG", "readers"],
    ["groups", "reset", "LOG", "readers", "orders", "--to", "1", "--create", "--yes"],
    ["consume", "LOG", "orders", "-n", "2", "-o", "1"],
    ["consume", "LOG", "orders", "--partition", "0", "--tail", "3", "-f", "%t %p %o %k %v\\n"],
    ["append", "LOG", "orders", "--input", "lines.txt"],
    ["append", "LOG", "orders", "rows.json"],
    [
        "delete-records",
        "LOG",
        "orders",
        "--offset-json",
        '{"partitions":[{"topic":"orders","partition":0,"offset":1}]}',
    ],
    ["roll", "LOG", "orders", "--dry-run", "--now-ms", "1700000000000"],
    ["retain", "LOG", "--now-ms", "1700000000000", "--dry-run"],
    ["compact", "LOG", "orders", "--dry-run"],
    ["vacuum", "LOG", "orders", "--dry-run"],
    ["erase", "LOG", "orders", "--key", "k", "--dry-run"],
    ["explain", "LOG", "orders", "--offset", "1", "--partition", "0"],
    ["describe", "LOG", "orders", "--output", "json"],
    ["verify", "LOG", "orders"],
    ["dump", "FILE"],
    ["import", "kafka", "LOG"],
    ["export", "LOG", "exported"],
    ["verify", "LOG", "orders", "--repair", "--dry-run"],
]


class _Sandbox:
    """A directory with a log directory in it and a file beside it that no command may touch."""

    def __init__(self) -> None:
        from spark_segments import LogDir

        self.root = Path(tempfile.mkdtemp())
        self.template = self.root / "template"
        log = LogDir.create(str(self.template))
        for topic in ("orders", "other"):
            log.create_topic(topic, partitions=2)
            log.topic(topic).append(
                [{"key": b"k", "value": b"v%d" % number, "partition": number % 2} for number in range(9)]
            )
        self.file = next(str(path) for path in self.template.glob("orders-0/*.log"))
        self.work = self.root / "above" / "here"
        self.outside = self.root / "above" / "outside.txt"
        self.anew()

    def anew(self) -> None:
        shutil.rmtree(self.root / "above", ignore_errors=True)
        self.work.mkdir(parents=True)
        self.outside.write_text("untouched")
        shutil.copytree(self.template, self.work / "log")
        (self.work / "lines.txt").write_text("a\nb\n")
        (self.work / "rows.json").write_text('{"value":"x"}\n')

    def check(self) -> None:
        there = {path.name for path in self.outside.parent.iterdir()}
        assert there == {"here", "outside.txt"}, f"outside of the directory there is {there}"
        assert self.outside.read_text() == "untouched"


def command_line() -> Run:
    from spark_segments.cli import main

    sandbox, count = _Sandbox(), [0]
    log_dirs = [
        "log",
        "log",
        "log",
        "log",
        "log/../log",
        "none",
        "log/%2e%2e",
        "log\0",
        "",
        "log/_manifest",
        "lines.txt",
    ]

    def run(random: Random) -> None:
        count[0] += 1
        if count[0] % 100 == 0:
            sandbox.anew()
        command = list(random.choice(_COMMANDS))
        at = random.randrange(1, len(command))
        if command[at] not in ("LOG", "kafka", "exported"):
            command[at] = mutated_text(command[at], random, WORDS)
        if random.random() < 0.1:
            command.insert(random.randint(1, len(command)), random.choice(WORDS))
        forbidden = ("--master", "--follow", "--install-completion", "--show-completion")
        if any(part.startswith(("--mas", "--fol", "--ins", "--sho", "--storage", "--metrics")) for part in command):
            return
        assert not set(command) & set(forbidden)
        command = [
            random.choice(log_dirs) if part == "LOG" else sandbox.file if part == "FILE" else part for part in command
        ]
        out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        before = os.getcwd()
        os.chdir(sandbox.work)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                main(command)
        except SystemExit as stopped:
            assert stopped.code in (None, 0, 1, 2, 3), f"{json.dumps(command)}: exit {stopped.code}"
            assert "Traceback" not in error.getvalue()
            if stopped.code == 1:
                assert error.getvalue().startswith(("error: ", "Aborted", "warning: ")), (
                    f"{command}: {error.getvalue()[:300]}"
                )
        except Exception as foreign:
            raise AssertionError(f"{json.dumps(command)}: {type(foreign).__name__}: {foreign}") from foreign
        finally:
            os.chdir(before)
        sandbox.check()

    return run
