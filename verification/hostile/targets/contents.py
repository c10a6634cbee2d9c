"""What strangers send and a person or a program asks for: registries, schemas, requests of the page, records at a
terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from verification.hostile.mutations import mutated, mutated_text
from verification.hostile.targets import Run
from verification.hostile.targets.texts import WORDS
from verification.world.small_limits import small_limits

AVRO = json.dumps(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "line", "type": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}},
            {"name": "other", "type": ["null", "Line", {"type": "map", "values": "string"}], "default": None},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 16, "logicalType": "uuid"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}, "aliases": ["labels"]},
        ],
    }
)
AVRO_TREE = json.dumps(
    {
        "type": "record",
        "name": "Tree",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "share", "type": "double"},
            {"name": "left", "type": ["null", "Tree"]},
            {"name": "others", "type": {"type": "array", "items": ["string", "Tree"]}},
        ],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "connect.type": "int32", "connect.index": 1},
            "line": {"$ref": "#/definitions/Line"},
            "tags": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
            "more": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        },
        "definitions": {"Line": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    }
)
LOGICAL = "org.apache.kafka.connect.data"
CONNECT = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"field": "id", "type": "int64"},
            {"field": "at", "type": "int64", "name": f"{LOGICAL}.Timestamp"},
            {"field": "price", "type": "bytes", "name": f"{LOGICAL}.Decimal", "parameters": {"scale": "2"}},
            {"field": "tags", "type": "array", "items": {"type": "string"}},
            {"field": "more", "type": "map", "keys": {"type": "string"}, "values": {"type": "double"}},
        ],
    }
)  # fmt: skip
DDL = "id bigint, at timestamp, price decimal(10,2), tags array<string>, more map<string,struct<a:int,`b c`:date>>"
PROTO = 'syntax = "proto3"; message A { int32 x = 1; repeated B b = 2; } message B { map<string, int64> m = 1; }'
SUBJECTS = json.dumps(
    {
        "compatibility": "BACKWARD",
        "subjects": {"orders-value": {"versions": {"1": 7, "2": 8}, "compatibility": "NONE"}},
        "references": {"8": [{"name": "Line", "subject": "orders-value", "version": 1}]},
    }
)
ANSWER = json.dumps(
    {"id": 7, "schema": '"long"', "schemaType": "AVRO", "references": [{"name": "a", "subject": "b", "version": 1}]}
)
_VALUES = [None, 7, -1, 2**40, 1.5, True, "", "7", [], {}, [[]], {"id": 7}, ["x"], "\ud800", "a" * 5000]


def mutated_json(value: Any, random: Random) -> Any:
    """A JSON value with one of its members taken out, doubled, or another value."""
    if random.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return random.choice(_VALUES)
    if isinstance(value, list):
        at = random.randrange(len(value))
        way = random.randrange(4)
        if way == 0:
            return value[:at] + value[at + 1 :]
        if way == 1:
            return value + [value[at]] * random.choice((1, 3, 300))
        return [*value[:at], mutated_json(value[at], random), *value[at + 1 :]]
    name = random.choice(list(value))
    way = random.randrange(4)
    if way == 0:
        return {one: each for one, each in value.items() if one != name}
    if way == 1:
        return {one if one != name else random.choice(WORDS): each for one, each in value.items()}
    return value | {name: mutated_json(value[name], random)}


def text_of(good: str, random: Random) -> str:
    """A text of JSON, or of another language, that is nearly good."""
    if good[:1] == "{" and random.random() < 0.7:
        value = json.loads(good)
        for _ in range(random.randint(1, 3)):
            value = mutated_json(value, random)
        return json.dumps(value)
    if random.random() < 0.02:
        return random.choice(("[", '{"type":', '{"a":', "array<")) * random.choice((100, 1000, 100_000))
    return mutated_text(good, random, WORDS)


def _answer(random: Random) -> bytes:
    """The bytes of an answer over HTTP."""
    body = text_of(random.choice((ANSWER, '["orders-value"]', "[1,2]", '{"id": 7}', '{"message": "no"}')), random)
    data = body.encode("utf-8", "replace")
    status = random.choice(
        ("200 OK", "200 OK", "200 OK", "404 No", "422 No", "500 No", "302 Found", "204 None", "100 Go")
    )
    head = random.choice(
        (f"Content-Length: {len(data)}", "Transfer-Encoding: chunked", "Content-Encoding: gzip", "X: y")
    )
    if head.startswith("Transfer"):
        data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    more = random.choice(("", "Location: /subjects\r\n", "Location: //[\r\n", "Connection: close\r\n"))
    whole = f"HTTP/1.1 {status}\r\n{head}\r\n{more}\r\n".encode() + data
    return mutated(whole, random) if random.random() < 0.5 else whole


@contextlib.contextmanager
def _server(answers: list[bytes]) -> Iterator[str]:
    """A server that sends the first of `answers` to each connection, whatever it is asked."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with contextlib.suppress(OSError), connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    request += piece
                connection.sendall(answers[0])

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def registry_answers() -> Run:
    from spark_segments.values.registries import open_registry
    from spark_segments.values.registries.registry import RecordsRegistry, Registry, Schema

    answers = [b""]
    stack = contextlib.ExitStack()
    address = stack.enter_context(_server(answers))
    directory = Path(tempfile.mkdtemp())
    key = {"keytype": "SCHEMA", "subject": "orders-value", "version": 1, "magic": 1}
    value = {"subject": "orders-value", "version": 1, "id": 7, "schema": '"long"'}

    def use(registry: Registry, random: Random) -> None:
        ways: list[Callable[[], Any]] = [
            registry.subjects,
            lambda: registry.schema(7),
            lambda: registry.version("orders-value"),
            lambda: registry.references(registry.schema(8)),
            lambda: registry.register("orders-value", Schema("AVRO", '"long"')),
        ]
        random.choice(ways)()

    def run(random: Random) -> None:
        assert stack is not None  # keeps the server
        way = random.random()
        if way < 0.5:
            answers[0] = _answer(random)
            with small_limits(REGISTRY_ATTEMPTS=2, REGISTRY_WAIT_SECONDS=0.0, REGISTRY_SECONDS=5.0):
                use(open_registry(address), random)
        elif way < 0.75:
            for name, text in (("7.avsc", AVRO), ("8.avsc", AVRO), ("subjects.json", SUBJECTS)):
                text = text_of(text, random) if random.random() < 0.5 else text
                (directory / name).write_bytes(text.encode("utf-8", "replace"))
            use(open_registry(str(directory)), random)
        else:
            pairs = [
                (json.dumps(key), json.dumps(value)),
                (text_of(json.dumps(key), random), text_of(json.dumps(value), random)),
            ]
            random.shuffle(pairs)
            use(
                RecordsRegistry(
                    [(one.encode("utf-8", "replace"), two.encode("utf-8", "replace")) for one, two in pairs]
                ),
                random,
            )

    return run


