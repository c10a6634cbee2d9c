"""Text that goes in and out in another encoding than UTF-8, and outputs that take nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, InvalidRecordError

VALUE = "zürich→1"
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}
SHOWN = {"ascii": rb"z\xfcrich\u21921", "latin-1": b"z\xfcrich\\u21921", "the C locale": rb"z\xfcrich\u21921"}
HALF = "\ud800"
"""Half of a surrogate pair, which Python's text can hold and UTF-8 cannot."""


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    log.topic("orders").append([{"key": VALUE, "value": VALUE}])
    return log


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_characters_that_the_output_lacks_are_escaped_and_bytes_of_records_are_not(log, encoding, python_environment):
    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "spark_segments", *arguments]
        return subprocess.run(command, capture_output=True, env=python_environment | ENCODINGS[encoding], check=False)

    table = run("sql", log.uri, "SELECT value FROM orders")
    assert (table.returncode, table.stdout) == (0, b"value\n" + SHOWN[encoding] + b"\n"), table.stderr
    records = run("consume", log.uri, "orders", "--property", "print.key=true")
    assert (records.returncode, records.stdout) == (0, f"{VALUE}\t{VALUE}\n".encode()), records.stderr
    by_key = run("consume", log.uri, "orders", "--key", VALUE)
    assert b"Traceback" not in by_key.stderr
    if encoding == "the C locale":
        assert by_key.returncode == 1 and by_key.stderr.startswith(b"error: A text is not UTF-8")


FORMS = {
    "text": "a→1\r\nb→2\r\n",
    "json": '{"value": "a→1"}\r\n{"value": "b→2"}\r\n',
    "envelope": '{"value": "a→1"}\r\n{"value": "b→2"}\r\n',
    "csv": "value\r\na→1\r\nb→2\r\n",
}
WIDE = ["utf-16-le", "utf-16-be"]


@pytest.mark.parametrize("form", ["text", "json", "envelope"])
@pytest.mark.parametrize("encoding", WIDE)
def test_text_of_utf_16_is_refused_by_its_mark(log, run, form, encoding):
    """What PowerShell's > writes was three records of halves of lines."""
    ran = run("append", log.uri, "orders", "--format", form, stdin=f"\ufeff{FORMS[form]}".encode(encoding))
    assert ran.code == 1 and "The text is UTF-16" in ran.error and "--encoding utf-16" in ran.error
    assert log.topic("orders").offsets() == {0: (0, 1)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", [*WIDE, "utf-16", "cp1252"])
def test_text_in_another_encoding_is_appended_as_utf_8(log, run, tmp_path, form, encoding):
    text = FORMS[form].replace("→", "ü") if encoding == "cp1252" else f"\ufeff{FORMS[form]}"
    by_mark = "utf-16" if encoding in WIDE else encoding
    (tmp_path / "rows").write_bytes(text.encode(encoding))
    ran = run("append", log.uri, "orders", "--format", form, "--input", tmp_path / "rows", "--encoding", by_mark)
    assert ran.code == 0, ran.error
    arrow = "ü" if encoding == "cp1252" else "→"
    values = log.topic("orders").scan(offsets={0: (1, None)}).to_table()["value"].to_pylist()
    assert values == [f"a{arrow}1".encode(), f"b{arrow}2".encode()]


def test_a_long_text_in_another_encoding_is_the_text_whole(log, run, tmp_path):
    lines = [f"{number}→{'ü' * (number % 97)}" for number in range(150_000)]
    (tmp_path / "lines").write_bytes("\n".join(lines).encode("utf-16"))
    ran = run("append", log.uri, "orders", "--input", tmp_path / "lines", "--encoding", "UTF-16")
    assert ran.code == 0, ran.error
    values = log.topic("orders").scan(offsets={0: (1, None)}).to_table()["value"].to_pylist()
    assert values == [line.encode() for line in lines]


@pytest.mark.parametrize("form", ["text", "csv"])
@pytest.mark.parametrize(
    ("content", "encoding", "found"),
    [
        (b"value\na\xff\n", "ascii", "bytes ff"),
        ("value\na".encode("utf-16-le")[:-1], "utf-16-le", "bytes 61"),
        ("value\na\n".encode("utf-16-le"), "UTF16", "no byte order mark"),
        (b"value\na\x81\n", "cp1252", "bytes 81"),
    ],
)
def test_bytes_that_are_not_of_the_encoding_append_nothing(log, run, tmp_path, form, content, encoding, found):
    (tmp_path / "rows").write_bytes(content)
    ran = run("append", log.uri, "orders", "--format", form, "--input", tmp_path / "rows", "--encoding", encoding)
    assert ran.code == 1 and "not in the encoding" in ran.error and found in ran.error and "rows" in ran.error
    assert f"expected {encoding}" in ran.error
    assert ("--encoding utf-16-le" in ran.error) == (encoding == "UTF16")
    assert log.topic("orders").offsets() == {0: (0, 1)}


@pytest.mark.parametrize("encoding", ["no-such", "hex", "base64", "punycode", "idna", "unicode_escape"])
def test_an_unknown_encoding_is_refused(log, run, encoding):
    ran = run("append", log.uri, "orders", "--encoding", encoding, stdin=b"a\n")
    assert ran.code == 1 and "no such encoding" in ran.error and encoding in ran.error


def test_a_misspelt_topic_is_answered_with_the_nearest(log, run):
    assert "Did you mean orders?" in run("consume", log.uri, "ordres").error
    assert "There are: orders" in run("consume", log.uri, "quite-another").error


def test_a_full_disk_below_the_output_is_one_error_in_words(log, python_environment):
    command = [sys.executable, "-m", "spark_segments", "consume", log.uri, "orders"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=python_environment, check=False)
    assert (ran.returncode, ran.stderr) == (1, b"error: There is no space left where the output is written to\n")


def test_a_port_that_is_taken_is_an_error_that_names_it(log, run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("page", log.uri, "--port", port)
    assert ran.code == 1 and f"Port {port} of 127.0.0.1" in ran.error and "--port 0" in ran.error


def test_half_of_a_surrogate_pair_is_one_error_wherever_text_is_given(log):
    topic = log.topic("orders")
    for named in ({"once": HALF}, {"txn": (HALF, 1)}):
        with pytest.raises(InvalidOptionError, match="is no name"):
            topic.append([{"value": "a"}], **named)
    for row in ({"value": HALF}, {"key": HALF, "value": "a"}, {"value": "a", "headers": {HALF: b"1"}}):
        with pytest.raises(InvalidRecordError, match="not UTF-8"):
            topic.append([row])
    with pytest.raises(InvalidOptionError, match="cannot be a name of a file"):
        LogDir.create(f"{log.uri}/{HALF}")
    assert topic.offsets() == {0: (0, 1)}


@pytest.mark.parametrize("path", ["~", "~/log"])
def test_a_tilde_that_no_shell_has_expanded_makes_no_directory(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for attempt in (LogDir.create, LogDir.open):
        with pytest.raises(InvalidOptionError, match=r"Only a shell knows ~.*\$HOME"):
            attempt(path)
    assert os.listdir(tmp_path) == []
    assert LogDir.create(f"./{path}").uri == f"{tmp_path}/{path}"
