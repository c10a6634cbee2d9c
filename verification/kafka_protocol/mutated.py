"""python -m verification.kafka_protocol.mutated --requests N [--seed S]: a server that is sent requests that make no
sense.

Each is a request of an API and version that is served, of which some bytes are others, gone, doubled or extreme. The
server must still be there, must still serve each record, must not have grown, and no line of its log may be a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.apis import VERSIONS
from verification.kafka_protocol.requests import request

_EXTREMES = (0, 1, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_CONNECTIONS = 24
_WAIT_SECONDS = 0.03  # for an answer; whoever waits in vain ends the connection
_PARTS = 10
_MOST_GROWTH_BYTES = 64 << 20
_NAMES = ("topic", "name", "resource_name", "topics", "group_id")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.mutated", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(f"{directory}/log")
        log.create_topic("plain", partitions=2)
        log.topic("plain").append([{"value": "x" * 100, "partition": number % 2} for number in range(1000)])
        errors = Path(directory, "errors")
        with errors.open("wb") as file:
            command = [sys.executable, "-m", "spark_segments", "serve", str(log.uri), "--port", "0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert server.stdout is not None
        port = int(server.stdout.readline().partition("127.0.0.1:")[2].split()[0])
        started, grown = time.monotonic(), -1
        try:
            before = 0
            for part in range(_PARTS):  # growth is measured from the end of the first on
                _run(port, arguments.requests // _PARTS, arguments.seed * _PARTS + part)
                resident, seconds = _resident_bytes(server.pid), time.monotonic() - started
                before = before or resident
                sent = arguments.requests // _PARTS * (part + 1)
                print(f"{sent} requests, {sent / seconds:.0f} a second, {resident >> 20} MiB resident", flush=True)
            grown = resident - before
            served = _answers(port)
        finally:
            server.send_signal(signal.SIGTERM)
            is_ended = server.wait(30) == 0
        faults = errors.read_text(errors="replace").split("Traceback")[1:]
        for text in sorted({_ended(fault) for fault in faults})[:5]:
            print(text)
        seconds = time.monotonic() - started
        print(
            f"{arguments.requests} requests in {seconds:.0f} s: {len(faults)} faults, grown by {grown >> 20} MiB, "
            f"{'serves' if served else 'does not serve'}, {'ended in order' if is_ended else 'did not end in order'}"
        )
        return 0 if served and is_ended and not faults and grown < _MOST_GROWTH_BYTES else 1


def _run(port: int, count: int, seed: int) -> None:
    threads = [
        threading.Thread(target=_send, args=(port, count // _CONNECTIONS, seed * 100 + number))
        for number in range(_CONNECTIONS)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def _send(port: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    corpus = [
        request(key, version, {**dict.fromkeys(_NAMES, name), "endpoint_type": 1})
        for key, versions in VERSIONS.items()
        for version in versions
        for name in ("plain", "")
    ]
    connection: socket.socket | None = None
    for _ in range(count):
        frame = mutated(chance.choice(corpus), chance)
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_SECONDS)
            connection.sendall(frame)
            if connection.recv(1 << 16):
                continue
        except OSError:
            pass
        if connection is not None:
            connection.close()
        connection = None
    if connection is not None:
        connection.close()


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """A frame of which some bytes are others. Its size is right as a rule."""
    data = bytearray(frame[4:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data)) if chance.random() < 0.5 and len(data) else min(len(data), 8)
        at = max(at, 0 if chance.random() < 0.05 else 4)  # the API and its version stay, as a rule
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + 4] = struct.pack(">I", chance.choice(_EXTREMES))
            case 2:
                data[at : at + 2] = struct.pack(">H", chance.choice(_EXTREMES) & 0xFFFF)
            case 3:
                del data[at : at + chance.randint(1, 8)]
            case 4:
                data[at:at] = chance.randbytes(chance.randint(1, 16))
            case _:
                data[at:at] = data[at : at + chance.randint(1, 64)]
    size = chance.choice(_EXTREMES) if chance.random() < 0.02 else len(data)
    return struct.pack(">I", size & 0xFFFFFFFF) + bytes(data)


def _ended(fault: str) -> str:
    """The lines of a traceback."""
    lines = fault.splitlines()
    end = next((number for number, line in enumerate(lines[1:], 1) if not line.startswith(" ")), len(lines) - 1)
    return "\n".join(lines[1 : end + 1])


def _resident_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) << 10


def _answers(port: int) -> bool:
    """Whether the server gives all records to a client that makes sense."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "after"})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition("plain", number, 0) for number in range(2)])
        found = consumer.consume(1000, 20)
        return len(found) == 1000 and not any(one.error() for one in found)


if __name__ == "__main__":
    sys.exit(main())
