"""`append` from a pipe that has no end yet: what came is committed each --linger, at a signal and at the end."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from spark_segments import LogDir
from verification.world.clock import PATIENCE_SECONDS
from verification.world.topics import values

APPEND = [sys.executable, "-m", "spark_segments", "append"]


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(f"{tmp_path}/log")
    log.create_topic("orders")
    return log


def wait_for(log: LogDir, expected: list[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while values(log) != expected:
        assert time.monotonic() < deadline, values(log)
        time.sleep(0.01)


@pytest.fixture
def appending(log, python_environment) -> Iterator[subprocess.Popen[bytes]]:
    command = [*APPEND, log.uri, "orders", "--linger", "50ms"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=python_environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process
        process.kill()


@pytest.mark.cases(1)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_lines_of_a_pipe_are_committed_before_its_end_and_at_a_signal(log, appending, sent):
    appending.stdin.write(b"a\nb\n")
    appending.stdin.flush()
    wait_for(log, [b"a", b"b"])
    appending.stdin.write(b"c\nnot yet a li")
    appending.stdin.flush()
    wait_for(log, [b"a", b"b", b"c"])
    os.kill(appending.pid, sent)
    output, error = appending.communicate(timeout=PATIENCE_SECONDS)
    assert appending.returncode == 0 and output.splitlines()[-1].split() == [b"0", b"0", b"2"]
    assert b"The last line, of 12 bytes, has no end: it is not appended." in error
    assert b"Appended 3 records to orders" in error
    assert values(log) == [b"a", b"b", b"c"]


@pytest.mark.proof
def test_a_signal_commits_what_came_and_waits(log, python_environment):
    command = [*APPEND, log.uri, "orders", "--linger", "1h"]
    reader, writer = os.pipe()
    with subprocess.Popen(command, env=python_environment, stdin=reader, stderr=subprocess.PIPE) as process:
        os.close(reader)
        os.set_blocking(writer, False)
        line, written = b"x" * 999 + b"\n", 0
        deadline = time.monotonic() + PATIENCE_SECONDS
        while written < 200 and time.monotonic() < deadline:  # more than a pipe holds: the process has begun to read
            try:
                assert os.write(writer, line) == len(line)
                written += 1
            except BlockingIOError:
                time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=PATIENCE_SECONDS)
        os.close(writer)
    assert process.returncode == 0 and 0 < len(values(log)) <= 200
    assert b"Appended %d records" % len(values(log)) in error


def test_a_pipe_with_once_is_one_commit(log, segments, monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, b"a\nb\n")
    os.close(writer)
    before = log.topic("orders").version
    with os.fdopen(reader) as file:
        run_in_pipe(segments, monkeypatch, file, log, "--once", "monday")
    assert values(log) == [b"a", b"b"] and log.topic("orders").version == before + 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_wait_is_a_commit_and_the_last_line_needs_no_end(log, segments, monkeypatch, form):
    lines = {"text": [b"a", b"b", b"c"], "json": [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']}[form]
    reader, writer = os.pipe()

    def write() -> None:
        for count, line in enumerate(lines, 1):
            os.write(writer, line + (b"\n" if count < len(lines) else b""))
            if count < len(lines):
                wait_for(log, lines[:count])
        os.close(writer)

    before = log.topic("orders").version
    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader) as file:
        ran = run_in_pipe(segments, monkeypatch, file, log, "--format", form, "--linger", "1ms")
    thread.join()
    assert values(log) == lines and log.topic("orders").version == before + len(lines)
    assert ran.lines[-1].split() == ["0", "0", "2"] and "Appended 3 records" in ran.error


def test_an_error_says_what_was_committed_before_it(log, run, monkeypatch):
    reader, writer = os.pipe()

    def write() -> None:
        os.write(writer, b'{"key": "k", "value": "a"}\n')
        wait_for(log, [b"a"])
        os.write(writer, b'{"key": 7, "value": }\n')
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader) as file:
        ran = run_in_pipe(run, monkeypatch, file, log, "--format", "json", "--linger", "1ms")
    thread.join()
    assert ran.code == 1 and values(log) == [b"a"]
    assert ran.error.startswith("1 record of the input stay committed. The error is of what follows:\nerror: ")


def run_in_pipe(run, monkeypatch, file, log, *options):
    """Runs `append` with a pipe as standard input."""
    monkeypatch.setattr("io.TextIOWrapper", lambda _: file)  # which `run` makes standard input of
    return run("append", log.uri, "orders", *options)


@pytest.mark.proof
def test_somebody_at_a_terminal_is_told_how_it_ends(log, python_environment):
    master, terminal = pty.openpty()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*APPEND, log.uri, "orders"], env=python_environment, stdin=terminal, stdout=pipe, stderr=pipe
    ) as process:
        os.close(terminal)
        assert process.stderr.readline() == b"Reading standard input, a record per line. Ctrl-D or Ctrl-C ends it.\n"
        os.write(master, b"a\n\x04")
        _, error = process.communicate(timeout=PATIENCE_SECONDS)
        os.close(master)
    assert process.returncode == 0 and b"Appended 1 record to orders" in error
    assert values(log) == [b"a"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("append", "LOG", "orders", "--linger", "5"), "A duration needs a unit: expected such as 5s, 5m, 5d, found 5"),
        (("retain", "LOG", "--max-bytes", "1GiB", "--min-retention", "3"), "expected such as 3s, 3m, 3d, found 3"),
        (("retain", "LOG", "--max-bytes", "500"), "A size needs a unit: expected such as 500B, 500MiB, 500GiB"),
        (("explain", "LOG", "orders", "--offset", "1", "--partition", "0", "--every", "1"), "A duration needs a unit"),
        (("consume", "LOG", "orders", "--follow", "--poll-interval", "1"), "A duration needs a unit"),
        (("serve", "LOG", "--interval", "1"), "A duration needs a unit"),
        (("mirror", "LOG", "LOG2", "--interval", "1"), "A duration needs a unit"),
    ],
)
def test_a_number_on_the_command_line_needs_its_unit(run, log, command, said):
    ran = run(*(log.uri + word.removeprefix("LOG") if word.startswith("LOG") else word for word in command))
    assert ran.code == 1 and said in ran.error


@pytest.mark.proof
def test_a_path_of_a_pipe_is_read_as_standard_input_is(log, python_environment, tmp_path):
    """/dev/stdin and a named pipe: committed before their end. Several are one commit."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines: list[bytes] = []
    for path in ("/dev/stdin", str(fifo)):
        command = [*APPEND, log.uri, "orders", "--linger", "50ms", "--input", path]
        with subprocess.Popen(command, env=python_environment, stdin=subprocess.PIPE) as process:
            with process.stdin if path == "/dev/stdin" else open(fifo, "wb") as stream:
                for _ in range(2):
                    stream.write(b"%d\n" % len(lines))
                    stream.flush()
                    lines.append(b"%d" % len(lines))
                    wait_for(log, lines)
            assert process.wait(PATIENCE_SECONDS) == 0
    version = log.topic("orders").version
    shell = f"{' '.join(APPEND)} {log.uri} orders --input <(echo a) --input <(echo b)"
    subprocess.run(["bash", "-c", shell], env=python_environment, check=True)
    assert values(log) == [*lines, b"a", b"b"] and log.topic("orders").version == version + 1


@pytest.mark.proof
def test_a_terminal_shows_how_many_bytes_of_the_files_are_read(log, python_environment, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"line\n" * 2_000_000)
    ours, theirs = pty.openpty()
    command = [*APPEND, log.uri, "orders", "--input", str(tmp_path / "a.txt")]
    environment = python_environment | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # its end, on a terminal
            while part := os.read(ours, 65536):
                shown += part
        assert process.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    assert re.search(rb"append.*/9\.5.*MiB", shown), shown
