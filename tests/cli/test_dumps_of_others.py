"""`segments append` of what other tools dump: Kafka's console consumer, kcat, S3 sinks of Kafka Connect."""

from __future__ import annotations

import json

import pytest

from spark_segments import LogDir
from verification.world.topics import contents

START_MS = 1_700_000_000_000
RECORDS = [
    {"key": "k1", "value": "v\t1", "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}]},
    {"key": None, "value": '{"a": 1.50}', "headers": []},
    {"key": "k2", "value": None, "headers": [{"key": "h", "value": "é"}]},
]


@pytest.fixture
def uri(tmp_path, segments) -> str:
    uri = str(tmp_path / "log")
    segments("topic", "create", uri, "orders", "--partitions", 2)
    return uri


def records(uri: str) -> list[tuple]:
    """(partition, timestamp in ms, key, value, headers) of each record."""
    rows = contents(LogDir.open(uri), "orders")
    return [
        (
            row["partition"],
            int(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in rows
    ]


EXPECTED = [
    (0, START_MS, b"k1", b"v\t1", [("h", b"1"), ("n", None)]),
    (0, START_MS + 1, None, b'{"a": 1.50}', []),
    (1, START_MS + 2, b"k2", None, [("h", "é".encode())]),
]

PRINTED = (
    f"CreateTime:{START_MS}|Partition:0|Offset:7|h:1,n:null|k1|v\t1\n"
    f'CreateTime:{START_MS + 1}|Partition:0|Offset:8|NO_HEADERS|null|{{"a": 1.50}}\n'
    f"LogAppendTime:{START_MS + 2}|Partition:1|Offset:3|h:é|k2|null\n"
)
PRINT = [f"print.{part}=true" for part in ("timestamp", "partition", "offset", "headers", "key")]


def properties(*texts: str) -> list[str]:
    return [f"--property={text}" for text in texts]


def test_what_a_console_consumer_prints_is_appended(segments, uri):
    segments("append", uri, "orders", *properties(*PRINT, "key.separator=|"), stdin=PRINTED.encode())
    assert records(uri) == EXPECTED


def test_what_consume_prints_with_all_its_parts_is_appended(segments, uri, tmp_path):
    lines = "".join(json.dumps(record | {"partition": 0, "timestamp": START_MS}) + "\n" for record in RECORDS)
    segments("topic", "create", uri, "first")
    segments("append", uri, "first", "--format", "json", stdin=lines.encode())
    chosen = properties(*PRINT, "null.literal=\\\\N", "key.separator=|")
    segments("append", uri, "orders", *chosen, stdin=segments("consume", uri, "first", *chosen).output)
    appended = [(key, value, headers) for _, _, key, value, headers in records(uri)]
    assert appended[:2] == [expected[2:] for expected in EXPECTED[:2]]
    assert appended[2][:2] == EXPECTED[2][2:4]


@pytest.mark.parametrize(
    ("printed", "line", "said"),
    [
        (PRINT, b"k|v\n", "Line 2 has no partition"),
        (PRINT, b"17|Partition:0|Offset:7|NO_HEADERS|k|v\n", "Line 2 does not begin its timestamp"),
        (PRINT, b"NO_TIMESTAMP|Partition:-1|Offset:7|NO_HEADERS|k|v\n", "Line 2 does not begin its partition"),
        (["print.key=true", "parse.key=true"], b"k|v\n", "found parse.key"),
        (["print.key=true", "print.value=false"], b"k\n", "found print.value=false"),
    ],
)
def test_a_line_that_no_consumer_printed_so_is_an_error(run, uri, printed, line, said):
    first = PRINTED.splitlines()[0].encode()
    ran = run("append", uri, "orders", *properties(*printed, "key.separator=|"), stdin=first + b"\n" + line)
    assert ran.code == 1 and said in ran.error and ran.error.count("\n") == 1
    assert records(uri) == []


KCAT = [
    f'{{"topic":"o","partition":0,"offset":7,"tstype":"create","ts":{START_MS},"broker":1,"headers":["h","1","n",null],'
    '"key":"k1","payload":"v\\t1"}',
    f'{{"topic":"o","partition":0,"offset":8,"tstype":"create","ts":{START_MS + 1},"broker":1,"key":null,'
    '"payload":"{\\"a\\": 1.50}"}',
    f'{{"topic":"o","partition":1,"offset":3,"tstype":"logappend","ts":{START_MS + 2},"broker":1,'
    '"headers":{"h":["é"]},"key":"k2","payload":null}',
]
LENSES = [
    f'{{"headers": {{"h": 1, "n": null}}, "metadata": {{"timestamp": {START_MS}, "topic": "o", "partition": 0, '
    '"offset": 7}, "keyIsArray": true, "key": "azE=", "value": "v\\t1"}',
    f'{{ "value" : {{"a": 1.50}} , "key":null,"metadata":{{"timestamp":{START_MS + 1},"partition":0}}}}',
    f'{{"value":null,"key":"k2","headers":{{"h":"é"}},"metadata":{{"partition":1,"timestamp":{START_MS + 2}}}}}',
]
AIVEN = [
    '{"key": "k1", "value": "v\\t1", "offset": 7, "timestamp": "2023-11-14T22:13:20Z", "partition": 0, '
    '"headers": [{"key": "h", "value": "1"}, {"key": "n", "value": null}]}',
    '{"value": {"a": 1.50}, "offset": 8, "timestamp": "2023-11-14T22:13:20.001Z", "partition": 0}',
    '{"key":"k2","value":null,"timestamp":"2023-11-14T22:13:20.002Z","headers":[{"key":"h","value":"é"}],"partition":1}',
]


@pytest.mark.parametrize("lines", [KCAT, LENSES, AIVEN], ids=["kcat", "Lenses", "Aiven"])
def test_envelopes_are_records(segments, uri, tmp_path, lines):
    (tmp_path / "a.json").write_text("\n".join(lines) + "\n\n")
    segments("append", uri, "orders", "--format", "envelope", "--input", tmp_path / "a.json")
    assert records(uri) == EXPECTED


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ('"payload": "v", "value": "v"', "no value, or two"),
        ('"key": "k"', "no value, or two"),
        ('"payload": null, "payload_error": "Not Avro"', "kcat could not decode its payload"),
        ('"value": "v", "valeu": "w"', "a member that no envelope has"),
        ('"value": "v", "partition": -1', "a partition"),
        ('"value": "v", "ts": 1.5', "a timestamp"),
        ('"value": "v", "headers": ["h"]', "neither a map nor pairs"),
        ('"value": "v", "headers": [1, "v"]', "a header's key is no text"),
        ('"value": "v\\ud800"', "no envelope"),
        ('"value": "!", "valueIsArray": true', "no envelope"),
        ('"value": "v"', "no envelope (Expecting"),
    ],
)
def test_what_is_no_envelope_is_an_error_that_names_it_and_appends_nothing(run, uri, tmp_path, member, said):
    end = "" if said.endswith("(Expecting") else "}"
    (tmp_path / "a.json").write_text(f"{KCAT[0]}\n{{{member}{end}\n")
    ran = run("append", uri, "orders", "--format", "envelope", "--input", tmp_path / "a.json")
    assert ran.code == 1 and "bject 2" in ran.error and said in ran.error and ran.error.count("\n") == 1
    assert records(uri) == []


def test_base64_of_a_sink_is_decoded(run, segments, uri, tmp_path):
    """Aiven's CSV has key and value in base64; an envelope has it where its sink had bytes."""
    (tmp_path / "a.csv").write_text("azE=,dgkx,7,1700000000000\n,/w==,8,1700000000001\n")
    columns = ["--key-column=f0", "--value-column=f1", "--timestamp-column=f3", "--partition=0"]
    csv = ["--option=header=false", "--option=base64=f0,f1", *columns]
    segments("append", uri, "orders", *csv, "--input", tmp_path / "a.csv")
    envelope = f'{{"key":"azE=","value":"dgkx","timestamp":{START_MS},"headers":[{{"key":"h","value":"/w=="}}]}}'
    chosen = ["--format=envelope", "--option=base64=key,value,headers", "--partition=0"]
    segments("append", uri, "orders", *chosen, stdin=envelope.encode())
    assert records(uri) == [
        (0, START_MS, b"k1", b"v\t1", []),
        (0, START_MS + 1, None, b"\xff", []),
        (0, START_MS, b"k1", b"v\t1", [("h", b"\xff")]),
    ]
    (tmp_path / "b.csv").write_text("azE=,d!kx,7,1700000000000\n")
    ran = run("append", uri, "orders", *csv, "--input", tmp_path / "b.csv")
    assert ran.code == 1 and "column f1 has text that is not base64" in ran.error