def schemas() -> Run:
    from spark_segments.values.avro import evolution, schema
    from spark_segments.values.avro.read import reader_of
    from spark_segments.values.batches import decoders
    from spark_segments.values.column_types import type_of_ddl
    from spark_segments.values.format_options import column_formats
    from spark_segments.values.protobuf import message_of
    from spark_segments.values.text import json_schema
    from spark_segments.values.undecodable import Undecodable

    good = schema.parse(AVRO)

    def avro(text: str) -> None:
        node = schema.parse(text)
        with contextlib.suppress(evolution.Incompatible, Undecodable):
            resolution = evolution.resolve(node, good)
            reader_of(resolution.node)
        with contextlib.suppress(evolution.Incompatible, Undecodable):
            evolution.resolve(good, node)
        schema.parse(json.dumps(schema.schema_of(node.type)))

    def option(name: str) -> Callable[[str], None]:
        def use(text: str) -> None:
            one = decoders(column_formats({"value.format": name, "value.schema": text}), "orders")[0]
            one.decode(pa.array([b'{"id": 7}', None], pa.binary()))

        return use

    kinds: list[tuple[str, Callable[[str], Any], float]] = [
        (AVRO, avro, 4.0),
        (JSON_SCHEMA, json_schema.type_of_schema, 3.0),
        (CONNECT, option("connect-json"), 2.0),
        (JSON_SCHEMA, option("json"), 1.0),
        (DDL, type_of_ddl, 2.0),
        (DDL, option("csv"), 1.0),
        (PROTO, message_of, 0.01),  # each starts protoc
    ]

    def run(random: Random) -> None:
        text, use, _ = random.choices(kinds, [share for _, _, share in kinds])[0]
        text = text_of(text, random)
        use(text)

    return run


def page_requests() -> Run:
    from spark_segments import LogDir
    from spark_segments.cli.page.serve import Pages, server
    from spark_segments.cli.page.topic_table import TopicLines

    log = LogDir.create(tempfile.mkdtemp() + "/log")
    log.create_topic("orders", 2)
    mark = "<b id=stranger>\x1b[31m\u202e"
    values = [mark, "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, mark * 100, "\0\xff", '{"x": "' + mark[:16] + '"}']
    log.topic("orders").append([{"key": one, "value": one, "headers": [(mark, one.encode())]} for one in values])
    pages = Pages(log, {}, TopicLines(log))
    made = server(log, 0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    goods = [
        "/",
        "/?topic=orders&partition=1",
        "/records?topic=orders&partition=0&offset=2",
        "/records?topic=orders&time=2024-01-31T12:00:00Z&find=x",
        "/record?topic=orders&partition=1&offset=3",
        "http://[::1]/records?topic=orders",
    ]

    def run(random: Random) -> None:
        target = random.choice(goods)
        for _ in range(random.randint(1, 3)):
            word = mutated_text(
                target, random, [*WORDS, "&", "&topic=", "%00", "%ff", "%u202e", "[", "]", "?", "#", "//"]
            )
            target = word if random.random() < 0.7 else quote(word, safe="/?&=%")
        if random.random() < 0.9:
            answer = pages.answer_to(target)
            assert answer.status < 500, f"{target!r}: {answer.status}"
            assert "<b id" not in answer.text
            return
        target = "".join(one for one in target if one.isascii() and one.isprintable() and one != " ")[:4000] or "/"
        with socket.create_connection(("127.0.0.1", made.server_port)) as connection:
            host = f"127.0.0.1:{made.server_port}"
            connection.sendall(f"GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            with connection.makefile("rb") as reply:
                head = reply.readline()
        assert head.split()[1:2] in ([b"200"], [b"400"], [b"404"]), f"{target!r}: {head!r}"

    return run


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class _TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


_PIECES = [
    "\x1b[31m",
    "\x1b]0;x\x07",
    "\x9b",
    "\x90",
    "\u202e",
    "\u2066",
    "\u200f",
    "\r",
    "\b",
    "\x7f",
    "\0",
    "\u2028",
    "\t",
    "\n",
]
_PIECES += [
    "abc",
    "Zürich",
    "東京",
    "👩\u200d💻",
    "[bold]",
    "[/]",
    ":smile:",
    "{",
    "}",
    '"',
    "\\",
    "\\u202e",
    "%",
    '{"a": "\u202e"}',
]
_HARMLESS_CONTROLS = "\t\n"


def is_harmless(text: str) -> bool:
    """Whether a terminal takes nothing in a text for an order: an own list, by Unicode's categories."""
    import unicodedata

    turning = {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    for one in set(text):
        if unicodedata.category(one) in ("Cc", "Zl", "Zp", "Cs") and one not in _HARMLESS_CONTROLS:
            return False
        if unicodedata.bidirectional(one) in turning or one in "\u200e\u200f\u061c":
            return False
    return True


def terminal_output() -> Run:
    from spark_segments.cli.output import print_table
    from spark_segments.cli.records.record_text import LineTemplate, Properties, write_records
    from spark_segments.cli.records.sql import _WRITERS, TableOutput
    from spark_segments.errors import SegmentsError, escaped
    from spark_segments.format.layout import RECORD_SCHEMA

    prints = [f"print.{name}=true" for name in ("key", "headers", "offset", "timestamp", "partition")]
    ways = [Properties.of([]), Properties.of(prints), Properties.of(["print.json=true"])]

    def content(random: Random) -> bytes:
        text = "".join(random.choice(_PIECES) for _ in range(random.randint(0, 12))).encode()
        return mutated(text, random) if random.random() < 0.5 else text

    def run(random: Random) -> None:
        names = [content(random).decode(errors="replace") for _ in range(2)]
        row = {
            "key": content(random),
            "value": content(random),
            "headers": [{"key": names[0], "value": content(random)}],
            "topic": "orders",
            "partition": 0,
            "offset": random.randrange(2**40),
            "timestamp": 0,
            "timestampType": 0,
        }
        batch = pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)
        stream = _Terminal()
        way = random.randrange(6)
        if way < 3:
            write_records(stream, [batch], ways[way], None)
            if way == 2:
                found = json.loads(stream.getvalue())
                assert found["headers"][0]["key"] == names[0]
                assert found.get("value", "").encode() == row["value"] or "value_base64" in found
        elif way == 3:
            write_records(stream, [batch], ways[0], None, LineTemplate.of("%t %k %v %h %S %R\\n"))
        elif way == 4:
            schema = batch.schema
            if random.random() < 0.5:
                schema = pa.schema([pa.field(names[1], pa.binary())])
                batch = pa.RecordBatch.from_arrays([pa.array([row["value"]], pa.binary())], schema=schema)
            form = random.choice((TableOutput.JSON, TableOutput.CSV))
            _WRITERS[form](schema, iter([batch]), stream)
        else:
            shown = _TerminalText()
            with contextlib.redirect_stdout(shown):
                print_table(["plain", names[0]], [[1, names[1]], [2, row["value"].decode(errors="replace")]])
            # The words that a terminal is to obey are those of the heading: it is bold.
            stream.write(shown.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").encode())
        text = stream.getvalue().decode()
        assert is_harmless(text), ascii(text)
        error = str(SegmentsError(names[0], path=names[1], found=names[0]))
        assert is_harmless(error) and "\n" not in error, ascii(error)
        assert escaped(escaped(names[0])) == escaped(names[0])

    return run
